"""What a figure depends on beside the config: versions, code, processor, device, clocks, threads and settings."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
from omegaconf import OmegaConf
from omegaconf.resolvers.oc import env

from optbuilder import __version__
from optbuilder.folders import PACKAGE
from optbuilder.machine import Machine
from optbuilder.technique import installed_version

PACKAGES = (
    "torch",
    "diffusers",
    "accelerate",
    "torchao",
    "transformers",
    "hydra-core",
    "omegaconf",
    "numpy",
    "safetensors",
)
# What speaks against comparing times where it differs.
UNFAIR = ("cpu", "cores", "threads", "cpu_capability", "device", "device_name", "compute_capability", "cuda")
_MATTERS = re.compile(r"^(TORCH|PYTORCH|CUDA|NCCL|OMP|MKL|OPENBLAS|KMP|HF_|DIFFUSERS|TRITON|CXX|LD_PRELOAD)")
_SECRET = re.compile(r"TOKEN|SECRET|PASS|PWD|KEY|AUTH|CREDENTIAL|COOKIE|SIGNATURE|PRIVATE", re.I)
_IN_URL = re.compile(r"(?<=://)[^/@\s]+(?=@)")


def process_age_s() -> float:
    """Seconds since this process began, before Python itself had started."""
    return time.time() - psutil.Process().create_time()


def versions() -> dict[str, str | None]:
    return {"optbuilder": __version__, **{name: installed_version(name) for name in PACKAGES}}


def environment(machine: Machine) -> dict[str, Any]:
    """The environment of a run on `machine`, as data."""
    import torch

    return {
        "versions": versions(),
        "git": git_state(PACKAGE),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "load_average": os.getloadavg() if hasattr(os, "getloadavg") else None,
        "device": machine.device,
        "device_name": machine.name,
        "compute_capability": machine.capability,
        "device_memory_bytes": machine.memory_bytes,
        "cuda": torch.version.cuda,
        "gpu": gpu_state(machine),
        "variables": variables(),
    }


def unfair(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[str]:
    """Differences of the environments that speak against comparing times: another machine, other versions or clocks."""
    for key in UNFAIR:
        if a.get(key) != b.get(key):
            yield f"{key} is {a.get(key)!r} and {b.get(key)!r}"
    left, right = a.get("versions") or {}, b.get("versions") or {}
    for name in sorted(left.keys() | right.keys()):
        if left.get(name) != right.get(name):
            yield f"{name} is {left.get(name)} and {right.get(name)}"
    clocks = [(e.get("gpu") or {}).get("sm_clock_mhz") for e in (a, b)]
    if None not in clocks and abs(clocks[0] - clocks[1]) > 0.05 * max(clocks):
        yield f"the GPU's clock was {clocks[0]} and {clocks[1]} MHz"


def variables() -> dict[str, str]:
    """The environment variables that matter to a figure, without those whose names say that they are secret, and
    without names and passwords in addresses."""
    named = {k: v for k, v in sorted(os.environ.items()) if _MATTERS.match(k) and not is_secret(k)}
    return {name: _IN_URL.sub("***", value) for name, value in named.items()}


def is_secret(variable: str) -> bool:
    """Whether an environment variable's name says that its value is not for others."""
    return _SECRET.search(variable) is not None


def interpolated(variable: str, *default: str | None) -> Any:
    """What `${oc.env:NAME}` in a config stands for. A config is recorded, so that a secret is refused."""
    if is_secret(variable):
        raise ValueError(f"{variable} may be a secret, and a config is recorded")
    return env(variable, *default)


OmegaConf.register_new_resolver("oc.env", interpolated, replace=True)


def git_state(folder: Path) -> dict[str, Any] | None:
    """The commit that the code comes from, and whether it was changed since; None outside a git checkout."""

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain", "--", str(folder)))}
    except (OSError, subprocess.CalledProcessError):
        return None


def cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor()
    )


def gpu_state(machine: Machine) -> dict[str, Any] | None:
    """Driver, clocks and the reasons for lower ones, as NVML tells (nvidia-ml-py); None where it tells nothing."""
    with_nvml = nvml_handle(machine)
    if with_nvml is None:
        return None
    nvml, handle = with_nvml
    return {
        "driver": nvml.nvmlSystemGetDriverVersion(),
        "sm_clock_mhz": nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
        "max_sm_clock_mhz": nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM),
        "throttle_reasons": nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),
        "power_limit_w": nvml.nvmlDeviceGetPowerManagementLimit(handle) / 1e3,
        "temperature_c": nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
    }


def nvml_handle(machine: Machine) -> tuple[Any, Any] | None:
    """pynvml and its handle of the machine's GPU; None without the package, the driver or an NVIDIA GPU."""
    if machine.kind != "cuda" or machine.vendor != "nvidia" or installed_version("nvidia-ml-py") is None:
        return None
    import pynvml
    import torch

    try:
        pynvml.nvmlInit()
        uuid = torch.cuda.get_device_properties(machine.device).uuid
        return pynvml, pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode())
    except pynvml.NVMLError:
        return None
