"""The environment of a run as exact requirements: the installed versions of all that it can import."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib import metadata

from packaging.requirements import Requirement

from optbuilder.technique import installed_version


def requirements(script: str) -> dict[str, str]:
    """The version of every distribution that a script's PEP 723 block names, and of all that these and optbuilder
    depend on, by name; as far as they are installed. A local version (`+cpu`) is left out: it names a build, not a
    release, and is found nowhere by it."""
    named = re.findall(r'^#     "([^=]+)==', script, re.MULTILINE)
    return {name: version.partition("+")[0] for name in closed(named) if (version := installed_version(name))}


def closed(names: Iterable[str]) -> list[str]:
    """The names with those that they and optbuilder depend on here, sorted, without optbuilder itself."""
    found: set[str] = set()
    open_ = [*names, *needed_by("optbuilder")]
    while open_:
        name = normal(open_.pop())
        if name not in found:
            found.add(name)
            open_ += needed_by(name)
    return sorted(found - {"optbuilder"})


def needed_by(name: str) -> list[str]:
    """What a distribution depends on without extras; nothing for one that is not installed."""
    try:
        asked = [Requirement(text) for text in metadata.requires(name) or ()]
    except metadata.PackageNotFoundError:
        return []
    return [r.name for r in asked if r.marker is None or r.marker.evaluate({"extra": ""})]


def normal(name: str) -> str:
    """A name as indexes compare it.

    >>> normal("Huggingface_Hub")
    'huggingface-hub'
    """
    return re.sub(r"[-_.]+", "-", name).lower()
