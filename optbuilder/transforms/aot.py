"""Stage `compile`, ahead of time: torch.export and AOTInductor."""

from __future__ import annotations

import hashlib
import logging
import os
import platform
from collections.abc import Iterator, Mapping
from functools import wraps
from pathlib import Path
from typing import Any

from optbuilder.components import modules_named
from optbuilder.counters import counted
from optbuilder.snapshot import component_state
from optbuilder.technique import Context, Need, technique
from optbuilder.transforms.compile import flags, repeated_blocks, toolchain

log = logging.getLogger(__name__)


def _no_cache(context: Context) -> str | None:
    if context.stages.get("cache"):
        why = "the whole forward is one package, and a cache decides block by block"
        return f"{why}. Use compile.regional=true or compile=regional"
    return None


def _cache_over_blocks(context: Context) -> str | None:
    return None if context.options["regional"] else _no_cache(context)


def _blocks(context: Context) -> str | None:
    return repeated_blocks(context) if context.options["regional"] else None


def _plain_weights(context: Context) -> str | None:
    if context.options["regional"] and context.stages.get("quant"):
        return "a package for many blocks cannot be handed quantized weights. Use compile.regional=false"
    return None


def _kernel_is_not_exported(context: Context) -> str | None:
    """Found by every pair of options: the package of a forward under sdpa_kernel calls the default kernel."""
    if "kernel" in (context.stages.get("attention") or {}):
        return "torch.export does not take a choice of SDPA kernel into the package. Use compile=regional or full"
    return None


def _called(options: Mapping[str, Any], counters: Mapping[str, Any]) -> str | None:
    return None if counters["calls"].get("aot.called") else "the package was not called"


@technique(
    lossless=True,
    source="https://docs.pytorch.org/docs/stable/torch.compiler_aot_inductor.html",
    needs=(
        Need("on the CPU a C++ compiler", toolchain),
        Need("", flags),
        Need("cache=none", _cache_over_blocks),
        Need("", _blocks),
        Need("", _plain_weights),
        Need("no attention=sdpa_...", _kernel_is_not_exported),
    ),
    ran=_called,
)
def compile_ahead_of_time(
    pipe: Any,
    *,
    components: tuple[str, ...] = ("denoiser",),
    regional: bool = False,
    package_dir: str = "~/.cache/optbuilder/aot",
    inductor: dict[str, Any] = {},  # noqa: B006
) -> Any:
    """Export the forward of each component at its first call, compile it into a package, and run that.

    With `regional`, each class of repeated block has one package, which every block of the class runs with its own
    weights: a fraction of the time and the size.

    Lossless but for rounding. The weights are part of the package; it is found again by a key of all that it depends
    on, so that a later process starts without compiling. Every shape has a package of its own.
    Source: https://docs.pytorch.org/docs/stable/torch.compiler_aot_inductor.html
    """
    configs = {flag: value for flag, value in inductor.items() if value is not None}
    for name, module in modules_named(pipe, list(components)).items():
        folder = Path(package_dir).expanduser() / name
        if not regional:
            module.forward = counted("aot.called", packaged(module, folder, configs))
            continue
        blocks = [m for m in module.modules() if type(m).__name__ in (module._repeated_blocks or ())]
        for block in blocks:
            block.forward = counted("aot.called", packaged(block, folder, configs, own_weights=True))
        log.info("%s: %d blocks run packages of %s", name, len(blocks), ", ".join(module._repeated_blocks))
    return pipe


def packaged(module: Any, folder: Path, configs: Mapping[str, Any], own_weights: bool = False) -> Any:
    """A forward that runs the package for its arguments' shapes, made or found at the first call with them.

    With `own_weights`, the package holds none: the module's are handed to it when it is loaded.
    """
    import torch

    forward, loaded = module.forward, {}
    flags = {**configs, "aot_inductor.package_constants_in_so": False} if own_weights else dict(configs)
    contents = str(shape_of(module)) if own_weights else digest(module)

    @wraps(forward)
    def aot(*args: Any, **kwargs: Any) -> Any:
        shapes = str(torch.utils._pytree.tree_map(_description, (args, kwargs)))
        if shapes not in loaded:
            path = folder / f"{package_key(contents, shapes, flags)}.pt2"
            if not path.exists():
                counted("aot.compiled", export)(module, forward, args, kwargs, path, flags)
            loaded[shapes] = counted("aot.loaded", load_package)(path)
            if own_weights:
                give_weights(loaded[shapes], module)
        return loaded[shapes](*args, **kwargs)

    return aot


def load_package(path: Path) -> Any:
    """Load a package without compiling test programs for every vector instruction set (a second), whose result torch
    only compares with the package's: its name is made of the processor's capability already."""
    import torch

    with torch._inductor.config.patch({"cpp.vec_isa_ok": True}):
        return torch._inductor.aoti_load_package(str(path))


def give_weights(package: Any, module: Any) -> None:
    """Let a package without weights use the module's own, without a copy."""
    weights = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    wanted = {name: weights[name] for name in package.get_constant_fqns()}
    package.load_constants(wanted, check_full_update=True, user_managed=True)


def shape_of(module: Any) -> Any:
    """What a package without weights depends on: the module's structure, and the shapes and dtypes of its weights."""
    weights = {name: _description(tensor) for name, tensor in module.state_dict().items()}
    return type(module).__name__, str(module), sorted(weights.items())


def export(module: Any, forward: Any, args: Any, kwargs: Any, path: Path, configs: Mapping[str, Any]) -> None:
    """Export and compile a module's forward for these arguments into a package at `path`, complete or not there."""
    import torch

    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{os.getpid()}-{path.name}")
    standing, module.forward = module.forward, forward
    try:
        program = torch.export.export(module, args=args, kwargs=kwargs, strict=False)
    finally:
        module.forward = standing
    torch._inductor.aoti_compile_and_package(program, package_path=str(temporary), inductor_configs=dict(configs))
    temporary.replace(path)


def digest(module: Any) -> str:
    """A digest of everything that a package has of the module: its classes, settings, and every weight."""
    import torch

    found = hashlib.sha256(str(component_state(module)).encode())
    for name, tensor in module.state_dict().items():
        found.update(name.encode())
        for part in plain_tensors(tensor):
            found.update(part.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return found.hexdigest()


def plain_tensors(tensor: Any) -> Iterator[Any]:
    """The tensor, or for a quantized one those of its data and scales."""
    if not hasattr(tensor, "__tensor_flatten__"):
        yield tensor
        return
    for name in tensor.__tensor_flatten__()[0]:
        yield from plain_tensors(getattr(tensor, name))


def package_key(contents: str, shapes: str, configs: Mapping[str, Any]) -> str:
    """A digest of what a package depends on: the module's contents, shapes, flags, torch, the processor, and the
    number of threads, which inductor writes into its loops."""
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    cpu = (platform.machine(), torch.backends.cpu.get_cpu_capability(), torch.get_num_threads())
    machine = (torch.__version__, torch.version.cuda, *cpu, gpu)
    return hashlib.sha256(str((contents, shapes, sorted(configs.items()), machine)).encode()).hexdigest()[:16]


def _description(value: Any) -> Any:
    shape = getattr(value, "shape", None)
    return value if shape is None else (tuple(shape), str(value.dtype), str(value.device))
