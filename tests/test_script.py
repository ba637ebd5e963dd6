"""script.py: plain diffusers, readable, and the very pictures of the run, where optbuilder cannot be imported."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from optbuilder.builder import resolve
from optbuilder.pipeline import load
from optbuilder.script import script
from optbuilder.sources import Sources
from tests import pairs
from tests.conftest import ROOT, composed, of, only_run, read

RUN_ALL = """
import json, runpy, sys
import numpy as np
sys.modules["optbuilder"] = None  # whatever imports it fails
from PIL import Image
import torch
for path, output in json.loads(sys.argv[1]):
    torch._dynamo.reset()
    sys.argv = [path, "--output", output]
    runpy.run_path(path, run_name="__main__")
"""


def draws_the_same(folder: Path, lora: Path, chosen: list[list[str]], tmp_path: Path) -> None:
    """Each plan's pictures, made here and by its script in one other process, value by value."""
    import numpy as np
    from diffusers.image_processor import VaeImageProcessor
    from PIL import Image

    from optbuilder.effects import apply
    from optbuilder.runner import run
    from optbuilder.state import preserved

    made, jobs = [], []
    for number, words in enumerate(chosen):
        planned = pairs.plan(folder, words).require()
        path = tmp_path / f"{number}.py"
        path.write_text(script(planned))
        jobs.append([str(path), str(tmp_path / str(number))])
        with preserved():
            pipe, _ = apply(planned, load(planned.model, planned.load, planned.load_device))
            result = run(pipe, planned.run, call=planned.call)
        made.append(VaeImageProcessor.numpy_to_pil(np.stack([image.pixels for image in result.images])))
    command = [sys.executable, "-c", RUN_ALL, json.dumps(jobs)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    for words, pictures, (_, output) in zip(chosen, made, jobs, strict=True):
        again = [Image.open(path) for path in sorted(Path(output).glob("*.png"))]
        assert len(again) == len(pictures), words
        for one, other in zip(pictures, again, strict=True):
            assert np.array_equal(np.asarray(one), np.asarray(other)), words


def combinations(folder: Path, lora: Path, count: int, seed: int) -> list[list[str]]:
    """Random plans of two to five techniques that are not refused."""
    rng, usable, found = random.Random(seed), pairs.usable(folder, lora), []
    while len(found) < count:
        stages = rng.sample([s for s in usable if usable[s]], rng.randint(2, 5))
        words = [word for s in stages for word in pairs.words_of(s, rng.choice(usable[s]), lora)]
        if "compile=aot" not in words and not pairs.plan(folder, words).refusals:
            found.append(words)
    return found


@pytest.mark.parametrize("family", ["sdxl", "flux"])
def test_random_combinations_draw_the_same(family, tiny, lora, tmp_path):
    draws_the_same(tiny[family], lora[family], combinations(tiny[family], lora[family], 3, seed=1), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["sdxl", "flux"])
def test_many_random_combinations_draw_the_same(family, tiny, lora, tmp_path):
    draws_the_same(tiny[family], lora[family], combinations(tiny[family], lora[family], 30, seed=2), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["sdxl", "flux"])
def test_every_technique_draws_the_same(family, tiny, lora, tmp_path):
    usable = pairs.usable(tiny[family], lora[family])
    alone = [pairs.words_of(stage, name, lora[family]) for stage, names in usable.items() for name in names]
    draws_the_same(tiny[family], lora[family], alone, tmp_path)


def test_a_run_leaves_its_script(main, tiny, tmp_path):
    """Other prompts, and one embedding for each: as plain arguments of plain functions."""
    words = ["run.reuse_prompt_embeds=true", "layout=channels_last", "precision=bf16"]
    assert main(*of(tiny["sdxl"]), *words)[0] == 0
    directory = only_run(tmp_path)
    text = (directory / "script.py").read_text()
    assert "pipe = channels_last(pipe)" in text and "pipe.encode_prompt = remembered(pipe.encode_prompt)" in text
    command = [sys.executable, "script.py", "--prompt", "a", "--prompt", "b", "--output", "drawn"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(list((directory / "drawn").glob("*.png"))) == 2
    assert read(directory / "metrics.json")["status"] == "ok"


def test_every_technique_has_a_script_that_a_linter_accepts(tiny, lora, tmp_path):
    """On an H100, which has the most techniques: a script is written anywhere. No name is undefined, none is idle."""
    folder = tmp_path / "scripts"
    folder.mkdir()
    for family in ("sdxl", "flux"):
        for stage, names in pairs.options().items():
            for name in names:
                words = [*pairs.words_of(stage, name, lora[family]), "precision=bf16"][
                    : 99 if stage != "precision" else -1
                ]
                base = [word for word in of(tiny[family]) if not word.startswith("run.num_inference_steps")]
                words = [*base, *pairs.RUN, "machine=h100", "trusted_modules=[tests.kernel]", *words]
                planned = resolve(*composed(*words))
                if not planned.refusals:
                    (folder / f"{family}_{stage}_{name}.py").write_text(script(planned))
    assert len(list(folder.iterdir())) > 80
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F,E9", str(folder)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


def test_action_script_loads_nothing_and_names_what_it_needs(main, tmp_path):
    code, out, err = main("action=script", "quant=int8_dynamic", "compile=regional")
    assert code == 0 and err == "" and not list(tmp_path.iterdir())
    head = out.partition("# ///\n")[0]
    assert '#     "torchao==' in head and "peft" not in head and "import optbuilder" not in out
    compile(out, "script.py", "exec")


def test_a_name_with_two_meanings_is_an_error(tmp_path, monkeypatch):
    """Two modules may each have a `log`; what differs would be one of them in the script."""
    (tmp_path / "own_a.py").write_text(
        "import own_b\nfrom own_b import use\nSIZE = 1\ndef start():\n    return SIZE + use()\n"
    )
    (tmp_path / "own_b.py").write_text("SIZE = 2\ndef use():\n    return SIZE\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ValueError, match="'SIZE' means one thing in own_a and another in own_b"):
        Sources(own=("own_a", "own_b")).add("own_a", "start")


def test_a_local_name_is_not_taken_for_a_global_one(tmp_path, monkeypatch):
    (tmp_path / "own_c.py").write_text(
        "def size():\n    return 1\n\n\ndef start(size):\n    return [size for size in [size]]\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    sources = Sources(own=("own_c",))
    sources.add("own_c", "start")
    assert list(sources.texts) == ["start"]
