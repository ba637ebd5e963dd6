"""Stage `cache`, the caches that work inside blocks: attention reused or extrapolated from earlier steps."""

from __future__ import annotations

import re
from typing import Any

from optbuilder.components import modules_named
from optbuilder.library import pipeline_source
from optbuilder.technique import Context, Need, technique
from optbuilder.transforms.cache import (
    CACHES,
    CONTEXT,
    SOURCE,
    compiled_denoisers,
    enable,
    needs_in_pipeline,
    skipped,
)


def _no_compiled_blocks(context: Context) -> str | None:
    compiled = context.stages.get("compile")
    if compiled and ("components" not in compiled or compiled_denoisers(context)):
        fix = "Use cache=first_block, cache=mag_cache or compile=none"
        return f"it decides inside each block, which cannot happen in a graph. {fix}"
    return None


_ATTENTION = (CACHES, Need("compile=none", _no_compiled_blocks))
_TIMESTEP = needs_in_pipeline("current_timestep", "keeps no current_timestep, which this cache asks for")


def attentions(module: Any) -> list[Any]:
    return [m for m in module.modules() if hasattr(m, "processor") and hasattr(m, "set_processor")]


@technique(lossless=False, source=SOURCE, adds_hooks=True, needs=(*_ATTENTION, _TIMESTEP), ran=skipped)
def pyramid_attention(pipe: Any, *, skip_range: int = 2, first_timestep: int = 100, last_timestep: int = 800) -> Any:
    """Compute self-attention in one of `skip_range` steps between two timesteps, and reuse it in the others. Lossy.

    Source: https://arxiv.org/abs/2408.12588
    """
    from diffusers import PyramidAttentionBroadcastConfig

    config = PyramidAttentionBroadcastConfig(
        spatial_attention_block_skip_range=skip_range,
        spatial_attention_timestep_skip_range=(first_timestep, last_timestep),
        current_timestep_callback=lambda: pipe.current_timestep,
    )
    return enable(pipe, config, attentions)


def _distilled(context: Context) -> dict[str, Any]:
    return {"is_guidance_distilled": not _doubles_the_batch(context)}


def _doubles_the_batch(context: Context) -> bool:
    """Whether guidance is computed as the other half of a batch of unpacked latents, which this cache then reads."""
    source = pipeline_source(context.model.pipeline_class)
    return "latents] * 2" in source and "_pack_latents" not in source


def _halves(context: Context) -> str | None:
    if context.options["is_guidance_distilled"] or _doubles_the_batch(context):
        return None
    why = "does not compute guidance as one half of a batch of unpacked latents, which the cache would look for there"
    return f"{context.model.pipeline_class} {why}. Use cache.is_guidance_distilled=true"


@technique(
    lossless=False,
    source=SOURCE,
    adds_hooks=True,
    needs=(*_ATTENTION, _TIMESTEP, Need("", _halves)),
    derive=_distilled,
    ran=skipped,
)
def faster_cache(
    pipe: Any,
    *,
    skip_range: int = 2,
    first_timestep: int = -1,
    last_timestep: int = 681,
    is_guidance_distilled: bool | None = None,
    tensor_format: str = "BCHW",
) -> Any:
    """Extrapolate attention from earlier steps in all but one of `skip_range` steps. Lossy.

    Where `is_guidance_distilled` is false, the guidance of some steps is extrapolated too.
    Source: https://arxiv.org/abs/2410.19355
    """
    from diffusers import FasterCacheConfig

    config = FasterCacheConfig(
        spatial_attention_block_skip_range=skip_range,
        spatial_attention_timestep_skip_range=(first_timestep, last_timestep),
        is_guidance_distilled=bool(is_guidance_distilled),
        tensor_format=tensor_format,
        attention_weight_callback=lambda _: 0.5,
        current_timestep_callback=lambda: pipe.current_timestep,
    )
    return enable(pipe, config, attentions)


def _late_enough(context: Context) -> str | None:
    steps, first = context.run.num_inference_steps, context.options["disable_cache_before_step"]
    if steps is not None and steps <= first + 1:
        return f"all {steps} steps come before the first to be skipped. Use fewer disable_cache_before_step"
    return None


@technique(
    lossless=False, source=SOURCE, adds_hooks=True, needs=(*_ATTENTION, CONTEXT, Need("", _late_enough)), ran=skipped
)
def taylorseer(
    pipe: Any,
    *,
    cache_interval: int = 5,
    disable_cache_before_step: int = 3,
    disable_cache_after_step: int | None = None,
    max_order: int = 1,
) -> Any:
    """Compute attention in one of `cache_interval` steps and predict it by a Taylor series in the others. Lossy.

    Every attention is named to diffusers, whose own patterns find none in models that call theirs attn1 and attn2.
    Source: https://arxiv.org/abs/2503.06923
    """
    from diffusers import TaylorSeerCacheConfig

    denoiser = next(iter(modules_named(pipe, ["denoiser"]).values()))
    config = TaylorSeerCacheConfig(
        cache_interval=cache_interval,
        disable_cache_before_step=disable_cache_before_step,
        disable_cache_after_step=disable_cache_after_step,
        max_order=max_order,
        taylor_factors_dtype=denoiser.dtype,
        cache_identifiers=[re.escape(name) for name, part in denoiser.named_modules() if part in attentions(denoiser)],
    )
    return enable(pipe, config, attentions)
