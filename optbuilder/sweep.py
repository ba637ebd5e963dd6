"""Run a grid: everything planned first, baselines before and after, what is there already left as it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from optbuilder.errors import Refused
from optbuilder.grid import Cell, Compose, baselines, cells, in_order
from optbuilder.job import Outcome, record_job, recorded, refused
from optbuilder.overrides import assigned, group_of
from optbuilder.record import plan_json
from optbuilder.report.page import write_report
from optbuilder.results import jobs, write_results
from optbuilder.settings import SweepSettings
from optbuilder.show import print_plan
from optbuilder.watch import announce, watched

# What sweep.retry leaves as it is when a grid goes on.
KEPT = {"none": {"ok", "skipped", "refused", "failed", "invalid_output", "degraded"},
        "failed": {"ok", "skipped", "refused"}, "refused": {"ok", "skipped"}, "all": set()}  # fmt: skip


def sweep(
    grid: Sequence[list[str]], settings: SweepSettings, compose: Compose, launch: Callable[..., Any], directory: Path
) -> list[Outcome]:
    """Plan every cell, launch what is to run, and leave results.csv; gives how every cell ended.

    Raises `Refused` where the directory holds results of another config or of other versions.
    """
    with alone_in(directory):
        return _sweep(grid, settings, compose, launch, directory)


@contextmanager
def alone_in(directory: Path) -> Iterator[None]:
    """Hold the grid's directory: of two starts that go on in it at once, each would run the other's jobs too."""
    try:
        with FileLock(directory / ".lock").acquire(blocking=False):
            yield
    except Timeout:
        raise Refused(
            f"{str(directory)!r}: another start of this grid is at work there. "
            "Wait for it, or use another hydra.sweep.dir."
        ) from None


def _sweep(
    grid: Sequence[list[str]], settings: SweepSettings, compose: Compose, launch: Callable[..., Any], directory: Path
) -> list[Outcome]:
    found = cells(grid, settings.ladder, compose)
    references = baselines(found, compose) if settings.baseline else []
    everything = [*found, *(cell for cell in references if cell not in found)]
    standing = {cell.name for cell in everything if stands(cell, directory, settings.retry)}
    for cell in everything:
        if not cell.runs and cell.name not in standing:
            record_idle(cell, directory / cell.name)
    todo = [cell for cell in in_order([c for c in everything if c.runs]) if cell.name not in standing]
    again = [replace(cell, name=f"{cell.name}_again", baseline=cell) for cell in references if todo]
    first = [cell for cell in todo if cell in references]
    announce(everything, standing, todo)
    try:
        with watched([*todo, *again], directory):
            for batch in (first, [cell for cell in todo if cell not in first], again):
                if batch:
                    launch([launched(cell, directory) for cell in batch], initial_job_idx=0)
    finally:
        if any(directory.glob("*/metrics.json")):  # none yet, if the first job was interrupted
            write_results(directory)
            write_report([directory], directory / "report.html")
    return list(jobs(directory).values())


def plan_only(grid: Sequence[list[str]], settings: SweepSettings, compose: Compose) -> list[Outcome]:
    """Print the plan of every cell that would run; gives how each stands. Nothing is run or written."""
    outcomes = []
    for cell in cells(grid, settings.ladder, compose):
        plan = plan_json(cell.plan, "") if cell.plan else {}
        outcomes.append(Outcome(cell.status, Path(), cell.why_idle, plan=plan))
        if cell.runs:
            words = [word for word in cell.words if group_of(word) != "action"]
            print(f"job {cell.name}: {' '.join(words) or 'as configured'}")
            print_plan(plan)
    return outcomes


def stands(cell: Cell, directory: Path, retry: str) -> bool:
    """Whether an earlier start of this grid has left a result of the cell that is to be kept."""
    folder = directory / cell.name
    if not (folder / "metrics.json").is_file() or (earlier := recorded(folder)).status == "unreadable":
        return False
    if cell.config and earlier.metrics.get("job_key") != cell.job_key:
        raise Refused(
            f"{str(folder)!r} holds another job (its config or versions differ). Use another hydra.sweep.dir."
        )
    return earlier.status in KEPT[retry]


def record_idle(cell: Cell, folder: Path) -> None:
    """Leave the record of a cell that does not run: it is refused, or another one does the same."""
    folder.mkdir(exist_ok=True)
    outcome = refused(folder, cell.why_idle)
    outcome.status = outcome.metrics["status"] = cell.status
    if cell.config:
        outcome.metrics["job_key"] = cell.job_key
    if cell.plan:
        outcome.plan = plan_json(cell.plan, cell.job_key)
    record_job(outcome)


def launched(cell: Cell, directory: Path) -> list[str]:
    """The overrides that run this cell: in its own folder, compared with its baseline unless told otherwise."""
    where = {"hydra.sweep.dir": directory.resolve(), "hydra.sweep.subdir": cell.name}  # wherever it runs
    reference = cell.baseline
    if reference not in (None, cell) and cell.config["run"]["compare"] is None:
        folder = (directory / reference.name).resolve()
        if (folder / "metrics.json").is_file() and recorded(folder).status == "ok":
            where["run.compare"] = folder
    return [*cell.words, *(assigned(key, value) for key, value in where.items())]
