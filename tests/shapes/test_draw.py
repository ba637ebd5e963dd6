"""The drawings: inside the picture, flat, antialiased; the split of the combinations is fixed."""

import random

import numpy as np
import pytest

from optbuilder.shapes import draw

EVERY = draw.combinations(kept_out=False) + draw.combinations(kept_out=True)


def test_combinations_are_split_once_and_for_all() -> None:
    known, new = set(draw.combinations(kept_out=False)), set(draw.combinations(kept_out=True))
    assert len(known | new) == 8 * 10 * 9 and not known & new
    assert 0.12 < len(new) / 720 < 0.18
    assert {word for combination in new for word in combination} == set(draw.SHAPES) | set(draw.COLOURS)
    assert len(new) == 113, "the split has changed: the shipped weights were trained on another one"


@pytest.mark.parametrize("size", draw.RADII)
@pytest.mark.parametrize("shape", draw.SHAPES)
def test_a_shape_stays_inside_and_is_antialiased(shape: str, size: str) -> None:
    rng = random.Random(f"{shape}{size}")
    for _ in range(20):
        drawing = draw.sample(rng, [(shape, "red", "blue")])
        cover = draw.mask(drawing)
        rim = np.concatenate([cover[:2].ravel(), cover[-2:].ravel(), cover[:, :2].ravel(), cover[:, -2:].ravel()])
        assert not rim.any()
        assert cover.max() == 255
    assert len(np.unique(cover)) > 3


def test_a_picture_has_the_two_colours_and_their_mixtures() -> None:
    picture = np.asarray(draw.draw(draw.Drawing("square", "", "white", "black", 32, 32, 16)))
    assert tuple(picture[0, 0]) == draw.COLOURS["black"] and tuple(picture[32, 32]) == draw.COLOURS["white"]
    assert picture.shape == (64, 64, 3)


def test_prompts_read_as_english() -> None:
    assert draw.Drawing("star", "small", "orange", "red", 0, 0, 1).prompt == "a small orange star on a red background"
    assert draw.Drawing("star", "", "orange", "orange", 0, 0, 1).prompt == "an orange star on an orange background"


def test_samples_follow_the_seed() -> None:
    first, again = ([draw.sample(random.Random(7), EVERY) for _ in range(3)] for _ in "12")
    assert first == again
