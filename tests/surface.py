"""Write tests/surface.yaml, the public surface: `python -m tests.surface`, when an option is added on purpose."""

from __future__ import annotations

from typing import Any

import yaml

from tests.conftest import CONF, ROOT

FILE = ROOT / "tests" / "surface.yaml"


def surface() -> dict[str, Any]:
    """Group and option names, and each option's keys."""
    found = {}
    for path in sorted(CONF.glob("*/*.yaml")):
        node = yaml.safe_load(path.read_text()) or {}
        found[f"{path.parent.name}={path.stem}"] = sorted(k for k in node if k not in ("_target_", "defaults"))
    return found


if __name__ == "__main__":
    FILE.write_text(yaml.safe_dump(surface(), width=120, default_flow_style=None, sort_keys=True))
