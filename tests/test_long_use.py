"""Long use: whatever a process holds stays the same from run to run."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from tests.conftest import composed, of
from tests.longuse import emptied, growth, held, slope, watch_pipelines

# Everything that hooks, compiles, caches, patches or offloads, in turn.
TURNS = [
    ["precision=bf16"], ["layout=channels_last", "attention=sdpa_math"], ["compile=regional", "compile.backend=eager"],
    ["scheduler=ddim", "fusion=qkv"], ["quant=int8_weight_only", "quant.min_parameters=100"], ["offload=group_leaf"],
    ["vae=tiling", "run.compare=baseline"], ["quant=fp8_dynamic"],
]  # fmt: skip
MIB = 2**20


def runs(count, every, turns, tiny, tmp_path, monkeypatch):
    """So many jobs in this process, each with other techniques than the one before; what is held after each `every`."""
    from optbuilder.job import generate

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.chdir(tmp_path)
    watch_pipelines(monkeypatch)
    plans = [composed(*of(tiny["sdxl"]), *words) for words in turns]
    found = []
    for number in range(count):
        folder = tmp_path / "run"
        folder.mkdir(exist_ok=True)
        outcome = generate(*plans[number % len(plans)], folder, bars=False)
        assert outcome.status in ("ok", "refused"), outcome.reasons
        emptied(folder)
        if (number + 1) % every == 0:
            found.append(held())
    return found


def test_twelve_runs_leave_nothing_behind(tiny, tmp_path, monkeypatch):
    """The first round fills caches of the libraries; after it nothing but the allocator's noise is added."""
    found = runs(12, 4, TURNS[:4], tiny, tmp_path, monkeypatch)
    assert [one.pipelines for one in found] == [0, 0, 0]
    for name in ("files", "threads", "temporary"):
        assert getattr(found[1], name) == getattr(found[2], name), (name, found)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_five_hundred_runs_hold_no_more_than_the_first(tiny, tmp_path, monkeypatch):
    """Without compiling: torch holds a quarter of a MiB and more of each pipeline that it has compiled, whatever is
    reset and collected, with plain diffusers too."""
    turns = [words for words in TURNS if not any("compile" in word for word in words)]
    found = runs(504, 28, turns, tiny, tmp_path, monkeypatch)[1:]
    grown = growth(found)
    assert all(one.pipelines == 0 for one in found)
    assert grown["files"] == grown["threads"] == grown["temporary"] == 0, found
    assert grown["rss"] < MIB, (grown, [one.rss // MIB for one in found])  # per 28 runs: 37 KiB a run


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_two_hundred_jobs_of_a_grid_hold_no_more_than_the_first(tiny, tmp_path):
    """The grid's process is watched from outside while it starts one job after the other."""
    temporary = Path(tempfile.mkdtemp(prefix="ob"))
    seeds = ",".join(map(str, range(200)))
    words = ["-m", *of(tiny["sdxl"]), f"run.seed={seeds}", "sweep.baseline=false", "hydra.sweep.dir=grid"]
    env = os.environ | {"OMP_NUM_THREADS": "1", "TMPDIR": str(temporary)}
    process = subprocess.Popen([sys.executable, "-m", "optbuilder", *words], cwd=tmp_path, env=env,
                               stdout=subprocess.DEVNULL)  # fmt: skip
    parent, seen = psutil.Process(process.pid), {}
    while process.poll() is None:
        done = len(list((tmp_path / "grid").glob("*/metrics.json")))
        if done and done % 10 == 0 and done < 200:
            files = sum(len(names) for _, _, names in os.walk(temporary))
            seen[done] = (parent.memory_info().rss, parent.num_fds(), parent.num_threads(), files)
        time.sleep(0.1)
    assert process.returncode == 0 and len(list((tmp_path / "grid").glob("*/metrics.json"))) == 200
    columns = list(zip(*(seen[done] for done in sorted(seen)), strict=True))
    rss, files, threads, left = (slope(list(column)) for column in columns)
    assert files == threads == left == 0 and rss < MIB, seen  # per 10 jobs: an outcome is kept of each to the end
    assert not [p for p in psutil.process_iter() if p.ppid() == process.pid]
