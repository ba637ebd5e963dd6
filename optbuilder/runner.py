"""Run prompts through a pipeline: warm up, time, check, and keep the pictures."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from optbuilder.counters import Graphs
from optbuilder.measure import Call, Memory, peak_memory, timed_call
from optbuilder.settings import Run

MAX_WARMUP = 5  # calls beyond run.warmup while new graphs still appear


@dataclass(frozen=True)
class Image:
    """A picture (height, width, 3; floats in 0..1) with what reproduces it."""

    pixels: Any
    prompt: str
    seed: int


@dataclass
class Result:
    """Everything a run measured. `timed` has one entry per prompt and repeat."""

    images: list[Image]
    first: Call
    warmup: list[Call]
    timed: list[tuple[str, Call]]
    memory: dict[str, Memory] = field(default_factory=dict)
    graphs_before_timing: int = 0
    problems: list[str] = field(default_factory=list)


def run(
    pipe: Any,
    settings: Run,
    *,
    call: Mapping[str, Any] | None = None,
    device: str = "cpu",
    graphs: Callable[[], Graphs] = Graphs,
    show: Callable[[str, int, int], None] = lambda text, done, total: None,
) -> Result:
    """Generate every prompt `repeats` times after a warm-up with exactly the timed call's arguments.

    Warm-up goes on while new graphs appear, so that no compilation falls into a timed call. `call` are further
    arguments of the pipeline's call, `graphs` counts compiled graphs, `show(text, done, total)` reports progress.
    """

    def generate(text: str, number: int) -> tuple[Call, Any]:
        with timed_call(pipe, device, lambda done, total: show(text, done, total)) as times:
            output = pipe(**arguments(settings, number, call or {}))
        return times, getattr(output, "images", None) if hasattr(output, "images") else output.frames

    with peak_memory(device) as warmup_memory:
        first, _ = generate("first call", 0)
        warmup = _warm_up(generate, settings.warmup, graphs)
    before = graphs().graphs
    with peak_memory(device) as memory:
        outputs, timed = _timed(generate, settings)
    images = [image for number, pixels in enumerate(outputs) for image in _images(pixels, settings, number)]
    result = Result(images, first, warmup, timed, {"warmup": warmup_memory, "run": memory}, before)
    result.problems = [problem for image in images if (problem := invalid(image))]
    return result


def _warm_up(generate: Callable[[str, int], Any], calls: int, graphs: Callable[[], Graphs]) -> list[Call]:
    """At least `calls` calls, the first one counted, and more until one makes no new graph."""
    warmup: list[Call] = []
    known = 0
    while len(warmup) + 1 < calls or (graphs().graphs > known and len(warmup) < calls + MAX_WARMUP):
        known = graphs().graphs
        warmup.append(generate(f"warm-up {len(warmup) + 1}", 0)[0])
    return warmup


def _timed(generate: Callable[[str, int], Any], settings: Run) -> tuple[list[Any], list[tuple[str, Call]]]:
    outputs, timed = [], []
    for repeat in range(settings.repeats):
        for number, prompt in enumerate(settings.prompts):
            times, pixels = generate(
                f"repeat {repeat + 1}/{settings.repeats}, prompt {number + 1}/{len(settings.prompts)}", number
            )
            timed.append((prompt, times))
            if repeat == 0:
                outputs.append(pixels)
    return outputs, timed


def arguments(settings: Run, number: int, call: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of the pipeline's call for prompt `number`. Each image has a CPU generator of its own, so that it
    comes out the same alone, in a batch, and on another device."""
    import torch

    chosen = {
        "prompt": settings.prompts[number],
        "negative_prompt": settings.negative_prompt,
        "height": settings.height,
        "width": settings.width,
        "num_inference_steps": settings.num_inference_steps,
        "guidance_scale": settings.guidance_scale,
    }
    seeds = [settings.seed + number * settings.images_per_prompt + i for i in range(settings.images_per_prompt)]
    return {
        **{key: value for key, value in chosen.items() if value is not None},
        "num_images_per_prompt": settings.images_per_prompt,
        "generator": [torch.Generator("cpu").manual_seed(seed) for seed in seeds],
        "output_type": "np",
        **call,
    }


def _images(pixels: Any, settings: Run, number: int) -> list[Image]:
    first = settings.seed + number * settings.images_per_prompt
    return [Image(picture, settings.prompts[number], first + i) for i, picture in enumerate(pixels)]


def invalid(image: Image) -> str | None:
    """Why a picture cannot be right: numbers that are none, or the same value everywhere."""
    import numpy as np

    if not np.isfinite(image.pixels).all():
        return f"the picture of {image.prompt!r} (seed {image.seed}) has values that are not finite"
    if float(np.ptp(image.pixels)) == 0.0:
        return f"the picture of {image.prompt!r} (seed {image.seed}) has the same value everywhere"
    return None


def spread(samples: list[float]) -> dict[str, Any]:
    """n, median, 90th percentile, minimum and every sample."""
    ordered = sorted(samples)
    p90 = statistics.quantiles(ordered, n=10, method="inclusive")[-1] if len(ordered) > 1 else ordered[0]
    return {"n": len(samples), "median": statistics.median(samples), "p90": p90, "min": ordered[0], "samples": samples}


def latency(result: Result, images_per_call: int) -> dict[str, Any]:
    """The timed calls in seconds, whole and by part, and pictures per second."""
    calls = [call for _, call in result.timed]
    whole = spread([c.seconds for c in calls])
    parts = {part: spread([getattr(c, part) for c in calls]) for part in ("text_encode", "denoise", "decode")}
    steps = [step for c in calls for step in c.steps]
    return {
        "call_s": whole,
        **{f"{part}_s": values for part, values in parts.items()},
        "step_s": spread(steps) if steps else None,
        "images_per_s": images_per_call / whole["median"],
        "calls": [{"prompt": prompt, **asdict(call)} for prompt, call in result.timed],
    }
