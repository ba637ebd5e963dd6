"""Load a pipeline as the plan says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optbuilder.errors import Refused
from optbuilder.model import Model


def load(model: Model, arguments: Mapping[str, Any], device: str = "cpu") -> Any:
    """Load the pipeline with `from_pretrained` and move it to `device`.

    `arguments` are from_pretrained's, with dtypes as words: a string there would load float32. Raises `Refused` where
    the folder's weights are missing or cannot be read.
    """
    import torch
    from diffusers import DiffusionPipeline

    dtype = arguments.get("dtype", "float32")
    dtypes = {k: getattr(torch, v) for k, v in dtype.items()} if isinstance(dtype, Mapping) else getattr(torch, dtype)
    default = torch.get_default_dtype()
    try:
        pipe = DiffusionPipeline.from_pretrained(_source(model), **{**arguments, "dtype": dtypes})
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise Refused(f"model.repo_id={model.repo_id!r}: it cannot be loaded: {reason}") from error
    finally:
        torch.set_default_dtype(default)  # a load that fails leaves the dtype it was loading
    return pipe.to(device)


def _source(model: Model) -> str:
    """The folder, or the Hub id where only the JSON files were fetched."""
    fetched = "snapshots" in model.folder.parts and not model.repo_id.startswith(("package:", "/", ".", "~"))
    return model.repo_id if fetched else str(model.folder)
