"""The trials of a search in Optuna's storage: what is known, what runs, and the next one."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from optbuilder.errors import Refused
from optbuilder.job import recorded
from optbuilder.record import digest
from optbuilder.search.propose import Space
from optbuilder.search.tried import Choice, Tried, tried

LEFT = "none"  # a stage that is left as it is, as Optuna's parameter
FRESH = 60  # times the sampler may propose what is known already, before the space counts as tried
BEAT_S = 15  # how often a worker says that it lives; silent for four times as long, its trial counts as failed


class NoFigures(Exception):
    """A trial that left no figures."""


@contextmanager
def _hushed() -> Iterator[None]:
    """Optuna warns that heartbeats are experimental, and that a trial asked for has none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def opened(storage: str | None, directory: Path, question: Any, objectives: Sequence[str]) -> Any:
    """The study of this question: of a search that goes on, or of other workers at the same database.

    Raises `Refused` for a database that is none, or does not answer.
    """
    import optuna
    from optuna.exceptions import StorageInternalError
    from sqlalchemy import make_url
    from sqlalchemy.exc import SQLAlchemyError

    optuna.logging.set_verbosity(optuna.logging.ERROR)  # a failed trial has its line already
    where = storage or f"sqlite:///{directory / 'study.db'}"
    try:
        beats = {"heartbeat_interval": BEAT_S, "grace_period": 4 * BEAT_S} if storage else {}  # for other workers
        with _hushed():
            database = optuna.storages.RDBStorage(where, **beats)
        study = optuna.create_study(
            storage=database,
            study_name=digest(question),
            load_if_exists=True,
            directions=["minimize"] * len(objectives),
            sampler=optuna.samplers.TPESampler(seed=0, multivariate=True),
        )
    except (SQLAlchemyError, StorageInternalError) as error:
        reason = str(error).splitlines()[0]
        raise Refused(
            f"{make_url(where).render_as_string()!r}: it holds no study ({reason}). "
            "Use another folder or search.storage."
        ) from None
    if storage is None:  # nobody else can be at it: what ran when it stopped runs no more
        for trial in study.get_trials(states=(optuna.trial.TrialState.RUNNING,)):
            study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
    return study


def known(study: Any) -> list[Tried]:
    """What every finished trial measured, from the records that the jobs left."""
    finished = [t for t in study.trials if t.state.is_finished() and "folder" in t.user_attrs]
    trials = {Path(trial.user_attrs["folder"]): trial for trial in finished}
    return [
        tried(folder, choice_of(trial.params), recorded(folder), trial.duration.total_seconds())
        for folder, trial in trials.items()
        if (folder / "metrics.json").is_file()
    ]


def running(study: Any) -> list[Choice]:
    """The plans that workers are at, or that wait for one."""
    unfinished = [trial for trial in study.trials if not trial.state.is_finished()]
    return [choice_of(t.params or t.system_attrs.get("fixed_params", {})) for t in unfinished]


def ended(study: Any) -> None:
    """Count the trials of workers that are silent as failed, so that their plans are proposed again."""
    import optuna

    with _hushed():
        optuna.storages.fail_stale_trials(study)


def choice_of(params: Mapping[str, str]) -> Choice:
    return {stage: option for stage, option in params.items() if option != LEFT}


def measured(
    study: Any, space: Space, choice: Choice, objectives: Sequence[str], run: Callable[[str, Choice, Any], Tried]
) -> None:
    """Run one trial by `run(name, choice, trial)`: of this choice, or of one that another worker left waiting."""

    def objective(trial: Any) -> list[float]:
        chosen = {stage: trial.suggest_categorical(stage, [LEFT, *options]) for stage, options in space.items()}
        found = run(str(trial.number), choice_of(chosen), trial)
        if any(name not in found.figures for name in objectives):
            raise NoFigures
        return [found.figures[name] for name in objectives]

    study.enqueue_trial({stage: choice.get(stage, LEFT) for stage in space})
    study.optimize(objective, n_trials=1, catch=(NoFigures,))


def sampled(study: Any, space: Space, seen: Sequence[Choice], accepts: Callable[[Choice], bool]) -> Choice | None:
    """What Optuna's sampler would try next, if it is new and not refused; None where it finds nothing new."""
    from optuna.distributions import CategoricalDistribution
    from optuna.trial import TrialState

    distributions = {stage: CategoricalDistribution([LEFT, *options]) for stage, options in space.items()}
    for _ in range(FRESH):
        with _hushed():
            trial = study.ask(distributions)
        study.tell(trial, state=TrialState.PRUNED)
        choice = choice_of(trial.params)
        if dict(choice) not in [dict(each) for each in seen] and accepts(choice):
            return choice
    return None
