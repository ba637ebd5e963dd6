"""Context parallelism with two real processes, where the installed versions can."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT, of

# diffusers divides by torch.accelerator.device_count(), which is 0 on a CPU: two are claimed, and gloo does the rest.
SCRIPT = """
import sys
import numpy as np
import torch

torch.accelerator.device_count = lambda: 2
from optbuilder.builder import resolve
from optbuilder.pipeline import load
from optbuilder.runner import run
from optbuilder.state import preserved
from optbuilder.transforms.parallel import context_parallel
from tests.conftest import composed

plan = resolve(*composed(*sys.argv[3:], "device=cpu")).require()
with preserved():
    pipe = load(plan.model, plan.load)
    alone = run(pipe, plan.run, call=plan.call).images[0].pixels
    torch.distributed.init_process_group("gloo")
    shared = run(context_parallel(pipe, kind=sys.argv[1]), plan.run, call=plan.call).images[0].pixels
    assert torch.distributed.get_world_size() == 2
    np.save(f"{sys.argv[2]}/{torch.distributed.get_rank()}.npy", np.abs(alone - shared).max())
assert not torch.distributed.is_initialized()
"""


@pytest.mark.parametrize("kind", ["ulysses"])
def test_two_processes_draw_the_picture_of_one(kind, tiny, tmp_path):
    import numpy as np

    (tmp_path / "shared.py").write_text(SCRIPT)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "29517"]
    command = [*torchrun, str(tmp_path / "shared.py"), kind, str(tmp_path), *of(tiny["flux"])]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert [float(np.load(tmp_path / f"{rank}.npy")) for rank in (0, 1)] == pytest.approx([0, 0], abs=1e-4)
