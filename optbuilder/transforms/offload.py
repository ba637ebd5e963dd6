"""Stage `offload`: where components wait while they do not compute. Each has one owner of its place."""

from __future__ import annotations

import logging
from typing import Any

from optbuilder.components import modules_named
from optbuilder.model import expand
from optbuilder.technique import Context, Need, needs_choice, technique

log = logging.getLogger(__name__)

_SOURCE = "https://huggingface.co/docs/diffusers/optimization/memory"


def _device(context: Context) -> dict[str, Any]:
    return {"device": context.machine.device}


def _dry_run(context: Context) -> str | None:
    on_cpu = context.machine.kind == "cpu"
    return "the components wait and compute in the same memory: a dry run that saves nothing" if on_cpu else None


def _an_accelerator(context: Context) -> str | None:
    if context.machine.kind == "cpu":
        return "accelerate cannot offload layers from the CPU to the CPU. Use offload=group_leaf, or a GPU"
    return None


def _group_options(context: Context) -> str | None:
    options = context.options
    if options["level"] == "block_level" and not options["num_blocks_per_group"]:
        return "num_blocks_per_group=None: groups of blocks need a size. Use offload.num_blocks_per_group=1"
    if options["use_stream"] and context.machine.kind != "cuda":
        return (
            f"use_stream copies on a CUDA stream, which {context.machine.device} has not. Use offload.use_stream=false"
        )
    if options["record_stream"] and not options["use_stream"]:
        return "record_stream=True has no effect without use_stream. Use offload.use_stream=true too"
    if options["low_cpu_mem_usage"] and not options["use_stream"]:
        return "low_cpu_mem_usage=True has no effect without use_stream. Use offload.use_stream=true too"
    if options["offload_to_disk_path"] and context.stages.get("quant"):
        return "quantized weights cannot be written to disk group by group. Use offload_to_disk_path=null"
    return None


def _outside_the_graph(context: Context) -> str | None:
    """Group hooks sit on blocks or layers: only a graph that ends inside what a hook is on leaves them outside."""
    compiled = context.stages.get("compile")
    if not compiled:
        return None
    if context.options["level"] == "leaf_level":
        return "its hooks sit on every layer, inside the graphs. Use offload=group_block or compile=none"
    if "components" not in compiled or "duck_shape" in compiled or "package_dir" in compiled:
        return "its hooks sit on the blocks, inside the graph of the whole. Use compile=regional"
    return None


def _supported(context: Context) -> str | None:
    for name in expand(context.options["components"], context.model.components):
        facts = context.model.facts(name)
        if facts.known and facts.refuses_group_offload:
            return f"{facts.name} ({name}) does not support group offloading. Leave it out of offload.components"
    return None


@technique(lossless=True, source=_SOURCE, adds_hooks=True, derive=_device, places=True, warns=_dry_run)
def offload_components(pipe: Any, *, device: str | None = None) -> Any:
    """Keep whole components in host memory, each on the device only while it computes. Lossless.

    Peak device memory is that of the largest component.
    Source: https://huggingface.co/docs/diffusers/optimization/memory#model-offloading
    """
    pipe.enable_model_cpu_offload(device=device)
    return pipe


@technique(
    lossless=True,
    source=_SOURCE,
    adds_hooks=True,
    needs=(Need("an accelerator", _an_accelerator),),
    derive=_device,
    places=True,
)
def offload_layers(pipe: Any, *, device: str | None = None) -> Any:
    """Keep every layer in host memory, on the device only while it computes. Lossless; the least memory, much slower.

    Source: https://huggingface.co/docs/diffusers/optimization/memory#cpu-offloading
    """
    pipe.enable_sequential_cpu_offload(device=device)
    return pipe


@technique(
    lossless=True,
    source=_SOURCE,
    adds_hooks=True,
    needs=(
        needs_choice("level", ("block_level", "leaf_level")),
        Need(lambda options: "CUDA for use_stream" if options["use_stream"] else "", _group_options),
        Need("", _supported),
        Need("compile=none or regional", _outside_the_graph),
    ),
    derive=_device,
    places=True,
    warns=_dry_run,
)
def offload_groups(
    pipe: Any,
    *,
    device: str | None = None,
    level: str = "block_level",
    num_blocks_per_group: int | None = None,
    components: tuple[str, ...] = ("denoiser", "vae", "text_encoders"),
    use_stream: bool = False,
    record_stream: bool = False,
    non_blocking: bool = False,
    low_cpu_mem_usage: bool = False,
    offload_to_disk_path: str | None = None,
) -> Any:
    """Keep groups of blocks, or every layer, in host memory or on disk, and bring each in while it computes. Lossless.

    Components that are not named stay on the device.
    Source: https://huggingface.co/docs/diffusers/optimization/memory#group-offloading
    """
    import torch
    from diffusers.hooks import apply_group_offloading

    grouped = modules_named(pipe, list(components))
    for module in grouped.values():
        apply_group_offloading(
            module,
            onload_device=torch.device(device or "cpu"),
            offload_device=torch.device("cpu"),
            offload_type=level,
            num_blocks_per_group=num_blocks_per_group,
            use_stream=use_stream,
            record_stream=record_stream,
            non_blocking=non_blocking,
            low_cpu_mem_usage=low_cpu_mem_usage,
            offload_to_disk_path=offload_to_disk_path,
        )
    for name, part in pipe.components.items():
        if isinstance(part, torch.nn.Module) and name not in grouped:
            part.to(device)
            log.info("%s stays on %s", name, device)
    return pipe
