"""What a model is, read from its own JSON files (model_index.json, */config.json) without torch and without weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from optbuilder.errors import Refused, nearest
from optbuilder.folders import FAMILIES, inside_package
from optbuilder.foreign import misfit, read_json, text
from optbuilder.library import ClassFacts, class_facts
from optbuilder.schema import CONFIG

_AGAIN = "Download it again, or use another."


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
    elsewhere: bool = False  # the weights are not in `folder`: the Hub has them, or they are loaded already
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
    folder, on_hub = locate(repo_id, revision)
    index = _read(folder / "model_index.json", repo_id)
    parts = {k: v for k, v in index.items() if not k.startswith("_") and isinstance(v, list) and v[1:] != [None]}
    name = index.get("_class_name", "DiffusionPipeline")
    name = name[-1] if isinstance(name, list) and name else name  # a pipeline of one's own is [file, class]
    if odd := [k for k, v in parts.items() if not k.isidentifier() or not _is_class(v)] or (
        [] if text(name) else [name]
    ):
        raise Refused(f"model.repo_id={repo_id!r}: model_index.json names no class for {odd[0]!r}. {_AGAIN}")
    files = {
        n: f for n in parts for f in (folder / n / "config.json", folder / n / "scheduler_config.json") if f.exists()
    }
    configs = {n: _read(file, repo_id) for n, file in files.items()}
    if wrong := next((problem for n, c in configs.items() if (problem := misfit(c, CONFIG, n))), None):
        raise Refused(f"model.repo_id={repo_id!r}: {wrong}, in its config.json. {_AGAIN}")
    classes, libraries = ({n: part[i] for n, part in parts.items()} for i in (1, 0))
    return Model(repo_id, folder, name, classes, libraries, configs, on_hub)


def _is_class(value: list[Any]) -> bool:
    """Whether it is [library, class]; the library may be a Python file's name."""
    return len(value) == 2 and all(isinstance(v, str) and v.replace(".", "_").isidentifier() for v in value)


def locate(repo_id: str, revision: str | None = None) -> tuple[Path, bool]:
    """The folder of a model: inside this package (`package:...`), local, the facts of a known family, or in the local
    cache of the Hub; and whether what else is needed is on the Hub. Where it does not answer, the cache has to do."""
    if inside := inside_package(repo_id):
        return inside, False
    folder = Path(repo_id).expanduser()
    if folder.is_dir():
        return folder, False
    if revision is None and repo_id in families():
        return families()[repo_id], True
    if repo_id.count("/") != 1 or repo_id.startswith((".", "/", "~")):
        raise Refused(
            f"model.repo_id={repo_id!r}: there is no such folder, and a Hub id has the form owner/name.{_alike(folder)}"
        )
    return _from_hub(repo_id, revision)


@cache
def families() -> dict[str, Path]:
    """The Hub ids whose published architecture comes along, so that a plan needs no network."""
    indexes = sorted(FAMILIES.glob("*/model_index.json"))
    return {read_json(index)["_name_or_path"]: index.parent for index in indexes}


def _from_hub(repo_id: str, revision: str | None) -> tuple[Path, bool]:
    from huggingface_hub import constants, snapshot_download

    there = not constants.HF_HUB_OFFLINE and answers(constants.ENDPOINT)
    try:
        files = ["*.json", "*/*.json"]
        folder = snapshot_download(repo_id, revision=revision, allow_patterns=files, local_files_only=not there)
        return Path(folder), there
    except Exception as error:  # the Hub's client raises many kinds; each means the same to the user
        silent = f"{constants.ENDPOINT} does not answer, and it is not in the local cache"
        reason = str(error).strip().splitlines()[0].rstrip(".") if there else silent
        raise Refused(
            f"model.repo_id={repo_id!r}: no such folder here, and the Hub gave nothing ({reason}). "
            "Use a local diffusers folder, or download it first with `hf download`."
        ) from error


@lru_cache
def answers(address: str) -> bool:
    """Whether a server says anything within 5 seconds. The Hub's own client tries for minutes."""
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    try:
        urlopen(Request(address, method="HEAD"), timeout=5).close()
    except HTTPError:
        return True  # an answer, if not the one that was hoped for
    except (OSError, HTTPException):
        return False
    return True


def _alike(folder: Path) -> str:
    siblings = [p.name for p in folder.parent.iterdir()] if folder.parent.is_dir() else []
    return f" {nearest(folder.name, siblings)}" if siblings else ""


def _read(path: Path, repo_id: str) -> dict[str, Any]:
    try:
        found = read_json(path)
        if not isinstance(found, dict):
            raise ValueError("an object is expected")
        return found
    except FileNotFoundError:
        raise Refused(
            f"model.repo_id={repo_id!r}: there is no {path.name} in it, so it is no diffusers folder. "
            "Use a folder with model_index.json, as save_pretrained writes it."
        ) from None
    except (OSError, ValueError) as error:
        where = path.name if path.name == "model_index.json" else f"{path.parent.name}/{path.name}"
        raise Refused(f"model.repo_id={repo_id!r}: {where} is not valid JSON ({error}). {_AGAIN}") from None
