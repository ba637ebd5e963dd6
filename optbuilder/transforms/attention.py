"""Stage `attention`: which kernel computes attention."""

from __future__ import annotations

from collections.abc import Mapping
from functools import wraps
from typing import Any

from optbuilder.attention_kernels import BACKENDS, SDPA, describe, unmet
from optbuilder.components import computations, modules_named
from optbuilder.errors import nearest
from optbuilder.model import expand
from optbuilder.technique import Context, Need, needs_choice, needs_denoiser, technique

KERNELS = {"math": "MATH", "flash": "FLASH_ATTENTION", "efficient": "EFFICIENT_ATTENTION", "cudnn": "CUDNN_ATTENTION"}
_SDPA_SOURCE = "https://docs.pytorch.org/docs/stable/generated/torch.nn.attention.sdpa_kernel.html"
_DISPATCHER_SOURCE = "https://huggingface.co/docs/diffusers/optimization/attention_backends"


def _kernel_runs(context: Context) -> str | None:
    components = [n.split(".")[0] for n in expand(context.options["components"], context.model.components)]
    reasons = unmet(SDPA[context.options["kernel"]], context, components) if context.options["kernel"] in SDPA else []
    return f"{'; '.join(reasons)}. Use attention=sdpa_math or attention=sdpa_flash" if reasons else None


def _backend_runs(context: Context) -> str | None:
    name = context.options["backend"]
    if name not in BACKENDS:
        return f"backend={name!r}: diffusers' dispatcher has no such backend. {nearest(name, BACKENDS)}"
    for component in context.model.denoisers:
        facts = context.model.facts(component)
        if (
            facts.known
            and not facts.dispatches_attention
            and not (name == "xformers" and facts.name.startswith("UNet"))
        ):
            return (
                f"{facts.name} ({component}) does not use diffusers' attention dispatcher, so that this would change "
                "nothing. Use attention=sdpa_flash, sdpa_math, sdpa_efficient or sdpa_cudnn"
            )
    reasons = unmet(BACKENDS[name], context, context.model.denoisers)
    return f"{'; '.join(reasons)}. Use attention=native or attention=sdpa_flash" if reasons else None


def _varlen_breaks(context: Context) -> str | None:
    compiled = context.stages.get("compile") or {}
    if "varlen" in context.options["backend"] and compiled.get("fullgraph"):
        return (
            "a variable-length kernel reads its lengths on the host, which breaks a full graph. "
            "Use compile.fullgraph=false, or another attention"
        )
    return None


def _kernel_was_called(options: Mapping[str, Any], counters: Mapping[str, Any]) -> str | None:
    called = counters["attention_kernels"]
    if any(options["kernel"] in name for name in called):
        return None
    return f"no {options['kernel']} kernel was called; called were: {', '.join(called) or 'none'}"


@technique(
    lossless=True,
    source=_SDPA_SOURCE,
    needs=(
        needs_choice("kernel", tuple(KERNELS)),
        Need(lambda options: describe(SDPA[options["kernel"]]), _kernel_runs),
    ),
    ran=_kernel_was_called,
)
def sdpa_kernel(pipe: Any, *, kernel: str = "math", components: tuple[str, ...] = ("denoiser",)) -> Any:
    """Compute every scaled_dot_product_attention of `components` with one of PyTorch's kernels, or fail.

    Lossless but for rounding. The choice is made inside each component's own forward, since a context
    around the pipeline's call is not seen by a compiled graph.
    Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.attention.sdpa_kernel.html
    """
    from torch.nn.attention import SDPBackend

    backend = getattr(SDPBackend, KERNELS[kernel])
    for module, method in computations(pipe, list(components)).values():
        setattr(module, method, with_kernel(getattr(module, method), backend))
    return pipe


def with_kernel(forward: Any, backend: Any) -> Any:
    """Wrap a forward so that it runs under one SDPA backend."""
    from torch.nn.attention import sdpa_kernel as choose

    @wraps(forward)
    def sdpa(*args: Any, **kwargs: Any) -> Any:
        with choose(backend):
            return forward(*args, **kwargs)

    return sdpa


@technique(
    lossless=lambda options: "sage" not in options["backend"],
    source=_DISPATCHER_SOURCE,
    needs=(
        Need(lambda options: describe(BACKENDS[options["backend"]]), _backend_runs),
        Need("a model that uses the dispatcher", _varlen_breaks),
    ),
)
def set_attention_backend(pipe: Any, *, backend: str = "native") -> Any:
    """Compute the denoiser's attention with a backend of diffusers' attention dispatcher.

    Lossless, but for sage's 8 bits. The call also makes the backend the process's default, which other
    models would then use: that is put back at once. A UNet has no dispatcher, but a method of its own for xformers.
    Source: https://huggingface.co/docs/diffusers/optimization/attention_backends
    """
    from diffusers.models.attention_dispatch import _AttentionBackendRegistry as registry

    before = registry._active_backend
    for module in modules_named(pipe, ["denoiser"]).values():
        if backend == "xformers" and hasattr(module, "set_attention_slice"):
            module.enable_xformers_memory_efficient_attention()
        else:
            module.set_attention_backend(backend)
    registry.set_active_backend(before)
    return pipe


@technique(
    lossless=True,
    source="https://huggingface.co/docs/diffusers/api/pipelines/overview",
    needs=(
        needs_choice("slice_size", ("auto", "max")),
        needs_denoiser(
            "a UNet",
            lambda facts: "set_attention_slice" in facts.methods,
            "cannot slice its attention: this would change nothing. Use attention=none",
        ),
    ),
)
def slice_attention(pipe: Any, *, slice_size: str = "auto") -> Any:
    """Compute the denoiser's attention in slices of its heads: less memory, more time. Lossless but for rounding.

    Source: https://huggingface.co/docs/diffusers/api/pipelines/overview
    """
    pipe.enable_attention_slicing(slice_size)
    return pipe
