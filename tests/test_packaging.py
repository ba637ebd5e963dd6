"""What people install: a wheel that works from any directory, and code that its own checks accept."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.conftest import CONF, ROOT


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(folder),
        str(ROOT),
    ]
    subprocess.run(command, check=True, timeout=300, capture_output=True)
    return next(folder.glob("*.whl"))


def test_the_wheel_holds_the_configs_and_the_models(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {f"optbuilder/conf/{path.relative_to(CONF)}" for path in CONF.rglob("*.yaml")} <= names
    for model in ("shapes_sdxl", "shapes_flux"):
        assert f"optbuilder/shapes/{model}/model_index.json" in names
        assert any(name.startswith(f"optbuilder/shapes/{model}/") and name.endswith(".safetensors") for name in names)
    families = ROOT / "optbuilder" / "families"
    assert {f"optbuilder/families/{p.relative_to(families)}" for p in families.rglob("*") if p.is_file()} <= names
    assert not [name for name in names if name.startswith(("tests/", "outputs/"))]


def test_the_wheel_works_from_another_directory(wheel, tmp_path):
    """P97"""
    site, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    zipfile.ZipFile(wheel).extractall(site)
    elsewhere.mkdir()
    env = {**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}
    for words in (["action=plan", "compile=full"], ["run.num_inference_steps=1", "run.repeats=1", "run.warmup=0"]):
        command = [sys.executable, "-P", "-m", "optbuilder", *words]
        done = subprocess.run(command, cwd=elsewhere, env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
    where = subprocess.run(
        [sys.executable, "-P", "-c", "import optbuilder.cli as c; print(c.CONF)"],
        cwd=elsewhere,
        env=env,
        capture_output=True,
        text=True,
    )
    assert Path(where.stdout.strip()) == site / "optbuilder" / "conf"


@pytest.mark.parametrize("check", [["check"], ["format", "--check"]], ids=" ".join)
def test_ruff_has_nothing_to_say(check):
    done = subprocess.run(
        [sys.executable, "-m", "ruff", *check, "."], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_transforms_import_nothing_heavy():
    modules = [f"optbuilder.transforms.{path.stem}" for path in (ROOT / "optbuilder" / "transforms").glob("[a-z]*.py")]
    code = (
        f"import sys, {', '.join(modules)}; print(sorted({{'torch', 'diffusers', 'transformers'}} & set(sys.modules)))"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60).stdout.strip() == "[]"
    )


def test_constraints_pin_what_pyproject_allows():
    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    pins: dict[str, list[str]] = {}
    for requirement in map(Requirement, lines):
        pins.setdefault(requirement.name, []).append(next(iter(requirement.specifier)).version)
    wanted = project["dependencies"] + project["optional-dependencies"]["test"]
    for requirement in (r for r in map(Requirement, wanted) if r.name != "optbuilder"):
        assert requirement.name in pins, requirement.name
        assert all(requirement.specifier.contains(version) for version in pins[requirement.name])


def test_the_readme_is_up_to_date():
    from tests.readme import written

    text = (ROOT / "README.md").read_text()
    assert text == written(text)
    for path, language in (("conf/attention/sliced.yaml", "yaml"), ("optbuilder/transforms/attention.py", "python")):
        block = text.split(f"```{language}\n")[1].split("```")[0].strip()
        assert block in (ROOT / path).read_text()


def test_the_readmes_plans_work(main, tmp_path):
    """Every example of the README is planned; what needs a GPU, another model or a file is told as such."""
    import shlex

    lines = [line.strip() for line in (ROOT / "README.md").read_text().splitlines()]
    commands = [shlex.split(line.split(" # ")[0])[3:] for line in lines if line.startswith("python -m optbuilder ")]
    (tmp_path / "prompts.txt").write_text("a red circle on a blue background\n")
    assert len(commands) > 8
    for words in commands:
        if any(w.startswith(("model.repo_id", "--config-dir", "-m", "recipe=")) for w in words):
            continue
        words = [w for w in words if w not in ("action=search", "action=bundle")]  # these plan before they run for long
        asked = words if any(w.startswith(("action", "--")) for w in words) else [*words, "action=plan"]
        assert main(*asked)[0] == 0, words


def guide_commands():
    section = (ROOT / "README.md").read_text().split("## Coming from the guides")[1].split("What became of older")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return [row[-1].strip("`") for row in rows[2:]]


@pytest.mark.parametrize("command", guide_commands())
def test_every_command_of_the_guides_plans(command, main, tmp_path, monkeypatch):
    """On the hardware that the guides speak of, with the packages that they install."""
    import shlex

    import optbuilder.technique as technique

    there = technique.installed_version
    monkeypatch.setattr(technique, "installed_version", lambda name: there(name) or "99.0")
    (tmp_path / "flux.gguf").touch()
    code, out, err = main("action=plan", "machine=h100", *shlex.split(command))
    assert (code, err) == (0, ""), err
    assert len(out.splitlines()) > 3
