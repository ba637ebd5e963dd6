"""What each technique of a grid contributes: on average, and with all others held."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from optbuilder.report.cells import Cell
from optbuilder.samples import medians


@dataclass(frozen=True)
class Contribution:
    """One option of a stage beside that stage left as it is. Ratios are speed-ups: above 1 the technique is faster."""

    technique: str
    pairs: int  # of jobs that differ in this stage alone
    held: float
    interval: list[float]
    best: float
    worst: float
    average: float  # of all jobs with it to all without, whatever else they have
    memory: float  # peak with it to peak without, others held
    psnr: float | None  # the worst, in dB


def contributions(found: Sequence[Cell]) -> list[Contribution]:
    """One line per technique that some job has and another, alike in all else, has not; the fastest first."""
    measured = [cell for cell in found if cell.measured and not cell.name.endswith("_again")]
    techniques = sorted({(stage, told) for cell in measured for stage, told in cell.stages.items()})
    lines = [line for stage, told in techniques if (line := _line(stage, told, measured)) is not None]
    return sorted(lines, key=lambda line: -line.held)


def _line(stage: str, told: str, measured: Sequence[Cell]) -> Contribution | None:
    pairs = list(_pairs(stage, told, measured))
    if not pairs:
        return None
    ratios = [float(np.median(without.calls) / np.median(having.calls)) for without, having in pairs]
    drawn = np.mean([np.log(_ratios(*pair)) for pair in pairs], axis=0)
    having = [cell for cell in measured if cell.stages.get(stage) == told]
    without = [cell for cell in measured if stage not in cell.stages]
    compared = [cell.psnr for cell in having if cell.psnr is not None]
    return Contribution(
        f"{stage}={told.partition(' ')[0]}",
        len(pairs),
        _mean(ratios),
        [float(v) for v in np.exp(np.percentile(drawn, [2.5, 97.5]))],
        max(ratios),
        min(ratios),
        _mean([cell.image_s for cell in without]) / _mean([cell.image_s for cell in having]),
        _mean([one.peak / other.peak for other, one in pairs]),
        min(compared, default=None),
    )


def _pairs(stage: str, told: str, measured: Sequence[Cell]) -> Iterator[tuple[Cell, Cell]]:
    """Each job without the technique and the one that has it and is alike in all else."""
    plain = {(cell.group, _rest(cell, stage)): cell for cell in measured if stage not in cell.stages}
    for cell in measured:
        if cell.stages.get(stage) == told and (other := plain.get((cell.group, _rest(cell, stage)))):
            yield other, cell


def _rest(cell: Cell, stage: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((s, told) for s, told in cell.stages.items() if s != stage))


def _ratios(without: Cell, having: Cell) -> Any:
    return medians(without.calls, 0) / medians(having.calls, 1)


def _mean(values: Sequence[float]) -> float:
    """The geometric mean, as ratios ask for."""
    return math.exp(sum(map(math.log, values)) / len(values))
