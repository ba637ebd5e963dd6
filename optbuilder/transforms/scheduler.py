"""Stage `scheduler`: another sampler with the model's own noise schedule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from optbuilder.folders import CONF
from optbuilder.library import lists_sigmas, method_arguments, passes_sigmas, pipeline_source
from optbuilder.technique import Context, Need, technique


def is_flow(config: Mapping[str, Any]) -> bool:
    """Whether a scheduler's config is of the flow-matching family."""
    return str(config.get("_class_name", "")).startswith("FlowMatch") or config.get("use_flow_sigmas") is True


def _current(context: Context) -> Mapping[str, Any]:
    return context.model.configs.get("scheduler", {})


def _asked(options: Mapping[str, Any]) -> dict[str, Any]:
    return {"_class_name": options["scheduler"], **options["config"]}


def _family(context: Context) -> str | None:
    if is_flow(_current(context)) == is_flow(_asked(context.options)):
        return None
    flow = is_flow(_current(context))
    family = "a flow-matching" if flow else "an epsilon or v-prediction"
    return f"{context.model.pipeline_class} is {family} model. Use scheduler={', '.join(fitting(flow))}"


def fitting(flow: bool) -> list[str]:
    """The names of conf/scheduler's options of one family."""
    options = {path.stem: yaml.safe_load(path.read_text()) for path in sorted((CONF / "scheduler").glob("*.yaml"))}
    return [name for name, option in options.items() if option and is_flow(_asked(option)) == flow]


def _sigmas(context: Context) -> str | None:
    name, pipeline = context.options["scheduler"], context.model.pipeline_class
    takes = method_arguments(name, "set_timesteps", "schedulers")
    flow_sigmas = context.options["config"].get("use_flow_sigmas", False)
    if passes_sigmas(pipeline, flow_sigmas) and takes and "sigmas" not in takes:
        return f"{pipeline} passes sigmas of its own, which {name} does not take. Use another scheduler"
    if lists_sigmas(pipeline) and not name.startswith("FlowMatch"):
        return f"{pipeline} passes its sigmas as a list, with which {name} cannot compute. Use scheduler=flow_euler"
    return None


def _shifts(context: Context) -> str | None:
    """DPM-Solver takes a pipeline's shift only where its config has dynamic shifting too."""
    name, config = context.options["scheduler"], {**_current(context), **context.options["config"]}
    if name != "DPMSolverMultistepScheduler" or config.get("use_dynamic_shifting"):
        return None
    if "mu=mu" not in pipeline_source(context.model.pipeline_class):
        return None
    why = "passes a shift that this scheduler takes only with dynamic shifting, which the model's own has not"
    return f"{context.model.pipeline_class} {why}. Use scheduler=unipc_flow"


def _known_config(context: Context) -> str | None:
    known = method_arguments(context.options["scheduler"], "__init__", "schedulers")
    if not known:
        return f"scheduler={context.options['scheduler']!r}: diffusers defines no such class"
    wrong = sorted(set(context.options["config"]) - known)
    return f"config.{wrong[0]}: {context.options['scheduler']} has no such option" if wrong else None


def _is_the_models_own(context: Context) -> str | None:
    if all(_current(context).get(key) == value for key, value in _asked(context.options).items()):
        return "the model's own scheduler is this one already: it would change nothing. Use scheduler=none"
    return None


@technique(
    lossless=False,
    source="https://huggingface.co/docs/diffusers/using-diffusers/schedulers",
    needs=(
        Need(
            lambda options: (
                "flow matching"
                if is_flow({"_class_name": options["scheduler"], **options["config"]})
                else "epsilon or v"
            ),
            _family,
        ),
        Need("", _known_config),
        Need("", _sigmas),
        Need("", _shifts),
        Need("", _is_the_models_own),
    ),
)
def swap_scheduler(pipe: Any, *, scheduler: str = "EulerDiscreteScheduler", config: dict[str, Any] = {}) -> Any:  # noqa: B006
    """Sample with another scheduler, made from the config of the model's own. Lossy: another picture.

    Its worth is fewer steps: set `run.num_inference_steps` beside it. The family (flow matching, or epsilon and v
    prediction) must be the model's.
    Source: https://huggingface.co/docs/diffusers/api/schedulers/overview
    """
    import diffusers

    pipe.scheduler = getattr(diffusers, scheduler).from_config(pipe.scheduler.config, **config)
    return pipe
