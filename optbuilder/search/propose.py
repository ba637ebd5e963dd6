"""What to try next: cheap before dear, single techniques before their combinations, and nothing that cannot win.

A function of what is known and nothing else: a search that goes on, or several workers, ask the same question.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations

from optbuilder.search.settings import BATCH, Limits
from optbuilder.search.tried import Choice, Tried, best, gain, without

DEAR = "compile"  # the stage whose trials cost minutes: it comes last
# Techniques that may lose alone and win compiled: the compiler fuses what they add.
NEED_COMPILING = ("quant", "fusion", "layout")
SURVIVORS = 2  # eager plans that are compiled
Space = Mapping[str, Sequence[str]]


def propose(
    known: Sequence[Tried], running: Sequence[Choice], space: Space, objective: str, limits: Limits,
    accepts: Callable[[Choice], bool],
) -> Choice | None:  # fmt: skip
    """The next plan that is not tried, running or refused; None where nothing is left that may win."""
    seen = [*({**t.choice} for t in known), *({**choice} for choice in running)]
    for choice in candidates(known, space, objective, limits):
        if dict(choice) not in seen and accepts(choice):
            return choice
    return None


def candidates(known: Sequence[Tried], space: Space, objective: str, limits: Limits) -> Iterator[Choice]:
    """Every plan worth trying as far as is known now, the most promising kinds first."""
    yield {}
    stages = [stage for stage in space if stage != DEAR and (stage == BATCH or "." not in stage)]
    singles = [{stage: option} for stage in stages for option in space[stage]]
    yield from singles
    eager = [t for t in known if DEAR not in t.choice]
    if (start := next((t for t in eager if not t.choice), None)) is None:
        return
    alone = singles_within(known, start, objective, limits)
    gained = [t for t in alone if gain(t, start, objective)[0] > 1]
    yield from united(gained, eager, objective, limits)
    yield from compiled(known, space, eager, objective, limits)
    if top := best([t for t in known if t.within(limits)], objective):
        yield from tuned(top, space)
        for stage in top.choice:  # what each technique of the best contributes, and whether it is better without
            yield without(top.choice, stage)
    may_have = [t for t in alone if gain(t, start, objective)[2] > 1]  # the measurements cannot tell
    yield from united(may_have, eager, objective, limits)
    yield from ({**one.choice, **other.choice} for one, other in combinations(may_have, 2))


def singles_within(known: Sequence[Tried], start: Tried, objective: str, limits: Limits) -> list[Tried]:
    """The single techniques that keep the quality, the best one of each stage, the most helpful first."""
    quality = Limits(least=limits.least)
    alone = [t for t in known if len(t.choice) == 1 and DEAR not in t.choice and t.within(quality)]
    alone = sorted((t for t in alone if objective in t.figures), key=lambda t: -gain(t, start, objective)[0])
    stages = dict.fromkeys(stage for t in alone for stage in t.choice)
    return [next(t for t in alone if stage in t.choice) for stage in stages]


def united(alone: Sequence[Tried], eager: Sequence[Tried], objective: str, limits: Limits) -> Iterator[Choice]:
    """The best so far with each other one, then the first ones all together."""
    top = best([t for t in eager if t.within(Limits(least=limits.least))], objective)
    for one in alone:
        if top is not None and not set(one.choice) & set(top.choice):
            yield {**top.choice, **one.choice}
    for count in range(2, len(alone) + 1):
        yield {stage: option for t in alone[:count] for stage, option in t.choice.items()}


def compiled(
    known: Sequence[Tried], space: Space, eager: Sequence[Tried], objective: str, limits: Limits
) -> Iterator[Choice]:
    """The best eager plans compiled in every way, then the best of these with what may win only compiled."""
    fit = sorted((t for t in eager if t.within(Limits(least=limits.least)) and objective in t.figures),
                 key=lambda t: t.figures[objective])  # fmt: skip
    for survivor in fit[:SURVIVORS]:
        yield from ({**survivor.choice, DEAR: option} for option in space.get(DEAR, ()))
    done = [t for t in known if DEAR in t.choice and t.within(Limits(least=limits.least))]
    if (top := best(done, objective)) is None:
        return
    for stage in NEED_COMPILING:
        yield from ({**top.choice, stage: option} for option in space.get(stage, ()) if top.choice.get(stage) != option)
    yield from ({**top.choice, DEAR: option} for option in space.get(DEAR, ()))


def tuned(top: Tried, space: Space) -> Iterator[Choice]:
    """The best with other values of its techniques' own options (`cache.threshold`)."""
    for key, values in space.items():
        if "." in key and key.partition(".")[0] in top.choice:
            yield from ({**top.choice, key: value} for value in values if top.choice.get(key) != value)
