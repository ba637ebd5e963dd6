"""What can be wrong with a request, as one-line messages: what, the quoted value, why, and what to write instead."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class Refused(Exception):
    """A request that cannot work. `reasons` holds every problem found, one line each."""

    def __init__(self, *reasons: str) -> None:
        super().__init__("\n".join(reasons))
        self.reasons = list(reasons)


class NoEffect(Exception):
    """A technique that was asked for and changed nothing."""


class UnexpectedHooks(Exception):
    """A technique that put hooks on the pipeline although it is not there for that: an offload, for one."""


def nearest(word: str, known: Iterable[str]) -> str:
    """The end of an error message: the nearest of the `known` words, or all of them.

    >>> nearest("int8_dynamc", ["int8_dynamic", "none"])
    "Did you mean 'int8_dynamic'?"
    >>> nearest("xyz", ["int8_dynamic", "none"])
    'Choose one of: int8_dynamic, none.'
    """
    known = sorted(known)
    close = get_close_matches(word, known, n=1)
    return f"Did you mean '{close[0]}'?" if close else f"Choose one of: {', '.join(known)}."
