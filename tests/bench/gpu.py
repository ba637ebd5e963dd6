"""SDXL and FLUX.1-dev at full size with random weights, on a machine with a GPU: `python -m tests.bench.gpu`.

Runs the ladder of each model (conf/experiment) and then a search, everything with `model.weights=dummy`, so that
nothing is downloaded: speed and memory are those of the architecture, quality is not claimed. Printed as JSON, for each
model: every rung with its seconds per call, peak and speed-up over the first rung, the search's winner, and what was
wanted: FLUX.1-dev 2.5 times as fast as bf16 eager without step caching (what flux-fast reports on an H100,
https://github.com/huggingface/flux-fast), SDXL 3 times as fast as the ladder's first rung (diffusion-fast reports that
on an A100, https://github.com/huggingface/diffusion-fast).

`--scale tiny` tries the bench itself where there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from optbuilder.results import jobs

LADDERS = {"sdxl": "diffusion_fast", "flux_dev": "flux_fast"}
WANTED = {"sdxl": (3.0, "precision=fp32"), "flux_dev": (2.5, "precision=bf16")}  # times as fast as this rung


def ob(folder: Path, *words: str) -> int:
    """The exit code of a command; what it says goes to the terminal's error stream."""
    return subprocess.run([sys.executable, "-m", "optbuilder", *words], cwd=folder, stdout=sys.stderr).returncode


def rungs(directory: Path) -> list[dict[str, Any]]:
    """What the ladder measured, each rung beside the first one that ran."""
    found, first = [], None
    for name, outcome in jobs(directory).items():
        if not name.isdigit():
            continue
        chosen = [f"{t['stage']}={t['option']}" for t in outcome.plan.get("transforms", [])]
        row: dict[str, Any] = {"rung": " ".join(chosen), "status": outcome.status}
        if "latency" in outcome.metrics:
            call_s = statistics.median(outcome.metrics["latency"]["call_s"]["samples"])
            first = first or call_s
            peak = outcome.metrics["memory"]["phases"]["run"]["device_allocated_peak_bytes"]
            row |= {"call_s": call_s, "speedup": first / call_s, "device_peak_bytes": peak}
            row |= {"first_image_s": outcome.metrics["phases"]["first_image_s"]}
        found.append(row | ({"reason": " ".join(outcome.reasons)} if outcome.reasons else {}))
    return found


def measured(model: str, scale: str, budget: str, folder: Path) -> dict[str, Any]:
    """One model's ladder and search."""
    start, dummy = time.perf_counter(), ["model.weights=dummy", f"model.scale={scale}"]
    ob(folder, f"experiment={LADDERS[model]}", f"model={model}", *dummy, f"hydra.sweep.dir={model}")
    found: dict[str, Any] = {"rungs": rungs(folder / model), "ladder_s": time.perf_counter() - start}
    (wanted, rung), times = WANTED[model], {row["rung"]: row["call_s"] for row in found["rungs"] if "call_s" in row}
    best = times[rung] / min(times.values()) if rung in times else None
    found |= {"best": best, "over": rung, "wanted": wanted, "reached": best is not None and best >= wanted}
    words = [f"model={model}", *dummy, "precision=bf16", f"search.budget={budget}", f"hydra.run.dir={model}_search"]
    ob(folder, "action=search", *words)
    answer = folder / f"{model}_search" / "answer.json"
    found["search"] = json.loads(answer.read_text()) if answer.is_file() else None
    measured_on = next(
        (o.metrics["environment"] for o in jobs(folder / model).values() if o.metrics.get("environment")), {}
    )
    keys = ("device_name", "cpu", "versions", "gpu")
    return {**found, "seconds": time.perf_counter() - start, **{key: measured_on.get(key) for key in keys}}


def main() -> None:
    """Print all as JSON."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.gpu", description=__doc__)
    parser.add_argument("models", nargs="*", default=list(LADDERS))
    parser.add_argument("--scale", default="full", choices=("full", "half", "tiny"))
    parser.add_argument("--budget", default="4m", help="of each model's search")
    parser.add_argument("--keep", type=Path, help="leave the run directories here")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        found = {model: measured(model, given.scale, given.budget, folder) for model in given.models}
    print(json.dumps({"date": time.strftime("%Y-%m-%d"), "scale": given.scale, **found}, indent=2))


if __name__ == "__main__":
    main()
