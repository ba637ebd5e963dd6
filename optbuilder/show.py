"""What a person sees: progress on a terminal, the plan, the options, and a summary of what was measured."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column, Table
from rich.text import Text

from optbuilder.record import model_name, peak_bytes

_STYLES = {"ok": "bold green", "skipped": "green", "refused": "bold yellow"}


@contextmanager
def progress(terminal: bool) -> Iterator[Callable[[str, int, int], None]]:
    """A bar on stderr that `show(text, done, total)` moves; a total of 0 stands for unknown. Silent off a terminal."""
    if not terminal:
        yield lambda text, done, total: None
        return
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[count]}"), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=4) as bar:
        task, shown = bar.add_task("", total=None, count=""), ""

        def show(text: str, done: int, total: int) -> None:
            nonlocal shown
            if text != shown:
                bar.reset(task, description=text, total=total or None, count="")
                shown = text
            bar.update(task, completed=done, total=total or None, count=f"{done}/{total} steps" if total else "")

        yield show


def bytes_text(n: float) -> str:
    """A number of bytes with a unit.

    >>> bytes_text(1536), bytes_text(2 * 1024**3)
    ('1.5 KiB', '2.0 GiB')
    """
    for unit in ("B", "KiB", "MiB"):
        if n < 1024:
            return f"{n:.0f} B" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:.1f} GiB"


def print_plan(plan: Mapping[str, Any]) -> None:
    """The transforms in order with their options and reasons, graphs and notes."""
    console = wide_console()
    for text, style in plan_lines(plan):
        console.print(text, style=style, markup=False)


def plan_lines(plan: Mapping[str, Any]) -> Iterator[tuple[str, str | None]]:
    """The lines of a plan, each with its style."""
    yield f"{model_name(plan['model'])} ({plan['model']['pipeline']}) on {plan['device']}", None
    for number, transform in enumerate(plan["transforms"], 1):
        kind = "lossless" if transform["lossless"] else "lossy"
        yield f"{number}. {transform['stage']}={transform['option']}  [{kind}]", "bold"
        options = ", ".join(f"{k}={short(v)}" for k, v in transform["options"].items() if short(v) != "null")
        yield f"   {transform['function'].rsplit('.', 1)[1]}({options})", None
        yield f"   here: {transform['why_here']}", None
    if plan["load"]:
        yield f"from_pretrained({', '.join(f'{k}={short(v)}' for k, v in plan['load'].items())})", None
    if graphs := plan["graphs"]:
        known = "not predicted" if graphs["graphs"] is None else str(graphs["graphs"])
        yield f"graphs: {known}: {graphs['why']}", None
    for note in plan["notes"]:
        yield f"note: {note}", "cyan"


def short(value: Any) -> str:
    """An option's value without what is null in it."""
    if isinstance(value, Mapping):
        inner = ", ".join(f"{k}: {short(v)}" for k, v in value.items() if v is not None)
        return f"{{{inner}}}" if inner else "null"
    return "null" if value is None else str(value)


def print_summary(outcome: Any) -> None:
    """What was applied, the latency, the peak memory, and where the files are."""
    console = wide_console()
    names = ", ".join(f"{t['stage']}={t['option']}" for t in outcome.plan.get("transforms", []))
    style = _STYLES.get(outcome.status, "bold red")
    console.print(
        Text(outcome.status, style=style), Text(f"{names} on {model_name(outcome.plan['model'])}" if names else "")
    )
    if "latency" in outcome.metrics:
        for effect in (t["effect"] for t in outcome.plan["transforms"]):
            for note in effect["notes"]:
                console.print(f"  {effect['transform']}: {note}", markup=False)
        for name, text in figures(outcome):
            console.print(f"  {name:<12}{text}", markup=False)
    console.print(f"  {'files':<12}{outcome.directory}", markup=False)
    if outcome.profile:
        console.print(outcome.profile, markup=False)


def figures(outcome: Any) -> list[tuple[str, str]]:
    """What a finished run measured, by name."""
    metrics = outcome.metrics
    call, phases, memory = metrics["latency"]["call_s"], metrics["phases"], metrics["memory"]
    spread = f"p90 {call['p90']:.3f}, min {call['min']:.3f}, n={call['n']}"
    compiled = f", of which compiling {phases['compile_s']:.1f} s" if phases["compile_s"] else ""
    peak = memory["phases"]["run"]
    device = peak["device_allocated_peak_bytes"]
    weights = sum(sum(sizes.values()) for sizes in memory["weights_bytes"].values())
    several = found if len(found := metrics["latency"]["shapes"]) > 1 else []
    return [
        ("latency", f"{call['median']:.3f} s per call ({spread}), {metrics['latency']['images_per_s']:.2f} images/s"),
        *(
            ("", f"{s['name']}: {s['call_s']['median']:.3f} s per call, {s['images_per_s']:.2f} images/s")
            for s in several
        ),
        *(("WARNING", f"samples are unsteady: {text}") for text in call["warnings"]),
        ("first call", f"{phases['first_call_s']:.1f} s{compiled}; load {phases['load_s']:.1f} s"),
        *_artifacts(metrics.get("artifacts")),
        (
            "peak memory",
            f"process {bytes_text(peak['rss_peak_bytes'])}" + (f", device {bytes_text(device)}" if device else ""),
        ),
        ("weights", bytes_text(weights)),
        ("videos" if "videos" in metrics else "images", str(len(metrics["images"]))),
        *_quality(metrics["quality"]),
    ]


def _artifacts(found: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    if not found or not found["found"] + found["compiled"]:
        return []
    why = f": {found['why']}" if found["why"] else ""
    return [("artifacts", f"{found['found']} found, {found['compiled']} compiled anew{why}")]


def _quality(quality: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    if quality is None:
        return []
    found = [("quality", f"nothing to tell: random weights, compared with {quality['against']}")]
    if quality.get("psnr_min") is not None:
        psnr = "the same pictures" if quality["psnr_min"] == "inf" else f"PSNR {float(quality['psnr_min']):.1f} dB"
        found = [("quality", f"{psnr}, SSIM {quality['ssim_min']:.4f} at worst, against {quality['against']}")]
    if quality.get("below_floor") and quality["lossless_declared"]:
        found.append(("WARNING", "declared lossless, but below the noise floor"))
    if quality.get("shapes"):
        kept = quality["shapes"]
        found.append(("shapes", f"{kept['here']} of {kept['of']} as asked; {kept['baseline']} in the baseline"))
    if speed := quality.get("speed"):
        low, high = speed["interval"] or (speed["speedup"],) * 2
        pays = speed["break_even_images"]
        after = "never pays back" if pays is None else f"pays back after {pays:.0f} images"
        found.append(("speed-up", f"{speed['speedup']:.2f}x ({low:.2f} to {high:.2f}), {after}"))
    return found


def print_options(found: Sequence[Any], model: str) -> None:
    """Every option with whether it is usable, lossless, what it needs, and why not."""
    table = Table("option", "usable", "kind", "needs", "why not", title=model)
    for option in found:
        usable = Text("no", style="yellow") if option.reasons else Text("yes", style="green")
        kind = "" if option.lossless is None else "lossless" if option.lossless else "lossy"
        table.add_row(f"{option.stage}={option.name}", usable, kind, option.needs, Text(" ".join(option.reasons)))
    wide_console().print(table)


def print_sweep(outcomes: Mapping[str, Any], told: Sequence[str] = ()) -> None:
    """One line per job of a grid, then the reasons of those that are not ok, each once with its jobs.

    `told` are the statuses whose reasons stand on the screen already.
    """
    console = wide_console()
    console.print(sweep_table(outcomes))
    reasons: dict[str, list[str]] = {}
    for name, outcome in outcomes.items():
        for reason in outcome.reasons if outcome.status not in told else ():
            reasons.setdefault(reason, []).append(name)
    for reason, names in reasons.items():
        console.print(f"job {', '.join(names)}: {reason}", markup=False)


def sweep_table(outcomes: Mapping[str, Any], caption: str = "") -> Table:
    """A line per job: how it ended, what was applied, and its figures beside the baseline's."""
    techniques = Column("techniques", overflow="fold")
    table = Table("job", "status", techniques, "latency s", "speed-up", "peak memory", "PSNR dB", caption=caption)
    for name, outcome in outcomes.items():
        status = Text(outcome.status, style=_STYLES.get(outcome.status, "bold red"))
        table.add_row(Text(name), status, Text(_techniques(outcome)), *_row(outcome.metrics))
    return table


def sweep_line(name: str, outcome: Any) -> str:
    """The same in one plain line, for where there is no terminal."""
    latency, speedup, memory, psnr = _row(outcome.metrics)
    figures = [f"{latency} s" if latency else "", speedup, memory, f"PSNR {psnr}" if psnr else "", *outcome.reasons]
    return ", ".join(
        [f"job {name} {outcome.status}: {_techniques(outcome) or 'nothing applied'}", *filter(None, figures)]
    )


def _techniques(outcome: Any) -> str:
    names = [f"{t['stage']}={t['option']}" for t in outcome.plan.get("transforms", [])]
    return " ".join(name for name in names if name != "precision=fp32")


def _row(metrics: Mapping[str, Any]) -> list[str]:
    if "latency" not in metrics:
        return [""] * 4
    quality = metrics.get("quality") or {}
    speed = quality.get("speed") or {}
    low, high = speed.get("interval") or ("", "")
    return [
        f"{metrics['latency']['call_s']['median']:.3f}",
        f"{speed['speedup']:.2f}x" + (f" ({low:.2f} to {high:.2f})" if low else "") if speed else "",
        bytes_text(peak_bytes(metrics)),
        "" if quality.get("psnr_min") is None else f"{float(quality['psnr_min']):.1f}",
    ]


def wide_console() -> Console:
    """Standard output; wide enough for a table where it is no terminal."""
    return Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 160)
