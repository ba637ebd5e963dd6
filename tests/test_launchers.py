"""Grids on other launchers than Hydra's own: the same results, the same report, and they go on where they ended."""

from __future__ import annotations

import csv

import pytest

from tests.conftest import of, read

LAUNCHERS = {
    "joblib_local": [],
    "submitit_local": [],
    "ray_gpu": ["hydra.launcher.ray.remote.num_gpus=0", "+hydra.launcher.ray.init.num_cpus=2"],
}


def rows(folder):
    with (folder / "results.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    "launcher", ["joblib_local", "submitit_local", pytest.param("ray_gpu", marks=pytest.mark.slow)]
)
def test_a_grid_runs_and_goes_on(launcher, ob, tiny, tmp_path):
    words = ["-m", *of(tiny["sdxl"]), f"hydra/launcher={launcher}", *LAUNCHERS[launcher], "run.repeats=2",
             "layout=none,channels_last", "quant=none,fp8_dynamic", "hydra.sweep.dir=grid"]  # fmt: skip
    done = ob(*words)
    grid = tmp_path / "grid"
    assert done.returncode == 0 and "Warning" not in done.stderr, done.stderr
    assert [(r["job"], r["status"]) for r in rows(grid)] == [
        ("0", "ok"), ("1", "refused"), ("2", "ok"), ("3", "refused"), ("0_again", "ok")]  # fmt: skip
    assert rows(grid)[2]["baseline"] == "0" and float(rows(grid)[2]["speedup"]) > 0
    assert (grid / "report.html").stat().st_size > 1e6
    (grid / "2" / "metrics.json").unlink()
    done = ob(*words)
    assert done.returncode == 0 and "1 to run, 3 there already" in done.stdout, done.stderr
    assert read(grid / "2" / "metrics.json")["status"] == "ok"


def test_jobs_of_two_grids_do_not_time_themselves_at_once(tmp_path, monkeypatch):
    """The second waits for the device, and gets it when the first one's process is gone."""
    import multiprocessing
    import tempfile
    import time

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    process = multiprocessing.get_context("fork").Process(target=_hold, args=(1.0,))
    process.start()
    while not list(tmp_path.glob("optbuilder-*.lock")):
        time.sleep(0.01)
    start = time.monotonic()
    from optbuilder.isolation import alone_on

    with alone_on("cuda:1"):
        assert time.monotonic() - start < 0.8
    time.sleep(0.1)
    with alone_on("cuda:0"):
        assert time.monotonic() - start > 0.5
    process.join()


def _hold(seconds):
    import os
    import time

    from optbuilder.isolation import alone_on

    with alone_on("cuda:0"):
        time.sleep(seconds)
        os._exit(0)


@pytest.mark.parametrize("name", ["joblib_local", "ray_gpu", "slurm_gpu"])
def test_every_preset_is_for_a_launcher_that_is_there(name):
    """Hydra merges it into the plugin's own node, which refuses keys that it does not know."""
    import hydra
    from hydra.core.global_hydra import GlobalHydra

    from tests.conftest import CONF

    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        config = hydra.compose("config", overrides=[f"hydra/launcher={name}"], return_hydra_config=True)
    assert config.hydra.launcher._target_.startswith("hydra_plugins.")
    launcher = config.hydra.launcher
    gpus = {launcher.get("gpus_per_node"), launcher.get("ray", {}).get("remote", {}).get("num_gpus")}
    assert ("gpu" in name) == (1 in gpus)
