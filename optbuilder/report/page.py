"""The page itself: everything a grid left, as one HTML file without a network."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from optbuilder.directories import words_of
from optbuilder.environment import unfair
from optbuilder.foreign import misfit, read_json, text
from optbuilder.record import completed
from optbuilder.report.cells import Cell, cells, grouped

FOLDER = Path(__file__).parent
CLOSE_DB = 40.0  # pictures that differ by less are hard to tell apart by eye
COLUMNS = {
    "job": "job", "status": "status", "techniques": "techniques", "seconds": "s per picture", "speedup": "speed-up",
    "psnr": "PSNR dB", "ssim": "SSIM", "memory": "peak memory MiB", "memory_ratio": "memory ratio",
    "first": "first call s", "break_even": "pays back after", "reason": "reason",
}  # fmt: skip


def write_report(directories: Sequence[Path], target: Path) -> Path:
    """Write the page of these grids, complete or not there. Raises `Refused` where there is nothing to report."""
    from jinja2 import Environment, FileSystemLoader

    found = cells(directories)
    templates = Environment(loader=FileSystemLoader(FOLDER), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    page = templates.get_template("page.html").render(**content(found, directories))
    with completed(target) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return target


def content(found: Sequence[Cell], directories: Sequence[Path]) -> dict[str, Any]:
    """What the template shows."""
    from plotly.offline import get_plotlyjs

    from optbuilder.report.contribution import contributions
    from optbuilder.report.pictures import rows

    measured = [cell for cell in found if cell.measured]
    lines = contributions(found)
    return {
        "title": ", ".join(dict.fromkeys(cell.row["scenario"] for cell in found if cell.row["scenario"])),
        "commands": list(commands(directories)),
        "answers": list(answers(directories)),
        "findings": list(findings(measured)),
        "columns": COLUMNS,
        "rows": [_row(cell) for cell in found],
        "charts": _charts([c for c in measured if not c.name.endswith("_again")], lines),
        "contributions": lines,
        "pictures": list(rows([c for c in measured if not c.name.endswith("_again")])),
        "refusals": _refusals(found),
        "environment": _environment(measured),
        "unfair": _unfair(measured),
        "plotly": get_plotlyjs() if measured else "",
        "style": (FOLDER / "page.css").read_text(),
        "script": (FOLDER / "page.js").read_text(),
    }


def commands(directories: Sequence[Path]) -> Iterator[str]:
    """The command lines that made these grids."""
    for directory in directories:
        for name, mode in (("multirun.yaml", "-m "), (".hydra/hydra.yaml", "")):
            if (directory / name).is_file():
                try:
                    task, own = words_of(directory / name)
                except (OSError, ValueError):
                    continue  # whoever wrote it, it is no command line of ours
                yield f"python -m optbuilder {mode}{shlex.join([*task, *_directories(own)])}"
                break


def answers(directories: Sequence[Path]) -> Iterator[str]:
    """What searches found, in their own sentences."""
    for directory in directories:
        try:
            found = read_json(directory / "answer.json")
        except (OSError, ValueError):
            continue  # most grids are no search, and whoever wrote another file, it is no answer of ours
        if misfit(found, {"said": [text]}, "answer") is None:
            yield from found["said"]


def _directories(words: Sequence[str]) -> list[str]:
    return [word for word in words if word.startswith(("hydra.sweep.dir=", "hydra/launcher="))]


def findings(measured: Sequence[Cell]) -> Iterator[str]:
    """What the grids say in sentences, those that can be compared apart from the others."""
    for name, group in grouped(measured).items():
        yield from (f"{name}: {said}" if name else said for said in _findings(group))


def _findings(measured: Sequence[Cell]) -> Iterator[str]:
    """The fastest, the fastest with pictures like the baseline's, the smallest; and how the machine drifted."""
    compared = [cell for cell in measured if cell.row.get("speedup") and not cell.name.endswith("_again")]
    if compared:
        yield f"Fastest: {sentence(min(compared, key=lambda cell: cell.image_s))}"
        close = [cell for cell in compared if cell.psnr is not None and cell.psnr >= CLOSE_DB]
        if close:
            yield f"Fastest at {CLOSE_DB:.0f} dB or better: {sentence(min(close, key=lambda cell: cell.image_s))}"
        if any(cell.row.get("memory_ratio") for cell in compared):
            yield f"Least memory: {sentence(min(compared, key=lambda cell: cell.row.get('memory_ratio') or 9e9))}"
    for cell in measured:
        if cell.name.endswith("_again") and cell.row.get("speedup"):
            yield (
                f"Drift: the baseline measured again at the end ran at {cell.row['speedup']:.2f}x its first speed "
                f"({_interval(cell)}); differences of that size mean nothing."
            )


def sentence(cell: Cell) -> str:
    """One job against its baseline, for people: speed, quality, memory, and when it pays back."""
    parts = [f"{cell.title}: {cell.row['speedup']:.2f}x the baseline's speed ({_interval(cell)})"]
    if cell.psnr is not None:
        parts.append("the same pictures" if cell.psnr == float("inf") else f"PSNR {cell.psnr:.1f} dB")
    if cell.row.get("memory_ratio"):
        parts.append(f"{(cell.row['memory_ratio'] - 1) * 100:+.0f} % memory")
    after = cell.row.get("break_even_images")
    parts.append(f"pays back after {after:.0f} images" if after not in ("", None) else "never pays back")
    return f"{', '.join(parts)} (job {cell.name})"


def _interval(cell: Cell) -> str:
    low, high = cell.row["speedup_low"], cell.row["speedup_high"]
    return f"{low:.2f} to {high:.2f}" if low else "one sample: no interval"


def _row(cell: Cell) -> dict[str, Any]:
    """The cells of one line of the table, in the columns' order: the text shown, and what it is sorted by."""
    row, phases = cell.row, cell.outcome.metrics.get("phases", {})
    peak = (row.get("device_peak_bytes") or row.get("rss_peak_bytes") or 0) / 2**20
    values = {
        "job": cell.name, "status": cell.outcome.status, "techniques": cell.title,
        "seconds": cell.image_s if cell.measured else None, "speedup": row.get("speedup"), "psnr": cell.psnr,
        "ssim": row.get("ssim_min"), "memory": peak or None, "memory_ratio": row.get("memory_ratio"),
        "first": phases.get("first_call_s"), "break_even": row.get("break_even_images"),
        "reason": " ".join(cell.outcome.reasons),
    }  # fmt: skip
    return {key: {"text": _text(key, value, cell), "order": _order(value)} for key, value in values.items()}


def _text(key: str, value: Any, cell: Cell) -> str:
    if value in (None, ""):
        return ""
    if key == "speedup":
        return f"{value:.2f} ({_interval(cell)})"
    digits = {"seconds": 4, "psnr": 1, "ssim": 4, "memory": 0, "memory_ratio": 2, "first": 2, "break_even": 0}
    return f"{value:.{digits[key]}f}" if key in digits else str(value)


def _order(value: Any) -> Any:
    return 1e12 if value == float("inf") else "" if value is None else value


def _charts(measured: Sequence[Cell], lines: Sequence[Any]) -> dict[str, Any]:
    """Every chart as plain data, by the id of its place in the page."""
    if not measured:
        return {}
    from optbuilder.report import charts

    drawn = {"cold": charts.cold_start(measured), "call": charts.steady_call(measured)}
    if judged := [cell for cell in measured if not cell.random]:
        drawn["pareto"] = charts.pareto(judged)
    if lines:
        drawn["contribution"] = charts.contribution_bars(lines)
    return {name: json.loads(figure.to_json()) for name, figure in drawn.items()}


def _refusals(found: Sequence[Cell]) -> dict[str, list[str]]:
    """Each reason once, with the jobs it holds for."""
    reasons: dict[str, list[str]] = {}
    for cell in found:
        for reason in cell.outcome.reasons if not cell.measured else ():
            reasons.setdefault(reason, []).append(f"{cell.name} ({cell.outcome.status})")
    return reasons


def _environment(measured: Sequence[Cell]) -> dict[str, str]:
    """The first job's environment, flat; what the others have else is among the unfair differences."""
    environment = measured[0].outcome.metrics["environment"] if measured else {}
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in environment.items() if value}


def _unfair(measured: Sequence[Cell]) -> list[str]:
    first = measured[0].outcome.metrics["environment"] if measured else {}
    told = ((cell.name, unfair(first, cell.outcome.metrics["environment"])) for cell in measured)
    reasons: dict[str, list[str]] = {}
    for name, line in ((name, line) for name, lines in told for line in lines):
        reasons.setdefault(line, []).append(name)
    return [f"{line}: job {', '.join(names)}" for line, names in reasons.items()]
