"""A bundle holds what another machine needs, and says there whether it is as promised."""

from __future__ import annotations

import json
import shutil
import sys
from importlib import metadata

import numpy as np
import pytest
from packaging.requirements import Requirement

from optbuilder import verify as checks
from optbuilder.builder import resolve
from optbuilder.bundle import ARTIFACTS, main, needs, read, with_artifacts
from optbuilder.errors import Refused
from optbuilder.request import Image
from tests.conftest import composed, of, only_run
from tests.conftest import read as read_json

EAGER = ["compile=regional", "compile.backend=eager"]


def verified(monkeypatch, capsys, folder, *words):
    """The exit code and output of `python -m optbuilder.bundle`."""
    monkeypatch.setattr(sys, "argv", ["bundle", str(folder), *words])
    code = 0
    try:
        main()
    except SystemExit as exit_:
        code = exit_.code
    return code, *capsys.readouterr()


def edited(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_a_bundle_moves_and_keeps_its_promise(main, tiny, tmp_path, monkeypatch, capsys):
    code, _, err = main("action=bundle", *of(tiny["sdxl"]), *EAGER, "run.repeats=2")
    assert code == 0, err
    moved = shutil.move(only_run(tmp_path), tmp_path / "elsewhere")
    names = {p.name for p in moved.iterdir()}
    assert {"script.py", "recipe.yaml", "requirements.txt", "bundle.json", "images", "metrics.json"} <= names
    assert "cache_dir='artifacts'" in (moved / "script.py").read_text()
    said = verified(monkeypatch, capsys, moved)[1]
    assert said.startswith(f"model: a folder, {tiny['sdxl']}: copy it, and give --model")

    # a busy machine is no failure here
    edited(moved / "bundle.json", lambda content: content["promise"].update(slower_at_most=1e3))
    code, out, _ = verified(monkeypatch, capsys, moved, "--verify")
    rows = {line.split("│")[1].strip(): line.split("│")[2].strip() for line in out.splitlines() if "│" in line}
    assert code == 0 and rows == {"versions": "yes", "run": "yes", "artifacts": "-", "pictures": "yes", "speed": "yes"}
    assert "bit-identical" in out

    copied = shutil.copytree(tiny["sdxl"], tmp_path / "a copy")
    edited(moved / "bundle.json", lambda content: content["config"]["model"].update(repo_id="gone"))
    edited(moved / "bundle.json", lambda content: content["config"]["run"].update(num_inference_steps=1))
    code, _, err = verified(monkeypatch, capsys, moved, "--verify")
    assert code == 2 and "there is no such folder" in err and "The bundle needs: a folder" in err
    code, out, _ = verified(monkeypatch, capsys, moved, "--verify", "--model", str(copied))
    assert code == 1 and "PSNR" in out  # one step draws other pictures


def test_the_lock_is_what_is_installed(main, tiny, tmp_path):
    main("action=bundle", *of(tiny["sdxl"]), "quant=int8_weight_only")
    lock = [Requirement(line) for line in (only_run(tmp_path) / "requirements.txt").read_text().splitlines()]
    assert {"torch", "diffusers", "torchao", "hydra-core", "tokenizers", "sympy"} <= {r.name for r in lock}
    assert all(r.specifier.contains(metadata.version(r.name).partition("+")[0], prereleases=True) for r in lock)
    assert [c.kept for c in checks.versions("\n".join(map(str, lock)))] == [True]
    other = list(checks.versions("torch==1.0\nnot-there==2.0\ndiffusers>=0"))
    assert [(c.kept, c.text.split(",")[0]) for c in other] == [(False, "torch==1.0"), (False, "not-there==2.0")]


def test_pictures_are_bit_identical_or_near_on_other_hardware():
    picture = np.random.default_rng(0).integers(0, 256, (32, 32, 3)) / 255
    near = np.clip(picture + 2 / 255, 0, 1)
    one = [Image(picture, "a", 0)]
    same = checks.same_pictures(one, one, 30.0, [])
    assert same.kept and same.text == "bit-identical"
    assert not checks.same_pictures([Image(near, "a", 0)], one, 30.0, []).kept
    elsewhere = checks.same_pictures([Image(near, "a", 0)], one, 30.0, ["cpu is 'x' and 'y'"])
    assert elsewhere.kept and "30 dB asked, since cpu is 'x' and 'y'" in elsewhere.text
    assert not checks.same_pictures([Image(near, "a", 0)], one, 60.0, ["cpu is 'x' and 'y'"]).kept
    assert not checks.same_pictures([], one, 30.0, []).kept


def test_speed_is_promised_on_the_same_machine():
    promise = {"call_s": {"median": 1.0, "interval": [0.9, 1.1], "samples": [0.9, 1.0, 1.1]}, "slower_at_most": 1.1}
    here = {"median": 1.5, "interval": [1.4, 1.6], "samples": [1.4, 1.5, 1.6]}
    slow, fast = checks.speed(promise, here, []), checks.speed(promise, promise["call_s"], [])
    assert slow.kept is False and "1.50 (1.27 to 1.78) times the promised 1.000 s" in slow.text
    assert fast.kept is True
    assert checks.speed(promise, here, ["cpu is 'x' and 'y'"]).kept is None


def test_artifacts_are_found_again_or_it_is_said_why():
    made = {"cache_hits": 0, "cache_misses": 2, "calls": {"aot.compiled": 1, "aot.loaded": 1}}
    found = {"cache_hits": 2, "cache_misses": 0, "calls": {"aot.loaded": 1}}
    assert checks.artifacts(made, found, []) == checks.Check("artifacts", True, "3 found, 0 compiled anew")
    assert checks.artifacts(made, made, []) == checks.Check("artifacts", False, "0 found, 3 compiled anew")
    assert checks.artifacts(made, made, ["torch is 1 and 2"]).text.endswith("since torch is 1 and 2")
    assert checks.artifacts({**made, "cache_misses": 0, "calls": {}}, found, []).kept is None


def test_a_bundle_says_which_files_it_lacks(tiny, lora):
    words = ["lora=file", f"lora.paths=[{lora['sdxl']}]"]
    found = needs(resolve(*composed(*of(tiny["sdxl"]), "device=cpu", *words)).require())
    assert found["files"] == [f"lora=file, paths: {lora['sdxl']}"]
    at_the_hub = needs(resolve(*composed("device=cpu")).require())
    assert at_the_hub["model"].startswith("it comes with optbuilder (package:shapes/shapes_sdxl)")


def test_artifacts_of_any_way_to_compile_are_the_bundles_own(tmp_path):
    for words, key in {"compile=full": "cache_dir", "compile=aot": "package_dir"}.items():
        assert with_artifacts(composed(words)[0], tmp_path / ARTIFACTS)["compile"][key] == str(tmp_path / ARTIFACTS)
    assert with_artifacts(composed()[0], tmp_path)["compile"] == {}


def test_mistakes_with_bundles(main, tiny, tmp_path, monkeypatch, capsys):
    code, _, err = verified(monkeypatch, capsys, tmp_path, "--verify")
    assert code == 2 and "it is no bundle" in err
    with pytest.raises(Refused, match="it is no bundle"):
        read(tmp_path)
    code, _, err = main("action=bundle", *of(tiny["sdxl"]), "quant=fp8_dynamic")
    assert code == 2 and not (only_run(tmp_path) / "bundle.json").exists()
    assert read_json(only_run(tmp_path) / "metrics.json")["status"] == "refused"


def test_a_bundle_is_of_one_job(ob, tiny):
    done = ob("-m", "action=bundle", "precision=fp32,bf16")
    assert done.returncode == 2 and "a bundle is of one job" in done.stderr


COUNTERS = {"cache_hits": 0, "cache_misses": 3, "calls": {}}


def test_what_is_compiled_anew_says_why(compose, tiny, tmp_path):
    """By what the most alike of earlier starts had else."""
    from optbuilder.artifacts import artifacts
    from optbuilder.builder import resolve

    def started(*words, counters=COUNTERS, **environment):
        plan = resolve(*compose(*of(tiny["flux"]), f"compile.cache_dir={tmp_path}", *words))
        here = {"cpu": "A", "cores": 2, "versions": {"torch": "2.13.0"}, **environment}
        return artifacts(plan, counters, here)

    assert artifacts(resolve(*compose(*of(tiny["flux"]), "compile=full")), COUNTERS, {}) is None
    first = started("compile=regional")
    assert first == {"found": 0, "compiled": 3, "why": "no earlier start left anything there"}
    found = started("compile=regional", counters={**COUNTERS, "cache_hits": 3, "cache_misses": 0})
    assert found == {"found": 3, "compiled": 0, "why": None}
    for words, environment, why in (
        (["compile=regional", "run.height=96"], {}, "run.height is 64, here 96"),
        (["compile=regional", "quant=int8_weight_only"], {}, 'quant is left out, here ["int8_weight_only"'),
        (["compile=regional"], {"cpu": "B"}, "cpu is 'A' and 'B'"),
        (["compile=regional"], {"versions": {"torch": "2.14.0"}}, "torch is 2.13.0 and 2.14.0"),
    ):
        assert started(*words, **environment)["why"].startswith(f"of the most alike start, {why}")
    assert started("compile=regional")["why"].startswith("an earlier start was the same: what it left has gone")
    (tmp_path / "optbuilder" / "other.json").write_text("[1")
    assert started("compile=regional")["compiled"] == 3
