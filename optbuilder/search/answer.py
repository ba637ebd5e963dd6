"""What a search found: the best plan, what each of its techniques contributes, and files to use it with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from optbuilder.builder import Plan
from optbuilder.front import unbeaten
from optbuilder.recipe import write_recipe
from optbuilder.record import write_json
from optbuilder.script import write_script
from optbuilder.search.settings import BATCH, Limits, SearchSettings
from optbuilder.search.tried import Choice, Tried, best, gain, without

BETTER = {"latency": "faster", "throughput": "more pictures per second", "memory": "less memory",
          "cold_start": "sooner", "energy": "less energy"}  # fmt: skip
ONCE = "It was measured once only: the budget was spent, or the search stopped."


@dataclass(frozen=True)
class Answer:
    """The best for each objective, measured again where that was possible; and sentences for people."""

    winners: Mapping[str, Tried]
    said: list[str] = field(default_factory=list)
    stopped: bool = False

    @property
    def winner(self) -> Tried | None:
        """The best for the first objective."""
        return next(iter(self.winners.values()), None)


def answer(settings: SearchSettings, known: Sequence[Tried], finalists: Sequence[Tried], stopped: bool) -> Answer:
    """The best for each objective of what was measured twice and keeps every limit both times; else of the trials."""
    limits, objectives = settings.limits, settings.objectives
    again = [t for t in finalists if t.within(limits)] if any(t.choice for t in finalists) else []
    broken = [t for t in finalists if not t.within(limits)]
    once = [t for t in known if t.within(limits) and not _lost(t, broken)]
    start = next((t for t in finalists if not t.choice), None) or next((t for t in known if not t.choice), None)
    if start is None or any(objective not in start.figures for objective in objectives):
        return Answer({}, ["The baseline gave no figures to compare with.", *others(known)], stopped)
    tops = {objective: best(again, objective) or best(once, objective) for objective in objectives}
    winners = {objective: top for objective, top in tops.items() if top is not None}
    if not winners:
        return Answer(
            {}, ["Nothing that was tried keeps every limit.", *closest(known, limits), *others(known)], stopped
        )
    said = []
    for objective, top in winners.items():
        head = f"For {objective}: " if len(winners) > 1 else ""
        said += [f"{head}{sentence(top, start, objective)}", *contributions(top, known, objective)]
        if top not in finalists:
            said.append(ONCE)
    return Answer(winners, [*said, *others(known)], stopped)


def closest(known: Sequence[Tried], limits: Limits) -> list[str]:
    """For each limit that nothing kept alone: the nearest that anything came."""
    measured, said = [t for t in known if t.ok], []
    for name, most in limits.most.items():
        nearest = min((t for t in measured if name in t.figures), key=lambda t: t.figures[name], default=None)
        if nearest is not None and nearest.figures[name] > most:
            said.append(
                f"The least {name} was {nearest.figures[name]:.4g}, by {title(nearest)}; the limit is {most:.4g}."
            )
    return said


def _lost(one: Tried, broken: Sequence[Tried]) -> bool:
    return any(dict(one.choice) == dict(t.choice) for t in broken)


def sentence(top: Tried, start: Tried, objective: str) -> str:
    """The winner against the baseline: how many times better, quality, memory, and when it pays back."""
    if not top.choice:
        return "The baseline: nothing that was tried is better by more than the measurements can tell."
    times, low, high = gain(top, start, objective)
    parts = [f"{title(top)}: {times:.2f}x {BETTER[objective]} than the baseline ({low:.2f} to {high:.2f})"]
    if "psnr" in top.figures:
        same = top.figures["psnr"] == float("inf")
        parts.append("the same pictures" if same else f"PSNR {top.figures['psnr']:.1f} dB")
    if objective != "memory":
        parts.append(f"{(top.figures['memory'] / start.figures['memory'] - 1) * 100:+.0f} % memory")
    if "break_even" in top.figures:
        parts.append(f"pays back after {top.figures['break_even']:.0f} images")
    return ", ".join(parts)


def title(one: Tried) -> str:
    return " + ".join(f"{stage}={option}" for stage, option in one.choice.items()) or "baseline"


def contributions(top: Tried, known: Sequence[Tried], objective: str) -> list[str]:
    """What is lost where one technique of the winner is left out, of those that were measured so."""
    said = []
    same = next((t for t in known if dict(t.choice) == dict(top.choice)), top)
    for stage, option in top.choice.items():
        rest = without(top.choice, stage)
        lacking = next((t for t in known if dict(t.choice) == rest and objective in t.figures), None)
        if lacking is not None:
            times, low, high = gain(same, lacking, objective)
            tie = "; the measurements cannot tell" if low <= 1 <= high else ""
            said.append(f"{stage}={option} makes it {times:.2f}x better ({low:.2f} to {high:.2f}){tie}.")
    return said


def others(known: Sequence[Tried]) -> list[str]:
    lost: dict[str, int] = {}
    for one in known:
        lost[one.status] = lost.get(one.status, 0) + 1
    return [f"Tried: {', '.join(f'{count} {status}' for status, count in sorted(lost.items()))}."]


def write_answer(
    directory: Path, settings: SearchSettings, known: Sequence[Tried], found: Answer, plan_of: Callable[[Choice], Plan]
) -> None:
    """Leave recipe.yaml and script.py of the winner (for a second objective recipe_<objective>.yaml), answer.json,
    results.csv and report.html."""
    from optbuilder.report.page import write_report
    from optbuilder.results import write_results

    chosen = {o: {"job": top.name, "choice": dict(top.choice)} for o, top in found.winners.items()}
    fronts = [t.name for t in front(known)]
    winner = next(iter(chosen.values()), None)
    write_json(directory / "answer.json", {"winner": winner, "winners": chosen, "said": found.said, "front": fronts})
    for number, (objective, top) in enumerate(found.winners.items()):
        plan, name = plan_of(top.choice), "recipe" if number == 0 else f"recipe_{objective}"
        more = [f"{key}={value}" for key, value in top.choice.items() if key == BATCH]  # no part of a stage
        write_recipe(directory / f"{name}.yaml", plan, f"{title(top)}, for {objective}", more)
        if number == 0:
            write_script(directory, plan)
    if known:
        write_results(directory)
        write_report([directory], directory / "report.html")


def front(known: Sequence[Tried]) -> list[Tried]:
    """The plans that no other one beats in latency, memory and PSNR together."""

    def figures(one: Tried) -> tuple[float, float, float]:
        return one.figures["latency"], one.figures["memory"], -one.figures.get("psnr", float("inf"))

    return unbeaten([t for t in known if t.ok], figures)
