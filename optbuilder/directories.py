"""Where runs and grids leave what they leave: each in a directory that no other one writes into."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from optbuilder.errors import failure
from optbuilder.foreign import misfit, read_yaml
from optbuilder.schema import OVERRIDES

CHANGES_NOTHING = (
    "run.isolation",
    "run.timeout_s",
    "track",
    "sweep.retry",
)  # overrides that leave every result as it is


_CREATED: list[Path] = []


class ExclusiveDirectory(Callback):
    """Create the directory of a run or a sweep, so that two never share one."""

    def on_run_start(self, config: DictConfig, **_: Any) -> None:
        goes_on = config.action == "search" and Path(config.hydra.run.dir, "study.db").is_file()
        if run_directory(config.action) != "." and not goes_on:
            create(config.hydra.run.dir)

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        if config.action == "bundle":
            print("action='bundle': a bundle is of one job. Leave -m out, or use the plan that won.", file=sys.stderr)
            sys.exit(2)
        if run_directory(config.action) == ".":
            return
        standing = Path(config.hydra.sweep.dir, "multirun.yaml")
        if not standing.is_file():
            create(config.hydra.sweep.dir)
        elif not same_grid(standing, config.hydra.overrides.task):
            print(
                f"{str(standing.parent)!r} holds another grid, which this one would write over. Choose another.",
                file=sys.stderr,
            )
            sys.exit(2)


def same_grid(standing: Path, words: Sequence[str]) -> bool:
    """Whether a grid's command line asks for what an earlier one left its words of, but for what changes no result."""
    try:
        return asked(words_of(standing)[0]) == asked(words)
    except (OSError, ValueError):
        return False


def words_of(file: Path) -> tuple[list[str], list[str]]:
    """The overrides that a YAML file of Hydra's tells of: the job's, and Hydra's own. Nothing in it is interpolated.

    Raises `OSError` or `ValueError` where it tells of none.
    """
    found = read_yaml(file)
    if wrong := misfit(found, OVERRIDES, file.name):
        raise ValueError(wrong)
    overrides = found["hydra"]["overrides"]
    return [str(word) for word in overrides["task"]], [str(word) for word in overrides["hydra"]]


def asked(words: Sequence[str]) -> set[str]:
    """What of a command line can change a result."""
    return {word for word in words if word.lstrip("+").partition("=")[0] not in CHANGES_NOTHING}


def create(directory: str) -> None:
    """Make a directory that was not there. Exits with 2 where it was, since Hydra would write over what it holds, and
    where it cannot be made: of a callback's exceptions Hydra makes a warning, and goes on."""
    try:
        Path(directory).mkdir(parents=True)
    except FileExistsError:
        advice = "a run never writes into another's directory. Choose another"
        print(f"{directory!r} already exists, and {advice}.", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        print(failure(error), file=sys.stderr)
        sys.exit(2)
    _CREATED.append(Path(directory))


def discard_unfinished() -> None:
    """Remove Hydra's own files where it could not write all of them (a full disk); overrides.yaml is its last."""
    for folder in [f for made in _CREATED for f in (made / ".hydra", *made.glob("*/.hydra")) if f.is_dir()]:
        last = folder / "overrides.yaml"
        if not last.is_file() or not last.stat().st_size:
            shutil.rmtree(folder)


def is_worker() -> bool:
    """Whether this is one of torchrun's processes but the first: it computes, and leaves the record to the first."""
    return os.environ.get("RANK", "0") != "0"


def run_directory(action: str) -> str:
    """outputs/<day>/<time with milliseconds>_<random>; for an action or a process that leaves nothing, here."""
    if action not in ("generate", "search", "bundle") or is_worker():
        return "."
    now = datetime.now()
    return f"outputs/{now:%Y-%m-%d}/{now:%H-%M-%S}-{now.microsecond // 1000:03d}_{secrets.token_hex(3)}"


def hydra_folder(action: str) -> str | None:
    """Hydra's own folder in the run directory; none where there is no run directory."""
    return None if run_directory(action) == "." else ".hydra"


OmegaConf.register_new_resolver("run_directory", run_directory, use_cache=True, replace=True)
OmegaConf.register_new_resolver("hydra_folder", hydra_folder, replace=True)
