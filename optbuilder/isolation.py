"""A job in a process of its own: no flag, graph, peak or leak passes to the next one, and a crash ends only one."""

from __future__ import annotations

import json
import logging.config
import multiprocessing
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from optbuilder.builder import resolve
from optbuilder.errors import Refused
from optbuilder.job import Outcome, failed, generate
from optbuilder.record import job_key, plan_json


def isolated(
    config: Mapping[str, Any], choices: Mapping[str, str], directory: Path, log_settings: Mapping[str, Any]
) -> Outcome:
    """Run one job in a process of its own and wait for it; gives what it recorded.

    The process is forked from a server that has imported torch and diffusers already. The plan is made here, so that a
    job that is refused starts none. A crash, a kill or `run.timeout_s` is a failed job with its reason.
    """
    try:
        plan = resolve(config, choices)
        plan.require()
    except Refused:
        return generate(config, choices, directory)
    process = _context().Process(target=_job, args=(config, dict(choices), directory, log_settings), daemon=False)
    process.start()
    try:
        process.join(plan.run.timeout_s)
        reason = _why_it_ended(process.exitcode, plan.run.timeout_s)
    finally:
        process.kill()
        process.join()
    if reason is None:
        return recorded(directory)
    return failed(config, directory, plan_json(plan, job_key(config)), reason)


def _context() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["optbuilder.preload"])
    return context


def _job(
    config: Mapping[str, Any], choices: Mapping[str, str], directory: Path, log_settings: Mapping[str, Any]
) -> None:
    logging.config.dictConfig(dict(log_settings))
    generate(config, choices, directory)


def _why_it_ended(exitcode: int | None, timeout_s: float | None) -> str | None:
    """Why a process ended without having recorded its job; None where it ended well."""
    if exitcode is None:
        return f"the job took longer than run.timeout_s={timeout_s} and was ended"
    if exitcode < 0:
        name = signal.Signals(-exitcode).name
        hint = ": the system may have run out of memory" if name == "SIGKILL" else ""
        return f"the job's process was ended by {name}{hint}"
    return None if exitcode == 0 else f"the job's process ended with exit code {exitcode}"


def recorded(directory: Path) -> Outcome:
    """The outcome that a run directory tells of."""
    plan, metrics = (json.loads((directory / f"{name}.json").read_text()) for name in ("plan", "metrics"))
    return Outcome(metrics["status"], directory, metrics["reasons"], metrics, plan)


def earlier(config: Mapping[str, Any], directory: Path) -> Outcome | None:
    """What a sweep that goes on finds of a job: its outcome if it ended well, None where it is to run (again).

    Raises `Refused` where the directory holds another job: of another config, or of other versions.
    """
    if not (directory / "metrics.json").is_file():
        return None
    found = recorded(directory)
    if found.metrics.get("job_key") != job_key(config):
        raise Refused(
            f"{str(directory)!r} holds another job (its config or versions differ). Use another hydra.sweep.dir."
        )
    if found.status != "ok":
        return None
    return Outcome("skipped", directory, [], found.metrics, found.plan)
