"""Each technique that runs on a CPU changes the pipeline in the way it says, and the pipeline still makes pictures."""

from __future__ import annotations

import numpy as np
import pytest

from optbuilder.builder import resolve
from optbuilder.counters import counts
from optbuilder.effects import apply
from optbuilder.errors import NoEffect
from optbuilder.pipeline import load
from optbuilder.runner import run
from optbuilder.state import preserved
from tests.conftest import composed, of

SMALL = "quant.min_parameters=100"


def built(folder, *overrides):
    plan = resolve(*composed(*of(folder), "device=cpu", *overrides)).require()
    pipe, effects = apply(plan, load(plan.model, plan.load))
    return plan, pipe, {effect.transform: effect for effect in effects}


def pictures(folder, *overrides):
    """The first picture, the effects, the graphs and the pipeline of a job."""
    with preserved(), counts() as graphs:
        plan, pipe, effects = built(folder, *overrides)
        result = run(pipe, plan.run, call=plan.call, graphs=graphs)
        return result.images[0].pixels, effects, graphs(), pipe


@pytest.fixture(scope="module")
def baseline(tiny):
    return {family: pictures(folder)[0] for family, folder in tiny.items()}


EAGER = "compile.backend=eager"
# family, overrides with the technique first, a changed fact, what it changed to, graphs, largest difference of a pixel
CASES = [
    ("sdxl", "precision=bf16", "unet.bytes", "bfloat16", 0, 0.1),
    ("flux", "precision=bf16", "transformer.bytes", "bfloat16", 0, 0.1),
    ("sdxl", "precision=fp16", "vae.wrapped", "decode: cast", 0, 0.05),
    ("flux", "precision=fp16", "transformer.bytes", "float16", 0, 0.05),
    ("sdxl", "precision=fp16 precision.vae=fp16", "vae.bytes", "float16", 0, 0.05),
    ("sdxl", "precision=bf16 precision.text_encoders=fp32", "pipeline.wrapped", "encode_prompt: cast", 0, 0.1),
    ("flux", "precision=bf16 precision.denoiser=fp32", "pipeline.wrapped", "encode_prompt: cast", 0, 0.1),
    ("flux", "precision=fp32 precision.vae=bf16", "vae.wrapped", "decode: cast", 0, 0.1),
    ("sdxl", "attention=sdpa_math", "unet.wrapped", "forward: sdpa", 0, 1e-4),
    ("flux", "attention=sdpa_flash attention.components=[denoiser,vae]", "vae.wrapped", "_decode: sdpa", 0, 1e-4),
    ("flux", "attention=native", "transformer.attention_backends", "native", 0, 0),
    ("flux", "attention=native_math", "transformer.attention_backends", "_native_math", 0, 1e-4),
    ("flux", "attention=native_flash", "transformer.attention_backends", "_native_flash", 0, 1e-4),
    ("flux", "attention=flex", "transformer.attention_backends", "flex", None, 1e-4),
    ("sdxl", "attention=sliced attention.slice_size=max", "unet.processors", "SlicedAttnProcessor", 0, 1e-4),
    ("sdxl", "layout=channels_last", "unet.memory_formats", "channels_last", 0, 1e-4),
    ("flux", "layout=channels_last", "vae.memory_formats", "channels_last", 0, 1e-4),
    ("sdxl", f"quant=int8_weight_only {SMALL}", "unet.weights", "Int8Tensor", 0, 0.1),
    ("flux", f"quant=int8_dynamic {SMALL}", "transformer.weights", "Int8Tensor", 0, 0.2),
    ("flux", f"quant=fp8_weight_only {SMALL}", "transformer.weights", "Float8Tensor", 0, 0.2),
    ("sdxl", "quant=int8_weight_only_at_load", "unet.weights", "Int8Tensor", 0, 0.1),
    ("flux", "quant=int8_dynamic_at_load", "transformer.weights", "Int8Tensor", 0, 0.2),
    ("flux", "quant=fp8_weight_only_at_load precision=bf16", "transformer.weights", "Float8Tensor", 0, 0.2),
    ("flux", "quant=quanto_int8", "transformer.weights", "WeightQBytesTensor", 0, 0.1),
    ("sdxl", "quant=fp8_layerwise", "unet.hooks", "layerwise_casting", 0, 0.2),
    ("flux", "quant=fp8_layerwise precision=bf16 fusion=qkv", "transformer.bytes", "float8_e4m3fn", 0, 0.2),
    ("sdxl", "scheduler=dpmpp_2m", "scheduler.class", "DPMSolverMultistepScheduler", 0, 1),
    ("sdxl", "scheduler=dpmpp_2m_karras", "scheduler.config", "use_karras_sigmas", 0, 1),
    ("sdxl", "scheduler=euler_a", "scheduler.class", "EulerAncestralDiscreteScheduler", 0, 1),
    ("sdxl", "scheduler=unipc", "scheduler.class", "UniPCMultistepScheduler", 0, 1),
    ("sdxl", "scheduler=ddim", "scheduler.class", "DDIMScheduler", 0, 1),
    ("sdxl", "scheduler=lcm", "scheduler.class", "LCMScheduler", 0, 1),
    ("flux", "scheduler=dpmpp_2m_flow", "scheduler.config", "use_flow_sigmas", 0, 1),
    ("flux", "scheduler=unipc_flow", "scheduler.class", "UniPCMultistepScheduler", 0, 1),
    ("sdxl", "fusion=qkv", "unet.processors", "FusedAttnProcessor2_0", 0, 1e-4),
    ("sdxl", "fusion=qkv fusion.components=[denoiser,vae] fusion.drop_split=true", "vae.processors", "Fused", 0, 1e-4),
    ("flux", "fusion=qkv fusion.drop_split=true", "transformer.modules", "Linear", 0, 1e-4),
    ("sdxl", "vae=tiling vae.tile_size=32", "vae.settings", "'use_tiling': True", 0, 1),
    ("flux", "vae=slicing run.images_per_prompt=2", "vae.settings", "'use_slicing': True", 0, 1e-4),
    ("sdxl", "offload=model", "unet.hooks", "CpuOffload", 0, 1e-4),
    ("flux", "offload=group_block", "transformer.hooks", "group_offloading", 0, 1e-4),
    ("sdxl", "offload=group_leaf", "unet.hooks", "group_offloading", 0, 1e-4),
    (
        "flux",
        "cache=first_block cache.threshold=1 run.num_inference_steps=6",
        "transformer.hooks",
        "fbc_leader_block_hook",
        0,
        1,
    ),
    ("flux", "cache=dbcache cache.threshold=1 run.num_inference_steps=6", "transformer.wrapped", "count", 0, 1),
    ("flux", "cache=mag_cache run.num_inference_steps=6", "transformer.hooks", "mag_cache_block_hook", 0, 1),
    ("flux", "cache=pyramid_attention run.num_inference_steps=6", "transformer.hooks", "pyramid_attention", 0, 1),
    ("flux", "cache=faster_cache run.num_inference_steps=6", "transformer.hooks", "faster_cache_block", 0, 1),
    ("flux", "cache=taylorseer run.num_inference_steps=6", "transformer.hooks", "taylorseer_cache", 0, 1),
    ("sdxl", f"compile=full {EAGER}", "unet.wrapped", "forward: torch.compile", 1, 1e-4),
    (
        "flux",
        f"compile=full {EAGER} compile.components=[denoiser,vae.decode]",
        "vae.wrapped",
        "_decode: torch",
        2,
        1e-4,
    ),
    ("sdxl", f"compile=full {EAGER} compile.components=[text_encoders]", "text_encoder.wrapped", "torch", 2, 1e-4),
    ("flux", f"compile=full {EAGER} compile.components=[text_encoders]", "text_encoder_2.wrapped", "torch", 2, 1e-4),
    ("sdxl", f"compile=regional {EAGER}", "unet.wrapped", "forward: torch.compile", 1, 1e-4),
    ("flux", f"compile=regional {EAGER}", "transformer.wrapped", "forward: torch.compile", 3, 1e-4),
    ("flux", f"compile=regions {EAGER}", "transformer.modules", "OptimizedModule", None, 1e-4),
    ("flux", f"compile=dynamic {EAGER}", "transformer.wrapped", "forward: torch.compile", 1, 1e-4),
]


CACHES = [words for family, words, *_ in CASES if words.startswith("cache=")]


@pytest.mark.parametrize(("family", "words", "fact", "value", "graphs", "tolerance"), CASES, ids=lambda v: str(v)[:60])
def test_a_technique_changes_what_it_says(family, words, fact, value, graphs, tolerance, tiny, baseline):
    picture, effects, counted, _ = pictures(tiny[family], *words.split())
    assert value in str(effects[words.split()[0]].changes[fact][1])
    assert np.abs(picture - baseline[family]).max() <= tolerance
    assert counted.graphs == graphs if graphs is not None else counted.graphs > 0
    assert counted.graph_breaks == {} and counted.limit_hit is None


def test_the_whole_stack_together(tiny, baseline):
    """Everything at once, in the plan's order: one graph per kind of block, no break, and the picture."""
    words = ["precision=bf16", "attention=sdpa_flash", "layout=channels_last", "quant=int8_weight_only", SMALL]
    stack = [*words, "compile=regional", EAGER]
    for family, graphs in (("sdxl", 1), ("flux", 3)):
        compiled, effects, counted, _ = pictures(tiny[family], *stack)
        assert (
            list(effects) == [*words[:4], "compile=regional"] and counted.graphs == graphs and not counted.graph_breaks
        )
        assert np.array_equal(compiled, pictures(tiny[family], *words)[0])
        assert np.abs(compiled - baseline[family]).max() < 0.2


def test_the_log_says_how_many_layers_were_quantized_and_why_others_were_not(tiny):
    _, effects, _, _ = pictures(tiny["flux"], "quant=int8_dynamic", "quant.min_parameters=2000")
    note = effects["quant=int8_dynamic"].notes[0]
    assert note.startswith("transformer: quantized ") and " of 48 Linear layers; skipped " in note
    assert "named like 'norm'" in note and "under 2000 weights" in note


def test_the_filter_knows_the_layers_that_gain_nothing_or_break():
    from torch.nn import Linear

    from optbuilder.transforms.quant import why_not

    rules = {"min_features": 16, "multiple_of": 16, "min_parameters": 16384, "exclude": ("emb", "norm")}
    assert why_not("attn.to_q", Linear(256, 256), **rules) is None
    assert "named like 'emb'" in why_not("time_embedding.linear_1", Linear(256, 256), **rules)  # P11
    assert "side of at most 16" in why_not("x", Linear(16, 4096), **rules)
    assert "no multiple of 16" in why_not("x", Linear(32, 1023), **rules)  # P10
    assert "under 16384 weights" in why_not("x", Linear(64, 64), **rules)


def test_a_technique_without_effect_is_an_error(tiny):
    """P20's cousin: a filter that leaves every layer alone must not pass for quantization."""
    with pytest.raises(NoEffect, match="quant=int8_dynamic: no effect"):
        pictures(tiny["flux"], "quant=int8_dynamic", "quant.min_parameters=100000000")
    with pytest.raises(NoEffect, match="layout=channels_last: no effect"):
        pictures(tiny["flux"], "layout=channels_last", "layout.components=[denoiser]")


def test_compiled_parts_keep_class_names_and_state_dict(tiny):
    plain = built(tiny["sdxl"])[1]
    _, _, _, pipe = pictures(tiny["sdxl"], "compile=full", EAGER, "compile.components=[denoiser,vae]")
    assert type(pipe.unet).__name__ == "UNet2DConditionModel"
    assert pipe.unet.state_dict().keys() == plain.unet.state_dict().keys()
    assert pipe.vae.state_dict().keys() == plain.vae.state_dict().keys()


def test_hooks_added_after_compilation_stay_outside_the_graph(tiny):
    """P43, P44: model offload after a full-graph compile, twice, without a break."""
    with preserved(), counts() as graphs:
        plan, pipe, _ = built(tiny["sdxl"], "compile=full", EAGER, "compile.components=[denoiser,vae.decode]")
        pipe.enable_model_cpu_offload(device="cpu")
        result = run(pipe, plan.run, graphs=graphs)
        assert graphs().graphs == 2 and graphs().graph_breaks == {} and len(result.images) == 1


def test_a_mode_and_flags_become_options():
    import torch

    from optbuilder.transforms.compile import compile_arguments

    assert (
        compile_arguments(True, "max-autotune", None, "inductor", {"epilogue_fusion": None})["mode"] == "max-autotune"
    )
    found = compile_arguments(True, "max-autotune-no-cudagraphs", None, "inductor", {"conv_1x1_as_mm": True})
    assert "mode" not in found and found["options"]["max_autotune"] and found["options"]["conv_1x1_as_mm"]
    assert torch._inductor.config.conv_1x1_as_mm is False


def test_sizes_that_differ_share_a_dynamic_graph(tiny):
    """duck_shape: square and oblong pictures, and a switch of the process that is put back."""
    import torch.fx.experimental._config as fx

    with preserved(), counts() as graphs:
        plan, pipe, _ = built(tiny["sdxl"], "compile=dynamic", EAGER)
        assert fx.use_duck_shape is False
        for height, width in ((64, 64), (128, 128), (64, 128)):
            plan.run.height, plan.run.width = height, width
            run(pipe, plan.run, graphs=graphs)
        assert graphs().graphs == 1
    assert fx.use_duck_shape is True
