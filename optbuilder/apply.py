"""Apply a plan to a pipeline and prove that each transform took effect."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from optbuilder.builder import Plan, Transform
from optbuilder.errors import NoEffect
from optbuilder.snapshot import Snapshot, as_loaded_without_techniques, difference, snapshot


@dataclass(frozen=True)
class Effect:
    """What a transform changed (`component.fact: [before, after]`), said, and took."""

    transform: str
    changes: dict[str, list[Any]]
    seconds: float
    notes: list[str] = field(default_factory=list)


def apply(plan: Plan, pipe: Any) -> tuple[Any, list[Effect]]:
    """Apply the plan's transforms in order to a pipeline that was loaded with `plan.load`.

    Returns the pipeline and each transform's effect. Raises `NoEffect` where one changed nothing that a snapshot can
    see, unless it declares why that is right.
    """
    loaded = snapshot(pipe)
    before, effects = loaded, []
    for transform in plan.transforms:
        reference = (
            as_loaded_without_techniques(loaded)
            if transform.technique.load(plan.model, **transform.options)
            else before
        )
        with notes_of(transform) as notes:
            start = time.perf_counter()
            pipe = transform.function(pipe, **transform.options)
            seconds = time.perf_counter() - start
        after = snapshot(pipe)
        effects.append(Effect(transform.name, _proven(plan, transform, reference, after, notes), seconds, notes))
        before = after
    return pipe, effects


def _proven(
    plan: Plan, transform: Transform, before: Snapshot, after: Snapshot, notes: list[str]
) -> dict[str, list[Any]]:
    changes = difference(before, after)
    reason = transform.technique.unchanged(plan.context(transform))
    if not changes and reason is None:
        raise NoEffect(
            f"{transform.name}: no effect: the pipeline is the same before and after. {' '.join(notes)}".strip()
        )
    if not changes:
        notes.append(f"unchanged: {reason}")
    return changes


@contextmanager
def notes_of(transform: Transform) -> Iterator[list[str]]:
    """Collect what the transform's module logs at INFO or above while it works."""
    notes: list[str] = []
    handler = logging.Handler(logging.INFO)
    handler.emit = lambda record: notes.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger(transform.function.__module__)
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield notes
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
