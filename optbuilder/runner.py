"""Run prompts through a pipeline: warm up, time, check, and keep the pictures."""

from __future__ import annotations

import inspect
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from optbuilder.counters import Counts, attention_kernels
from optbuilder.energy import joules, used
from optbuilder.machine import Machine
from optbuilder.measure import Call, Memory, peak_memory, timed_call
from optbuilder.record import completed
from optbuilder.request import Image, Shape, arguments, call_shape, calls, each_shape, images_of, invalid, remembered
from optbuilder.samples import width
from optbuilder.settings import Run

MAX_WARMUP = 5  # calls beyond run.warmup while new graphs still appear


@dataclass
class Result:
    """Everything a run measured. `timed` has one entry per repeat and call, with the call's number among all calls of
    the run; `shapes` has, for each of these calls, its height, width and number of prompts."""

    images: list[Image]
    first: Call
    warmup: list[Call]
    timed: list[tuple[int, Call]]
    memory: dict[str, Memory] = field(default_factory=dict)
    graphs_before_timing: int = 0
    joules_per_image: dict[str, float] | None = None
    problems: list[str] = field(default_factory=list)
    shapes: list[Shape] = field(default_factory=list)


def run(
    pipe: Any,
    settings: Run,
    *,
    call: Mapping[str, Any] | None = None,
    machine: Machine = Machine(),  # noqa: B008 - frozen: a CPU
    graphs: Callable[[], Counts] = Counts,
    show: Callable[[str, int, int], None] = lambda text, done, total: None,
) -> Result:
    """Generate every prompt `repeats` times, in every declared shape, after a warm-up with exactly the timed calls'
    arguments that covers each shape.

    Warm-up goes on while new graphs appear, so that no compilation falls into a timed call. `call` are further
    arguments of the pipeline's call, `graphs` counts compiled graphs, `show(text, done, total)` reports progress.
    """

    device, every = machine.device, calls(settings)

    def generate(text: str, shape: Run, number: int) -> tuple[Call, Any]:
        reset_caches(pipe)
        asked = arguments(pipe, shape, number, call or {})
        with timed_call(pipe, device, lambda done, total: show(text, done, total)) as times:
            output = pipe(**asked)
        return times, output

    if settings.reuse_prompt_embeds:
        pipe.encode_prompt = remembered(pipe.encode_prompt)
    with peak_memory(device) as warmup_memory:
        first, _ = generate("first call", *every[0])
        warmup = _warm_up(generate, settings, graphs)
    before, energy = graphs().graphs, joules(machine)
    with peak_memory(device) as memory:
        outputs, timed = _timed(generate, settings, every)
    images = [image for output, of in zip(outputs, every, strict=True) for image in images_of(output, *of)]
    energy_j = used(energy, joules(machine), len(images) * len(timed) // len(every))
    result = Result(images, first, warmup, timed, {"warmup": warmup_memory, "run": memory}, before, energy_j)
    result.problems = [problem for image in images if (problem := invalid(image))]
    result.shapes = [call_shape(*call) for call in every]
    return result


def kernels_called(pipe: Any, settings: Run, call: Mapping[str, Any]) -> dict[str, int]:
    """The attention kernels of one call that stops after its first step, where the pipeline can be stopped."""
    once = arguments(pipe, *calls(settings)[0], call)
    if "callback_on_step_end" in inspect.signature(type(pipe).__call__).parameters:
        once["callback_on_step_end"] = _stop
    reset_caches(pipe)
    pipe.set_progress_bar_config(disable=True)
    return attention_kernels(lambda: pipe(**once))


def profiled(pipe: Any, settings: Run, call: Mapping[str, Any], directory: Path) -> str:
    """Write the trace of one call (trace.json.gz, for chrome://tracing or Perfetto); gives the top operators by their
    own time as a table."""
    from torch.profiler import ProfilerActivity, profile

    kinds = [ProfilerActivity.CPU]
    kinds += [ProfilerActivity.CUDA] if pipe.device.type == "cuda" else []
    reset_caches(pipe)
    with profile(activities=kinds, record_shapes=True) as profiler:
        pipe(**arguments(pipe, *calls(settings)[0], call))
    with completed(directory / "trace.json.gz") as file:
        profiler.export_chrome_trace(str(file))
    own = "self_cuda_time_total" if len(kinds) > 1 else "self_cpu_time_total"
    return profiler.key_averages().table(sort_by=own, row_limit=15, max_name_column_width=60)


def _stop(pipe: Any, step: int, timestep: Any, tensors: dict[str, Any]) -> dict[str, Any]:
    pipe._interrupt = True
    return tensors


def reset_caches(pipe: Any) -> None:
    """Forget what step caches hold: pipelines do so at the end of a call, but not of one that was interrupted."""
    for part in getattr(pipe, "components", {}).values():
        if hasattr(part, "_reset_stateful_cache"):
            part._reset_stateful_cache()


def _warm_up(generate: Callable[..., Any], settings: Run, graphs: Callable[[], Counts]) -> list[Call]:
    """In every shape at least one call and `settings.warmup`, the very first call of all counted, and more until one
    makes no new graph."""
    warmup: list[Call] = []
    least = max(1, settings.warmup)
    for index, (shape, number) in enumerate(each_shape(settings)):
        made, known = int(index == 0), 0 if index == 0 else graphs().graphs
        while made < least or (graphs().graphs > known and made < least + MAX_WARMUP):
            known = graphs().graphs
            warmup.append(generate(f"warm-up {len(warmup) + 1}", shape, number)[0])
            made += 1
    return warmup


def _timed(
    generate: Callable[..., Any], settings: Run, every: Sequence[tuple[Run, int]]
) -> tuple[list[Any], list[tuple[int, Call]]]:
    outputs, timed = [], []
    for repeat in repeats(settings, timed, every):
        for number, (shape, batch) in enumerate(every):
            text = f"repeat {repeat + 1} of {settings.repeats}, call {number + 1} of {len(every)}"
            times, output = generate(text, shape, batch)
            timed.append((number, times))
            if repeat == 0:
                outputs.append(output)
    return outputs, timed


def repeats(settings: Run, timed: list[tuple[int, Call]], every: Sequence[tuple[Run, int]]) -> Iterator[int]:
    """As many repeats as asked; with `auto`, until the median's interval is narrow enough in each shape, or the budget
    is spent."""
    if settings.repeats != "auto":
        yield from range(int(settings.repeats))
        return
    start, repeat = time.perf_counter(), 0
    while repeat < 3 or time.perf_counter() - start < settings.repeats_budget_s:
        yield repeat
        repeat += 1
        found = by_shape(timed, [call_shape(*call) for call in every])
        if repeat >= 3 and max(width([c.seconds for c in calls]) for calls in found.values()) <= settings.repeats_width:
            return


def samples(result: Result, part: str = "seconds") -> list[float]:
    """Seconds of each timed call, or of a part of it. Where shapes differ, the mean call of each pass through all of
    them: the median of calls of several kinds would be one kind's."""
    seconds = [getattr(call, part) for _, call in result.timed]
    each = len(result.shapes) if len(set(result.shapes)) > 1 else 1
    return [statistics.fmean(seconds[first : first + each]) for first in range(0, len(seconds), each)]


def by_shape(timed: Sequence[tuple[int, Call]], shapes: Sequence[Any]) -> dict[Any, list[Call]]:
    """The timed calls of each shape; `shapes` has the shape of each call number."""
    found: dict[Any, list[Call]] = {shape: [] for shape in shapes}
    for number, call in timed:
        found[shapes[number]].append(call)
    return found
