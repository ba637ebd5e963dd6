"""The pipeline of a plan as a script of plain diffusers, made of the very functions that run it here."""

from __future__ import annotations

import ast
import inspect
import pprint
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import optbuilder
from optbuilder.builder import Plan
from optbuilder.checks import makes_video
from optbuilder.pipeline import source
from optbuilder.record import completed
from optbuilder.sources import Sources
from optbuilder.technique import installed_version
from optbuilder.video import FPS

WIDTH = 116
ALWAYS = (
    "torch",
    "diffusers",
    "transformers",
    "accelerate",
    "safetensors",
    "pillow",
)  # what loading any pipeline needs
OTHERWISE = {"PIL": "pillow", "yaml": "pyyaml"}  # what is not installed by the name it is imported by
UNSEEN = {"'backend': 'quanto'": "optimum-quanto", "import imageio": "imageio-ffmpeg"}  # what no import names
RUN = ("prompts", "negative_prompt", "height", "width", "num_frames", "image", "num_inference_steps", "guidance_scale",
       "seed", "images_per_prompt", "batch_size", "sizes", "batch_sizes")  # fmt: skip
PARTS = {"optbuilder.runner": ["reset_caches"], "optbuilder.request": ["arguments", "calls", "images_of"]}
LOADED = "from_pretrained(given.model, LOAD).to({device!r})"
MADE = "random_pipeline(PIPELINE, CONFIGS, PROMPTS, LOAD, {device!r})"
MODEL = """\
    parser.add_argument("--model", default=MODEL, help="a diffusers folder or Hub id")
"""
PICTURES = """\
    for number, picture in enumerate(pictures):
        VaeImageProcessor.numpy_to_pil(picture.pixels)[0].save(given.output / f"{number:04d}.png")
"""
VIDEOS = """\
    for number, video in enumerate(pictures):
        VaeImageProcessor.numpy_to_pil(still(video.pixels))[0].save(given.output / f"{number:04d}.png")
        write_video(given.output / f"{number:04d}.mp4", video.pixels, FPS, video.prompt)
"""

MAIN = '''\
def apply(pipe):
    """Apply the techniques in their order."""
{steps}
    return pipe


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompt", action="append", help="instead of the prompts in this file; may be repeated")
    parser.add_argument("--output", type=Path, default=Path("."), help="the folder for 0000.png and so on")
{model}\
    given = parser.parse_args()
    RUN.prompts = given.prompt or RUN.prompts
    given.output.mkdir(parents=True, exist_ok=True)
    pipe = apply({load})
{before}\
    pictures = []
    for shape, number in calls(RUN):
        reset_caches(pipe)
        pictures += images_of(pipe(**arguments(pipe, shape, number, CALL)), shape, number)
{write}

if __name__ == "__main__":
    main()
'''


def script(plan: Plan) -> str:
    """The script: it needs diffusers and what the techniques need, but not this package, and draws the same pictures.
    One of dummy weights makes them itself.

    Raises ValueError where a technique's function is in a module without source.
    """
    trusted = tuple(plan.trusted_modules)
    sources = Sources(own=("optbuilder", *trusted))
    for transform in plan.transforms:
        sources.add(transform.function.__module__, transform.function.__name__)
    dummy, video = plan.model.weights == "dummy", makes_video(plan.model)
    load = ("optbuilder.random_weights", "random_pipeline") if dummy else ("optbuilder.pipeline", "from_pretrained")
    parts = {**PARTS, load[0]: [load[1]], **({"optbuilder.video": ["still", "write_video"]} if video else {})}
    for module, names in parts.items():
        for name in names:
            sources.add(module, name)
    if plan.run.reuse_prompt_embeds:
        sources.add("optbuilder.request", "remembered")
    sources.imports |= {
        "argparse": "import argparse",
        "Path": "from pathlib import Path",
        "SimpleNamespace": "from types import SimpleNamespace",
        "VaeImageProcessor": "from diffusers.image_processor import VaeImageProcessor",
    }
    before = "    pipe.encode_prompt = remembered(pipe.encode_prompt)\n" if plan.run.reuse_prompt_embeds else ""
    main = MAIN.format(
        steps="\n".join(_steps(plan)),
        load=(MADE if dummy else LOADED).format(device=plan.load_device),
        model="" if dummy else MODEL,
        write=VIDEOS if video else PICTURES,
        before=before,
    )
    body = "\n\n\n".join([sources.text(), "\n".join(_settings(plan)), main])
    return f"{_head(plan, body)}\n\nfrom __future__ import annotations\n\n{body}"


def _head(plan: Plan, body: str) -> str:
    """What runs it (PEP 723), and what it is."""
    pins = "\n".join(f'#     "{name}=={version}",' for name, version in sorted(_needed(body).items()))
    names = " ".join(t.name for t in plan.transforms) or "no technique"
    random = f" and random weights ({plan.model.scale} size)" if plan.model.weights == "dummy" else ""
    what = textwrap.fill(f"{plan.model.pipeline_class} with {names}{random}.", WIDTH)
    written = (
        f"Written by optbuilder {optbuilder.__version__}, which it does not need. `uv run script.py` installs the rest."
    )
    python = 'requires-python = ">=3.11"'
    return f'# /// script\n# {python}\n# dependencies = [\n{pins}\n# ]\n# ///\n"""{what}\n\n{written}\n"""'


def write_script(directory: Path, plan: Plan) -> None:
    """Write script.py, complete or not there."""
    with completed(directory / "script.py") as path:
        path.write_text(script(plan), encoding="utf-8")


def _needed(body: str) -> dict[str, str]:
    """The installed version of every distribution that the script imports, and of those that any pipeline needs."""
    nodes = list(ast.walk(ast.parse(body)))
    found = {alias.name.partition(".")[0] for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    found |= {str(node.module).partition(".")[0] for node in nodes if isinstance(node, ast.ImportFrom)}
    names = {*ALWAYS, *(OTHERWISE.get(module, module.replace("_", "-")) for module in found - sys.stdlib_module_names)}
    names |= {name for word, name in UNSEEN.items() if word in body}
    return {name: version.partition("+")[0] for name in names if (version := installed_version(name))}


def _settings(plan: Plan) -> Iterator[str]:
    """What to load, and what to ask of the pipeline."""
    run = {key: value for key, value in asdict(plan.run).items() if key in RUN}
    if plan.model.weights == "dummy":
        yield f"PIPELINE = {plan.model.pipeline_class!r}"
        yield f"CONFIGS = {_literal({name: dict(config) for name, config in plan.model.configs.items()})}"
        yield f"PROMPTS = {_literal(dict(plan.model.prompts))}"
    else:
        yield f"MODEL = {source(plan.model)!r}"
    yield f"LOAD = {_literal(dict(plan.load))}"
    yield f"CALL = {_literal(dict(plan.call))}"
    if makes_video(plan.model):
        yield f"FPS = {plan.run.fps or FPS}"
    yield "RUN = SimpleNamespace("
    yield from (f"    {key}={_literal(value)}," for key, value in run.items())
    yield ")"


def _steps(plan: Plan) -> Iterator[str]:
    """One call for each technique, with the options that are not the function's own defaults."""
    for transform in plan.transforms:
        defaults = {n: p.default for n, p in inspect.signature(transform.function).parameters.items()}
        options = {k: v for k, v in transform.options.items() if not _equal(v, defaults[k])}
        inside = ", ".join(["pipe", *(f"{name}={_literal(value)}" for name, value in options.items())])
        line = f"    pipe = {transform.function.__name__}({inside})"
        if len(line) <= WIDTH:
            yield line
        else:
            yield f"    pipe = {transform.function.__name__}("
            yield "        pipe,"
            yield from (f"        {name}={_literal(value)}," for name, value in options.items())
            yield "    )"


def _equal(value: Any, default: Any) -> bool:
    """Whether an option is as the function has it anyway; a mapping of nothing but null is an empty one."""
    if isinstance(value, Mapping) and all(inner is None for inner in value.values()):
        value = {}
    return (list(value) if isinstance(value, tuple) else value) == (
        list(default) if isinstance(default, tuple) else default
    )


def _literal(value: Any) -> str:
    return pprint.pformat(value, width=WIDTH, sort_dicts=False)
