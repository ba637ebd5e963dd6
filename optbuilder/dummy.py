"""`model.weights=dummy`: a model's architecture at the size asked for, without its weights and text encoders.

What a plan has to know is here; the pipeline itself is made by `random_weights`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import yaml

from optbuilder.errors import Refused, nearest
from optbuilder.folders import FAMILIES
from optbuilder.model import Model

SCALES = ("tiny", "half", "full")
_DEPTHS = ("num_layers", "num_single_layers", "n_layers", "transformer_layers_per_block")


@cache
def known_pipelines() -> dict[str, dict[str, Any]]:
    """What families/dummy.yaml says, by the pipeline's class."""
    return yaml.safe_load((FAMILIES / "dummy.yaml").read_text(encoding="utf-8"))


def dummy(model: Model, scale: str) -> Model:
    """The model at `scale` (tiny, half of the blocks, full), with the shapes of prompt embeddings for text encoders.

    Raises `Refused` for a scale that there is not, and for a pipeline whose embeddings are not known.
    """
    if scale not in SCALES:
        raise Refused(f"model.scale={scale!r}: there is no such scale. {nearest(scale, SCALES)}")
    if model.pipeline_class not in known_pipelines():
        known = ", ".join(sorted(known_pipelines()))
        what = f"the prompt embeddings of {model.pipeline_class} are not known"
        raise Refused(f"model.weights='dummy': {what}. Use a model of one of: {known}.")
    facts = known_pipelines()[model.pipeline_class]
    tiny = facts["tiny"] if scale == "tiny" else {}
    configs = {name: scaled(name, dict(c), tiny.get(name, {}), scale) for name, c in model.configs.items()}
    parts = [n for n, library in model.libraries.items() if library == "diffusers" and n in configs]
    return replace(
        model,
        components={name: model.components[name] for name in parts},
        libraries={name: model.libraries[name] for name in parts},
        configs={name: configs[name] for name in parts},
        weights="dummy",
        scale=scale,
        prompts={
            "shapes": {name: _shape(shape, configs) for name, shape in facts["embeddings"].items()},
            "repeats": facts.get("repeats", True),
            "lists": facts.get("lists", False),
        },
    )


def cheap(model: Model) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Defaults of the run and of the call that suit the model's scale: none but at `tiny`."""
    tiny = known_pipelines()[model.pipeline_class]["tiny"] if model.scale == "tiny" else {}
    return tiny.get("run", {}), tiny.get("call", {})


def scaled(component: str, config: dict[str, Any], tiny: Mapping[str, Any], scale: str) -> dict[str, Any]:
    """A component's config at a scale. Layers that a config names by number are kept as far as they are there."""
    for key, value in tiny.items():
        config[key] = _fitted(value, config.get(key))
    if scale == "half" and component.startswith(("unet", "transformer")):
        depths = [key for key in _DEPTHS if key in config] or [
            "layers_per_block"
        ]  # a UNet with one block in each layer
        config |= {key: _halved(config[key]) for key in depths}
    if "dual_attention_layers" in config:
        config["dual_attention_layers"] = [i for i in config["dual_attention_layers"] if i < config["num_layers"]]
    return config


def _fitted(value: Any, own: Any) -> Any:
    """The value, a list in the length of the config's own."""
    if not isinstance(value, list) or not isinstance(own, list) or not own:
        return value
    return [value[min(i, len(value) - 1)] for i in range(len(own))]


def _halved(depth: Any) -> Any:
    return [max(1, d // 2) for d in depth] if isinstance(depth, list) else max(1, depth // 2)


def _shape(shape: list[Any], configs: Mapping[str, Mapping[str, Any]]) -> list[int | str]:
    """The shape with numbers in place of config values; arguments of encode_prompt stay words."""
    parts = [(entry, *str(entry).partition(".")[::2]) for entry in shape]
    return [configs[component][key] if key else entry for entry, component, key in parts]
