"""What can be wrong with a request, as one-line messages: what, the quoted value, why, and what to write instead."""

from __future__ import annotations

import errno
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


def failure(error: BaseException) -> str:
    """An exception of a library or of the system in one line, with what to do about it where that is known.

    >>> failure(MemoryError("no room"))[:40]
    'MemoryError: no room. Use precision=bf16'
    """
    said = f"{type(error).__name__}: {' '.join(str(error).split())[:1000]}"
    advice = _advice(error)
    return f"{said.rstrip('. ')}. {advice}" if advice else said


def _advice(error: BaseException) -> str:
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "Free some space, or write elsewhere: hydra.run.dir=<folder>, and hydra.sweep.dir for a grid."
    if number is not None:
        return "Choose a folder that can be written to: hydra.run.dir=<folder>, and hydra.sweep.dir for a grid."
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or _ALLOCATOR in str(error):
        return (
            "Use precision=bf16, quant=int8_weight_only, vae=tiling or offload=model, or less at once: "
            "run.height, run.width, run.images_per_prompt, run.batch_size."
        )
    return ""


_ALLOCATOR = "can't allocate memory"  # what torch says of a CPU, as a plain RuntimeError


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
