"""Pictures of the same prompt beside each other, each with a heat map of where it differs from the baseline's."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from optbuilder.report.cells import Cell

SIDE = 384  # pixels: larger pictures are shown smaller
GAIN = 8  # of the heat map: a difference of an eighth of the range is already white
STOPS = np.array([[0, 0, 0], [90, 0, 110], [220, 50, 30], [255, 200, 30], [255, 255, 255]], dtype=float)


@dataclass(frozen=True)
class Shown:
    """One picture and its heat map, as data URLs; the baseline's own has no heat map."""

    job: str
    title: str
    picture: str
    heat: str | None
    difference: str


def rows(found: Sequence[Cell], prompts: int = 4) -> Iterator[tuple[str, list[Shown]]]:
    """For each of the first prompts: what every job drew."""
    known = {cell.name: cell for cell in found}
    listed: dict[tuple[str, str], list[tuple[Cell, str]]] = {}
    for cell in found:
        for name, (prompt, seed) in _asked(cell.outcome.directory, cell.outcome.metrics.get("images", [])).items():
            listed.setdefault((prompt, seed), []).append((cell, name))
    for (prompt, seed), drawn in list(listed.items())[:prompts]:
        yield f"{prompt} (seed {seed})", [_shown(cell, name, known.get(cell.baseline)) for cell, name in drawn]


def _asked(directory: Path, names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Prompt and seed of each picture, from its PNG text."""
    asked = {}
    for name in names or ():
        if (pixels := _opened(directory / name)) is not None:
            asked[name] = str(pixels.text["prompt"]), str(pixels.text["seed"])
    return asked


def _opened(path: Path) -> Any:
    """A picture with its texts, as a run leaves it; None for anything else: a report shows what there is."""
    try:
        with Image.open(path, formats=["PNG"]) as picture:
            picture.load()
            return picture if {"prompt", "seed"} <= picture.text.keys() and not path.is_symlink() else None
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None


def _shown(cell: Cell, name: str, baseline: Cell | None) -> Shown:
    picture = _pixels(cell.outcome.directory / name)
    other = _opened(baseline.outcome.directory / name) if baseline else None
    if other is None or (other := np.asarray(other.convert("RGB"))).shape != picture.shape:
        return Shown(cell.name, cell.title, data_url(picture), None, "")
    off = np.abs(picture.astype(float) - other).max(axis=2)
    told = "the same" if not off.any() else f"differs by up to {off.max():.0f} of 255, {off.mean():.2f} on average"
    return Shown(cell.name, cell.title, data_url(picture), data_url(heat_map(off)), told)


def _pixels(path: Path) -> np.ndarray:
    with Image.open(path) as picture:
        return np.asarray(picture.convert("RGB"))


def heat_map(off: np.ndarray) -> np.ndarray:
    """Differences of 0 to 255 as colours from black over red to white: uint8 (height, width, 3)."""
    place = np.clip(off * GAIN / 255, 0, 1) * (len(STOPS) - 1)
    return np.stack([np.interp(place, range(len(STOPS)), STOPS[:, c]) for c in range(3)], axis=2).astype(np.uint8)


def data_url(pixels: np.ndarray) -> str:
    """A picture as text: lossless where it is small, else shrunk."""
    picture, file = Image.fromarray(pixels), io.BytesIO()
    small = max(picture.size) <= SIDE
    if not small:
        picture.thumbnail((SIDE, SIDE))
    kind = "PNG" if small else "WEBP"
    picture.save(file, kind)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"
