"""Are the figures true? `python -m tests.bench.measuring`, on a quiet machine.

Known sleeps and known allocations beside what is measured of them (within 3 percent), and how often two runs of one
config agree within their stated intervals (at least 9 of 10).
"""

from __future__ import annotations

import time
from types import SimpleNamespace

import numpy as np

from optbuilder.measure import peak_memory
from optbuilder.runner import run
from optbuilder.samples import interval
from optbuilder.settings import Run

TRIES = 10
LIMIT = 0.03


class Known:
    """A pipeline that sleeps for known times and holds a known block of memory while it decodes."""

    def __init__(self, encode: float, step: float, decode: float, block: int):
        self.times, self.block = (encode, step, decode), block
        self.vae = SimpleNamespace(decode=self.decode)

    def encode_prompt(self) -> None:
        time.sleep(self.times[0])

    def decode(self) -> None:
        held = np.ones(self.block // 8)
        time.sleep(self.times[2])
        del held

    def __call__(self, prompt: str, num_inference_steps: int, **_: object) -> SimpleNamespace:
        self.encode_prompt()
        with self.progress_bar(total=num_inference_steps) as bar:
            for _step in range(num_inference_steps):
                time.sleep(self.times[1])
                bar.update()
        self.vae.decode()
        return SimpleNamespace(images=np.linspace(0, 1, 48).reshape(1, 4, 4, 3))


def within(name: str, found: float, true: float) -> None:
    off = found / true - 1
    print(f"{name:<28}{found:12.4f} {true:12.4f} {off:+8.2%}  {'ok' if abs(off) <= LIMIT else 'OFF'}")


def sleeps() -> None:
    settings = Run(prompts=["a"], num_inference_steps=10, repeats=3)
    result = run(Known(0.2, 0.05, 0.1, 8), settings)
    for part, true in {"text_encode": 0.2, "denoise": 0.5, "decode": 0.1, "seconds": 0.8}.items():
        within(f"time of {part} (s)", float(np.median([getattr(c, part) for _, c in result.timed])), true)
    within("time of a step (s)", float(np.median([s for _, c in result.timed for s in c.steps])), 0.05)
    within("steps of a call, summed (s)", sum(result.timed[0][1].steps), result.timed[0][1].denoise)


def allocations() -> None:
    for mib in (200, 400):
        with peak_memory("cpu") as idle:
            time.sleep(0.05)
        result = run(Known(0.0, 0.0, 0.1, mib * 2**20), Run(prompts=["a"], num_inference_steps=1, repeats=1))
        within(f"peak of {mib} MiB (MiB)", (result.memory["run"].rss_peak_bytes - idle.rss_bytes) / 2**20, mib)


def agreement() -> None:
    """Two runs of the same work: does each median lie where the other's interval says, widened by its own?"""
    settings = Run(prompts=["a"], num_inference_steps=5, repeats=15)
    agreed = 0
    for _ in range(TRIES):
        runs = [[c.seconds for _, c in run(Known(0.01, 0.005, 0.01, 8), settings).timed] for _ in range(2)]
        (low, high), (other_low, other_high) = map(interval, runs)
        agreed += low <= other_high and other_low <= high
    print(f"two runs agree within their intervals in {agreed} of {TRIES} tries: {'ok' if agreed >= 9 else 'OFF'}")


if __name__ == "__main__":
    print(f"{'':<28}{'measured':>12} {'true':>12} {'off':>8}")
    sleeps()
    allocations()
    agreement()
