"""Load a pipeline as the plan says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optbuilder.errors import Refused
from optbuilder.model import Model
from optbuilder.quantization import gguf_component, pipeline_quantization
from optbuilder.random_weights import random_pipeline


def load(model: Model, arguments: Mapping[str, Any], device: str = "cpu") -> Any:
    """Load the pipeline with `from_pretrained` and move it to `device`; with dummy weights, make it there.

    `arguments` are from_pretrained's, with dtypes as words: a string there would load float32. Raises `Refused` where
    the folder's weights are missing or cannot be read.
    """
    import torch

    if model.weights == "dummy":
        return random_pipeline(model.pipeline_class, model.configs, model.prompts, arguments, device)
    default = torch.get_default_dtype()
    try:
        return from_pretrained(source(model), arguments).to(device)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise Refused(
            f"model.repo_id={model.repo_id!r}: it cannot be loaded: {reason}. Download it again, or use another."
        ) from error
    finally:
        torch.set_default_dtype(default)  # a load that fails leaves the dtype it was loading


def from_pretrained(source: str, arguments: Mapping[str, Any]) -> Any:
    """diffusers' from_pretrained, with dtypes and quantization given as words."""
    import torch
    from diffusers import DiffusionPipeline

    dtype = arguments.get("dtype", "float32")
    dtypes = {k: getattr(torch, v) for k, v in dtype.items()} if isinstance(dtype, Mapping) else getattr(torch, dtype)
    plain = {k: v for k, v in arguments.items() if k not in ("dtype", "quantization_config", "from_single_file")}
    if quantized := arguments.get("quantization_config"):
        plain["quantization_config"] = pipeline_quantization(quantized)
    for name, file in arguments.get("from_single_file", {}).items():
        plain[name] = gguf_component(source, name, **file)
    return DiffusionPipeline.from_pretrained(source, dtype=dtypes, **plain)


def source(model: Model) -> str:
    """The folder, or the Hub id where only the JSON files are at hand."""
    return model.repo_id if model.elsewhere else str(model.folder)
