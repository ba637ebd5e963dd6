"""Files that others may have written, or that were cut short: read without trusting what is in them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

MOST_BYTES = 64 * 2**20  # a record of a thousand jobs' samples is a tenth of that


class _Plain(yaml.SafeLoader):
    """YAML of plain values. Aliases are refused: a few lines of them can stand for more than memory holds."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not taken here")
        return super().compose_node(parent, index)


def read_json(path: Path) -> Any:
    """The file's content. Raises `OSError` or `ValueError` for whatever is wrong with it."""
    try:
        return _printable(json.loads(_text(path)))
    except RecursionError:
        raise ValueError("its values are nested too deep") from None


def read_yaml(path: Path) -> Any:
    """The file's content. Raises `OSError` or `ValueError` for whatever is wrong with it."""
    try:
        return _printable(yaml.load(_text(path), _Plain))
    except RecursionError:
        raise ValueError("its values are nested too deep") from None
    except (yaml.YAMLError, OverflowError) as error:
        raise ValueError(" ".join(str(error).split())) from None


def _printable(content: Any) -> Any:
    """The content, if it can be written again: an escaped half of a character cannot."""
    json.dumps(content, ensure_ascii=False, default=str, skipkeys=True).encode()
    return content


def _text(path: Path) -> str:
    if path.stat().st_size > MOST_BYTES:
        raise ValueError(f"it is larger than {MOST_BYTES >> 20} MiB")
    return path.read_text(encoding="utf-8")


def misfit(value: Any, shape: Any, where: str) -> str | None:
    """The first place where a tree of values has not the `shape`, in words; None where it has.

    A shape is a mapping (its keys must be there; one with `?` at its end may be missing or null; `*` stands for every
    key), a list (every item has the shape of its only one), or a function that says whether it takes the value.

    >>> misfit({"n": [1, "2"]}, {"n": [number]}, "metrics")
    "metrics.n[1]='2' is no number"
    """
    if isinstance(shape, Mapping):
        return _misfit_of_mapping(value, shape, where)
    if isinstance(shape, list):
        if not isinstance(value, list):
            return f"{where}={_short(value)} is no list"
        found = (misfit(item, shape[0], f"{where}[{i}]") for i, item in enumerate(value))
        return next((problem for problem in found if problem), None)
    return None if shape(value) else f"{where}={_short(value)} is no {shape.__name__.replace('_', ' ')}"


def _misfit_of_mapping(value: Any, shape: Mapping[str, Any], where: str) -> str | None:
    if not isinstance(value, Mapping):
        return f"{where}={_short(value)} is no mapping"
    for key, inner in shape.items():
        name = key.rstrip("?")
        for each in value if name == "*" else [name]:
            place = f"{where}.{repr(each)[1:-1][:80]}"
            if value.get(each) is None:
                problem = None if key.endswith("?") else f"{place} is missing"
            else:
                problem = misfit(value[each], inner, place)
            if problem:
                return problem
    return None


def filled(value: Any, shape: Any) -> Any:
    """The tree with null for what its shape allows to be missing."""
    if isinstance(value, list) and isinstance(shape, list):
        return [filled(item, shape[0]) for item in value]
    if not isinstance(value, Mapping) or not isinstance(shape, Mapping):
        return value
    known = {key.rstrip("?"): inner for key, inner in shape.items()}
    every = known.pop("*", None)
    return {key: filled(value.get(key), known.get(key, every)) for key in [*value, *(known.keys() - value.keys())]}


def _short(value: Any) -> str:
    """A value for a message; what holds others is only named."""
    return f"a {type(value).__name__}" if isinstance(value, (Mapping, list)) else repr(value)[:80]


def text(value: Any) -> bool:
    return isinstance(value, str)


def number(value: Any) -> bool:
    """NaN and infinity are numbers too: pictures that are not finite have such a quality."""
    return isinstance(value, float) or (isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63)


def positive_number(value: Any) -> bool:
    return number(value) and math.isfinite(value) and value > 0


def whole_number(value: Any) -> bool:
    return number(value) and isinstance(value, int)


def decibels(value: Any) -> bool:
    """A number, perhaps as text: "inf" for equal pictures."""
    try:
        return number(value) or math.isfinite(float(value)) or value == "inf"
    except (ValueError, TypeError, OverflowError):
        return False


def whatever(value: Any) -> bool:
    return True


def plain_value(value: Any) -> bool:
    """A text, a number or a truth value."""
    return isinstance(value, (str, bool)) or number(value)
