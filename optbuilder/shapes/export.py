"""Writes a trained pipe as an ordinary diffusers folder, with a short README."""

import json
from pathlib import Path
from typing import Any

import torch
from diffusers import DiffusionPipeline, ModelMixin

CARD = """\
---
license: apache-2.0
---
# {name}

A small {kind} that draws one flat shape on a flat background, 64 x 64 pixels, from prompts like
"a small red circle on a blue background": 8 shapes, 10 colours, small, large or neither. It exists so that every
technique of optbuilder can be tried on a CPU, without a network. Only optbuilder's own drawings were ever shown to it.

- Loaded by plain `{kind}.from_pretrained(folder)`; weights are stored as float16.
- Call it with `{call}`.
- Trained from scratch by `python -m optbuilder.shapes.train {part}`: {steps} steps in {minutes:.0f} minutes
  on {threads} CPU thread(s) ({processor}), between the two courses of the autoencoder that both shapes models share
  (`train vae` before, `train decoder` after).
- About 15 % of the (shape, colour, colour) combinations were never shown in training.
- Judged accuracy: unknown; `python -m optbuilder.shapes.accept --note FOLDER` measures it and writes it here.
- Licence: Apache-2.0.
"""


def write(pipe: DiffusionPipeline, folder: Path, **card: Any) -> None:
    """Saves the pipe in float16 safetensors; `card` fills the README."""
    card |= {"threads": torch.get_num_threads(), "processor": torch.backends.cpu.get_cpu_capability()}
    save(pipe, folder)
    (folder / "README.md").write_text(CARD.format(name=folder.name, kind=type(pipe).__name__, **card))


def save(module: DiffusionPipeline | ModelMixin, folder: Path) -> None:
    """Saves a pipe, or one model of it, in float16 safetensors."""
    module.to(torch.float16).save_pretrained(folder, safe_serialization=True)
    for path in folder.rglob("*.json"):
        _neutral(path)
    for path in folder.rglob("*.safetensors"):
        path.chmod(0o644)  # safetensors writes for the owner's eyes only


def _neutral(path: Path) -> None:
    """Drops the training machine's paths, and keeps transformers from loading float16 where diffusers loads float32."""
    content = json.loads(path.read_text())
    content.pop("_name_or_path", None)
    if "dtype" in content:
        content["dtype"] = "float32"
    path.write_text(json.dumps(content, indent=2) + "\n")
