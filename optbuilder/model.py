"""What a model is, read from its own JSON files (model_index.json, */config.json) without torch and without weights."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from optbuilder.errors import Refused, nearest
from optbuilder.folders import FAMILIES, inside_package
from optbuilder.library import ClassFacts, class_facts


@dataclass(frozen=True)
class Model:
    """A pipeline folder's facts. `components` maps a component's name to its class name, `configs` to its config.json;
    `libraries` says where the class comes from ("diffusers", "transformers", or a Python file in the folder). With
    `weights="dummy"`, `configs` are those of `scale`, and `prompts` says what stands in for text encoders. `known` are
    facts that no JSON tells (conf/model)."""

    repo_id: str
    folder: Path
    pipeline_class: str
    components: Mapping[str, str]
    libraries: Mapping[str, str]
    configs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    weights: str = "pretrained"
    scale: str = "full"
    prompts: Mapping[str, Any] = field(default_factory=dict)
    known: Mapping[str, Any] = field(default_factory=dict)

    @property
    def denoisers(self) -> list[str]:
        return expand(["denoiser"], self.components)

    def facts(self, component: str) -> ClassFacts:
        """What the installed diffusers says about the component's class."""
        return class_facts(self.components[component])

    def head_sizes(self, component: str) -> set[int]:
        """The sizes of the attention heads, as far as the config tells."""
        config = self.configs.get(component, {})
        head = config.get("attention_head_dim")
        if "block_out_channels" not in config:
            return {head} if isinstance(head, int) else set()
        # UNets of this library keep the number of heads under the name attention_head_dim.
        channels, heads = config["block_out_channels"], config.get("num_attention_heads") or head or 8
        heads = heads if isinstance(heads, list) else [heads] * len(channels)
        blocks = config.get("down_block_types", [])
        return {c // h for c, h, b in zip(channels, heads, blocks, strict=False) if "Attn" in b}


def expand(names: Iterable[str], components: Mapping[str, Any]) -> list[str]:
    """Component names, with `denoiser` and `text_encoders` replaced by the names that a pipeline uses for them.

    Names with a method (`vae.decode`) are kept as they are. The order is that of `names`, each once.
    """
    prefixes = {"denoiser": ("unet", "transformer", "prior"), "text_encoders": ("text_encoder",)}
    found: dict[str, None] = {}
    for name in names:
        here = [c for c in components if components[c] is not None and c.startswith(prefixes.get(name, ()) or ("\0",))]
        found.update(dict.fromkeys(here if name in prefixes else [name]))
    return list(found)


def describe(repo_id: str, *, revision: str | None = None) -> Model:
    """Read the facts of a diffusers folder or Hub repository. Raises `Refused` where there is none."""
    folder = locate(repo_id, revision)
    index = _read(folder / "model_index.json", repo_id)
    parts = {k: v for k, v in index.items() if not k.startswith("_") and isinstance(v, list) and v[1]}
    files = {
        n: f for n in parts for f in (folder / n / "config.json", folder / n / "scheduler_config.json") if f.exists()
    }
    name = index.get("_class_name", "DiffusionPipeline")
    return Model(
        repo_id,
        folder,
        name if isinstance(name, str) else name[1],  # a pipeline of one's own is [file, class]
        {n: part[1] for n, part in parts.items()},
        {n: part[0] for n, part in parts.items()},
        {n: _read(file, repo_id) for n, file in files.items()},
    )


def locate(repo_id: str, revision: str | None = None) -> Path:
    """The folder of a model: inside this package (`package:...`), local, the facts of a known family, or the Hub's JSON
    files in the local cache."""
    if inside := inside_package(repo_id):
        return inside
    folder = Path(repo_id).expanduser()
    if folder.is_dir():
        return folder
    if revision is None and repo_id in families():
        return families()[repo_id]
    if repo_id.count("/") != 1 or repo_id.startswith((".", "/", "~")):
        raise Refused(
            f"model.repo_id={repo_id!r}: there is no such folder, and a Hub id has the form owner/name.{_alike(folder)}"
        )
    return _from_hub(repo_id, revision)


@cache
def families() -> dict[str, Path]:
    """The Hub ids whose published architecture comes along, so that a plan needs no network."""
    indexes = sorted(FAMILIES.glob("*/model_index.json"))
    return {json.loads(index.read_text(encoding="utf-8"))["_name_or_path"]: index.parent for index in indexes}


def _from_hub(repo_id: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repo_id, revision=revision, allow_patterns=["*.json", "*/*.json"]))
    except Exception as error:  # the Hub's client raises many kinds; each means the same to the user
        reason = str(error).strip().splitlines()[0].rstrip(".")
        raise Refused(
            f"model.repo_id={repo_id!r}: no such folder here, and the Hub gave nothing ({reason}). "
            "Use a local diffusers folder, or download it first with `hf download`."
        ) from error


def _alike(folder: Path) -> str:
    siblings = [p.name for p in folder.parent.iterdir()] if folder.parent.is_dir() else []
    return f" {nearest(folder.name, siblings)}" if siblings else ""


def _read(path: Path, repo_id: str) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError("an object is expected")
        return found
    except FileNotFoundError:
        raise Refused(
            f"model.repo_id={repo_id!r}: there is no {path.name} in it, so it is no diffusers folder."
        ) from None
    except ValueError as error:
        raise Refused(f"model.repo_id={repo_id!r}: {path.name} is not valid JSON ({error}).") from None
