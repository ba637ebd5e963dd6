"""How much of a cold start is left when the compiled artifacts are there: `python -m tests.bench.cold_start [model]`.

In one run, each start a fresh process, from the start of the process to the first picture: `compile=full` with an empty
`compile.cache_dir` (cold) and again with what that left there, `compile=aot` with the packages of an earlier start.
Beside them what no start can go below: the import of torch and of the pipeline's class. The more of the optional
packages are installed that diffusers and transformers import where they find them, the longer it takes.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image

from optbuilder.folders import PACKAGE
from tests.conftest import read

STARTS = 3  # of each warm way; the median counts
LIMITS = {"cache": 0.25, "aot": 0.10}


def start(model: str, words: list[str], directory: Path) -> tuple[float, float, bytes]:
    """Seconds from the start of the process to the first picture, all and without the imports, and the picture."""
    run = [
        "run.repeats=1",
        "run.warmup=0",
        "run.prompts=[a red circle on a blue background]",
        f"hydra.run.dir={directory}",
    ]
    command = [sys.executable, "-m", "optbuilder", f"model={model}", "device=cpu", *run, *words]
    subprocess.run(command, cwd=directory.parent, check=True, capture_output=True)
    metrics = read(directory / "metrics.json")
    phases, pixels = metrics["phases"], Image.open(directory / metrics["images"][0]).tobytes()
    whole = phases["start_s"] + phases["first_image_s"]
    return whole, whole - phases["start_s"] - phases["import_s"], pixels


def importing(model: str) -> float:
    """Seconds that a process takes which imports the pipeline's class and does nothing else."""
    name = read(PACKAGE / "shapes" / model / "model_index.json")["_class_name"]
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", f"from diffusers import {name}"], check=True, capture_output=True)
    return time.perf_counter() - begun


def main(model: str) -> None:
    """Print seconds, ratios and whether the pictures are the same."""
    floor = statistics.median(importing(model) for _ in range(STARTS))
    print(f"{'importing alone':<24} {floor:6.1f} s", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        ways = {
            "cold": (1, ["compile=full", f"compile.cache_dir={folder}/cache"]),
            "cache": (STARTS, ["compile=full", f"compile.cache_dir={folder}/cache"]),
            "aot, making the package": (1, ["compile=aot", f"compile.package_dir={folder}/aot"]),
            "aot": (STARTS, ["compile=aot", f"compile.package_dir={folder}/aot"]),
        }
        found = {}
        for name, (times, words) in ways.items():
            starts = [
                start(model, words, Path(folder, f"{name.partition(',')[0]}_{len(found)}_{n}")) for n in range(times)
            ]
            found[name] = [statistics.median(s[k] for s in starts) for k in (0, 1)], starts[0][2]
            print(f"{name:<24} {found[name][0][0]:6.1f} s, without imports {found[name][0][1]:6.1f} s", flush=True)
    print(f"pictures                 {'the same' if len({p for _, p in found.values()}) == 1 else 'DIFFERENT'}")
    for name, limit in LIMITS.items():
        (whole, bare), (cold, bare_cold) = found[name][0], found["cold"][0]
        verdict = "ok" if whole / cold <= limit else "TOO SLOW"
        ratios = (
            f"{whole / cold:.3f} of cold (importing alone {floor / cold:.3f}, without imports {bare / bare_cold:.3f})"
        )
        print(f"{name:<24} {ratios}, at most {limit}: {verdict}")
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "shapes_sdxl")
