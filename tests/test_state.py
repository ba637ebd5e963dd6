"""A job leaves the process's switches as it found them."""

from __future__ import annotations

import os

import pytest


def test_switches_of_the_process_are_restored():
    import torch
    import torch._dynamo.config as dynamo
    import torch._inductor.config as inductor
    import torch.fx.experimental._config as fx
    from diffusers.models.attention_dispatch import AttentionBackendName, _AttentionBackendRegistry

    from optbuilder.state import preserved

    def switches():
        cudnn = torch.backends.cudnn
        return [
            torch.get_default_dtype(),
            torch.get_float32_matmul_precision(),
            torch.get_num_threads(),
            torch.is_grad_enabled(),
            torch.are_deterministic_algorithms_enabled(),
            torch.get_rng_state().tolist(),
            *(cudnn.allow_tf32, cudnn.benchmark, inductor.conv_1x1_as_mm, inductor.epilogue_fusion),
            *(dynamo.recompile_limit, fx.use_duck_shape, _AttentionBackendRegistry._active_backend),
            os.environ.get("TORCHINDUCTOR_CACHE_DIR"),
        ]

    before = switches()
    with pytest.raises(RuntimeError, match="the job failed"), preserved():
        torch.set_default_dtype(torch.bfloat16)
        torch.set_float32_matmul_precision("high")
        torch.set_num_threads(1 if torch.get_num_threads() > 1 else 2)
        torch.set_grad_enabled(False)
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.benchmark = True
        torch.use_deterministic_algorithms(True)
        inductor.conv_1x1_as_mm, inductor.epilogue_fusion, dynamo.recompile_limit = True, False, 77
        fx.use_duck_shape = False
        _AttentionBackendRegistry.set_active_backend(AttentionBackendName._NATIVE_MATH)
        torch.manual_seed(123)
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = "elsewhere"
        assert all(a != b for a, b in zip(before, switches(), strict=True))
        raise RuntimeError("the job failed")
    assert switches() == before


def test_quantization_leaves_inductors_flags_alone(tiny):
    import torch._inductor.config as inductor

    from tests.test_effects import built

    before = inductor.get_config_copy()
    built(tiny["flux"], "quant=int8_dynamic", "quant.min_parameters=100")
    assert inductor.get_config_copy() == before


def test_an_attention_backend_does_not_leak_to_other_models(tiny):
    """P51: the dispatcher's process-wide default is what it was, already while the job runs."""
    from diffusers.models.attention_dispatch import _AttentionBackendRegistry

    from tests.test_effects import built

    before = _AttentionBackendRegistry._active_backend
    built(tiny["flux"], "attention=native_math")
    assert _AttentionBackendRegistry._active_backend is before


def test_a_load_that_fails_leaves_the_default_dtype(tiny, tmp_path):
    import shutil

    import torch

    from optbuilder.builder import resolve
    from optbuilder.errors import Refused
    from optbuilder.pipeline import load
    from tests.conftest import composed, of

    folder = shutil.copytree(tiny["sdxl"], tmp_path / "model")
    (folder / "unet" / "diffusion_pytorch_model.safetensors").write_bytes(b"not safetensors")
    plan = resolve(*composed(*of(folder), "precision=bf16"))
    with pytest.raises(Refused, match="it cannot be loaded"):
        load(plan.model, plan.load)
    assert torch.get_default_dtype() == torch.float32
