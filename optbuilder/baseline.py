"""The run beside one without techniques: how much faster, at what cost, and is the picture still the same?"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from optbuilder.builder import Plan, Transform
from optbuilder.environment import unfair
from optbuilder.errors import Refused, failure
from optbuilder.job import recorded
from optbuilder.quality import below, compared
from optbuilder.request import Image
from optbuilder.runner import Result, samples
from optbuilder.samples import ratio
from optbuilder.video import still

# The techniques that a reference has too: without them it would be another model, not the same one untreated.
KEPT = ("lora",)


def baseline_plan(plan: Plan) -> Plan:
    """The same model, prompts and seeds without techniques: float32, and every stage left as it is."""
    kept = [t for t in plan.transforms if t.stage in KEPT]
    load = {key: value for key, value in plan.load.items() if key in ("use_safetensors", "revision", "variant")}
    return replace(plan, transforms=kept, load={**load, "dtype": "float32"})


def against_baseline(
    plan: Plan, result: Result, setup_s: float, show: Callable[[str, int, int], None]
) -> dict[str, Any]:
    """Run the baseline in a fresh pipeline, and give quality, noise floor, speed and break-even beside it."""
    reference, reference_setup_s = _run(baseline_plan(plan), show, "baseline")
    quality, floors = compared(result.images, reference.images), noise_floors(plan, reference, show)
    lossless = all(t.technique.is_lossless(t.options) for t in plan.transforms)
    return {
        "against": "baseline",
        **claimed(quality, plan),
        "noise_floor": floors,
        "below_floor": below(quality, floors),
        "lossless_declared": lossless,
        "shapes": shapes_kept(result.images, reference.images) if _judged(plan, result.images) else None,
        "speed": speed(samples(reference), result, setup_s - reference_setup_s),
    }


def noise_floors(plan: Plan, reference: Result, show: Callable[[str, int, int], None]) -> dict[str, Any]:
    """The baseline beside itself: run again, with attention rounded in another order, and compiled if asked."""
    from optbuilder.transforms.attention import sdpa_kernel
    from optbuilder.transforms.compile import compile_forward

    variants = {"second_run": [], "other_rounding": [Transform("attention", "sdpa_math", sdpa_kernel, {}, "")]}
    if plan.run.compile_floor:
        variants["compiled"] = [Transform("compile", "full", compile_forward, {}, "")]
    found, plain = {}, baseline_plan(plan)
    for name, transforms in variants.items():
        quick = replace(plain, transforms=[*plain.transforms, *transforms], run=replace(plan.run, repeats=1, warmup=0))
        found[name] = compared(_run(quick, show, f"noise floor, {name}")[0].images, reference.images)
    return found


def against_run(directory: Path, plan: Plan, result: Result, setup_s: float, here: Mapping[str, Any]) -> dict[str, Any]:
    """Quality beside an earlier run directory, which must have the same prompts and seeds, and speed if the environment
    there was like the one `here`."""
    reference = pictures(directory)
    images = as_recorded(result.images)
    found = {"against": str(directory), **claimed(compared(images, reference), plan)}
    if _judged(plan, images):
        found["shapes"] = shapes_kept(images, reference)
    metrics = recorded(directory).metrics
    found["unfair"] = list(unfair(metrics.get("environment") or {}, here))
    if "latency" in metrics and not found["unfair"]:
        calls = metrics["latency"]["call_s"]
        extra_s = setup_s - setup_seconds(metrics["phases"], metrics["phases"]["first_call_s"], calls["median"])
        found["speed"] = speed(calls["samples"], result, extra_s)
    return found


def as_recorded(images: Sequence[Image]) -> list[Image]:
    """The pictures as a PNG holds them: in 8 bits, and of a video the frames that are kept."""
    return [replace(image, pixels=(still(image.pixels) * 255).round() / 255) for image in images]


def claimed(figures: dict[str, Any], plan: Plan) -> dict[str, Any]:
    """The figures as the pictures' quality; those of random weights apart, where nobody takes them for it."""
    return {"of_random_weights": figures} if plan.model.weights == "dummy" else figures


def _judged(plan: Plan, images: Sequence[Image]) -> bool:
    """Whether the pictures are of a model that comes along, in its size and of what it knows to draw."""
    if not plan.model.repo_id.startswith("package:") or plan.model.weights != "pretrained":
        return False
    from optbuilder.shapes.judge import SIZE, asked

    return all(image.pixels.shape[:2] == SIZE and asked(image.prompt) for image in images)


def pictures(directory: Path) -> list[Image]:
    """The pictures of a run directory, with the prompt and seed that each PNG carries.

    Raises `Refused` for one that is none, or carries none.
    """
    import numpy as np
    from PIL import Image as Picture

    found = []
    for path in sorted((directory / "images").glob("[0-9]*.png")):
        try:
            with Picture.open(path, formats=["PNG"]) as picture:
                pixels = np.asarray(picture.convert("RGB"), dtype=np.float32) / 255
                found.append(Image(pixels, str(picture.text["prompt"]), int(picture.text["seed"])))
        except (OSError, ValueError, SyntaxError, KeyError, AttributeError, Picture.DecompressionBombError) as error:
            raise Refused(f"{str(path)!r}: it is no picture of a run ({failure(error)}). Remove it.") from None
    return found


def speed(before: list[float], result: Result, extra_setup_s: float) -> dict[str, Any]:
    """How many times faster a call is, with its interval, and after how many pictures the set-up has paid off."""
    after = samples(result)
    each = len(result.images) / len({number for number, _ in result.timed})
    saved = (statistics.median(before) - statistics.median(after)) / each
    return {
        **{{"ratio": "speedup"}.get(key, key): value for key, value in ratio(before, after).items()},
        "break_even_images": max(0.0, extra_setup_s) / saved if saved > 0 else None,
        "baseline_calls_s": before,
    }


def shapes_kept(images: Sequence[Image], reference: Sequence[Image]) -> dict[str, Any]:
    """For the models that come along: how many pictures show what was asked, here and in the baseline."""
    from optbuilder.shapes.judge import judge

    both = {"here": images, "baseline": reference}
    return {name: sum(_right(judge, image) for image in found) for name, found in both.items()} | {"of": len(images)}


def _right(judge: Callable[..., Any], image: Image) -> bool:
    return bool(judge(as_picture(image), image.prompt).ok)


def as_picture(image: Image) -> Any:
    from diffusers.image_processor import VaeImageProcessor

    return VaeImageProcessor.numpy_to_pil(image.pixels)[0]


def setup_seconds(phases: Mapping[str, Any], first_call_s: float, call_s: float) -> float:
    """What it takes to get to steady calls: loading, transforms, and the first call beyond a steady one."""
    return phases["load_s"] + sum(phases["transforms_s"].values()) + max(0.0, first_call_s - call_s)


def _run(plan: Plan, show: Callable[[str, int, int], None], name: str) -> tuple[Result, float]:
    import time

    from optbuilder.effects import apply
    from optbuilder.pipeline import load
    from optbuilder.runner import run

    start = time.perf_counter()
    pipe, effects = apply(plan, load(plan.model, plan.load, plan.machine.device))
    phases = {"load_s": time.perf_counter() - start - sum(e.seconds for e in effects), "transforms_s": {}}
    result = run(pipe, plan.run, call=plan.call, machine=plan.machine, show=lambda t, d, n: show(f"{name}: {t}", d, n))
    del pipe
    gc.collect()
    return result, setup_seconds(phases, result.first.seconds, statistics.median(c.seconds for _, c in result.timed))
