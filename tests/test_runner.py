"""Running and measuring: true times, seeds that reproduce, pictures that are checked, and diffusers' own results."""

from __future__ import annotations

import time
from types import SimpleNamespace

import numpy as np
import pytest

from optbuilder.counters import Counts, counts
from optbuilder.measure import peak_memory, stamp, synchronize, timed_call
from optbuilder.request import Image, arguments, invalid
from optbuilder.runner import run
from optbuilder.settings import Run
from optbuilder.state import preserved
from tests.test_effects import built

ENCODE, STEP, DECODE = 0.05, 0.02, 0.03


class Sleeper:
    """A pipeline that sleeps for known times at the seams that every diffusers pipeline has."""

    def __init__(self, pixels=None):
        self.vae = SimpleNamespace(decode=lambda z: time.sleep(DECODE))
        self.pixels = np.linspace(0, 1, 48).reshape(1, 4, 4, 3) if pixels is None else pixels
        self.calls = []

    def encode_prompt(self, prompt):
        time.sleep(ENCODE)

    def progress_bar(self, iterable=None, total=None):
        raise AssertionError("the runner's own bar is to be used")

    def __call__(self, prompt, num_inference_steps, **kwargs):
        self.calls.append((prompt, kwargs))
        self.encode_prompt(prompt)
        with self.progress_bar(total=num_inference_steps) as bar:
            for _ in range(num_inference_steps):
                time.sleep(STEP)
                bar.update()
        self.vae.decode(None)
        return SimpleNamespace(images=self.pixels)


def settings(**values):
    return Run(**{"prompts": ["a"], "num_inference_steps": 5, "repeats": 2, **values})


def test_known_sleeps_are_measured_within_a_few_percent():
    result = run(Sleeper(), settings())
    assert len(result.timed) == 2
    for _, call in result.timed:
        assert call.text_encode == pytest.approx(ENCODE, rel=0.1)
        assert call.denoise == pytest.approx(5 * STEP, rel=0.1)
        assert call.decode == pytest.approx(DECODE, rel=0.1)
        assert len(call.steps) == 5 and sum(call.steps) == pytest.approx(call.denoise)
        assert call.seconds == pytest.approx(ENCODE + 5 * STEP + DECODE, rel=0.1)


def test_the_pipelines_own_methods_are_put_back():
    pipe = Sleeper()
    decode = pipe.vae.decode
    run(pipe, settings())
    assert "progress_bar" not in vars(pipe) and "encode_prompt" not in vars(pipe) and pipe.vae.decode is decode


def test_warm_up_goes_on_until_no_new_graph_appears():
    """P78: compilation never falls into a timed call, and is not averaged into the latency."""
    pipe, counted = Sleeper(), Counts()

    def graphs():
        counted.graphs = min(len(pipe.calls), 3)  # the first three calls each compile something
        return counted

    result = run(pipe, settings(warmup=1), graphs=graphs)
    assert len(result.warmup) == 3 and result.graphs_before_timing == 3 and len(result.timed) == 2
    assert len(run(Sleeper(), settings(warmup=3)).warmup) == 2
    assert run(Sleeper(), settings(warmup=0)).warmup == []


def test_every_image_has_a_seed_of_its_own():
    """P82: image i of the run has the seed `seed + i`, whatever the batch."""
    run_ = settings(prompts=["a", "b"], seed=7, images_per_prompt=3)
    first, second = arguments(Sleeper(), run_, 0, {}), arguments(Sleeper(), run_, 1, {"x": 1})
    assert [g.initial_seed() for g in first["generator"] + second["generator"]] == [7, 8, 9, 10, 11, 12]
    assert all(g.device.type == "cpu" for g in first["generator"])
    assert second["x"] == 1 and "negative_prompt" not in second


@pytest.mark.parametrize("family", ["sdxl", "flux"])
def test_pictures_are_bit_identical_to_diffusers_by_hand(family, tiny):
    import torch
    from diffusers import DiffusionPipeline

    call = {"max_sequence_length": 16} if family == "flux" else {}
    by_hand = DiffusionPipeline.from_pretrained(tiny[family], dtype=torch.bfloat16)
    by_hand.set_progress_bar_config(disable=True)
    expected = by_hand(
        "a red circle", height=64, width=64, num_inference_steps=2, generator=torch.Generator().manual_seed(0), **call
    ).images[0]
    with preserved():
        plan, pipe, _ = built(tiny[family], "precision=bf16")
        image = run(pipe, plan.run, call=plan.call).images[0]
    from diffusers.image_processor import VaeImageProcessor

    assert np.array_equal(np.asarray(VaeImageProcessor.numpy_to_pil(image.pixels)[0]), np.asarray(expected))


def test_a_second_run_on_the_same_pipeline_is_the_first_again(tiny):
    """P02: nothing that a call leaves behind changes the next one."""
    with preserved():
        plan, pipe, _ = built(tiny["sdxl"], "precision=fp16", "precision.vae=fp16")
        once, again = (run(pipe, plan.run).images[0].pixels for _ in range(2))
    assert np.array_equal(once, again)


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0, 1.0])
def test_pictures_that_cannot_be_right_are_found(value):
    pixels = np.full((1, 4, 4, 3), value)
    result = run(Sleeper(pixels), settings())
    assert len(result.problems) == 1 and "'a' (seed 0)" in result.problems[0]
    assert invalid(Image(np.linspace(0, 1, 48).reshape(4, 4, 3), "a", 0)) is None


def test_a_vae_that_overflows_float16_is_kept_in_float32(tiny, tmp_path):
    """P01: with the VAE in fp16 the pictures are not finite; precision=fp16 alone leaves it in fp32, and they are."""
    import torch
    from diffusers import AutoencoderKL, DiffusionPipeline

    pipe = DiffusionPipeline.from_pretrained(tiny["flux"])
    with torch.no_grad():
        pipe.vae.decoder.conv_in.weight *= 1e6
    assert isinstance(pipe.vae, AutoencoderKL)
    pipe.save_pretrained(tmp_path / "hot_flux")
    with preserved():
        plan, hot, _ = built(tmp_path / "hot_flux", "precision=fp16", "precision.vae=fp16")
        assert "not finite" in run(hot, plan.run, call=plan.call).problems[0]
        plan, cool, _ = built(tmp_path / "hot_flux", "precision=fp16")
        assert run(cool, plan.run, call=plan.call).problems == []


def test_recompiling_past_the_limit_is_seen(tiny):
    """P30: dynamo would go on eagerly with no more than a warning."""
    import torch._dynamo

    from optbuilder.transforms.compile import compile_forward

    with preserved(), counts() as graphs:
        torch._dynamo.config.recompile_limit = 2
        plan, pipe, _ = built(
            tiny["sdxl"], "compile=full", "compile.backend=eager", "compile.dynamic=false", "compile.fullgraph=false"
        )
        for size in (64, 72, 80, 88):
            plan.run.height = size
            run(pipe, plan.run, graphs=graphs)
        counters = {"limit_hit": graphs().limit_hit, "graphs": graphs().graphs, "graphs_in_timed_calls": 0}
    assert "recompile_limit" in counters["limit_hit"]
    assert "the rest ran uncompiled" in compile_forward.technique.ran({}, counters)


def test_a_full_graph_that_breaks_fails_with_its_reason(tiny):
    """P34"""
    import torch

    with preserved():
        plan, pipe, _ = built(tiny["sdxl"], "compile=full", "compile.backend=eager")
        block = pipe.unet.mid_block
        forward = block.forward
        block.forward = lambda *a, **k: (torch._dynamo.graph_break(), forward(*a, **k))[1]
        with pytest.raises(torch._dynamo.exc.Unsupported):
            run(pipe, plan.run)


def test_peak_memory_is_of_its_own_block():
    """P79: the peak of an earlier block does not show in a later one."""
    with peak_memory("cpu") as first:
        block = np.ones(60_000_000)
        time.sleep(0.05)
        del block
    with peak_memory("cpu") as second:
        time.sleep(0.05)
    assert first.rss_peak_bytes - second.rss_peak_bytes > 400_000_000


def test_an_accelerator_is_waited_for_around_the_timed_region(monkeypatch):
    """P77"""
    import torch

    waited = []
    monkeypatch.setattr(torch.accelerator, "synchronize", waited.append)
    monkeypatch.setattr("optbuilder.measure.stamp", lambda device: time.perf_counter())
    with timed_call(Sleeper(), "cuda:0", lambda done, total: None) as call:
        assert waited == ["cuda:0"]
    assert waited == ["cuda:0", "cuda:0"] and call.seconds > 0
    synchronize("cpu")
    assert len(waited) == 2 and isinstance(stamp("cpu"), float)


def test_a_pipeline_is_freed_when_its_job_is_done(tiny):
    """P83"""
    import gc
    import weakref

    with preserved():
        plan, pipe, _ = built(tiny["sdxl"], "compile=full", "compile.backend=eager", "attention=sdpa_math")
        run(pipe, plan.run)
        unet = weakref.ref(pipe.unet)
    del pipe
    gc.collect()
    assert unet() is None


def test_repeats_go_on_until_the_interval_is_narrow_or_the_budget_is_spent():
    steady = run(Sleeper(), settings(repeats="auto", repeats_width=0.2, repeats_budget_s=20.0))
    assert 3 <= len(steady.timed) <= 5
    spent = run(Sleeper(), settings(repeats="auto", repeats_width=0.0, repeats_budget_s=1.0))
    assert 4 <= len(spent.timed) <= 7
