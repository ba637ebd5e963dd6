"""From a declaration to a plan: the ordered transforms, checked against the model and the machine without weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

from optbuilder import checks
from optbuilder.dummy import cheap, dummy
from optbuilder.errors import Refused
from optbuilder.graphs import Prediction
from optbuilder.machine import Machine, described, probe
from optbuilder.model import Model, describe
from optbuilder.settings import Known, ModelSettings, Run, run_settings
from optbuilder.technique import Context, Technique
from optbuilder.typed import conform, option_schema

_TRUSTED = "optbuilder.transforms"


@dataclass(frozen=True)
class Transform:
    """One step of a plan: the stage, the name of the option chosen there, the function and its options."""

    stage: str
    choice: str
    function: Callable[..., Any]
    options: Mapping[str, Any]
    why_here: str

    @property
    def technique(self) -> Technique:
        return self.function.technique  # type: ignore[attr-defined]

    @property
    def name(self) -> str:
        return f"{self.stage}={self.choice}"


@dataclass(frozen=True, repr=False)
class Plan:
    """What a job will do. `load` are from_pretrained's arguments in plain words, `refusals` say why not."""

    model: Model
    machine: Machine
    run: Run
    transforms: list[Transform]
    load: Mapping[str, Any] = field(default_factory=dict)
    call: Mapping[str, Any] = field(default_factory=dict)
    refusals: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    trusted_modules: tuple[str, ...] = ()

    def __repr__(self) -> str:
        from optbuilder.notebook import plan_text

        return plan_text(self)

    def _repr_html_(self) -> str:
        from optbuilder.notebook import plan_html

        return plan_html(self)

    @property
    def graphs(self) -> Prediction | None:
        """How many graphs the run will compile, as far as it can be said; None where nothing compiles."""
        return next((f(self.context(t)) for t in self.transforms if (f := t.technique.graphs)), None)

    def require(self) -> Plan:
        """The plan itself, if it can be carried out. Raises `Refused` with every reason otherwise."""
        if self.refusals:
            raise Refused(*self.refusals)
        return self

    def context(self, transform: Transform) -> Context:
        stages = {t.stage: t.options for t in self.transforms}
        return Context(transform.options, self.model, self.machine, self.run, stages, self.trusted_modules)

    def filled(self) -> Plan:
        """The plan with values in place of options left null, where the technique derives them."""

        def fill(transform: Transform) -> Transform:
            derived = transform.technique.derive(self.context(transform))
            values = {key: value for key, value in derived.items() if transform.options[key] is None}
            return replace(transform, options={**transform.options, **values})

        return replace(self, transforms=[fill(transform) for transform in self.transforms])

    @property
    def load_device(self) -> str:
        """Where the pipeline is loaded to: its device, unless a transform places the components itself."""
        return "cpu" if any(t.technique.places for t in self.transforms) else self.machine.device


def resolve(
    config: Mapping[str, Any],
    choices: Mapping[str, str] | None = None,
    machine: Machine | None = None,
    model: Model | None = None,
) -> Plan:
    """Turn a composed config into a plan. Nothing heavy is imported and no weights are read.

    `choices` names the option picked in each stage, for messages; `machine` stands in for this one, and `model` for the
    one that the config names.
    Raises `Refused` where there is no model or device to plan for; every other problem is in `plan.refusals`.
    """
    settings = _model_settings(config)
    machine = machine or (described(config["machine"]) if config["machine"] else probe(str(config["device"])))
    model = replace(model or describe(settings.repo_id, revision=settings.revision), known=settings.known)
    run_defaults, call_defaults = {}, {}
    if settings.weights == "dummy":
        model = dummy(model, settings.scale)
        run_defaults, call_defaults = cheap(model)
    run, refusals = run_settings(config["run"] or {}, {**settings.run, **run_defaults})
    transforms, problems = _transforms(config, choices)
    trusted = tuple(config["trusted_modules"])
    draft = Plan(
        model, machine, run, transforms, call={**call_defaults, **settings.call}, trusted_modules=trusted
    ).filled()
    refusals += problems + checks.problems(draft, settings) + checks.tracker(config.get("track"))
    refusals = refusals or checks.too_many_graphs(draft)
    if refusals:
        return replace(draft, refusals=refusals)
    notes = checks.warnings(draft) + _unused(config, choices)
    return replace(draft, load=_load_arguments(settings, draft), notes=notes)


def _model_settings(config: Mapping[str, Any]) -> ModelSettings:
    for key, kind in {"model": Mapping, "stages": Mapping, "trusted_modules": list}.items():
        if not isinstance(config.get(key), kind):
            raise Refused(
                f"{key}={config.get(key)!r}: it must be a {'list' if kind is list else 'mapping'}. "
                "Leave it as conf has it."
            )
    values, problems = conform(ModelSettings, config["model"], "model")
    known, more = conform(Known, values["known"], "model.known")
    if problems := problems + more:
        raise Refused(*problems)
    settings = ModelSettings(**{**values, "known": known})
    if settings.weights not in ("pretrained", "dummy"):
        raise Refused(f"model.weights={settings.weights!r}: it is not one of: pretrained, dummy.")
    if settings.weights == "pretrained" and settings.scale != "full":
        why = "only random weights come in another size"
        raise Refused(f"model.scale={settings.scale!r}: {why}. Use model.weights=dummy too, or model.scale=full.")
    return settings


def _transforms(config: Mapping[str, Any], choices: Mapping[str, str] | None) -> tuple[list[Transform], list[str]]:
    """The transforms in the order of the stages, and what is wrong with those that cannot be made."""
    transforms, problems = [], []
    for stage, why_here in config["stages"].items():
        node = config.get(stage) or {}
        if choices is not None and node and stage not in choices:
            problems.append(
                f"{stage}: a stage takes one option, not a list of them. Write {stage}=none or another of its options."
            )
        elif node.get("_target_"):
            transform, wrong = _bind(stage, (choices or {}).get(stage, "?"), node, why_here, config["trusted_modules"])
            transforms += [transform] if transform and not wrong else []
            problems += wrong
    return transforms, problems


def _unused(config: Mapping[str, Any], choices: Mapping[str, str] | None) -> list[str]:
    """Options of a stage that is left as it is: a grid gives them to every job, and only some have a use for them."""
    idle = {stage: node for stage in config["stages"] if (node := config.get(stage) or {}) and not node.get("_target_")}
    return [
        f"{s}={(choices or {}).get(s, 'none')}: it has no use for {', '.join(map(str, node))}."
        for s, node in idle.items()
    ]


def _bind(
    stage: str, choice: str, node: Mapping[str, Any], why: str, trusted: list[str]
) -> tuple[Transform | None, list[str]]:
    try:
        function = find_function(str(node["_target_"]), trusted)
    except Refused as refused:
        return None, [f"{stage}={choice}: {reason}" for reason in refused.reasons]
    options, problems = conform(option_schema(function), {k: v for k, v in node.items() if k != "_target_"}, stage)
    return Transform(stage, choice, function, options, why), problems


def find_function(target: str, trusted: list[str]) -> Callable[..., Any]:
    """The transform function that `_target_` names: from optbuilder's transforms and the user's trusted modules."""
    module, _, name = target.rpartition(".")
    if not (module == _TRUSTED or module.startswith(f"{_TRUSTED}.") or module in trusted):
        raise Refused(
            f"_target_={target!r} is outside {_TRUSTED}, and a config must not call any function it likes. "
            f"If you wrote it, add trusted_modules=[{module}]."
        )
    try:
        function = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise Refused(f"_target_={target!r} cannot be imported ({error}).") from None
    if not isinstance(getattr(function, "technique", None), Technique):
        raise Refused(f"_target_={target!r} declares no technique. Decorate it with @technique(...).")
    return function


def _load_arguments(settings: ModelSettings, plan: Plan) -> dict[str, Any]:
    arguments: dict[str, Any] = {"use_safetensors": None if settings.allow_pickle else True}
    arguments |= {k: v for k, v in {"revision": settings.revision, "variant": settings.variant}.items() if v}
    arguments |= {"trust_remote_code": True} if settings.trust_remote_code else {}
    for transform in plan.transforms:
        arguments |= transform.technique.load(plan.model, **transform.options)
    return arguments
