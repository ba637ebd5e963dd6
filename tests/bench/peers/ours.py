"""The same through optbuilder's own API."""

from __future__ import annotations

from typing import Any

from timed import measured

STAGES = {
    "plain": {},
    "compile": {"compile": "regional"},
    "dbcache": {"cache": "dbcache"},
}


def build(work: dict[str, Any]) -> Any:
    import optbuilder

    return optbuilder.load(model=work["name"], **STAGES[work["technique"]])


if __name__ == "__main__":
    measured(build)
