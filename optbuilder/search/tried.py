"""What a search knows of a plan that it has tried, and which of two is better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from optbuilder.job import Outcome
from optbuilder.record import peak_bytes
from optbuilder.samples import ratio
from optbuilder.search.settings import Limits

Choice = Mapping[str, str]  # the option of every stage that is not left as it is


@dataclass(frozen=True)
class Tried:
    """One plan with its figures, of which less is better but for quality, and the seconds of each call behind them.

    Latency is in seconds per call, throughput in seconds per picture, memory in bytes, cold start in seconds, energy in
    joules per picture; psnr in dB and ssim are those of the worst picture, and break_even is the number of pictures
    after which the set-up has paid off.
    """

    folder: Path
    choice: Choice
    status: str
    figures: Mapping[str, float] = field(default_factory=dict)
    calls: Sequence[float] = ()
    pictures: float = 1.0  # per call
    seconds: float = 0.0  # that the whole trial took, its process and compiling too

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def ok(self) -> bool:
        return self.status == "ok"

    def within(self, limits: Limits) -> bool:
        """Whether it ran well and keeps every limit. The baseline is its own reference."""
        kept = all(self.figures.get(name, float("inf")) <= most for name, most in limits.most.items())
        return self.ok and kept and all(self.figures.get(n, float("inf")) >= x for n, x in limits.least.items())


def tried(folder: Path, choice: Choice, outcome: Outcome, seconds: float = 0.0) -> Tried:
    """From the record of a job."""
    metrics = outcome.metrics
    if "latency" not in metrics:
        return Tried(folder, choice, outcome.status, seconds=seconds)
    quality, latency = metrics["quality"] or {}, metrics["latency"]
    pictures = len(metrics["images"] or "x") / len({call["call"] for call in latency["calls"] or [{"call": 0}]})
    figures: dict[str, Any] = {
        "latency": latency["call_s"]["median"],
        "throughput": latency["call_s"]["median"] / pictures,
        "memory": peak_bytes(metrics),
        "cold_start": metrics["phases"]["first_image_s"],
        "energy": sum((metrics["energy"] or {}).get("joules_per_image", {}).values()) or None,
        "psnr": quality.get("psnr_min"),
        "ssim": quality.get("ssim_min"),
        "break_even": (quality.get("speed") or {}).get("break_even_images"),
    }
    known = {key: float(value) for key, value in figures.items() if value is not None}
    return Tried(folder, choice, outcome.status, known, latency["call_s"]["samples"], pictures, seconds)


MARGIN = {"memory": 0.02, "cold_start": 0.1, "energy": 0.05}  # a single figure each: less than this is no difference


def gain(one: Tried, other: Tried, objective: str) -> tuple[float, float, float]:
    """How many times better `one` is than `other`, and the interval in which that lies."""
    if objective in ("latency", "throughput"):
        found = ratio(other.calls, one.calls)
        low, high = found["interval"] or (0.0, float("inf"))
        more = one.pictures / other.pictures if objective == "throughput" else 1.0
        return found["ratio"] * more, low * more, high * more
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


def without(choice: Choice, stage: str) -> Choice:
    """The choice with a stage left as it is, its options (`cache.threshold`) too."""
    return {key: option for key, option in choice.items() if key != stage and not key.startswith(f"{stage}.")}
