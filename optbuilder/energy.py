"""Energy, where the machine tells it: NVML's counter of a GPU, RAPL's of a processor. Absent rather than guessed."""

from __future__ import annotations

from pathlib import Path

from optbuilder.environment import nvml_handle
from optbuilder.machine import Machine

RAPL = Path("/sys/class/powercap")


def joules(machine: Machine) -> dict[str, float]:
    """The counters that can be read now, in joules: `gpu` (NVML) and `cpu` (RAPL packages). Their difference is what
    was used in between."""
    found = {}
    if (with_nvml := nvml_handle(machine)) is not None:
        nvml, handle = with_nvml
        found["gpu"] = nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3
    if packages := _rapl():
        found["cpu"] = sum(packages) / 1e6
    return found


def _rapl() -> list[int]:
    """The energy counters of the processor packages in microjoules; none where they cannot be read (they need root)."""
    found = []
    for counter in sorted(RAPL.glob("intel-rapl:?/energy_uj")):
        try:
            found.append(int(counter.read_text()))
        except OSError:
            return []
    return found


def used(before: dict[str, float], after: dict[str, float], images: int) -> dict[str, float] | None:
    """Joules per picture by source. A counter that wrapped around says nothing, and neither does a missing one."""
    spent = {source: (after[source] - before[source]) / images for source in before if source in after}
    return {source: value for source, value in spent.items() if value >= 0} or None
