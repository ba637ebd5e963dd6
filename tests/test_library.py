"""What is read from the libraries' source agrees with the libraries themselves."""

from __future__ import annotations

import inspect

import pytest

from optbuilder.errors import Refused
from optbuilder.library import call_arguments, class_facts, inductor_flags
from optbuilder.machine import Machine, probe
from optbuilder.model import describe, expand


@pytest.mark.parametrize(
    "name",
    [
        "UNet2DConditionModel",
        "FluxTransformer2DModel",
        "SD3Transformer2DModel",
        "WanTransformer3DModel",
        "AutoencoderKL",
    ],
)
def test_class_facts_are_the_classs_own(name):
    import diffusers

    cls, facts = getattr(diffusers, name), class_facts(name)
    assert facts.known
    assert list(facts.repeated_blocks) == list(cls._repeated_blocks or [])
    assert set(facts.bases) == {base.__name__ for base in cls.__bases__}


@pytest.mark.parametrize("family", ["sdxl", "flux"])
def test_dispatching_is_what_the_processors_say(family, tiny):
    from diffusers import DiffusionPipeline

    model = describe(str(tiny[family]))
    pipe = DiffusionPipeline.from_pretrained(tiny[family])
    name = model.denoisers[0]
    modules = getattr(pipe, name).modules()
    dispatches = any(hasattr(getattr(m, "processor", None), "_attention_backend") for m in modules)
    assert model.facts(name).dispatches_attention == dispatches == (family == "flux")


def test_call_arguments_are_the_pipelines_own():
    from diffusers import FluxPipeline

    assert call_arguments("FluxPipeline") == set(inspect.signature(FluxPipeline.__call__).parameters)
    assert call_arguments("NoSuchPipeline") == frozenset()


def test_inductor_flags_are_torchs_own():
    import torch._inductor.config as config

    assert {"conv_1x1_as_mm", "epilogue_fusion", "coordinate_descent_tuning"} <= inductor_flags()
    assert all(hasattr(config, flag) for flag in inductor_flags())


def test_a_models_facts_come_from_its_json(tiny):
    sdxl, flux = describe(str(tiny["sdxl"])), describe(str(tiny["flux"]))
    assert (sdxl.pipeline_class, flux.pipeline_class) == ("StableDiffusionXLPipeline", "FluxPipeline")
    assert sdxl.denoisers == ["unet"] and flux.denoisers == ["transformer"]
    assert sdxl.head_sizes("unet") == {32} and flux.head_sizes("transformer") == {16}
    assert expand(["text_encoders", "denoiser", "vae.decode"], sdxl.components) == [
        "text_encoder", "text_encoder_2", "unet", "vae.decode",
    ]  # fmt: skip
    assert sdxl.configs["scheduler"]["_class_name"] == "EulerDiscreteScheduler"


@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_a_folder_that_is_no_pipeline_is_refused(tmp_path, text):
    (tmp_path / "model_index.json").write_text(text)
    with pytest.raises(Refused, match=r"model\.repo_id"):
        describe(str(tmp_path))


def test_the_machine_is_probed_as_torch_sees_it():
    import torch

    machine = probe("auto")
    assert machine.kind == (torch.accelerator.current_accelerator().type if torch.accelerator.is_available() else "cpu")
    assert machine.computes_bf16 == torch.ops.mkldnn._is_mkldnn_bf16_supported() or machine.kind != "cpu"


def test_devices_are_picked_by_index(monkeypatch):
    import optbuilder.machine as machine

    gpus = [Machine(f"cuda:{i}", "H100", "nvidia", (9, 0), 80 * 2**30) for i in range(2)]
    monkeypatch.setattr(machine, "cuda_devices", lambda: gpus)
    monkeypatch.setattr(machine, "_torch_build", lambda: type("Build", (), {"cuda": "13.0", "xpu": None}))
    assert probe("auto") is gpus[0] and probe("cuda:1") is gpus[1] and probe("cpu").kind == "cpu"
    with pytest.raises(
        Refused, match=r"device='cuda:2': there is no such device; visible here: cuda:0 \(H100\), cuda:1"
    ):
        probe("cuda:2")
