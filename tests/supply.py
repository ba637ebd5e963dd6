"""What the tests ran with, and what they run with: a lock with hashes, a bill of materials, the ends of the ranges.

python -m tests.supply lock      # requirements-test.lock, from the versions installed here (needs uv)
python -m tests.supply sbom      # sbom.cdx.json, from the lock and the licenses that the packages state
python -m tests.supply ranges    # the ends of pyproject.toml's ranges: tests/ranges.md (needs uv)
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parent.parent
LOCK, SBOM, RANGES = ROOT / "requirements-test.lock", ROOT / "sbom.cdx.json", Path(__file__).parent / "ranges.md"
HEAD = """\
# The versions that the tests ran with, on x86-64 Linux with CPython 3.11, and the hashes of their files.
# pip install --require-hashes -r requirements-test.lock && pip install --no-deps -e .
# torch is PyTorch's own CPU build, which has an index of its own, to be named to pip; the build of the same version on
# the general index is another file with another hash. `python -m tests.supply lock` writes this file.
"""
TESTS = ["tests/test_plan.py", "tests/test_mistakes.py", "tests/test_runner.py", "tests/test_job.py"]


def locked() -> dict[str, tuple[str, list[str]]]:
    """Version and SHA-256 hashes of every distribution in the lock."""
    found = re.findall(r"^([\w.-]+)==(\S+)((?: \\\n    --hash=sha256:\w+)*)$", LOCK.read_text(), re.M)
    return {plain(name): (version, re.findall(r"sha256:(\w{64})", rest)) for name, version, rest in found}


def plain(name: str) -> str:
    """A distribution's name as comparisons need it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def lock() -> None:
    """Write the lock: what is installed here, as far as the extra `test` asks for it."""
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder, "here.txt")
        installed = {
            d.metadata["Name"]: d.version for d in metadata.distributions() if d.metadata["Name"] != "optbuilder"
        }
        here.write_text("".join(f"{name}=={version}\n" for name, version in installed.items() if name != "pip"))
        words = ["uv", "pip", "compile", "pyproject.toml", "--extra=test", f"--constraint={here}", "--generate-hashes",
                 "--python-version=3.11", "--python-platform=x86_64-manylinux_2_28", "--no-header", "--no-annotate",
                 "--no-emit-index-url", "--quiet"]  # fmt: skip
        done = subprocess.run(words, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    LOCK.write_text(HEAD + done.stdout)


def sbom() -> None:
    """Write the bill of materials (CycloneDX 1.6)."""
    components = [dict(_component(name, version)) for name, (version, _) in sorted(locked().items())]
    content = {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "components": components}
    content["metadata"] = {"component": {"type": "application", "name": "optbuilder", "bom-ref": "optbuilder"}}
    SBOM.write_text(json.dumps(content, indent=1) + "\n")


def _component(name: str, version: str) -> Iterator[tuple[str, object]]:
    yield "type", "library"
    yield "name", name
    yield "version", version
    yield "purl", f"pkg:pypi/{name}@{version.replace('+', '%2B')}"
    yield "bom-ref", f"{name}@{version}"
    if stated := _license(name):
        yield "licenses", [{"license": {"name": stated}}]


def _license(name: str) -> str:
    """What the installed package says of its license, in a line."""
    about = metadata.metadata(name)
    classified = [c.rpartition(" :: ")[2] for c in about.get_all("Classifier", []) if c.startswith("License ::")]
    text = about.get("License-Expression") or ", ".join(classified) or about.get("License") or ""
    return text.splitlines()[0][:80] if text else ""


def ranges() -> None:
    """Run the tests of plans, mistakes, runs and jobs with the lowest and with the newest versions that are allowed.

    torch stays the one installed here: other versions of its CPU build need another index, and the general one has
    builds of gigabytes.
    """
    lines = [
        "What `python -m tests.supply ranges` found last. torch stayed as installed.",
        "",
    ]
    for resolution in ("lowest-direct", "highest"):
        versions, said = _tried(resolution)
        lines += [f"## {resolution}", "", said, "", ", ".join(versions), ""]
    RANGES.write_text("\n".join(lines))


def _tried(resolution: str) -> tuple[list[str], str]:
    names = [
        re.split(r"[<>=~ ]", line, maxsplit=1)[0] for line in metadata.requires("optbuilder") or [] if ";" not in line
    ]
    with tempfile.TemporaryDirectory() as folder:
        override = Path(folder, "override.txt")
        override.write_text(f"torch=={metadata.version('torch')}\n")
        python = str(Path(folder, "venv", "bin", "python"))
        subprocess.run(["uv", "venv", "--quiet", f"--python={sys.executable}", str(Path(folder, "venv"))], check=True)
        more = [
            f"{name}=={metadata.version(name)}" for name in ("pytest", "pytest-timeout", "pytest-xdist", "hypothesis")
        ]
        words = ["uv", "pip", "install", "--quiet", f"--python={python}", f"--resolution={resolution}",
                 f"--override={override}", "-e", ".", *more]  # fmt: skip
        installed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
        if installed.returncode:
            return [], f"They cannot be installed together: {installed.stderr.strip().splitlines()[-1]}"
        listed = subprocess.run(["uv", "pip", "freeze", f"--python={python}"], capture_output=True, text=True)
        done = subprocess.run([python, "-m", "pytest", "-n", "0", *TESTS, "-k", "not inductor"], cwd=ROOT,
                              capture_output=True, text=True)  # fmt: skip
    wanted = {plain(name) for name in names}
    versions = [line for line in listed.stdout.splitlines() if plain(line.partition("==")[0]) in wanted]
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return versions, "\n".join([done.stdout.strip().splitlines()[-1], *(f"- {line[:160]}" for line in failed[:20])])


if __name__ == "__main__":
    {"lock": lock, "sbom": sbom, "ranges": ranges}[sys.argv[1]]()
