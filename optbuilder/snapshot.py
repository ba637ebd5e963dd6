"""What a pipeline looks like from outside, as plain data: two snapshots show what a transform did."""

from __future__ import annotations

import hashlib
import types
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

Snapshot = dict[str, dict[str, Any]]
_METHODS = ("forward", "decode", "_decode", "encode")


def snapshot(pipe: Any) -> Snapshot:
    """The state of each component, of the pipeline's own methods and of the process's switches that matter to it."""
    import torch

    found = {name: component_state(part) for name, part in pipe.components.items() if part is not None}
    found["pipeline"] = {"class": type(pipe).__name__, "wrapped": _wrapped(pipe, ("encode_prompt",))}
    found["process"] = {
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "cudnn_allow_tf32": torch.backends.cudnn.allow_tf32,
    }
    return found


def component_state(part: Any) -> dict[str, Any]:
    """A component's class, and for a module: bytes as stored, by dtype, devices, kinds of weights, module and processor
    classes, attention backends, memory formats, hooks, settings, and methods that stand in for the class's own."""
    import torch

    if not isinstance(part, torch.nn.Module):
        return {"class": type(part).__name__, "config": dict(getattr(part, "config", None) or {})}
    tensors = [*part.parameters(), *part.buffers()]
    modules = list(part.modules())
    return {
        "class": type(part).__name__,
        "bytes": _sum((str(t.dtype).removeprefix("torch."), stored_bytes(t)) for t in tensors),
        "devices": _sum((str(t.device), 1) for t in tensors),
        "weights": _sum((type(t).__name__, 1) for t in part.parameters()),
        "modules": _sum((type(m).__name__, 1) for m in modules),
        "processors": _sum((type(m.processor).__name__, 1) for m in modules if hasattr(m, "processor")),
        "attention_backends": _sum((_backend(m.processor), 1) for m in modules if hasattr(m, "processor")),
        "values": _fingerprint(tensors),
        "memory_formats": _sum((_memory_format(t), 1) for t in tensors if t.ndim in (4, 5)),
        "hooks": _sum((h, 1) for m in modules for h in _hooks(m)),
        "settings": dict(_settings(part)),
        "wrapped": dict(sum((Counter(_wrapped(m, _METHODS)) for m in modules), Counter())),
    }


def stored_bytes(tensor: Any) -> int:
    """The bytes a tensor takes as it is stored; for a quantized one, those of its data and scales."""
    if hasattr(tensor, "__tensor_flatten__"):
        inner, _ = tensor.__tensor_flatten__()
        return sum(stored_bytes(getattr(tensor, name)) for name in inner)
    return tensor.numel() * tensor.element_size()


def difference(before: Snapshot, after: Snapshot) -> dict[str, list[Any]]:
    """What changed, as `component.fact: [before, after]`; of counts, only those that changed."""
    changed = {}
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name, {}), after.get(name, {})
        for fact in sorted(old.keys() | new.keys()):
            if old.get(fact) != new.get(fact):
                changed[f"{name}.{fact}"] = _reduced(old.get(fact), new.get(fact))
    return changed


def as_loaded_without_techniques(loaded: Snapshot) -> Snapshot:
    """The snapshot that from_pretrained gives when it is asked for nothing: every floating weight in float32."""
    import torch

    plain = {name: dict(state) for name, state in loaded.items()}
    for state in (s for s in plain.values() if "bytes" in s):
        sizes = {d: getattr(torch, d).itemsize for d in state["bytes"] if getattr(torch, d).is_floating_point}
        scaled = (("float32", n * 4 // sizes[d]) if d in sizes else (d, n) for d, n in state["bytes"].items())
        ordinary = set(state["weights"]) <= {"Parameter"}
        state["bytes"] = _sum(scaled) if ordinary else None  # what quantized weights were is not to be seen
        state["weights"] = {"Parameter": sum(state["weights"].values())}
    return plain


def _sum(pairs: Iterator[tuple[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for key, n in pairs:
        total[key] += n
    return dict(sorted(total.items()))


def _reduced(old: Any, new: Any) -> list[Any]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        keys = [k for k in sorted(old.keys() | new.keys()) if old.get(k) != new.get(k)]
        return [{k: old[k] for k in keys if k in old}, {k: new[k] for k in keys if k in new}]
    return [old, new]


def _backend(processor: Any) -> str:
    backend = getattr(processor, "_attention_backend", None)
    return str(getattr(backend, "value", backend))


def _memory_format(tensor: Any) -> str:
    import torch

    last = torch.channels_last if tensor.ndim == 4 else torch.channels_last_3d
    # A 1x1 kernel is laid out the same either way, so strides tell what is_contiguous cannot.
    return "channels_last" if tensor.stride(1) == 1 and tensor.is_contiguous(memory_format=last) else "contiguous"


def _fingerprint(tensors: list[Any]) -> str:
    """A digest of a few values of each plain tensor: it shows that weights were changed in place (a fused LoRA)."""
    digest = hashlib.sha256()
    for tensor in (t.detach() for t in tensors if t.numel() and not hasattr(t, "__tensor_flatten__")):
        picked = (
            tensor.flatten()[:: max(1, tensor.numel() // 8)] if tensor.is_contiguous() else tensor[(0,) * tensor.ndim]
        )
        digest.update(str(picked.double().tolist()).encode())
    return digest.hexdigest()[:12]


def _settings(part: Any) -> Iterator[tuple[str, Any]]:
    """Numbers, words and truth values that the library's modules keep: `use_tiling`, `fused_projections` and others."""
    for path, module in part.named_modules():
        if type(module).__module__.startswith("torch.nn."):
            continue
        for name, value in vars(module).items():
            if isinstance(value, (bool, int, float, str)) and name != "training":
                yield f"{path}.{name}".lstrip("."), value


def _hooks(module: Any) -> Iterator[str]:
    if hasattr(module, "_hf_hook"):
        yield type(module._hf_hook).__name__
    if hasattr(module, "_diffusers_hook"):
        yield from module._diffusers_hook.hooks
    yield from ("pytorch" for _ in (*module._forward_hooks, *module._forward_pre_hooks))


def _wrapped(owner: Any, methods: tuple[str, ...]) -> dict[str, int]:
    """Methods set on the instance, by the names of the functions around the class's own, outermost first."""
    found = {}
    for name in (m for m in methods if m in vars(owner)):
        found[f"{name}: {' > '.join(_layers(vars(owner)[name]))}"] = 1
    return found


def _layers(method: Any) -> list[str]:
    layers = []
    while method is not None and not isinstance(method, types.MethodType):
        compiled = hasattr(method, "_torchdynamo_orig_callable")
        code = getattr(method, "__code__", None)
        layers.append("torch.compile" if compiled else getattr(code, "co_name", type(method).__name__))
        method = getattr(method, "_torchdynamo_orig_callable" if compiled else "__wrapped__", None)
    return layers
