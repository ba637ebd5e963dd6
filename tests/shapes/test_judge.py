"""The judge itself: it accepts what was drawn, and refuses everything else."""

import random

import numpy as np
import pytest
from PIL import Image, ImageFilter

from optbuilder.shapes import draw
from optbuilder.shapes.judge import MATCH, judge

EVERY = draw.combinations(kept_out=False) + draw.combinations(kept_out=True)


def drawings(count: int, seed: int) -> list[draw.Drawing]:
    """Random drawings of all combinations."""
    rng = random.Random(seed)
    return [draw.sample(rng, EVERY) for _ in range(count)]


def test_drawn_pictures_are_accepted() -> None:
    verdicts = [(d, judge(draw.draw(d), d.prompt)) for d in drawings(240, 1)]
    refused = [(d.prompt, verdict.reason) for d, verdict in verdicts if not verdict.ok]
    assert not refused
    assert min(verdict.iou for _, verdict in verdicts) > MATCH + 0.02


def test_every_combination_of_names_is_accepted() -> None:
    for shape in draw.SHAPES:
        for size, (low, high) in draw.RADII.items():
            drawing = draw.Drawing(shape, size, "pink", "white", 31.6, 32.3, (low + high) / 2)
            assert judge(draw.draw(drawing), drawing.prompt).ok, drawing.prompt


@pytest.mark.parametrize("asked", draw.SHAPES)
def test_another_shape_is_refused(asked: str) -> None:
    for drawn in set(draw.SHAPES) - {asked}:
        for size in draw.RADII:
            drawing = draw.Drawing(drawn, size, "red", "blue", 32, 32, sum(draw.RADII[size]) / 2)
            verdict = judge(draw.draw(drawing), drawing.prompt.replace(drawn, asked))
            assert not verdict.shape_ok and verdict.colours_ok, (drawn, asked, verdict)


def test_another_colour_is_refused() -> None:
    for drawing in drawings(30, 2):
        wrong = next(c for c in draw.COLOURS if c not in (drawing.foreground, drawing.background))
        for colour in (drawing.foreground, drawing.background):
            prompt = drawing.prompt.replace(f"an {colour}", f"a {colour}").replace(f" {colour} ", f" {wrong} ")
            assert not judge(draw.draw(drawing), prompt).colours_ok, (drawing.prompt, prompt)


def test_another_size_is_refused() -> None:
    for drawing in drawings(40, 3):
        wrong = "large" if drawing.size == "small" else "small"
        prompt = draw.Drawing(drawing.shape, wrong, drawing.foreground, drawing.background, 0, 0, 1).prompt
        assert not judge(draw.draw(drawing), prompt).size_ok, prompt


def spoiled(drawing: draw.Drawing) -> dict[str, Image.Image]:
    """Pictures that are something like this drawing, but not it."""
    picture = draw.draw(drawing)
    pixels = np.asarray(picture).astype(float)
    rng = np.random.default_rng(0)
    slope = np.linspace(-60, 60, 64)[None, :, None]
    return {
        "blurred": picture.filter(ImageFilter.GaussianBlur(2.5)),
        "noisy": Image.fromarray((pixels + rng.normal(0, 25, pixels.shape)).clip(0, 255).astype(np.uint8)),
        "noise": Image.fromarray(rng.integers(0, 256, pixels.shape, dtype=np.uint8)),
        "sloping": Image.fromarray((pixels + slope).clip(0, 255).astype(np.uint8)),
        "blank": Image.new("RGB", (64, 64), draw.COLOURS[drawing.background]),
        "full": Image.new("RGB", (64, 64), draw.COLOURS[drawing.foreground]),
        "halved": Image.fromarray(np.where(np.arange(64)[:, None, None] < 32, pixels, pixels[0, 0]).astype(np.uint8)),
        "turned": picture.rotate(30, fillcolor=draw.COLOURS[drawing.background], resample=Image.Resampling.BICUBIC),
    }


@pytest.mark.parametrize("how", spoiled(draw.Drawing("square", "", "red", "blue", 32, 32, 16)))
@pytest.mark.parametrize("size", draw.RADII)
@pytest.mark.parametrize("shape", ["square", "star", "heart", "cross"])
def test_spoiled_pictures_are_refused(shape: str, size: str, how: str) -> None:
    drawing = draw.Drawing(shape, size, "red", "blue", 32, 32, sum(draw.RADII[size]) / 2)
    assert not judge(spoiled(drawing)[how], drawing.prompt).ok


def test_prompts_of_another_kind_are_an_error() -> None:
    picture = Image.new("RGB", (64, 64))
    for prompt in ("a cat", "a red cat on a blue background", "a red circle on a mauve background", ""):
        with pytest.raises(ValueError, match="does not know"):
            judge(picture, prompt)
