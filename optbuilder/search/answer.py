"""What a search found: the best plan, what each of its techniques contributes, and files to use it with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import le
from pathlib import Path

from optbuilder.builder import Plan
from optbuilder.recipe import write_recipe
from optbuilder.record import write_json
from optbuilder.script import write_script
from optbuilder.search.settings import SearchSettings
from optbuilder.search.tried import Choice, Tried, best, gain


@dataclass(frozen=True)
class Answer:
    """The winner, measured again where that was possible, or None; and sentences for people."""

    winner: Tried | None
    said: list[str] = field(default_factory=list)
    stopped: bool = False


def answer(settings: SearchSettings, known: Sequence[Tried], finalists: Sequence[Tried], stopped: bool) -> Answer:
    """The best of what was measured twice and keeps every limit both times; else the best of the trials."""
    objective, limits = settings.objective, settings.limits
    again = [t for t in finalists if t.within(limits)]
    broken = [t for t in finalists if not t.within(limits)]
    top = best(again, objective) or best([t for t in known if t.within(limits) and not _lost(t, broken)], objective)
    start = next((t for t in finalists if not t.choice), None) or next((t for t in known if not t.choice), None)
    if top is None or start is None or objective not in start.figures:
        return Answer(None, ["Nothing that was tried keeps every limit."], stopped)
    return Answer(top, [sentence(top, start, settings), *contributions(top, known, objective), *others(known)], stopped)


def _lost(one: Tried, broken: Sequence[Tried]) -> bool:
    return any(dict(one.choice) == dict(t.choice) for t in broken)


def sentence(top: Tried, start: Tried, settings: SearchSettings) -> str:
    """The winner against the baseline: how many times better, quality, memory."""
    objective = settings.objective
    words = {"latency": "faster", "memory": "less memory", "cold_start": "sooner", "energy": "less energy"}[objective]
    if not top.choice:
        return "The baseline: nothing that was tried is better by more than the measurements can tell."
    times, low, high = gain(top, start, objective)
    parts = [f"{title(top)}: {times:.2f}x {words} than the baseline ({low:.2f} to {high:.2f})"]
    if "psnr" in top.figures:
        same = top.figures["psnr"] == float("inf")
        parts.append("the same pictures" if same else f"PSNR {top.figures['psnr']:.1f} dB")
    if objective != "memory":
        parts.append(f"{(top.figures['memory'] / start.figures['memory'] - 1) * 100:+.0f} % memory")
    return ", ".join(parts)


def title(one: Tried) -> str:
    return " + ".join(f"{stage}={option}" for stage, option in one.choice.items()) or "baseline"


def contributions(top: Tried, known: Sequence[Tried], objective: str) -> list[str]:
    """What is lost where one technique of the winner is left out, of those that were measured so."""
    said = []
    same = next((t for t in known if dict(t.choice) == dict(top.choice)), top)
    for stage, option in top.choice.items():
        rest = {s: o for s, o in top.choice.items() if s != stage}
        without = next((t for t in known if dict(t.choice) == rest and objective in t.figures), None)
        if without is not None:
            times, low, high = gain(same, without, objective)
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
    """Leave recipe.yaml and script.py of the winner, answer.json, results.csv and report.html."""
    from optbuilder.report.page import write_report
    from optbuilder.results import write_results

    winner = found.winner and {"job": found.winner.name, "choice": dict(found.winner.choice)}
    fronts = [t.name for t in front(known)]
    write_json(directory / "answer.json", {"winner": winner, "said": found.said, "front": fronts})
    if found.winner is not None:
        plan = plan_of(found.winner.choice)
        write_recipe(directory / "recipe.yaml", plan, found.said[0])
        write_script(directory, plan)
    if known:
        write_results(directory)
        write_report([directory], directory / "report.html")


def front(known: Sequence[Tried]) -> list[Tried]:
    """The plans that no other one beats in latency, memory and PSNR together."""

    def figures(one: Tried) -> tuple[float, float, float]:
        return one.figures["latency"], one.figures["memory"], -one.figures.get("psnr", float("inf"))

    def beaten(one: Tried) -> bool:
        own = figures(one)
        return any(figures(o) != own and all(map(le, figures(o), own)) for o in ok)

    ok = [t for t in known if t.ok]
    return [t for t in ok if not beaten(t)]
