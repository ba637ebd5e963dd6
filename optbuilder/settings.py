"""The typed settings of a job: what to load, what to generate, and how often to measure it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from optbuilder.errors import Refused
from optbuilder.folders import inside_package
from optbuilder.foreign import read_yaml
from optbuilder.typed import conform


@dataclass
class ModelSettings:
    """What to load. `run` are the model's defaults for the run, `call` further arguments of the pipeline's call.

    `weights` is pretrained or dummy: random weights of the model's architecture, at a `scale` of tiny, half or full.
    """

    repo_id: str
    revision: str | None = None
    variant: str | None = None
    allow_pickle: bool = False
    trust_remote_code: bool = False
    weights: str = "pretrained"
    scale: str = "full"
    known: dict[str, Any] = field(default_factory=dict)
    run: dict[str, Any] = field(default_factory=dict)
    call: dict[str, Any] = field(default_factory=dict)


@dataclass
class Known:
    """Facts of a model that its JSON does not tell, as its authors state them."""

    sources: list[str] | None = None
    license: str | None = None
    output: str | None = None
    trained_in: str | None = None
    head_size: int | None = None
    guidance_distilled: bool | None = None
    vae_upcast: bool | None = None
    multiple_of: int | None = None


@dataclass
class Run:
    """`prompts` is a text or a list of texts; sizes in pixels; null takes the model's default, else the pipeline's.

    `sizes` ([height, width] pairs) and `batch_sizes` declare every shape of the run, instead of one of each. `image` is
    the file of a picture to start from, `num_frames` and `fps` are a video's.
    """

    prompts: Any = None
    prompts_file: str | None = None
    negative_prompt: str | None = None
    height: int | None = None
    width: int | None = None
    num_frames: int | None = None
    fps: int | None = None
    image: str | None = None
    num_inference_steps: int | None = None
    guidance_scale: float | None = None
    seed: int = 0
    images_per_prompt: int = 1
    batch_size: int = 1
    sizes: list[list[int]] | None = None
    batch_sizes: list[int] | None = None
    reuse_prompt_embeds: bool = False
    warmup: int = 1
    repeats: int | str = 3
    repeats_width: float = 0.02
    repeats_budget_s: float = 60.0
    compare: str | None = None
    compile_floor: bool = False
    profile: bool = False
    isolation: str = "process"
    timeout_s: float | None = None


@dataclass
class SweepSettings:
    """How a grid runs: with a baseline for every model and run, and what of an earlier start runs again."""

    baseline: bool = True
    retry: str = "failed"
    ladder: list[str] = field(default_factory=list)


def sweep_settings(values: Mapping[str, Any]) -> SweepSettings:
    """The grid's settings. Raises `Refused` with one line for each that is wrong."""
    known, problems = conform(SweepSettings, values, "sweep")
    if not problems and known["retry"] not in (retries := ("none", "failed", "refused", "all")):
        problems = [f"sweep.retry={known['retry']!r}: it is not one of: {', '.join(retries)}."]
    if problems:
        raise Refused(*problems)
    return SweepSettings(**known)


def run_settings(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> tuple[Run, list[str]]:
    """The run's settings, with the model's defaults where they say null, and one line for each that is wrong."""
    known, problems = conform(Run, values, "run")
    chosen, more = conform(Run, {key: value for key, value in defaults.items() if known.get(key) is None}, "model.run")
    run = Run(**{key: chosen[key] if known[key] is None else known[key] for key in known})
    if known["sizes"] is not None:  # the model's own size is one that was not asked for
        run.height, run.width = known["height"], known["width"]
    run.image = run.image and str(inside_package(run.image) or Path(run.image).expanduser())
    try:
        run.prompts = _prompts(known["prompts"], run.prompts_file, chosen["prompts"])
    except Refused as refused:
        more += refused.reasons
    if wrong := _shapes(run):
        run.sizes = run.batch_sizes = None
    return run, problems + more + wrong + _out_of_range(run)


def _out_of_range(run: Run) -> list[str]:
    least = {
        "height": 8,
        "width": 8,
        "num_frames": 1,
        "fps": 1,
        "num_inference_steps": 1,
        "images_per_prompt": 1,
        "warmup": 0,
        "repeats": 1,
        "seed": 0,
    }
    values = {key: getattr(run, key) for key in least}
    wrong = [
        f"run.{k}={v!r}: it is too small. Use {least[k]} or more."
        for k, v in values.items()
        if v is not None and not isinstance(v, str) and v < least[k]
    ]
    if isinstance(run.repeats, str) and run.repeats != "auto":
        wrong.append(f"run.repeats={run.repeats!r}: it is no number. Use a number, or auto.")
    if run.image is not None and not Path(run.image).is_file():
        wrong.append(f"run.image={run.image!r}: there is no such file. Use the path of a picture.")
    if run.isolation not in ("process", "none"):
        wrong.append(f"run.isolation={run.isolation!r}: it is not one of: process, none.")
    if run.compare not in (None, "baseline") and not Path(run.compare, "metrics.json").is_file():
        wrong.append(f"run.compare={run.compare!r}: it is no run directory. Use baseline, or the folder of a run.")
    return wrong


def _shapes(run: Run) -> list[str]:
    """What is wrong with the declared shapes: with themselves, or beside the one size that they stand in for."""
    wrong = []
    if run.sizes is not None and (not run.sizes or any(len(s) != 2 or min(s) < 8 for s in run.sizes)):
        wrong.append(
            f"run.sizes={run.sizes!r}: it must be [height, width] pairs of 8 pixels or more. "
            "Write 'run.sizes=[[128,128],[128,192]]'."
        )
    if run.batch_sizes is not None and (not run.batch_sizes or min(run.batch_sizes) < 1):
        wrong.append(
            f"run.batch_sizes={run.batch_sizes!r}: it must be numbers from 1 on. Write 'run.batch_sizes=[1,4]'."
        )
    both = {"sizes": [k for k in ("height", "width") if getattr(run, k) is not None and run.sizes is not None]}
    both["batch_sizes"] = ["batch_size"] if run.batch_sizes is not None and run.batch_size != 1 else []
    for name, given in both.items():
        wrong += [f"run.{k}={getattr(run, k)!r}: run.{name} says it already. Leave one of them out." for k in given]
    return wrong


def _prompts(prompts: Any, file: str | None, defaults: Any) -> list[str]:
    if prompts is not None and file is not None:
        raise Refused(
            f"run.prompts_file={file!r}: run.prompts is given too, and only one of them can be meant. Leave one out."
        )
    if file is not None:
        prompts = read_prompts(Path(file).expanduser())
    prompts = defaults if prompts is None else prompts
    listed = [prompts] if isinstance(prompts, (str, int, float)) else prompts
    if not isinstance(listed, list) or not listed or any(isinstance(p, (list, dict)) or p is None for p in listed):
        raise Refused(
            f"run.prompts={prompts!r}: it must be a text or a list of texts. Write 'run.prompts=[\"a red circle\"]'."
        )
    return [str(prompt) for prompt in listed]


def read_prompts(path: Path) -> list[str]:
    """Prompts from a file: a YAML list (`.yaml`, `.yml`), or one per line but empty ones. Nothing is interpolated."""
    try:
        prompts = (
            read_yaml(path)
            if path.suffix in (".yaml", ".yml")
            else [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        )
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise Refused(f"run.prompts_file={str(path)!r}: {reason}. Give a text file with one prompt per line.") from None
    if not isinstance(prompts, list) or not prompts:
        raise Refused(f"run.prompts_file={str(path)!r}: there is no prompt in it. Give one per line, or a YAML list.")
    return prompts
