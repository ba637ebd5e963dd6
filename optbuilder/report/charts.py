"""The report's charts, as plotly figures without colours of their own for paper and text: the page has two themes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

import plotly.graph_objects as go

from optbuilder.front import unbeaten
from optbuilder.report.cells import IDENTICAL_DB, Cell, grouped
from optbuilder.report.contribution import Contribution
from optbuilder.show import bytes_text

LAYOUT = {
    "template": "none", "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)", "height": 420,
    "margin": {"l": 60, "r": 20, "t": 40, "b": 50}, "autosize": True,
    "legend": {"orientation": "h", "yanchor": "bottom", "y": 1.0, "traceorder": "normal"},
}  # fmt: skip
COLD = ("import_s", "load_s", "transforms_s", "compile_s")
CALL = ("text_encode_s", "denoise_s", "decode_s")


def front(found: Sequence[Cell], figures: Callable[[Cell], tuple[float, ...]]) -> set[str]:
    """The names of the jobs that no other one comparable with them beats in all figures, of which less is better."""
    return {cell.name for group in grouped(found).values() for cell in unbeaten(group, figures)}


def speed_and_quality(cell: Cell) -> tuple[float, ...]:
    return cell.image_s, -_db(cell)


def and_memory(cell: Cell) -> tuple[float, ...]:
    return *speed_and_quality(cell), cell.peak


def pareto(found: Sequence[Cell]) -> go.Figure:
    """Seconds per picture against PSNR; the size of a point is the peak memory. A line for each front."""
    best, small, figure = front(found, speed_and_quality), front(found, and_memory), go.Figure()
    colours = ["#d9480f" if c.name in best else "#e8a33d" if c.name in small else "#4c8bf5" for c in found]
    figure.add_scatter(
        x=[cell.image_s for cell in found],
        y=[_db(cell) for cell in found],
        customdata=[cell.name for cell in found],
        text=[_hover(cell) for cell in found],
        hovertemplate="%{text}<extra></extra>",
        mode="markers",
        marker={
            "size": [cell.peak for cell in found],
            "sizemode": "area",
            "sizeref": max(cell.peak for cell in found) / 900,
            "sizemin": 5,
            "color": colours,
            "line": {"width": 1},
        },
        name="jobs",
        showlegend=False,
    )
    for name, group in grouped(found).items():
        line = sorted((cell for cell in group if cell.name in best), key=lambda cell: cell.image_s)
        figure.add_scatter(
            x=[cell.image_s for cell in line],
            y=[_db(cell) for cell in line],
            customdata=[cell.name for cell in line],
            mode="lines",
            line={"color": "#d9480f", "dash": "dot", "shape": "vh"},
            hoverinfo="skip",
            name=f"front {escape(name)}".strip(),
        )
    quality = "PSNR of the worst picture, dB (100: the same pictures)"
    return figure.update_layout(**LAYOUT, xaxis_title="seconds per picture", yaxis_title=quality)


def _db(cell: Cell) -> float:
    """The PSNR to draw; a job that was not compared is the baseline itself."""
    return IDENTICAL_DB if cell.psnr is None else min(cell.psnr, IDENTICAL_DB)


def _hover(cell: Cell) -> str:
    speed = f"{cell.row['speedup']:.2f}x the baseline's speed" if cell.row.get("speedup") else "no speed-up known"
    lines = [
        cell.title,
        f"{cell.image_s:.3f} s per picture, {speed}",
        f"peak {bytes_text(cell.peak)}",
        f"job {cell.name}",
    ]
    return "<br>".join(map(escape, lines))


def cold_start(found: Sequence[Cell]) -> go.Figure:
    """Stacked bars: how long each job took until steady calls."""
    phases = [cell.outcome.metrics["phases"] for cell in found]
    seconds = [{**p, "transforms_s": sum(p["transforms_s"].values())} for p in phases]
    return _bars(found, {name: [p[name] or 0.0 for p in seconds] for name in COLD})


def steady_call(found: Sequence[Cell]) -> go.Figure:
    """Stacked bars: where the time of one call goes."""
    latency = [cell.outcome.metrics["latency"] for cell in found]
    return _bars(found, {name: [(each[name] or {}).get("median", 0.0) for each in latency] for name in CALL})


def _bars(found: Sequence[Cell], parts: dict[str, list[float]]) -> go.Figure:
    figure, names = go.Figure(), [f"{cell.name}: {escape(cell.title)}" for cell in found]
    for part, seconds in parts.items():
        figure.add_bar(y=names, x=seconds, name=part.removesuffix("_s").replace("_", " "), orientation="h")
    height = 120 + 26 * len(found)
    return figure.update_layout(
        **{**LAYOUT, "height": height},
        barmode="stack",
        xaxis_title="seconds",
        yaxis={"autorange": "reversed", "automargin": True},
    )


def contribution_bars(lines: Sequence[Contribution]) -> go.Figure:
    """What each technique makes of the speed, others held, with its interval."""
    figure = go.Figure()
    figure.add_scatter(
        x=[line.held for line in lines],
        y=[line.technique for line in lines],
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [line.interval[1] - line.held for line in lines],
            "arrayminus": [line.held - line.interval[0] for line in lines],
        },
        mode="markers",
        marker={"size": 10, "color": "#4c8bf5"},
        hovertemplate="%{y}: %{x:.3f}x<extra></extra>",
    )
    figure.add_vline(x=1, line_dash="dot", line_color="#888")
    layout = {**LAYOUT, "height": 120 + 32 * len(lines)}
    return figure.update_layout(
        **layout, xaxis_title="times faster, others held", yaxis={"autorange": "reversed", "automargin": True}
    )
