"""One row per job of a grid, as results.csv in the grid's directory.

The first columns are those of the table that diffusers publishes of its own benchmarks (huggingface/diffusers,
benchmarks/collated_results.csv): a job without compilation fills `time_plain_s` and `mem_plain_GB`, a compiled one
`time_compile_s` and `mem_compile_GB`. What was not measured is empty.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from optbuilder.job import Outcome, recorded
from optbuilder.record import completed, model_name, peak_bytes

PUBLISHED = (
    "scenario", "model_cls", "num_params_M", "flops_M", "time_plain_s", "mem_plain_GB", "time_compile_s",
    "mem_compile_GB", "fullgraph", "mode", "github_sha",
)  # fmt: skip
OWN = (
    "job", "status", "reason", "job_key", "call_s_low", "call_s_high", "call_s_p90", "images_per_s", "step_s", "load_s",
    "first_call_s", "compile_s", "rss_peak_bytes", "device_peak_bytes", "weights_bytes", "psnr_min", "ssim_min",
    "speedup", "speedup_low", "speedup_high", "memory_ratio", "break_even_images", "baseline",
)  # fmt: skip


def jobs(directory: Path) -> dict[str, Outcome]:
    """What every job of a grid has left, by its folder's name: those of the grid in their order, then baselines."""
    names = [path.parent.name for path in directory.glob("*/metrics.json")]
    ordered = sorted(names, key=lambda name: (not name.isdigit(), int(name) if name.isdigit() else 0, name))
    return {name: recorded(directory / name) for name in ordered}


def write_results(directory: Path) -> Path:
    """Write results.csv, and results.parquet where pyarrow is installed, each complete or not there.

    A column for each stage's option follows the others.
    """
    found = rows(jobs(directory))
    stages = {name: None for row in found for name in row if name not in {*PUBLISHED, *OWN}}
    columns = [*PUBLISHED, *OWN, *stages]
    with completed(directory / "results.csv") as path, path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows(found)
    if find_spec("pyarrow"):
        _write_parquet(directory / "results.parquet", columns, found)
    return directory / "results.csv"


def _write_parquet(target: Path, columns: list[str], found: list[dict[str, Any]]) -> None:
    from pyarrow import Table, parquet

    cells = {name: [row.get(name, "") for row in found] for name in columns}
    texts = {name for name, values in cells.items() if any(isinstance(v, str) and v for v in values)}
    typed = {
        name: [str(v) for v in values] if name in texts else [None if v == "" else v for v in values]
        for name, values in cells.items()
    }
    with completed(target) as path:
        parquet.write_table(Table.from_pydict(typed), path)


def rows(outcomes: Mapping[str, Outcome]) -> list[dict[str, Any]]:
    """One row per job; a job that was refused or failed has its status and reason, and no figures."""
    return [row(name, outcome, outcomes) for name, outcome in outcomes.items()]


def row(name: str, outcome: Outcome, others: Mapping[str, Outcome]) -> dict[str, Any]:
    """The row of one job; `others` are the grid's, among them its baseline."""
    chosen = {t["stage"]: t["option"] for t in outcome.plan.get("transforms", [])}
    found = {"job": name, "status": outcome.status, "reason": " ".join(outcome.reasons), **chosen}
    found["job_key"] = outcome.metrics.get("job_key", "")
    found["scenario"] = model_name(outcome.plan["model"]) if outcome.plan.get("model") else ""
    if "latency" not in outcome.metrics:
        return found
    return found | _figures(outcome.plan, outcome.metrics) | _beside(outcome.metrics, others)


def _beside(metrics: Mapping[str, Any], others: Mapping[str, Outcome]) -> dict[str, Any]:
    """What stands beside the baseline's."""
    quality = metrics["quality"] or {}
    name, speed = Path(quality.get("against", "")).name, quality.get("speed") or {}
    low, high = speed.get("interval") or ("", "")
    found = {"baseline": name, "speedup": speed.get("speedup", ""), "speedup_low": low, "speedup_high": high}
    found["break_even_images"] = "" if speed.get("break_even_images") is None else speed["break_even_images"]
    if name in others and "latency" in others[name].metrics:
        found["memory_ratio"] = peak_bytes(metrics) / peak_bytes(others[name].metrics)
    return found


def _figures(plan: Mapping[str, Any], metrics: Mapping[str, Any]) -> dict[str, Any]:
    call, phases = metrics["latency"]["call_s"], metrics["phases"]
    memory, quality = metrics["memory"], metrics["quality"] or {}
    peak = memory["phases"]["run"]
    compiled = next((t["options"] for t in plan["transforms"] if t["stage"] == "compile"), None)
    kind = "plain" if compiled is None else "compile"
    low, high = call["interval"] or ("", "")
    return {
        "model_cls": _denoiser(plan["model"]["components"]),
        "num_params_M": _millions((metrics.get("denoiser") or {}).get("parameters")),
        "flops_M": _millions((metrics.get("denoiser") or {}).get("flops")),
        f"time_{kind}_s": call["median"],
        f"mem_{kind}_GB": peak_bytes(metrics) / 1e9,
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
        **{name: "" if quality.get(name) is None else quality[name] for name in ("psnr_min", "ssim_min")},
    }


def _millions(count: int | None) -> float | str:
    return "" if count is None else count / 1e6


def _denoiser(components: Mapping[str, str]) -> str:
    from optbuilder.model import expand

    return ", ".join(components[name] for name in expand(["denoiser"], components))
