"""optbuilder from Python: the words of the command line as arguments.

import optbuilder
optbuilder.plan(model="shapes_flux", precision="bf16", compile="regional")
optbuilder.run("run.seed=7", compile="regional")
pipe = optbuilder.load("compile.fullgraph=false", model="shapes_flux", compile="regional")
pipe = optbuilder.apply(pipe_of_your_own, attention="sdpa_math", layout="channels_last")
pipe = optbuilder.undo(pipe)
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optbuilder.builder import Plan, resolve
from optbuilder.errors import Refused
from optbuilder.folders import CONF
from optbuilder.model import Model
from optbuilder.technique import PART_OF_LOADING

if TYPE_CHECKING:
    from optbuilder.job import Outcome

__all__ = ["Refused", "apply", "load", "plan", "run", "undo"]


def plan(*overrides: str, **choices: str) -> Plan:
    """What would be done: nothing is loaded. `refusals` of the plan say why not, where it cannot be.

    `choices` are groups and options (`compile="regional"`), `overrides` any words of the command line
    (`"run.num_inference_steps=20"`). Raises `Refused` for words that mean nothing.

    >>> plan(model="shapes_flux", device="cpu", compile="regional", quant="fp8_dynamic").refusals[0][:44]
    'quant=fp8_dynamic: float8 matmuls need compu'
    >>> plan(device="cpu", layout="channels_last")  # doctest: +ELLIPSIS
    package:shapes/shapes_sdxl (StableDiffusionXLPipeline) on cpu
    1. precision=fp32  [lossless]
       load_dtype(dtype=float32)
    ...
    2. layout=channels_last  [lossless]
       channels_last(components=['denoiser', 'vae'])
    ...
    """
    return resolve(*_composed(overrides, choices))


def run(*overrides: str, **choices: str) -> Outcome:
    """Plan, load, apply, run and measure, as the command line does, in a new folder below `outputs/`.

    The outcome has the `status`, `reasons`, `directory`, `plan` and `metrics` of that folder, and shows itself with its
    pictures in a notebook. What fails or is refused does not raise here: it is the outcome's status.

    >>> run(device="cpu", quant="fp8_dynamic")  # doctest: +ELLIPSIS
    refused: precision=fp32, quant=fp8_dynamic on package:shapes/shapes_sdxl
    quant=fp8_dynamic: float8 matmuls need compute capability 8.9 ...
    files: outputs/...
    """
    from optbuilder.directories import create, run_directory
    from optbuilder.job import generate

    config, chosen = _composed(overrides, choices)
    create(directory := run_directory("generate"))
    return generate(config, chosen, Path(directory))


def load(*overrides: str, **choices: str) -> Any:
    """The pipeline with the plan applied, on its device. Raises `Refused` with every reason where the plan cannot be,
    and `NoEffect` where a technique changed nothing.

    >>> load(device="cpu", scheduler="dpmpp_2m").scheduler.__class__.__name__
    'DPMSolverMultistepScheduler'
    """
    from optbuilder.effects import apply as apply_plan
    from optbuilder.pipeline import load as load_pipeline

    planned = plan(*overrides, **choices).require()
    return apply_plan(planned, load_pipeline(planned.model, planned.load, planned.load_device))[0]


def apply(pipe: Any, *overrides: str, **choices: str) -> Any:
    """Apply techniques to a pipeline of the caller's own, in their order, each proven to change something.

    Everything is checked first, so that a refusal leaves the pipeline as it is. What belongs to loading (dtypes,
    quantization while loading) is refused: load with it, or use `optbuilder.load`. `undo` takes back what it did.
    """
    from optbuilder.effects import apply as apply_plan

    if "precision" in choices or any(word.startswith("precision") for word in overrides):
        raise Refused("precision: a dtype belongs to loading. Load the pipeline with it, or use optbuilder.load.")
    dtypes = _dtypes(pipe)
    words = [*overrides, "model=custom", "model.repo_id=loaded", f"device={pipe.device}", *_precision(dtypes)]
    config, chosen = _composed(words, choices)
    planned = resolve(config, chosen, model=described(pipe)).require()
    if early := [
        t.name for t in planned.transforms if {*t.technique.load(planned.model, **t.options)} & {*PART_OF_LOADING}
    ]:
        raise Refused(
            f"{early[0]}: it quantizes while loading, and this pipeline is loaded. Use quant=int8_weight_only."
        )
    planned.transforms[:] = [t for t in planned.transforms if t.stage != "precision"]
    before = Standing(pipe)
    pipe, _ = apply_plan(planned, pipe)
    pipe._before_optbuilder = before
    return pipe


def undo(pipe: Any) -> Any:
    """The pipeline as it was before `apply`: methods, processors, hooks, scheduler and the process's switches.

    Raises `Refused` where weights were changed (quantization, a merged LoRA): the old ones are not kept, all else is
    undone.

    >>> pipe = apply(load(device="cpu"), attention="sliced")
    >>> undo(pipe) is pipe
    True
    """
    from optbuilder.snapshot import difference, snapshot

    before = vars(pipe).get("_before_optbuilder")
    if before is None:
        raise Refused("undo: optbuilder.apply did nothing to this pipeline.")
    del pipe._before_optbuilder
    before.restore()
    if lost := sorted({fact.rpartition(".")[0] for fact in difference(before.snapshot, snapshot(pipe))}):
        raise Refused(f"undo: the weights of {', '.join(lost)} were changed, and the old ones are gone. Load again.")
    return pipe


class Standing:
    """What `undo` needs: the attributes of the pipeline and its modules as they are, without copies of weights."""

    def __init__(self, pipe: Any) -> None:
        from optbuilder.snapshot import snapshot
        from optbuilder.state import standing

        self.snapshot = snapshot(pipe)
        self.restore_switches = standing()
        modules = [m for part in pipe.components.values() if hasattr(part, "modules") for m in part.modules()]
        processors = [m.processor for m in modules if hasattr(m, "processor") and not hasattr(m.processor, "modules")]
        hooks = [m._diffusers_hook for m in modules if hasattr(m, "_diffusers_hook")]
        self.kept = [(owner, _shallow(vars(owner))) for owner in (pipe, *modules, *processors, *hooks)]
        self.strides = [(m, _strides(m)) for m in modules]

    def restore(self) -> None:
        import torch

        self.restore_switches()
        for owner, attributes in self.kept:
            for name in vars(owner).keys() - attributes.keys() - {"_parameters", "_buffers"}:
                del vars(owner)[name]
            vars(owner).update(attributes)
        for module, strides in self.strides:
            for name, kept in strides.items():
                tensor = getattr(module, name)
                if tensor.stride() != kept:
                    tensor.data = torch.empty_strided(
                        tensor.shape, kept, dtype=tensor.dtype, device=tensor.device
                    ).copy_(tensor.data)


def _shallow(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes, and copies of the dicts and lists among them (hooks, submodules), which are changed in place; but
    not of the weights, which would keep the old ones in memory."""
    attributes = {key: value for key, value in attributes.items() if key not in ("_parameters", "_buffers")}
    return {
        key: value.copy() if type(value) in (dict, OrderedDict, list) else value for key, value in attributes.items()
    }


def _strides(module: Any) -> dict[str, tuple[int, ...]]:
    """Of a 1 x 1 kernel, strides tell the memory format, and is_contiguous does not."""
    return {name: p.stride() for name, p in module.named_parameters(recurse=False) if p.ndim in (4, 5)}


def described(pipe: Any) -> Model:
    """A loaded pipeline's facts, as `model.describe` reads them from a folder."""
    parts = {name: part for name, part in pipe.components.items() if part is not None}
    configs = {name: dict(c.to_dict() if hasattr(c, "to_dict") else c) for name, part in parts.items()
               if (c := getattr(part, "config", None)) is not None}  # fmt: skip
    for name, part in parts.items():
        configs.setdefault(name, {})["_class_name"] = type(part).__name__
    libraries = {name: type(part).__module__.partition(".")[0] for name, part in parts.items()}
    classes = {name: type(part).__name__ for name, part in parts.items()}
    return Model(
        "loaded", Path(str(pipe.config.get("_name_or_path") or ".")), type(pipe).__name__, classes, libraries, configs,
        elsewhere=True,
    )  # fmt: skip


def _dtypes(pipe: Any) -> dict[str, str]:
    from optbuilder.model import expand

    parts = {"denoiser": ["denoiser"], "vae": ["vae"], "text_encoders": ["text_encoders"]}
    found = {}
    for part, names in parts.items():
        here = [getattr(pipe, n, None) for n in expand(names, pipe.components)]
        if here and here[0] is not None:
            found[part] = str(here[0].dtype).removeprefix("torch.")
    return found


def _precision(dtypes: Mapping[str, str]) -> list[str]:
    return ["precision=fp32", *(f"precision.{part}={dtype}" for part, dtype in dtypes.items())]


def _composed(overrides: Any, choices: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Compose as the command line does. Raises `Refused` for what it does not know."""
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    import optbuilder.directories  # noqa: F401 - resolvers that the config names
    from optbuilder.grid import plain
    from optbuilder.overrides import explained, prepared
    from optbuilder.permissions import require_permission
    from optbuilder.recipe import with_recipe

    words = prepared([*overrides, *(f"{key}={value}" for key, value in choices.items())], CONF)
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            composed = compose("config", overrides=words, return_hydra_config=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise Refused(explained(error, CONF, words)) from None
    config, chosen = with_recipe(plain(composed), composed.hydra.runtime.choices, words)
    require_permission(config, words)
    return config, chosen
