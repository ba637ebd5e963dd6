"""The training pictures: drawn once, kept in the work folder, coloured again for every batch."""

import os
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from optbuilder.shapes import draw

PICTURES = 40_000
SEED = 20_26
WORK = Path.home() / ".cache" / "optbuilder" / "shapes"

Pictures = dict[str, Any]  # masks, colours and prompts; see `pictures`


def save(value: Any, path: Path) -> None:
    """torch.save that leaves either the old file or the whole new one, whenever the process dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    with part.open("wb") as file:
        torch.save(value, file)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def pictures(work: Path, count: int | None = None) -> Pictures:
    """Drawings of the training combinations: masks uint8 (count, 64, 64), the rows of their colours, prompts."""
    count = count or PICTURES
    path = work / f"pictures-{count}.pt"
    if not path.exists():
        rng = random.Random(SEED)
        among = draw.combinations(kept_out=False)
        drawings = [draw.sample(rng, among) for _ in range(count)]
        names = list(draw.COLOURS)
        rows = [[names.index(d.foreground), names.index(d.background)] for d in drawings]
        masks = torch.stack([torch.from_numpy(draw.mask(d).copy()) for d in drawings])
        save({"masks": masks, "colours": torch.tensor(rows), "prompts": [d.prompt for d in drawings]}, path)
    return torch.load(path, weights_only=True)


def pixels(data: Pictures, rows: torch.Tensor) -> torch.Tensor:
    """The pictures of these rows as float (n, 3, 64, 64) in -1..1."""
    palette = torch.tensor(list(draw.COLOURS.values())) / 127.5 - 1
    foreground, background = palette[data["colours"][rows]].unsqueeze(-1).unsqueeze(-1).unbind(1)
    cover = data["masks"][rows].unsqueeze(1) / 255
    return cover * foreground + (1 - cover) * background


@dataclass(frozen=True)
class Lessons:
    """What a denoiser learns from: scaled latents, and per tokenizer the ids of their prompts and of the empty one."""

    latents: torch.Tensor
    ids: tuple[torch.Tensor, ...]
    empty: tuple[torch.Tensor, ...]

    def batch(self, count: int, random: torch.Generator) -> tuple[torch.Tensor, ...]:
        """Random latents, then their prompts' ids per tokenizer."""
        rows = torch.randint(len(self.latents), (count,), generator=random)
        return self.latents[rows].float(), *(ids[rows] for ids in self.ids)


def lessons(work: Path, scaling: float, shift: float, tokenizers: tuple[PreTrainedTokenizerBase, ...]) -> Lessons:
    """The encoded pictures of the work folder, brought to unit scale, with their prompts in tokens."""
    kept = torch.load(work / "latents.pt", weights_only=True)

    def ids(prompts: list[str]) -> tuple[torch.Tensor, ...]:
        padded = (t(prompts, padding="max_length", truncation=True, return_tensors="pt") for t in tokenizers)
        return tuple(tokens.input_ids for tokens in padded)

    return Lessons((kept["latents"].float() - shift).mul(scaling).half(), ids(kept["prompts"]), ids([""]))
