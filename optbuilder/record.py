"""Write a run directory: plan.json, metrics.json and pictures, each file complete or not there."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from optbuilder.builder import Plan
from optbuilder.effects import Effect
from optbuilder.environment import versions
from optbuilder.request import Image
from optbuilder.video import still, write_video

SCHEMA_VERSION = 1
_VOLATILE = ("hydra", "action", "track", "sweep", "search", "recipe")
_VOLATILE_RUN = ("isolation", "timeout_s", "profile", "compare", "compile_floor")


@contextmanager
def completed(path: Path) -> Iterator[Path]:
    """A temporary name beside `path` to write to, renamed once all is written: the file is complete or not there."""
    temporary = path.with_name(f".{os.getpid()}.{path.name}")  # writers know a format by the end of the name
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, content: Any) -> None:
    """Write JSON, complete or not at all."""
    with completed(path) as temporary:
        temporary.write_text(json.dumps(content, indent=2, ensure_ascii=False, default=str) + "\n", encoding="utf-8")


def job_key(config: Mapping[str, Any]) -> str:
    """Twelve hex digits that name a job: its resolved config without what cannot change the result, and versions."""
    kept = {k: v for k, v in config.items() if k not in _VOLATILE}
    kept["run"] = {k: v for k, v in (config.get("run") or {}).items() if k not in _VOLATILE_RUN}
    return digest({"config": kept, "versions": versions()})


def plan_key(plan: Plan) -> str:
    """Twelve hex digits that name what a plan does: two configs that come to the same have the same."""
    run = {key: value for key, value in asdict(plan.run).items() if key not in _VOLATILE_RUN}
    transforms = [(t.stage, t.function.__qualname__, t.options) for t in plan.transforms]
    model = [plan.model.repo_id, plan.model.weights, plan.model.scale]
    return digest([model, plan.machine.device, plan.load, transforms, run, plan.call])


def digest(content: Any) -> str:
    """Twelve hex digits that name any content which JSON can hold."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:12]


def peak_bytes(metrics: Mapping[str, Any]) -> float:
    """The peak of the timed calls: of the device where it has memory of its own, else of the process."""
    peak = metrics["memory"]["phases"]["run"]
    return peak["device_allocated_peak_bytes"] or peak["rss_peak_bytes"]


def plan_json(plan: Plan, key: str, effects: Sequence[Effect] = ()) -> dict[str, Any]:
    """The plan as data: the transforms in order with options, reasons and, once applied, effects; and the refusals."""
    found = {effect.transform: effect for effect in effects}
    return {
        "schema_version": SCHEMA_VERSION,
        "job_key": key,
        "model": {
            "repo_id": plan.model.repo_id,
            "weights": plan.model.weights,
            "scale": plan.model.scale,
            "pipeline": plan.model.pipeline_class,
            "components": plan.model.components,
        },
        "device": plan.machine.device,
        "load": plan.load,
        "transforms": [
            {
                "stage": t.stage,
                "option": t.choice,
                "function": f"{t.function.__module__}.{t.function.__qualname__}",
                "options": t.options,
                "lossless": t.technique.is_lossless(t.options),
                "why_here": t.why_here,
                "source": t.technique.source,
                "effect": asdict(found[t.name]) if t.name in found else None,
            }
            for t in plan.transforms
        ],
        "graphs": None if plan.refusals or plan.graphs is None else asdict(plan.graphs),
        "run": asdict(plan.run),
        "call": plan.call,
        "notes": plan.notes,
        "refusals": plan.refusals,
    }


def model_name(model: Mapping[str, Any]) -> str:
    """The model of a recorded plan, as people are told of it."""
    random = model.get("weights") == "dummy"
    return f"{model['repo_id']} (random weights, {model['scale']} size)" if random else str(model["repo_id"])


def write_images(directory: Path, images: Sequence[Image], key: str) -> list[str]:
    """Write images/0000.png and so on, each with its prompt, seed and job key in the PNG's text. Returns the names.

    A video has some of its frames there."""
    from diffusers.image_processor import VaeImageProcessor
    from PIL.PngImagePlugin import PngInfo

    folder = directory / "images"
    folder.mkdir(exist_ok=True)
    names = []
    for number, image in enumerate(images):
        text = PngInfo()
        for name, value in {"prompt": image.prompt, "seed": str(image.seed), "job_key": key}.items():
            text.add_itxt(name, value)
        target = folder / f"{number:04d}.png"
        with completed(target) as temporary:
            VaeImageProcessor.numpy_to_pil(still(image.pixels))[0].save(temporary, format="PNG", pnginfo=text)
        names.append(f"images/{target.name}")
    return names


def write_videos(directory: Path, images: Sequence[Image], fps: int, key: str) -> list[str]:
    """Write videos/0000.mp4 and so on, each with its prompt, seed and job key in its comment. Returns the names."""
    folder = directory / "videos"
    folder.mkdir(exist_ok=True)
    names = []
    for number, image in enumerate(images):
        text = json.dumps({"prompt": image.prompt, "seed": image.seed, "job_key": key}, ensure_ascii=False)
        with completed(folder / f"{number:04d}.mp4") as temporary:
            write_video(temporary, image.pixels, fps, text)
        names.append(f"videos/{number:04d}.mp4")
    return names
