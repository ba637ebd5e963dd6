"""optbuilder from Python: plans, pipelines loaded with them, techniques on one's own pipeline, and undone again."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import optbuilder
from optbuilder.overrides import assigned
from optbuilder.snapshot import difference, snapshot
from optbuilder.state import preserved


@pytest.fixture
def pipe(tiny, request):
    """A pipeline that the caller loaded."""
    from diffusers import DiffusionPipeline

    with preserved():
        yield DiffusionPipeline.from_pretrained(tiny[getattr(request, "param", "sdxl")])


def pixels(pipe):
    more = {"max_sequence_length": 16} if "Flux" in type(pipe).__name__ else {}
    generator = torch.Generator().manual_seed(0)
    pipe.set_progress_bar_config(disable=True)
    call = {"num_inference_steps": 2, "height": 64, "width": 64, "output_type": "np", "generator": generator}
    return pipe("a red circle", **call, **more).images


def test_importing_costs_nothing():
    code = "import sys, optbuilder; print([m for m in ('torch', 'diffusers', 'hydra') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]" and sorted(optbuilder.__all__) == optbuilder.__all__


def test_a_plan_is_that_of_the_command_line(tiny):
    found = optbuilder.plan(
        "compile.fullgraph=false", model="shapes_flux", device="cpu", compile="regional", precision="bf16"
    )
    assert [t.name for t in found.transforms] == ["precision=bf16", "compile=regional"] and not found.refusals
    assert found.transforms[1].options["fullgraph"] is False
    with pytest.raises(optbuilder.Refused, match="Did you mean 'int8_dynamic'"):
        optbuilder.plan(quant="int8_dynamc")


def test_a_loaded_pipeline_has_the_plan_applied(tiny):
    with preserved():
        words = ["model=custom", f"model.repo_id={tiny['flux']}", "device=cpu", "compile.backend=eager"]
        pipe = optbuilder.load(*words, precision="bf16", compile="full")
        assert pipe.transformer.dtype == torch.bfloat16 and "forward" in vars(pipe.transformer)
        with pytest.raises(optbuilder.Refused, match=r"compute capability 8\.9"):
            optbuilder.load(*words[:3], quant="fp8_dynamic")


UNDOABLE = {
    "sdxl": [{"layout": "channels_last"}, {"attention": "sdpa_math"}, {"attention": "sliced"}, {"scheduler": "ddim"},
             {"fusion": "qkv"}, {"compile": "full"}, 
             {"attention": "sdpa_math", "layout": "channels_last", "compile": "regional"}],
    "flux": [{"attention": "native_math"}, {"cache": "first_block"}, {"offload": "group_block"}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("pipe", "choices"), [(f, c) for f, all_ in UNDOABLE.items() for c in all_], indirect=["pipe"], ids=str
)
def test_what_was_applied_is_undone(pipe, choices):
    """The snapshot is the same as before, and so are the pictures, value by value."""
    drawn, before = pixels(pipe), snapshot(pipe)
    more = ["compile.backend=eager"] if "compile" in choices else []
    changed = optbuilder.apply(pipe, *more, **choices)
    assert changed is pipe and difference(before, snapshot(pipe))
    pixels(pipe)
    assert optbuilder.undo(pipe) is pipe
    assert difference(before, snapshot(pipe)) == {}
    assert (pixels(pipe) == drawn).all()


def test_changed_weights_cannot_be_undone(pipe):
    optbuilder.apply(pipe, "quant.min_parameters=100", quant="int8_weight_only")
    with pytest.raises(optbuilder.Refused, match="the old ones are gone"):
        optbuilder.undo(pipe)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"precision": "bf16"}, "a dtype belongs to loading"),
        ({"quant": "int8_weight_only_at_load"}, "it quantizes while loading"),
        ({"quant": "fp8_dynamic"}, "compute capability 8.9"),
        ({"cache": "first_block"}, "has no enable_cache"),
        ({"scheduler": "flow_euler"}, "is an epsilon or v-prediction model"),
    ],
)
def test_a_refusal_leaves_the_pipeline_as_it_is(words, said, pipe):
    before = snapshot(pipe)
    with pytest.raises(optbuilder.Refused, match=said):
        optbuilder.apply(pipe, **words)
    assert difference(before, snapshot(pipe)) == {}
    with pytest.raises(optbuilder.Refused, match="did nothing to this pipeline"):
        optbuilder.undo(pipe)


def test_the_dtype_of_a_loaded_pipeline_is_known(tiny):
    """A bf16 pipeline meets what a kernel needs of the dtype."""
    from diffusers import DiffusionPipeline

    from optbuilder.api import described

    with preserved():
        pipe = DiffusionPipeline.from_pretrained(tiny["flux"], dtype=torch.bfloat16)
        optbuilder.apply(pipe, compile="regional", **{"compile.backend": "eager"})
        assert described(pipe).components["transformer"] == "FluxTransformer2DModel"
        assert pixels(pipe).shape == (1, 64, 64, 3)


def test_the_examples_in_the_docstrings_are_true(tmp_path, monkeypatch):
    import doctest

    import optbuilder.api
    import optbuilder.graphs
    import optbuilder.lock
    import optbuilder.notebook
    import optbuilder.search.settings

    monkeypatch.chdir(tmp_path)  # one of them leaves a run directory
    modules = (optbuilder.api, optbuilder.graphs, optbuilder.lock, optbuilder.notebook, optbuilder.search.settings)
    with preserved():
        assert [doctest.testmod(module).failed for module in modules] == [0] * len(modules)


HOSTILE = '<script>alert("1")</script> & <b>'


def test_a_plan_shows_itself(tiny):
    found = optbuilder.plan(device="cpu", compile="regional", quant="fp8_dynamic")
    assert repr(found).splitlines()[-1].startswith("refused: quant=fp8_dynamic: float8 matmuls")
    assert "<td>compile=regional</td><td>lossless</td>" in found._repr_html_()
    graphs = "graphs: 2: BasicTransformerBlock 2x64x128, 2xNx128 (N: any size from 2 on)"
    known = optbuilder.plan(device="cpu", compile="regional")
    assert graphs in repr(known) and f"<p>{graphs}</p>" in known._repr_html_()
    words = ["model=custom", f"model.repo_id={tiny['sdxl']}", assigned("kernels.repo_id", HOSTILE)]
    hostile = optbuilder.plan(*words, kernels="hub")
    assert HOSTILE in repr(hostile) and "<script" not in hostile._repr_html_()


def test_a_run_shows_itself_with_its_pictures(tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["model=custom", f"model.repo_id={tiny['sdxl']}", "run.height=64", "run.width=64", "run.repeats=1"]
    prompt = "run.prompts=" + HOSTILE
    outcome = optbuilder.run(*words, prompt, "run.num_inference_steps=1", device="cpu", layout="channels_last")
    assert outcome.status == "ok" and (outcome.directory / "metrics.json").is_file()
    text, html = repr(outcome), outcome._repr_html_()
    assert text.startswith("ok: precision=fp32, layout=channels_last on ") and "latency: " in text
    assert "<td>latency</td>" in html and html.count("data:image/png;base64,") == 1
    assert (
        "<script" not in html
        and 'alt="&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt; &amp; &lt;b&gt; (seed 0)"' in html
    )
    again = optbuilder.run(*words, prompt, "run.num_inference_steps=1", device="cpu", quant="fp8_dynamic")
    assert again.status == "refused" and again.directory != outcome.directory
    assert "<p>quant=fp8_dynamic: float8 matmuls" in again._repr_html_()
