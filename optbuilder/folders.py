"""Where this package's own files are."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).parent
CONF = next(path for path in (PACKAGE / "conf", PACKAGE.parent / "conf") if path.is_dir())  # in a wheel, in a checkout
