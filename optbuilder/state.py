"""Switches of the process that loading, transforms and compiled graphs set: every job leaves them as it found them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

_AT_END: list[Callable[[], None]] = []


def at_end(undo: Callable[[], None]) -> None:
    """Call `undo` when the job ends: for a library that patches classes, which other jobs share."""
    _AT_END.append(undo)


@contextmanager
def preserved() -> Iterator[None]:
    """Restore after the block: default dtype, matmul and cuDNN precision, threads, determinism, RNG, gradient mode, the
    configs of inductor, dynamo, functorch and fx, diffusers' attention registry, compiled code, the environment, and no
    process group."""
    import torch

    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=range(torch.cuda.device_count())))
        stack.enter_context(torch.set_grad_enabled(torch.is_grad_enabled()))
        stack.callback(standing())
        stack.callback(torch._dynamo.reset)
        stack.callback(_leave_process_group)
        yield


def standing() -> Callable[[], None]:
    """Note the process's switches as they stand; gives a function that puts them back, and undoes what is registered
    with `at_end` from now on."""
    values = [(put, get()) for get, put in _switches()]
    configs = [(config, config.get_config_copy()) for config in _configs()]
    environment, registered = dict(os.environ), len(_AT_END)

    def restore() -> None:
        _undo(registered)
        _restore_environment(environment)
        for config, before in configs:
            _restore_config(config, before)
        for put, value in values:
            put(value)

    return restore


def _undo(keep: int) -> None:
    while len(_AT_END) > keep:
        _AT_END.pop()()


def _leave_process_group() -> None:
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def _switches() -> list[tuple[Any, Any]]:
    import torch
    from diffusers.models.attention_dispatch import _AttentionBackendRegistry as registry

    def attribute(owner: Any, name: str) -> tuple[Any, Any]:
        return (lambda: getattr(owner, name)), (lambda value: setattr(owner, name, value))

    return [
        (torch.get_default_dtype, torch.set_default_dtype),
        (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
        (torch.get_num_threads, torch.set_num_threads),
        (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
        attribute(torch.backends.cudnn, "allow_tf32"),
        attribute(torch.backends.cudnn, "benchmark"),
        attribute(torch.backends.cudnn, "deterministic"),
        attribute(registry, "_active_backend"),
    ]


def _configs() -> list[Any]:
    import torch
    import torch._dynamo.config
    import torch._functorch.config
    import torch._inductor.config
    import torch.fx.experimental._config

    return [torch._inductor.config, torch._dynamo.config, torch._functorch.config, torch.fx.experimental._config]


def _restore_config(config: Any, before: dict[str, Any]) -> None:
    """Set back what changed, and no more: merely setting a deprecated flag warns."""
    for flag, value in config.get_config_copy().items():
        if before.get(flag) != value:
            setattr(config, flag, before[flag])


def _restore_environment(before: dict[str, str]) -> None:
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)
