"""A grid beside fresh runs of its cells: `python -m tests.bench.grid`, on a quiet machine.

Wanted: at most a third of the fresh runs' wall time for short jobs, and for jobs as they are by default at most 2 % of
the grid's wall time as CPU time of the parent, which composes every cell twice (to plan it, and when Hydra's launcher
starts it): about 0.2 s for each, however long it runs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from itertools import product

CHOICES = {
    "scheduler": ("none", "ddim", "dpmpp_2m"),
    "layout": ("none", "channels_last"),
    "attention": ("none", "sdpa_math"),
}
RUN = ["run.num_inference_steps=4", "run.repeats=3", "sweep.baseline=false"]


def started(command: list[str], folder: str) -> tuple[float, float]:
    """Wall seconds of a command, and the CPU seconds of its process alone."""
    start = time.perf_counter()
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    assert status == 0, command
    return time.perf_counter() - start, used.ru_utime + used.ru_stime


def ours(words: list[str], folder: str) -> tuple[float, float]:
    return started([sys.executable, "-m", "optbuilder", *words], folder)


def main() -> None:
    """Print all as JSON."""
    cells = [[f"{s}={name}" for s, name in zip(CHOICES, cell, strict=True)] for cell in product(*CHOICES.values())]
    choices = [f"{s}={','.join(names)}" for s, names in CHOICES.items()]
    with tempfile.TemporaryDirectory() as folder:
        grid_s, cpu_s = ours(["-m", *RUN, *choices], folder)
        fresh_s = sum(ours([*RUN, *cell], folder)[0] for cell in cells)
        found = {"grid_s": grid_s, "fresh_s": fresh_s, "ratio": grid_s / fresh_s, "wanted": 1 / 3}
        found |= {"parent_cpu_s_per_job": cpu_s / len(cells), "parent_cpu_share_of_short_jobs": cpu_s / grid_s}
        grid_s, cpu_s = ours(["-m", *choices], folder)
        found |= {"parent_cpu_share": cpu_s / grid_s, "wanted_share": 0.02}
    print(json.dumps({"cells": len(cells), **found}, indent=2))


if __name__ == "__main__":
    main()
