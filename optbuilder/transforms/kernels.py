"""Stage `kernels`: other code behind the layers of a class."""

from __future__ import annotations

import logging
from importlib import import_module
from types import MethodType
from typing import Any

from optbuilder.components import modules_named
from optbuilder.technique import Context, Need, needs_capability, needs_package, technique

log = logging.getLogger(__name__)


def _trusted(context: Context) -> str | None:
    if not context.options["layers"]:
        return "it needs a layer. Write +kernels.layers.RMSNorm=<module.function> 'trusted_modules=[<module>]'"
    for layer, target in context.options["layers"].items():
        module, _, name = str(target).rpartition(".")
        if module not in context.trusted_modules:
            return (
                f"layers.{layer}={target!r} is not of a trusted module. If you wrote it, add trusted_modules=[{module}]"
            )
        try:
            getattr(import_module(module), name)
        except (ImportError, AttributeError) as error:
            return f"layers.{layer}={target!r} cannot be imported ({error})"
    return None


@technique(
    lossless=True,
    source="https://huggingface.co/docs/diffusers/optimization/fp16",
    needs=(Need("kernels.layers, trusted_modules", _trusted),),
)
def replace_forward(
    pipe: Any,
    *,
    layers: dict[str, str] = {},  # noqa: B006
    components: tuple[str, ...] = ("denoiser",),
) -> Any:
    """Put a function of yours behind every layer of a class: `function(self, ...)` takes the place of its forward.

    As lossless as the function is. The log counts the layers.
    Source: https://huggingface.co/docs/diffusers/optimization/fp16
    """
    for layer, target in layers.items():
        module, _, name = target.rpartition(".")
        swap(pipe, list(components), layer, getattr(import_module(module), name))
    return pipe


def swap(pipe: Any, components: list[str], layer: str, forward: Any) -> None:
    """Set `forward` as the forward of every module of the class named `layer`."""
    for component, module in modules_named(pipe, components).items():
        found = [m for m in module.modules() if type(m).__name__ == layer]
        for m in found:
            m.forward = MethodType(forward, m)
        log.info("%s: replaced the forward of %d %s layers", component, len(found), layer)


def _download_allowed(context: Context) -> str | None:
    if context.options["allow_download"]:
        return None
    return "it fetches and runs code from the Hub. Read it, then set kernels.allow_download=true"


@technique(
    lossless=True,
    source="https://huggingface.co/docs/kernels/index",
    needs=(needs_package("kernels", "0.12"), needs_capability(8, 0), Need("kernels.allow_download", _download_allowed)),
)
def hub_rms_norm(
    pipe: Any,
    *,
    repo_id: str = "kernels-community/rmsnorm",
    components: tuple[str, ...] = ("denoiser",),
    allow_download: bool = False,
) -> Any:
    """Compute RMSNorm layers with a kernel of the kernels library, fetched from the Hub. Lossless but for rounding.

    diffusers registers no layer with the kernels library, so that its `kernelize` would change nothing: the layers'
    forward is replaced by class. Source: https://huggingface.co/docs/kernels/index
    """
    from kernels import get_kernel

    layer = get_kernel(repo_id).layers.RMSNorm

    def forward(self: Any, hidden_states: Any) -> Any:
        self.variance_epsilon = self.eps
        return layer.forward(self, hidden_states)

    swap(pipe, list(components), "RMSNorm", forward)
    return pipe
