"""A grid of 12 cells in optbuilder and as optimum-benchmark's multirun. Wanted: at most half of its wall time."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from optbuilder.folders import PACKAGE
from tests.bench.grid import ours, started

# optimum-benchmark 0.6 imports names that transformers 5 has not.
REQUIREMENTS = ["optimum-benchmark", "transformers<5", "diffusers<0.38", "protobuf", "sentencepiece"]
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


def peer(python: Path, folder: str) -> float:
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
    command = [str(python.with_name("optimum-benchmark")), "--config-dir", "conf", "--config-name", "grid"]
    seconds = started([*command, *THEIRS], folder)[0]
    assert len(list(Path(folder).rglob("benchmark_report.json"))) == 12, "a cell of optimum-benchmark's left no report"
    return seconds


def beside(python: Path) -> dict[str, Any]:
    """Both grids' wall seconds and their ratio."""
    with tempfile.TemporaryDirectory() as folder:
        grid_s, peer_s = ours(OURS, folder)[0], peer(python, folder)
    return {"grid_s": grid_s, "optimum_benchmark_s": peer_s, "ratio": grid_s / peer_s, "wanted": 0.5}
