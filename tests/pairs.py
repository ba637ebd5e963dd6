"""Every pair of options from two stages on a random model: does it run with every effect proven, or is it refused?

`python -m tests.pairs > tests/pairs.md` writes the table; tests/test_pairs.py asserts that there is no third outcome.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

from optbuilder.builder import resolve
from optbuilder.counters import counts
from optbuilder.metrics import degraded
from optbuilder.pipeline import load
from optbuilder.runner import kernels_called, run
from optbuilder.state import preserved
from tests.conftest import CONF, composed, of

STAGES = ("precision", "scheduler", "lora", "kernels", "fusion", "attention", "layout", "quant", "parallel", "compile",
          "cache", "vae", "offload")  # fmt: skip
RUN = ["run.num_inference_steps=6", "run.images_per_prompt=2", "run.warmup=0", "run.repeats=1"]
# What an option needs beside its name, so that it has something to work on in a random 64x64 model.
EXTRA = {
    "compile": ["compile.backend=eager"],
    "compile=aot": [],
    "vae=tiling": ["vae.tile_size=32"],
    "cache=first_block": ["cache.threshold=1"],
    "cache=dbcache": ["cache.threshold=1"],
    "quant=int8_dynamic": ["quant.min_parameters=100"],
    "kernels=local": [
        "+kernels.layers.RMSNorm=tests.kernel.rms_norm",
        "+kernels.layers.LayerNorm=tests.kernel.layer_norm",
    ],
}


def options() -> dict[str, list[str]]:
    """The names of every stage's options but none."""
    return {s: [p.stem for p in sorted((CONF / s).glob("*.yaml")) if p.stem != "none"] for s in STAGES}


def words_of(stage: str, name: str, lora: Path) -> list[str]:
    key = f"{stage}={name}"
    extra = EXTRA.get(key, EXTRA.get(stage, []))
    return [key, *extra, *([f"lora.paths=[{lora}]"] if stage == "lora" else [])]


def pairs(known: dict[str, list[str]] | None = None) -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
    known = known or options()
    for one, other in combinations(STAGES, 2):
        for first in known[one]:
            for second in known[other]:
                yield (one, first), (other, second)


def usable(folder: Path, lora: Path) -> dict[str, list[str]]:
    """The options that the plan accepts alone: a pair with another is refused for the same reason as the option."""
    return {
        stage: [name for name in names if not plan(folder, words_of(stage, name, lora)).refusals]
        for stage, names in options().items()
    }


def plan(folder: Path, words: list[str]):
    base = [word for word in of(folder) if not word.startswith("run.num_inference_steps")]
    return resolve(*composed(*base, *RUN, "device=cpu", "trusted_modules=[tests.kernel]", *words))


def outcome(folder: Path, words: list[str]) -> str:
    """`ok`, `refused: why`, or what went wrong."""
    from optbuilder.effects import apply

    planned = plan(folder, words)
    if planned.refusals:
        return f"refused: {' '.join(planned.refusals)}"
    try:
        with preserved(), counts() as so_far:
            pipe, _ = apply(planned, load(planned.model, planned.load, planned.load_device))
            result = run(pipe, planned.run, call=planned.call, graphs=so_far)
            kernels = kernels_called(pipe, planned.run, planned.call)
            counted = vars(so_far()) | {"graphs_in_timed_calls": 0, "attention_kernels": kernels}
            wrong = result.problems + degraded(planned, counted)
    except Exception as error:  # the outcome is what this looks for
        return f"failed: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return f"wrong: {' '.join(wrong)}" if wrong else "ok"


def table(folder: Path, lora: Path) -> Iterator[tuple[str, str, str]]:
    """One option, the other, and what came of the two."""
    for (one, first), (other, second) in pairs(usable(folder, lora)):
        words = [*words_of(one, first, lora), *words_of(other, second, lora)]
        yield f"{one}={first}", f"{other}={second}", outcome(folder, words)


def page(family: str, rows: list[tuple[str, str, str]]) -> str:
    """The measured table: every pair that ran well by its first option, and those refused, each reason once."""
    ran: dict[str, list[str]] = {}
    refused: dict[str, list[str]] = {}
    for one, other, found in rows:
        if found == "ok":
            ran.setdefault(one, []).append(f"`{other}`")
        else:
            refused.setdefault(found, []).append(f"`{one}` with `{other}`")
    lines = [f"## {family}: {len(rows)} pairs, {sum(map(len, ran.values()))} ran with every effect proven", ""]
    lines += ["| option | ran well with |", "| --- | --- |"]
    lines += [f"| `{one}` | {', '.join(others)} |" for one, others in ran.items()]
    lines += ["", "| why not | pairs |", "| --- | --- |"]
    lines += [f"| {reason.replace('|', chr(92) + '|')} | {', '.join(which)} |" for reason, which in refused.items()]
    return "\n".join(lines)


HEAD = """# Every pair of options

Each pair of options from two stages that a CPU can run, on a random StableDiffusionXLPipeline and a random
FluxPipeline, compiled with the eager backend where one of the two compiles. A pair either ran (status ok, every effect
proven, counters as they must be) or was refused at plan time with the reason below. Written by
`python -m tests.pairs > tests/pairs.md`; `python -m pytest -m slow tests/test_pairs.py` runs them all again and asserts
that there is no third outcome.
"""

if __name__ == "__main__":
    from tests import tiny

    root = Path(tempfile.mkdtemp())
    print(HEAD)
    for family, folder in tiny.save(root).items():
        adapter = tiny.lora(folder, root / f"lora_{family}")
        measured = []
        for row in table(folder, adapter):
            measured.append(row)
            print(" | ".join(row)[:150], file=sys.stderr)
        print(page(family, measured), flush=True)
