"""What earlier starts left in `compile.cache_dir` or `compile.package_dir`, and why something was compiled anew.

torch keys its artifacts by the graph, flags, versions and hardware, and tells of a miss no more than that it was one.
Each start that compiled leaves a note of its plan and environment beside them, so that a later one can name the
difference.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from optbuilder.builder import Plan
from optbuilder.environment import UNFAIR, unfair
from optbuilder.foreign import read_json
from optbuilder.record import digest, write_json

KEPT_IN = ("cache_dir", "package_dir")  # the options of `compile` that say where its artifacts are
NOTES = "optbuilder"  # the folder of the notes


def artifacts(plan: Plan, counters: Mapping[str, Any], environment: Mapping[str, Any]) -> dict[str, Any] | None:
    """How many compiled graphs were found, how many were compiled, and why; None where they are kept nowhere.

    A start that compiled something leaves a note for the next one; one that found everything leaves nothing, so that
    a folder may be read-only.
    """
    options = next((t.options for t in plan.transforms if t.stage == "compile"), {})
    place = next((options[key] for key in KEPT_IN if options.get(key)), None)
    if place is None:
        return None
    folder = Path(place).expanduser() / NOTES
    found, anew = compiled(counters)
    if not anew:
        return {"found": found, "compiled": 0, "why": None}
    here = note(plan, environment)
    why = difference(earlier(folder), here)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / f"{digest(here)}.json", here)
    return {"found": found, "compiled": anew, "why": why}


def compiled(counters: Mapping[str, Any]) -> tuple[int, int]:
    """How many graphs were found compiled, and how many were compiled: inductor's, and packages made ahead of time."""
    made = counters["calls"].get("aot.compiled", 0)
    loaded = counters["calls"].get("aot.loaded", 0)
    return counters["cache_hits"] + loaded - made, counters["cache_misses"] + made


def note(plan: Plan, environment: Mapping[str, Any]) -> dict[str, Any]:
    """What the artifacts of a start depend on: the plan in words, and the environment."""
    run = {key: getattr(plan.run, key) for key in ("height", "width", "sizes", "batch_size", "batch_sizes")}
    stages = {t.stage: [t.choice, {k: v for k, v in t.options.items() if k not in KEPT_IN}] for t in plan.transforms}
    kept = {key: environment.get(key) for key in (*UNFAIR, "versions")}
    content = {"model": plan.model.repo_id, **{f"run.{k}": v for k, v in run.items()}, **stages}
    return json.loads(json.dumps({"plan": content, "environment": kept}, default=str))


def earlier(folder: Path) -> list[dict[str, Any]]:
    """The notes of earlier starts; what cannot be read is none."""
    found = []
    for file in sorted(folder.glob("*.json")):
        try:
            content = read_json(file)
        except (OSError, ValueError):
            continue
        if isinstance(content, dict) and all(isinstance(content.get(k), dict) for k in ("plan", "environment")):
            found.append(content)
    return found


def difference(starts: Sequence[Mapping[str, Any]], here: Mapping[str, Any]) -> str:
    """Why no earlier start left what this one needs, going by the one that was most alike."""
    if not starts:
        return "no earlier start left anything there"
    differences = [
        [*plans(start["plan"], here["plan"]), *unfair(start["environment"], here["environment"])] for start in starts
    ]
    nearest = min(differences, key=len)
    if not nearest:
        return "an earlier start was the same: what it left has gone, or was made with other flags of torch's own"
    return f"of the most alike start, {nearest[0]}"


def plans(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    keys = dict.fromkeys((*here, *there))
    return [f"{k} is {said(there.get(k))}, here {said(here.get(k))}" for k in keys if there.get(k) != here.get(k)]


def said(value: Any) -> str:
    return "left out" if value is None else json.dumps(value)
