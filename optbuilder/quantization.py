"""Quantization while loading: the config objects that a plan's plain words stand for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def pipeline_quantization(words: Mapping[str, Mapping[str, Any]]) -> Any:
    """A PipelineQuantizationConfig from `{component: {"library": ..., "backend": ..., option: ...}}`."""
    from diffusers import PipelineQuantizationConfig

    return PipelineQuantizationConfig(quant_mapping={name: _config(**options) for name, options in words.items()})


def _config(library: str, backend: str, **options: Any) -> Any:
    """The config class of one backend, diffusers' or transformers' by the library of the component."""
    import importlib

    import torch

    module = importlib.import_module(library if library in ("diffusers", "transformers") else "diffusers")
    if backend == "torchao":
        from optbuilder.transforms.quant import torchao_config

        kept = list(options["exclude"])  # the quantizer adds to the list it is given
        config = torchao_config(options["config"], None, torch.device("cpu"))
        return module.TorchAoConfig(config, modules_to_not_convert=kept)
    if backend == "bitsandbytes":
        dtypes = {k: getattr(torch, v) for k, v in options.items() if k.endswith("_dtype")}
        return module.BitsAndBytesConfig(**{**options, **dtypes})
    return module.QuantoConfig(**options)


def gguf_component(source: str, name: str, class_name: str, path: str, compute_dtype: str) -> Any:
    """A component from a GGUF file, with the architecture of the model's own config."""
    import diffusers
    import torch

    dtype = getattr(torch, compute_dtype)
    return getattr(diffusers, class_name).from_single_file(
        path,
        quantization_config=diffusers.GGUFQuantizationConfig(compute_dtype=dtype),
        config=source,
        subfolder=name,
        dtype=dtype,
    )
