"""What a person must say on the command line, since a file from the internet must not: which other code may run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from omegaconf import OmegaConf

from optbuilder.errors import Refused

BY_NAME = ("trusted_modules", "model.allow_pickle", "model.trust_remote_code", "kernels.allow_download")
# What Hydra instantiates, and Python's logging imports, before a job starts: their own classes and optbuilder's.
_OWN = re.compile(
    r"hydra\._internal\.core_plugins\.|hydra_plugins\.|optbuilder\.(directories|noise)\.|logging\.|colorlog\.|ext://sys\."
)
_OWN_LOG = re.compile(r"\$\{hydra\.(runtime\.output_dir|run\.dir|sweep\.dir)\}/[^/]+")
_REASON = "it lets other code run, or write. If you mean it, write it on the command line."
_NAMES_CODE = ("_target_", "()", "class")


def require_permission(config: Mapping[str, Any], words: Sequence[str]) -> None:
    """Raise `Refused` where the config allows something that the command line's `words` do not say themselves."""
    said = [word.lstrip("+~").partition("=")[0].replace("/", ".") for word in words]
    reasons = [
        f"{key}={_value(config, key)!r}: a file set it, and {_REASON}"
        for key in BY_NAME
        if _value(config, key) and key not in said
    ]
    if reasons:
        raise Refused(*reasons)


def _value(config: Mapping[str, Any], key: str) -> Any:
    group, _, name = key.partition(".")
    node = config.get(group)
    return node.get(name) if name and isinstance(node, Mapping) else None if name else node


@contextmanager
def own_code_only() -> Iterator[None]:
    """For the block, check every config before Hydra uses it: what it instantiates and logs with (callbacks, launcher,
    sweeper, logging) it does before any job starts. Hydra 1.3 has no list of what may be instantiated."""
    load = ConfigLoaderImpl.load_configuration

    def checked(self: Any, *args: Any, **kwargs: Any) -> Any:
        config = load(self, *args, **kwargs)
        require_own_code(config.hydra, [*config.hydra.overrides.hydra, *config.hydra.overrides.task])
        return config

    ConfigLoaderImpl.load_configuration = checked
    try:
        yield
    finally:
        ConfigLoaderImpl.load_configuration = load


def require_own_code(hydra_config: Any, words: Sequence[str]) -> None:
    """Raise `Refused` where Hydra's own config would import or run something else than Hydra's, logging's and
    optbuilder's code, log outside of the run directory, or set environment variables, unless the command line's `words`
    say so themselves."""
    node = OmegaConf.to_container(hydra_config, resolve=False)
    variables = (node.get("job") or {}).get("env_set") or {}
    named = [*_code(node, "hydra"), *((f"hydra.job.env_set.{name}", name) for name in variables)]
    own = [word for word in words if word.lstrip("+~").startswith("hydra")]
    for path, value in named:
        if not any(value in word for word in own):
            raise Refused(f"{path}={value[:200]!r}: a file set it, and {_REASON}")


def _code(node: Any, path: str) -> Iterator[tuple[str, str]]:
    """Every place that names a class or function of someone else's, or a file to log to elsewhere."""
    if isinstance(node, dict):
        for key, value in node.items():
            strange = str(key) in _NAMES_CODE and not _OWN.match(str(value))
            if strange or (key == "filename" and not _OWN_LOG.fullmatch(str(value))):
                yield f"{path}.{key}", str(value)
            yield from _code(value, f"{path}.{key}")
    elif isinstance(node, list):
        for number, value in enumerate(node):
            yield from _code(value, f"{path}[{number}]")
    elif isinstance(node, str) and "ext://" in node and not _OWN.match(node):
        yield path, node
