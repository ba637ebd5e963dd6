"""Grids: a process for each job, crashes that end only one, and starts that go on where an earlier one ended."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from tests.conftest import of, read


def jobs(folder):
    return {p.parent.name: read(p) for p in folder.glob("[0-9]*/metrics.json")}


def test_every_job_has_a_process_of_its_own(ob, tiny, tmp_path):
    """P94, P79: the second job's peak is its own, and the parent imports no torch."""
    done = ob("-m", *of(tiny["sdxl"]), "run.images_per_prompt=16,1", "hydra.sweep.dir=grid")
    found = jobs(tmp_path / "grid")
    peaks = [found[n]["memory"]["phases"]["run"]["rss_peak_bytes"] for n in ("0", "1")]
    assert done.returncode == 0 and done.stderr == ""
    assert [found[n]["status"] for n in ("0", "1")] == ["ok", "ok"] and peaks[1] < peaks[0]
    assert found["1"]["phases"]["import_s"] < 1.0
    assert (tmp_path / "grid" / "0" / "images" / "0015.png").exists()


def test_a_grid_leaves_a_table_of_results(ob, tiny, tmp_path):
    import csv

    words = ["quant=none,fp8_dynamic", "compile=none,regional", "compile.backend=eager", "hydra.sweep.dir=grid"]
    assert ob("-m", *of(tiny["sdxl"]), *words).returncode == 0
    with (tmp_path / "grid" / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    published = "scenario,model_cls,num_params_M,flops_M,time_plain_s,mem_plain_GB,time_compile_s,mem_compile_GB"
    assert list(rows[0])[:8] == published.split(",")
    assert [r["status"] for r in rows] == ["ok", "ok", "refused", "refused"]
    assert float(rows[0]["time_plain_s"]) > 0 and rows[0]["time_compile_s"] == "" and rows[0]["compile"] == ""
    assert float(rows[1]["time_compile_s"]) > 0 and rows[1]["fullgraph"] == "True" and rows[1]["compile"] == "regional"
    assert "compute capability 8.9" in rows[2]["reason"] and rows[2]["time_plain_s"] == ""
    assert rows[0]["model_cls"] == "UNet2DConditionModel" and float(rows[0]["weights_bytes"]) > 1e6


CRASHES = {
    "os.kill(os.getpid(), 9)": "ended by SIGKILL",
    "os.abort()": "ended by SIGABRT",
    "os._exit(3)": "exit code 3",
    "time.sleep(60)": "took longer than run.timeout_s=4.0",
}


@pytest.mark.parametrize("code", CRASHES)
def test_a_crash_is_a_failed_row_and_the_grid_goes_on(code, tiny, tmp_path):
    (tmp_path / "boom.py").write_text(
        "import os, time\n"
        "from optbuilder.technique import technique\n"
        "@technique(lossless=True, source='https://example.org')\n"
        f"def boom(pipe):\n    {code}\n    return pipe\n"
    )
    (tmp_path / "conf" / "layout").mkdir(parents=True)
    (tmp_path / "conf" / "layout" / "boom.yaml").write_text("_target_: boom.boom\n")
    words = ["trusted_modules=[boom]", "run.timeout_s=4.0", "hydra.sweep.dir=grid", "layout=boom,none"]
    extended = ["-m", f"--config-dir={tmp_path}/conf"]
    command = [sys.executable, "-m", "optbuilder", *extended, *of(tiny["sdxl"]), *words]
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
    found = jobs(tmp_path / "grid")
    assert done.returncode == 1, done.stderr
    assert found["0"]["status"] == "failed" and CRASHES[code] in found["0"]["reasons"][0]
    assert found["1"]["status"] == "ok"
    assert CRASHES[code] in done.stdout


def test_a_grid_goes_on_where_it_ended(ob, tiny, tmp_path):
    """P93: what is there stays as it is, what is missing or failed runs, and another grid is not written over it."""
    words = ["-m", *of(tiny["sdxl"]), "run.seed=1,2,3", "hydra.sweep.dir=grid"]
    assert ob(*words).returncode == 0
    grid = tmp_path / "grid"
    written = {p: p.stat().st_mtime_ns for p in grid.glob("0/images/*.png")}
    shutil.rmtree(grid / "1")
    (grid / "2" / "metrics.json").write_text((grid / "2" / "metrics.json").read_text().replace('"ok"', '"failed"', 1))
    done = ob(*words)
    assert done.returncode == 0 and done.stdout.count("skipped") == 1
    assert {n: m["status"] for n, m in jobs(grid).items()} == {"0": "ok", "1": "ok", "2": "ok"}
    assert {p: p.stat().st_mtime_ns for p in written} == written
    done = ob(*[w.replace("1,2,3", "4,5,6") for w in words])
    assert done.returncode == 2 and "holds another grid" in done.stderr and len(done.stderr.splitlines()) == 1
    assert {n: m["status"] for n, m in jobs(grid).items()} == {"0": "ok", "1": "ok", "2": "ok"}


def test_a_job_of_other_versions_is_not_written_over(ob, tiny, tmp_path):
    words = ["-m", *of(tiny["sdxl"]), "run.seed=1,2", "hydra.sweep.dir=grid"]
    assert ob(*words).returncode == 0
    path = tmp_path / "grid" / "0" / "metrics.json"
    path.write_text(path.read_text().replace(read(path)["job_key"], "0123456789ab"))
    text = path.read_text()
    done = ob(*words)
    assert "holds another job (its config or versions differ)" in done.stdout and path.read_text() == text
    assert done.stdout.count("skipped") == 1


def test_a_kill_loses_at_most_the_running_job(tiny, tmp_path):
    words = ["-m", *of(tiny["sdxl"]), "run.seed=1,2,3,4", "run.num_inference_steps=20", "hydra.sweep.dir=grid"]
    command = [sys.executable, "-m", "optbuilder", *words]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    start = subprocess.Popen(command, cwd=tmp_path, env=env, start_new_session=True, stdout=subprocess.DEVNULL)
    deadline = time.time() + 120
    while len(jobs(tmp_path / "grid")) < 2 and time.time() < deadline:
        time.sleep(0.05)
    os.killpg(start.pid, signal.SIGKILL)
    start.wait()
    before = jobs(tmp_path / "grid")
    assert 2 <= len(before) < 4 and all(m["status"] == "ok" for m in before.values())
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stdout.count("skipped") == len(before)
    assert len(jobs(tmp_path / "grid")) == 4
