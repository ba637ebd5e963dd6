"""What the main job costs beside doing without it: `python -m tests.bench.main_job [model]`.

Ratios, each measured side by side in one run: start-up beside `import hydra`; warm latency and pictures beside the same
diffusers calls written by hand; memory beside one copy of the weights.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.conftest import composed, read

PAIRS = 12


def seconds(command: list[str], cwd: str) -> float:
    start = time.perf_counter()
    subprocess.run(command, cwd=cwd, check=True, capture_output=True)
    return time.perf_counter() - start


def start_up(model: str, cwd: str) -> None:
    """At most twice `import hydra` and half a second."""
    python, ours = [sys.executable], [sys.executable, "-m", "optbuilder", f"model={model}"]
    bare = [seconds([*python, "-c", "import hydra"], cwd) for _ in range(5)]
    limit = 2 * statistics.median(bare) + 0.5
    for name, words in {
        "--help": ["--help"],
        "action=plan": ["action=plan", "compile=full"],
        "--cfg job": ["--cfg", "job"],
    }.items():
        found = statistics.median(seconds([*ours, *words], cwd) for _ in range(5))
        print(f"start-up  {name:<12} {found:.2f} s, limit {limit:.2f} s: {'ok' if found <= limit else 'TOO SLOW'}")


def latency(model: str) -> None:
    """Pictures bit-identical to diffusers by hand, and warm latency within 2 percent, call by call in turn."""
    import numpy as np
    import torch
    from diffusers import DiffusionPipeline

    from optbuilder.builder import resolve
    from optbuilder.effects import apply
    from optbuilder.pipeline import load
    from optbuilder.request import arguments
    from optbuilder.runner import run

    plan = resolve(*composed(f"model={model}", "run.repeats=1", "run.warmup=1", "device=cpu")).require()
    plan.run.prompts = plan.run.prompts[:1]
    pipe, _ = apply(plan, load(plan.model, plan.load))
    by_hand = DiffusionPipeline.from_pretrained(plan.model.folder)
    by_hand.set_progress_bar_config(disable=True)
    times: dict[str, list[float]] = {"ours": [], "by hand": []}
    for number in range(PAIRS):
        for name in ("ours", "by hand") if number % 2 else ("by hand", "ours"):
            if name == "ours":
                result = run(pipe, plan.run, call=plan.call)
                times[name].append(result.timed[0][1].seconds)
                continue
            start = time.perf_counter()
            picture = by_hand(**arguments(by_hand, plan.run, 0, plan.call)).images[0]
            times[name].append(time.perf_counter() - start)
    ratio = statistics.median(a / b for a, b in zip(times["ours"], times["by hand"], strict=True))
    same = np.array_equal(result.images[0].pixels, picture)
    print(f"latency   ours / by hand {ratio:.3f}, limit 1.02: {'ok' if ratio <= 1.02 else 'TOO SLOW'}")
    print(f"pictures  bit-identical: {'ok' if same else 'DIFFERENT'} (torch {torch.__version__})")


def copies(folder: Path, cwd: str) -> None:
    """Resident memory over what the imports take, as copies of the weights: at load, and while running."""
    words = [
        f"model.repo_id={folder}",
        "model=custom",
        "run.num_inference_steps=1",
        "run.repeats=1",
        "run.height=64",
        "run.width=64",
    ]
    ours = [sys.executable, "-m", "optbuilder", *words, "hydra.run.dir=memory"]
    subprocess.run(ours, cwd=cwd, check=True, capture_output=True)
    memory = read(Path(cwd) / "memory" / "metrics.json")["memory"]
    weights = sum(sum(sizes.values()) for sizes in memory["weights_bytes"].values())
    imports = int(subprocess.run([sys.executable, "-c", _IMPORTS], capture_output=True, text=True, check=True).stdout)
    for phase in ("load", "run"):
        found = (memory["phases"][phase]["rss_peak_bytes"] - imports) / weights
        print(f"memory    {phase}: {found:.2f} copies of {weights / 2**20:.0f} MiB of weights")


_IMPORTS = """
import torch, diffusers, psutil
from diffusers import StableDiffusionXLPipeline
print(psutil.Process().memory_info().rss)
"""


def large(folder: Path) -> Path:
    """A random UNet pipeline of about half a gigabyte, so that one copy of the weights stands out."""
    from diffusers import UNet2DConditionModel

    from tests import tiny

    pipe = tiny.sdxl()
    config = dict(pipe.unet.config) | {
        "block_out_channels": (640, 1280),
        "norm_num_groups": 32,
        "attention_head_dim": (10, 20),
    }
    pipe.unet = UNet2DConditionModel.from_config(config)
    pipe.save_pretrained(folder)
    return folder


if __name__ == "__main__":
    chosen = sys.argv[1] if len(sys.argv) > 1 else "shapes_sdxl"
    with tempfile.TemporaryDirectory() as empty:
        start_up(chosen, empty)
        latency(chosen)
        copies(large(Path(empty) / "large"), empty)
