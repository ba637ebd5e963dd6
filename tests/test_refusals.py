"""The rules of a plan, each by its whole line, straight from `resolve`: what is refused, noted, loaded and derived."""

from __future__ import annotations

import copy
import functools
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from optbuilder import checks
from optbuilder.builder import Plan, Transform, find_function, resolve
from optbuilder.errors import Refused
from optbuilder.machine import Machine
from optbuilder.model import Model, describe
from optbuilder.settings import ModelSettings, Run
from optbuilder.technique import Context, Need, technique
from tests.conftest import composed

CPU = Machine("cpu", "x86_64", cpu_flags=frozenset({"avx512_bf16", "avx512_fp16"}))
H100 = Machine("cuda:0", "H100", "nvidia", (9, 0), 80 * 2**30)
SDXL, FLUX = "package:shapes/shapes_sdxl", "package:shapes/shapes_flux"


@pytest.fixture(autouse=True)
def one_tracker_is_installed(monkeypatch):
    monkeypatch.setattr(checks, "installed_version", lambda name: "1.0" if name == "tensorboard" else None)


@functools.cache
def base(*words):
    return composed("device=cpu", *words)


def config(*words, **values):
    """A composed config with other values at some places (`run__height=65`), and the options chosen."""
    found, choices = copy.deepcopy(base(*words))
    for place, value in values.items():
        *path, last = place.split("__")
        node = found
        for key in path:
            node = node[key]
        node[last] = value
    return found, choices


def refusals(*words, machine=CPU, **values):
    return resolve(*config(*words, **values), machine).refusals


LINES = {
    "height": ({"run__height": 66}, ["run.height=66: StableDiffusionXLPipeline needs a multiple of 4. Use 64."]),
    "nearest height": ({"run__height": 67}, [
        "run.height=67: StableDiffusionXLPipeline needs a multiple of 4. Use 68."]),
    "both sizes": ({"run__height": 9, "run__width": 10}, [
        "run.height=9: StableDiffusionXLPipeline needs a multiple of 4. Use 8.",
        "run.width=10: StableDiffusionXLPipeline needs a multiple of 4. Use 8."]),
    "sizes that fit": ({"run__height": 68, "run__width": 8}, []),
    "an argument": ({"model__call": {"clip_skop": 1}}, [
        "model.call.clip_skop: StableDiffusionXLPipeline takes no such argument. Did you mean 'clip_skip'?"]),
    "a known argument": ({"model__call": {"clip_skip": 1}}, []),
    "a negative prompt": ({"run__negative_prompt": "x", "run__guidance_scale": 1.0}, [
        "run.negative_prompt='x': it acts only with run.guidance_scale above 1. Write +run.guidance_scale=3 too, or "
        "leave it out."]),
    "one that acts": ({"run__negative_prompt": "x", "run__guidance_scale": 1.5}, []),
    "guidance alone": ({"run__guidance_scale": 1.0}, []),
    "a tracker": ({"track": "tensorbord"}, [
        "track='tensorbord': there is no such tracker. Did you mean 'tensorboard'?"]),
    "no tracker": ({"track": 5}, [
        "track=5: it must be the name of a tracker. Choose one of: aim, mlflow, tensorboard, trackio, wandb."]),
    "a tracker that is there": ({"track": "tensorboard"}, []),
    "a missing tracker": ({"track": "aim"}, ["track='aim': the package aim is not installed. Write pip install aim."]),
    "a target": ({"layout": {"_target_": "os.system"}}, [
        "layout=none: _target_='os.system' is outside optbuilder.transforms, and a config must not call any function "
        "it likes. If you wrote it, add trusted_modules=[os]."]),
}  # fmt: skip


@pytest.mark.parametrize("what", LINES)
def test_a_rule_is_one_line(what):
    values, said = LINES[what]
    assert refusals(**values) == said


FLUX_LINES = {
    "patches": ({"run__height": 68}, ["run.height=68: FluxPipeline needs a multiple of 8. Use 64."]),
    "guidance": ({"run__guidance_scale": 3.0}, [
        "run.guidance_scale=3.0: this model has no guidance embedding, it would change nothing. Leave it out."]),
    "a negative prompt": ({"run__negative_prompt": "x"}, [
        "run.negative_prompt='x': it acts only with model.call.true_cfg_scale above 1. "
        "Write +model.call.true_cfg_scale=3 too, or leave it out."]),
    "one that acts": ({"run__negative_prompt": "x", "model__call": {"true_cfg_scale": 2}}, []),
}  # fmt: skip


@pytest.mark.parametrize("what", FLUX_LINES)
def test_a_rule_of_the_dit_is_one_line(what):
    values, said = FLUX_LINES[what]
    assert refusals("model=shapes_flux", **values) == said


def test_a_pipeline_that_takes_less_says_so():
    model = replace(describe(SDXL), pipeline_class="DDPMPipeline")
    plan = resolve(*config(run__negative_prompt="x", run__height=64), CPU, model)
    assert plan.refusals == [
        "run.negative_prompt='x': DDPMPipeline takes no negative_prompt. Leave it out.",
        "run.guidance_scale=4.0: DDPMPipeline takes no guidance_scale. Leave it out.",
        "run.height=64: DDPMPipeline takes no height. Leave it out.",
        "run.width=64: DDPMPipeline takes no width. Leave it out.",
    ]
    unknown = replace(describe(SDXL), pipeline_class="MyOwnPipeline")
    assert resolve(*config(run__negative_prompt="x", model__call={"anything": 1}), CPU, unknown).refusals == []


def test_components_that_are_not_there():
    words, known = ["compile=full"], "'unet'?"
    assert refusals(*words, compile__components=["unit"]) == [
        f"compile=full: components='unit': StableDiffusionXLPipeline has no such component. Did you mean {known}"
    ]
    listed = (
        "Choose one of: denoiser, scheduler, text_encoder, text_encoder_2, text_encoders, tokenizer, tokenizer_2, "
        "unet, vae, vae.decode."
    )
    assert refusals(*words, compile__components=[]) == [
        f"compile=full: components=[]: StableDiffusionXLPipeline has none of them. {listed}"
    ]
    assert refusals(*words, compile__components=["denoiser", "vae.decode", "text_encoders"]) == []
    assert len(refusals(*words, compile__components=["unet.decode", "x"])) == 2


def test_every_reason_is_a_sentence_and_stands_once():
    found = refusals("quant=fp8_dynamic", "precision=tf32", run__height=65, track="x")
    assert [line.split(":")[0] for line in found] == [
        "run.height=65",
        "precision=tf32",
        "quant=fp8_dynamic",
        "track='x'",
    ]
    assert all(line.endswith((".", "?")) and "\n" not in line and ".." not in line for line in found)


def test_problems_of_the_run_come_first_and_nothing_is_loaded_then():
    plan = resolve(*config(run__seed=-1, run__height=65), CPU)
    assert [line.split(":")[0] for line in plan.refusals] == ["run.seed=-1", "run.height=65"]
    assert plan.load == {} and plan.notes == []
    with pytest.raises(Refused) as refused:
        plan.require()
    assert refused.value.reasons == plan.refusals


SETTINGS = ModelSettings("x")


def stub(tmp_path, **values):
    return Model("x", tmp_path, "P", {"unet": "U"}, {"unet": "diffusers"}, **values)


def test_pickled_weights_and_python_are_refused_unless_allowed(tmp_path):
    folder = tmp_path / "unet"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    model = stub(tmp_path, configs={"unet": {}})
    assert checks._unsafe(SETTINGS, model) == []
    (folder / "weights.bin").write_bytes(b"")
    assert checks._unsafe(SETTINGS, model) == [
        "model.repo_id='x': unet has only pickled weights, which can run code when loaded. "
        "Convert them to safetensors, or set model.allow_pickle=true."
    ]
    (folder / "weights.safetensors").write_bytes(b"")
    assert checks._unsafe(SETTINGS, model) == []
    (folder / "mine.py").write_text("")
    own = replace(model, libraries={"unet": "mine"})
    assert checks._unsafe(SETTINGS, model) == [] and checks._unsafe(SETTINGS, own) == [
        "model.repo_id='x': unet runs Python code from the model's folder. "
        "Read it, then set model.trust_remote_code=true."
    ]
    (folder / "weights.safetensors").unlink()
    assert len(checks._unsafe(SETTINGS, own)) == 2
    assert len(checks._unsafe(replace(SETTINGS, allow_pickle=True), own)) == 1
    assert checks._unsafe(replace(SETTINGS, allow_pickle=True, trust_remote_code=True), own) == []


def test_sizes_are_those_of_the_vae_and_the_patches(tmp_path):
    plan = Plan(stub(tmp_path), CPU, Run(height=7, width=None), [])
    assert checks._sizes(plan) == []  # nothing is known
    three = replace(plan, model=stub(tmp_path, configs={"vae": {"block_out_channels": [1, 1, 1]}}))
    assert checks._sizes(three) == ["run.height=7: P needs a multiple of 4. Use 8."]
    four = replace(plan, model=stub(tmp_path, configs={"vae": {"block_out_channels": [1, 1, 1, 1]}}))
    assert checks._sizes(four) == ["run.height=7: P needs a multiple of 8. Use 8."]
    assert checks._sizes(replace(three, run=Run(height=1))) == ["run.height=1: P needs a multiple of 4. Use 4."]
    assert checks._sizes(replace(three, run=Run(height=8, width=14))) == [
        "run.width=14: P needs a multiple of 4. Use 16."
    ]


@pytest.mark.parametrize(("key", "value", "kind"), [
    ("model", None, "mapping"), ("model", [], "mapping"), ("stages", None, "mapping"), ("stages", "x", "mapping"),
    ("trusted_modules", None, "list"), ("trusted_modules", "x", "list"), ("trusted_modules", {}, "list"),
])  # fmt: skip
def test_a_config_that_is_none(key, value, kind):
    with pytest.raises(Refused) as refused:
        resolve(*config(**{key: value}), CPU)
    assert refused.value.reasons == [f"{key}={value!r}: it must be a {kind}. Leave it as conf has it."]


def test_a_model_s_settings_are_checked():
    with pytest.raises(Refused, match=r"model\.revison='x': there is no such option\. Did you mean 'revision'\?"):
        resolve(*config(model={"repo_id": SDXL, "revison": "x"}), CPU)


def test_the_machine_is_the_described_one_or_this_one():
    found, choices = config(machine={"device": "cuda:0", "name": "X", "vendor": "nvidia", "capability": [9, 0]})
    assert resolve(found, choices).machine == Machine("cuda:0", "X", "nvidia", (9, 0))
    assert resolve(*config()).machine.device == "cpu"
    assert resolve(found, choices, CPU).machine is CPU
    with pytest.raises(Refused, match="device='tpu'"):
        resolve(*config(device="tpu"))
    with pytest.raises(Refused, match="device='5'"):
        resolve(*config(device=5))


def test_a_model_that_is_given_stands_in_for_the_one_named():
    model = replace(describe(FLUX), repo_id="loaded")
    found = resolve(*config("model=shapes_flux"), CPU, model).model
    assert replace(found, known={}) == model
    assert resolve(*config(), CPU).model.pipeline_class == "StableDiffusionXLPipeline"


def test_a_stage_takes_one_option():
    found, choices = config("quant=int8_dynamic")
    del choices["quant"]
    assert resolve(found, choices, CPU).refusals == [
        "quant: a stage takes one option, not a list of them. Write quant=none or another of its options."
    ]
    assert resolve(found, None, CPU).refusals == []
    assert resolve(found, None, CPU).transforms[-1].name == "quant=?"


def test_transforms_stand_in_the_order_of_the_stages_with_their_reasons():
    found, choices = config("compile=full", "compile.backend=eager", "layout=channels_last", "precision=bf16")
    plan = resolve(found, choices, CPU)
    assert [t.name for t in plan.transforms] == ["precision=bf16", "layout=channels_last", "compile=full"]
    assert [t.why_here for t in plan.transforms] == [found["stages"][t.stage] for t in plan.transforms]
    assert plan.transforms[2].technique is plan.transforms[2].function.technique
    assert plan.refusals == [] and plan.require() is plan


def test_options_of_a_stage_that_is_left_as_it_is_are_noted():
    assert resolve(*config(layout={"a": 1, "b": 2}), CPU).notes == ["layout=none: it has no use for a, b."]
    assert resolve(config(layout={"a": 1})[0], None, CPU).notes == ["layout=none: it has no use for a."]
    assert resolve(*config("layout=channels_last"), CPU).notes == []
    slow = replace(CPU, cpu_flags=frozenset())
    [note] = resolve(*config("precision=bf16"), slow).notes
    assert note.startswith("precision=bf16: ") and note.endswith(".") and "5 to 15 times slower" in note


def test_an_option_that_does_not_exist_is_a_refusal_and_its_transform_is_none():
    found, choices = config("layout=channels_last")
    found["layout"]["x"] = 1
    plan = resolve(found, choices, CPU)
    assert [line.partition(".")[2][:5] for line in plan.refusals] == ["x=1: "]
    assert [t.stage for t in plan.transforms] == ["precision"]


def test_functions_come_from_the_transforms_and_from_trusted_modules(monkeypatch):
    import sys

    @technique(lossless=True, source="https://example.org")
    def mine(pipe):
        return pipe

    monkeypatch.setitem(sys.modules, "my_own", SimpleNamespace(mine=mine))
    monkeypatch.setitem(sys.modules, "optbuilder.transforms_of_others", SimpleNamespace(mine=mine))
    layout = "optbuilder.transforms.layout"
    assert callable(find_function(f"{layout}.channels_last", []))
    assert find_function("my_own.mine", ["other", "my_own"]) is mine
    for target, trusted in (("my_own.mine", []), ("my_own.mine", ["my"]), ("optbuilder.transforms_of_others.mine", [])):
        with pytest.raises(Refused, match="is outside optbuilder"):
            find_function(target, trusted)
    for target in (f"{layout}.nothing", "optbuilder.transforms.nowhere.x", "optbuilder.transforms.x"):
        with pytest.raises(Refused, match="cannot be imported"):
            find_function(target, [])
    with pytest.raises(Refused, match="declares no technique"):
        find_function(f"{layout}.modules_named", [])


def test_what_from_pretrained_is_given():
    load = resolve(*config(), CPU).load
    assert load == {"use_safetensors": True, "dtype": "float32"}
    values = {
        "model__allow_pickle": True,
        "model__trust_remote_code": True,
        "model__revision": "r",
        "model__variant": "v",
    }
    load = resolve(*config("precision=bf16", **values), CPU).load
    assert load == {
        "use_safetensors": None,
        "revision": "r",
        "variant": "v",
        "trust_remote_code": True,
        "dtype": "bfloat16",
    }


def test_what_the_plan_passes_on():
    call = {"clip_skip": 1}
    plan = resolve(*config(model__call=call, trusted_modules=["a", "b"]), CPU)
    assert plan.call == call and plan.trusted_modules == ("a", "b")
    assert plan.run.prompts[0] == "a red circle on a blue background" and plan.run.num_inference_steps == 25


@technique(
    lossless=True,
    source="https://example.org",
    places=True,
    derive=lambda context: {"a": len(context.stages), "b": context.trusted_modules},
    needs=(Need("all", lambda c: None if (c.machine, c.model.repo_id, c.run.seed) == (CPU, "x", 7) else "wrong"),),
)
def placing(pipe, *, a=None, b=None):
    return pipe


def test_a_technique_sees_everything_and_derives_what_is_left_open(tmp_path):
    one, two = (
        Transform("s", "one", placing, {"a": None, "b": "given"}, ""),
        Transform("t", "two", placing, {"a": 5, "b": None}, ""),
    )
    plan = Plan(stub(tmp_path), CPU, Run(seed=7), [one, two], trusted_modules=("m",))
    assert plan.context(one) == Context(
        one.options, plan.model, CPU, plan.run, {"s": one.options, "t": two.options}, ("m",)
    )
    assert [t.options for t in plan.filled().transforms] == [{"a": 2, "b": "given"}, {"a": 5, "b": ("m",)}]
    assert checks._needs(plan) == []
    assert checks._needs(replace(plan, run=Run(seed=8))) == ["s=one: wrong.", "t=two: wrong."]
    assert plan.load_device == "cpu" and replace(plan, machine=H100).load_device == "cpu"
    assert replace(plan, machine=H100, transforms=[]).load_device == "cuda:0"


def test_weights_that_were_cut_short_are_a_refusal(tmp_path):
    assert checks._not_whole(stub(tmp_path)) == [
        "model.repo_id='x': model_index.json names unet, and there is no such folder in it. "
        "Download it again, or use another."
    ]
    assert checks._not_whole(replace(stub(tmp_path), elsewhere=True)) == []


def test_the_files_are_where_they_are_said_to_be():
    assert Path(describe(SDXL).folder, "model_index.json").is_file()


def test_what_is_left_empty_is_left_as_it_is():
    """A stage, or the run, set to null; an option of the user's own that does nothing keeps its name."""
    assert [t.name for t in resolve(*config(layout=None), CPU).transforms] == ["precision=fp32"]
    assert resolve(*config(run=None), CPU).run.num_inference_steps == 25
    found, choices = config(layout={"a": 1})
    assert resolve(found, {**choices, "layout": "mine"}, CPU).notes == ["layout=mine: it has no use for a."]
