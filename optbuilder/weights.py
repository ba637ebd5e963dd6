"""Whether a model's folder is whole: its components are there, and no weight file was cut short. Nothing is loaded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from optbuilder.model import Model

_HEADER = 8  # bytes at the start of a safetensors file that hold the size of its JSON header
_HEADER_MOST = 100_000_000  # what the safetensors library takes as a header's size


def faults(model: Model) -> Iterator[str]:
    """Why the folder cannot be loaded, one line for each component that is not whole.

    Where only a model's JSON files are here (the Hub has the rest), or random weights take their place, there is
    nothing to look at.
    """
    if model.elsewhere or model.weights == "dummy":
        return
    for name, library in model.libraries.items():
        folder = model.folder / name
        if not folder.is_dir():
            yield f"model_index.json names {name}, and there is no such folder in it"
        elif _needs_config(model, name, library) and name not in model.configs:
            yield f"{name} has no config.json"
        else:
            yield from (f"{name}: {fault}" for file in sorted(folder.glob("*.safetensors")) if (fault := _cut(file)))
            yield from (f"{name}: {fault}" for fault in _missing_shards(folder))


def _needs_config(model: Model, name: str, library: str) -> bool:
    """Whether the component is a neural network; tokenizers and image processors have files of other names."""
    return library == "diffusers" or (library == "transformers" and "Model" in model.components[name])


def _cut(file: Path) -> str | None:
    """Why a safetensors file is not one: the header says how many bytes must follow it."""
    with file.open("rb") as content:
        length = int.from_bytes(content.read(_HEADER), "little")
        try:
            if length > _HEADER_MOST:
                raise ValueError("its header has an impossible size")
            header = json.loads(content.read(length))
            ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
            whole = _HEADER + length + max(ends, default=0)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
            return f"{file.name} is no safetensors file ({error})"
    size = file.stat().st_size
    return f"{file.name} has {size} bytes and should have {whole}" if size != whole else None


def _missing_shards(folder: Path) -> Iterator[str]:
    for index in sorted(folder.glob("*.safetensors.index.json")):
        try:
            files = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
            missing = sorted(name for name in files if not (folder / name).is_file())
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            yield f"{index.name} is no list of weight files ({error})"
        else:
            yield from (f"{name} is missing, which {index.name} names" for name in missing)
