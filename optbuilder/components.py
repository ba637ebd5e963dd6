"""Where a pipeline's parts are computed: the method that a transform has to wrap or compile."""

from __future__ import annotations

from typing import Any

from optbuilder.model import expand


def modules_named(pipe: Any, names: list[str]) -> dict[str, Any]:
    """The pipeline's modules under their component names; `denoiser` and `text_encoders` stand for all of theirs."""
    return {name: getattr(pipe, name) for name in expand([n.split(".")[0] for n in names], pipe.components)}


def computations(pipe: Any, names: list[str]) -> dict[str, tuple[Any, str]]:
    """Each component's module and the name of the method that computes it.

    That is `forward`, except for a VAE, which pipelines never call: AutoencoderKL's `_decode` (`decode` is wrapped
    for offload hooks, which do not compile), and for other VAEs the decoder's `forward`.
    """
    found: dict[str, tuple[Any, str]] = {}
    for name, module in modules_named(pipe, names).items():
        if name.startswith("vae"):
            found[name] = (module, "_decode") if hasattr(module, "_decode") else (module.decoder, "forward")
        else:
            found[name] = (module, "forward")
    return found
