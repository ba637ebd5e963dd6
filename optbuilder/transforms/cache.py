"""Stage `cache`: reuse what a denoising step computed in the next ones. Here, whole blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from optbuilder.components import modules_named
from optbuilder.counters import counted
from optbuilder.library import pipeline_source
from optbuilder.model import expand
from optbuilder.state import at_end
from optbuilder.technique import Context, Need, needs_denoiser, needs_package, technique

SOURCE = "https://huggingface.co/docs/diffusers/optimization/cache"


def needs_in_pipeline(word: str, what: str) -> Need:
    def check(context: Context) -> str | None:
        source = pipeline_source(context.model.pipeline_class)
        return f"{context.model.pipeline_class} {what}. Use another cache" if source and word not in source else None

    return Need("", check)


def compiled_denoisers(context: Context) -> list[str]:
    components = (context.stages.get("compile") or {}).get("components", [])
    return [name for name in expand(components, context.model.components) if name in context.model.denoisers]


def _outside_the_graph(context: Context) -> str | None:
    compiled = context.stages.get("compile")
    if compiled and "duck_shape" in compiled and compiled_denoisers(context):
        return (
            "it decides block by block whether to compute, which cannot happen inside one graph. Use compile=regional"
        )
    return None


def _only(kind: str) -> Need:
    def check(context: Context) -> str | None:
        names = [context.model.components[name] for name in context.model.denoisers]
        if any(name.startswith(kind) for name in names):
            return None
        here = ", ".join(names)
        return f"this cache acts on {kind} models only: on {here} it would change nothing. Use cache=first_block"

    return Need(f"a {kind} model", check)


def skipped(options: Mapping[str, Any], counters: Mapping[str, Any]) -> str | None:
    calls = counters["calls"]
    if calls.get("cache.offered") and calls.get("cache.computed", 0) < calls["cache.offered"]:
        return None
    return "nothing was skipped. Use more steps, or options that skip more"


CACHES = needs_denoiser(
    "a model with enable_cache", lambda facts: "CacheMixin" in facts.bases, "has no enable_cache. Use cache=none"
)
_BLOCKS = (CACHES, Need("compile=none or regional", _outside_the_graph))
CONTEXT = needs_in_pipeline("cache_context", "gives its denoiser no cache_context, without which this cache raises")


def _blocks(module: Any) -> list[Any]:
    """The modules of the classes in `_repeated_blocks`; where a model names none, those in its lists of modules."""
    from torch.nn import ModuleList

    named = [m for m in module.modules() if type(m).__name__ in (module._repeated_blocks or ())]
    return named or [m for child in module.children() if isinstance(child, ModuleList) for m in child]


def enable(pipe: Any, config: Any, units: Callable[[Any], list[Any]]) -> Any:
    """Enable one of diffusers' caches on the denoiser."""
    return _counting(pipe, lambda denoiser: denoiser.enable_cache(config), units)


def _counting(pipe: Any, start: Callable[[Any], Any], units: Callable[[Any], list[Any]]) -> Any:
    """Enable a cache on each denoiser, and count how many of its units are offered and how many computed."""
    for module in modules_named(pipe, ["denoiser"]).values():
        offered = units(module)
        for unit in offered:
            unit.forward = counted("cache.computed", unit.forward)
        start(module)
        module.forward = counted("cache.offered", module.forward, len(offered))
    return pipe


@technique(lossless=False, source=SOURCE, adds_hooks=True, needs=(*_BLOCKS, CONTEXT), ran=skipped)
def first_block(pipe: Any, *, threshold: float = 0.05) -> Any:
    """Skip the other blocks of a step where the first block's residual changed by less than `threshold`. Lossy.

    Source: https://huggingface.co/docs/diffusers/api/cache#firstblockcache (ParaAttention's First Block Cache)
    """
    from diffusers import FirstBlockCacheConfig

    return enable(pipe, FirstBlockCacheConfig(threshold=threshold), _blocks)


def _steps(context: Context) -> dict[str, Any]:
    return {"num_inference_steps": context.run.num_inference_steps}


def _ratios(context: Context) -> str | None:
    steps = context.options["num_inference_steps"]
    if context.options["mag_ratios"] is None and not context.model.pipeline_class.startswith("Flux"):
        return "diffusers has ratios for FLUX.1 only. Measure this model's and set cache.mag_ratios"
    if steps is None:
        return "it must know the number of steps. Set run.num_inference_steps"
    return None if steps == context.run.num_inference_steps else "num_inference_steps is not the run's. Leave it null"


def _borrowed_ratios(context: Context) -> str | None:
    return (
        "the ratios are FLUX.1-dev's own; another model wants its own"
        if context.options["mag_ratios"] is None
        else None
    )


@technique(
    lossless=False,
    source=SOURCE,
    adds_hooks=True,
    needs=(*_BLOCKS, Need("", _ratios)),
    derive=_steps,
    warns=_borrowed_ratios,
    ran=skipped,
)
def mag_cache(
    pipe: Any,
    *,
    threshold: float = 0.06,
    max_skip_steps: int = 3,
    retention_ratio: float = 0.2,
    num_inference_steps: int | None = None,
    mag_ratios: list[float] | None = None,
) -> Any:
    """Skip a step's blocks while the known decay of residuals keeps the error under `threshold`. Lossy.

    Source: https://arxiv.org/abs/2506.09045
    """
    from diffusers import MagCacheConfig
    from diffusers.hooks.mag_cache import FLUX_MAG_RATIOS

    config = MagCacheConfig(
        threshold=threshold,
        max_skip_steps=max_skip_steps,
        retention_ratio=retention_ratio,
        num_inference_steps=num_inference_steps,
        mag_ratios=FLUX_MAG_RATIOS if mag_ratios is None else mag_ratios,
    )
    return enable(pipe, config, _blocks)


@technique(
    lossless=True,
    source=SOURCE,
    adds_hooks=True,
    needs=(*_BLOCKS, _only("NucleusMoE")),
    ran=lambda options, counters: None,
)
def text_kv(pipe: Any) -> Any:
    """Compute the keys and values of the prompt once for all steps. Lossless.

    Source: https://huggingface.co/docs/diffusers/api/cache
    """
    from diffusers import TextKVCacheConfig

    return enable(pipe, TextKVCacheConfig(), _blocks)


@technique(lossless=False, source=SOURCE, adds_hooks=True, needs=(*_BLOCKS, _only("Cosmos3"), CONTEXT), ran=skipped)
def sea_cache(pipe: Any, *, threshold: float = 0.25, max_consecutive_cached: int = 2) -> Any:
    """Skip steps whose spectrally weighted change is small. Lossy.

    Source: https://huggingface.co/docs/diffusers/api/cache
    """
    from diffusers import SeaCacheConfig

    return enable(pipe, SeaCacheConfig(threshold=threshold, max_consecutive_cached=max_consecutive_cached), _blocks)


def _keeps_forward(context: Context) -> str | None:
    if "kernel" in (context.stages.get("attention") or {}):
        why = "cache-dit replaces the denoiser's forward, and with it the choice of the SDPA kernel"
        return f"{why}. Use attention=native_math or another of the dispatcher's, or cache=first_block"
    return None


@technique(
    lossless=False,
    source="https://github.com/vipshop/cache-dit",
    adds_hooks=True,
    needs=(needs_package("cache-dit", "1.5"), *_BLOCKS, Need("no attention=sdpa_...", _keeps_forward)),
    ran=skipped,
)
def dbcache(
    pipe: Any,
    *,
    first_blocks: int = 1,
    last_blocks: int = 0,
    warmup_steps: int = 2,
    max_cached_steps: int = -1,
    threshold: float = 0.08,
) -> Any:
    """Compute the first and last blocks of every step, and the others where the first ones' residual changed by more
    than `threshold` (cache-dit's DBCache). Lossy.

    cache-dit patches the pipeline's class, which is undone when the job ends.
    Source: https://github.com/vipshop/cache-dit
    """
    import cache_dit

    config = cache_dit.DBCacheConfig(
        Fn_compute_blocks=first_blocks,
        Bn_compute_blocks=last_blocks,
        max_warmup_steps=warmup_steps,
        max_cached_steps=max_cached_steps,
        residual_diff_threshold=threshold,
    )
    at_end(lambda: cache_dit.disable_cache(pipe))
    return _counting(pipe, lambda _: cache_dit.enable_cache(pipe, cache_config=config), _blocks)
