"""Apply a plan to a pipeline and prove that each transform took effect."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from optbuilder.builder import Plan, Transform
from optbuilder.errors import NoEffect, UnexpectedHooks
from optbuilder.snapshot import as_loaded_without_techniques, difference, snapshot


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
    see, unless it declares why that is right, and `UnexpectedHooks` where one moved components under hooks on the side.
    """
    loaded = snapshot(pipe)
    at_load = difference(as_loaded_without_techniques(loaded), loaded)
    before, effects = loaded, []
    for transform in plan.transforms:
        with notes_of(transform) as notes:
            start = time.perf_counter()
            pipe = transform.function(pipe, **transform.options)
            seconds = time.perf_counter() - start
        after = snapshot(pipe)
        shown = {k: v for k, v in at_load.items() if k.rpartition(".")[2] in transform.technique.load_shows}
        changes = {**shown, **difference(before, after)}
        _prove(plan, transform, changes, notes)
        effects.append(Effect(transform.name, changes, seconds, notes))
        before = after
    return pipe, effects


def _prove(plan: Plan, transform: Transform, changes: dict[str, list[Any]], notes: list[str]) -> None:
    reason = transform.technique.unchanged(plan.context(transform))
    if not changes and reason is None:
        said = f" {' '.join(notes)}" if notes else ""
        raise NoEffect(f"{transform.name}: no effect: the pipeline is the same before and after.{said}")
    if not changes:
        notes.append(f"unchanged: {reason}")
    # torch's own hooks (as transformers uses to collect outputs) move nothing; accelerate's and diffusers' do.
    hooked = [fact for fact, (_, now) in changes.items() if fact.endswith(".hooks") and set(now or ()) - {"pytorch"}]
    if hooked and not transform.technique.adds_hooks:
        raise UnexpectedHooks(
            f"{transform.name}: it put hooks that nobody asked for: {hooked[0]} {changes[hooked[0]]}."
        )


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
