"""Causes of faults, and what must hold after each of them."""

from __future__ import annotations

import ast
import ctypes
import json
import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml
from PIL import Image

_CAPABILITIES = (0x20080522, 0)  # version 3 of the structures of capget(2), of this thread
_CAP_DAC_OVERRIDE = 1


def whole(directory: Path) -> list[str]:
    """Check that every file under its final name is complete, and give those names; a dot is before all others."""
    files = [f for f in directory.rglob("*") if f.is_file() and not f.name.startswith(".")]
    for file in files:
        if file.suffix == ".json":
            json.loads(file.read_text())
        elif file.suffix == ".png":
            Image.open(file).load()
        elif file.suffix == ".yaml":
            assert yaml.safe_load(file.read_text()) is not None, file
        elif file.suffix == ".py":
            ast.parse(file.read_text())
        elif file.name in ("report.html", "results.csv"):
            assert file.read_text().endswith(("</html>\n", "</html>", "\n")), file
    return sorted(str(file.relative_to(directory)) for file in files)


@contextmanager
def small_disk(folder: Path, kib: int) -> Iterator[bool]:
    """A file system of its own with so much room on `folder`; gives False where this system does not let us."""
    folder.mkdir(exist_ok=True)
    words = ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", str(folder)]
    mounted = os.geteuid() == 0 and subprocess.run(words, capture_output=True).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """No file of this process may grow beyond `size` bytes: writing further raises EFBIG, as a quota does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Nothing can be written below `folder`, not by root either: its right to ignore permissions is taken meanwhile."""
    folder.mkdir(exist_ok=True)
    folder.chmod(0o555)
    before = _effective_capabilities()
    _set_effective(before & ~(1 << _CAP_DAC_OVERRIDE))
    try:
        yield
    finally:
        _set_effective(before)
        folder.chmod(0o755)


def _capabilities() -> tuple[ctypes.Array[ctypes.c_uint32], ctypes.Array[ctypes.c_uint32]]:
    header, data = (ctypes.c_uint32 * 2)(*_CAPABILITIES), (ctypes.c_uint32 * 6)()
    assert ctypes.CDLL(None, use_errno=True).capget(header, data) == 0
    return header, data


def _effective_capabilities() -> int:
    return int(_capabilities()[1][0])


def _set_effective(low: int) -> None:
    header, data = _capabilities()
    data[0] = low
    assert ctypes.CDLL(None, use_errno=True).capset(header, data) == 0
