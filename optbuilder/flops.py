"""How large a denoiser's work is: parameters, and operations of one call. Neither depends on the techniques applied."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from optbuilder.model import expand

log = logging.getLogger(__name__)

Given = tuple[tuple[Any, ...], dict[str, Any]]


@contextmanager
def first_inputs(module: Any) -> Iterator[list[Given]]:
    """Note the arguments of the module's first call in the block, tensors on the meta device: shapes without data."""
    found: list[Given] = []

    def note(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not found:
            found.append(_without_data((args, kwargs)))

    handle = module.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield found
    finally:
        handle.remove()


def denoiser(pipe: Any) -> Any:
    """The pipeline's first denoiser, or None."""
    return next((pipe.components[name] for name in expand(["denoiser"], pipe.components)), None)


def size(module: Any, given: Given) -> dict[str, int | None]:
    """The number of parameters, and the floating point operations of one call with these arguments (a multiplication
    with an addition is two), as torch's FlopCounterMode counts them on a model of the same config without weights.

    None for the operations of a model whose call needs values and not only shapes.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"):
        bare = type(module).from_config(module.config)
    args, kwargs = given
    try:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            bare(*args, **kwargs)
    except RuntimeError as error:  # what the meta device raises when asked for a value
        log.info("the operations of %s are not counted: %s", type(module).__name__, error)
        return {"parameters": bare.num_parameters(), "flops": None}
    return {"parameters": bare.num_parameters(), "flops": counter.get_total_flops()}


def _without_data(values: Any) -> Any:
    import torch
    from torch.utils._pytree import tree_map

    def plain(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        kind = torch.float32 if value.is_floating_point() else value.dtype
        return torch.empty(value.shape, dtype=kind, device="meta")

    return tree_map(plain, values)
