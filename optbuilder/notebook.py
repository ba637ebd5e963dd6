"""A plan and a run's outcome as text and as HTML, as notebooks show what a cell gives. Texts of others are escaped."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING

from optbuilder.record import model_name, plan_json
from optbuilder.show import figures, plan_lines, short

if TYPE_CHECKING:
    from optbuilder.builder import Plan
    from optbuilder.job import Outcome

PICTURES = 12  # of a run with more, the first are shown


def plan_text(plan: Plan) -> str:
    """What `action=plan` prints, and why not, where it cannot be."""
    lines = [text for text, _ in plan_lines(plan_json(plan, ""))]
    return "\n".join([*lines, *(f"refused: {reason}" for reason in plan.refusals)])


def plan_html(plan: Plan) -> str:
    """The transforms in order as a table, then graphs, notes and refusals."""
    told = plan_json(plan, "")
    rows = [
        (
            f"{t['stage']}={t['option']}",
            "lossless" if t["lossless"] else "lossy",
            ", ".join(f"{k}={short(v)}" for k, v in t["options"].items() if short(v) != "null"),
            t["why_here"],
        )
        for t in told["transforms"]
    ]
    head = f"{model_name(told['model'])} ({told['model']['pipeline']}) on {told['device']}"
    said = [f"graphs: {plan.graphs}"] if told["graphs"] else []
    said += [f"note: {note}" for note in plan.notes] + [f"refused: {reason}" for reason in plan.refusals]
    return paragraphs([head]) + table(("technique", "", "options", "here"), rows) + paragraphs(said)


def outcome_text(outcome: Outcome) -> str:
    """How a run ended, what was measured, and where its files are."""
    return "\n".join([title(outcome), *outcome.reasons, *(f"{name}: {text}" for name, text in facts(outcome))])


def outcome_html(outcome: Outcome) -> str:
    """The same as a table, with the pictures."""
    pictures = "".join(_pictures(outcome))
    return paragraphs([title(outcome), *outcome.reasons]) + table((), facts(outcome)) + pictures


def title(outcome: Outcome) -> str:
    names = ", ".join(f"{t['stage']}={t['option']}" for t in outcome.plan.get("transforms", []))
    return f"{outcome.status}: {names} on {model_name(outcome.plan['model'])}" if names else outcome.status


def facts(outcome: Outcome) -> list[tuple[str, str]]:
    found = figures(outcome) if "latency" in outcome.metrics else []
    return [*found, ("files", str(outcome.directory))]


def _pictures(outcome: Outcome) -> Iterator[str]:
    """The first pictures of the run directory, inside the page, with their prompts."""
    from PIL import Image

    for name in outcome.metrics.get("images", [])[:PICTURES]:
        path = outcome.directory / name
        with Image.open(path) as picture:
            caption = escape(f"{picture.text['prompt']} (seed {picture.text['seed']})", quote=True)
        data = base64.b64encode(path.read_bytes()).decode()
        yield f'<img src="data:image/png;base64,{data}" alt="{caption}" title="{caption}" style="margin: 2px">'


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """An HTML table of texts.

    >>> table((), [("<b>", "1 & 2")])
    '<table><tr><td>&lt;b&gt;</td><td>1 &amp; 2</td></tr></table>'
    """
    head = "".join(f"<th>{escape(text)}</th>" for text in header)
    body = "".join(f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in row)}</tr>" for row in rows)
    return f"<table>{f'<tr>{head}</tr>' if head else ''}{body}</table>"


def paragraphs(lines: Iterable[str]) -> str:
    return "".join(f"<p>{escape(line)}</p>" for line in lines)
