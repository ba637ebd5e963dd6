"""Stage `compile`: torch.compile. `forward` is compiled, so that class, names and state dict of a module stay as they
are, and hooks that later stages add stay outside the graph."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Mapping
from functools import wraps
from pathlib import Path
from typing import Any

from optbuilder.components import computations, modules_named
from optbuilder.errors import nearest
from optbuilder.graphs import of_blocks, of_forward
from optbuilder.library import inductor_flags
from optbuilder.model import expand
from optbuilder.technique import Context, Need, needs_choice, technique

log = logging.getLogger(__name__)

MODES = (None, "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
CUDA_GRAPHS = ("reduce-overhead", "max-autotune")
BACKENDS = ("inductor", "eager", "aot_eager", "cudagraphs")
_IGNORED_FLAGS = ("use_mixed_mm", "mixed_mm_choice")
_SOURCE = "https://docs.pytorch.org/docs/stable/generated/torch.compile.html"


def toolchain(context: Context) -> str | None:
    inductor = context.options.get("backend", "inductor") == "inductor"
    compilers = [os.environ.get("CXX"), "g++", "clang++", "c++"]
    if inductor and context.machine.kind == "cpu" and not any(shutil.which(c) for c in compilers if c):
        return "inductor needs a C++ compiler on the CPU and finds none. Install g++, or set CXX"
    return None


def _cuda_graphs(context: Context) -> str | None:
    if context.options["mode"] == "reduce-overhead" and context.machine.kind != "cuda":
        why = f"replays CUDA graphs, which {context.machine.device} has not: it would change nothing"
        return f"mode='reduce-overhead' {why}. Use compile=full"
    return None


def _blocks_overwrite(context: Context) -> str | None:
    if context.options["mode"] in CUDA_GRAPHS and context.machine.kind == "cuda":
        return (
            "a block's CUDA graph writes over what the last block gave. Use compile=full, or max-autotune-no-cudagraphs"
        )
    return None


def flags(context: Context) -> str | None:
    asked = {k: v for k, v in context.options["inductor"].items() if v is not None}
    backend = context.options.get("backend", "inductor")
    if asked and backend != "inductor":
        return f"inductor flags have no effect with backend={backend!r}. Use backend=inductor, or leave them out"
    for flag in asked:
        if flag not in inductor_flags():
            return f"inductor.{flag}: this torch has no such inductor flag. {nearest(flag, _alike(flag))}"
        if flag in _IGNORED_FLAGS:
            return f"inductor.{flag}: torch ignores this flag since 2.6. Leave it out"
    if asked.get("force_fuse_int_mm_with_mul") and context.machine.kind != "cuda":
        return "inductor.force_fuse_int_mm_with_mul acts on CUDA tensors only: it would change nothing. Leave it out"
    return None


def _alike(flag: str) -> list[str]:
    """Flags that share a word with the wrong one: the whole list of 270 would be no message."""
    words = set(flag.split("_"))
    return [f for f in inductor_flags() if words & set(f.split("_"))] or [
        "conv_1x1_as_mm",
        "coordinate_descent_tuning",
        "epilogue_fusion",
    ]


def repeated_blocks(context: Context) -> str | None:
    for name in expand(context.options["components"], context.model.components):
        cls = context.model.components[name]
        if context.model.facts(name).known and not context.model.facts(name).repeated_blocks:
            return f"{cls} ({name}) names no repeated blocks, so there is nothing regional to compile. Use compile=full"
    return None


def _regions_allowed(context: Context) -> str | None:
    if "kernel" in (context.stages.get("attention") or {}):
        why = "accelerate's compile_regions copies the model, and the forward that chooses the SDPA kernel stays behind"
        return f"{why}. Use compile=regional"
    for name in context.model.denoisers:
        if context.model.components[name].startswith("UNet"):
            return (
                f"accelerate's compile_regions wraps every submodule, and {context.model.components[name]} asks for "
                "the truth value of its own (`if self.conv_norm_out`), which a wrapped module cannot answer. "
                "Use compile=regional"
            )
    return None


def _compiled(options: Mapping[str, Any], counters: Mapping[str, Any]) -> str | None:
    if counters["limit_hit"]:
        return f"{counters['limit_hit']}; the rest ran uncompiled. Use compile.dynamic=true, or fewer sizes"
    if counters["graphs_in_timed_calls"]:
        return f"{counters['graphs_in_timed_calls']} graphs were compiled in timed calls. Use a larger run.warmup"
    return None if counters["graphs"] else "no graph was compiled"


_NEEDS = (
    Need("on the CPU a C++ compiler", toolchain),
    Need("", flags),
    Need(lambda options: "NVIDIA GPU" if options["mode"] == "reduce-overhead" else "", _cuda_graphs),
    needs_choice("mode", MODES),
    needs_choice("backend", BACKENDS),
)


def _one_graph(context: Context) -> str | None:
    for name in expand(context.options["components"], context.model.components):
        facts = context.model.facts(name) if name in context.model.components else None
        if context.options["fullgraph"] and facts and facts.enters_device:
            why = "makes its rope tables in a device context, which breaks a full graph"
            return f"{facts.name} ({name}) {why}. Use compile=regional or compile.fullgraph=false"
    return None


@technique(lossless=True, source=_SOURCE, needs=(*_NEEDS, Need("", _one_graph)), ran=_compiled, graphs=of_forward)
def compile_forward(
    pipe: Any,
    *,
    components: tuple[str, ...] = ("denoiser",),
    fullgraph: bool = True,
    mode: str | None = None,
    dynamic: bool | None = None,
    duck_shape: bool = True,
    backend: str = "inductor",
    cache_dir: str | None = None,
    inductor: dict[str, Any] = {},  # noqa: B006
) -> Any:
    """Compile the whole forward of each component, and a VAE's decode. Lossless but for rounding.

    `duck_shape=False` (a setting of the process, restored after the job) keeps a dynamic graph from assuming that sizes
    which were equal once stay equal. Raises torch's own error where `fullgraph` meets a graph break.
    Source: https://docs.pytorch.org/docs/stable/generated/torch.compile.html
    """
    import torch

    torch.fx.experimental._config.use_duck_shape = duck_shape
    use_cache(cache_dir)
    arguments = compile_arguments(fullgraph, mode, dynamic, backend, inductor)
    for module, method in computations(pipe, list(components)).values():
        install_output_hooks(module)
        compiled = torch.compile(getattr(module, method), **arguments)
        setattr(module, method, fresh_outputs(compiled) if mode in CUDA_GRAPHS else compiled)
    return pipe


def use_cache(cache_dir: str | None) -> None:
    """Keep inductor's artifacts in a folder of one's own, where another process finds them. The environment variable is
    restored after the job; metrics.json counts hits and misses."""
    if cache_dir:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(cache_dir).expanduser().absolute())


def fresh_outputs(forward: Any) -> Any:
    """Wrap a compiled forward that replays CUDA graphs: begin a step, and copy the output out of the graph's memory,
    which the next replay writes over."""
    import torch
    from torch.utils._pytree import tree_map_only

    @wraps(forward)
    def fresh(*args: Any, **kwargs: Any) -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        return tree_map_only(torch.Tensor, torch.Tensor.clone, forward(*args, **kwargs))

    return fresh


def install_output_hooks(module: Any) -> None:
    """Let a transformers model install the hooks that collect its hidden states now: at the first call it would do so
    under a lock, which breaks the graph."""
    from transformers import PreTrainedModel
    from transformers.utils.output_capturing import maybe_install_capturing_hooks

    for model in (m for m in module.modules() if isinstance(m, PreTrainedModel)):
        maybe_install_capturing_hooks(model)


@technique(
    lossless=True,
    source="https://huggingface.co/docs/diffusers/optimization/fp16#regional-compilation",
    needs=(*_NEEDS, Need("", _blocks_overwrite), Need("a model with _repeated_blocks", repeated_blocks)),
    ran=_compiled,
    graphs=of_blocks,
)
def compile_repeated_blocks(
    pipe: Any,
    *,
    components: tuple[str, ...] = ("denoiser",),
    fullgraph: bool = True,
    mode: str | None = None,
    dynamic: bool | None = None,
    backend: str = "inductor",
    cache_dir: str | None = None,
    inductor: dict[str, Any] = {},  # noqa: B006
) -> Any:
    """Compile the forward of each block of the classes in the model's `_repeated_blocks`. Lossless but for rounding.

    Blocks of one class share a graph, so that compilation takes a fraction of the whole model's time. Unlike
    `ModelMixin.compile_repeated_blocks`, hooks stay outside the graph.
    Source: https://docs.pytorch.org/tutorials/recipes/regional_compilation.html
    """
    import torch

    use_cache(cache_dir)
    arguments = compile_arguments(fullgraph, mode, dynamic, backend, inductor)
    for name, module in modules_named(pipe, list(components)).items():
        blocks = [m for m in module.modules() if type(m).__name__ in (module._repeated_blocks or ())]
        for block in blocks:
            block.forward = torch.compile(block.forward, **arguments)
        log.info("%s: compiled %d blocks of %s", name, len(blocks), ", ".join(module._repeated_blocks))
    return pipe


@technique(
    lossless=True,
    source="https://huggingface.co/docs/accelerate/usage_guides/compilation",
    needs=(*_NEEDS, Need("", _blocks_overwrite), Need("no UNet", _regions_allowed)),
    ran=_compiled,
)
def compile_regions(
    pipe: Any,
    *,
    fullgraph: bool = True,
    mode: str | None = None,
    dynamic: bool | None = None,
    backend: str = "inductor",
    cache_dir: str | None = None,
    inductor: dict[str, Any] = {},  # noqa: B006
) -> Any:
    """Compile the denoiser with accelerate's `compile_regions`: blocks that repeat, and the other submodules, each on
    its own. Lossless but for rounding. The denoiser becomes a copy whose blocks are wrapped: state dict keys change.
    Source: https://huggingface.co/docs/accelerate/usage_guides/compilation
    """
    from accelerate.utils import compile_regions as regions

    use_cache(cache_dir)
    arguments = compile_arguments(fullgraph, mode, dynamic, backend, inductor)
    for name, module in modules_named(pipe, ["denoiser"]).items():
        setattr(pipe, name, regions(module, **arguments))
    return pipe


def compile_arguments(
    fullgraph: bool, mode: str | None, dynamic: bool | None, backend: str, inductor: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments of torch.compile. Flags go through `options`, which act on these graphs alone; torch.compile
    refuses `mode` beside `options`, so the mode is written out as the options it stands for."""
    arguments: dict[str, Any] = {"fullgraph": fullgraph, "dynamic": dynamic, "backend": backend}
    flags = {flag: value for flag, value in inductor.items() if value is not None}
    if mode and flags:
        from torch._inductor import list_mode_options

        arguments["options"] = {**list_mode_options()[mode], **flags}
    elif flags:
        arguments["options"] = flags
    elif mode:
        arguments["mode"] = mode
    return arguments
