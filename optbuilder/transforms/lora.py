"""Stage `lora`: adapters that change what a model draws."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from optbuilder.technique import Context, Need, needs_denoiser, needs_package, technique

log = logging.getLogger(__name__)


def adapter_file(path: str) -> Path | None:
    """The .safetensors file of a path: itself, or the only one in a folder."""
    place = Path(path).expanduser()
    found = sorted(place.glob("*.safetensors")) if place.is_dir() else [place]
    return found[0] if len(found) == 1 and found[0].suffix == ".safetensors" and found[0].is_file() else None


def _files(context: Context) -> str | None:
    paths, weights = context.options["paths"], context.options["weights"]
    if not paths:
        return "it needs a file. Write 'lora.paths=[<adapter.safetensors>]'"
    missing = [path for path in paths if adapter_file(path) is None]
    if missing:
        return f"paths={missing[0]!r}: there is no .safetensors file, or more than one. Name the file itself"
    if weights and len(weights) != len(paths):
        return f"weights={weights}: {len(paths)} paths need as many weights. Write one for each"
    return None


def _fits(context: Context) -> str | None:
    """Whether each file has weights for a part of this model, going by the names that it gives them."""
    from safetensors import safe_open

    parts = [name for name in context.model.components if name.startswith(("unet", "transformer", "text_encoder"))]
    for file in filter(None, map(adapter_file, context.options["paths"])):
        with safe_open(file, framework="numpy") as tensors:
            names = list(tensors.keys())
        known = any(name.startswith(("unet", "transformer", "text_encoder")) for name in names)
        if known and not any(name.startswith(f"{part}.") for name in names for part in parts):
            part = names[0].partition(".")[0]
            return f"{file.name!r} has weights for {part!r}, which {context.model.pipeline_class} has not"
    return None


def _hotswap(context: Context) -> str | None:
    if context.options["hotswap_rank"] and context.options["fuse"]:
        return "fused adapters cannot be swapped. Use lora.fuse=false too"
    return None


@technique(
    lossless=False,
    source="https://huggingface.co/docs/diffusers/using-diffusers/loading_adapters",
    needs=(
        needs_package("peft", "0.17"),
        needs_denoiser("", lambda facts: "PeftAdapterMixin" in facts.bases, "takes no adapters. Use lora=none"),
        Need("lora.paths", _files),
        Need("", _fits),
        Need("", _hotswap),
    ),
)
def load_adapters(
    pipe: Any,
    *,
    paths: tuple[str, ...] = (),
    weights: tuple[float, ...] = (),
    fuse: bool = True,
    hotswap_rank: int | None = None,
) -> Any:
    """Load LoRA adapters and merge them into the weights (`fuse`), or keep them beside.

    Lossy, as it is meant to be: another picture, the same one fused or not. `hotswap_rank` pads adapters to one rank,
    so that a compiled graph takes another one with `pipe.load_lora_weights(..., hotswap=True)` as it is.
    Source: https://huggingface.co/docs/diffusers/api/loaders/lora
    """
    if hotswap_rank:
        pipe.enable_lora_hotswap(target_rank=hotswap_rank)
    names = [f"adapter_{number}" for number in range(len(paths))]
    for name, path in zip(names, paths, strict=True):
        file = adapter_file(path)
        pipe.load_lora_weights(str(file.parent), weight_name=file.name, adapter_name=name)
    pipe.set_adapters(names, list(weights) or [1.0] * len(names))
    layers = [m for part in pipe.components.values() if hasattr(part, "modules") for m in part.modules()]
    log.info("%d adapters on %d layers", len(names), sum(hasattr(layer, "lora_A") for layer in layers))
    if fuse:
        pipe.fuse_lora(adapter_names=names)
        pipe.unload_lora_weights()
    return pipe
