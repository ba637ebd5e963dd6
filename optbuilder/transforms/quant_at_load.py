"""Stage `quant`, the techniques that quantize while loading, or change only how weights are stored."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from optbuilder.components import modules_named
from optbuilder.model import Model, expand
from optbuilder.technique import Context, Need, needs_capability, needs_choice, needs_package, technique
from optbuilder.transforms.precision import dtype_of
from optbuilder.transforms.quant import CONFIGS, hardware

_SOURCE = "https://huggingface.co/docs/diffusers/quantization/overview"
_SHOWS = ("bytes", "weights", "modules")


def _no_fused_adapters(context: Context) -> str | None:
    for stage, why in {"lora": "merge adapters into", "fusion": "concatenate"}.items():
        if context.stages.get(stage):
            return f"weights are quantized while loading, and {stage} cannot {why} them. Use quant=int8_weight_only"
    return None


_EARLY = Need("lora=none, fusion=none", _no_fused_adapters)


def _torchao_words(model: Model, *, config: str, components: list[str], exclude: list[str]) -> dict[str, Any]:
    return _for_each(model, components, {"backend": "torchao", "config": config, "exclude": exclude})


def _for_each(model: Model, components: list[str], words: Mapping[str, Any]) -> dict[str, Any]:
    names = expand(components, model.components)
    return {"quantization_config": {name: {"library": model.libraries[name], **words} for name in names}}


@technique(
    lossless=False,
    source="https://huggingface.co/docs/diffusers/quantization/torchao",
    needs=(needs_package("torchao", "0.18"), needs_choice("config", CONFIGS), Need("", hardware), _EARLY),
    load=_torchao_words,
    load_shows=_SHOWS,
)
def torchao(
    pipe: Any,
    *,
    config: str = "int8_weight_only",
    components: tuple[str, ...] = ("denoiser",),
    exclude: tuple[str, ...] = (),
) -> Any:
    """Quantize the Linear layers of `components` with torchao while loading. Lossy.

    The full weights never stand in memory together, and the result can be saved. `exclude` names modules, by a part of
    their path, that stay as they are. Source: https://huggingface.co/docs/diffusers/quantization/torchao
    """
    return pipe


def _bitsandbytes_words(
    model: Model, *, bits: int, quant_type: str, compute_dtype: str | None, components: list[str]
) -> dict[str, Any]:
    words: dict[str, Any] = {"backend": "bitsandbytes", "load_in_8bit": True}
    if bits == 4:
        nf4 = {"bnb_4bit_quant_type": quant_type, "bnb_4bit_compute_dtype": compute_dtype}
        words = {"backend": "bitsandbytes", "load_in_4bit": True, **nf4}
    return _for_each(model, components, words)


def _compute_dtype(context: Context) -> dict[str, Any]:
    return {"compute_dtype": dtype_of(context)}


def _breaks_full_graphs(context: Context) -> str | None:
    compiled = context.stages.get("compile") or {}
    if context.options["bits"] == 8 and compiled.get("fullgraph"):
        return "bitsandbytes' int8 matmul breaks a full graph. Use compile.fullgraph=false, or quant=bnb_nf4"
    return None


@technique(
    lossless=False,
    source="https://huggingface.co/docs/diffusers/quantization/bitsandbytes",
    needs=(
        needs_package("bitsandbytes", "0.43.3"),
        needs_capability(7, 0),
        needs_choice("bits", (4, 8)),
        needs_choice("quant_type", ("nf4", "fp4")),
        Need("", _breaks_full_graphs),
        _EARLY,
    ),
    derive=_compute_dtype,
    load=_bitsandbytes_words,
    load_shows=_SHOWS,
)
def bitsandbytes(
    pipe: Any,
    *,
    bits: int = 4,
    quant_type: str = "nf4",
    compute_dtype: str | None = None,
    components: tuple[str, ...] = ("denoiser",),
) -> Any:
    """Load `components` with bitsandbytes' int8 (LLM.int8) or 4-bit (NF4, FP4) Linear layers. Lossy.

    Source: https://huggingface.co/docs/diffusers/quantization/bitsandbytes
    """
    return pipe


def _quanto_words(model: Model, *, weights_dtype: str, components: list[str]) -> dict[str, Any]:
    return _for_each(model, components, {"backend": "quanto", "weights_dtype": weights_dtype})


def _deprecated(context: Context) -> str | None:
    return "diffusers will drop quanto in 1.0.0: quant=int8_weight_only does the same"


@technique(
    lossless=False,
    source="https://huggingface.co/docs/diffusers/quantization/quanto",
    needs=(
        needs_package("optimum-quanto", "0.2.6"),
        needs_choice("weights_dtype", ("int8", "int4", "int2", "float8")),
        _EARLY,
    ),
    load=_quanto_words,
    load_shows=_SHOWS,
    warns=_deprecated,
)
def quanto(pipe: Any, *, weights_dtype: str = "int8", components: tuple[str, ...] = ("denoiser",)) -> Any:
    """Load `components` with quanto's Linear layers. Lossy.

    Source: https://huggingface.co/docs/diffusers/quantization/quanto
    """
    return pipe


def _gguf_words(model: Model, *, path: str | None, compute_dtype: str | None) -> dict[str, Any]:
    name = model.denoisers[0]
    words = {"class_name": model.components[name], "path": path, "compute_dtype": compute_dtype}
    return {"from_single_file": {name: words}}


def _is_a_gguf_file(context: Context) -> str | None:
    path = context.options["path"]
    if path is None:
        return "it needs a file. Write quant.path=<model.gguf>"
    if not path.endswith(".gguf") or not Path(path).expanduser().is_file():
        return f"path={path!r}: there is no such .gguf file. Write quant.path=<model.gguf>"
    return None


@technique(
    lossless=False,
    source="https://huggingface.co/docs/diffusers/quantization/gguf",
    needs=(needs_package("gguf", "0.10.0"), Need("quant.path", _is_a_gguf_file), _EARLY),
    derive=_compute_dtype,
    load=_gguf_words,
    load_shows=_SHOWS,
)
def gguf(pipe: Any, *, path: str | None = None, compute_dtype: str | None = None) -> Any:
    """Take the denoiser's weights from a GGUF file, dequantized layer by layer as they are used. Lossy.

    Source: https://huggingface.co/docs/diffusers/quantization/gguf
    """
    return pipe


def _no_full_graph(context: Context) -> str | None:
    if context.stages.get("compile"):
        fix = "Use compile=none, or quant=fp8_weight_only"
        return f"its hooks make parameters in forward, which a graph cannot hold. {fix}"
    return None


def _no_adapters(context: Context) -> str | None:
    lora = context.stages.get("lora")
    return "adapters cannot be cast layer by layer. Use lora.fuse=true" if lora and not lora.get("fuse", True) else None


@technique(
    lossless=False,
    source="https://huggingface.co/docs/diffusers/optimization/memory#layerwise-casting",
    adds_hooks=True,
    needs=(
        needs_choice("storage_dtype", ("float8_e4m3fn", "float8_e5m2")),
        Need("compile=none", _no_full_graph),
        Need("", _no_adapters),
    ),
    derive=_compute_dtype,
)
def layerwise_casting(
    pipe: Any,
    *,
    storage_dtype: str = "float8_e4m3fn",
    compute_dtype: str | None = None,
    components: tuple[str, ...] = ("denoiser",),
) -> Any:
    """Store the weights of `components` in float8 and cast each layer to `compute_dtype` while it computes. Lossy.

    Norms, embeddings and the layers that a model keeps in float32 stay as they are.
    Source: https://huggingface.co/docs/diffusers/optimization/memory#layerwise-casting
    """
    import torch

    for module in modules_named(pipe, list(components)).values():
        module.enable_layerwise_casting(
            storage_dtype=getattr(torch, storage_dtype), compute_dtype=getattr(torch, compute_dtype or "float32")
        )
    return pipe
