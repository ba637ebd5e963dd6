"""Stage `fusion`: one projection in place of several."""

from __future__ import annotations

import logging
from typing import Any

from optbuilder.components import modules_named
from optbuilder.model import expand
from optbuilder.snapshot import stored_bytes
from optbuilder.technique import Context, Need, technique

log = logging.getLogger(__name__)

SPLIT = {
    "to_qkv": ("to_q", "to_k", "to_v"),
    "to_kv": ("to_k", "to_v"),
    "to_added_qkv": ("add_q_proj", "add_k_proj", "add_v_proj"),
}


def _fuses(context: Context) -> str | None:
    for name in expand(context.options["components"], context.model.components):
        facts = context.model.facts(name)
        if facts.known and "AttentionMixin" not in facts.bases and "fuse_qkv_projections" not in facts.methods:
            return f"{facts.name} ({name}) has no fuse_qkv_projections. Leave it out of fusion.components"
        if context.model.configs.get(name, {}).get("dual_attention_layers"):
            why = "diffusers' processor for fused projections does not know the second attention of its dual layers"
            return f"{facts.name} ({name}): {why}. Leave it out of fusion.components"
        if facts.known and not facts.fuses_projections:
            why = "the attention layers have nothing that fuse_qkv_projections fuses: it would change nothing"
            return f"of {facts.name} ({name}) {why}. Leave it out of fusion.components"
    return None


def _adapters_stay_split(context: Context) -> str | None:
    lora = context.stages.get("lora")
    if lora and not lora.get("fuse", True):
        return "fused projections would drop the adapters of the split ones. Use lora.fuse=true"
    return None


@technique(
    lossless=True,
    source="https://huggingface.co/docs/diffusers/optimization/fp16#fused-projections",
    needs=(Need("fuse_qkv_projections", _fuses), Need("no unfused LoRA", _adapters_stay_split)),
)
def fuse_qkv(pipe: Any, *, components: tuple[str, ...] = ("denoiser",), drop_split: bool = False) -> Any:
    """Compute query, key and value with one matmul (key and value in cross-attention). Lossless.

    UNets and AutoencoderKL keep the separate projections beside the fused ones; the log says what that costs in bytes,
    and `drop_split` frees them.
    Source: https://huggingface.co/docs/diffusers/optimization/fp16#fused-projections
    """
    import torch

    for name, module in modules_named(pipe, list(components)).items():
        before = sum(stored_bytes(p) for p in module.parameters())
        with torch.random.fork_rng():  # a new Linear draws its first weights from the global generator
            module.fuse_qkv_projections()
        if drop_split:
            drop_split_projections(module)
        extra = sum(stored_bytes(p) for p in module.parameters()) - before
        log.info("%s: fused projections take %+d bytes", name, extra)
    return pipe


def drop_split_projections(module: Any) -> None:
    """Free the projections that a fused one stands in for."""
    for attention in module.modules():
        for fused, splits in SPLIT.items():
            for split in splits if getattr(attention, fused, None) is not None else ():
                attention._modules.pop(split, None)
