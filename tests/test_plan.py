"""Plans: the order, the reasons, and what is refused on which hardware. Nothing is loaded."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from optbuilder.builder import resolve
from optbuilder.errors import Refused
from optbuilder.machine import Machine
from tests.conftest import CONF, composed, of

H100 = Machine("cuda:0", "H100", "nvidia", (9, 0), 80 * 2**30)
ADA = Machine("cuda:0", "RTX 4090", "nvidia", (8, 9), 24 * 2**30)
T4 = Machine("cuda:0", "T4", "nvidia", (7, 5), 16 * 2**30)
CPU = Machine("cpu", "x86_64", cpu_flags=frozenset({"avx512_bf16", "avx512_fp16"}))
OLD_CPU = Machine("cpu", "x86_64", cpu_flags=frozenset({"avx2"}))


def plan(folder, *overrides, machine=CPU):
    config, choices = composed(*of(folder), *overrides)
    return resolve(config, choices, machine)


def test_stages_are_applied_in_conf_s_order_whatever_the_command_line_says(tiny):
    words = ["compile=regional", "quant=int8_dynamic", "attention=sdpa_math", "precision=bf16", "layout=channels_last"]
    for order in (words, words[::-1], words[2:] + words[:2]):
        found = plan(tiny["sdxl"], *order)
        assert [t.stage for t in found.transforms] == ["precision", "attention", "layout", "quant", "compile"]
        assert all(t.why_here for t in found.transforms) and not found.refusals


REFUSED = [
    ("sdxl", "precision=tf32", T4, "compute capability 8.0"),
    ("sdxl", "precision=tf32", H100, None),
    ("flux", "quant=fp8_dynamic precision=bf16", H100, None),
    ("flux", "quant=fp8_dynamic precision=bf16", ADA, None),
    ("flux", "quant=fp8_dynamic precision=bf16", T4, "compute capability 8.9"),
    ("flux", "quant=fp8_dynamic", H100, "this kernel needs bfloat16"),
    ("flux", "quant=fp8_dynamic precision=bf16", CPU, "(found: cpu)"),
    ("flux", "quant=fp8_weight_only", CPU, None),
    ("flux", "quant=int4_weight_only precision=bf16", CPU, "int4 kernel needs an NVIDIA GPU"),
    ("flux", "quant=int4_weight_only precision=bf16", H100, None),
    ("flux", "attention=sage precision=bf16", H100, "needs the package sageattention>=2.1.1 (it is not installed)"),
    ("flux", "attention=sage precision=bf16", H100, "heads of size 64, 96, 128 (transformer has 16)"),
    ("flux", "attention=flash", CPU, "this kernel runs on cuda (this job's device: cpu)"),
    ("flux", "attention=flash", CPU, "pip install flash-attn>=2.6.3"),
    ("flux", "attention=native_flash", H100, "takes bfloat16 or float16 (transformer is float32): use precision=bf16"),
    ("flux", "attention=native_flash precision=fp16", H100, None),
    ("flux", "attention=native_cudnn precision=bf16", T4, "compute capability 8.0 (found: 7.5)"),
    ("flux", "attention=flash_varlen compile=full", CPU, "which breaks a full graph"),
    ("flux", "attention=native", CPU, None),
    ("sdxl", "attention=native", CPU, "UNet2DConditionModel (unet) does not use diffusers' attention dispatcher"),
    ("sdxl", "attention=sdpa_efficient", CPU, "this kernel runs on cuda"),
    ("sdxl", "attention=sdpa_efficient", T4, None),
    ("sdxl", "attention=sdpa_flash", H100, "(unet is float32)"),
    ("sdxl", "attention=sdpa_cudnn precision=bf16 attention.components=[denoiser,vae]", H100, None),
    ("sdxl", "attention=sdpa_cudnn precision=fp16 attention.components=[vae]", H100, "(vae is float32)"),
    ("sdxl", "attention=sliced", CPU, None),
    ("flux", "attention=sliced", CPU, "cannot slice its attention"),
    ("sdxl", "compile=regions", CPU, "asks for the truth value"),
    ("flux", "compile=regions", CPU, None),
    ("sdxl", "compile=reduce_overhead", CPU, "it would change nothing"),
    ("sdxl", "compile=reduce_overhead", H100, None),
    ("sdxl", "compile=regional compile.components=[vae]", CPU, "names no repeated blocks"),
    ("sdxl", "compile=full compile.inductor.force_fuse_int_mm_with_mul=true", CPU, "acts on CUDA tensors only"),
    ("flux", "run.guidance_scale=3", CPU, "has no guidance embedding"),
    ("flux", "run.negative_prompt=x", CPU, "it acts only with model.call.true_cfg_scale above 1"),
    ("flux", "run.negative_prompt=x +model.call.true_cfg_scale=2", CPU, None),
    ("flux", "run.height=68", CPU, "needs a multiple of 8. Use 64."),
]


@pytest.mark.parametrize(("family", "overrides", "machine", "reason"), REFUSED, ids=lambda v: str(v)[:40])
def test_hardware_and_model_decide(family, overrides, machine, reason, tiny):
    found = plan(tiny[family], *overrides.split(), machine=machine)
    if reason is None:
        assert found.refusals == []
    else:
        assert any(reason in line for line in found.refusals), found.refusals
        with pytest.raises(Refused):
            found.require()


def test_a_missing_compiler_is_said_before_anything_loads(tiny, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert "C++ compiler" in plan(tiny["sdxl"], "compile=full").refusals[0]
    assert plan(tiny["sdxl"], "compile=full", "compile.backend=eager").refusals == []


def test_what_is_allowed_but_surprising_is_noted(tiny):
    assert "5 to 15 times slower" in plan(tiny["sdxl"], "precision=bf16", machine=OLD_CPU).notes[0]
    assert plan(tiny["sdxl"], "precision=bf16").notes == []
    assert "trained in bfloat16" in plan(tiny["flux"], "precision=fp16", machine=H100).notes[0]  # P05
    assert "expect less memory, not more speed" in plan(tiny["flux"], "quant=int8_weight_only").notes[0]  # P20
    assert plan(tiny["flux"], "quant=int8_weight_only", "compile=regional").notes == []
    assert plan(tiny["flux"], "++compile.backend=eager").notes == ["compile=none: it has no use for backend."]


def test_dtypes_are_arguments_of_from_pretrained(tiny):
    assert plan(tiny["sdxl"], "precision=bf16").load["dtype"] == "bfloat16"
    assert plan(tiny["sdxl"], "precision=fp16").load["dtype"] == {"vae": "float32", "default": "float16"}
    mixed = plan(tiny["sdxl"], "precision=bf16", "precision.text_encoders=fp32").load["dtype"]
    assert mixed == {"text_encoder": "float32", "text_encoder_2": "float32", "default": "bfloat16"}


def test_nothing_but_safetensors_and_no_remote_code_unless_allowed(tiny, tmp_path):
    import shutil

    folder = shutil.copytree(tiny["sdxl"], tmp_path / "model")
    (folder / "unet" / "diffusion_pytorch_model.safetensors").rename(folder / "unet" / "diffusion_pytorch_model.bin")
    index = (folder / "model_index.json").read_text().replace('"vae": [\n    "diffusers"', '"vae": [\n    "my_vae"')
    (folder / "model_index.json").write_text(index)
    (folder / "vae" / "my_vae.py").write_text("raise SystemExit")
    refusals = plan(folder).refusals
    assert "vae runs Python code" in refusals[0] and "unet has only pickled weights" in refusals[1]
    assert plan(folder, "model.allow_pickle=true", "model.trust_remote_code=true").refusals == []


def test_trusted_modules_extend_the_techniques(tiny, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "from optbuilder.technique import technique\n"
        "@technique(lossless=True, source='https://example.org')\n"
        "def rename(pipe, *, name: str = 'x'):\n    return pipe\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    words = ["++layout._target_=mine.rename", "++layout.name=y"]
    assert "outside optbuilder.transforms" in plan(tiny["sdxl"], *words).refusals[0]
    found = plan(tiny["sdxl"], *words, "trusted_modules=[mine]")
    assert found.refusals == [] and found.transforms[-1].options == {"name": "y"}


def test_planning_imports_neither_torch_nor_diffusers(tiny):
    """`import optbuilder.cli`, action=plan, action=options and --help."""
    code = (
        "import sys, runpy\n"
        "try: runpy.run_module('optbuilder', run_name='__main__')\n"
        "except SystemExit: pass\n"
        "heavy = sorted({'torch', 'diffusers', 'transformers', 'torchao', 'accelerate'} & set(sys.modules))\n"
        "print(heavy, file=sys.stderr)\n"
    )
    model = of(tiny["flux"])
    for words in (["action=plan", "compile=full", *model], ["action=options", *model], ["--help"], ["--cfg", "job"]):
        done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=120)
        assert done.stderr.strip().splitlines()[-1] == "[]", done.stderr


def test_options_lists_every_option_with_its_reasons(tiny):
    import yaml

    from optbuilder.options import options

    config, _ = composed(*of(tiny["flux"]))
    files = {
        s: {p.stem: yaml.safe_load(p.read_text()) for p in (CONF / s).glob("*.yaml") if p.stem != "none"}
        for s in config["stages"]
    }
    on_cpu = {f"{o.stage}={o.name}": o for o in options(config, files, CPU)}
    assert len(on_cpu) == sum(map(len, files.values()))
    assert on_cpu["attention=flex"].reasons == () and on_cpu["compile=regional"].reasons == ()
    assert "compute capability 8.9" in on_cpu["quant=fp8_dynamic"].reasons[0]
    assert on_cpu["attention=sage"].lossless is False and "sageattention>=2.1.1" in on_cpu["attention=sage"].needs
    on_gpu = {f"{o.stage}={o.name}": o for o in options(config, files, replace(H100))}
    assert on_gpu["precision=tf32"].reasons == () and on_gpu["compile=reduce_overhead"].reasons == ()


MACHINES = {  # an option that each described machine is to accept or refuse, with the reason
    "h100": {"precision=tf32": "", "quant=fp8_dynamic precision=bf16": "", "attention=native_cudnn precision=bf16": ""},
    "rtx4090": {"quant=fp8_dynamic precision=bf16": "", "compile=reduce_overhead": "", "offload=sequential": ""},
    "t4": {"precision=tf32": "found: Tesla T4, 7.5", "quant=fp8_dynamic precision=bf16": "8.9", "offload=model": ""},
    "mi300x": {"quant=fp8_dynamic precision=bf16": "", "precision=tf32": "NVIDIA", "compile=max_autotune": ""},
}


@pytest.mark.parametrize("machine", MACHINES)
def test_plans_for_hardware_that_is_not_here(machine, tiny):
    assert (CONF / "machine" / f"{machine}.yaml").exists()
    for words, reason in MACHINES[machine].items():
        found = resolve(*composed(*of(tiny["flux"]), f"machine={machine}", *words.split()))
        assert (reason in " ".join(found.refusals)) if reason else found.refusals == [], (words, found.refusals)


def test_a_described_machine_runs_nothing(main, tiny):
    code, _, err = main(*of(tiny["sdxl"]), "machine=h100")
    assert code == 2 and "has nothing to run on. Use action=plan" in err
    code, _, err = main(*of(tiny["sdxl"]), "action=plan", "machine=h100", "+machine.cores=3")
    assert code == 2 and "machine.cores: there is no such fact of a machine" in err
