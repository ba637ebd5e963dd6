"""What a run measured, as the data of metrics.json. Seconds and bytes throughout."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from optbuilder.baseline import setup_seconds
from optbuilder.builder import Plan
from optbuilder.effects import Effect
from optbuilder.runner import Result, by_shape, samples
from optbuilder.samples import spread
from optbuilder.snapshot import snapshot


def metrics(
    plan: Plan,
    pipe: Any,
    result: Result,
    phases: Mapping[str, Any],
    counted: Mapping[str, Any],
    kernels: Mapping[str, int],
    effects: Sequence[Effect],
) -> dict[str, Any]:
    """Phases, latency, memory and counters of a finished run."""
    times = latency(result)
    return {
        "phases": {
            **phases,
            "first_call_s": result.first.seconds,
            "compile_s": max(0.0, result.first.seconds - _steady(result)) if counted["graphs"] else None,
            "warmup_s": [call.seconds for call in result.warmup],
            "first_image_s": phases["import_s"] + setup_seconds(phases, result.first.seconds, 0.0),
        },
        "latency": times,
        "memory": {
            "phases": {phase: asdict(memory) for phase, memory in result.memory.items()},
            "weights_bytes": {n: s["bytes"] for n, s in snapshot(pipe).items() if "bytes" in s},
        },
        "energy": {"joules_per_image": result.joules_per_image} if result.joules_per_image else None,
        "quality": None,
        "counters": {
            **counted,
            "graphs_in_timed_calls": counted["graphs"] - result.graphs_before_timing,
            "graphs_predicted": plan.graphs and plan.graphs.graphs,
            "attention_kernels": kernels,
            "quantized": quantized(effects),
        },
    }


def quantized(effects: Sequence[Effect]) -> dict[str, Any]:
    """What the quant stage did: kinds of weights, and bytes as stored, each before and after."""
    changes = next((effect.changes for effect in effects if effect.transform.startswith("quant=")), {})
    return {fact: change for fact, change in changes.items() if fact.endswith((".weights", ".bytes"))}


def degraded(plan: Plan, counters: Mapping[str, Any]) -> list[str]:
    """Why a run that ended well was not what was asked for: techniques that the counters do not show at work."""
    reasons = [(t.name, t.technique.ran(t.options, counters)) for t in plan.transforms]
    return [f"{name}: {reason}." for name, reason in reasons if reason] + _other_than_predicted(plan, counters)


def _other_than_predicted(plan: Plan, counters: Mapping[str, Any]) -> list[str]:
    """Where shapes are declared, another number of graphs than the plan predicts is a recompilation nobody planned."""
    declared = plan.graphs if plan.run.sizes or plan.run.batch_sizes else None
    if declared is None or declared.graphs in (None, counters["graphs"]):
        return []
    said, made = f"{declared.graphs} were predicted for the declared shapes", f"{counters['graphs']} were compiled"
    return [f"graphs: {said}, {made} ({declared.why})."]


def latency(result: Result) -> dict[str, Any]:
    """The timed calls in seconds, whole and by part, pictures per second over all of them, and the same of each shape.
    Where there are several, a sample is the mean of a pass through all calls, and each shape has its own warnings."""
    calls = [call for _, call in result.timed]
    once = len({number for number, _ in result.timed})
    whole, found = spread(samples(result)), shapes(result)
    if len(found) > 1:
        whole["warnings"] = [f"{shape['name']}: {text}" for shape in found for text in shape["call_s"]["warnings"]]
    parts = {part: spread(samples(result, part)) for part in ("text_encode", "denoise", "decode")}
    steps = [step for c in calls for step in c.steps]
    return {
        "call_s": whole,
        **{f"{part}_s": values for part, values in parts.items()},
        "step_s": spread(steps) if steps else None,
        "images_per_s": len(result.images) * len(calls) / once / sum(c.seconds for c in calls),
        "shapes": found,
        "calls": [{"call": number, **asdict(call)} for number, call in result.timed],
    }


def shapes(result: Result) -> list[dict[str, Any]]:
    """Height, width and prompts per call of each shape, its calls in seconds, and its pictures per second."""
    found = []
    each = {shape: sum(shape == image.shape for image in result.images) for shape in result.shapes}
    for shape, calls in by_shape(result.timed, result.shapes).items():
        height, width, prompts = shape
        seconds = spread([call.seconds for call in calls])
        per_call = each[shape] / result.shapes.count(shape)
        found.append(
            {
                "name": f"{height}x{width}, batch {prompts}",
                "height": height,
                "width": width,
                "batch_size": prompts,
                "call_s": seconds,
                "images_per_s": per_call / seconds["median"],
                "images": [f"images/{n:04d}.png" for n, image in enumerate(result.images) if image.shape == shape],
            }
        )
    return found


def _steady(result: Result) -> float:
    """The median of the calls that are like the first one."""
    return statistics.median(c.seconds for c in by_shape(result.timed, result.shapes)[result.shapes[0]])
