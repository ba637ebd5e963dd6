"""What a process holds, so that a test can see whether it grows."""

from __future__ import annotations

import gc
import os
import tempfile
import threading
import weakref
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

_PIPELINES: weakref.WeakSet[Any] = weakref.WeakSet()


@dataclass(frozen=True)
class Held:
    """Resident bytes, open files, threads, files below the temporary folder, and pipelines that are alive."""

    rss: int
    files: int
    threads: int
    temporary: int
    pipelines: int


def held() -> Held:
    """What this process holds now, after what is garbage has been collected."""
    gc.collect()
    own = psutil.Process()
    below = sum(len(names) for _, _, names in os.walk(tempfile.gettempdir()))
    return Held(own.memory_info().rss, own.num_fds(), threading.active_count(), below, len(_PIPELINES))


def watch_pipelines(monkeypatch: Any) -> None:
    """Count the pipelines that are loaded from now on while anything refers to them."""
    import optbuilder.pipeline as pipeline

    load = pipeline.from_pretrained

    def watched(*args: Any) -> Any:
        pipe = load(*args)
        _PIPELINES.add(pipe)
        return pipe

    monkeypatch.setattr(pipeline, "from_pretrained", watched)


def slope(values: list[float]) -> float:
    """How much a value grows from one measurement to the next (Theil and Sen: outliers do not move it)."""
    n = len(values)
    return float(np.median([(values[j] - values[i]) / (j - i) for i in range(n) for j in range(i + 1, n)]))


def growth(found: list[Held]) -> dict[str, float]:
    """The slope of each thing held."""
    columns = np.array([astuple(one) for one in found], dtype=float).T
    return dict(zip(Held.__dataclass_fields__, map(slope, columns.tolist()), strict=True))


def emptied(folder: Path) -> None:
    """Remove a run's record, so that only what leaks stays."""
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
