"""What a technique declares beside its transform function: what it needs, whether it is lossless, where it comes from.

A need is checked at plan time without weights, listed by `action=options` and by the README's table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

from packaging.version import Version

from optbuilder.graphs import Prediction
from optbuilder.library import ClassFacts
from optbuilder.machine import Machine
from optbuilder.model import Model
from optbuilder.settings import Run


@dataclass(frozen=True)
class Context:
    """What a need may look at: the technique's own options, model, machine, run, and the options of all stages."""

    options: Mapping[str, Any]
    model: Model
    machine: Machine
    run: Run
    stages: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    trusted_modules: tuple[str, ...] = ()


PART_OF_LOADING = ("quantization_config", "from_single_file")  # arguments of from_pretrained that make other weights
Check = Callable[[Context], str | None]


@dataclass(frozen=True)
class Need:
    """A condition in a few words (which may depend on the options), and a check that returns why it is not met
    ("why. Use ..."), or None."""

    text: str | Callable[[Mapping[str, Any]], str]
    check: Check

    def describe(self, options: Mapping[str, Any]) -> str:
        return self.text(options) if callable(self.text) else self.text


def _nothing(*_: Any, **__: Any) -> dict[str, Any]:
    return {}


def _never(_: Context) -> str | None:
    return None


def _no_options(_: Context) -> dict[str, Any]:
    return {}


@dataclass(frozen=True)
class Technique:
    """The declaration of a transform.

    `lossless` may depend on the options. `derive` gives values for options left null, from the model, machine and run.
    `load` gives arguments of `from_pretrained` from the options; its effect shows in the facts `load_shows`, beside
    what loading without techniques gives. `places` says that the transform itself decides on which device components
    are, and `adds_hooks` that it puts hooks on them: from any other, a hook is an error. `warns` says at plan time what
    works but may surprise, `unchanged` when and why no difference in the pipeline is right, and `ran` why the counters
    of a run do not show the technique at work. `graphs` predicts how many graphs a technique that compiles will make.
    """

    lossless: bool | Callable[[Mapping[str, Any]], bool]
    source: str
    needs: tuple[Need, ...] = ()
    derive: Callable[[Context], dict[str, Any]] = _no_options
    load: Callable[..., dict[str, Any]] = _nothing
    load_shows: tuple[str, ...] = ()
    places: bool = False
    adds_hooks: bool = False
    warns: Check = _never
    unchanged: Check = _never
    ran: Callable[[Mapping[str, Any], Mapping[str, Any]], str | None] = lambda options, counters: None
    graphs: Callable[[Context], Prediction] | None = None

    def describe_needs(self, options: Mapping[str, Any]) -> str:
        return ", ".join(text for need in self.needs if (text := need.describe(options)))

    def is_lossless(self, options: Mapping[str, Any]) -> bool:
        return self.lossless(options) if callable(self.lossless) else self.lossless


def technique(**declaration: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Attach a `Technique` to a transform function as `function.technique`."""

    def attach(function: Callable[..., Any]) -> Callable[..., Any]:
        function.technique = Technique(**declaration)  # type: ignore[attr-defined]
        return function

    return attach


def needs_capability(major: int, minor: int) -> Need:
    """A CUDA compute capability, at least."""

    def check(context: Context) -> str | None:
        found = context.machine.capability
        if found is not None and found >= (major, minor):
            return None
        there = context.machine.device if found is None else f"{context.machine.name}, {found[0]}.{found[1]}"
        return f"needs an NVIDIA GPU of compute capability {major}.{minor} or higher (found: {there})"

    return Need(f"NVIDIA GPU, compute capability {major}.{minor}", check)


def needs_package(name: str, minimum: str, install: str | None = None) -> Need:
    """A Python package, at least in version `minimum`."""

    def check(_: Context) -> str | None:
        found = installed_version(name)
        if found is not None and Version(found) >= Version(minimum):
            return None
        there = "it is not installed" if found is None else f"installed: {found}"
        return f"needs the package {name}>={minimum} ({there}): {install or f'pip install {name}>={minimum}'}"

    return Need(f"{name}>={minimum}", check)


def needs_denoiser(text: str, able: Callable[[ClassFacts], bool], why: str) -> Need:
    """A denoiser whose class, as far as diffusers defines it, is `able`; `why` goes on after its name."""

    def check(context: Context) -> str | None:
        for name in context.model.denoisers:
            if (facts := context.model.facts(name)).known and not able(facts):
                return f"{facts.name} ({name}) {why}"
        return None

    return Need(text, check)


def needs_choice(option: str, choices: tuple[Any, ...]) -> Need:
    """An option that takes one of a few values; a list must hold nothing else."""

    def check(context: Context) -> str | None:
        value = context.options[option]
        wrong = [v for v in (value if isinstance(value, list) else [value]) if v not in choices]
        listed = ", ".join("null" if c is None else str(c) for c in choices)
        return f"{option}={wrong[0]!r} is not one of: {listed}" if wrong else None

    return Need("", check)


def installed_version(name: str) -> str | None:
    """The version of an installed distribution, without importing it."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
