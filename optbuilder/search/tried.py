"""What a search knows of a plan that it has tried, and which of two is better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from optbuilder.job import Outcome
from optbuilder.record import peak_bytes
from optbuilder.samples import ratio
from optbuilder.search.settings import Limits

Choice = Mapping[str, str]  # the option of every stage that is not left as it is


@dataclass(frozen=True)
class Tried:
    """One plan with its figures, and the samples behind the latency (`calls`).

    Latency is in seconds per picture, memory in bytes, cold start in seconds, energy in joules per picture; psnr in dB
    and ssim are those of the worst picture.
    """

    name: str
    choice: Choice
    status: str
    figures: Mapping[str, float] = field(default_factory=dict)
    calls: Sequence[float] = ()

    @property
    def ok(self) -> bool:
        return self.status == "ok"

    def within(self, limits: Limits) -> bool:
        """Whether it ran well and keeps every limit. The baseline is its own reference."""
        kept = all(self.figures.get(name, float("inf")) <= most for name, most in limits.most.items())
        return self.ok and kept and all(self.figures.get(n, float("inf")) >= x for n, x in limits.least.items())


def tried(name: str, choice: Choice, outcome: Outcome) -> Tried:
    """From the record of a job."""
    metrics = outcome.metrics
    if "latency" not in metrics:
        return Tried(name, choice, outcome.status)
    quality = metrics["quality"] or {}
    figures: dict[str, Any] = {
        "latency": 1 / metrics["latency"]["images_per_s"],
        "memory": peak_bytes(metrics),
        "cold_start": metrics["phases"]["first_image_s"],
        "energy": sum((metrics["energy"] or {}).get("joules_per_image", {}).values()) or None,
        "psnr": float(quality["psnr_min"]) if quality else None,
        "ssim": quality.get("ssim_min"),
    }
    known = {key: float(value) for key, value in figures.items() if value is not None}
    return Tried(name, choice, outcome.status, known, metrics["latency"]["call_s"]["samples"])


MARGIN = {"memory": 0.02, "cold_start": 0.1, "energy": 0.05}  # a single figure each: less than this is no difference


def gain(one: Tried, other: Tried, objective: str) -> tuple[float, float, float]:
    """How many times better `one` is than `other`, and the interval in which that lies."""
    if objective == "latency":
        found = ratio(other.calls, one.calls)
        low, high = found["interval"] or (0.0, float("inf"))
        return found["ratio"], low, high
    times = other.figures[objective] / one.figures[objective]
    return times, times * (1 - MARGIN[objective]), times * (1 + MARGIN[objective])


def better(one: Tried, other: Tried, objective: str) -> bool:
    """Whether `one` is to be preferred: by more than the measurements can tell apart, or in a tie by being simpler."""
    _, low, high = gain(one, other, objective)
    if low > 1 or high < 1:
        return low > 1
    return len(one.choice) < len(other.choice)


def best(among: Sequence[Tried], objective: str) -> Tried | None:
    """The one that the figures put first, or a simpler one that they cannot tell from it."""
    known = [t for t in among if objective in t.figures]
    if not known:
        return None
    first = min(known, key=lambda t: t.figures[objective])
    ties = [t for t in known if t is first or gain(first, t, objective)[1] <= 1]
    return min(ties, key=lambda t: (len(t.choice), t.figures[objective]))
