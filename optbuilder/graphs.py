"""How many graphs torch.compile makes of the shapes that a run declares: dynamo's rules for sizes, without torch.

A graph takes the sizes it was compiled for. With automatic dynamic shapes (`dynamic=null`), a size that differs from
the first one seen is dynamic in every later graph; with `dynamic=true` all are from the start; with `false` none ever
is. A size of 1 is always a graph of its own. Source: https://docs.pytorch.org/docs/stable/torch.compiler_dynamic_shapes.html
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from optbuilder.model import expand
from optbuilder.request import each_shape, prompts_of

LIMIT = 8  # torch._dynamo.config.recompile_limit: of one function, no more graphs than these
TRIED = ("precision", "scheduler", "lora", "fusion", "attention", "compile", "vae")  # tests/test_graphs.py
PIPELINES = ("StableDiffusionXLPipeline", "FluxPipeline")

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Graph:
    """The sizes that a graph takes, None for any from 2 on; `tied` are dimensions that were equal when it was made."""

    sizes: tuple[int | None, ...]
    tied: tuple[tuple[int, int], ...] = ()

    def takes(self, sizes: Sizes) -> bool:
        fit = all(own == size if own is not None else size > 1 for own, size in zip(self.sizes, sizes, strict=True))
        return fit and all(sizes[one] == sizes[other] for one, other in self.tied)

    def __str__(self) -> str:
        return "x".join("N" if size is None else str(size) for size in self.sizes)


@dataclass(frozen=True)
class Prediction:
    """The number of graphs with its reason, or None with the reason why it is not predicted; `most` is that of the
    function with the most graphs, which dynamo limits."""

    graphs: int | None
    why: str
    most: int = 0

    def __str__(self) -> str:
        return f"{'not predicted' if self.graphs is None else self.graphs}: {self.why}"


def graphs(calls: Sequence[Sizes], dynamic: bool | None, duck_shape: bool = True, fixed: int = 0) -> list[Graph]:
    """The graphs of a function that is called with these sizes, one after the other.

    The last `fixed` sizes are never dynamic: those of weights.

    >>> [str(graph) for graph in graphs([(2, 16, 16), (2, 16, 24), (4, 32, 32)], None)]
    ['2x16x16', '2x16xN', 'NxNxN']
    >>> [str(graph) for graph in graphs([(1, 64), (2, 64), (4, 96)], True)]
    ['1xN', 'NxN']
    """
    found: list[Graph] = []
    free = len(calls[0]) - fixed
    varied = set(range(free)) if dynamic else set()
    for sizes in calls:
        if any(graph.takes(sizes) for graph in found):
            continue
        if dynamic is None:
            varied |= {d for d in range(free) if sizes[d] != calls[0][d]}
        moving = [d for d in sorted(varied) if sizes[d] > 1]
        tied = [pair for pair in combinations(moving, 2) if sizes[pair[0]] == sizes[pair[1]]]
        kept = tuple(None if d in moving else size for d, size in enumerate(sizes))
        found.append(Graph(kept, tuple(tied) if dynamic and duck_shape else ()))
    return found


def of_forward(context: Any) -> Prediction:
    """What compiling the whole forward of each component makes."""
    if why := untried(context):
        return Prediction(None, why)
    found = {}
    for name in expand(context.options["components"], context.model.components):
        if name not in ("unet", "transformer", "vae.decode"):
            return Prediction(None, f"the rule is not tried with {name}")
        calls = list(whole(context, name))
        found[name] = graphs(calls, context.options["dynamic"], context.options["duck_shape"])
    each = [f"{name} {', '.join(map(str, made))}" for name, made in found.items()]
    counts = [len(made) for made in found.values()]
    return Prediction(sum(counts), f"{'; '.join(each)} (N: any size from 2 on)", max(counts))


def whole(context: Any, name: str) -> Iterator[Sizes]:
    """The sizes of a component's input in each call: pictures (twice as many where guidance doubles them), and the
    height and width of the latents, or the number of tokens that Flux packs them into."""
    dynamic = context.options["dynamic"]
    for pictures, height, width in latents(context):
        if name == "vae.decode":
            yield 1 if "vae" in context.stages else pictures, height, width
        elif name == "unet":
            yield pictures * guided(context), height, width
        elif dynamic:  # the positions of the tokens are a view of height by width, whose sizes are dynamic as well
            yield pictures, height // 2, width // 2
        else:
            yield pictures, height // 2 * (width // 2)


def of_blocks(context: Any) -> Prediction:
    """What compiling the repeated blocks makes: those of one class share their graphs."""
    if why := untried(context):
        return Prediction(None, why)
    names = expand(context.options["components"], context.model.components)
    if names not in (["unet"], ["transformer"]):
        return Prediction(None, f"the rule is not tried with blocks of {', '.join(names)}")
    if names == ["unet"] and not context.model.configs["unet"].get("use_linear_projection"):
        return Prediction(None, "the rule is not tried with blocks behind a convolution")
    if names == ["transformer"] and context.options["dynamic"]:
        return Prediction(
            None, "the rule is not tried with a transformer's blocks whose sizes are dynamic from the start"
        )
    made = _unet_blocks(context) if names == ["unet"] else _flux_blocks(context)
    said = "; ".join(f"{cls} {', '.join(f'{g}{times(n)}' for g, n in found)}" for cls, found in made.items())
    counts = [sum(n for _, n in found) for found in made.values()]
    return Prediction(sum(counts), f"{said} (N: any size from 2 on)", max(counts))


def times(number: int) -> str:
    return f" ({number} graphs)" if number > 1 else ""


def _unet_blocks(context: Any) -> dict[str, list[tuple[Graph, int]]]:
    """pictures x tokens x channels: blocks of every resolution, in the order of the forward."""
    config = context.model.configs["unet"]
    channels, kinds = config["block_out_channels"], config["down_block_types"]
    down = [level for level, kind in enumerate(kinds) if "CrossAttn" in kind]
    middle = [len(channels) - 1] if "CrossAttn" in (config.get("mid_block_type") or "") else []
    up = [len(channels) - 1 - level for level, kind in enumerate(config["up_block_types"]) if "CrossAttn" in kind]
    calls = [
        (pictures * guided(context), (height >> level) * (width >> level), channels[level])
        for pictures, height, width in latents(context)
        for level in (*down, *middle, *up)
    ]
    found = graphs(calls, context.options["dynamic"], duck_shape=True, fixed=1)
    return {"BasicTransformerBlock": [(graph, 1) for graph in found]}


def _flux_blocks(context: Any) -> dict[str, list[tuple[Graph, int]]]:
    """pictures x tokens. The first single block gets a view with other strides than the rest, and where sizes have
    become dynamic the first double block too."""
    config, dynamic = context.model.configs["transformer"], context.options["dynamic"]
    found = graphs([(p, h // 2 * (w // 2)) for p, h, w in latents(context)], dynamic)
    strides = [dynamic is None and number > 0 for number in range(len(found))]
    double = [
        (g, min(2 if by_stride else 1, config["num_layers"])) for g, by_stride in zip(found, strides, strict=True)
    ]
    single = [(g, min(2, config["num_single_layers"])) for g in found]
    return {"FluxTransformerBlock": double, "FluxSingleTransformerBlock": single}


def latents(context: Any) -> Iterator[Sizes]:
    """Pictures, height and width of the latents in each call of another shape."""
    factor = 2 ** (len(context.model.configs["vae"]["block_out_channels"]) - 1)
    for shape, number in each_shape(context.run):
        pictures = len(prompts_of(shape, number)) * shape.images_per_prompt
        yield pictures, (shape.height or 0) // factor, (shape.width or 0) // factor


def guided(context: Any) -> int:
    """2 where classifier-free guidance computes each picture with and without the prompt in one call."""
    scale = context.run.guidance_scale
    return 1 if scale is not None and scale <= 1 else 2


def untried(context: Any) -> str | None:
    """Why the rule may not hold."""
    model, options, shapes = context.model, context.options, list(each_shape(context.run))
    if not options["fullgraph"]:
        return "fullgraph=false lets a forward break into any number of graphs"
    if model.pipeline_class not in PIPELINES:
        return f"the rule is tried with {' and '.join(PIPELINES)} only"
    if others := [stage for stage in context.stages if stage not in TRIED]:
        return f"the rule is not tried with {', '.join(others)}"
    if "slice_size" in context.stages.get("attention", {}):
        return "sliced attention unrolls a loop over the batch"
    if {"tile_size", "repo_id"} & {*context.stages.get("vae", {})} and "vae.decode" in options.get("components", ()):
        return "the sizes of tiles, or of another decoder, are not known before it runs"
    if len(shapes) > 1 and not all(shape.height and shape.width for shape, _ in shapes):
        return "the sizes are the pipeline's own"
    factor = 2 ** (len(model.configs.get("unet", {}).get("block_out_channels", [0])) - 1)
    if len(shapes) > 1 and any(size % factor for _, *sides in latents(context) for size in sides):
        return f"latents that {factor} does not divide take another way through the UNet"
    return None
