"""Is the picture still the same? Pictures beside those of a reference, with the noise that is there anyway."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from optbuilder.request import Image
from optbuilder.technique import installed_version


def compared(images: Sequence[Image], reference: Sequence[Image]) -> dict[str, Any]:
    """Every picture beside the reference's of the same prompt and seed, and the worst and middle of them.

    PSNR in dB ("inf" for equal pictures) and SSIM by torchmetrics, mean and largest difference of a value in 0..1.
    """
    pairs = [(image, _partner(image, reference)) for image in images]
    rows = [
        {"prompt": image.prompt, "seed": image.seed, **difference(image.pixels, other.pixels)} for image, other in pairs
    ]
    return {
        "images": rows,
        **{f"{name}_min": _worst(rows, name) for name in ("psnr", "ssim")},
        **{f"{name}_median": _middle(rows, name) for name in ("psnr", "ssim")},
        "max_difference": max(row["max_difference"] for row in rows),
        "mean_difference": sum(row["mean_difference"] for row in rows) / len(rows),
    }


def difference(pixels: Any, reference: Any) -> dict[str, Any]:
    """The figures of one picture (height, width, 3; floats in 0..1) beside its reference; of a video those over all of
    its frames."""
    import numpy as np
    import torch
    from torchmetrics.functional.image import peak_signal_noise_ratio, structural_similarity_index_measure

    both = (np.ascontiguousarray(p if p.ndim == 4 else p[None]) for p in (pixels, reference))
    a, b = (torch.from_numpy(p).permute(0, 3, 1, 2).float() for p in both)
    psnr = float(peak_signal_noise_ratio(a, b, data_range=1.0))
    return {
        "psnr": "inf" if math.isinf(psnr) else psnr,
        "ssim": float(structural_similarity_index_measure(a, b, data_range=1.0)),
        "lpips": lpips(a, b),
        "mean_difference": float((a - b).abs().mean()),
        "max_difference": float((a - b).abs().max()),
    }


def lpips(a: Any, b: Any) -> float | None:
    """Learned perceptual distance (torchmetrics, AlexNet) of pictures (n, 3, height, width); None where torchvision
    or its weights are not at hand: nothing is downloaded for it."""
    import torch

    weights = Path(torch.hub.get_dir(), "checkpoints").glob("alexnet-*.pth")
    if installed_version("torchvision") is None or not any(weights):
        return None
    from torchmetrics.functional.image import learned_perceptual_image_patch_similarity

    return float(learned_perceptual_image_patch_similarity(a, b, net_type="alex", normalize=True))


MARGIN_DB = 10.0  # rounding in yet another order may differ by a few dB from the orders that were tried


def below(quality: dict[str, Any], floors: dict[str, dict[str, Any]]) -> bool:
    """Whether pictures differ from the reference by clearly more than the reference differs from itself."""
    return float(quality["psnr_min"]) < min(float(floor["psnr_min"]) for floor in floors.values()) - MARGIN_DB


def _partner(image: Image, reference: Sequence[Image]) -> Image:
    """The reference's picture of the same prompt, seed and size; of those of several batches, the one in the same."""
    alike = [other for other in reference if key(other) == key(image)]
    return min(alike, key=lambda other: other.shape != image.shape)


def key(image: Image) -> tuple[str, int, tuple[int, ...]]:
    """What two pictures that can be compared have in common."""
    return image.prompt, image.seed, image.pixels.shape


def _worst(rows: list[dict[str, Any]], name: str) -> Any:
    return min((row[name] for row in rows), key=float)


def _middle(rows: list[dict[str, Any]], name: str) -> Any:
    return sorted((row[name] for row in rows), key=float)[len(rows) // 2]
