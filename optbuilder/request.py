"""What is asked of the pipeline in each call, and the pictures that come back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any

from optbuilder.settings import Run


@dataclass(frozen=True)
class Image:
    """A picture (height, width, 3; floats in 0..1) with what reproduces it."""

    pixels: Any
    prompt: str
    seed: int


def batches(settings: Run) -> int:
    """The number of calls that all prompts take."""
    return -(-len(settings.prompts) // settings.batch_size)


def requests(settings: Run, number: int) -> list[tuple[str, int]]:
    """The prompt and seed of each image of call `number`, in the pipeline's order. Image i of a run has seed + i."""
    each, first = settings.images_per_prompt, number * settings.batch_size
    prompts = settings.prompts[first : first + settings.batch_size]
    return [(p, settings.seed + (first + k) * each + i) for k, p in enumerate(prompts) for i in range(each)]


def arguments(settings: Run, number: int, call: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of the pipeline's call `number`. Each image has a CPU generator of its own, so that it comes out
    the same alone, in a batch, and on another device."""
    import torch

    first = number * settings.batch_size
    prompts = settings.prompts[first : first + settings.batch_size]
    negative = settings.negative_prompt
    chosen = {
        "prompt": prompts if settings.batch_size > 1 else prompts[0],
        "negative_prompt": [negative] * len(prompts) if negative is not None and settings.batch_size > 1 else negative,
        "height": settings.height,
        "width": settings.width,
        "num_inference_steps": settings.num_inference_steps,
        "guidance_scale": settings.guidance_scale,
    }
    return {
        **{key: value for key, value in chosen.items() if value is not None},
        "num_images_per_prompt": settings.images_per_prompt,
        "generator": [torch.Generator("cpu").manual_seed(seed) for _, seed in requests(settings, number)],
        "output_type": "np",
        **call,
    }


def images_of(pixels: Any, settings: Run, number: int) -> list[Image]:
    wanted = requests(settings, number)
    return [Image(picture, prompt, seed) for picture, (prompt, seed) in zip(pixels, wanted, strict=True)]


def remembered(encode_prompt: Any) -> Any:
    """Wrap `encode_prompt` so that the same arguments are encoded once. Tensors among them are not remembered."""
    found: dict[str, Any] = {}

    @wraps(encode_prompt)
    def recall(*args: Any, **kwargs: Any) -> Any:
        given = [*args, *kwargs.values()]
        if any(hasattr(value, "shape") for value in given):
            return encode_prompt(*args, **kwargs)
        key = repr((args, sorted(kwargs.items())))
        if key not in found:
            found[key] = encode_prompt(*args, **kwargs)
        return found[key]

    return recall


def invalid(image: Image) -> str | None:
    """Why a picture cannot be right: numbers that are none, or the same value everywhere."""
    import numpy as np

    if not np.isfinite(image.pixels).all():
        return f"the picture of {image.prompt!r} (seed {image.seed}) has values that are not finite"
    if float(np.ptp(image.pixels)) == 0.0:
        return f"the picture of {image.prompt!r} (seed {image.seed}) has the same value everywhere"
    return None
