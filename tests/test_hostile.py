"""Input that somebody made up: no traceback, no hang, no code run, nothing written elsewhere, no secret recorded."""

from __future__ import annotations

import copy
import json
import os
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from optbuilder.errors import Refused
from tests.conftest import composed, of, read

FAST = settings(
    max_examples=int(os.environ.get("HOSTILE_EXAMPLES", "24")), deadline=10_000, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
SLOW = settings(FAST, max_examples=FAST.max_examples // 2)

# What a file or a command line may hold: any text, and what means something to Hydra, YAML, Python or a shell.
TEXTS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(["null", "[]", "{}", "{a:", "${", "${oc.env:HOME}", "${run}", "???", "a,b", "range(1,9)", "~", "-1",
                     "1e999", "nan", "'", '"', "\\", "../../x", "/etc/passwd", "os.system", "[red]",
                     "\x1b[2J", "=", "@", "glob(*)", "sort(1)", "9" * 5000, "[" * 200, "a" * 3000]),
)  # fmt: skip
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXTS.filter(lambda t: len(t) < 1000)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=6,
)
KEYS = st.sampled_from(
    ["run.prompts", "run.seed", "run.height", "run.compare", "run.prompts_file", "run.repeats", "run",
     "quant", "compile", "compile.mode", "compile.components", "+compile.inductor.x", "model",
     "model.repo_id", "model.revision", "device", "stages", "trusted_modules", "machine", "sweep.retry",
     "recipe", "track", "experiment", "precision.dtype", "+x.y", "~compile", "++quant._target_",
     "quant.config", "search.budget", "action", "-m", "--", ""]
)  # fmt: skip


def paths(tree, here=()):
    """Every place in a tree of JSON."""
    yield here
    if isinstance(tree, (dict, list)):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from paths(value, (*here, key))


def changed(tree, path, value, drop):
    """The tree with another value at one place, or without it."""
    if not path:
        return value
    tree = copy.deepcopy(tree)
    node = tree
    for key in path[:-1]:
        node = node[key]
    if drop:
        del node[path[-1]]
    else:
        node[path[-1]] = value
    return tree


def everything_below(folder):
    return sorted(p for p in folder.rglob("*") if not p.name.startswith("."))


@FAST
@given(words=st.lists(st.tuples(KEYS, TEXTS), max_size=3))
def test_any_command_line_is_a_plan_or_one_line(words, main, tmp_path):
    argv = [f"{key}={text}" if key[:1] not in ("-", "~") and key else key + text * (key == "") for key, text in words]
    argv = [word.replace("\0", "") for word in argv if not word.startswith("hydra")]
    code, _, err = main("device=cpu", *argv, "action=plan")
    assert code in (0, 2) and "Traceback" not in err
    assert everything_below(tmp_path) == []


@SLOW
@given(tree=st.dictionaries(KEYS.filter(str.isidentifier) | st.text(max_size=6), JSON, max_size=3))
@example(tree={"quant": {"_target_": "os.system", "command": "touch ran"}})
@example(tree={"quant": {"config": {"_target_": "os.system", "command": "touch ran"}}})
@example(tree={"model": {"call": {"x": {"_target_": "subprocess.run", "args": "touch ran"}}}})
def test_any_experiment_is_a_plan_or_one_line(tree, main, tmp_path):
    folder = tmp_path / "conf" / "experiment"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mine.yaml").write_text("# @package _global_\n" + yaml.safe_dump(tree), encoding="utf-8")
    code, _, err = main(f"--config-dir={tmp_path}/conf", "experiment=mine", "device=cpu", "action=plan")
    assert code in (0, 2) and "Traceback" not in err
    assert [p.name for p in everything_below(tmp_path)] == ["conf", "experiment", "mine.yaml"]


@FAST
@given(content=st.binary(max_size=60) | TEXTS.map(str.encode) | JSON.map(lambda j: yaml.safe_dump(j).encode()))
@pytest.mark.parametrize("name", ["p.txt", "p.yaml"])
def test_any_prompts_file_is_prompts_or_one_line(name, content, tmp_path):
    from optbuilder.settings import Run, run_settings

    (tmp_path / name).write_bytes(content)
    run, problems = run_settings({"prompts_file": str(tmp_path / name)}, {})
    assert isinstance(run, Run) and all("\n" not in problem for problem in problems)
    assert problems or all(isinstance(p, str) and p.encode() for p in run.prompts)


@FAST
@given(data=st.data(), value=JSON, drop=st.booleans())
@pytest.mark.parametrize(("family", "words"), [
    ("sdxl", ["attention=sdpa_flash", "vae=tiling", "scheduler=ddim", "compile=regional", "layout=channels_last"]),
    ("flux", ["attention=sage", "cache=first_block", "scheduler=flow_heun", "run.guidance_scale=2"]),
])  # fmt: skip
def test_any_json_of_a_model_is_a_plan_or_a_refusal(data, value, drop, family, words, tiny, tmp_path):
    from optbuilder.builder import resolve

    config, choices = planned(family, tuple(words), tiny)
    names = [f for f in sorted(tiny[family].glob("**/*.json")) if f.name in NAMES]
    file = data.draw(st.sampled_from(names))
    tree = read(file)
    broken = changed(tree, data.draw(st.sampled_from(list(paths(tree)))), value, drop)
    folder = tmp_path / "model"
    for name in names:
        target = folder / name.relative_to(tiny[family])
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(broken if name == file else read(name)))
    try:
        plan = resolve({**config, "model": {**config["model"], "repo_id": str(folder)}}, choices)
    except Refused as refused:
        assert all("\n" not in reason for reason in refused.reasons)
    else:
        assert all("\n" not in reason for reason in plan.refusals)


NAMES = ("model_index.json", "config.json", "scheduler_config.json")
_PLANNED = {}


def planned(family, words, tiny):
    if (family, words) not in _PLANNED:
        _PLANNED[family, words] = composed(*of(tiny[family]), *words)
    return _PLANNED[family, words]


@pytest.fixture(scope="module")
def runs(tiny, tmp_path_factory):
    """A small grid of two jobs, as it is left."""
    from optbuilder.job import generate

    folder = tmp_path_factory.mktemp("grid")
    for name, words in {"0": [], "1": ["layout=channels_last", f"run.compare={folder}/0"]}.items():
        (folder / name).mkdir()
        assert generate(*composed(*of(tiny["sdxl"]), *words), folder / name, bars=False).status == "ok"
    return folder


def reading(folder, monkeypatch, capsys):
    """Read a grid in every way there is; only a refusal in one line is another answer."""
    from optbuilder.compare import main as compare
    from optbuilder.job import recorded
    from optbuilder.report.page import write_report
    from optbuilder.results import write_results
    from optbuilder.search.tried import tried
    from optbuilder.show import sweep_line, sweep_table

    monkeypatch.setattr(sys, "argv", ["compare", str(folder / "0"), str(folder / "1")])
    try:
        compare()
    except SystemExit as exit_:
        assert exit_.code == 2 and len(capsys.readouterr().err.strip().splitlines()) == 1
    outcomes = {name: recorded(folder / name) for name in ("0", "1")}
    for name, outcome in outcomes.items():
        tried(name, {}, outcome)
        sweep_line(name, outcome)
    sweep_table(outcomes)
    write_results(folder)
    write_report([folder], folder / "report.html")
    return {name: outcome.status for name, outcome in outcomes.items()}


@pytest.fixture
def copied(runs, tmp_path):
    import shutil

    return shutil.copytree(runs, tmp_path / "grid")


@SLOW
@given(data=st.data(), value=JSON, drop=st.booleans())
@pytest.mark.parametrize("name", ["metrics.json", "plan.json"])
def test_any_record_is_read_or_unreadable(name, data, value, drop, copied, runs, monkeypatch, capsys):
    tree = read(runs / "1" / name)
    broken = changed(tree, data.draw(st.sampled_from(list(paths(tree)))), value, drop)
    (copied / "1" / name).write_text(json.dumps(broken))
    assert reading(copied, monkeypatch, capsys)["0"] == "ok"


def with_key(path, value):
    def write(folder):
        file = folder / "1" / "metrics.json"
        file.write_text(json.dumps(changed(read(file), path, value, False)))

    return write


def wrote(content, name="1/metrics.json"):
    return lambda folder: (folder / name).write_bytes(content)


def huge(folder):
    with (folder / "1" / "metrics.json").open("wb") as file:
        file.truncate(2**30)


RECORDS = {
    "a list": wrote(b"[1, 2]"),
    "null": wrote(b"null"),
    "nothing": wrote(b""),
    "cut short": wrote(b'{"status": "ok", "reas'),
    "no UTF-8": wrote(b'{"status": "\xff\xfe"}'),
    "half a character": wrote(b'{"status": "\\ud800", "reasons": []}'),
    "deeply nested": wrote(b"[" * 100_000 + b"]" * 100_000),
    "a number of 5000 digits": wrote(b'{"status": "ok", "reasons": [], "x": ' + b"9" * 5000 + b"}"),
    "huge": huge,
    "no plan": lambda folder: (folder / "1" / "plan.json").unlink(),
    "a plan of lists": wrote(b'{"transforms": [[]]}', "1/plan.json"),
    "no time at all": with_key(("latency", "call_s", "samples"), [0.0]),
    "a negative speed": with_key(("latency", "images_per_s"), -1),
    "no number": with_key(("latency", "call_s", "median"), float("nan")),
    "no size": with_key(("memory", "weights_bytes", "unet"), None),
    "a name of several lines": with_key(("environment", "versions"), {"a\r\nb": False}),
    "pictures of elsewhere": with_key(("images",), ["../../secret.png"]),
}


@pytest.mark.parametrize("what", RECORDS)
def test_a_record_that_is_none_is_shown_as_unreadable(what, copied, monkeypatch, capsys):
    RECORDS[what](copied)
    assert reading(copied, monkeypatch, capsys) == {"0": "ok", "1": "unreadable"}
    assert "unreadable" in (copied / "report.html").read_text()
    assert ",unreadable,its record cannot be read" in (copied / "results.csv").read_text()


@pytest.mark.parametrize("what", ["no picture", "cut short", "no text", "a bomb", "a link"])
def test_a_picture_that_is_none_is_left_out(what, copied, tmp_path, monkeypatch, capsys):
    from PIL import Image

    picture = copied / "1" / "images" / "0000.png"
    if what == "no picture":
        picture.write_bytes(b"<svg onload=alert(1)>")
    elif what == "cut short":
        picture.write_bytes(picture.read_bytes()[:200])
    elif what == "no text":
        Image.open(picture).copy().save(picture)
    elif what == "a bomb":
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    else:
        picture.rename(tmp_path / "elsewhere.png")
        picture.symlink_to(tmp_path / "elsewhere.png")
    reading(copied, monkeypatch, capsys)
    assert 'figure data-job="1"' not in (copied / "report.html").read_text()


def test_a_report_shows_no_secret_that_a_foreign_grid_refers_to(copied, monkeypatch):
    from optbuilder.report.page import write_report

    monkeypatch.setenv("SOME_VALUE", "the-secret")
    words = {"task": ["run.seed=${oc.env:SOME_VALUE}", "<script>alert(1)</script>"], "hydra": []}
    (copied / "multirun.yaml").write_text(yaml.safe_dump({"hydra": {"overrides": words}}))
    page = write_report([copied], copied / "report.html").read_text()
    assert "the-secret" not in page and "oc.env:SOME_VALUE" in page and "<script>alert(1)" not in page


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{c}: &{c} [{', '.join([f'*{p}'] * 9)}]\n" for p, c in zip("abcdefghi", "bcdefghij", strict=True)
)


@pytest.mark.parametrize(
    "content", ["hydra: 1", "- a", "", "\x00", "hydra: {overrides: {task: [[x]], hydra: []}}", BOMB]
)
def test_a_foreign_grids_words_are_left_out_and_not_gone_on_with(content, copied, main, tiny):
    from optbuilder.report.page import commands

    (copied / "multirun.yaml").write_text(content)
    assert list(commands([copied])) == []
    code, _, err = main("-m", *of(tiny["sdxl"]), "run.seed=1,2", f"hydra.sweep.dir={copied}")
    assert code == 2 and "holds another grid" in err and len(err.strip().splitlines()) == 1


@pytest.mark.parametrize("content", [
    "stages: {quant: {_target_: os.system, command: touch ran}}",
    "stages: {quant: {option: x, _target_: subprocess.run, args: [touch, ran]}}",
    "stages: {quant: {_target_: optbuilder.transforms.quant.quantize, config: {_target_: os.system}}}",
    "!!python/object/apply:os.system [touch ran]",
    "stages: !!python/object/apply:os.system [touch ran]",
    "stages: {kernels: {_target_: optbuilder.transforms.kernels.use_hub_kernels, repo_id: x/y, allow_download: true}}",
    "stages: {trusted_modules: {_target_: x}}", "stages: [quant]", "[]", "stages: {quant: 1}",
    f"{BOMB}stages: {{quant: *j}}",
])  # fmt: skip
def test_a_recipe_runs_no_code(content, main, tiny, tmp_path):
    (tmp_path / "recipe.yaml").write_text(content)
    code, _, err = main("action=plan", *of(tiny["flux"]), "recipe=recipe.yaml")
    assert code == 2 and "Traceback" not in err and "\n" not in err.strip()
    assert not (tmp_path / "ran").exists()


TOUCH = "{_target_: pathlib.Path.touch, self: {_target_: pathlib.Path, _args_: [ran]}}"
EXPERIMENTS = {
    "a callback": f"hydra: {{callbacks: {{mine: {TOUCH}}}}}",
    "a launcher": f"hydra: {{launcher: {TOUCH}}}",
    "a sweeper": f"hydra: {{sweeper: {TOUCH}}}",
    "a log's handler": "hydra: {job_logging: {handlers: {mine: {(): os.system, command: touch ran}}}}",
    "a log's class": "hydra: {job_logging: {handlers: {file: {class: subprocess.Popen, args: [touch, ran]}}}}",
    "a log's stream": "hydra: {job_logging: {handlers: {console: {stream: 'ext://ran.x'}}}}",
    "a log of Hydra's own": "hydra: {hydra_logging: {handlers: {mine: {(): os.system, command: touch ran}}}}",
    "a log elsewhere": "hydra: {job_logging: {handlers: {file: {filename: ran}}}}",
    "an environment variable": "hydra: {job: {env_set: {LD_PRELOAD: ran}}}",
    "a variable to be recorded": "hydra: {job: {env_copy: [HF_TOKEN]}}",
    "a secret as a prompt": "run: {prompts: '${oc.env:HF_TOKEN}'}",
    "trust": "trusted_modules: [ran]\nquant: {_target_: ran.x}",
    "pickles": "model: {allow_pickle: true}",
    "remote code": "model: {trust_remote_code: true}",
    "downloads": "kernels: {_target_: optbuilder.transforms.kernels.use_hub_kernels, allow_download: true}",
    "a technique": f"quant: {TOUCH}",
    "a prompt": f"run: {{prompts: [{TOUCH}]}}",
    "a setting": f"model: {{call: {{x: {TOUCH}}}, run: {{prompts: a}}}}",
}


@pytest.mark.parametrize("what", EXPERIMENTS)
@pytest.mark.parametrize("grid", [[], ["-m", "run.seed=1,2"]], ids=["run", "grid"])
def test_an_experiment_from_the_internet_runs_no_code(what, grid, main, tiny, tmp_path, monkeypatch):
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    (tmp_path / "ran.py").write_text("from pathlib import Path\nPath('ran').touch()\n")
    (tmp_path / "conf" / "experiment" / "mine.yaml").write_text(f"# @package _global_\n{EXPERIMENTS[what]}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("HF_TOKEN", "the-secret")
    words = [
        "device=cpu",
        *[w for w in of(tiny["sdxl"]) if "prompts" not in w],
        "hydra.run.dir=run",
        "hydra.sweep.dir=run",
    ]
    code, _, err = main(f"--config-dir={tmp_path}/conf", "experiment=mine", *words, *grid)
    assert code == 2 and "Traceback" not in err
    assert not (tmp_path / "ran").exists()
    assert not [p for p in tmp_path.rglob("*") if p.is_file() and b"the-secret" in p.read_bytes()]


def test_what_a_person_writes_on_the_command_line_is_theirs(main, tiny):
    words = ["action=plan", *of(tiny["sdxl"])]
    log = "hydra.job_logging.handlers.file.filename=/dev/null"
    assert main(*words, "model.allow_pickle=true", "trusted_modules=[json]", log, "+hydra.job.env_set.A=b")[0] == 0


@pytest.mark.parametrize(
    "text", ["../../../x", "/etc/passwd", "a/b", "con", "x" * 5000, "\x00\x1b[2J\n\r", "${run.seed}"]
)
def test_prompts_never_become_paths(text, main, tiny, tmp_path):
    from PIL import Image

    (tmp_path / "p.yaml").write_text(json.dumps([text]))
    words = [w for w in of(tiny["sdxl"]) if not w.startswith("run.prompts")]
    assert main(*words, "run.prompts_file=p.yaml", "hydra.run.dir=run")[0] == 0
    names = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file() and ".hydra" not in p.parts}
    assert names - {"run/run.log"} == {
        "p.yaml",
        "run/plan.json",
        "run/metrics.json",
        "run/script.py",
        "run/images/0000.png",
    }
    with Image.open(tmp_path / "run" / "images" / "0000.png") as picture:
        assert picture.text["prompt"] == text


SECRETS = ["HF_TOKEN", "HF_API_KEY", "TORCH_SECRET", "HF_PASSWORD", "CUDA_PASSWD", "HF_PASSPHRASE", "HF_PWD", "HF_AUTH",
           "HF_AUTHORIZATION", "TORCH_CREDENTIALS", "HF_COOKIE", "HF_PRIVATE", "hf_token", "HF_SIGNATURE",
           "HF_ACCESS_KEY_ID", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "HUGGING_FACE_HUB_TOKEN"]  # fmt: skip


def test_secrets_of_the_environment_are_not_recorded(monkeypatch):
    from optbuilder.environment import is_secret, variables

    for name in SECRETS:
        monkeypatch.setenv(name, "the-secret")
        assert is_secret(name), name
    monkeypatch.setenv("HF_ENDPOINT", "https://me:the-secret@example.org/hub")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    found = variables()
    assert "the-secret" not in str(found)
    assert found["HF_ENDPOINT"] == "https://***@example.org/hub" and found["OMP_NUM_THREADS"] == "2"


def test_files_of_the_model_that_are_none_of_its_own_are_not_looked_at(tiny, tmp_path):
    """Names of components that lead out of the folder."""
    from optbuilder.model import describe

    for name in ("../unet", "a/b", "", ".."):
        (tmp_path / "model_index.json").write_text(json.dumps({"_class_name": "X", name: ["diffusers", "Y"]}))
        with pytest.raises(Refused, match="names no class for"):
            describe(str(tmp_path))


def test_a_study_that_is_none_is_refused(main, tiny, tmp_path):
    (tmp_path / "found").mkdir()
    (tmp_path / "found" / "study.db").write_bytes(b"no database" * 1000)
    code, _, err = main("action=search", *of(tiny["sdxl"]), "search.budget=1m", "hydra.run.dir=found")
    assert code == 2 and "study.db" in err and len(err.strip().splitlines()) == 1
    assert Path(tmp_path / "found" / "study.db").read_bytes() == b"no database" * 1000


@pytest.mark.parametrize("what", ["_class_name", "unet"])
def test_python_files_beside_a_model_are_not_run(what, tiny, tmp_path, monkeypatch):
    """A pipeline class of the folder's own, and a component of a module that happens to be importable."""
    import shutil

    from optbuilder.model import describe
    from optbuilder.pipeline import load

    folder = shutil.copytree(tiny["sdxl"], tmp_path / "model")
    (folder / "ran.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    (folder / "model_index.json").write_text(json.dumps({**read(folder / "model_index.json"), what: ["ran", "Mine"]}))
    monkeypatch.syspath_prepend(folder)
    with pytest.raises(Refused, match="it cannot be loaded"):
        load(describe(str(folder)), {"use_safetensors": True, "dtype": "float32"})
    assert not (tmp_path / "ran").exists()
