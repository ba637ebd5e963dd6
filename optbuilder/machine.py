"""What this machine is, found without importing torch: plans must take a second, and torch alone takes two."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from optbuilder.errors import Refused, nearest

_KINDS = ("auto", "cpu", "cuda", "mps", "xpu")


@dataclass(frozen=True)
class Machine:
    """The device of a job. `capability` and `memory_bytes` are a CUDA device's, `cpu_flags` are /proc/cpuinfo's."""

    device: str = "cpu"
    name: str = ""
    vendor: str = ""
    capability: tuple[int, int] | None = None
    memory_bytes: int | None = None
    cpu_flags: frozenset[str] = frozenset()

    @property
    def kind(self) -> str:
        return self.device.split(":")[0]

    @property
    def computes_bf16(self) -> bool:
        """Whether the CPU has bf16 instructions; without them bf16 runs 5 to 15 times slower than float32."""
        return bool(self.cpu_flags & {"avx512_bf16", "amx_bf16", "avx_ne_convert", "bf16"})

    @property
    def computes_fp16(self) -> bool:
        return bool(self.cpu_flags & {"avx512_fp16", "amx_fp16", "asimdhp"})


def described(facts: Mapping[str, Any]) -> Machine:
    """The machine that a config describes (conf/machine). Raises `Refused` for facts that are none of a machine's."""
    wrong = set(facts) - {"device", "name", "vendor", "capability", "memory_bytes"}
    if wrong:
        raise Refused(f"machine.{min(wrong)}: there is no such fact of a machine.")
    capability = facts.get("capability")
    return Machine(**{**facts, "capability": None if capability is None else (capability[0], capability[1])})


def probe(device: str = "auto") -> Machine:
    """The machine as a job on `device` finds it. Raises `Refused` for a device that is not there."""
    kind, _, index = device.partition(":")
    if kind not in _KINDS or (index and not index.isdigit()):
        raise Refused(f"device={device!r}: there is no such device. {nearest(kind, _KINDS)}")
    gpus = cuda_devices() if _torch_build().cuda else []
    cpu = Machine("cpu", platform.processor() or platform.machine(), cpu_flags=_cpu_flags())
    if kind == "cpu" or (kind == "auto" and not gpus and not _has_mps()):
        return cpu
    if kind in ("cuda", "auto") and gpus:
        return _pick(gpus, int(index or os.environ.get("LOCAL_RANK", 0)), device)  # torchrun: a GPU for each process
    if kind in ("mps", "auto") and _has_mps():
        return Machine("mps", platform.processor(), "apple")
    if kind == "xpu" and _torch_build().xpu:
        return Machine(device, "xpu", "intel")
    raise Refused(f"device={device!r}: {_absence(kind, bool(_torch_build().cuda))}. Use device=cpu or device=auto.")


def _pick(gpus: list[Machine], index: int, asked: str) -> Machine:
    if index < len(gpus):
        return gpus[index]
    seen = ", ".join(f"{gpu.device} ({gpu.name})" for gpu in gpus)
    raise Refused(
        f"device={asked!r}: there is no such device; visible here: {seen}. CUDA_VISIBLE_DEVICES renumbers them."
    )


def _absence(kind: str, torch_has_cuda: bool) -> str:
    if kind == "cuda" and not torch_has_cuda:
        return "the installed torch is built without CUDA"
    return {"cuda": "the NVIDIA driver shows no GPU here"}.get(kind, f"the installed torch has no {kind} device here")


@lru_cache
def cuda_devices() -> list[Machine]:
    """The CUDA devices that the NVIDIA driver shows, asked through its own library (CUDA driver API)."""
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return []
    count = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return []
    return [_cuda_device(driver, index) for index in range(count.value)]


def _cuda_device(driver: ctypes.CDLL, index: int) -> Machine:
    handle, value, memory = ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
    name = ctypes.create_string_buffer(128)
    driver.cuDeviceGet(ctypes.byref(handle), index)
    driver.cuDeviceGetName(name, len(name), handle)
    driver.cuDeviceTotalMem_v2(ctypes.byref(memory), handle)
    capability = []
    for attribute in (75, 76):  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
        driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, handle)
        capability.append(value.value)
    return Machine(f"cuda:{index}", name.value.decode(), "nvidia", (capability[0], capability[1]), memory.value)


@lru_cache
def _torch_build() -> SimpleNamespace:
    """`cuda`, `hip` and `xpu` of torch/version.py, which stands alone: reading it does not import torch."""
    spec = find_spec("torch")
    facts: dict[str, object] = {}
    if spec and spec.origin:
        exec(compile(Path(spec.origin).with_name("version.py").read_text(), "version.py", "exec"), facts)
    return SimpleNamespace(cuda=facts.get("cuda"), hip=facts.get("hip"), xpu=facts.get("xpu"))


def _has_mps() -> bool:
    return sys.platform == "darwin" and platform.machine() == "arm64"


@lru_cache
def _cpu_flags() -> frozenset[str]:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return frozenset(next((line for line in lines if line.lower().startswith(("flags", "features"))), "").split())
