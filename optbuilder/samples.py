"""What repeated measurements say, and how sure they are."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

RESAMPLES = 2000


def spread(samples: Sequence[float]) -> dict[str, Any]:
    """n, median with its 95% interval (bootstrap), 90th percentile, minimum, warnings, and every sample."""
    ordered = sorted(samples)
    p90 = statistics.quantiles(ordered, n=10, method="inclusive")[-1] if len(ordered) > 1 else ordered[0]
    return {
        "n": len(samples),
        "median": statistics.median(samples),
        "interval": interval(samples),
        "p90": p90,
        "min": ordered[0],
        "warnings": unsteady(samples),
        "samples": list(samples),
    }


def interval(samples: Sequence[float]) -> list[float] | None:
    """The 95% interval of the median, by resampling; None for a single sample, which says nothing about it."""
    if len(samples) < 2:
        return None
    return _percentiles(medians(samples))


def ratio(before: Sequence[float], after: Sequence[float]) -> dict[str, Any]:
    """How many times smaller the median of `after` is than that of `before`, with its 95% interval."""
    found = {"ratio": statistics.median(before) / statistics.median(after), "interval": None}
    if len(before) > 1 and len(after) > 1:
        found["interval"] = _percentiles(medians(before, 0) / medians(after, 1))
    return found


def width(samples: Sequence[float]) -> float:
    """The width of the median's interval as a part of the median; infinite for a single sample."""
    found = interval(samples)
    return float("inf") if found is None else (found[1] - found[0]) / statistics.median(samples)


def unsteady(samples: Sequence[float]) -> list[str]:
    """Why the samples may not be of one kind: they drift, or they come in two groups (a busy machine)."""
    values, found = np.asarray(samples, dtype=float), []
    if len(values) < 6:
        return found
    third = len(values) // 3
    early, late = np.median(values[:third]), np.median(values[-third:])
    noise = np.median(np.abs(np.diff(values)))  # from one sample to the next, so that a drift is no part of it
    if abs(late - early) > max(4 * noise, 0.05 * np.median(values)):
        found.append(f"drift: the last third takes {late / early:.2f} times the first")
    ordered = np.sort(values)
    gaps = np.diff(ordered)
    split = int(np.argmax(gaps)) + 1
    low, high = ordered[:split], ordered[split:]
    if min(len(low), len(high)) >= len(values) // 4 and gaps[split - 1] > max(
        4 * max(np.ptp(low), np.ptp(high)), 0.1 * low.mean()
    ):
        found.append(f"bimodal: {len(low)} samples around {low.mean():.4g}, {len(high)} around {high.mean():.4g}")
    return found


def medians(samples: Sequence[float], seed: int = 0) -> Any:
    """The medians that as many other measurements might have had (bootstrap)."""
    values = np.asarray(samples, dtype=float)
    return np.median(np.random.default_rng(seed).choice(values, (RESAMPLES, len(values))), axis=1)


def _percentiles(values: Any) -> list[float]:
    return [float(v) for v in np.percentile(values, [2.5, 97.5])]
