"""A grid beside fresh runs of its cells: `python -m tests.bench.grid`, on a quiet machine.

Wanted: at most a third of the fresh runs' wall time for short jobs, and for jobs as they are by default at most 2 % of
the grid's wall time as CPU time of the parent, which composes every cell twice (to plan it, and when Hydra's launcher
starts it): about 0.2 s for each, however long it runs.

`--peer <folder of a virtual environment>` takes optimum-benchmark's multirun of 12 other cells beside ours, from
an environment of its own: optimum-benchmark 0.6 imports names that transformers 5 has not, so that it needs
`pip install optimum-benchmark "transformers<5" "diffusers<0.38" protobuf sentencepiece`.
Wanted: at most half of it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from itertools import product
from pathlib import Path

from optbuilder.folders import PACKAGE

CHOICES = {
    "scheduler": ("none", "ddim", "dpmpp_2m"),
    "layout": ("none", "channels_last"),
    "attention": ("none", "sdpa_math"),
}
RUN = ["run.num_inference_steps=4", "run.repeats=3", "sweep.baseline=false"]
PROMPT = "a red circle on a blue background"
OURS = ["-m", "precision=fp32,bf16", "run.num_inference_steps=2,3,4", "run.images_per_prompt=1,2", "run.repeats=3",
        "sweep.baseline=false", f"run.prompts='{PROMPT}'"]  # fmt: skip
THEIRS = ["-m", "backend.torch_dtype=float32,bfloat16", "scenario.call_kwargs.num_inference_steps=2,3,4",
          "scenario.call_kwargs.num_images_per_prompt=1,2", "hydra.job.chdir=true"]  # fmt: skip
CONFIG = """
defaults: [benchmark, scenario: inference, launcher: process, backend: pytorch, _self_]
name: grid
backend: {device: cpu, no_weights: false, model: MODEL, library: diffusers, task: text-to-image}
scenario:
  memory: true
  latency: true
  warmup_runs: 1
  iterations: 3
  duration: 0
  input_shapes: {batch_size: 1}
  call_kwargs: {num_inference_steps: 4, num_images_per_prompt: 1, height: 64, width: 64}
launcher: {device_isolation: false, start_method: spawn}
"""


def started(command: list[str], folder: str) -> tuple[float, float]:
    """Wall seconds of a command, and the CPU seconds of its process alone."""
    start = time.perf_counter()
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    assert status == 0, command
    return time.perf_counter() - start, used.ru_utime + used.ru_stime


def ours(words: list[str], folder: str) -> tuple[float, float]:
    return started([sys.executable, "-m", "optbuilder", *words], folder)


def peer(environment: Path, folder: str) -> float:
    """Wall seconds of optimum-benchmark's multirun, with the model's tokenizers in files that transformers 4 reads."""
    model = shutil.copytree(PACKAGE / "shapes" / "shapes_sdxl", Path(folder, "model"))
    for place in ("tokenizer", "tokenizer_2"):
        tokenizer = json.loads((model / place / "tokenizer.json").read_text())["model"]
        (model / place / "vocab.json").write_text(json.dumps(tokenizer["vocab"]))
        (model / place / "merges.txt").write_text("\n".join(["#version: 0.2", *map(" ".join, tokenizer["merges"]), ""]))
        config = json.loads((model / place / "tokenizer_config.json").read_text())
        del config["backend"]
        (model / place / "tokenizer_config.json").write_text(json.dumps(config))
    Path(folder, "conf").mkdir()
    Path(folder, "conf", "grid.yaml").write_text(CONFIG.replace("MODEL", str(model)))
    command = [str(environment / "bin" / "optimum-benchmark"), "--config-dir", "conf", "--config-name", "grid"]
    seconds = started([*command, *THEIRS], folder)[0]
    assert len(list(Path(folder).rglob("benchmark_report.json"))) == 12, "a cell of optimum-benchmark's left no report"
    return seconds


def main() -> None:
    """Print all as JSON."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.grid", description=__doc__)
    parser.add_argument("--peer", type=Path)
    given = parser.parse_args()
    cells = [[f"{s}={name}" for s, name in zip(CHOICES, cell, strict=True)] for cell in product(*CHOICES.values())]
    with tempfile.TemporaryDirectory() as folder:
        if given.peer:
            found = {"grid_s": ours(OURS, folder)[0], "optimum_benchmark_s": peer(given.peer, folder)}
            found |= {"ratio": found["grid_s"] / found["optimum_benchmark_s"], "wanted": 0.5}
        else:
            choices = [f"{s}={','.join(names)}" for s, names in CHOICES.items()]
            grid_s, cpu_s = ours(["-m", *RUN, *choices], folder)
            fresh_s = sum(ours([*RUN, *cell], folder)[0] for cell in cells)
            found = {"grid_s": grid_s, "fresh_s": fresh_s, "ratio": grid_s / fresh_s, "wanted": 1 / 3}
            found |= {"parent_cpu_s_per_job": cpu_s / len(cells), "parent_cpu_share_of_short_jobs": cpu_s / grid_s}
            grid_s, cpu_s = ours(["-m", *choices], folder)
            found |= {"parent_cpu_share": cpu_s / grid_s, "wanted_share": 0.02}
    print(json.dumps({"cells": len(cells), **found}, indent=2))


if __name__ == "__main__":
    main()
