"""What a search looks for, and within which limits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from optbuilder.errors import Refused
from optbuilder.typed import conform

BATCH = "run.batch_size"  # what a search tries beside the stages
OBJECTIVES = ("latency", "throughput", "memory", "cold_start", "energy")
SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}
BYTES = {"": 1, "B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


@dataclass(frozen=True)
class Limits:
    """The largest figures that a plan may have, by their names in `Tried`, and the least quality."""

    most: Mapping[str, float] = field(default_factory=dict)
    least: Mapping[str, float] = field(default_factory=dict)


@dataclass
class SearchSettings:
    """conf/search/*.yaml."""

    objective: Any = "latency"
    lossless: bool = False
    budget: str = "20m"
    max_latency: str | None = None
    max_memory: str | None = None
    max_cold_start: str | None = None
    min_psnr: float | None = None
    min_ssim: float | None = None
    space: Any = None
    storage: str | None = None
    confirm_repeats: Any = "auto"

    @property
    def objectives(self) -> list[str]:
        """What is to be small, the first one first where they disagree."""
        return self.objective if isinstance(self.objective, list) else [self.objective]

    @property
    def budget_s(self) -> float:
        return quantity(self.budget, SECONDS)

    @property
    def limits(self) -> Limits:
        most = {
            "latency": self.max_latency and quantity(self.max_latency, SECONDS),
            "memory": self.max_memory and quantity(self.max_memory, BYTES),
            "cold_start": self.max_cold_start and quantity(self.max_cold_start, SECONDS),
        }
        least = {"psnr": self.min_psnr, "ssim": self.min_ssim}
        return Limits(*({k: float(v) for k, v in each.items() if v is not None} for each in (most, least)))


def quantity(text: str, units: Mapping[str, float]) -> float:
    """A number with a unit. Raises ValueError where it is none.

    >>> quantity("20m", SECONDS), quantity("1.5GiB", BYTES)
    (1200.0, 1610612736.0)
    """
    found = re.fullmatch(r"\s*([\d.]+)\s*([A-Za-z]*)\s*", str(text))
    if found is None or found[2] not in units:
        raise ValueError(f"it is no number with one of the units {', '.join(u for u in units if u)}")
    return float(found[1]) * units[found[2]]


def _wrong_space(space: Any, stages: Mapping[str, str]) -> list[str]:
    if not isinstance(space or {}, Mapping) or not all(isinstance(names, list) for names in (space or {}).values()):
        return [
            f"search.space={space!r}: it must hold a list of options for each stage. Write {{quant: [int8_dynamic]}}."
        ]
    wrong = [key for key in space or {} if key not in stages and key != BATCH and not _option_of(key, stages)]
    known = f"one of: {', '.join(stages)}, an option of one (cache.threshold) or {BATCH}"
    return [f"search.space.{key}: there is no such stage. Use {known}." for key in wrong]


def _option_of(key: str, stages: Mapping[str, str]) -> bool:
    stage, dot, option = str(key).partition(".")
    return stage in stages and bool(dot and option)


def search_settings(values: Mapping[str, Any], stages: Mapping[str, str]) -> SearchSettings:
    """The settings. Raises `Refused` with one line for each that is wrong."""
    known, problems = conform(SearchSettings, values, "search")
    settings = SearchSettings(**known)
    if not problems:
        units = {"budget": SECONDS, "max_latency": SECONDS, "max_cold_start": SECONDS, "max_memory": BYTES}
        for name, unit in units.items():
            try:
                quantity(known[name] or "0", unit)
            except ValueError as error:
                problems.append(f"search.{name}={known[name]!r}: {error}.")
        problems += [
            f"search.objective={objective!r}: it is not one of: {', '.join(OBJECTIVES)}."
            for objective in settings.objectives or [None]
            if objective not in OBJECTIVES
        ]
        problems += _wrong_space(settings.space, stages)
    if problems:
        raise Refused(*problems)
    return settings
