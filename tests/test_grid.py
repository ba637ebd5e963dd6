"""Grids: a process for each job, crashes that end only one, and starts that go on where an earlier one ended."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
from pyarrow import parquet

from tests.conftest import of, read


def jobs(folder):
    return {p.parent.name: read(p) for p in folder.glob("*/metrics.json")}


def test_every_job_has_a_process_of_its_own(ob, tiny, tmp_path):
    """P94, P79: the second job's peak is its own, and the parent imports no torch."""
    done = ob("-m", *of(tiny["sdxl"]), "run.images_per_prompt=16,1", "sweep.baseline=false", "hydra.sweep.dir=grid")
    found = jobs(tmp_path / "grid")
    peaks = [found[n]["memory"]["phases"]["run"]["rss_peak_bytes"] for n in ("0", "1")]
    assert done.returncode == 0 and done.stderr == ""
    assert [found[n]["status"] for n in ("0", "1")] == ["ok", "ok"] and peaks[1] < peaks[0]
    assert found["1"]["phases"]["import_s"] < 1.0
    assert (tmp_path / "grid" / "0" / "images" / "0015.png").exists()


def test_a_grid_leaves_a_table_of_results(ob, tiny, tmp_path):
    import csv

    words = ["quant=none,fp8_dynamic", "compile=none,regional", "compile.backend=eager", "hydra.sweep.dir=grid"]
    assert ob("-m", *of(tiny["sdxl"]), "run.repeats=2", *words).returncode == 0
    table = parquet.read_table(tmp_path / "grid" / "results.parquet").to_pydict()
    assert table["status"][0] == "ok" and table["time_plain_s"][0] > 0 and table["time_plain_s"][1] is None
    with (tmp_path / "grid" / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    published = "scenario,model_cls,num_params_M,flops_M,time_plain_s,mem_plain_GB,time_compile_s,mem_compile_GB"
    assert list(rows[0])[:8] == published.split(",")
    assert [r["job"] for r in rows] == ["0", "1", "2", "3", "0_again"]
    assert [r["status"] for r in rows] == ["ok", "ok", "refused", "refused", "ok"]
    assert rows[0]["speedup"] == "" and rows[1]["baseline"] == "0" and rows[4]["psnr_min"] == "inf"
    assert float(rows[1]["speedup_low"]) <= float(rows[1]["speedup"]) <= float(rows[1]["speedup_high"])
    assert float(rows[1]["memory_ratio"]) > 0
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
    words = [
        "trusted_modules=[boom]",
        "run.timeout_s=4.0",
        "sweep.baseline=false",
        "hydra.sweep.dir=grid",
        "layout=boom,none",
    ]
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
    words = ["-m", *of(tiny["sdxl"]), "run.seed=1,2,3", "sweep.baseline=false", "hydra.sweep.dir=grid"]
    assert ob(*words).returncode == 0
    grid = tmp_path / "grid"
    written = {p: p.stat().st_mtime_ns for p in grid.glob("0/images/*.png")}
    shutil.rmtree(grid / "1")
    (grid / "2" / "metrics.json").write_text((grid / "2" / "metrics.json").read_text().replace('"ok"', '"failed"', 1))
    done = ob(*words)
    assert done.returncode == 0 and "2 to run, 1 there already" in done.stdout
    assert {n: m["status"] for n, m in jobs(grid).items()} == {"0": "ok", "1": "ok", "2": "ok"}
    assert {p: p.stat().st_mtime_ns for p in written} == written
    done = ob(*[w.replace("1,2,3", "4,5,6") for w in words])
    assert done.returncode == 2 and "holds another grid" in done.stderr and len(done.stderr.splitlines()) == 1
    assert {n: m["status"] for n, m in jobs(grid).items()} == {"0": "ok", "1": "ok", "2": "ok"}


def test_a_job_of_other_versions_is_not_written_over(ob, tiny, tmp_path):
    words = ["-m", *of(tiny["sdxl"]), "run.seed=1,2", "sweep.baseline=false", "hydra.sweep.dir=grid"]
    assert ob(*words).returncode == 0
    path = tmp_path / "grid" / "0" / "metrics.json"
    path.write_text(path.read_text().replace(read(path)["job_key"], "0123456789ab"))
    text = path.read_text()
    done = ob(*words)
    assert "holds another job (its config or versions differ)" in done.stderr and path.read_text() == text
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1


def test_equal_cells_run_once_and_say_so(ob, tiny, tmp_path):
    """run.seed=0 and the seed that the config has anyway come to the same plan; so do a word and its default."""
    done = ob("-m", *of(tiny["sdxl"]), "run.warmup=0", "compile=none,regional", "compile.backend=eager,aot_eager",
              "hydra.sweep.dir=grid")  # fmt: skip
    found = jobs(tmp_path / "grid")
    assert done.returncode == 0, done.stderr
    assert {n: m["status"] for n, m in found.items()} == {
        "0": "ok",
        "1": "skipped",
        "2": "ok",
        "3": "ok",
        "0_again": "ok",
    }
    assert found["1"]["reasons"] == ["does the same as job 0"] and not (tmp_path / "grid" / "1" / "images").exists()
    assert "4 jobs, 3 to run, 1 equal" in done.stdout and "job 1: does the same as job 0" in done.stdout


def test_a_grid_without_its_baseline_gets_one(ob, tiny, tmp_path):
    done = ob("-m", *of(tiny["sdxl"]), "layout=channels_last", "run.seed=1,2", "hydra.sweep.dir=grid")
    found = jobs(tmp_path / "grid")
    assert done.returncode == 0, done.stderr
    assert set(found) == {"0", "1", "baseline_0", "baseline_1", "baseline_0_again", "baseline_1_again"}
    compared = {name: m["quality"] and m["quality"]["against"] for name, m in found.items()}
    folder = str(tmp_path / "grid")
    assert compared["1"] == f"{folder}/baseline_1" == compared["baseline_1_again"] and compared["baseline_1"] is None
    assert found["0"]["quality"]["speed"]["speedup"] > 0


def test_a_ladder_adds_one_word_to_those_before(ob, tiny, tmp_path):
    """A refused rung is left out of those that follow."""
    ladder = "sweep.ladder=['layout=channels_last','quant=fp8_dynamic','fusion=qkv']"
    done = ob("-m", *of(tiny["sdxl"]), ladder, "hydra.sweep.dir=grid")
    assert done.returncode == 0, done.stderr
    plans = {p.parent.name: read(p)["transforms"] for p in (tmp_path / "grid").glob("[0-9]/plan.json")}
    words = {n: [f"{t['stage']}={t['option']}" for t in found] for n, found in sorted(plans.items())}
    assert words["0"] == ["precision=fp32"] and words["1"] == ["precision=fp32", "layout=channels_last"]
    assert words["3"] == ["precision=fp32", "fusion=qkv", "layout=channels_last"]
    assert {n: m["status"] for n, m in jobs(tmp_path / "grid").items()}["2"] == "refused"


@pytest.mark.parametrize("model", ["sdxl", pytest.param("flux", marks=pytest.mark.slow)])
def test_the_ladders_that_come_along(model, ob, tmp_path):
    """In a shortened form: few steps, graphs without a compiler, a cache that must skip something in them."""
    short = ["run.num_inference_steps=4", "run.warmup=0", "run.repeats=1", "++compile.backend=eager"]
    done = ob(f"experiment=ladder_{model}", *short, "++cache.threshold=1", "hydra.sweep.dir=grid")
    assert done.returncode == 0, done.stdout + done.stderr
    plans = {p.parent.name: read(p)["transforms"] for p in (tmp_path / "grid").glob("[0-9]/plan.json")}
    rungs = [len(found) for _, found in sorted(plans.items())]
    assert rungs == [1, 1, 2, 3, 4, 5, 6, 7][: len(rungs)] and len(rungs) == (7 if model == "sdxl" else 8)
    assert {m["status"] for m in jobs(tmp_path / "grid").values()} == {"ok"}


def test_the_plan_of_a_grid_is_that_of_each_of_its_jobs(main, tiny, tmp_path):
    """Nothing is run or written; what is refused, or the same as another, says so."""
    words = ["precision=fp32,bf16", "layout=none,channels_last", "parallel=none,ulysses"]
    code, out, err = main("-m", *of(tiny["sdxl"]), "action=plan", *words)
    assert (code, err) == (0, "") and not list(tmp_path.iterdir())
    assert len(re.findall(r"^job \d+: .*layout=channels_last parallel=none$", out, re.M)) == 2
    assert out.count("│ ok ") == 4 and out.count("│ refused") == 4 and "job 1, 3, 5, 7: parallel=ulysses: " in out
    code, out, _ = main(*of(tiny["sdxl"]), "-m", "action=plan", "sweep.ladder=['precision=bf16','cache=none']")
    assert code == 0 and out.count("│ skipped") == 1 and "job 2: does the same as job 1" in out


RETRIES = {"none": 0, "failed": 1, "refused": 2, "all": 3}


@pytest.mark.parametrize(
    "retry", ["failed", "all", *(pytest.param(retry, marks=pytest.mark.slow) for retry in ("none", "refused"))]
)
def test_what_runs_again_is_said(retry, ob, tiny, tmp_path):
    """Records of a failure and of a refusal that does not hold any more, and one of a job that went well."""
    words = ["-m", *of(tiny["sdxl"]), "run.seed=1,2,3", "sweep.baseline=false", "hydra.sweep.dir=grid"]
    assert ob(*words).returncode == 0
    for name, status in {"1": "failed", "2": "refused"}.items():
        path = tmp_path / "grid" / name / "metrics.json"
        path.write_text(path.read_text().replace('"ok"', f'"{status}"', 1))
    done = ob(*words, f"sweep.retry={retry}")
    assert f"{RETRIES[retry]} to run" in done.stdout, done.stdout
    assert [m["status"] for _, m in sorted(jobs(tmp_path / "grid").items())].count("ok") == min(3, 1 + RETRIES[retry])


@pytest.mark.parametrize("words", [["sweep.retry=always"], ["sweep.baselin=false"], ["sweep.baseline=maybe"]])
def test_a_wrong_word_about_the_grid_is_one_line(words, ob, tiny):
    done = ob("-m", *of(tiny["sdxl"]), "run.seed=1,2", *words)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1 and words[0].partition("=")[0] in done.stderr


def test_a_kill_loses_at_most_the_running_job(tiny, tmp_path):
    words = [
        "-m",
        *of(tiny["sdxl"]),
        "run.seed=1,2,3,4",
        "run.num_inference_steps=20",
        "sweep.baseline=false",
        "hydra.sweep.dir=grid",
    ]
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
    assert done.returncode == 0 and f"{len(before)} there already" in done.stdout
    assert len(jobs(tmp_path / "grid")) == 4


@pytest.mark.slow
def test_kills_at_random_moments_lose_at_most_the_running_job(tiny, tmp_path):
    """P93: fifty starts of a grid, each killed: what one finished is never run again, and nothing is half there."""
    rng = random.Random(0)
    words = ["-m", *of(tiny["sdxl"]), f"run.seed={','.join(map(str, range(1, 13)))}", "hydra.sweep.dir=grid"]
    command = [sys.executable, "-m", "optbuilder", *words, "sweep.baseline=false"]
    env, grid, finished = {**os.environ, "OMP_NUM_THREADS": "1"}, tmp_path / "grid", {}
    for _ in range(50):
        start = subprocess.Popen(command, cwd=tmp_path, env=env, start_new_session=True, stdout=subprocess.DEVNULL)
        time.sleep(rng.uniform(0.2, 12))
        os.killpg(start.pid, signal.SIGKILL)
        start.wait()
        written = {path: path.stat().st_mtime_ns for path in grid.glob("*/metrics.json")}
        assert finished.items() <= written.items()
        assert all(m["status"] == "ok" for m in jobs(grid).values())
        finished = written
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert (
        len(jobs(grid)) == 12
        and finished.items() <= {p: p.stat().st_mtime_ns for p in grid.glob("*/metrics.json")}.items()
    )
