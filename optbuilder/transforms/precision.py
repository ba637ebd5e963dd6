"""Stage `precision`: the dtype of weights and activations."""

from __future__ import annotations

from functools import wraps
from typing import Any

from optbuilder.errors import nearest
from optbuilder.model import Model, expand
from optbuilder.technique import Context, Need, needs_capability, technique

DTYPES = {
    "fp32": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "float32": "float32",
    "bfloat16": "bfloat16",
    "float16": "float16",
}
_PARTS = ("dtype", "vae", "denoiser", "text_encoders")


def from_pretrained_dtypes(
    model: Model, *, dtype: str, vae: str | None, denoiser: str | None, text_encoders: str | None
) -> dict[str, Any]:
    """The `dtype` argument of `from_pretrained`: one name, or a name per component and a default."""
    parts = {"vae": vae, "denoiser": denoiser, "text_encoders": text_encoders}
    named = {c: DTYPES[d] for part, d in parts.items() if d for c in expand([part], model.components)}
    named = {c: d for c, d in named.items() if d != DTYPES[dtype]}
    return {"dtype": {**named, "default": DTYPES[dtype]} if named else DTYPES[dtype]}


def float32_weights(model: Model) -> dict[str, Any]:
    return {"dtype": "float32"}


def _known_dtypes(context: Context) -> str | None:
    for part in _PARTS:
        value = context.options[part]
        if value is not None and value not in DTYPES:
            return f"{part}={value!r} is not a dtype. {nearest(value, DTYPES)}"
    return None


def _slow_or_risky(context: Context) -> str | None:
    used = {DTYPES.get(context.options[part]) for part in _PARTS if context.options[part]}
    slow = {
        d
        for d, ok in (("bfloat16", context.machine.computes_bf16), ("float16", context.machine.computes_fp16))
        if not ok
    }
    if context.machine.kind == "cpu" and used & slow:
        dtypes = " or ".join(sorted(used & slow))
        return f"this CPU has no {dtypes} instructions: expect it 5 to 15 times slower than float32"
    if "float16" in used and _trained_in_bf16(context.model):
        return (
            "this family was trained in bfloat16: float16 may overflow to black images, "
            "which the run reports as invalid_output"
        )
    if (
        context.model.known.get("vae_upcast")
        and DTYPES.get(context.options["vae"] or context.options["dtype"]) == "float16"
    ):
        return "this model's VAE overflows in float16, so that the pipeline casts it to float32 and back in each call"
    return None


def _trained_in_bf16(model: Model) -> bool:
    """As conf/model says, or else by the name of the family."""
    families = ("Flux", "Wan", "LTX", "Sana", "Qwen", "HunyuanVideo", "ZImage")
    known = model.known.get("trained_in")
    return known == "bfloat16" if known else model.pipeline_class.startswith(families)


def _is_the_default(context: Context) -> str | None:
    same = load_dtype.technique.is_lossless(context.options)  # type: ignore[attr-defined]
    return "float32 is what from_pretrained loads when no dtype is asked for" if same else None


def dtype_of(context: Context, part: str = "denoiser") -> str:
    """The dtype that the plan gives a part of the model, for the needs of other stages."""
    options = context.stages.get("precision", {})
    return DTYPES.get(options.get(part) or options.get("dtype") or "fp32", "float32")


@technique(
    lossless=lambda options: all(DTYPES.get(options[part] or "fp32") == "float32" for part in _PARTS),
    source="https://huggingface.co/docs/diffusers/optimization/fp16",
    needs=(Need("", _known_dtypes),),
    load=from_pretrained_dtypes,
    load_shows=("bytes",),
    warns=_slow_or_risky,
    unchanged=_is_the_default,
)
def load_dtype(
    pipe: Any,
    *,
    dtype: str = "float32",
    vae: str | None = None,
    denoiser: str | None = None,
    text_encoders: str | None = None,
) -> Any:
    """Load the components in `dtype`, or each part in its own. Lossy below float32.

    The dtype is an argument of `from_pretrained`, so that modules a model keeps in float32 stay there. Pipelines do not
    bridge components of different dtypes: where they differ, the VAE casts what it is given to its own dtype, and the
    prompt embeddings are cast to the denoiser's.
    Source: https://huggingface.co/docs/diffusers/optimization/fp16
    """
    denoisers = [getattr(pipe, name) for name in expand(["denoiser"], pipe.components)]
    if getattr(pipe, "vae", None) is not None and any(d.dtype != pipe.vae.dtype for d in denoisers):
        pipe.vae.decode = cast_inputs(pipe.vae.decode, pipe.vae)
        pipe.vae.encode = cast_inputs(pipe.vae.encode, pipe.vae)
    encoders = [getattr(pipe, name) for name in expand(["text_encoders"], pipe.components)]
    if any(e.dtype != denoisers[0].dtype for e in encoders):
        pipe.encode_prompt = cast_outputs(pipe.encode_prompt, denoisers[0])
    return pipe


def cast_inputs(method: Any, module: Any) -> Any:
    """Wrap a method so that a floating-point first argument arrives in the module's dtype."""

    @wraps(method)
    def cast(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        return method(tensor.to(module.dtype), *args, **kwargs)

    return cast


def cast_outputs(method: Any, module: Any) -> Any:
    """Wrap a method so that the floating-point tensors it returns are in the module's dtype."""

    @wraps(method)
    def cast(*args: Any, **kwargs: Any) -> Any:
        found = method(*args, **kwargs)
        return tuple(t.to(module.dtype) if getattr(t, "is_floating_point", bool)() else t for t in found)

    return cast


@technique(
    lossless=False,
    source="https://docs.pytorch.org/docs/stable/notes/cuda.html#tensorfloat-32-tf32-on-ampere-and-later-devices",
    needs=(needs_capability(8, 0),),
    load=float32_weights,
)
def allow_tf32(pipe: Any) -> Any:
    """Let float32 matmuls and convolutions round their inputs to TF32 (10 bits of mantissa). Lossy.

    Weights stay float32. A setting of the process, restored after the job.
    Source: https://docs.pytorch.org/docs/stable/generated/torch.set_float32_matmul_precision.html
    """
    import torch

    # One API only: once the newer fp32_precision attributes are set, reading the older ones raises.
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    return pipe
