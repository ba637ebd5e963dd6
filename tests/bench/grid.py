"""A grid beside fresh runs of its cells: `python -m tests.bench.grid`, on a quiet machine.

Wanted: at most a third of the fresh runs' wall time, and at most 2 % of the grid's as CPU time of the parent, which
composes every cell twice (to plan it, and when Hydra's launcher starts it): that is paid for by jobs of 20 s and more.
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


def started(words: list[str], folder: str) -> tuple[float, float]:
    """Wall seconds of `python -m optbuilder`, and the CPU seconds of that process alone."""
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "optbuilder", *words], cwd=folder, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    assert status == 0, words
    return time.perf_counter() - start, used.ru_utime + used.ru_stime


def main() -> None:
    """Print both as JSON."""
    cells = [[f"{stage}={option}" for stage, option in zip(CHOICES, cell)] for cell in product(*CHOICES.values())]  # noqa: B905
    with tempfile.TemporaryDirectory() as folder:
        grid_s, cpu_s = started(["-m", *RUN, *(f"{s}={','.join(names)}" for s, names in CHOICES.items())], folder)
        fresh_s = sum(started([*RUN, *cell], folder)[0] for cell in cells)
    found = {"cells": len(cells), "grid_s": grid_s, "fresh_s": fresh_s, "ratio": grid_s / fresh_s, "wanted": 1 / 3}
    found |= {"parent_cpu_s_per_job": cpu_s / len(cells), "parent_cpu_share": cpu_s / grid_s, "wanted_share": 0.02}
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
