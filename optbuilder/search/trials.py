"""The trials of a search in Optuna's storage: what is known, what runs, and the next one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from optbuilder.job import recorded
from optbuilder.search.propose import Space
from optbuilder.search.tried import Choice, Tried, tried

LEFT = "none"  # a stage that is left as it is, as Optuna's parameter
FRESH = 60  # times the sampler may propose what is known already, before the space counts as tried


def opened(storage: str | None, directory: Path, question: Any) -> Any:
    """The study of this question: of a search that goes on, or of other workers at the same database."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    name = hashlib.sha256(json.dumps(question, sort_keys=True, default=str).encode()).hexdigest()[:12]
    study = optuna.create_study(
        storage=storage or f"sqlite:///{directory / 'study.db'}",
        study_name=name,
        load_if_exists=True,
        sampler=optuna.samplers.TPESampler(seed=0, multivariate=True),
    )
    if storage is None:  # nobody else can be at it: what ran when it stopped runs no more
        for trial in study.get_trials(states=(optuna.trial.TrialState.RUNNING,)):
            study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
    return study


def known(study: Any) -> list[Tried]:
    """What every finished trial measured, from the records that the jobs left."""
    finished = [t for t in study.trials if t.state.is_finished() and "folder" in t.user_attrs]
    folders = {Path(trial.user_attrs["folder"]): choice_of(trial.params) for trial in finished}
    there = {folder: choice for folder, choice in folders.items() if (folder / "metrics.json").is_file()}
    return [tried(folder.name, choice, recorded(folder)) for folder, choice in there.items()]


def running(study: Any) -> list[Choice]:
    return [choice_of(trial.params) for trial in study.trials if not trial.state.is_finished() and trial.params]


def choice_of(params: Mapping[str, str]) -> Choice:
    return {stage: option for stage, option in params.items() if option != LEFT}


def asked(study: Any, space: Space, choice: Choice) -> Any:
    """A trial of this choice."""
    from optuna.distributions import CategoricalDistribution

    study.enqueue_trial({stage: choice.get(stage, LEFT) for stage in space})
    return study.ask({stage: CategoricalDistribution([LEFT, *options]) for stage, options in space.items()})


def sampled(study: Any, space: Space, seen: Sequence[Choice], accepts: Any) -> Choice | None:
    """What Optuna's sampler would try next, if it is new and not refused; None where it finds nothing new."""
    from optuna.distributions import CategoricalDistribution
    from optuna.trial import TrialState

    distributions = {stage: CategoricalDistribution([LEFT, *options]) for stage, options in space.items()}
    for _ in range(FRESH):
        trial = study.ask(distributions)
        study.tell(trial, state=TrialState.PRUNED)
        choice = choice_of(trial.params)
        if dict(choice) not in [dict(each) for each in seen] and accepts(choice):
            return choice
    return None


def told(study: Any, trial: Any, found: Tried, objective: str, within: bool) -> None:
    """Give the trial's figure to the study."""
    from optuna.trial import TrialState

    trial.set_constraint("limits", 0.0 if within else 1.0)
    if objective in found.figures:
        study.tell(trial, found.figures[objective])
    else:
        study.tell(trial, state=TrialState.FAIL)
