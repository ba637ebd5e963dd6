"""Failures of real users, by their ids, that no other test names. The others: grep for the id."""

from __future__ import annotations

import numpy as np
import pytest

from optbuilder.builder import resolve
from optbuilder.counters import counts
from optbuilder.runner import run
from optbuilder.state import preserved
from tests.conftest import composed, of, only_run, read
from tests.test_effects import EAGER, SMALL, built, pictures


def refusals(folder, *words, machine="h100"):
    return " ".join(resolve(*composed(*of(folder), f"machine={machine}", *words)).refusals)


MIXED = ["precision.vae=fp32", "precision.denoiser=fp32", "precision.text_encoders=fp32", "precision.vae=fp16"]


@pytest.mark.parametrize("part", MIXED)
@pytest.mark.parametrize("family", ["sdxl", "flux"])
def test_p03_components_of_different_dtypes_are_bridged(family, part, tiny):
    picture = pictures(tiny[family], "precision=bf16", part)[0]
    assert np.isfinite(picture).all() and np.ptp(picture) > 0


def test_p07_nothing_is_cast_after_quantization(tiny):
    """The order is the plan's, and the dtype is there before the weights are quantized."""
    config, choices = composed(*of(tiny["flux"]), "quant=int8_weight_only", SMALL, "precision=bf16")
    assert [t.stage for t in resolve(config, choices).transforms] == ["precision", "quant"]
    with preserved():
        _, pipe, _ = built(tiny["flux"], "quant=int8_weight_only", SMALL, "precision=bf16")
        assert {str(p.dtype) for p in pipe.transformer.parameters()} == {"torch.bfloat16"}


def test_p08_p74_a_technique_that_adds_hooks_on_the_side_is_named(tiny, monkeypatch):
    import optbuilder.transforms.layout as layout
    from optbuilder.errors import UnexpectedHooks

    real = layout.modules_named

    def and_hooks(pipe, names):
        pipe.enable_model_cpu_offload(device="cpu")
        return real(pipe, names)

    monkeypatch.setattr(layout, "modules_named", and_hooks)
    with pytest.raises(UnexpectedHooks, match="layout=channels_last: it put hooks that nobody asked for"):
        pictures(tiny["sdxl"], "layout=channels_last")


def test_p12_names_are_ours_and_config_classes_torchaos(main, tiny):
    code, _, err = main("action=plan", *of(tiny["flux"])[:2], "quant=int8_weight")
    assert code == 2 and "Did you mean 'int8_weight_only'?" in err


def test_p25_there_is_no_autoquant(main, tiny):
    code, _, err = main("action=plan", *of(tiny["flux"])[:2], "quant=autoquant")
    assert code == 2 and "there is no such option" in err


def graphs_for(tiny, dynamic, values):
    """The number of graphs after each (size, images) in turn."""
    found = []
    with preserved(), counts() as so_far:
        plan, pipe, _ = built(tiny["sdxl"], "compile=full", EAGER, f"compile.dynamic={dynamic}")
        for size, images in values:
            plan.run.height = plan.run.width = size
            plan.run.images_per_prompt, plan.run.guidance_scale = images, 1.0
            run(pipe, plan.run, graphs=so_far)
            found.append(so_far().graphs)
    return found


def test_p27_sizes_and_graphs(tiny):
    sizes = [(72, 1), (80, 1), (88, 1)]
    assert graphs_for(tiny, "null", sizes) == [1, 2, 2]
    assert graphs_for(tiny, "false", sizes) == [1, 2, 3]
    assert graphs_for(tiny, "true", sizes) == [1, 1, 1]


def test_p29_a_batch_of_one_is_a_graph_of_its_own(tiny):
    assert graphs_for(tiny, "true", [(64, 1), (64, 2), (64, 3)]) == [1, 2, 2]


def test_p32_regional_needs_repeated_blocks(tiny, tmp_path):
    import json
    import shutil

    folder = shutil.copytree(tiny["flux"], tmp_path / "sd3")
    index = json.loads((folder / "model_index.json").read_text())
    index["transformer"] = ["diffusers", "SD3Transformer2DModel"]
    (folder / "model_index.json").write_text(json.dumps(index))
    assert "names no repeated blocks, so there is nothing regional to compile. Use compile=full" in refusals(
        folder, "compile=regional"
    )


def test_p39_memory_after_each_call_is_recorded(main, tiny, tmp_path):
    main(*of(tiny["sdxl"]), "run.repeats=4")
    calls = read(only_run(tmp_path) / "metrics.json")["latency"]["calls"]
    assert len(calls) == 4 and all(call["rss_bytes"] > 1e8 for call in calls)


def test_p47_quantizers_that_break_a_graph_say_so(tiny, monkeypatch):
    import optbuilder.technique as technique

    monkeypatch.setattr(technique, "installed_version", lambda name: "99.0")
    words = ["precision=bf16", "compile=regional"]
    assert "breaks a full graph. Use compile.fullgraph=false" in refusals(tiny["flux"], "quant=bnb_int8", *words)
    assert refusals(tiny["flux"], "quant=bnb_nf4", *words) == ""


def test_p50_channels_last_says_what_it_cannot_touch(tiny):
    notes = pictures(tiny["flux"], "layout=channels_last")[1]["layout=channels_last"].notes
    assert notes == ["transformer has no convolution weights; it stays as it is"]


def test_p53_a_mask_that_a_kernel_cannot_take_fails_loudly():
    import torch
    from diffusers.models.attention_dispatch import AttentionBackendName, attention_backend, dispatch_attention_fn

    q = torch.randn(1, 4, 2, 8)
    mask = torch.ones(1, 1, 4, 4, dtype=torch.bool)
    with attention_backend(AttentionBackendName._NATIVE_FLASH), pytest.raises(ValueError):
        dispatch_attention_fn(q, q, q, attn_mask=mask)


def test_p54_p56_kernels_with_limits_are_refused_by_them(tiny):
    assert "takes heads of size 64, 96, 128 (transformer has 16)" in refusals(
        tiny["flux"], "attention=sage", "precision=bf16"
    )
    assert "takes bfloat16 or float16 (transformer is float32)" in refusals(tiny["flux"], "attention=flash")


def test_p58_a_kernel_is_demanded_never_preferred(tiny):
    """There is no fallback: what cannot run is refused, and what did not run is `degraded`."""
    assert "this kernel runs on cuda" in refusals(
        tiny["flux"], "attention=native_cudnn", "precision=bf16", machine="here"
    )


def test_p70_placement_has_one_owner(main, tiny):
    """There is no device_map beside offload: components are the offload's to place, or all on the job's device."""
    code, _, err = main("action=plan", *of(tiny["sdxl"])[:2], "offload=[model,group_leaf]")
    assert code == 2 and "a stage takes one option" in err


def test_p80_jobs_of_a_grid_do_not_see_each_others_switches(main, tiny, tmp_path):
    import torch._inductor.config as inductor
    import torch.fx.experimental._config as fx

    grid = ["compile=dynamic,regional", "attention=native_math,none", "compile.backend=eager", "sweep.baseline=false"]
    code, _, _ = main("-m", *of(tiny["flux"]), *grid)
    found = [read(p)["counters"] for p in sorted(tmp_path.glob("outputs/*/*/*/metrics.json"))]
    assert code == 0 and [f["graphs"] for f in found] == [1, 1, 3, 3]
    kernels = [set(f["attention_kernels"]) for f in found]
    assert kernels[0] == kernels[2] and kernels[1] == kernels[3]
    assert kernels[0] - kernels[1] == {"aten::_scaled_dot_product_attention_math"}
    assert fx.use_duck_shape is True and inductor.epilogue_fusion is True


def test_p101_the_order_is_the_stages_own(tiny):
    words = ["offload=model", "cache=first_block", "compile=regional", "quant=int8_weight_only", "fusion=qkv"]
    config, choices = composed(*of(tiny["flux"]), *words)
    assert [t.stage for t in resolve(config, choices).transforms] == [
        "precision",
        "fusion",
        "quant",
        "compile",
        "cache",
        "offload",
    ]


def test_p88_p89_options_of_a_stage_that_is_left_alone(main, tiny):
    code, _, err = main("action=plan", *of(tiny["sdxl"])[:2], "lora.paths=[x]")
    assert code == 2 and "lora=none has no options. Choose another first: file" in err
    code, _, err = main("action=plan", *of(tiny["sdxl"])[:2], "quant.name=int4")
    assert code == 2 and "quant=none has no options" in err


def test_p96_a_device_that_is_hidden_is_explained(main, tiny):
    code, _, err = main("action=plan", *of(tiny["sdxl"])[:2], "device=cuda:1")
    assert code == 2 and err.startswith("device='cuda:1': ")


def test_p102_planning_is_one_function_without_torch(tiny):
    """The command line, each job of a grid and the library all call `resolve`."""
    import inspect

    import optbuilder.cli as cli
    import optbuilder.job as job
    import optbuilder.options as options

    assert all("resolve(" in inspect.getsource(module) for module in (cli, job, options))


def test_p09_fp8_matmuls_are_refused_by_compute_capability(tiny):
    said = [refusals(tiny["flux"], "quant=fp8_dynamic", "precision=bf16", machine=m) for m in ("h100", "rtx4090", "t4")]
    assert said[:2] == ["", ""] and "compute capability 8.9 or higher (found: 7.5)" in said[2]
    assert "Use quant=fp8_weight_only, int8_dynamic or int8_weight_only" in said[2]


def test_p22_the_peak_of_loading_is_not_that_of_the_run(main, tiny, tmp_path):
    assert main(*of(tiny["flux"]), "quant=int8_weight_only_at_load")[0] == 0
    phases = read(only_run(tmp_path) / "metrics.json")["memory"]["phases"]
    assert all(phases[phase]["rss_peak_bytes"] > 0 for phase in ("load", "run"))


def test_p23_sensitive_layers_are_left_alone_and_what_quantizing_them_does_is_seen(main, tiny, tmp_path):
    """The final projection, the embedders and the norms; without the default filter the picture is farther off."""
    psnr = {}
    for name, more in {"default": [], "all": ["quant.exclude=[]", "quant.min_parameters=0"]}.items():
        words = ["quant=int8_weight_only", SMALL, *more, "run.compare=baseline", f"hydra.run.dir={name}"]
        assert main(*of(tiny["flux"]), *words)[0] == 0
        psnr[name] = float(read(tmp_path / name / "metrics.json")["quality"]["psnr_min"])
        notes = read(tmp_path / name / "plan.json")["transforms"][-1]["effect"]["notes"]
        assert ("named like" in notes[0]) == (name == "default")
    assert psnr["default"] >= psnr["all"]


def test_p38_variable_length_kernels_do_not_go_into_a_full_graph(tiny, monkeypatch):
    import optbuilder.technique as technique

    monkeypatch.setattr(technique, "installed_version", lambda name: "99")
    words = ["attention=flash_varlen", "precision=bf16"]
    assert "breaks a full graph" in refusals(tiny["flux"], *words, "compile=full")
    assert "breaks a full graph" not in refusals(tiny["flux"], *words, "compile=full", "compile.fullgraph=false")


@pytest.mark.parametrize("words", ["compile=regional offload=group_block", "compile=full offload=model"])
def test_p46_quantized_compiled_and_offloaded_stays_within_the_recompile_limit(words, tiny):
    words = ["quant=int8_weight_only", SMALL, *words.split(), EAGER]
    with preserved(), counts() as so_far:
        plan, pipe, _ = built(tiny["flux"], *words)
        result = run(pipe, plan.run, call=plan.call, graphs=so_far)
        found = so_far()
    assert result.problems == [] and found.limit_hit is None and found.graphs >= 1
    assert found.graphs == result.graphs_before_timing


@pytest.mark.parametrize("prompt", ["a cat, (blue) = 5 | \"x\" 'y'", "猫 🐈 на ковре", "costs $5 ${cat} \\n %s"])
def test_p84_p85_any_text_is_a_prompt(prompt, main, tiny, tmp_path):
    """On the command line and in a file, letter for letter in the picture's own record."""
    (tmp_path / "prompts.txt").write_text(prompt + "\n", encoding="utf-8")
    base = [word for word in of(tiny["sdxl"]) if not word.startswith("run.prompts")]
    for name, words in {"line": [f"run.prompts={prompt}"], "file": ["run.prompts_file=prompts.txt"]}.items():
        assert main(*base, *words, f"hydra.run.dir={name}")[0] == 0
        assert read(tmp_path / name / "plan.json")["run"]["prompts"] == [prompt]
