"""Whatever a person mistypes is one line that says what to write, and exit code 2; or it simply works."""

from __future__ import annotations

import pytest

from tests.conftest import of

MISTAKES = {
    "quant=int8_dynamc": "quant='int8_dynamc': there is no such option. Did you mean 'int8_dynamic'?",
    "compile.mod=x compile=full": "Did you mean 'compile.mode'?",
    "quantt=int8_dynamic": "quantt='int8_dynamic': there is no such group or key. Did you mean 'quant'?",
    "quant=null": "a group takes the name of one of its options",
    "model=5": "a group takes the name of one of its options",
    "quant=[int8_dynamic,none]": "quant: a stage takes one option",
    "quant=[int8_dynamic,b]": "quant='b': there is no such option",
    "quant.config=abc": "quant=none has no options. Choose another first: bnb_int8",
    "quant/config=int8": "quant=none has no options",
    "run.num_inference_steps=8.5": "value '8.5' of type 'float' could not be converted to Integer",
    "run.num_inference_steps=0": "run.num_inference_steps=0: it is too small. Use 1 or more.",
    "run.guidance_scale=abc": "run.guidance_scale='abc'",
    "run.height=65": "run.height=65: StableDiffusionXLPipeline needs a multiple of 4. Use 64.",
    "run.foo=3": "run has no such option",
    "+run.foo=3": "run.foo=3: there is no such option",
    "run/prompts=x": "Did you mean 'run.prompts'?",
    "run.prompts=[a cat=dog]": "Write 'run.prompts=[\"a cat=dog\"]'",
    'run.prompts=["a ${cat}"]': "a text with ${...} is read as a reference",
    "run.prompts=[[a]]": "it must be a text or a list of texts",
    "run.prompts_file=missing.txt": "No such file",
    "run.seed=1,2": "several values make a grid, which needs -m",
    "precision=bf16,fp32": "several values make a grid, which needs -m (--multirun).",
    "precision.dtype=bf61": "dtype='bf61' is not a dtype. Did you mean 'bf16'?",
    "precision.dtpe=bf16": "Did you mean 'precision.dtype'?",
    "precision=tf32": "precision=tf32: needs an NVIDIA GPU of compute capability 8.0 or higher (found: cpu).",
    "device=tpu": "device='tpu': there is no such device",
    "device=cpu0x": "device='cpu0x': there is no such device. Did you mean 'cpu'?",
    "action=foo": "action='foo': there is no such action. Choose one of: bundle, generate, options, plan, script, ",
    "stages=null": "stages=None: it must be a mapping",
    "foo": "'foo': this is no override. Write key=value",
    "--config-dir=/nonexistent": "Additional config directory '/nonexistent' not found",
    "model.repo_id=null": "model.repo_id=None: field 'repo_id' is not Optional",
    "model.repo_id=./nowhere": "there is no such folder, and a Hub id has the form owner/name",
    "compile=full compile.mode=fast": "mode='fast' is not one of: null, reduce-overhead",
    "compile=full compile.backend=inductr": "backend='inductr' is not one of",
    "compile=full compile.fullgraph=maybe": "compile.fullgraph='maybe'",
    "compile=full compile.components=[unit]": "has no such component. Did you mean 'unet'?",
    "compile=full compile.components=[]": "has none of them",
    "compile=full +compile.inductor.conv_1x1_as_m=true": "this torch has no such inductor flag",
    "compile=full compile.backend=eager compile.inductor.epilogue_fusion=false": "no effect with backend='eager'",
    "compile=full +compile.inductor.use_mixed_mm=true": "torch ignores this flag",
    "quant=int8_dynamic quant.exclude=['(']": "is not a regular expression",
    "quant=int8_dynamic quant._target_=os.system": "_target_='os.system' is outside optbuilder.transforms",
    "quant=int8_dynamic quant._target_=optbuilder.transforms.quant.linears": "declares no technique",
    "quant=int8_dynamic quant._target_=optbuilder.transforms.quant.nothing": "cannot be imported",
    "run.negative_prompt=ugly run.guidance_scale=1": "it acts only with run.guidance_scale above 1",
    "+model.call.clip_skop=1": "takes no such argument. Did you mean 'clip_skip'?",
}  # fmt: skip


@pytest.mark.parametrize("arguments", MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_2(arguments, main, tiny):
    words = arguments.split(" ") if not arguments.startswith("run.prompts") else [arguments]
    model = [] if "repo_id" in arguments else of(tiny["sdxl"])[:2]
    code, _, err = main("action=plan", *model, *words) if "action" not in arguments else main(*words)
    assert code == 2
    assert MISTAKES[arguments] in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    "override",
    [
        "run.prompts=a red circle, on a blue background",
        "run.prompts=a cat=dog (really), it's \"quoted\" and 'quoted' \\ 100%",
        "run.prompts=costs ${5} or $5",
        "run.prompts=猫 🐱 | ネコ",
        'run.prompts=["a, b", "c = (d)", "${x}"]'.replace("${x}", "\\${x}"),
        "run.negative_prompt=ugly, blurred = bad",
    ],
)
def test_any_text_works_as_a_prompt(override, main, tiny):
    code, _, err = main("action=plan", *of(tiny["sdxl"])[:2], "run.guidance_scale=3", override)
    assert (code, err) == (0, "")


def test_a_bare_text_reaches_the_run_as_it_was_written(main, compose, tmp_path):
    from optbuilder.overrides import prepared
    from tests.conftest import CONF

    text = 'it\'s "a" cat, = ( ${5} \\ 猫 🐱'
    config, _ = compose(*prepared([f"run.prompts={text}"], CONF))
    assert config["run"]["prompts"] == text


def test_prompts_file_takes_any_text(tmp_path, main, tiny):
    from optbuilder.settings import read_prompts

    lines = ["a cat, = (b) ${x} $5", "猫 🐱 'q' \"q\"", "x" * 2000]
    (tmp_path / "p.txt").write_text("\n\n".join(lines) + "\n", encoding="utf-8")
    (tmp_path / "p.yaml").write_text("- 'a: b'\n- ${x}\n", encoding="utf-8")
    assert read_prompts(tmp_path / "p.txt") == lines
    assert read_prompts(tmp_path / "p.yaml") == ["a: b", "${x}"]


def test_all_problems_are_named_at_once(main, tiny):
    words = ["quant=fp8_dynamic", "compile=reduce_overhead", "attention=flash", "run.height=65", "precision=tf32"]
    code, _, err = main("action=plan", *of(tiny["sdxl"])[:2], *words)
    lines = err.strip().splitlines()
    assert code == 2
    assert [line.split(":")[0] for line in lines] == [
        "run.height=65", "precision=tf32", "attention=flash", "quant=fp8_dynamic", "compile=reduce_overhead",
    ]  # fmt: skip


def test_a_refused_job_loads_nothing_and_leaves_a_complete_record(main, tiny, tmp_path):
    from tests.conftest import only_run, read

    code, _, err = main(*of(tiny["sdxl"]), "quant=fp8_dynamic")
    directory = only_run(tmp_path)
    metrics, plan = read(directory / "metrics.json"), read(directory / "plan.json")
    assert code == 2 and len(err.strip().splitlines()) == 1
    assert metrics["status"] == "refused" and metrics["reasons"] == plan["refusals"] == [err.strip()]
    assert not (directory / "images").exists()
