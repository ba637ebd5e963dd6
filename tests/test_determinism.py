"""The same config gives the same pictures, bit for bit, in any process on the same machine with as many threads."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest

from tests.conftest import of

ALONE = 1e-5  # of the range 0..1: how far a picture of a batch may be from the same one alone (the README says so)


def pictures(folder):
    """The digest of each picture's pixels; PNG text names the job, so that files of equal pixels are equal too."""
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted((folder / "images").glob("*.png"))}


def processes(count, words, tmp_path):
    """The pictures of the same config in so many fresh processes, which share neither hash seed nor addresses."""
    found = []
    for number in range(count):
        command = [sys.executable, "-m", "optbuilder", *words, f"hydra.run.dir=run{number}"]
        env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": str(number)}
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        found.append(pictures(tmp_path / f"run{number}"))
    return found


COMPILED = ["quant=int8_dynamic", "quant.min_parameters=100", "compile=regional"]
MANY = ["run.images_per_prompt=2", "run.seed=3", "precision=bf16"]


@pytest.mark.parametrize("family", ["sdxl", pytest.param("flux", marks=pytest.mark.slow)])
def test_fresh_processes_give_the_same_pictures(family, tiny, tmp_path):
    first, second = processes(2, [*of(tiny[family]), *MANY], tmp_path)
    assert first == second and len(set(first.values())) == 2


@pytest.mark.slow
@pytest.mark.parametrize("words", [[], COMPILED], ids=["bf16", "compiled"])
@pytest.mark.parametrize("family", ["sdxl", "flux"])
def test_twenty_fresh_processes_give_the_same_pictures(family, words, tiny, tmp_path):
    found = processes(20, [*of(tiny[family]), *MANY, *words], tmp_path)
    assert len(found[0]) == 2 and all(each == found[0] for each in found)


@pytest.mark.parametrize("family", ["sdxl", "flux"])
def test_a_picture_of_a_batch_is_the_one_with_its_seed_alone(family, tiny):
    """Of prompts in one call and of pictures per prompt: kernels round by the batch's size, and no more than that."""
    from optbuilder.runner import run
    from optbuilder.state import preserved
    from tests.test_effects import built

    with preserved():
        plan, pipe, _ = built(tiny[family])
        plan.run.prompts, plan.run.batch_size, plan.run.images_per_prompt, plan.run.seed = ["a", "b"], 2, 2, 5
        batch = run(pipe, plan.run, call=plan.call).images
        alone = []
        for image in batch:
            plan.run.prompts, plan.run.batch_size, plan.run.images_per_prompt = [image.prompt], 1, 1
            plan.run.seed = image.seed
            alone += run(pipe, plan.run, call=plan.call).images
    assert [(i.prompt, i.seed) for i in batch] == [("a", 5), ("a", 6), ("b", 7), ("b", 8)]
    off = [float(np.abs(a.pixels - b.pixels).max()) for a, b in zip(batch, alone, strict=True)]
    assert max(off) < ALONE, off
    assert np.abs(batch[0].pixels - batch[1].pixels).max() > 100 * ALONE
