"""Check plain values against a dataclass or a function's signature. OmegaConf knows the types and the conversions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, field, make_dataclass
from typing import Any, get_type_hints

from omegaconf import OmegaConf, ValidationError

from optbuilder.errors import nearest


def option_schema(function: Callable[..., Any]) -> type:
    """A dataclass with the keyword-only options of a transform: their types and defaults."""
    hints = get_type_hints(function)
    options = [p for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]
    return make_dataclass(function.__name__, [(p.name, hints[p.name], _default(p.default)) for p in options])


def _default(value: Any) -> Any:
    if isinstance(value, (list, dict)):
        return field(default_factory=lambda: type(value)(value))
    return MISSING if value is inspect.Parameter.empty else value


def conform(schema: type, values: Mapping[str, Any], prefix: str) -> tuple[dict[str, Any], list[str]]:
    """Fill `values` into the dataclass `schema`.

    Returns the values converted to their types, with defaults, and one line for every key that does not exist
    and every value that does not fit; `prefix` is how a person addresses a key (`run`, `compile`).
    """
    node, problems = OmegaConf.structured(schema), []
    known = [str(key) for key in node]
    for key, value in values.items():
        if key not in known:
            problems.append(f"{prefix}.{key}={value!r}: there is no such option. {nearest(str(key), known)}")
            continue
        try:
            node[key] = value
        except ValidationError as error:
            reason = str(error).splitlines()[0].rstrip(".")
            problems.append(
                f"{prefix}.{key}={value!r}: {reason[0].lower()}{reason[1:]}. It must be {_kind(schema, key)}."
            )
    return OmegaConf.to_container(node, resolve=False), problems  # type: ignore[return-value]


def _kind(schema: type, key: str) -> str:
    kind = get_type_hints(schema)[key]
    return str(getattr(kind, "__name__", kind) if not str(kind).count("|") else kind).replace("None", "null")
