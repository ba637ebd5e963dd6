"""A search beside the whole grid of its space: `python -m tests.bench.search grid|search`, on a quiet machine.

`grid` measures every cell once and keeps the figures as tests/data/grid_<model>.json (tens of minutes). `search` takes
a quarter of that grid's time as its budget, then measures its winner and the grid's best cell in turn. Wanted: a winner
at least as fast as the best cell, as far as the measurements can tell, and no limit broken when it is measured again.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from optbuilder.results import jobs
from optbuilder.samples import ratio

DATA = Path(__file__).parents[1] / "data"
SPACES = {
    "shapes_sdxl": {
        "attention": ["sdpa_math", "sliced"],
        "fusion": ["qkv"],
        "layout": ["channels_last"],
        "quant": ["int8_weight_only"],
        "compile": ["regional"],
    },
    "shapes_flux": {
        "attention": ["native_math"],
        "cache": ["first_block", "mag_cache", "taylorseer"],
        "fusion": ["qkv"],
        "quant": ["int8_weight_only"],
        "compile": ["regional"],
    },
}
MIN_PSNR = 30.0
RUN = ["run.num_inference_steps=12"]
ROUNDS = 3  # of the winner and the best cell in turn


def ob(*words: str, folder: Path, fine: tuple[int, ...] = (0,)) -> float:
    """Wall seconds of a command, which finds nothing compiled by an earlier one. Raises where it ends otherwise."""
    cold = os.environ | {"TORCHINDUCTOR_CACHE_DIR": tempfile.mkdtemp(dir=folder)}
    command, start = [sys.executable, "-m", "optbuilder", *words], time.perf_counter()
    done = subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, env=cold)
    if done.returncode not in fine:
        raise RuntimeError(f"exit code {done.returncode}: {' '.join(command)}")
    return time.perf_counter() - start


def grid(model: str, folder: Path) -> dict[str, Any]:
    """Every cell of the space, measured: what was chosen, how it ended, its calls in seconds, and PSNR."""
    stages = {stage: ["none", *options] for stage, options in SPACES[model].items()}
    words = [f"{stage}={','.join(options)}" for stage, options in stages.items()]
    seconds = ob(
        "-m", f"model={model}", *RUN, *words, "hydra.sweep.dir=grid", folder=folder, fine=(0, 1)
    )  # a cell may fail
    cells = []
    for name, outcome in jobs(folder / "grid").items():
        if name.isdigit():
            chosen = {t["stage"]: t["option"] for t in outcome.plan["transforms"] if t["option"] != "fp32"}
            calls = outcome.metrics["latency"]["call_s"]["samples"] if "latency" in outcome.metrics else []
            psnr = (outcome.metrics.get("quality") or {}).get("psnr_min")
            cells.append({"choice": chosen, "status": outcome.status, "calls_s": calls, "psnr": psnr})
    measured = next(o for o in jobs(folder / "grid").values() if "latency" in o.metrics)
    versions = measured.metrics["environment"]["versions"]
    found = {"seconds": seconds, "cpu": measured.metrics["environment"]["cpu"], "versions": versions}
    return {**found, "date": time.strftime("%Y-%m-%d"), "run": RUN, "min_psnr": MIN_PSNR, "cells": cells}


def best_cell(kept: Mapping[str, Any]) -> dict[str, Any]:
    """The fastest cell that keeps the limit; the baseline has no PSNR, and is its own reference."""
    fit = [c for c in kept["cells"] if c["status"] == "ok" and float(c["psnr"] or math.inf) >= kept["min_psnr"]]
    return min(fit, key=lambda cell: sorted(cell["calls_s"])[len(cell["calls_s"]) // 2])


def searched(model: str, kept: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The search's winner beside the grid's best cell, measured in turn."""
    space = json.dumps(SPACES[model]).replace('"', "")
    other = [f"{stage}=none" for stage in ("kernels", "scheduler") if stage not in SPACES[model]]
    other += [f"{stage}=none" for stage in ("cache", "layout") if stage not in SPACES[model]]
    limits = [f"search.budget={kept['seconds'] / 4:.0f}s", f"search.min_psnr={kept['min_psnr']}"]
    words = [f"model={model}", "precision=fp32", *kept["run"]]
    seconds = ob(
        "action=search", *words, *other, *limits, f"search.space={space}", "hydra.run.dir=found", folder=folder
    )
    winner, best = json.loads((folder / "found" / "answer.json").read_text())["winner"]["choice"], best_cell(kept)
    ours, theirs, psnr = [], [], math.inf
    for number in range(ROUNDS):
        for choice, calls in ((winner, ours), (best["choice"], theirs)):
            name = f"{number}_{'winner' if calls is ours else 'best'}"
            chosen = [f"{stage}={option}" for stage, option in choice.items()]
            ob(*words, *chosen, "run.compare=baseline", f"hydra.run.dir={name}", folder=folder)
            metrics = json.loads((folder / name / "metrics.json").read_text())
            calls += metrics["latency"]["call_s"]["samples"]
            psnr = min(psnr, float(metrics["quality"]["psnr_min"])) if calls is ours else psnr
    beside = ratio(theirs, ours)
    found = {"grid_s": kept["seconds"], "search_s": seconds, "share": seconds / kept["seconds"], "wanted_share": 0.25}
    found |= {"winner": winner, "best_cell": best["choice"], "winner_to_best": beside["ratio"]}
    return {**found, "interval": beside["interval"], "as_good": beside["interval"][1] >= 1.0, "psnr": psnr,
            "limit_kept": psnr >= kept["min_psnr"]}  # fmt: skip


def main() -> None:
    """Keep the grid, or print the search's figures as JSON."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.search", description=__doc__)
    parser.add_argument("what", choices=("grid", "search"))
    parser.add_argument("models", nargs="*", default=list(SPACES))
    given = parser.parse_args()
    for model in given.models:
        kept = DATA / f"grid_{model}.json"
        with tempfile.TemporaryDirectory() as folder:
            if given.what == "grid":
                kept.write_text(json.dumps(grid(model, Path(folder)), indent=1) + "\n")
            else:
                print(json.dumps({model: searched(model, json.loads(kept.read_text()), Path(folder))}, indent=2))


if __name__ == "__main__":
    main()
