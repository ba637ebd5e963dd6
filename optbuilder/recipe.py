"""recipe.yaml: the stages of a plan, to be used again anywhere: `python -m optbuilder recipe=<file> model=...`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from optbuilder.builder import Plan
from optbuilder.errors import Refused
from optbuilder.foreign import misfit, read_yaml, whatever
from optbuilder.overrides import group_of
from optbuilder.record import completed


def write_recipe(path: Path, plan: Plan, sentence: str, more: Sequence[str] = ()) -> None:
    """Write the plan's stages with all their options. What the model decides (derived options) is in it as well.

    `more` are the overrides to use it with, which are told in its first line.
    """
    stages = {
        t.stage: {"option": t.choice, "_target_": f"{t.function.__module__}.{t.function.__name__}", **_plain(t.options)}
        for t in plan.transforms
    }
    with completed(path) as file:
        command = " ".join(["python -m optbuilder", f"recipe={path.name}", "model=...", *more])
        head = f"# {command}\n# {sentence}\n"
        file.write_text(
            head + yaml.safe_dump({"stages": stages}, sort_keys=False, allow_unicode=True), encoding="utf-8"
        )


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in options.items()}


def with_recipe(
    config: Mapping[str, Any], choices: Mapping[str, str], words: Sequence[str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """The config with the stages of its `recipe`, and the options chosen; a stage on the command line stays as it is.

    Raises `Refused` where the file is no recipe.
    """
    if not config.get("recipe"):
        return dict(config), dict(choices)
    said = {group_of(word) for word in words}
    stages = {s: node for s, node in _read(str(config["recipe"]), config["stages"]).items() if s not in said}
    left = {stage: {} for stage in config["stages"] if stage not in {*stages, *said}}
    nodes = {s: {k: v for k, v in node.items() if k != "option"} for s, node in stages.items()}
    names = {s: str(node.get("option", "recipe")) for s, node in stages.items()}
    return {**config, **left, **nodes}, {**choices, **dict.fromkeys(left, "none"), **names}


def _read(file: str, stages: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    try:
        found = read_yaml(Path(file).expanduser())
        if problem := misfit(found, {"stages": {"*": {"*?": whatever}}}, "it"):
            raise ValueError(problem)
    except (OSError, ValueError) as error:
        raise Refused(f"recipe={file!r}: it is no recipe ({error}). Use the recipe.yaml of a search.") from None
    found = found["stages"]
    wrong = [stage for stage, node in found.items() if stage not in stages or not isinstance(node, dict)]
    if wrong:
        raise Refused(f"recipe={file!r}: {wrong[0]!r} is no stage with options. Use the recipe.yaml of a search.")
    return found
