"""What happened at run time, which no snapshot shows: graphs, breaks, recompiles, and the attention kernels called."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

CALLS: Counter[str] = Counter()  # what `counted` methods count


@dataclass
class Counts:
    """Compiled graphs, graph breaks with their reasons, whether dynamo gave up compiling (`limit_hit`), what inductor
    found in its cache of artifacts, and how often counted methods were called."""

    graphs: int = 0
    graph_breaks: dict[str, int] = field(default_factory=dict)
    limit_hit: str | None = None
    cache_hits: int = 0
    cache_misses: int = 0
    calls: dict[str, int] = field(default_factory=dict)


def counted(name: str, method: Callable[..., Any], weight: int = 1) -> Callable[..., Any]:
    """Wrap a method so that each call adds `weight` to the count of `name`."""

    @wraps(method)
    def count(*args: Any, **kwargs: Any) -> Any:
        CALLS[name] += weight
        return method(*args, **kwargs)

    return count


@contextmanager
def counts() -> Iterator[Callable[[], Counts]]:
    """Count from zero in the block; the function it gives returns the count so far."""
    from torch._dynamo.utils import counters

    counters.clear()
    CALLS.clear()
    found = Counts()
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: _note_limit(found, record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("torch._dynamo.convert_frame")
    log.addHandler(handler)

    def so_far() -> Counts:
        found.graphs = counters["stats"]["unique_graphs"]
        found.graph_breaks = {reason.strip().splitlines()[0]: n for reason, n in counters["graph_break"].items()}
        found.cache_hits = counters["inductor"]["fxgraph_cache_hit"]
        found.cache_misses = counters["inductor"]["fxgraph_cache_miss"]
        found.calls = dict(CALLS)
        return found

    try:
        yield so_far
    finally:
        log.removeHandler(handler)


def _note_limit(found: Counts, message: str) -> None:
    if "torch._dynamo hit config." in message:
        found.limit_hit = " ".join(message.split("To log all")[0].split())


def attention_kernels(call: Callable[[], Any]) -> dict[str, int]:
    """The attention kernels that a call runs, with how often, as the profiler sees them: compiled or not."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        call()
    names = {e.key: e.count for e in profiler.key_averages() if "attention" in e.key.lower()}
    return {key: count for key, count in sorted(names.items()) if key != "aten::scaled_dot_product_attention"}
