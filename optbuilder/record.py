"""Write a run directory: plan.json, metrics.json and pictures, each file complete or not there."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from optbuilder import __version__
from optbuilder.apply import Effect
from optbuilder.builder import Plan
from optbuilder.runner import Image
from optbuilder.technique import installed_version

SCHEMA_VERSION = 1
PACKAGES = (
    "torch",
    "diffusers",
    "accelerate",
    "torchao",
    "transformers",
    "hydra-core",
    "omegaconf",
    "numpy",
    "safetensors",
)
_VOLATILE = ("hydra", "action")


def write_json(path: Path, content: Any) -> None:
    """Write JSON to a temporary name beside `path`, then rename it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(content, indent=2, ensure_ascii=False, default=str) + "\n", encoding="utf-8")
    temporary.replace(path)


def job_key(config: Mapping[str, Any]) -> str:
    """Twelve hex digits that name a job: its resolved config without what cannot change the result, and versions."""
    content = {"config": {k: v for k, v in config.items() if k not in _VOLATILE}, "versions": versions()}
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:12]


def versions() -> dict[str, str | None]:
    return {"optbuilder": __version__, **{name: installed_version(name) for name in PACKAGES}}


def plan_json(plan: Plan, key: str, effects: Sequence[Effect] = ()) -> dict[str, Any]:
    """The plan as data: the transforms in order with options, reasons and, once applied, effects; and the refusals."""
    found = {effect.transform: effect for effect in effects}
    return {
        "schema_version": SCHEMA_VERSION,
        "job_key": key,
        "model": {
            "repo_id": plan.model.repo_id,
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
        "run": asdict(plan.run),
        "call": plan.call,
        "notes": plan.notes,
        "refusals": plan.refusals,
    }


def write_images(directory: Path, images: Sequence[Image], key: str) -> list[str]:
    """Write images/0000.png and so on, each with its prompt, seed and job key in the PNG's text. Returns the names."""
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
        temporary = target.with_name(f".{target.name}.{os.getpid()}")
        VaeImageProcessor.numpy_to_pil(image.pixels)[0].save(temporary, format="PNG", pnginfo=text)
        temporary.replace(target)
        names.append(f"images/{target.name}")
    return names


def environment(plan: Plan) -> dict[str, Any]:
    """Versions, processor and device: what a figure depends on beside the config."""
    import torch

    machine = plan.machine
    return {
        "versions": versions(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "device": machine.device,
        "device_name": machine.name,
        "compute_capability": machine.capability,
        "device_memory_bytes": machine.memory_bytes,
        "cuda": torch.version.cuda,
    }


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor()
    )
