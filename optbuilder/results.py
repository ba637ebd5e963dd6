"""One row per job of a grid, as results.csv in the grid's directory.

The first columns are those of the table that diffusers publishes of its own benchmarks (huggingface/diffusers,
benchmarks/collated_results.csv): a job without compilation fills `time_plain_s` and `mem_plain_GB`, a compiled one
`time_compile_s` and `mem_compile_GB`. What was not measured is empty.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PUBLISHED = (
    "scenario", "model_cls", "num_params_M", "flops_M", "time_plain_s", "mem_plain_GB", "time_compile_s",
    "mem_compile_GB", "fullgraph", "mode", "github_sha",
)  # fmt: skip
OWN = (
    "job", "status", "reason", "job_key", "call_s_low", "call_s_high", "call_s_p90", "images_per_s", "step_s", "load_s",
    "first_call_s", "compile_s", "rss_peak_bytes", "device_peak_bytes", "weights_bytes", "psnr_min", "ssim_min",
    "speedup",
)  # fmt: skip


def write_results(directory: Path, outcomes: Sequence[Any], stages: Sequence[str]) -> Path:
    """Write results.csv, complete or not there; a column for each stage's option follows the others."""
    target = directory / "results.csv"
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    with temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*PUBLISHED, *OWN, *stages], restval="")
        writer.writeheader()
        writer.writerows(row(number, outcome) for number, outcome in enumerate(outcomes))
    temporary.replace(target)
    return target


def row(number: int, outcome: Any) -> dict[str, Any]:
    """The row of one job; a job that was refused or failed has its status and reason, and no figures."""
    chosen = {t["stage"]: t["option"] for t in outcome.plan.get("transforms", [])}
    found = {"job": number, "status": outcome.status, "reason": " ".join(outcome.reasons), **chosen}
    found["job_key"] = outcome.metrics.get("job_key", "")
    found["scenario"] = outcome.plan.get("model", {}).get("repo_id", "")
    return {**found, **_figures(outcome.plan, outcome.metrics)} if "latency" in outcome.metrics else found


def _figures(plan: Mapping[str, Any], metrics: Mapping[str, Any]) -> dict[str, Any]:
    call, phases = metrics["latency"]["call_s"], metrics["phases"]
    memory, quality = metrics["memory"], metrics["quality"] or {}
    peak = memory["phases"]["run"]
    compiled = next((t["options"] for t in plan["transforms"] if t["stage"] == "compile"), None)
    kind = "plain" if compiled is None else "compile"
    low, high = call["interval"] or ("", "")
    return {
        "model_cls": _denoiser(plan["model"]["components"]),
        f"time_{kind}_s": call["median"],
        f"mem_{kind}_GB": (peak["device_allocated_peak_bytes"] or peak["rss_peak_bytes"]) / 1e9,
        "fullgraph": "" if compiled is None else compiled.get("fullgraph", ""),
        "mode": "" if compiled is None else compiled.get("mode") or "default",
        "github_sha": (metrics["environment"]["git"] or {}).get("commit", ""),
        "call_s_low": low,
        "call_s_high": high,
        "call_s_p90": call["p90"],
        "images_per_s": metrics["latency"]["images_per_s"],
        "step_s": (metrics["latency"]["step_s"] or {}).get("median", ""),
        **{name: phases[name] for name in ("load_s", "first_call_s")},
        "compile_s": "" if phases["compile_s"] is None else phases["compile_s"],
        "rss_peak_bytes": peak["rss_peak_bytes"],
        "device_peak_bytes": peak["device_allocated_peak_bytes"] or "",
        "weights_bytes": sum(sum(sizes.values()) for sizes in memory["weights_bytes"].values()),
        "psnr_min": quality.get("psnr_min", ""),
        "ssim_min": quality.get("ssim_min", ""),
        "speedup": quality.get("speed", {}).get("speedup", ""),
    }


def _denoiser(components: Mapping[str, str]) -> str:
    from optbuilder.model import expand

    return ", ".join(components[name] for name in expand(["denoiser"], components))
