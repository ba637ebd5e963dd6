"""Build an optimized diffusers pipeline from a declaration, run it, and measure it.

From Python: `plan`, `run`, `load`, `apply` and `undo`, and `Refused`, which they raise for what cannot work.
"""

from typing import Any

__version__ = "0.1.0"
__all__ = ["Refused", "apply", "load", "plan", "run", "undo"]


def __getattr__(name: str) -> Any:
    """Import what is asked for, so that `import optbuilder` costs nothing."""
    if name not in __all__:
        raise AttributeError(f"module 'optbuilder' has no attribute {name!r}")
    from optbuilder import api

    return getattr(api, name)
