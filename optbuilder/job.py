"""One job, from a composed config to a finished run directory."""

from __future__ import annotations

import gc
import logging
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from optbuilder.artifacts import artifacts
from optbuilder.builder import Plan, resolve
from optbuilder.effects import Effect, apply
from optbuilder.environment import environment, process_age_s
from optbuilder.errors import NoEffect, Refused, UnexpectedHooks, failure
from optbuilder.foreign import filled, misfit, read_json
from optbuilder.measure import Memory
from optbuilder.noise import hush, to_run_log
from optbuilder.record import SCHEMA_VERSION, job_key, plan_json, write_images, write_json, write_videos
from optbuilder.request import Image
from optbuilder.runner import Result
from optbuilder.schema import MEASURED, MEASURED_PLAN, UNMEASURED, UNMEASURED_PLAN
from optbuilder.script import write_script
from optbuilder.track import send
from optbuilder.video import FPS

log = logging.getLogger(__name__)


@dataclass(repr=False)
class Outcome:
    """How a job ended: a status of the run directory, the reasons where it is not ok, and what was measured."""

    status: str
    directory: Path
    reasons: list[str] = field(default_factory=list)
    metrics: dict[str, Any] = field(default_factory=dict)
    plan: dict[str, Any] = field(default_factory=dict)
    pictures: list[Image] = field(default_factory=list)
    profile: str = ""

    def __repr__(self) -> str:
        from optbuilder.notebook import outcome_text

        return outcome_text(self)

    def _repr_html_(self) -> str:
        from optbuilder.notebook import outcome_html

        return outcome_html(self)


def generate(
    config: Mapping[str, Any], choices: Mapping[str, str], directory: Path, *, record: bool = True, bars: bool = True
) -> Outcome:
    """Plan, load, apply, run and record one job in `directory`. A failure is recorded as well, and does not raise.

    `record=False` computes and leaves nothing: of several processes that share a job, one records it. `bars=False`
    shows no progress, where a terminal has something else to show.
    """
    outcome = Outcome("failed", directory)
    try:
        plan = resolve(config, choices)
        outcome.plan = plan_json(plan, job_key(config))
        plan.require()
        if record:
            write_script(directory, plan)
        _run(plan, outcome, bars)
    except Refused as refused:
        outcome.status, outcome.reasons = "refused", refused.reasons
    except (NoEffect, UnexpectedHooks) as error:
        outcome.reasons = [str(error)]
    except KeyboardInterrupt:
        outcome.reasons = ["interrupted"]
        raise
    except Exception as error:  # whatever a library raises is this job's result, not the end of a sweep
        log.info("the job failed", exc_info=True)  # run.log has the traceback, the terminal one line
        outcome.reasons = [failure(error)]
    finally:
        outcome.metrics = {**_head(config, outcome), **outcome.metrics}
        if record:
            record_job(outcome)
    if record and config.get("track") and "latency" in outcome.metrics:
        send(config["track"], directory, outcome.plan, outcome.metrics)
    return outcome


def record_job(outcome: Outcome) -> None:
    """Write the run directory. metrics.json comes last: where it is, the rest is complete.

    Where that cannot be written (a full disk), the job has failed, and the short record of that is tried.
    """
    try:
        _write(outcome)
    except OSError as error:
        outcome.status, outcome.reasons, outcome.pictures = "failed", [failure(error)], []
        head = {key: value for key, value in outcome.metrics.items() if key in ("schema_version", "job_key")}
        outcome.metrics = {**head, "status": "failed", "reasons": outcome.reasons}
        with suppress(OSError):  # then nothing can be left, and the terminal alone tells
            write_json(outcome.directory / "metrics.json", outcome.metrics)


def _write(outcome: Outcome) -> None:
    write_json(outcome.directory / "plan.json", outcome.plan)
    if outcome.pictures:
        key, fps = outcome.plan["job_key"], outcome.plan["run"]["fps"] or FPS
        outcome.metrics["images"] = write_images(outcome.directory, outcome.pictures, key)
        if outcome.pictures[0].pixels.ndim == 4:
            outcome.metrics["videos"] = write_videos(outcome.directory, outcome.pictures, fps, key)
        outcome.pictures = []  # a grid keeps its outcomes to the end
    write_json(outcome.directory / "metrics.json", outcome.metrics)


def refused(directory: Path, reasons: list[str], *, record: bool = False) -> Outcome:
    """The outcome of a config that could not even be read as one."""
    outcome = Outcome("refused", directory, reasons)
    outcome.metrics = {"schema_version": SCHEMA_VERSION, "status": "refused", "reasons": reasons}
    if record:
        record_job(outcome)
    return outcome


def recorded(directory: Path) -> Outcome:
    """The outcome that a run directory tells of; `unreadable`, with the reason, where its record is none."""
    try:
        plan, metrics = read_record(directory)
    except (OSError, ValueError) as error:
        return Outcome("unreadable", directory, [f"its record cannot be read: {error}."])
    return Outcome(metrics["status"], directory, metrics["reasons"], metrics, plan)


def read_record(directory: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """plan.json and metrics.json of a run directory, with null for what may be missing.

    Raises `OSError` or `ValueError` where they are not there, or not what a run leaves.
    """
    plan, metrics = (read_json(directory / f"{name}.json") for name in ("plan", "metrics"))
    measured = isinstance(metrics, dict) and "latency" in metrics
    of_plan, of_metrics = (MEASURED_PLAN, MEASURED) if measured else (UNMEASURED_PLAN, UNMEASURED)
    if wrong := misfit(plan, of_plan, "plan.json") or misfit(metrics, of_metrics, "metrics.json"):
        raise ValueError(wrong)
    return {k: v for k, v in filled(plan, of_plan).items() if v is not None}, filled(metrics, of_metrics)


def failed(config: Mapping[str, Any], directory: Path, plan: dict[str, Any], reason: str) -> Outcome:
    """The recorded outcome of a job whose process ended before it could record anything."""
    outcome = Outcome("failed", directory, [reason], plan=plan)
    outcome.metrics = _head(config, outcome)
    record_job(outcome)
    return outcome


def _head(config: Mapping[str, Any], outcome: Outcome) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "status": outcome.status,
        "reasons": outcome.reasons,
        "job_key": job_key(config),
    }


def _run(plan: Plan, outcome: Outcome, bars: bool) -> None:
    hush()
    started_s = process_age_s()
    start = time.perf_counter()
    import diffusers  # noqa: F401 - the import is a phase of its own

    from optbuilder.show import progress
    from optbuilder.state import preserved

    phases = {"start_s": started_s, "import_s": time.perf_counter() - start}
    to_run_log()
    with preserved(), progress(bars and sys.stderr.isatty()) as show:
        _measured(plan, outcome, phases, show)
    gc.collect()  # modules and their hooks refer to each other; the next job needs the room


def _measured(plan: Plan, outcome: Outcome, phases: dict[str, Any], show: Any) -> None:
    from optbuilder.counters import counts
    from optbuilder.flops import denoiser, first_inputs, size
    from optbuilder.metrics import degraded, metrics
    from optbuilder.runner import kernels_called, profiled, run

    with counts() as graphs:
        pipe, effects, load_memory = _built(plan, phases, show)
        outcome.plan = plan_json(plan, outcome.plan["job_key"], effects)
        compiles = any(t.stage == "compile" for t in plan.transforms)
        show("first call: compiling, which can take minutes" if compiles else "first call", 0, 0)
        result = run(pipe, plan.run, call=plan.call, machine=plan.machine, graphs=graphs, show=show)
        counted = asdict(graphs())
    result.memory["load"] = load_memory
    if plan.run.profile:
        outcome.profile = profiled(pipe, plan.run, plan.call, outcome.directory)
    with first_inputs(denoiser(pipe)) as given:
        kernels = kernels_called(pipe, plan.run, plan.call)
    outcome.metrics = metrics(plan, pipe, result, phases, counted, kernels, effects)
    outcome.metrics["denoiser"] = size(denoiser(pipe), given[0]) if given else None
    outcome.metrics["environment"] = environment(plan.machine)
    outcome.metrics["artifacts"] = artifacts(plan, counted, outcome.metrics["environment"])
    outcome.pictures = result.images
    del pipe  # one copy of the weights at a time
    gc.collect()
    outcome.metrics["quality"] = _quality(plan, result, outcome.metrics, show)
    outcome.reasons = result.problems or degraded(plan, outcome.metrics["counters"])
    outcome.status = "invalid_output" if result.problems else "degraded" if outcome.reasons else "ok"


def _quality(plan: Plan, result: Result, measured: Mapping[str, Any], show: Any) -> dict[str, Any] | None:
    """What `run.compare` asks for."""
    from optbuilder.baseline import against_baseline, against_run, setup_seconds

    if plan.run.compare is None:
        return None
    phases, call_s = measured["phases"], measured["latency"]["call_s"]["median"]
    setup_s = setup_seconds(phases, phases["first_call_s"], call_s)
    if plan.run.compare != "baseline":
        return against_run(Path(plan.run.compare), plan, result, setup_s, measured["environment"])
    return against_baseline(plan, result, setup_s, show)


def _built(plan: Plan, phases: dict[str, Any], show: Any) -> tuple[Any, list[Effect], Memory]:
    """The loaded pipeline with the plan applied, its effects, and the memory that loading took."""
    from optbuilder.measure import peak_memory
    from optbuilder.pipeline import load

    show(f"loading {plan.model.repo_id}", 0, 0)
    start = time.perf_counter()
    with peak_memory(plan.machine.device) as memory:
        pipe = load(plan.model, plan.load, plan.load_device)
    phases["load_s"] = time.perf_counter() - start
    pipe, effects = apply(plan, pipe)
    phases["transforms_s"] = {effect.transform: effect.seconds for effect in effects}
    return pipe, effects, memory
