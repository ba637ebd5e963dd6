"""A pipeline of random weights, made on its device from configs alone: nothing is read, downloaded or copied."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping
from functools import cache, wraps
from typing import Any


def random_pipeline(
    pipeline: str, configs: Mapping[str, Any], prompts: Mapping[str, Any], arguments: Mapping[str, Any], device: str
) -> Any:
    """A diffusers pipeline whose components are made from `configs`, with random weights on `device`.

    `arguments` are from_pretrained's, of which `dtype` counts, as a word or as a word for each component. Text encoders
    and tokenizers are absent: `encode_prompt` draws embeddings of the shapes in `prompts`, other ones for each text.
    The same call makes the same weights on the same kind of device.
    """
    import diffusers
    import torch

    dtype = arguments.get("dtype", "float32")
    dtypes = dtype if isinstance(dtype, Mapping) else {"default": dtype}
    parts = {
        name: random_component(dict(config), getattr(torch, dtypes.get(name, dtypes.get("default", "float32"))), device)
        for name, config in configs.items()
    }
    kind = getattr(diffusers, pipeline)
    takes = inspect.signature(kind.__init__).parameters
    absent = {n: None for n, p in takes.items() if p.default is p.empty and p.kind is not p.VAR_KEYWORD and n != "self"}
    flags = {"requires_safety_checker": False} if "requires_safety_checker" in takes else {}
    pipe = kind(**{**absent, **parts, **flags})
    pipe.encode_prompt = random_prompts(pipe, pipe.encode_prompt, **prompts)
    return pipe


def random_component(config: dict[str, Any], dtype: Any, device: str) -> Any:
    """One component from its config: a model in `dtype`, but for the modules that its class keeps in float32, or a
    scheduler. Every weight is as the layers' own constructors draw it."""
    import diffusers
    import torch

    kind = getattr(diffusers, config["_class_name"])
    if not issubclass(kind, torch.nn.Module):
        return kind.from_config(config)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.random.fork_rng(), torch.device(device):
            torch.manual_seed(0)
            model = kind.from_config(config)
    finally:
        torch.set_default_dtype(before)
    kept = set(kind._keep_in_fp32_modules or ())
    for name, parameter in model.named_parameters():
        if kept & set(name.split(".")):
            parameter.data = parameter.data.float()
    return model.to(device).eval()


def random_prompts(
    pipe: Any, encode_prompt: Callable[..., Any], shapes: Mapping[str, list[Any]], repeats: bool, lists: bool
) -> Any:
    """Wrap `encode_prompt` so that it is given random embeddings where it is given none."""
    import torch

    signature = inspect.signature(encode_prompt)

    @cache
    def drawn(name: str, text: str, shape: tuple[int, ...]) -> Any:
        if "mask" in name:
            return torch.ones(shape, dtype=torch.long)
        seed = int.from_bytes(hashlib.sha256(f"{name} {text}".encode()).digest()[:7])
        return torch.randn(shape, generator=torch.Generator("cpu").manual_seed(seed))

    def embeddings(name: str, prompts: list[str], given: Mapping[str, Any]) -> Any:
        denoiser = getattr(pipe, "transformer", None) or pipe.unet
        shape = tuple(given[entry] if isinstance(entry, str) else entry for entry in shapes[name])
        found = [drawn(name, text, shape).to(given["device"] or pipe._execution_device) for text in prompts]
        found = found if "mask" in name else [tensor.to(denoiser.dtype) for tensor in found]
        return found if lists else torch.stack(found)

    @wraps(encode_prompt)
    def encode(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        each = 1 if repeats else given.get("num_images_per_prompt") or given.get("num_videos_per_prompt") or 1
        texts = listed(given["prompt"], 1, each)
        negative = listed(given.get("negative_prompt") or "", len(texts) // each, each)
        for name in shapes:
            for key, prompts in {name: texts, f"negative_{name}": negative}.items():
                if key in signature.parameters and given[key] is None:
                    given[key] = embeddings(name, prompts, given)
        return encode_prompt(*bound.args, **bound.kwargs)

    return encode


def listed(prompt: Any, count: int, each: int) -> list[str]:
    """A text `count` times, or a list of texts; each of them `each` times."""
    return [text for text in ([prompt] * count if isinstance(prompt, str) else prompt) for _ in range(each)]
