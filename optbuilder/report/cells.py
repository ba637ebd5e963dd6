"""The jobs a report shows, as its parts need them: what was applied, the figures, and where the pictures are."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optbuilder.errors import Refused
from optbuilder.job import Outcome, recorded
from optbuilder.record import model_name
from optbuilder.results import jobs, row

IDENTICAL_DB = 100.0  # where "inf" is drawn: 8-bit pictures that differ anywhere have at most 96 dB in 4000 x 4000

# Settings of a run that say how it is measured, not what is generated.
MEASURING = {"compare", "compile_floor", "profile", "isolation", "timeout_s", "warmup", "repeats", "repeats_width",
             "repeats_budget_s"}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """One job: its name in the report, its record, its row of results.csv, and its baseline's name, if it has one."""

    name: str
    outcome: Outcome
    row: Mapping[str, Any]
    baseline: str

    @property
    def measured(self) -> bool:
        return "latency" in self.outcome.metrics

    @property
    def stages(self) -> dict[str, str]:
        """What was applied: the option of every stage with its settings, as text."""
        return {t["stage"]: _told(t) for t in self.outcome.plan.get("transforms", []) if t["option"] != "fp32"}

    @property
    def title(self) -> str:
        """The options chosen, as on the command line."""
        chosen = [f"{t['stage']}={t['option']}" for t in self.outcome.plan.get("transforms", [])]
        return " ".join(word for word in chosen if word != "precision=fp32") or "baseline"

    @property
    def conditions(self) -> dict[str, Any]:
        """What has to be equal for two jobs to be comparable: grid, model, device, and what was generated."""
        plan = self.outcome.plan
        asked = {f"run.{key}": value for key, value in plan.get("run", {}).items() if key not in MEASURING}
        model = model_name(plan["model"]) if plan.get("model") else None
        where = {"model": model, "device": plan.get("device")}
        return {"grid": str(self.outcome.directory.parent), **where, **asked}

    @property
    def group(self) -> str:
        """The conditions as one text."""
        return json.dumps(self.conditions, sort_keys=True, default=str)

    @property
    def peak(self) -> float:
        """The peak of the timed calls in bytes: of the device, or of the process on a CPU."""
        return float(self.row["device_peak_bytes"] or self.row["rss_peak_bytes"])

    @property
    def calls(self) -> list[float]:
        return self.outcome.metrics["latency"]["call_s"]["samples"]

    @property
    def image_s(self) -> float:
        """Seconds per picture."""
        return 1 / self.outcome.metrics["latency"]["images_per_s"]

    @property
    def psnr(self) -> float | None:
        """The worst picture's PSNR against the baseline in dB; infinite for equal pictures, None if not compared, or
        where random weights drew them."""
        quality = self.outcome.metrics.get("quality") or {}
        return None if quality.get("psnr_min") is None else float(quality["psnr_min"])

    @property
    def random(self) -> bool:
        """Whether the weights are random, so that nothing can be said of the pictures."""
        return (self.outcome.plan.get("model") or {}).get("weights") == "dummy"


def _told(transform: Mapping[str, Any]) -> str:
    return f"{transform['option']} {json.dumps(transform['options'], sort_keys=True, default=str)}"


def cells(directories: Sequence[Path]) -> list[Cell]:
    """Every job in these directories, each a grid's or a run's. Raises `Refused` for one that holds neither."""
    found: list[Cell] = []
    for directory in directories:
        outcomes = jobs(directory)
        if not outcomes and (directory / "metrics.json").is_file():
            outcomes = {directory.name: recorded(directory)}
        if not outcomes:
            raise Refused(f"{str(directory)!r}: there is no metrics.json in it, nor in a folder of it. Give a grid's.")
        prefix = f"{directory.name}/" if len(directories) > 1 else ""
        for name, outcome in outcomes.items():
            values = row(name, outcome, outcomes)
            beside = f"{prefix}{values['baseline']}" if values.get("baseline") in outcomes else ""
            found.append(Cell(f"{prefix}{name}", outcome, values, beside))
    return found


def grouped(found: Sequence[Cell]) -> dict[str, list[Cell]]:
    """The jobs by what makes them comparable; a group's name says what tells it from the others, and is empty where
    there is only one."""
    groups: dict[str, list[Cell]] = {}
    for cell in found:
        groups.setdefault(cell.group, []).append(cell)
    conditions = {key: group[0].conditions for key, group in groups.items()}
    told = [k for k in dict.fromkeys(k for c in conditions.values() for k in c) if _differs(k, conditions.values())]
    return {", ".join(f"{k} {conditions[key].get(k)}" for k in told): group for key, group in groups.items()}


def _differs(key: str, conditions: Iterable[Mapping[str, Any]]) -> bool:
    return len({json.dumps(c.get(key), default=str) for c in conditions}) > 1
