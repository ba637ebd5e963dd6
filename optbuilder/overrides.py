"""Hydra's and OmegaConf's errors in one line each: what, the quoted value, why, and what to write instead."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError, MissingMandatoryValue, OmegaConfBaseException

from optbuilder.directories import discard_unfinished
from optbuilder.errors import Refused, failure, nearest

TEXTS = ("run.prompts", "run.prompts_file", "run.negative_prompt", "model.repo_id")


def prepared(argv: Sequence[str], conf: Path) -> list[str]:
    """The command line as Hydra's grammar wants it.

    A bare text (`run.prompts=it's a cat, on a mat`) gets quotes, so that any text works; lists, quoted values and null
    stay as they are. In a multirun a comma separates jobs, so that nothing is quoted; there, an option of a swept group
    (`quant=none,int8_dynamic quant.min_parameters=0`) is forced (`++`), since Hydra checks it against the default.
    `-m` may stand anywhere; Hydra takes it only before or after all overrides.
    """
    if broken := [word for word in argv if any("\ud800" <= character <= "\udfff" for character in word)]:
        raise Refused(f"{broken[0].encode(errors='surrogateescape')!r}: it is no UTF-8 text. Write it in UTF-8.")
    argv = sorted(argv, key=lambda word: word not in ("-m", "--multirun"))
    keys = [word.partition("=")[0] for word in argv]
    if not {"-m", "--multirun"} & set(argv):
        return [_quote(word) if key.lstrip("+") in TEXTS else word for key, word in zip(keys, argv, strict=True)]
    swept = {key for key in keys if (conf / key).is_dir()}
    return [
        f"++{word}" if key.partition(".")[0] in swept - {key} else word for key, word in zip(keys, argv, strict=True)
    ]


def group_of(word: str) -> str:
    """The first part of an override's key: the stage or group that it is about."""
    return word.lstrip("+~").partition("=")[0].partition(".")[0]


def assigned(key: str, value: object) -> str:
    """An override of any text, quoted as Hydra's grammar wants it."""
    return f"{key}={QuotedString(str(value), Quote.double).with_quotes()}"


def _quote(word: str) -> str:
    key, _, text = word.partition("=")
    if text in ("", "null") or text.lstrip().startswith(("[", '"', "'")):
        return word
    return f"{key}={QuotedString(text.replace('${', chr(92) + '${'), Quote.double).with_quotes()}"


@contextmanager
def translated(conf: Path) -> Iterator[None]:
    """Turn a mistake on the command line into one line on stderr and exit code 2, a directory that cannot be written to
    into 1, an interruption into 130."""
    try:
        yield
    except BaseException as error:
        message, code = ("interrupted", 130) if _interrupted(error) else (_mistake(error, conf), 2)
        if message is None and isinstance(error, OSError):  # not a job's, which records its own: Hydra's, or a grid's
            discard_unfinished()
            message, code = failure(error), 1
        if message is None:
            raise
        print(message, file=sys.stderr)
        sys.exit(code)


def _interrupted(error: BaseException | None) -> bool:
    """Whether Ctrl-C is behind an error: what cleans up after it may raise one of its own."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def _mistake(error: BaseException, conf: Path) -> str | None:
    """What was wrong with the command line; None where it was something else."""
    if isinstance(error, Refused):
        return str(error)
    if isinstance(error, (HydraException, OmegaConfBaseException)):
        return explained(error, conf, sys.argv[1:])
    if isinstance(error, ValueError) and "Config group override" in str(error):  # what Hydra raises for `quant=null`
        return _no_option_name(conf, sys.argv[1:])
    return None


def explained(error: Exception, conf: Path, argv: Sequence[str]) -> str:
    """The one line for an error of Hydra or OmegaConf."""
    if isinstance(error, MissingConfigException):
        return _missing(error, conf)
    if isinstance(error, OverrideParseException):
        return _unparsed(error.override)
    if isinstance(error, ConfigCompositionException):
        return _uncomposed(str(error), conf, argv)
    if isinstance(error, MissingMandatoryValue):
        key = getattr(error, "full_key", None) or "a value"
        return f"{key}: it has no default. Write {key}=..."
    if isinstance(error, InterpolationResolutionError):
        reads = f"a text with ${{...}} is read as a reference ({_first_line(error)})"
        return f"{error.full_key}: {reads}. Write \\${{...}}, or use run.prompts_file."
    return f"{_first_line(error)}."


def _missing(error: MissingConfigException, conf: Path) -> str:
    group, _, option = str(error.missing_cfg_file).rpartition("/")
    while group and not (conf / group).is_dir():  # quant/int8/x: the group is quant
        group, _, head = group.rpartition("/")
        option = f"{head}/{option}"
    if not group:
        return f"--config-name={option!r}: there is no such config. Leave it out, or give --config-dir too."
    known = error.options or [path.stem for path in (conf / group).glob("*.yaml")]
    return f"{group}={option!r}: there is no such option. {nearest(option, known)}"


def _unparsed(override: str) -> str:
    key, equals, value = override.partition("=")
    if not equals:
        return f"{override!r}: this is no override. Write key=value, for example precision=bf16."
    if value.startswith("["):
        items = ", ".join(QuotedString(i.strip(), Quote.double).with_quotes() for i in value.strip("[]").split(","))
        fix = f"Write '{key}=[{items}]'" + (", or use run.prompts_file=<file>." if key in TEXTS else ".")
        return f"{override!r}: texts in a list need quotes of their own. {fix}"
    return f"{override!r}: this value needs quotes. Write '{key}={QuotedString(value, Quote.double).with_quotes()}'."


def _uncomposed(message: str, conf: Path, argv: Sequence[str]) -> str:
    if ambiguous := re.match(r"Ambiguous value for argument '(.*?)'\n1\.", message, re.S):
        key, _, value = ambiguous[1].partition("=")
        as_list = "" if (conf / key).is_dir() else f" For a list write '{key}=[{value}]'."
        return f"{ambiguous[1]!r}: several values make a grid, which needs -m (--multirun).{as_list}"
    if not (unknown := re.match(r"Could not override '(.*?)'\.", message)):
        return f"{message.splitlines()[0].rstrip('.')}."
    key = unknown[1].replace("/", ".")
    value = next((word.partition("=")[2] for word in argv if word.partition("=")[0] == unknown[1]), "")
    group, _, option = key.partition(".")
    if option and (conf / group).is_dir():
        known, chosen = known_keys(conf, group, argv)
        if not known:
            return f"{key}={value!r}: {group}=none has no options. Choose another first: {_options(conf, group)}."
        where = f"{group}={chosen}" if chosen else group
        return f"{key}={value!r}: {where} has no such option. {nearest(key, known)}"
    return f"{key}={value!r}: there is no such group or key. {nearest(key, known_keys(conf, '', argv)[0])}"


def known_keys(conf: Path, group: str, argv: Sequence[str]) -> tuple[list[str], str]:
    """The keys that can be overridden below a group with the options chosen in `argv`, and the option chosen there."""
    groups = {path.name for path in conf.iterdir() if path.is_dir()}
    choices = [word for word in argv if word.partition("=")[0] in groups and not word.endswith("=null")]
    with initialize_config_dir(str(conf), version_base="1.3"):
        config = compose("config", overrides=choices)
    node = config[group] if group else config
    chosen = next((word.partition("=")[2] for word in choices if word.startswith(f"{group}=")), "")
    return [k for k in _flat(node, f"{group}." if group else "") if not k.endswith("_target_")], chosen


def _flat(node: DictConfig | None, prefix: str) -> Iterator[str]:
    for key in node or ():
        yield f"{prefix}{key}"
        if OmegaConf.is_dict(child := node._get_node(key)):  # type: ignore[union-attr]
            yield from _flat(child, f"{prefix}{key}.")  # type: ignore[arg-type]


def _no_option_name(conf: Path, argv: Sequence[str]) -> str:
    """For a group set to null, a number or a truth value, which Hydra takes for no option's name."""
    words = (
        w for w in argv if re.search(r"=(null|true|false|[-\d.]+)$", w, re.I) and (conf / w.partition("=")[0]).is_dir()
    )
    word = next(words, "group=null")
    group = word.partition("=")[0]
    known = [path.stem for path in (conf / group).glob("*.yaml")]
    return f"{word!r}: a group takes the name of one of its options. {nearest('', known)}"


def _options(conf: Path, group: str) -> str:
    return ", ".join(sorted(path.stem for path in (conf / group).glob("*.yaml") if path.stem != "none"))


def _first_line(error: Any) -> str:
    return str(error).splitlines()[0].rstrip(".")
