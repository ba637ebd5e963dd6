"""Every option of every stage: usable here with this model or not, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from optbuilder.builder import resolve
from optbuilder.machine import Machine


@dataclass(frozen=True)
class Option:
    """One option of a stage. `reasons` is empty where it is usable."""

    stage: str
    name: str
    lossless: bool | None
    needs: str
    source: str
    reasons: tuple[str, ...] = ()


def options(
    config: Mapping[str, Any], nodes: Mapping[str, Mapping[str, Mapping[str, Any]]], machine: Machine | None = None
) -> list[Option]:
    """Plan the job once for each option, the other stages as `config` has them. `nodes` holds the config of each option
    by stage and name."""
    found = []
    for stage, choices in nodes.items():
        for name, node in choices.items():
            plan = resolve({**config, stage: node}, {**dict.fromkeys(config["stages"], "?"), stage: name}, machine)
            reasons = [
                r.removeprefix(f"{stage}={name}: ")
                for r in plan.refusals
                if r.startswith((f"{stage}={name}:", f"{stage}."))
            ]
            option = Option(stage, name, None, "", "", tuple(reasons))
            for transform in (t for t in plan.transforms if t.stage == stage):
                technique, chosen = transform.technique, transform.options
                option = replace(
                    option,
                    lossless=technique.is_lossless(chosen),
                    needs=technique.describe_needs(chosen),
                    source=technique.source,
                )
            found.append(option)
    return found
