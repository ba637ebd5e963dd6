"""Everything about a plan that can be known to be wrong before weights are loaded, one line each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from optbuilder.errors import nearest
from optbuilder.graphs import LIMIT
from optbuilder.library import call_arguments, pipeline_source
from optbuilder.model import Model, expand
from optbuilder.settings import ModelSettings
from optbuilder.technique import PART_OF_LOADING, installed_version
from optbuilder.track import TRACKERS
from optbuilder.weights import faults

if TYPE_CHECKING:
    from optbuilder.builder import Plan, Transform


_ARGUMENTS = ("negative_prompt", "guidance_scale", "height", "width", "num_frames", "image")


def problems(plan: Plan, settings: ModelSettings) -> list[str]:
    """Why the plan cannot be carried out."""
    found = _unsafe(settings, plan.model) + _not_whole(plan.model) + _sizes(plan) + _call(plan)
    return found + _video(plan) + _early(plan) + _needs(plan)


def warnings(plan: Plan) -> list[str]:
    """What works, but may surprise."""
    found = [f"{t.name}: {warning}." for t in plan.transforms if (warning := t.technique.warns(plan.context(t)))]
    if plan.model.weights == "dummy":
        size = {"full": "at full size", "half": "with half of the blocks", "tiny": "in a tiny size"}[plan.model.scale]
        found.append(
            f"model.weights=dummy: the architecture {size}, with random weights, and random prompt embeddings in place "
            "of text encoders. Times and memory are those of such a model; its pictures say nothing of quality."
        )
    return found


def tracker(name: Any) -> list[str]:
    """Why figures cannot be sent to a tracker."""
    if name is not None and not isinstance(name, str):
        return [f"track={name!r}: it must be the name of a tracker. {nearest('', TRACKERS)}"]
    if name is None or (name in TRACKERS and installed_version(TRACKERS[name])):
        return []
    if name not in TRACKERS:
        return [f"track={name!r}: there is no such tracker. {nearest(name, TRACKERS)}"]
    return [f"track={name!r}: the package {TRACKERS[name]} is not installed. Write pip install {TRACKERS[name]}."]


def _unsafe(settings: ModelSettings, model: Model) -> list[str]:
    """Weights that could run code when loaded, and Python that comes with the model: only if the user allows it."""
    what, found = f"model.repo_id={model.repo_id!r}", []
    code = [n for n, library in model.libraries.items() if (model.folder / n / f"{library}.py").exists()]
    if code and not settings.trust_remote_code:
        allow = "Read it, then set model.trust_remote_code=true"
        found.append(f"{what}: {', '.join(code)} runs Python code from the model's folder. {allow}.")
    pickled = [n for n in model.components if _only_pickled(model, n)]
    if pickled and not settings.allow_pickle:
        allow = "Convert them to safetensors, or set model.allow_pickle=true"
        found.append(f"{what}: {', '.join(pickled)} has only pickled weights, which can run code when loaded. {allow}.")
    return found


def _only_pickled(model: Model, component: str) -> bool:
    folder = model.folder / component
    return any(folder.glob("*.bin")) and not any(folder.glob("*.safetensors"))


def _not_whole(model: Model) -> list[str]:
    """Components that are missing, and weights that were cut short, as an interrupted download leaves them."""
    return [f"model.repo_id={model.repo_id!r}: {fault}. Download it again, or use another." for fault in faults(model)]


def _sizes(plan: Plan) -> list[str]:
    """Picture sizes that the VAE's factor and the transformer's patches do not divide."""
    blocks = plan.model.configs.get("vae", {}).get("block_out_channels", [])
    patch = 2 if any(name.startswith("transformer") for name in plan.model.components) else 1
    factor = plan.model.known.get("multiple_of") or (2 ** (len(blocks) - 1) * patch if blocks else 1)
    sizes = [("height", plan.run.height), ("width", plan.run.width)]
    sizes += [("sizes", side) for side in sorted({side for pair in plan.run.sizes or () for side in pair})]
    return [
        f"run.{key}={size}: {plan.model.pipeline_class} needs a multiple of {factor}. "
        f"Use {max(factor, round(size / factor) * factor)}."
        for key, size in sizes
        if size and size % factor
    ]


def too_many_graphs(plan: Plan) -> list[str]:
    """Why a plan with nothing else wrong would still fail: past its limit torch raises, after minutes of compiling."""
    if plan.graphs is None or plan.graphs.most <= LIMIT:
        return []
    name = next(t.name for t in plan.transforms if t.technique.graphs)
    limit = f"torch compiles {LIMIT} of one function at most. Use compile.dynamic=null, or fewer shapes."
    return [f"{name}: the shapes of the run need {plan.graphs.most} graphs, and {limit}"]


def _call(plan: Plan) -> list[str]:
    """Settings of the run that the pipeline's call does not take, or takes and ignores."""
    run, name, takes = plan.run, plan.model.pipeline_class, call_arguments(plan.model.pipeline_class)
    given = {key: getattr(run, key) for key in _ARGUMENTS}
    found = [
        f"run.{k}={v!r}: {name} takes no {k}. Leave it out."
        for k, v in given.items()
        if v is not None and takes and k not in takes
    ]
    found += [
        f"model.call.{key}: {name} takes no such argument. {nearest(key, takes)}"
        for key in plan.call
        if takes and key not in takes
    ]
    if run.images_per_prompt > 1 and "num_videos_per_prompt = 1\n" in pipeline_source(name):
        found.append(f"run.images_per_prompt={run.images_per_prompt}: {name} makes one video per prompt. Leave it out.")
    if run.guidance_scale is not None and _ignores_guidance(plan):
        found.append(
            f"run.guidance_scale={run.guidance_scale}: this model has no guidance embedding, it would change nothing. "
            "Leave it out."
        )
    scale = plan.call.get("true_cfg_scale", 1.0) if "true_cfg_scale" in takes else run.guidance_scale
    if run.negative_prompt is not None and scale is not None and scale <= 1:
        key = "model.call.true_cfg_scale" if "true_cfg_scale" in takes else "run.guidance_scale"
        found.append(
            f"run.negative_prompt={run.negative_prompt!r}: it acts only with {key} above 1. "
            f"Write +{key}=3 too, or leave it out."
        )
    return found


def makes_video(model: Model) -> bool:
    """Whether the pipeline gives frames."""
    return "num_frames" in call_arguments(model.pipeline_class)


def _video(plan: Plan) -> list[str]:
    """Packages that writing a video needs."""
    missing = [name for name in ("imageio", "imageio-ffmpeg") if installed_version(name) is None]
    if not missing or not makes_video(plan.model):
        return []
    what = f"{plan.model.pipeline_class} makes videos, and writing them needs {' and '.join(missing)}"
    return [f"model.repo_id={plan.model.repo_id!r}: {what}. Write pip install {' '.join(missing)}."]


def _early(plan: Plan) -> list[str]:
    """Techniques that make other weights while loading, of which dummy weights know nothing."""
    if plan.model.weights != "dummy":
        return []
    loads = {t.name: t.technique.load(plan.model, **t.options) for t in plan.transforms}
    return [
        f"{name}: it is part of loading, and dummy weights are not loaded. Use quant=int8_weight_only or another that "
        "quantizes what is there, or model.weights=pretrained."
        for name, arguments in loads.items()
        if {*arguments} & {*PART_OF_LOADING}
    ]


def _ignores_guidance(plan: Plan) -> bool:
    return any(plan.model.configs.get(name, {}).get("guidance_embeds") is False for name in plan.model.denoisers)


def _needs(plan: Plan) -> list[str]:
    """Needs that are not met; where a component does not exist, only that, since other needs look at it."""
    found = []
    for transform in plan.transforms:
        reasons = _missing_components(plan, transform)
        reasons = reasons or [why for n in transform.technique.needs if (why := n.check(plan.context(transform)))]
        found += [f"{transform.name}: {reason}" for reason in reasons]
    return [line if line.endswith((".", "?")) else f"{line}." for line in found]


def _missing_components(plan: Plan, transform: Transform) -> list[str]:
    if "components" not in transform.options:
        return []
    known, kind = plan.model.components, plan.model.pipeline_class
    words = ["denoiser", "text_encoders", *known, *(f"{name}.decode" for name in known if name.startswith("vae"))]
    names = expand(transform.options["components"], known)
    wrong = [f"components={n!r}: {kind} has no such component. {nearest(n, words)}" for n in names if n not in words]
    return (
        wrong
        if names
        else [f"components={transform.options['components']!r}: {kind} has none of them. {nearest('', words)}"]
    )
