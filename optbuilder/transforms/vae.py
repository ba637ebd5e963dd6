"""Stage `vae`: how latents become pictures."""

from __future__ import annotations

import inspect
from typing import Any

from optbuilder.request import shapes
from optbuilder.technique import Context, Need, technique

_SOURCE = "https://huggingface.co/docs/diffusers/optimization/memory"


def _has_method(method: str) -> Need:
    def check(context: Context) -> str | None:
        if "vae" not in context.model.components:
            return f"{context.model.pipeline_class} has no VAE. Use vae=none"
        facts = context.model.facts("vae")
        inherited = any(base in ("AutoencoderMixin",) for base in facts.bases)
        if facts.known and method not in facts.methods and not inherited:
            return f"{facts.name} has no {method}. Use vae=none"
        return None

    return Need(f"a VAE with {method}", check)


def _a_batch(context: Context) -> str | None:
    if context.run.images_per_prompt > 1:
        return None
    return "batches of one picture have nothing to slice: it would change nothing. Use run.images_per_prompt=2 or more"


def tile_size(context: Context) -> int | None:
    """The side of the VAE's tile in pixels, as far as its config tells."""
    size = context.options["tile_size"] or context.model.configs.get("vae", {}).get("sample_size")
    return max(size) if isinstance(size, list) else size


def _whole_latents(context: Context) -> str | None:
    """Tiles overlap in whole latents: where they cannot, some VAEs decode to another size."""
    size, step = context.options["tile_size"], 2 * max(16, context.model.known.get("multiple_of") or 0)
    if size and size % step:
        why = f"tiles overlap in whole latents, for which their side must be a multiple of {step}"
        return f"tile_size={size}: {why}. Use vae.tile_size={max(step, size // step * step)}"
    return None


def _several_tiles(context: Context) -> str | None:
    size, every = tile_size(context), [(s.height, s.width) for s in shapes(context.run)]
    sides = every[-1]
    if size and all(side and side <= size for pair in every for side in pair):
        return (
            f"a picture of {sides[1]}x{sides[0]} fits one tile of {size}x{size}: it would change nothing. "
            "Use a smaller vae.tile_size or vae=none"
        )
    return None


@technique(
    lossless=True, source=_SOURCE, needs=(_has_method("enable_slicing"), Need("several images per prompt", _a_batch))
)
def enable_slicing(pipe: Any) -> Any:
    """Decode the pictures of a batch one after the other: the memory of one. Lossless but for rounding.

    Source: https://huggingface.co/docs/diffusers/optimization/memory#vae-slicing
    """
    pipe.vae.enable_slicing()
    return pipe


@technique(
    lossless=False,
    source=_SOURCE,
    needs=(
        _has_method("enable_tiling"),
        Need("a picture larger than a tile", _several_tiles),
        Need("", _whole_latents),
    ),
)
def enable_tiling(pipe: Any, *, tile_size: int | None = None) -> Any:
    """Decode in overlapping tiles of `tile_size` pixels a side: the memory of one tile. Lossy.

    Tiles see only themselves; with a size given, they overlap by a quarter. Source: https://huggingface.co/docs/diffusers/optimization/memory#vae-tiling
    """
    if tile_size and "tile_sample_min_height" in (takes := inspect.signature(pipe.vae.enable_tiling).parameters):
        factor = getattr(pipe.vae, "spatial_compression_ratio", 8)
        stride = max(1, tile_size * 3 // 4 // factor) * factor
        sizes = {"tile_sample_min": tile_size, "tile_sample_stride": stride, "tile_overlap_factor": 0.25}
        given = {f"{name}_{side}": size for name, size in sizes.items() for side in ("height", "width")}
        pipe.vae.enable_tiling(**{name: size for name, size in given.items() if name in takes})
        return pipe
    pipe.vae.enable_tiling()
    if tile_size:
        factor = 2 ** (len(pipe.vae.config.block_out_channels) - 1)
        pipe.vae.tile_sample_min_size, pipe.vae.tile_latent_min_size = tile_size, tile_size // factor
    return pipe


def _names_a_decoder(context: Context) -> str | None:
    return (
        None
        if context.options["repo_id"]
        else "it needs a model. Write vae.repo_id=<AutoencoderTiny: folder or Hub id>"
    )


@technique(lossless=False, source=_SOURCE, needs=(Need("vae.repo_id", _names_a_decoder),))
def tiny_decoder(pipe: Any, *, repo_id: str | None = None) -> Any:
    """Put a small distilled autoencoder (AutoencoderTiny) in the VAE's place: much faster decoding. Lossy.

    Source: https://huggingface.co/docs/diffusers/api/models/autoencoder_tiny
    """
    from diffusers import AutoencoderTiny

    tiny = AutoencoderTiny.from_pretrained(repo_id, dtype=pipe.vae.dtype, use_safetensors=True)
    pipe.vae = tiny.to(pipe.vae.device)
    return pipe
