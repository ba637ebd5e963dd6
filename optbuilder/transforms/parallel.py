"""Stage `parallel`: one picture on several GPUs, under torchrun."""

from __future__ import annotations

import os
from typing import Any

from optbuilder.components import modules_named
from optbuilder.technique import Context, Need, needs_choice, needs_denoiser, technique

_SOURCE = "https://huggingface.co/docs/diffusers/training/distributed_inference"
_BACKENDS = ("native", "_native_cudnn", "_native_flash", "flash", "flash_hub", "_flash_3_hub", "sage", "sage_hub")


def world_size() -> int:
    """The number of processes that torchrun started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def _degree(context: Context) -> dict[str, Any]:
    return {"degree": world_size()}


def _processes(context: Context) -> str | None:
    if context.machine.kind == "cpu":
        return "diffusers shares work between accelerators and finds none here. Use parallel=none, or GPUs"
    if world_size() == 1:
        return "it shares work between processes. Start with: torchrun --nproc-per-node <GPUs> -m optbuilder ..."
    if context.options["degree"] != world_size():
        return (
            f"degree={context.options['degree']} is not torchrun's number of processes, {world_size()}. Leave it null"
        )
    return None


def _goes_with(context: Context) -> str | None:
    stages = context.stages
    if stages.get("compile"):
        return "the hooks that share the sequence do not compile. Use compile=none"
    if stages.get("offload"):
        return "a shared model must stay on its GPU. Use offload=none"
    backend = stages.get("attention", {}).get("backend", "native")
    if backend not in _BACKENDS or "kernel" in stages.get("attention", {}):
        return f"this attention cannot share a sequence. Use attention={', '.join(_BACKENDS[:3])}"
    return None


@technique(
    lossless=True,
    source=_SOURCE,
    adds_hooks=True,
    needs=(
        needs_choice("kind", ("ulysses", "ring")),
        Need("torchrun, GPUs", _processes),
        needs_denoiser(
            "a model with a context-parallel plan",
            lambda facts: facts.shares_sequence,
            "has no plan for sharing its sequence. Use parallel=none",
        ),
        Need("compile=none, offload=none", _goes_with),
    ),
    derive=_degree,
)
def context_parallel(pipe: Any, *, kind: str = "ulysses", degree: int | None = None) -> Any:
    """Share the denoiser's sequence between the processes of torchrun. Lossless but for rounding.

    Every process generates the same pictures; the first one records them.
    Source: https://huggingface.co/docs/diffusers/training/distributed_inference#context-parallelism
    """
    import torch
    from diffusers import ContextParallelConfig

    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group()
    for module in modules_named(pipe, ["denoiser"]).values():
        module.enable_parallelism(config=ContextParallelConfig(**{f"{kind}_degree": degree or world_size()}))
    return pipe
