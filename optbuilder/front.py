"""The Pareto front."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import le
from typing import TypeVar

T = TypeVar("T")


def unbeaten(among: Sequence[T], figures: Callable[[T], tuple[float, ...]]) -> list[T]:
    """Those that no other one beats in all figures, of which less is better.

    >>> unbeaten([(1, 4), (2, 2), (3, 3)], tuple)
    [(1, 4), (2, 2)]
    """
    points = [figures(one) for one in among]
    beaten = [any(other != own and all(map(le, other, own)) for other in points) for own in points]
    return [one for one, out in zip(among, beaten, strict=True) if not out]
