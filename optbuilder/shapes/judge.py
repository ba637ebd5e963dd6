"""Decides whether a picture shows what its prompt asks for; shares no code with what draws or learns the pictures."""

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from PIL import Image

COLOURS = {
    "red": (225, 35, 35),
    "green": (35, 155, 60),
    "blue": (45, 80, 210),
    "yellow": (245, 220, 45),
    "orange": (245, 135, 25),
    "purple": (130, 50, 170),
    "pink": (250, 150, 190),
    "white": (255, 255, 255),
    "black": (10, 10, 10),
    "gray": (128, 128, 128),
}
REQUEST = re.compile(r"an? (?:(small|large) )?(\w+) (\w+) on an? (\w+) background")
COLOUR_REACH = 45.0  # of 255, Euclidean in RGB: farther from every colour is no colour
SIZE = (64, 64)  # pixels: of the pictures that are judged
FRAME = 2  # pixels at the picture's rim that no shape touches
CONTRAST = 30.0  # of 255: less between shape and background is a blank picture
FLAT = 24.0  # of 255: how far a pixel may lie from the line between the two colours
SOFT = 2.0  # half-covered pixels per pixel of outline; drawn shapes have about 1, blurred ones more
MATCH = 0.85  # least overlap with the asked template; drawn shapes reach 0.90 and more
SIDES = {"small": (12.0, 26.0), "large": (40.0, 60.0)}  # the longer side of the bounding box, in pixels
ASPECT = 0.15  # how far width : height may lie off the template's
# Half a pixel for one side of the box: a thin tip covers less than half of its last pixels, which `extent` leaves out.
MOVES = [(-0.5, 0, 0.5, 0), (0.5, 0, -0.5, 0), (0, 0, 0.5, 0), (0, 0, -0.5, 0)]
MOVES += [(0, -0.5, 0, 0.5), (0, 0.5, 0, -0.5), (0, 0, 0, 0.5), (0, 0, 0, -0.5)]
REACH = 4  # moves in all: the box may not walk away from what is there
Grid = np.ndarray


def _star(u: Grid, v: Grid) -> Grid:
    """A slightly full pentagram: all points inside at least four of five lines (0.309 from the middle if slim)."""
    x, y = 0.951 * u, (0.809 - 1) / 2 + (0.809 + 1) / 2 * v
    turns = [2 * np.pi * k / 5 for k in range(5)]
    return sum((np.sin(a) * x - np.cos(a) * y <= 0.33).astype(int) for a in turns) >= 4


def _heart(u: Grid, v: Grid) -> Grid:
    """Two ellipses side by side, over a tip with bulging flanks."""
    x, y = np.abs(u), v
    lobes = ((x - 0.5) / 0.5) ** 2 + ((y + 0.46) / 0.54) ** 2 <= 1
    below = np.clip((y + 0.46) / 1.46, 0, 1)
    return lobes | ((y > -0.46) & (x <= 1 - below**1.35))


# Each template fills the box -1..1 in u (to the right) and v (down); with its natural width : height.
TEMPLATES: dict[str, tuple[Callable[[Grid, Grid], Grid], float]] = {
    "circle": (lambda u, v: u**2 + v**2 <= 1, 1.0),
    "ring": (lambda u, v: (u**2 + v**2 <= 1) & (u**2 + v**2 >= 0.25), 1.0),
    "square": (lambda u, v: np.maximum(np.abs(u), np.abs(v)) <= 1, 1.0),
    "diamond": (lambda u, v: np.abs(u) + np.abs(v) <= 1, 1.0),
    "triangle": (lambda u, v: (np.abs(u) <= (v + 1) / 2) & (v <= 1), 1.1),
    "cross": (lambda u, v: (np.minimum(np.abs(u), np.abs(v)) <= 0.34) & (np.maximum(np.abs(u), np.abs(v)) <= 1), 1.0),
    "star": (_star, 1.05),
    "heart": (_heart, 1.1),
}


@dataclass(frozen=True)
class Verdict:
    """What the judge found; `iou` is the overlap with the asked template, `reason` is empty when all is well."""

    shape_ok: bool
    colours_ok: bool
    size_ok: bool
    clean: bool
    iou: float
    reason: str

    @property
    def ok(self) -> bool:
        """Whether the picture is accepted."""
        return self.shape_ok and self.colours_ok and self.size_ok and self.clean


def asked(prompt: str) -> re.Match[str] | None:
    """The size, colour, shape and background that a prompt asks for; None for one that asks for something else."""
    request = REQUEST.fullmatch(prompt)
    known = request and request[3] in TEMPLATES and {request[2], request[4]} <= COLOURS.keys()
    return request if known else None


def judge(picture: Image.Image, prompt: str) -> Verdict:
    """The verdict on one 64 x 64 picture. Raises ValueError for a prompt that asks for something else."""
    request = asked(prompt)
    if request is None:
        raise ValueError(f"The judge does not know how to read this prompt: {prompt!r}")
    size, foreground, shape, background = request.groups()
    found = separate(np.asarray(picture.convert("RGB"), dtype=float))
    if found is None:
        return Verdict(False, False, False, False, 0.0, "blank: nothing differs from the background")
    cover, colours, off = found
    named = tuple(colour_name(colour) for colour in colours)
    faults = flaws(cover, off)
    overlaps = {name: overlap(cover, name) for name in TEMPLATES}
    best, iou = max(overlaps, key=lambda name: overlaps[name]), overlaps[shape]
    shape_ok, colours_ok = best == shape and iou >= MATCH, named == (foreground, background)
    side = max(extent(cover)[2:])
    size_ok = not size or SIDES[size][0] <= side <= SIDES[size][1]
    clean = not faults
    if not shape_ok:
        faults.append(f"looks like a {best} ({overlaps[best]:.2f}), {shape} {iou:.2f}")
    if not colours_ok:
        faults.append(f"colours {named[0]} on {named[1]}")
    if not size_ok:
        faults.append(f"longer side {side:.0f} px")
    return Verdict(shape_ok, colours_ok, size_ok, clean, iou, "; ".join(faults))


def colour_name(colour: np.ndarray) -> str:
    """The nearest colour's name, or "none" when all are too far."""
    distances = {name: float(np.linalg.norm(colour - value)) for name, value in COLOURS.items()}
    name = min(distances, key=lambda key: distances[key])
    return name if distances[name] <= COLOUR_REACH else "none"


def separate(rgb: np.ndarray) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray], np.ndarray] | None:
    """Cover of each pixel by the shape (0 to 1), both colours, and each pixel's distance from their mixtures."""
    rim = np.ones(rgb.shape[:2], dtype=bool)
    rim[FRAME:-FRAME, FRAME:-FRAME] = False
    background = np.median(rgb[rim], axis=0)
    distance = np.linalg.norm(rgb - background, axis=2)
    peak = np.sort(distance.ravel())[-40:].mean()  # the smallest shape covers about 80 pixels
    if peak < CONTRAST:
        return None
    foreground = np.median(rgb[distance > 0.75 * peak], axis=0)
    way = foreground - background
    share = np.clip((rgb - background) @ way / (way @ way), 0, 1)
    off = np.linalg.norm(rgb - background - share[..., None] * way, axis=2)
    return share, (foreground, background), off


def flaws(cover: np.ndarray, off: np.ndarray) -> list[str]:
    """What keeps the picture from being two flat colours with a sharp edge."""
    inside = np.pad(cover > 0.5, 1)
    core = inside[1:-1, 1:-1] & inside[:-2, 1:-1] & inside[2:, 1:-1] & inside[1:-1, :-2] & inside[1:-1, 2:]
    outline = max(1, int(inside.sum() - core.sum()))
    softness = float(((cover > 0.15) & (cover < 0.85)).sum()) / outline
    faults = []
    if np.quantile(off, 0.98) > FLAT:
        faults.append(f"not two flat colours: 2 % of the pixels are off by {np.quantile(off, 0.98):.0f}")
    if softness > SOFT:
        faults.append(f"blurred: {softness:.1f} half-covered pixels per outline pixel")
    return faults


def extent(cover: np.ndarray) -> tuple[int, int, int, int]:
    """The shape's bounding box: left, top, width, height in pixels."""
    rows, columns = (np.flatnonzero((cover > 0.5).any(axis=axis)) for axis in (1, 0))
    left, right, top, bottom = (int(edge) for edge in (columns[0], columns[-1], rows[0], rows[-1]))
    return left, top, right - left + 1, bottom - top + 1


def template(name: str, box: tuple[float, ...], shape: tuple[int, int], fine: int = 4) -> np.ndarray:
    """The template's cover of each pixel when it fills this box: mean of fine x fine points."""
    left, top, width, height = box
    y, x = ((np.arange(side * fine) + 0.5) / fine for side in shape)
    u, v = np.meshgrid(2 * (x - left) / width - 1, 2 * (y - top) / height - 1)
    inside = TEMPLATES[name][0](u, v) & (np.abs(u) <= 1) & (np.abs(v) <= 1)
    return inside.reshape(shape[0], fine, shape[1], fine).mean(axis=(1, 3))


def overlap(cover: np.ndarray, name: str) -> float:
    """The best intersection over union with the template, its box's sides moved by up to 2 pixels; 0 if too long."""
    left, top, width, height = extent(cover)
    if abs(width / height / TEMPLATES[name][1] - 1) > ASPECT + 1 / min(width, height):
        return 0.0
    near = tuple(slice(max(0, start - 3), start + length + 3) for start, length in ((top, height), (left, width)))
    cover, box = cover[near], (left - near[1].start, top - near[0].start, width, height)
    best = match(cover, name, box)
    for _ in range(REACH):
        tried = {moved: match(cover, name, moved) for move in MOVES for moved in [tuple(np.add(box, move))]}
        box = max(tried, key=lambda moved: tried[moved])
        if tried[box] <= best:
            break
        best = tried[box]
    return best


def match(cover: np.ndarray, name: str, box: tuple[float, ...]) -> float:
    """The intersection over union of the cover and the template that fills this box."""
    drawn = template(name, box, cover.shape)
    return float(np.minimum(cover, drawn).sum() / np.maximum(cover, drawn).sum())
