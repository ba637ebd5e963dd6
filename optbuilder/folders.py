"""Where this package's own files are."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).parent
FAMILIES = PACKAGE / "families"  # the published architectures of known models, and nothing else of them
_INSIDE = "package:"
CONF = next(path for path in (PACKAGE / "conf", PACKAGE.parent / "conf") if path.is_dir())  # in a wheel, in a checkout


def inside_package(name: str) -> Path | None:
    """The path that `package:<path>` names; None for any other name."""
    return PACKAGE / name.removeprefix(_INSIDE) if name.startswith(_INSIDE) else None
