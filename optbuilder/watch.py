"""What a terminal shows of a grid: the plan of it, then every job as it ends, with an estimate of the rest."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

from rich.live import Live

from optbuilder.grid import Cell
from optbuilder.job import Outcome, recorded
from optbuilder.show import sweep_line, sweep_table, wide_console

EVERY_S = 0.5


def announce(everything: Sequence[Cell], standing: Collection[str], todo: Sequence[Cell]) -> None:
    """How many cells there are, how many run, and why the others do not: each reason once, with its jobs."""
    idle: dict[str, list[str]] = {}
    for cell in everything:
        for reason in cell.reasons or ([f"does the same as job {cell.same_as.name}"] if cell.same_as else []):
            idle.setdefault(reason, []).append(cell.name)
    asked = [cell for cell in everything if cell.name.isdigit()]
    counts = {"jobs": len(asked), "baselines": len(everything) - len(asked), "to run": len(todo)}
    counts |= {
        "there already": len(standing),
        "refused": sum(bool(c.reasons) for c in everything),
        "equal": sum(bool(c.same_as) for c in everything),
    }
    console = wide_console()
    console.print(", ".join(f"{count} {name}" for name, count in counts.items() if count or name == "to run"))
    for reason, names in idle.items():
        console.print(f"job {', '.join(names)}: {reason}", markup=False)


@contextmanager
def watched(todo: Sequence[Cell], directory: Path) -> Iterator[None]:
    """Show every job as it ends, whichever process or machine it runs on: the record that it leaves tells."""
    stop = threading.Event()
    paths = {cell.name: directory / cell.name / "metrics.json" for cell in todo}
    earlier = {
        name: _written(path) for name, path in paths.items()
    }  # of an earlier start, which stays until it is over
    thread = threading.Thread(target=_watch, args=(paths, earlier, stop), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _watch(paths: Mapping[str, Path], earlier: Mapping[str, int], stop: threading.Event) -> None:
    console, start, ended = wide_console(), time.monotonic(), dict[str, Outcome]()
    live = Live(console=console, auto_refresh=False, transient=True) if sys.stdout.isatty() and paths else None
    with live or nullcontext():
        over = False
        while not over:
            over = stop.wait(EVERY_S)
            left = {name: path for name, path in paths.items() if name not in ended}
            new = {n: recorded(p.parent) for n, p in left.items() if _written(p) not in (0, earlier[n])}
            ended |= new
            said = f"{len(ended)} of {len(paths)}{_left(start, len(ended), len(paths))}"
            if live is not None:
                shown = list(ended.items())[-max(1, console.height - 8) :]
                live.update(sweep_table(dict(shown), said), refresh=bool(new) or not ended)
            for name, outcome in new.items() if live is None else ():
                console.print(f"{sweep_line(name, outcome)} ({said})", markup=False)


def _written(path: Path) -> int:
    """When the file was written, to tell it from an earlier one (whatever the clock says); 0 where there is none."""
    return path.stat().st_mtime_ns if path.is_file() else 0


def _left(start: float, ended: int, everything: int) -> str:
    """An estimate, as soon as there is something to estimate from."""
    if ended in (0, everything):
        return ""
    seconds = (time.monotonic() - start) / ended * (everything - ended)
    return f", about {seconds / 60:.0f} min left" if seconds > 90 else f", about {seconds:.0f} s left"
