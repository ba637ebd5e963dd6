"""Bytes that are led by the code they reach, for everything that reads a file or a text of others.

`pip install atheris && python -m tests.fuzz [seconds for each reader]`, by hand: atheris is no dependency of the tests.
A reader may answer or refuse; any other exception ends its process with the bytes that raised it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

SECONDS = 60
# Beginnings that a reader takes, so that changes of them reach further than any bytes would.
SEEDS = {
    "read_json": [b'{"a": [1, -2.5e3, true, null, "\\u00e9"]}'],
    "read_yaml": [b"a: [1, 2.5, ~]\nb:\n  - 'c'\n  - !!str d\n", b"- &x 1\n- *x\n"],
    "prompts": [b"a red circle\n\na blue star\n"],
    "prompts_yaml": [b"- a red circle\n- 'b'\n"],
    "recorded": [b'{"schema_version": 1, "status": "failed", "reasons": ["x"], "job_key": "y", "environment": null}'],
    "quantity": [b"1.5GiB", b"20m"],
    "words": [b"run.prompts=it's a cat, on a mat\0-m\0++quant.x={a: [1, 2]}"],
}


def readers(file: Path) -> dict[str, tuple[Path, Callable[[], object]]]:
    """For each reader the file that it gets the bytes in, and the call."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    from optbuilder.folders import CONF
    from optbuilder.foreign import read_json, read_yaml
    from optbuilder.job import recorded
    from optbuilder.overrides import prepared
    from optbuilder.search.settings import BYTES, quantity
    from optbuilder.settings import read_prompts

    text, yaml, record = file / "any.txt", file / "any.yaml", file / "metrics.json"

    def words() -> None:
        try:
            OverridesParser.create().parse_overrides(prepared(text.read_text("utf-8").split("\0"), CONF))
        except HydraException:  # `translated` makes one line of it
            return

    return {
        "read_json": (text, lambda: read_json(text)),
        "read_yaml": (yaml, lambda: read_yaml(yaml)),
        "prompts": (text, lambda: read_prompts(text)),
        "prompts_yaml": (yaml, lambda: read_prompts(yaml)),
        "recorded": (record, lambda: json.dumps(recorded(file).metrics, default=str)),
        "quantity": (text, lambda: quantity(text.read_text("utf-8"), BYTES)),
        "words": (text, words),
    }


def fuzz(name: str, seconds: int) -> None:
    """Try one reader in this process, which atheris ends."""
    import atheris

    with atheris.instrument_imports(include=["optbuilder", "yaml", "json"]):
        from optbuilder.errors import Refused

        folder = Path(tempfile.mkdtemp())
        file, read = readers(folder)[name]
    corpus = folder / "corpus"
    corpus.mkdir()
    for number, seed in enumerate(SEEDS[name]):
        (corpus / str(number)).write_bytes(seed)

    def once(data: bytes) -> None:
        file.write_bytes(data)
        try:
            read()
        except (Refused, OSError, ValueError):
            return

    limits = ["-timeout=10", "-rss_limit_mb=4096", f"-max_total_time={seconds}", f"-artifact_prefix={folder}/"]
    atheris.Setup([sys.argv[0], str(corpus), *limits], once)
    atheris.Fuzz()


def main() -> None:
    """Every reader in a process of its own; the exit code is that of the first that failed."""
    if sys.argv[1:] and sys.argv[1] in SEEDS:
        return fuzz(sys.argv[1], int(sys.argv[2]))
    for name in SEEDS:
        command = [sys.executable, "-m", "tests.fuzz", name, (sys.argv[1:] or [str(SECONDS)])[0]]
        done = subprocess.run(command, capture_output=True, text=True)
        last = [line for line in done.stderr.splitlines() if line.startswith(("Done", "SUMMARY"))]
        print(f"{name:<14} {last[-1] if last else 'ended'}", flush=True)
        if done.returncode:
            sys.exit(done.stdout[-2000:] + done.stderr[-4000:])
    return None


if __name__ == "__main__":
    main()
