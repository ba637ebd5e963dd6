"""A job in a process of its own: no flag, graph, peak or leak passes to the next one, and a crash ends only one."""

from __future__ import annotations

import hashlib
import logging.config
import multiprocessing
import os
import signal
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing import connection
from pathlib import Path
from typing import Any

import psutil
from filelock import FileLock

from optbuilder.builder import resolve
from optbuilder.errors import Refused
from optbuilder.job import Outcome, failed, generate, recorded
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
    with alone_on(plan.machine.device):
        process.start()
        try:
            process.join(plan.run.timeout_s)
            reason = _why_it_ended(process.exitcode, plan.run.timeout_s)
        finally:
            end(process.pid)
            process.join()
    if reason is None and (directory / "metrics.json").is_file():
        return recorded(directory)
    reason = reason or f"the job's process could not write its record to {str(directory)!r}: is the disk full?"
    return failed(config, directory, plan_json(plan, job_key(config)), reason)


def alone_on(device: str) -> FileLock:
    """Waits while a job of any other grid on this machine runs on the same device (a CPU: the same cores).

    Two jobs that time themselves at once measure each other. The lock ends with the process that holds it.
    """
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", "") if device != "cpu" else sorted(os.sched_getaffinity(0))
    name = hashlib.sha256(f"{device} {seen}".encode()).hexdigest()[:12]
    return FileLock(Path(tempfile.gettempdir(), f"optbuilder-{name}.lock"), mode=0o666)


def _context() -> Any:
    multiprocessing.set_start_method(
        "forkserver", force=True
    )  # a child asks for the parent's: joblib's is none it knows
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["optbuilder.preload"])
    return context


def end(pid: int) -> None:
    """Kill a process with all that it started: a compiler that hangs would stay."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for each in (*process.children(recursive=True), process):
            with suppress(psutil.NoSuchProcess):
                each.kill()


def _end_with_parent() -> None:
    """Wait for the end of the process that started this job, and end too: nobody waits for the result, and the next
    start of the grid runs the job again."""
    connection.wait([multiprocessing.parent_process().sentinel])  # type: ignore[union-attr]
    end(os.getpid())


def _job(
    config: Mapping[str, Any], choices: Mapping[str, str], directory: Path, log_settings: Mapping[str, Any]
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which ends this job
    threading.Thread(target=_end_with_parent, daemon=True).start()
    logging.config.dictConfig(dict(log_settings))
    generate(config, choices, directory, bars=False)


def _why_it_ended(exitcode: int | None, timeout_s: float | None) -> str | None:
    """Why a process ended without having recorded its job; None where it ended well."""
    if exitcode is None:
        return f"the job took longer than run.timeout_s={timeout_s} and was ended"
    if exitcode < 0:
        name = signal.Signals(-exitcode).name
        hint = ": the system may have run out of memory" if name == "SIGKILL" else ""
        return f"the job's process was ended by {name}{hint}"
    return None if exitcode == 0 else f"the job's process ended with exit code {exitcode}"
