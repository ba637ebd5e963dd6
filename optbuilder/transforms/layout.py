"""Stage `layout`: the memory format of convolution weights."""

from __future__ import annotations

import logging
from typing import Any

from optbuilder.components import modules_named
from optbuilder.technique import technique

log = logging.getLogger(__name__)


@technique(lossless=True, source="https://huggingface.co/docs/diffusers/optimization/fp16#memory-layout")
def channels_last(pipe: Any, *, components: tuple[str, ...] = ("denoiser", "vae")) -> Any:
    """Store convolution weights channels last (NHWC, or NDHWC for video). Lossless.

    Set on each component: `pipe.to(memory_format=...)` changes nothing. One without convolutions stays as it is.
    Source: https://docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html
    """
    import torch

    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    for name, module in modules_named(pipe, list(components)).items():
        ranks = {p.ndim for p in module.parameters()} & formats.keys()
        if not ranks:
            log.info("%s has no convolution weights; it stays as it is", name)
        for convolution in (m for m in module.modules() if _rank(m) in formats):
            convolution.to(memory_format=formats[_rank(convolution)])
    return pipe


def _rank(module: Any) -> int:
    """The rank of a module's own weight; 0 without one. A whole model may mix ranks, which `.to` refuses."""
    weight = module._parameters.get("weight")
    return 0 if weight is None else weight.ndim
