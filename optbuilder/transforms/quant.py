"""Stage `quant`: torchao quantization of a loaded pipeline's Linear layers."""

from __future__ import annotations

import logging
import re
from collections import Counter
from typing import Any

from optbuilder.components import modules_named
from optbuilder.technique import Context, Need, needs_choice, needs_package, technique
from optbuilder.transforms.precision import dtype_of

log = logging.getLogger(__name__)

CONFIGS = ("int8_dynamic", "int8_weight_only", "fp8_dynamic", "fp8_weight_only", "int4_weight_only")

_HARDWARE = {
    "fp8_dynamic": "NVIDIA GPU, compute capability 8.9, bf16",
    "int4_weight_only": "NVIDIA GPU, compute capability 8.0, bf16",
}


def hardware(context: Context) -> str | None:
    """What the kernels of a config need of the device; the weight-only ones multiply in the model's dtype anywhere."""
    config, machine = context.options["config"], context.machine
    if config == "fp8_dynamic" and (machine.capability or (0, 0)) < (8, 9) and "MI300" not in machine.name:
        found = machine.device if machine.capability is None else ".".join(map(str, machine.capability))
        return (
            f"float8 matmuls need compute capability 8.9 or higher (found: {found}). "
            "Use quant=fp8_weight_only, int8_dynamic or int8_weight_only"
        )
    if config == "int4_weight_only" and (machine.capability or (0, 0)) < (8, 0):
        return (
            f"torchao's int4 kernel needs an NVIDIA GPU of compute capability 8.0 or higher (found: {machine.device}). "
            "Use quant=int8_weight_only"
        )
    if config in ("fp8_dynamic", "int4_weight_only") and dtype_of(context) != "bfloat16":
        return f"this kernel needs bfloat16 (the denoiser is {dtype_of(context)}). Use precision=bf16"
    return None


def _patterns(context: Context) -> str | None:
    for pattern in context.options["exclude"]:
        try:
            re.compile(pattern)
        except re.error as error:
            return f"exclude={pattern!r} is not a regular expression ({error})"
    return None


def _slower_without_compile(context: Context) -> str | None:
    return (
        None
        if context.stages.get("compile")
        else "without compile, expect less memory, not more speed: use compile=regional or full"
    )


@technique(
    lossless=False,
    source="https://docs.pytorch.org/ao/stable/api_reference/api_ref_quantization.html",
    needs=(
        needs_package("torchao", "0.18"),
        needs_choice("config", CONFIGS),
        Need(lambda options: _HARDWARE.get(options["config"], ""), hardware),
        Need("", _patterns),
    ),
    warns=_slower_without_compile,
)
def quantize(
    pipe: Any,
    *,
    config: str = "int8_weight_only",
    components: tuple[str, ...] = ("denoiser",),
    min_features: int = 16,
    multiple_of: int = 1,
    min_parameters: int = 0,
    exclude: tuple[str, ...] = (),
    group_size: int | None = None,
) -> Any:
    """Quantize the Linear layers of `components` in place with torchao's `quantize_`. Lossy.

    Left alone: layers with a side of at most `min_features` or no multiple of `multiple_of` (the int8 and float8
    matmuls need it), layers under `min_parameters` weights (quantizing their input costs more than the smaller
    multiplication gains), and layers whose name matches a regular expression in `exclude` (they see one row per
    picture, or the picture depends on them most). How many, and why, goes into the log and the plan's effects.
    Source: https://github.com/pytorch/ao, and the filter's idea: https://github.com/huggingface/diffusion-fast
    """
    from torchao.quantization import quantize_

    for name, module in modules_named(pipe, list(components)).items():
        device = next(module.parameters()).device
        reasons = {n: why_not(n, m, min_features, multiple_of, min_parameters, exclude) for n, m in linears(module)}
        taken = {n for n, reason in reasons.items() if reason is None}
        quantize_(module, torchao_config(config, group_size, device), filter_fn=lambda _, n, taken=taken: n in taken)
        skipped = Counter(reason for reason in reasons.values() if reason)
        details = "; ".join(f"{count} {reason}" for reason, count in skipped.most_common())
        log.info(
            "%s: quantized %d of %d Linear layers%s",
            name,
            len(taken),
            len(reasons),
            f"; skipped {details}" if details else "",
        )
    return pipe


def linears(module: Any) -> list[tuple[str, Any]]:
    """The Linear layers of a module with their names."""
    from torch.nn import Linear

    return [(name, m) for name, m in module.named_modules() if isinstance(m, Linear)]


def why_not(
    name: str, linear: Any, min_features: int, multiple_of: int, min_parameters: int, exclude: tuple[str, ...]
) -> str | None:
    """Why a Linear layer is left alone, or None where it is to be quantized."""
    sides = (linear.in_features, linear.out_features)
    if matched := next((pattern for pattern in exclude if re.search(pattern, name)), None):
        return f"named like {matched!r}"
    if min(sides) <= min_features:
        return f"with a side of at most {min_features}"
    if any(side % multiple_of for side in sides):
        return f"with a side that is no multiple of {multiple_of}"
    return f"under {min_parameters} weights" if sides[0] * sides[1] < min_parameters else None


def torchao_config(name: str, group_size: int | None, device: Any) -> Any:
    """torchao's config object. Inductor's global flags are left alone: they belong to the compile stage."""
    import torchao.quantization as ao
    from torchao.utils import should_reduce_range

    if name == "int8_dynamic":
        return ao.Int8DynamicActivationInt8WeightConfig(
            set_inductor_config=False, reduce_range=should_reduce_range(device)
        )
    if name == "int8_weight_only":
        return ao.Int8WeightOnlyConfig(set_inductor_config=False)
    if name == "fp8_dynamic":
        return ao.Float8DynamicActivationFloat8WeightConfig(granularity=ao.PerRow(), set_inductor_config=False)
    if name == "fp8_weight_only":
        return ao.Float8WeightOnlyConfig(set_inductor_config=False)
    return ao.Int4WeightOnlyConfig(
        group_size=group_size or 128, int4_packing_format="tile_packed_to_4d", set_inductor_config=False
    )
