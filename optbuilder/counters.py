"""What happened at run time, which no snapshot shows: graphs, breaks, recompiles, and the attention kernels called."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Graphs:
    """Compiled graphs and graph breaks with their reasons, and whether dynamo gave up compiling (`limit_hit`)."""

    graphs: int = 0
    graph_breaks: dict[str, int] = field(default_factory=dict)
    limit_hit: str | None = None


@contextmanager
def counted_graphs() -> Iterator[Callable[[], Graphs]]:
    """Count from zero in the block; the function it gives returns the count so far."""
    from torch._dynamo.utils import counters

    counters.clear()
    found = Graphs()
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: _note_limit(found, record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("torch._dynamo.convert_frame")
    log.addHandler(handler)

    def so_far() -> Graphs:
        found.graphs = counters["stats"]["unique_graphs"]
        found.graph_breaks = {reason.strip().splitlines()[0]: n for reason, n in counters["graph_break"].items()}
        return found

    try:
        yield so_far
    finally:
        log.removeHandler(handler)


def _note_limit(found: Graphs, message: str) -> None:
    if "torch._dynamo hit config." in message:
        found.limit_hit = " ".join(message.split("To log all")[0].split())


def attention_kernels(call: Callable[[], Any]) -> dict[str, int]:
    """The attention kernels that a call runs, with how often, as the profiler sees them: compiled or not."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        call()
    names = {e.key: e.count for e in profiler.key_averages() if "attention" in e.key.lower()}
    return {key: count for key, count in sorted(names.items()) if key != "aten::scaled_dot_product_attention"}
