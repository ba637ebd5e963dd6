"""What is asked of the pipeline in each call, and the pictures that come back."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from functools import wraps
from typing import Any

from optbuilder.settings import Run

Shape = tuple[int | None, int | None, int]  # height, width, and prompts in a call


@dataclass(frozen=True)
class Image:
    """A picture (height, width, 3; floats in 0..1), or a video with frames before, what reproduces it, and the shape of
    the call that made it."""

    pixels: Any
    prompt: str
    seed: int
    shape: Shape = (None, None, 1)


def shapes(settings: Run) -> list[Run]:
    """The run once for each size and batch size that it declares. Where batch sizes are declared every batch is full:
    the prompts are gone through again to fill the last one."""
    found = []
    for height, width in settings.sizes or [(settings.height, settings.width)]:
        for batch_size in settings.batch_sizes or [settings.batch_size]:
            shape = copy(settings)
            shape.height, shape.width, shape.batch_size = height, width, batch_size
            if settings.batch_sizes:
                missing = -len(settings.prompts) % batch_size
                shape.prompts = [*settings.prompts, *(settings.prompts * batch_size)[:missing]]
            found.append(shape)
    return found


def calls(settings: Run) -> list[tuple[Run, int]]:
    """Every call of the run: its shape, and its number among that shape's calls."""
    return [(shape, number) for shape in shapes(settings) for number in range(batches(shape))]


def each_shape(settings: Run) -> list[tuple[Run, int]]:
    """The first call of every shape that differs from those before: by size, or by the number of its prompts."""
    firsts: dict[Any, tuple[Run, int]] = {}
    for shape, number in calls(settings):
        firsts.setdefault(call_shape(shape, number), (shape, number))
    return list(firsts.values())


def call_shape(settings: Run, number: int) -> Shape:
    """Height, width and number of prompts of call `number`."""
    return settings.height, settings.width, len(prompts_of(settings, number))


def batches(settings: Run) -> int:
    """The number of calls that all prompts take."""
    return -(-len(settings.prompts) // settings.batch_size)


def prompts_of(settings: Run, number: int) -> list[str]:
    """The prompts of call `number`."""
    first = number * settings.batch_size
    return settings.prompts[first : first + settings.batch_size]


def requests(settings: Run, number: int) -> list[tuple[str, int]]:
    """The prompt and seed of each image of call `number`, in the pipeline's order. Image i of a run has seed + i."""
    each, first = settings.images_per_prompt, number * settings.batch_size
    prompts = prompts_of(settings, number)
    return [(p, settings.seed + (first + k) * each + i) for k, p in enumerate(prompts) for i in range(each)]


def arguments(pipe: Any, settings: Run, number: int, call: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of the pipeline's call `number`. Each image has a CPU generator of its own, so that it comes out
    the same alone, in a batch, and on another device."""
    import torch
    from PIL import Image as Picture

    prompts = prompts_of(settings, number)
    negative = settings.negative_prompt
    takes = inspect.signature(type(pipe).__call__).parameters
    chosen = {
        "prompt": prompts if settings.batch_size > 1 else prompts[0],
        "negative_prompt": [negative] * len(prompts) if negative is not None and settings.batch_size > 1 else negative,
        "height": settings.height,
        "width": settings.width,
        "num_frames": settings.num_frames,
        "image": settings.image and Picture.open(settings.image).convert("RGB"),
        "num_inference_steps": settings.num_inference_steps,
        "guidance_scale": settings.guidance_scale,
    }
    return {
        **{key: value for key, value in chosen.items() if value is not None},
        next((k for k in takes if k == "num_videos_per_prompt"), "num_images_per_prompt"): settings.images_per_prompt,
        "generator": [torch.Generator("cpu").manual_seed(seed) for _, seed in requests(settings, number)],
        "output_type": "np",
        **call,
    }


def images_of(output: Any, settings: Run, number: int) -> list[Image]:
    """The pictures or videos that a call gave, each with its prompt and seed."""
    pixels = output.images if hasattr(output, "images") else output.frames
    wanted, shape = requests(settings, number), call_shape(settings, number)
    return [Image(picture, prompt, seed, shape) for picture, (prompt, seed) in zip(pixels, wanted, strict=True)]


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
    """Why a picture, or a frame of a video, cannot be right: numbers that are none, or the same value everywhere."""
    import numpy as np

    for number, pixels in enumerate(frames_of(image)):
        what = "the picture" if image.pixels.ndim == 3 else f"frame {number} of the video"
        if not np.isfinite(pixels).all():
            return f"{what} of {image.prompt!r} (seed {image.seed}) has values that are not finite"
        if float(np.ptp(pixels)) == 0.0:
            return f"{what} of {image.prompt!r} (seed {image.seed}) has the same value everywhere"
    return None


def frames_of(image: Image) -> Any:
    """The frames of a video, or the picture as its only one: (frames, height, width, 3)."""
    return image.pixels if image.pixels.ndim == 4 else image.pixels[None]
