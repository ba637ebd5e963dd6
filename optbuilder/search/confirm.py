"""Measure the best again, within the budget: an answer rests on figures that did not choose it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    name = f"{one.name}_confirmed"
    repeats = [f"run.repeats={given.settings.confirm_repeats}", f"run.repeats_budget_s={max(1.0, spare_s):.0f}"]
    outcome = given.measure(given.cell(name, one.choice, given.reference(so_far), *repeats))
    wide_console().print(sweep_line(name, outcome), markup=False)
    return tried(given.directory / name, one.choice, outcome)


def confirmations(given: Search, so_far: Sequence[Tried]) -> list[tuple[Tried, Tried | None]]:
    """The finalists in the order of their need, each with its second measurement if that is there."""
    return _with_again(given, [*_needed(given, so_far), *_others(given, so_far)])


def _with_again(given: Search, finalists: Sequence[Tried]) -> list[tuple[Tried, Tried | None]]:
    found = []
    for one in {t.folder: t for t in finalists}.values():
        folder = given.directory / f"{one.name}_confirmed"
        there = (folder / "metrics.json").is_file()
        found.append((one, tried(folder, one.choice, recorded(folder)) if there else None))
    return found


def fits(given: Search, so_far: Sequence[Tried], choice: Choice) -> bool:
    """Whether a trial can end and leave room to measure the best (it may be this one) and the baseline again."""
    trial_s, needed = duration_s(so_far, choice), _needed(given, so_far)
    waiting = [one for one, again in _with_again(given, needed) if again is None]
    again_s = sum(t.seconds for t in waiting) or trial_s
    return trial_s + again_s + REPEATING * given.settings.budget_s <= given.left_s()


def duration_s(so_far: Sequence[Tried], choice: Choice) -> float:
    """How long a trial may take: as long as the longest one that compiled alike, or else compiled at all."""
    alike = [t for t in so_far if t.choice.get(DEAR) == choice.get(DEAR)]
    near = alike or [t for t in so_far if DEAR in t.choice] or so_far
    return max((t.seconds for t in near), default=0.0)


def _needed(given: Search, so_far: Sequence[Tried]) -> list[Tried]:
    fit = [t for t in so_far if t.within(given.settings.limits)]
    tops = [best(fit, objective) for objective in given.settings.objectives]
    return [*(t for t in tops if t is not None and t.choice), *(t for t in so_far if not t.choice)]


def _others(given: Search, so_far: Sequence[Tried]) -> list[Tried]:
    fit = [t for t in so_far if t.choice and t.within(given.settings.limits)]
    return [t for o in given.settings.objectives for t in sorted(fit, key=lambda t: t.figures[o])[:FINALISTS]]
