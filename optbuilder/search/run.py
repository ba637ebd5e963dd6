"""Run a search: propose, plan, run isolated, until the budget is spent; then measure the finalists again."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optbuilder.errors import Refused
from optbuilder.grid import Cell, Compose, planned
from optbuilder.isolation import isolated
from optbuilder.job import Outcome, recorded
from optbuilder.options import options
from optbuilder.overrides import assigned, group_of
from optbuilder.search.answer import Answer, answer, write_answer
from optbuilder.search.propose import DEAR, Space, propose
from optbuilder.search.settings import SearchSettings
from optbuilder.search.trials import asked, known, opened, running, sampled, told
from optbuilder.search.tried import Choice, Tried, best, tried
from optbuilder.show import sweep_line, wide_console

EXPLORING = 0.75  # of the budget; the rest is for measuring the finalists again
FINALISTS = 3
# Stages that make a call slower: they are tried only where memory counts. The first ones are tried first.
SAVING_MEMORY = ("vae", "offload")
ORDER = ("precision", "attention", "cache", "fusion", "layout", "quant", "vae", "offload", "kernels", "scheduler")


@dataclass(frozen=True)
class Search:
    """What stays the same from trial to trial."""

    settings: SearchSettings
    words: list[str]  # of the command line: they hold for every trial
    compose: Compose
    log_settings: Mapping[str, Any]
    directory: Path
    run: Callable[..., Outcome] = isolated


def search(given: Search, space: Space) -> Answer:
    """Try plans until the budget is spent or nothing is left that may win. Ctrl-C keeps everything and answers too."""
    start = time.monotonic()
    question = [given.words, {k: v for k, v in vars(given.settings).items() if k not in ("budget", "storage")}]
    study = opened(given.settings.storage, given.directory, question)
    stopped: list[int] = []
    with _noted(stopped):
        try:
            while time.monotonic() - start < EXPLORING * given.settings.budget_s and not stopped:
                if not _step(given, study, space):
                    break
            finalists = [] if stopped else list(confirmed(given, known(study), start))
        except KeyboardInterrupt:
            finalists = []
    tries = known(study)
    finalists = finalists or [t for _, t in _confirmations(given, tries) if t is not None]
    found = answer(given.settings, tries, finalists, bool(stopped))
    write_answer(given.directory, given.settings, tries, found, lambda choice: _cell(given, "", choice).plan)
    return found


@contextmanager
def _noted(stopped: list[int]) -> Iterator[None]:
    """Note Ctrl-C beside raising it: in the callback of a weak reference Python drops what is raised."""

    def note(number: int, frame: Any) -> None:
        stopped.append(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _step(given: Search, study: Any, space: Space) -> bool:
    """One trial; False where nothing is left to try."""
    objective, limits, so_far = given.settings.objective, given.settings.limits, known(study)

    def accepts(choice: Choice) -> bool:
        return not _cell(given, "", choice).reasons

    choice = propose(so_far, running(study), space, objective, limits, accepts)
    if choice is None and so_far:
        choice = sampled(study, space, [*(t.choice for t in so_far), *running(study)], accepts)
    if choice is None:
        return False
    trial = asked(study, space, choice)
    name = str(trial.number)
    trial.set_user_attr("folder", str((given.directory / name).resolve()))
    try:
        outcome = _run(given, _cell(given, name, choice, _reference(given, so_far)))
    except KeyboardInterrupt:
        from optuna.trial import TrialState

        study.tell(trial, state=TrialState.FAIL)
        raise
    found = tried(name, choice, outcome)
    told(study, trial, found, objective, found.within(limits))
    _show(name, outcome, [*so_far, found], given.settings)
    return True


def _reference(given: Search, so_far: Sequence[Tried]) -> Path | None:
    """The folder of the baseline, once it is there."""
    name = next((t.name for t in so_far if not t.choice and t.ok), None)
    return None if name is None else (given.directory / name).resolve()


def _cell(given: Search, name: str, choice: Choice, reference: Path | None = None, *more: str) -> Cell:
    words = [*given.words, *(f"{stage}={option}" for stage, option in choice.items()), "action=generate", *more]
    if reference is not None:
        words.append(assigned("run.compare", reference))
    return planned(name, words, given.compose)


def _run(given: Search, cell: Cell) -> Outcome:
    folder = given.directory / cell.name
    folder.mkdir(parents=True, exist_ok=True)
    handlers = {k: {**v, **({"filename": str(folder / "run.log")} if "filename" in v else {})}
                for k, v in given.log_settings["handlers"].items()}  # fmt: skip
    return given.run(cell.config, cell.choices, folder, {**given.log_settings, "handlers": handlers})


def confirmed(given: Search, so_far: Sequence[Tried], start: float) -> Iterator[Tried]:
    """The finalists, and the baseline, measured again with the repeats that the answer's figures need."""
    done = _confirmations(given, so_far)
    for one, again in done:
        if again is not None:
            yield again
        elif not one.choice or time.monotonic() - start < given.settings.budget_s:
            name, reference = f"{one.name}_confirmed", _reference(given, so_far)
            left_s = max(5.0, given.settings.budget_s - (time.monotonic() - start)) / len(done)
            repeats = [f"run.repeats={given.settings.confirm_repeats}", f"run.repeats_budget_s={left_s:.0f}"]
            cell = _cell(given, name, one.choice, reference, *repeats)
            outcome = _run(given, cell)
            wide_console().print(sweep_line(name, outcome), markup=False)
            yield tried(name, one.choice, outcome)


def _confirmations(given: Search, so_far: Sequence[Tried]) -> list[tuple[Tried, Tried | None]]:
    """The baseline and the finalists, each with its second measurement if that is there."""
    objective, limits = given.settings.objective, given.settings.limits
    fit = sorted((t for t in so_far if t.choice and t.within(limits)), key=lambda t: t.figures[objective])
    top = best(fit, objective)
    chosen = [t for t in so_far if not t.choice] + ([top] if top else [])
    chosen += [t for t in fit[:FINALISTS] if t is not top]
    found = []
    for one in chosen:
        folder = given.directory / f"{one.name}_confirmed"
        there = (folder / "metrics.json").is_file()
        found.append((one, tried(folder.name, one.choice, recorded(folder)) if there else None))
    return found


def _show(name: str, outcome: Outcome, so_far: Sequence[Tried], settings: SearchSettings) -> None:
    """One line for the trial, and the best so far."""
    top = best([t for t in so_far if t.within(settings.limits)], settings.objective)
    said = "nothing within the limits yet" if top is None else f"best so far: trial {top.name}"
    wide_console().print(f"{sweep_line(name, outcome)} ({said})", markup=False)


def space_of(
    config: Mapping[str, Any], nodes: Mapping[str, Mapping[str, Any]], words: Sequence[str], settings: SearchSettings
) -> Space:
    """The options of every stage that the plan accepts here, without the stages fixed on the command line."""
    fixed = {group_of(word) for word in words}
    memory = settings.objective == "memory" or "memory" in settings.limits.most
    left = [s for s in (*ORDER, DEAR) if s in nodes and s not in fixed and (memory or s not in SAVING_MEMORY)]
    usable = [o for o in options(config, {s: nodes[s] for s in left}) if not o.reasons]
    usable = [o for o in usable if o.lossless or not settings.lossless]
    found = {stage: [o.name for o in usable if o.stage == stage and o.name != "fp32"] for stage in left}
    for stage, allowed in (settings.space or {}).items():
        wrong = sorted(set(allowed) - {*nodes.get(stage, {}), "none", "fp32"})
        if wrong:
            raise Refused(f"search.space.{stage}: there is no {stage}={wrong[0]}. Use {', '.join(nodes[stage])}.")
        if stage in found:
            found[stage] = [name for name in found[stage] if name in allowed]
    return {stage: names for stage, names in found.items() if names}
