"""Measure the best again, within the budget: an answer rests on figures that did not choose it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from optbuilder.job import recorded
from optbuilder.search.propose import DEAR
from optbuilder.search.tried import Choice, Tried, best, tried
from optbuilder.show import sweep_line, wide_console

if TYPE_CHECKING:
    from optbuilder.search.run import Search

FINALISTS = 3  # for each objective
REPEATING = 0.1  # of the budget: what the best and the baseline have for repeats beyond those of their trials


def confirmed(given: Search, so_far: Sequence[Tried]) -> Iterator[Tried]:
    """The best for each objective, the baseline and the other finalists, each measured again with the repeats that the
    answer's figures need, as far as that ends within the budget."""
    found = confirmations(given, so_far)
    yield from (again for _, again in found if again is not None)
    waiting = [one for one, again in found if again is None]
    for number, one in enumerate(waiting):
        if one.seconds <= (left_s := given.left_s()):
            spare_s = left_s - sum(t.seconds for t in waiting[number:])
            yield _again(given, so_far, one, spare_s / len(waiting[number:]))


def _again(given: Search, so_far: Sequence[Tried], one: Tried, spare_s: float) -> Tried:
    folder = _folder(given, one)
    repeats = [f"run.repeats={given.settings.confirm_repeats}", f"run.repeats_budget_s={max(1.0, spare_s):.0f}"]
    outcome = given.measure(given.cell(folder.name, one.choice, given.reference(so_far), *repeats))
    wide_console().print(sweep_line(folder.name, outcome), markup=False)
    return tried(folder, one.choice, outcome)


def confirmations(given: Search, so_far: Sequence[Tried]) -> list[tuple[Tried, Tried | None]]:
    """The finalists in the order of their need, each with its second measurement if that is there."""
    finalists = {t.folder: t for t in [*_needed(given, so_far), *_others(given, so_far)]}.values()
    return [(one, _second(given, one) if _has_second(given, one) else None) for one in finalists]


def _second(given: Search, one: Tried) -> Tried:
    folder = _folder(given, one)
    return tried(folder, one.choice, recorded(folder))


def _has_second(given: Search, one: Tried) -> bool:
    return (_folder(given, one) / "metrics.json").is_file()


def _folder(given: Search, one: Tried) -> Path:
    return given.directory / f"{one.name}_confirmed"


def fitting(given: Search, so_far: Sequence[Tried]) -> Callable[[Choice], bool]:
    """Whether the trial of a choice can end and leave room to measure the best (it may be this one) and the baseline
    again: a function, since many choices are asked about when the same is known."""
    waiting_s = sum(t.seconds for t in _needed(given, so_far) if not _has_second(given, t))

    def fits(choice: Choice) -> bool:
        trial_s = duration_s(so_far, choice)
        return trial_s + (waiting_s or trial_s) + REPEATING * given.settings.budget_s <= given.left_s()

    return fits


def duration_s(so_far: Sequence[Tried], choice: Choice) -> float:
    """How long a trial may take: as long as the longest one that compiled alike, or else compiled at all."""
    alike = [t for t in so_far if t.choice.get(DEAR) == choice.get(DEAR)]
    near = alike or [t for t in so_far if DEAR in t.choice] or so_far
    return max((t.seconds for t in near), default=0.0)


def _needed(given: Search, so_far: Sequence[Tried]) -> list[Tried]:
    fit = [t for t in so_far if t.within(given.settings.limits)]
    tops = [best(fit, objective) for objective in given.settings.objectives]
    needed = [*(t for t in tops if t is not None and t.choice), *(t for t in so_far if not t.choice)]
    return list({t.folder: t for t in needed}.values())


def _others(given: Search, so_far: Sequence[Tried]) -> list[Tried]:
    fit = [t for t in so_far if t.choice and t.within(given.settings.limits)]
    return [t for o in given.settings.objectives for t in sorted(fit, key=lambda t: t.figures[o])[:FINALISTS]]
