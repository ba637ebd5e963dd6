"""Where runs and grids leave what they leave: each in a directory that no other one writes into."""

from __future__ import annotations

import os
import secrets
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

CHANGES_NOTHING = (
    "run.isolation",
    "run.timeout_s",
    "track",
    "sweep.retry",
)  # overrides that leave every result as it is


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
        standing = Path(config.hydra.sweep.dir, "multirun.yaml")
        if not standing.is_file():
            create(config.hydra.sweep.dir)
        elif asked(OmegaConf.load(standing).hydra) != asked(config.hydra):
            print(
                f"{str(standing.parent)!r} holds another grid, which this one would write over. Choose another.",
                file=sys.stderr,
            )
            sys.exit(2)


def asked(hydra_config: DictConfig) -> set[str]:
    """What a grid's command line asked for, but for what changes no result."""
    return {word for word in hydra_config.overrides.task if word.lstrip("+").partition("=")[0] not in CHANGES_NOTHING}


def create(directory: str) -> None:
    """Make a directory that was not there. Exits with 2 where it was: Hydra would write over what it holds."""
    try:
        Path(directory).mkdir(parents=True)
    except FileExistsError:
        advice = "a run never writes into another's directory. Choose another"
        print(f"{directory!r} already exists, and {advice}.", file=sys.stderr)
        sys.exit(2)


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
