"""A grid before it runs: every cell composed and planned, equal cells found, the rest ordered by what they share."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from optbuilder.baseline import KEPT
from optbuilder.builder import Plan, resolve
from optbuilder.errors import Refused
from optbuilder.folders import CONF
from optbuilder.overrides import explained, group_of
from optbuilder.permissions import require_permission
from optbuilder.recipe import with_recipe
from optbuilder.record import job_key, plan_key

Compose = Callable[[list[str]], DictConfig]


@dataclass
class Cell:
    """One job of a grid: the folder it leaves its record in, its overrides, and its plan or the reasons against it."""

    name: str
    words: list[str]
    config: Mapping[str, Any] = field(default_factory=dict)
    choices: Mapping[str, str] = field(default_factory=dict)
    plan: Plan | None = None
    reasons: list[str] = field(default_factory=list)
    same_as: Cell | None = None
    baseline: Cell | None = None

    @property
    def runs(self) -> bool:
        """Whether there is anything to run: it is not refused, and no other cell does the same."""
        return self.plan is not None and not self.reasons and self.same_as is None

    @property
    def status(self) -> str:
        """How it ends if it does not fail."""
        return "ok" if self.runs else "skipped" if self.same_as else "refused"

    @property
    def why_idle(self) -> list[str]:
        """Why there is nothing to run."""
        return self.reasons or ([f"does the same as job {self.same_as.name}"] if self.same_as else [])

    @property
    def job_key(self) -> str:
        return job_key(self.config)


def planned(name: str, words: list[str], compose: Compose) -> Cell:
    """One cell, composed and resolved; what is wrong with it is in its reasons."""
    cell = Cell(name, words)
    try:
        composed = compose(words)
        cell.config, cell.choices = with_recipe(plain(composed), composed.hydra.runtime.choices, words)
        require_permission(cell.config, words)
        cell.plan = resolve(cell.config, cell.choices)
        cell.reasons = cell.plan.refusals
    except Refused as refused:
        cell.reasons = refused.reasons
    except (HydraException, OmegaConfBaseException) as error:
        cell.reasons = [explained(error, CONF, words)]
    return cell


def plain(composed: DictConfig) -> dict[str, Any]:
    """The job's own part of a composed config, resolved."""
    own = composed.copy()
    with open_dict(own):
        own.pop("hydra", None)
    return OmegaConf.to_container(own, resolve=True, throw_on_missing=True)  # type: ignore[return-value]


def cells(grid: Sequence[list[str]], ladder: Sequence[str], compose: Compose) -> list[Cell]:
    """Every cell of the grid in its order; the second of two that do the same names the first.

    A ladder makes a row of cells of each, the next word added to those before that are not refused.
    """
    first: dict[str, Cell] = {}
    found: list[Cell] = []
    for words in grid:
        taken = list(words)
        for rung in ([], *([word] for word in ladder)):
            cell = planned(str(len(found)), [*taken, *rung], compose)
            if not cell.reasons:
                taken += rung
            if cell.runs and (other := first.setdefault(plan_key(cell.plan), cell)) is not cell:
                cell.same_as = other
            found.append(cell)
    return found


def baselines(found: Sequence[Cell], compose: Compose) -> list[Cell]:
    """The cell without techniques for every model and run of the grid: one of the grid, or else one of its own."""
    known = {plan_key(cell.plan): cell for cell in found if cell.runs}
    chosen: dict[tuple[str, ...], Cell] = {}
    for cell in found:
        if cell.runs and (words := tuple(untreated(cell))) not in chosen:
            new = planned(f"baseline_{len(chosen)}", list(words), compose)
            chosen[words] = known.get(plan_key(new.plan), new) if new.runs else new
        cell.baseline = chosen.get(words) if cell.runs else None
    return list({id(cell): cell for cell in chosen.values() if cell.runs}.values())


def untreated(cell: Cell) -> list[str]:
    """A cell's overrides with every stage left as it is."""
    stages = [stage for stage in cell.config["stages"] if stage not in KEPT]
    left = [word for word in cell.words if group_of(word) not in stages]
    return [*left, *(f"{stage}={'fp32' if stage == 'precision' else 'none'}" for stage in stages)]


def in_order(found: Sequence[Cell]) -> list[Cell]:
    """The cells by what is dear to set up: those that load the same weights, then compile alike, stand together."""
    return sorted(found, key=lambda cell: list(_dear(cell.plan)))


def _dear(plan: Plan) -> Iterator[str]:
    yield plan.model.repo_id
    yield json.dumps(plan.load, sort_keys=True, default=str)
    options = {t.stage: json.dumps([t.choice, t.options], sort_keys=True, default=str) for t in plan.transforms}
    yield from (options.get(stage, "") for stage in ("compile", "quant", "fusion", "attention", "layout"))
