from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
CONF = ROOT / "conf"
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # the tests run side by side, one process for each core


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders of the two random pipelines, `sdxl` and `flux`."""
    from tests import tiny

    return tiny.save(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def lora(tiny: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A random adapter for each of the two pipelines."""
    from tests import tiny as models

    return {family: models.lora(folder, tmp_path_factory.mktemp(f"lora_{family}")) for family, folder in tiny.items()}


@pytest.fixture
def compose() -> Callable[..., tuple[dict[str, Any], dict[str, str]]]:
    """Compose a config from overrides; gives it with the option chosen in each group."""
    return composed


def composed(*overrides: str) -> tuple[dict[str, Any], dict[str, str]]:
    import hydra
    from hydra.core.global_hydra import GlobalHydra
    from omegaconf import OmegaConf

    import optbuilder.cli  # noqa: F401 - registers the resolvers

    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        config = hydra.compose("config", overrides=list(overrides), return_hydra_config=True)
    choices = dict(config.hydra.runtime.choices)
    job = OmegaConf.masked_copy(config, [key for key in config if key != "hydra"])
    return OmegaConf.to_container(job, resolve=True), choices


def of(folder: Path) -> list[str]:
    """The overrides that make a job with a tiny model quick."""
    run = ["run.num_inference_steps=2", "run.height=64", "run.width=64", "run.repeats=1", "run.prompts=[a red circle]"]
    call = ["+model.call.max_sequence_length=16"] if "flux" in folder.name else []
    return ["model=custom", f"model.repo_id={folder}", *run, *call]


@pytest.fixture
def ob(tmp_path: Path) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """`python -m optbuilder` as a user starts it, in an empty folder."""

    def start(*arguments: str, cwd: Path = tmp_path, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "optbuilder", *arguments]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": temporary, **environment}
        return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=600)

    # Grids wait for each other through a lock in the temporary folder. It is no tmp_path: sockets need a short name.
    with tempfile.TemporaryDirectory(prefix="ob") as temporary:
        yield start


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., Any]:
    """The command line in this process: gives the exit code, stdout and stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        from optbuilder.cli import main

        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["optbuilder", *arguments])
        with pytest.raises(SystemExit) as exit_:
            main()
        out, err = capsys.readouterr()
        return exit_.value.code or 0, out, err

    return run


def only_run(folder: Path) -> Path:
    """The one run directory below a folder."""
    found = [path.parent for path in folder.glob("outputs/*/*/metrics.json")]
    assert len(found) == 1, found
    return found[0]


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
