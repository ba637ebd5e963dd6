"""What each attention kernel needs: a package, kinds of device, a compute capability, dtypes, sizes of heads.

As checked by diffusers' attention_dispatch.py, torch's scaled_dot_product_attention and the packages' own pages.
"""

from __future__ import annotations

from dataclasses import dataclass

from optbuilder.technique import Context, needs_package
from optbuilder.transforms.precision import dtype_of

HALF = ("bfloat16", "float16")


@dataclass(frozen=True)
class Backend:
    """What a kernel needs: a package, kinds of device, a compute capability, dtypes and sizes of heads."""

    package: tuple[str, str] | None = None
    devices: tuple[str, ...] = ("cuda",)
    capability: tuple[int, int] = (8, 0)
    dtypes: tuple[str, ...] = HALF
    head_sizes: tuple[int, ...] = ()


_FLASH = ("flash-attn", "2.6.3")
_FLASH_3 = ("flash_attn_3", "3.0.0b1")
_SAGE = ("sageattention", "2.1.1")
_KERNELS = ("kernels", "0.12")
ANY = ("float32", "bfloat16", "float16")
_SAGE_HEADS = (64, 96, 128)
BACKENDS = {
    "native": Backend(None, ("cpu", "cuda", "mps", "xpu"), (0, 0), ANY),
    "_native_math": Backend(None, ("cpu", "cuda", "mps", "xpu"), (0, 0), ANY),
    "_native_flash": Backend(None, ("cpu", "cuda"), (8, 0), HALF),
    "_native_efficient": Backend(None, ("cuda",), (5, 0), ANY),
    "_native_cudnn": Backend(None, ("cuda",), (8, 0), HALF),
    "_native_npu": Backend(("torch_npu", "2.1"), ("npu",), (0, 0), ANY),
    "_native_xla": Backend(("torch_xla", "2.2"), ("xla",), (0, 0), ANY),
    "flex": Backend(None, ("cpu", "cuda", "xpu"), (7, 0), ANY),
    "xformers": Backend(("xformers", "0.0.29"), ("cuda",), (6, 0), ANY),
    "flash": Backend(_FLASH),
    "flash_varlen": Backend(_FLASH),
    "_flash_3": Backend(_FLASH_3, capability=(9, 0)),
    "_flash_varlen_3": Backend(_FLASH_3, capability=(9, 0)),
    "flash_hub": Backend(_KERNELS),
    "flash_varlen_hub": Backend(_KERNELS),
    "_flash_3_hub": Backend(_KERNELS, capability=(9, 0)),
    "_flash_3_varlen_hub": Backend(_KERNELS, capability=(9, 0)),
    "flash_4_hub": Backend(("kernels", "0.12.3"), capability=(9, 0)),
    "aiter_fa2_hub": Backend(_KERNELS, dtypes=("bfloat16",)),
    "sage": Backend(_SAGE, head_sizes=_SAGE_HEADS),
    "sage_varlen": Backend(_SAGE, head_sizes=_SAGE_HEADS),
    "sage_hub": Backend(_KERNELS, head_sizes=_SAGE_HEADS),
    "sage_blackwell_hub": Backend(_KERNELS, capability=(10, 0), head_sizes=(64, 128)),
    "_sage_qk_int8_pv_fp8_cuda": Backend(_SAGE, capability=(8, 9), head_sizes=_SAGE_HEADS),
    "_sage_qk_int8_pv_fp8_cuda_sm90": Backend(_SAGE, capability=(9, 0), head_sizes=_SAGE_HEADS),
    "_sage_qk_int8_pv_fp16_cuda": Backend(_SAGE, head_sizes=_SAGE_HEADS),
    "_sage_qk_int8_pv_fp16_triton": Backend(_SAGE, head_sizes=_SAGE_HEADS),
}
SDPA = {
    "math": Backend(None, ("cpu", "cuda", "mps", "xpu"), (0, 0), ANY),
    "flash": Backend(None, ("cpu", "cuda"), (8, 0), HALF),
    "efficient": Backend(None, ("cuda",), (5, 0), ANY),
    "cudnn": Backend(None, ("cuda",), (8, 0), HALF),
}


def describe(backend: Backend) -> str:
    """The needs of a kernel in a few words."""
    where = " or ".join(backend.devices) + (
        f" {'.'.join(map(str, backend.capability))}" if backend.devices == ("cuda",) else ""
    )
    heads = f"heads of {', '.join(map(str, backend.head_sizes))}" if backend.head_sizes else ""
    dtypes = (
        " or ".join(backend.dtypes) + (" on cuda" if "cpu" in backend.devices else "") if backend.dtypes != ANY else ""
    )
    package = ">=".join(backend.package) if backend.package else ""
    return ", ".join(text for text in (package, where, dtypes, heads) if text)


def unmet(backend: Backend, context: Context, components: list[str]) -> list[str]:
    """Why a kernel cannot run here."""
    machine, found = context.machine, []
    if machine.kind not in backend.devices:
        found.append(f"this kernel runs on {' or '.join(backend.devices)} (this job's device: {machine.device})")
    elif machine.capability is not None and machine.capability < backend.capability:
        found.append(
            f"this kernel needs compute capability {'.'.join(map(str, backend.capability))} "
            f"(found: {'.'.join(map(str, machine.capability))})"
        )
    if backend.package and (reason := needs_package(*backend.package).check(context)):
        found.append(reason)
    for name in components:
        dtype = dtype_of(context, "vae" if name.startswith("vae") else "denoiser")
        if machine.kind != "cpu" and dtype not in backend.dtypes:
            found.append(f"this kernel takes {' or '.join(backend.dtypes)} ({name} is {dtype}): use precision=bf16")
        wrong = [s for s in context.model.head_sizes(name) if backend.head_sizes and s not in backend.head_sizes]
        if wrong:
            found.append(
                f"this kernel takes heads of size {', '.join(map(str, backend.head_sizes))} ({name} has {wrong[0]})"
            )
    return found
