"""Run a search: propose, plan, run isolated, as long as the budget lasts; then measure the finalists again."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optbuilder.grid import Cell, Compose, planned
from optbuilder.isolation import isolated
from optbuilder.job import Outcome
from optbuilder.overrides import assigned
from optbuilder.search.answer import Answer, answer, front, write_answer
from optbuilder.search.confirm import confirmations, confirmed, duration_s, fitting
from optbuilder.search.propose import Space, propose
from optbuilder.search.settings import SearchSettings
from optbuilder.search.trials import ended, known, measured, opened, running, sampled
from optbuilder.search.tried import Choice, Tried, best, tried, without
from optbuilder.show import sweep_line, wide_console

WAIT_S = 2.0
ENDING_S = 2.0  # for the report, the recipe and the script
NOTHING_YET = "nothing within the limits yet"


@dataclass(frozen=True)
class Search:
    """What stays the same from trial to trial."""

    settings: SearchSettings
    words: list[str]  # of the command line: they hold for every trial
    compose: Compose
    log_settings: Mapping[str, Any]
    directory: Path
    machine: str  # figures of other machines cannot be compared
    until: float  # when the budget is spent, on the clock of time.monotonic
    run: Callable[..., Outcome] = isolated

    def left_s(self) -> float:
        return self.until - ENDING_S - time.monotonic()

    def cell(self, name: str, choice: Choice, reference: Path | None = None, *more: str) -> Cell:
        words = [*self.words, *(f"{stage}={option}" for stage, option in choice.items()), "action=generate", *more]
        if reference is not None:
            words.append(assigned("run.compare", reference))
        return planned(name, words, self.compose)

    def measure(self, cell: Cell) -> Outcome:
        folder = self.directory / cell.name
        folder.mkdir(parents=True, exist_ok=True)
        handlers = {k: {**v, **({"filename": str(folder / "run.log")} if "filename" in v else {})}
                    for k, v in self.log_settings["handlers"].items()}  # fmt: skip
        return self.run(cell.config, cell.choices, folder, {**self.log_settings, "handlers": handlers})

    def reference(self, so_far: Sequence[Tried]) -> Path | None:
        """The folder of the baseline, once it is there: this worker's own, or else another's."""
        folders = [t.folder for t in so_far if not t.choice and t.ok]
        return next((f for f in folders if f.parent == self.directory.resolve()), next(iter(folders), None))


def search(given: Search, space: Space) -> Answer:
    """Try plans until the budget is spent or nothing is left that may win. Ctrl-C keeps everything and answers too."""
    settings = {k: v for k, v in vars(given.settings).items() if k not in ("budget", "storage")}
    study = opened(
        given.settings.storage, given.directory, [given.words, given.machine, settings], given.settings.objectives
    )
    stopped: list[int] = []
    finalists: list[Tried] = []
    with _noted(stopped):
        try:
            more = True
            while more and not stopped:
                more = _explored(given, study, space, stopped)
                finalists = [] if stopped else list(confirmed(given, known(study)))  # may leave time to explore more
            if not stopped:
                _leave_one_out(given, study, space, finalists)
        except BaseException:  # OmegaConf and SQLAlchemy make errors of their own of an interruption
            if not stopped:
                raise
            finalists = []
    tries = known(study)
    finalists = finalists or [t for _, t in confirmations(given, tries) if t is not None]
    found = answer(given.settings, tries, finalists, bool(stopped))
    write_answer(given.directory, given.settings, tries, found, lambda choice: given.cell("", choice).plan)
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


def _explored(given: Search, study: Any, space: Space, stopped: Sequence[int]) -> bool:
    """Run trials as long as they fit into the budget; whether there were any."""
    before = len(known(study))
    while not stopped and _step(given, study, space):
        pass
    return len(known(study)) > before


def _step(given: Search, study: Any, space: Space) -> bool:
    """One trial; False where nothing is left to try, or no time for it."""
    objectives, so_far, busy = given.settings.objectives, known(study), running(study)
    fits = fitting(given, so_far)
    if not fits({}):
        return False
    if not so_far and {} in busy:  # another worker measures what everything is compared with
        time.sleep(WAIT_S)
        ended(study)
        return True

    def accepts(choice: Choice) -> bool:
        return fits(choice) and not given.cell("", choice).reasons

    turn = len(so_far) % len(objectives)
    proposals = (
        propose(so_far, busy, space, objective, given.settings.limits, accepts)
        for objective in objectives[turn:] + objectives[:turn]
    )
    choice = next((found for found in proposals if found is not None), None)
    if choice is None and so_far:
        choice = sampled(study, space, [*(t.choice for t in so_far), *busy], accepts)
    if choice is None:
        return False
    measured(study, space, choice, objectives, lambda *trial: _trial(given, study, *trial))
    return True


def _trial(given: Search, study: Any, name: str, choice: Choice, trial: Any) -> Tried:
    """Run one plan and say how it ended, and what is the best so far."""
    folder, so_far = (given.directory / name).resolve(), known(study)
    trial.set_user_attr("folder", str(folder))
    outcome = given.measure(given.cell(name, choice, given.reference(so_far)))
    found = tried(folder, choice, outcome)
    trial.set_constraint("limits", 0.0 if found.within(given.settings.limits) else 1.0)
    _show(name, outcome, [*so_far, found], given.settings)
    return found


def _leave_one_out(given: Search, study: Any, space: Space, finalists: Sequence[Tried]) -> None:
    """Measure the winner without each of its techniques, as far as that is unknown and ends within the budget."""
    top = answer(given.settings, known(study), finalists, False).winner
    for stage in top.choice if top is not None else ():
        so_far, rest = known(study), without(top.choice, stage)
        new = rest not in [dict(t.choice) for t in so_far] and not given.cell("", rest).reasons
        if new and duration_s(so_far, rest) <= given.left_s():
            measured(study, space, rest, given.settings.objectives, lambda *trial: _trial(given, study, *trial))


def _show(name: str, outcome: Outcome, so_far: Sequence[Tried], settings: SearchSettings) -> None:
    """One line for the trial, with the best so far and the front."""
    fit = [t for t in so_far if t.within(settings.limits)]
    tops = [top.name for objective in settings.objectives if (top := best(fit, objective)) is not None]
    names = ", ".join(dict.fromkeys(tops))
    said = f"best so far: trial {names}; front: {', '.join(t.name for t in front(fit))}" if names else NOTHING_YET
    wide_console().print(f"{sweep_line(name, outcome)} ({said})", markup=False)
