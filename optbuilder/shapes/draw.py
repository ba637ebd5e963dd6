"""Draws the pictures the shapes models learn: one flat shape on a flat background, and the prompt that names it."""

import hashlib
import math
import random
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

SIDE = 64  # pixels
SUPERSAMPLE = 6  # every pixel is the mean of 6 x 6 drawn points: antialiased edges
MARGIN = 2  # pixels kept free around every shape
JITTER = 1  # pixels a centre may lie off the middle, each way
HELD_OUT_PERCENT = 15

COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (220, 40, 40),
    "green": (40, 160, 60),
    "blue": (40, 80, 215),
    "yellow": (245, 220, 50),
    "orange": (245, 135, 30),
    "purple": (130, 50, 170),
    "pink": (250, 150, 190),
    "white": (250, 250, 250),
    "black": (20, 20, 20),
    "gray": (128, 128, 128),
}
# Half the longer side of the shape's bounding box, in pixels; "" is the medium size of a prompt that names none.
RADII: dict[str, tuple[float, float]] = {"small": (9.5, 10.5), "": (15.5, 16.5), "large": (24.0, 25.0)}
SHAPES = ("circle", "square", "triangle", "star", "cross", "ring", "heart", "diamond")


@dataclass(frozen=True)
class Drawing:
    """What one picture shows: names, the shape's centre and its radius in pixels."""

    shape: str
    size: str
    foreground: str
    background: str
    x: float
    y: float
    radius: float

    @property
    def prompt(self) -> str:
        """The words that ask for this picture; place and exact radius are left open."""
        subject = " ".join(word for word in (self.size, self.foreground, self.shape) if word)
        return f"{article(subject)} {subject} on {article(self.background)} {self.background} background"


def article(words: str) -> str:
    """The indefinite article in front of these words."""
    return "an" if words[0] in "aeiou" else "a"


def held_out(shape: str, foreground: str, background: str) -> bool:
    """Whether this combination is kept out of training; the same on every machine."""
    digest = hashlib.sha256(f"{shape} {foreground} {background}".encode()).digest()
    return int.from_bytes(digest[:4], "big") % 100 < HELD_OUT_PERCENT


def combinations(kept_out: bool) -> list[tuple[str, str, str]]:
    """All (shape, foreground, background) of the training set, or all that are kept out of it."""
    every = ((s, f, b) for s in SHAPES for f in COLOURS for b in COLOURS if f != b)
    return [combination for combination in every if held_out(*combination) == kept_out]


def sample(rng: random.Random, among: list[tuple[str, str, str]]) -> Drawing:
    """A random drawing of one of these combinations: size, place and radius are drawn too."""
    shape, foreground, background = rng.choice(among)
    size = rng.choice(list(RADII))
    radius = rng.uniform(*RADII[size])
    reach = min(JITTER, SIDE / 2 - MARGIN - radius)
    x, y = (SIDE / 2 + rng.uniform(-reach, reach) for _ in "xy")
    return Drawing(shape, size, foreground, background, x, y, radius)


def _ngon(corners: int, inner: float = 1.0) -> list[tuple[float, float]]:
    """A polygon with its first corner on top; every second corner lies at `inner` times the radius."""
    angles = (2 * math.pi * k / corners for k in range(corners))
    return [(r * math.sin(a), -r * math.cos(a)) for k, a in enumerate(angles) for r in [inner if k % 2 else 1.0]]


def _heart() -> list[tuple[float, float]]:
    """The classic heart curve."""
    angles = [2 * math.pi * k / 120 for k in range(120)]
    ys = [13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t) for t in angles]
    return [(16 * math.sin(t) ** 3, -y) for t, y in zip(angles, ys, strict=True)]


_ARM = 0.34  # half the width of a cross's arm
_OUTLINES: dict[str, list[tuple[float, float]]] = {
    "circle": _ngon(120),
    "square": [(-1, -1), (1, -1), (1, 1), (-1, 1)],
    "triangle": [(0, -0.9), (1, 0.9), (-1, 0.9)],
    "star": _ngon(10, inner=0.42),
    "cross": [
        *[(-_ARM, -1), (_ARM, -1), (_ARM, -_ARM), (1, -_ARM), (1, _ARM), (_ARM, _ARM)],
        *[(_ARM, 1), (-_ARM, 1), (-_ARM, _ARM), (-1, _ARM), (-1, -_ARM), (-_ARM, -_ARM)],
    ],
    "ring": _ngon(120),
    "heart": _heart(),
    "diamond": [(0, -1), (1, 0), (0, 1), (-1, 0)],
}
_HOLE = 0.52  # a ring's inner radius


def _placed(outline: list[tuple[float, float]], drawing: Drawing, scale: float = 1.0) -> list[tuple[float, float]]:
    """The outline, its bounding box centred and its longer half side made `scale * radius`, in drawn points."""
    low, high = np.min(outline, axis=0), np.max(outline, axis=0)
    unit = (np.array(outline) - (low + high) / 2) / (max(high - low) / 2)
    points = (unit * drawing.radius * scale + (drawing.x, drawing.y)) * SUPERSAMPLE - 0.5
    return [tuple(point) for point in points]


def mask(drawing: Drawing) -> np.ndarray:
    """How much of each pixel the shape covers: uint8 (SIDE, SIDE), 0 none to 255 all."""
    canvas = Image.new("L", (SIDE * SUPERSAMPLE, SIDE * SUPERSAMPLE), 0)
    pen = ImageDraw.Draw(canvas)
    pen.polygon(_placed(_OUTLINES[drawing.shape], drawing), fill=255)
    if drawing.shape == "ring":
        pen.polygon(_placed(_OUTLINES["ring"], drawing, _HOLE), fill=0)
    return np.asarray(canvas.reduce(SUPERSAMPLE))


def draw(drawing: Drawing) -> Image.Image:
    """The picture: RGB, SIDE x SIDE."""
    cover = mask(drawing)[..., None] / 255.0
    foreground, background = (np.array(COLOURS[c]) for c in (drawing.foreground, drawing.background))
    return Image.fromarray(np.rint(cover * foreground + (1 - cover) * background).astype(np.uint8))
