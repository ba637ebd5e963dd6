"""Faults, each of them caused: what was finished stays, nothing is half there, and one line says what to do."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import pytest

from tests.conftest import of, read
from tests.faults import files_of_at_most, read_only, small_disk, whole

LARGE = ["run.height=128", "run.width=128", "run.images_per_prompt=6"]  # pictures of some 40 KB each


def one_line(err, *words):
    assert "Traceback" not in err and len(err.strip().splitlines()) == 1, err
    assert all(word in err for word in words), err


def files(directory):
    return {f: f.read_bytes() for f in directory.rglob("*") if f.is_file()}


def failed_for_room(main, tiny, disk):
    """A run that ends well on the disk, then one that has no room for its pictures."""
    assert main(*of(tiny["sdxl"]), f"hydra.run.dir={disk}/first")[0] == 0
    before = files(disk / "first")
    code, _, err = main(*of(tiny["sdxl"]), *LARGE, f"hydra.run.dir={disk}/second")
    assert code == 1
    one_line(err, "OSError: [Errno ", "Free some space, or write elsewhere: hydra.run.dir=<folder>")
    assert files(disk / "first") == before
    if "second/metrics.json" in whole(disk):  # a disk that is full to the last byte has no room for it
        metrics = read(disk / "second" / "metrics.json")
        assert metrics["status"] == "failed" and "images" not in metrics and metrics["reasons"] == [err.strip()]
    assert not list(disk.rglob(".*.png"))


def test_a_disk_that_fills_up_while_pictures_are_written(main, tiny, tmp_path):
    with small_disk(tmp_path / "disk", kib=300) as mounted:
        if not mounted:
            pytest.skip("this system lets nobody mount a file system")
        failed_for_room(main, tiny, tmp_path / "disk")


def test_a_quota_that_pictures_exceed(main, tiny, tmp_path):
    (tmp_path / "disk").mkdir()
    with files_of_at_most(30_000):
        failed_for_room(main, tiny, tmp_path / "disk")


def test_a_disk_that_is_full_before_the_run(main, tiny, tmp_path):
    with small_disk(tmp_path / "disk", kib=16) as mounted:
        if not mounted:
            pytest.skip("this system lets nobody mount a file system")
        (tmp_path / "disk" / "file").write_bytes(b"x" * 2**14)
        code, _, err = main(*of(tiny["sdxl"]), f"hydra.run.dir={tmp_path}/disk/run")
        assert code == 1 and list((tmp_path / "disk" / "run").iterdir()) == []
    one_line(err, "No space left on device. Free some space")


def test_a_disk_that_fills_up_in_a_grid(main, tiny, tmp_path):
    words = [w for w in of(tiny["sdxl"]) if "height" not in w and "width" not in w]
    with files_of_at_most(30_000):
        code, out, err = main("-m", *words, "run.height=64", "run.width=64,256", "run.isolation=none",
                              "sweep.baseline=false", f"hydra.sweep.dir={tmp_path}/grid")  # fmt: skip
    assert code == 1 and "Traceback" not in out + err
    found = {p.parent.name: read(p)["status"] for p in (tmp_path / "grid").glob("*/metrics.json")}
    assert found == {"0": "ok", "1": "failed"} and "OSError: [Errno 27] File too large. Free some space" in out
    assert "results.csv" in whole(tmp_path / "grid")


@pytest.mark.parametrize("words", [["hydra.run.dir=closed/run"], ["-m", "run.seed=1,2", "hydra.sweep.dir=closed/grid"]])
def test_output_that_cannot_be_written_to(words, main, tiny, tmp_path):
    with read_only(tmp_path / "closed"):
        code, _, err = main(*of(tiny["sdxl"]), *words)
    assert code == 2 and list((tmp_path / "closed").iterdir()) == []
    one_line(err, "Permission denied", "closed", "Choose a folder that can be written to: hydra.run.dir=<folder>")


@pytest.mark.parametrize("where", ["file/run", "/proc/run"])
def test_places_that_can_hold_no_run(where, main, tiny, tmp_path):
    (tmp_path / "file").write_text("")
    code, _, err = main(*of(tiny["sdxl"]), f"hydra.run.dir={where}")
    assert code == 2
    one_line(err, "Choose a folder that can be written to")


JOBS = {
    "room": "full(pipe)",
    "memory": "limited(pipe)",
    "compile": "hanging(pipe)",
}
BOOM = '''
import resource, subprocess, time
from pathlib import Path
from optbuilder.technique import technique

@technique(lossless=True, source="https://example.org")
def full(pipe):
    """No file can be written from now on."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    pipe.unet.to(memory_format=__import__("torch").channels_last)
    return pipe

@technique(lossless=True, source="https://example.org")
def limited(pipe):
    """The system gives this process hardly any more memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 2**25, resource.RLIM_INFINITY))
    forward = pipe.unet.forward
    def larger(*args, **kwargs):
        __import__("torch").zeros(2**28)
        return forward(*args, **kwargs)
    pipe.unet.forward = larger
    return pipe

@technique(lossless=True, source="https://example.org")
def hanging(pipe):
    """A backend of torch.compile that never returns, and has started a process."""
    import torch
    def backend(graph, inputs):
        Path("compiler").write_text(str(subprocess.Popen(["sleep", "600"]).pid))
        time.sleep(600)
    pipe.unet.forward = torch.compile(pipe.unet.forward, backend=backend)
    return pipe
'''


def test_jobs_of_a_grid_that_run_out_of_room_memory_or_time(tiny, tmp_path):
    """Each is a failed row that says what to do, nothing of it stays in the system, and the others end well."""
    (tmp_path / "boom.py").write_text(BOOM)
    (tmp_path / "conf" / "layout").mkdir(parents=True)
    for name in ("full", "limited", "hanging"):
        (tmp_path / "conf" / "layout" / f"{name}.yaml").write_text(f"_target_: boom.{name}\n")
    words = ["trusted_modules=[boom]", "run.timeout_s=20", "sweep.baseline=false", "hydra.sweep.dir=grid",
             "layout=full,limited,hanging,none"]  # fmt: skip
    command = [sys.executable, "-m", "optbuilder", "-m", f"--config-dir={tmp_path}/conf", *of(tiny["sdxl"]), *words]
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
    found = {p.parent.name: read(p) for p in (tmp_path / "grid").glob("*/metrics.json")}
    assert done.returncode == 1 and "Traceback" not in done.stdout, done.stdout + done.stderr
    assert [found[n]["status"] for n in "0123"] == ["failed", "failed", "failed", "ok"], found
    assert "could not write its record" in found["0"]["reasons"][0] and "is the disk full?" in found["0"]["reasons"][0]
    assert "memory" in found["1"]["reasons"][0] and "Use precision=bf16" in found["1"]["reasons"][0]
    assert "took longer than run.timeout_s=20" in found["2"]["reasons"][0]
    compiler = int((tmp_path / "compiler").read_text())
    assert not Path(f"/proc/{compiler}").exists() or "Z" in Path(f"/proc/{compiler}/stat").read_text().split()[2]
    whole(tmp_path / "grid")


def test_a_full_device_says_what_takes_less(main, tiny, tmp_path, monkeypatch):
    import torch

    import optbuilder.pipeline as pipeline

    def full(model, arguments, device):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(pipeline, "load", full)
    code, _, err = main(*of(tiny["sdxl"]), "hydra.run.dir=run")
    assert code == 1 and read(tmp_path / "run" / "metrics.json")["status"] == "failed"
    one_line(err, "OutOfMemoryError: CUDA out of memory", "Use precision=bf16, quant=int8_weight_only, vae=tiling")


def cut(file, size):
    file.write_bytes(file.read_bytes()[:size])


SHARDS = "unet/x.safetensors.index.json"
WEIGHTS = "unet/diffusion_pytorch_model.safetensors"
BROKEN = {
    "weights cut short": (lambda f: cut(f / WEIGHTS, 500_000), "model.safetensors has 500000 bytes and should have"),
    "a pointer instead of weights": (lambda f: (f / WEIGHTS).write_text("version https://git-lfs.github.com/spec/v1\n"),
                                     "is no safetensors file"),
    "an empty weight file": (lambda f: (f / WEIGHTS).write_bytes(b""), "is no safetensors file"),
    "a missing shard": (lambda f: (f / SHARDS).write_text('{"weight_map": {"a": "b.safetensors"}}'),
                        "b.safetensors is missing, which x.safetensors.index.json names"),
    "a config cut short": (lambda f: cut(f / "unet/config.json", 100), "unet/config.json is not valid JSON"),
    "an index cut short": (lambda f: cut(f / "model_index.json", 100), "model_index.json is not valid JSON"),
    "no config": (lambda f: (f / "unet/config.json").unlink(), "unet has no config.json"),
    "no component": (lambda f: shutil.rmtree(f / "tokenizer"), "names tokenizer, and there is no such folder"),
}  # fmt: skip


@pytest.mark.parametrize("fault", BROKEN)
def test_a_model_that_is_not_whole_is_refused_before_it_is_loaded(fault, main, tiny, tmp_path):
    folder, (break_it, said) = shutil.copytree(tiny["sdxl"], tmp_path / "model"), BROKEN[fault]
    break_it(folder)
    code, _, err = main(*of(folder), "hydra.run.dir=run")
    assert code == 2
    one_line(err, f"model.repo_id={str(folder)!r}: ", said, "Download it again, or use another.")
    assert not (tmp_path / "run" / "images").exists()


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A Hub at this address, with an empty cache."""
    from huggingface_hub import constants

    from optbuilder.model import answers

    def at(address):
        monkeypatch.setattr(constants, "ENDPOINT", address)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        answers.cache_clear()

    yield at
    answers.cache_clear()


@pytest.fixture(params=["closed", "silent"])
def down(request, hub):
    """A Hub that is down: nothing listens there, or what listens says nothing."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if request.param == "silent":
            server.listen(16)
        hub(f"http://127.0.0.1:{server.getsockname()[1]}")
        yield


def test_a_hub_that_is_down_is_said_in_seconds(main, down):
    start = time.monotonic()
    code, _, err = main("model=custom", "model.repo_id=owner/name", "run.prompts=a")
    assert code == 2 and time.monotonic() - start < 10
    one_line(err, "does not answer, and it is not in the local cache", "Use a local diffusers folder")


def test_a_hub_that_is_down_does_not_matter_where_the_cache_has_the_model(main, down, tiny, tmp_path):
    repo, commit = tmp_path / "cache" / "models--owner--name", "a" * 40
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text(commit)
    shutil.copytree(tiny["sdxl"], repo / "snapshots" / commit)
    words = [w for w in of(tiny["sdxl"]) if "repo_id" not in w]
    assert main(*words, "model.repo_id=owner/name", "hydra.run.dir=run")[0] == 0
    assert read(tmp_path / "run" / "metrics.json")["status"] == "ok"


def test_two_grids_started_in_the_same_second_are_two(tiny, tmp_path):
    command = [
        sys.executable,
        "-m",
        "optbuilder",
        "-m",
        *of(tiny["sdxl"]),
        "quant=fp8_dynamic,fp8_weight_only",
        "device=cpu",
    ]
    words = ["sweep.baseline=false", "attention=flash"]  # refused, so that it takes no time
    started = [subprocess.Popen([*command, *words], cwd=tmp_path, stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [process.wait(timeout=120) for process in started] == [2, 2]
    grids = list(tmp_path.glob("outputs/*/*"))
    assert len(grids) == 2 and all({"0", "1", "results.csv"} <= {p.name for p in g.iterdir()} for g in grids)


def test_a_grid_has_its_directory_to_itself(main, tiny, tmp_path):
    from optbuilder.sweep import alone_in

    words = [
        "-m",
        *of(tiny["sdxl"]),
        "quant=fp8_dynamic",
        "run.seed=1,2",
        "sweep.baseline=false",
        "hydra.sweep.dir=grid",
    ]
    assert main(*words)[0] == 2
    with alone_in(tmp_path / "grid"):
        code, _, err = main(*words)
    assert code == 2
    one_line(err, "another start of this grid is at work there. Wait for it, or use another hydra.sweep.dir")


def test_a_clock_that_stands_still_names_no_directory_twice(monkeypatch):
    import optbuilder.directories as directories

    class Stopped(datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2020, 1, 1)

    monkeypatch.setattr(directories, "datetime", Stopped)
    names = {directories.run_directory("generate") for _ in range(50)}
    assert len(names) == 50 and all(name.startswith("outputs/2020-01-01/00-00-00-000_") for name in names)


def test_a_clock_set_back_hides_no_job(tmp_path, capsys, monkeypatch):
    """Jobs that end "before" the grid began are shown all the same, and no time that is left is negative."""
    from optbuilder.grid import Cell
    from optbuilder.job import failed
    from optbuilder.watch import watched

    monkeypatch.setattr(time, "time", lambda: 0.0)
    with watched([Cell("0", []), Cell("1", [])], tmp_path):
        (tmp_path / "0").mkdir()
        failed({}, tmp_path / "0", {}, "it was ended")
        os.utime(tmp_path / "0" / "metrics.json", (1, 1))
    out = capsys.readouterr().out
    assert "job 0 failed" in out and "it was ended" in out and "1 of 2" in out and "-" not in out.partition("1 of 2")[2]


def started(tiny, tmp_path, *words):
    command = [sys.executable, "-m", "optbuilder", *of(tiny["sdxl"]), *words]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, cwd=tmp_path, env=env, start_new_session=True, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip


def kill_at_moments(moments, tiny, tmp_path):
    """Runs of many pictures, each killed: what is there under its name is whole; where a record is, all of it is."""
    unfinished = 0
    for number, seconds in enumerate(moments):
        process = started(tiny, tmp_path, "run.images_per_prompt=24", f"hydra.run.dir=run{number}")
        time.sleep(seconds)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        there = whole(directory) if (directory := tmp_path / f"run{number}").exists() else []
        if "metrics.json" in there:
            metrics = read(directory / "metrics.json")
            assert metrics["status"] == "ok" and set(metrics["images"]) <= set(there) and "plan.json" in there
        unfinished += "metrics.json" not in there
    assert unfinished > 0


def test_kills_at_some_moments_of_a_run(tiny, tmp_path):
    kill_at_moments((0.5, 4.0), tiny, tmp_path)


@pytest.mark.slow
def test_kills_at_fifty_moments_of_a_run(tiny, tmp_path):
    rng = random.Random(0)
    kill_at_moments([rng.uniform(0.5, 12) for _ in range(50)], tiny, tmp_path)


def interrupt(process, after):
    time.sleep(after)
    os.killpg(process.pid, signal.SIGINT)
    start = time.monotonic()
    _, err = process.communicate(timeout=60)
    assert err in ("interrupted\n", "") and process.returncode in (130, -signal.SIGINT, 0), err
    return time.monotonic() - start


MOMENTS = {"a run": ([1.0, 6.0], []), "a grid": ([1.0, 6.0], ["-m", "run.seed=1,2,3"])}


@pytest.mark.parametrize("what", MOMENTS)
def test_ctrl_c_ends_within_seconds_and_leaves_a_readable_state(what, tiny, tmp_path):
    from optbuilder.job import recorded

    for number, moment in enumerate(MOMENTS[what][0]):
        where = f"hydra.{'sweep' if MOMENTS[what][1] else 'run'}.dir=out{number}"
        process = started(tiny, tmp_path, *MOMENTS[what][1], "run.repeats=1000", where)
        assert interrupt(process, moment) < 5
        whole(tmp_path / f"out{number}")
        for path in (tmp_path / f"out{number}").rglob("metrics.json"):
            assert (recorded(path.parent).status, recorded(path.parent).reasons) == ("failed", ["interrupted"])
