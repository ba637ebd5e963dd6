"""python -m optbuilder.shapes.accept FOLDER: draws random prompts with a trained folder, judges them, shows a sheet."""

import argparse
import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from diffusers import DiffusionPipeline
from PIL import Image

from optbuilder.shapes import draw
from optbuilder.shapes.judge import Verdict, judge

SEED = 1_000_003  # of prompts and pictures; fixed before the first training
STEPS = 25
CALLS: dict[str, dict[str, Any]] = {
    "StableDiffusionXLPipeline": {"guidance_scale": 4.0},
    "FluxPipeline": {"height": draw.SIDE, "width": draw.SIDE, "guidance_scale": 0.0, "max_sequence_length": 16},
}


@dataclass(frozen=True)
class Sample:
    """One asked picture and what became of it."""

    drawing: draw.Drawing
    picture: Image.Image
    verdict: Verdict

    @property
    def new(self) -> bool:
        """Whether training never showed this combination of shape and colours."""
        return draw.held_out(self.drawing.shape, self.drawing.foreground, self.drawing.background)


def asked(count: int, seed: int = SEED) -> list[draw.Drawing]:
    """Random requests; every third one is a combination that was kept out of training."""
    rng, known, new = random.Random(seed), draw.combinations(False), draw.combinations(True)
    return [draw.sample(rng, known if i % 3 else new) for i in range(count)]


def generate(pipe: DiffusionPipeline, drawings: list[draw.Drawing], batch: int = 20, **call: Any) -> list[Sample]:
    """A picture for each request, judged; every picture has a seed of its own."""
    call = {"num_inference_steps": STEPS, **CALLS[type(pipe).__name__], **call}
    samples = []
    for first in range(0, len(drawings), batch):
        some = drawings[first : first + batch]
        seeds = [torch.Generator().manual_seed(SEED + first + i) for i in range(len(some))]
        pictures = pipe([d.prompt for d in some], generator=seeds, **call).images
        samples += [Sample(d, p, judge(p, d.prompt)) for d, p in zip(some, pictures, strict=True)]
    return samples


def accuracy(samples: list[Sample], by: Callable[[Sample], str] = lambda sample: "all") -> dict[str, float]:
    """The accepted share, per value of `by`."""
    total, accepted = Counter(map(by, samples)), Counter(by(s) for s in samples if s.verdict.ok)
    return {name: accepted[name] / total[name] for name in sorted(total)}


def sheet(pictures: list[Image.Image], columns: int = 20, zoom: int = 1, gap: int = 2) -> Image.Image:
    """All pictures side by side, row after row."""
    side = pictures[0].width * zoom + gap
    canvas = Image.new("RGB", (columns * side, -(-len(pictures) // columns) * side), (255, 255, 255))
    for i, picture in enumerate(pictures):
        enlarged = picture.resize((side - gap, side - gap), Image.Resampling.NEAREST)
        canvas.paste(enlarged, (i % columns * side, i // columns * side))
    return canvas


def report(samples: list[Sample]) -> str:
    """The accuracy in all, by novelty, size and shape, and every refused picture's reason."""
    views: list[Callable[[Sample], str]] = [lambda s: "all", lambda s: "new" if s.new else "known"]
    views += [lambda s: s.drawing.size or "no size", lambda s: s.drawing.shape, lambda s: s.drawing.foreground]
    lines = ["  ".join(f"{name} {share:.1%}" for name, share in accuracy(samples, view).items()) for view in views]
    refused = (s for s in samples if not s.verdict.ok)
    return "\n".join([*lines, *(f"  {s.drawing.prompt}: {s.verdict.reason}" for s in refused)])


def note(folder: Path, samples: list[Sample]) -> None:
    """Writes the accuracy into the folder's README, in place of what stood there."""
    shares = accuracy(samples) | accuracy(samples, lambda s: "new" if s.new else "known")
    found = f"{shares['all']:.1%} of {len(samples)} prompts, {shares['new']:.1%} of the combinations never shown"
    card = folder / "README.md"
    line = f"- Judged accuracy (`python -m optbuilder.shapes.accept`): {found}."
    card.write_text(re.sub(r"^- Judged accuracy.*$", line, card.read_text(), flags=re.MULTILINE))


def main(arguments: list[str] | None = None) -> None:
    """Prints the report; writes the contact sheet where told."""
    parser = argparse.ArgumentParser(prog="python -m optbuilder.shapes.accept", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=SEED, help="of the requests")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--sheet", type=Path, help="a PNG to write")
    parser.add_argument("--note", action="store_true", help="write the accuracy into the folder's README.md")
    given = parser.parse_args(arguments)
    pipe = DiffusionPipeline.from_pretrained(given.folder)
    pipe.set_progress_bar_config(disable=True)
    samples = generate(pipe, asked(given.count, given.seed), num_inference_steps=given.steps)
    print(report(samples))
    if given.note:
        note(given.folder, samples)
    if given.sheet:
        sheet([s.picture for s in samples]).save(given.sheet)


if __name__ == "__main__":
    main()
