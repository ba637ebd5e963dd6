"""The same work in optbuilder and in its peers, in turn: `python -m tests.bench.peers`, on a quiet machine.

Same model folder, prompt, seed and steps. Each peer has a virtual environment of its own, made here below
`--environments`. Printed as JSON for each technique, over `--rounds` processes of every peer in turn: seconds until the
first picture (from the start of the process), warm seconds per call (medians), peak memory, and how far the picture is
from that of the hand-written script; then the ratio to the hand-written script's, for calls with its interval. A peer
that cannot do the work has its error as the row. `--grid` compares the wall time of a 12-cell grid with
optimum-benchmark's multirun (tests/bench/peers/grid.py).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from optbuilder.folders import PACKAGE
from optbuilder.samples import ratio
from tests.bench.peers import grid

HERE = Path(__file__).parent
PINS = [line for line in (HERE.parents[2] / "constraints.txt").read_text().split() if line.startswith("torch==")]
PEERS = {
    "by_hand": None,  # None: this environment
    "ours": None,
    "with_cache_dit": ["cache-dit", "diffusers==0.42.1", "transformers==5.24.0", "accelerate", "sentencepiece"],
    "with_pruna": ["pruna"],
}
TECHNIQUES = ("plain", "compile", "dbcache")
CALLS = {"shapes_flux": {"max_sequence_length": 16}, "shapes_sdxl": {"guidance_scale": 4.0}}
SIZE = {"height": 64, "width": 64, "num_inference_steps": 25}


def environment(name: str, requirements: list[str] | None, below: Path) -> Path:
    """The Python of a peer's environment, made if it is not there. Raises CalledProcessError where it cannot be."""
    if requirements is None:
        return Path(sys.executable)
    python = below / name / "bin" / "python"
    if not (below / name / "complete").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(below / name)], check=True)
        install = [str(python), "-m", "pip", "install", "-q", *PINS, *requirements]
        subprocess.run(install, check=True, capture_output=True, text=True)
        (below / name / "complete").touch()
    return python


def row(python: Path, script: str, work: dict[str, Any], folder: Path) -> dict[str, Any]:
    """One peer's figures of one process, or its error."""
    folder.mkdir(exist_ok=True)
    work = {**work, "picture": str(folder / f"{script}_{work['technique']}.npy")}
    cold = os.environ | {"TORCHINDUCTOR_CACHE_DIR": f"{work['picture']}.cache"}  # nobody compiles for the next one
    command = [str(python), str(HERE / f"{script}.py"), json.dumps(work)]
    start = time.time()
    done = subprocess.run(command, capture_output=True, text=True, env=cold)
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1][:300]}
    found = json.loads(done.stdout.strip().splitlines()[-1])
    return {"first_image_s": [found["first_at"] - start], "calls_s": found["calls_s"],
            "peak_bytes": [found["peak_bytes"]], "picture": work["picture"]}  # fmt: skip


def pooled(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """One peer's rounds together; an error in any is the row."""
    if failed := [found for found in rounds if "error" in found]:
        return failed[0]
    calls_s = [seconds for found in rounds for seconds in found["calls_s"]]
    medians = {key: statistics.median(f[key][0] for f in rounds) for key in ("first_image_s", "peak_bytes")}
    return {**medians, "call_s": statistics.median(calls_s), "calls_s": calls_s, "picture": rounds[-1]["picture"]}


def beside(rows: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Each row with its ratios to the hand-written script's, and how far the picture is from the plain script's."""
    import numpy as np

    first = rows["plain by_hand"]
    for name, found in rows.items():
        if "error" in found:
            continue
        picture, reference = (np.load(each["picture"]) for each in (found, first))
        found["max_difference"] = float(abs(picture - reference).max())
        hand = rows.get(f"{name.split()[0]} by_hand", first)
        for key in ("first_image_s", "call_s", "peak_bytes") if "error" not in hand else ():
            found[f"{key}_to_by_hand"] = found[key] / hand[key]
        if "error" not in hand:
            found["call_s_to_by_hand_interval"] = ratio(found["calls_s"], hand["calls_s"])["interval"]
    kept = ("picture", "calls_s")
    return {name: {key: value for key, value in found.items() if key not in kept} for name, found in rows.items()}


def main() -> None:
    """Print all as JSON."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.peers", description=__doc__)
    parser.add_argument("--model", default="shapes_flux", choices=CALLS)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--environments", type=Path, default=Path.home() / ".cache" / "optbuilder" / "peers")
    parser.add_argument("--grid", action="store_true")
    given = parser.parse_args()
    if given.grid:
        print(
            json.dumps(grid.beside(environment("optimum_benchmark", grid.REQUIREMENTS, given.environments)), indent=2)
        )
        return
    work = {"name": given.model, "model": str(PACKAGE / "shapes" / given.model), "seed": 0, "repeats": given.repeats,
            "prompt": "a red circle on a blue background", "call": {**SIZE, **CALLS[given.model]}}  # fmt: skip
    pythons: dict[str, Path] = {}
    rows: dict[str, dict[str, Any]] = {}
    for name, requirements in PEERS.items():
        try:
            pythons[name] = environment(name, requirements, given.environments)
        except subprocess.CalledProcessError as error:
            rows[name] = {"error": (error.stderr or str(error)).strip().splitlines()[-1][:300]}
    with tempfile.TemporaryDirectory() as folder:
        for technique in TECHNIQUES:
            found: dict[str, list[dict[str, Any]]] = {name: [] for name in pythons}
            for number in range(given.rounds):
                for name, python in pythons.items():
                    if not any("error" in earlier for earlier in found[name]):
                        found[name].append(
                            row(python, name, {**work, "technique": technique}, Path(folder, str(number)))
                        )
            rows |= {f"{technique} {name}": pooled(rounds) for name, rounds in found.items()}
        print(json.dumps(beside(rows), indent=2))


if __name__ == "__main__":
    main()
