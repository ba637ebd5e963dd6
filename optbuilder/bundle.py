"""A run that leaves the lab: `action=bundle` writes it, `python -m optbuilder.bundle FOLDER --verify` tries it.

Beside a run directory's own files a bundle has recipe.yaml, requirements.txt, artifacts/ (what was compiled) and
bundle.json: what must be there, and what is promised.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from optbuilder.artifacts import KEPT_IN
from optbuilder.builder import Plan, resolve
from optbuilder.errors import Refused
from optbuilder.job import Outcome, generate
from optbuilder.lock import requirements
from optbuilder.pipeline import source
from optbuilder.recipe import write_recipe
from optbuilder.record import SCHEMA_VERSION, completed, write_json
from optbuilder.script import write_script

ARTIFACTS = "artifacts"
PSNR_ELSEWHERE = 30.0  # dB, at least, on other hardware or versions, where pictures cannot be bit-identical
SLOWER = 1.1  # times the upper end of the promised interval: what a call may take


def bundle(config: Mapping[str, Any], choices: Mapping[str, str], directory: Path) -> Outcome:
    """Run the job in `directory` with artifacts of its own, and make a bundle of it if it ended well."""
    outcome = generate(with_artifacts(config, directory / ARTIFACTS), choices, directory)
    if outcome.status == "ok":
        write_bundle(directory, config, choices, outcome)
    return outcome


def with_artifacts(config: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The config with the artifacts of its `compile` stage in `folder`."""
    stage = config.get("compile") or {}
    return {**config, "compile": {**stage, **{key: str(folder) for key in KEPT_IN if key in stage}}}


def write_bundle(directory: Path, config: Mapping[str, Any], choices: Mapping[str, str], outcome: Outcome) -> None:
    """Write what a run directory does not have. script.py is written again: it finds artifacts where it is started."""
    config = with_artifacts({**config, "action": "generate", "track": None}, Path(ARTIFACTS))
    config["run"] = {**config["run"], "compare": None, "profile": False}
    plan = resolve(config, choices).require()
    write_script(directory, plan)
    write_recipe(directory / "recipe.yaml", plan, "The stages of this bundle; artifacts are found in its folder.")
    lock = requirements((directory / "script.py").read_text(encoding="utf-8"))
    with completed(directory / "requirements.txt") as path:
        path.write_text("".join(f"{name}=={version}\n" for name, version in lock.items()), encoding="utf-8")
    metrics = outcome.metrics
    promise = {
        "images": metrics["images"],
        "psnr_min_elsewhere": PSNR_ELSEWHERE,
        "call_s": metrics["latency"]["call_s"],
        "slower_at_most": SLOWER,
        "counters": {key: metrics["counters"][key] for key in ("graphs", "cache_hits", "cache_misses", "calls")},
        "environment": metrics["environment"],
    }
    content = {"schema_version": SCHEMA_VERSION, "needs": needs(plan), "promise": promise}
    write_json(directory / "bundle.json", {**content, "choices": dict(choices), "config": config})


def needs(plan: Plan) -> dict[str, Any]:
    """What the folder does not hold: the model, where it comes from, and files that options name."""
    where = source(plan.model)
    if plan.model.repo_id.startswith("package:"):
        model = f"it comes with optbuilder ({plan.model.repo_id}); for script.py: --model <that folder>"
    elif Path(where).is_dir():
        model = f"a folder, {where}: copy it, and give --model <its new place>"
    else:
        model = f"from the Hub by its id, {where}, revision {plan.load.get('revision') or 'main'}"
    values = [(t.name, key, value) for t in plan.transforms for key, value in t.options.items() if key not in KEPT_IN]
    files = [f"{name}, {key}: {path}" for name, key, value in values for path in paths(value)]
    return {"model": model, "device": plan.machine.device, "files": files}


def paths(value: Any) -> Iterator[str]:
    """The values of an option that are files or folders here."""
    for item in value if isinstance(value, (list, tuple)) else [value]:
        if isinstance(item, str) and os.sep in item and Path(item).expanduser().exists():
            yield item


def read(folder: Path) -> dict[str, Any]:
    """A bundle's bundle.json. Raises `Refused` for a folder that is none."""
    try:
        return json.loads((folder / "bundle.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Refused(f"{str(folder)!r}: it is no bundle ({error}). Use a folder that action=bundle wrote.") from None


def main() -> None:
    """Print what a bundle needs, or verify it. Exit code 0 if all is as promised, 1 if not, 2 for what is no bundle."""
    parser = argparse.ArgumentParser(prog="python -m optbuilder.bundle", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--verify", action="store_true", help="run it here, and say whether it is as promised")
    parser.add_argument("--model", help="the model's folder on this machine, where the bundle's own is not there")
    given = parser.parse_args()
    try:
        found = read(given.folder)
        if not given.verify:
            print(*(f"{key}: {value}" for key, value in found["needs"].items() if value), sep="\n")
            return
        from optbuilder.verify import print_checks, verify

        sys.exit(print_checks(verify(given.folder, found, given.model)))
    except Refused as refused:
        print(refused, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
