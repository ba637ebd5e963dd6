"""The whole path through the command line: run directories, statuses, grids, and what is left behind."""

from __future__ import annotations

import re
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from tests.conftest import ROOT, of, only_run, read

EAGER = ["compile=regional", "compile.backend=eager"]


def test_a_run_directory_holds_everything(main, tiny, tmp_path):
    code, out, err = main(*of(tiny["sdxl"]), "precision=bf16", *EAGER, "run.seed=3", "run.images_per_prompt=2")
    directory = only_run(tmp_path)
    metrics, plan = read(directory / "metrics.json"), read(directory / "plan.json")
    assert code == 0 and err == ""
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d/\d\d-\d\d-\d\d-\d{3}_[0-9a-f]{6}", str(directory.relative_to(tmp_path / "outputs"))
    )
    assert {p.name for p in directory.iterdir()} >= {".hydra", "plan.json", "metrics.json", "images", "run.log"} - {
        "run.log"
    }
    assert metrics["status"] == "ok" and metrics["schema_version"] == 1 and metrics["job_key"] == plan["job_key"]
    assert [t["option"] for t in plan["transforms"]] == ["bf16", "regional"]
    assert all(t["effect"]["changes"] and t["why_here"] for t in plan["transforms"])
    assert plan["refusals"] == []
    picture = Image.open(directory / "images" / "0001.png")
    assert picture.size == (64, 64)
    assert picture.text == {"prompt": "a red circle", "seed": "4", "job_key": metrics["job_key"]}
    assert metrics["images"] == ["images/0000.png", "images/0001.png"]
    for word in (
        "ok",
        "precision=bf16, compile=regional",
        "latency",
        "peak memory",
        str(directory.relative_to(tmp_path)),
    ):
        assert word in out


def test_metrics_are_those_of_the_run(main, tiny, tmp_path):
    main(*of(tiny["flux"]), *EAGER, "run.repeats=3", "run.prompts=[a,b]", "quant=int8_weight_only")
    metrics = read(only_run(tmp_path) / "metrics.json")
    phases, latency, memory, counters = (metrics[key] for key in ("phases", "latency", "memory", "counters"))
    assert latency["call_s"]["n"] == 6 == len(latency["call_s"]["samples"]) == len(latency["calls"])
    assert latency["step_s"]["n"] == 6 * 2
    assert latency["call_s"]["min"] <= latency["call_s"]["median"] <= latency["call_s"]["p90"]
    assert phases["compile_s"] == pytest.approx(phases["first_call_s"] - latency["call_s"]["median"])
    assert phases["load_s"] > 0 and set(phases["transforms_s"]) == {
        "precision=fp32",
        "quant=int8_weight_only",
        "compile=regional",
    }
    assert set(memory["phases"]) == {"load", "warmup", "run"}
    assert all(phase["rss_peak_bytes"] > 1e8 for phase in memory["phases"].values())
    assert counters["graphs"] == 3 and counters["graphs_in_timed_calls"] == 0 and counters["graph_breaks"] == {}
    assert sum(counters["attention_kernels"].values()) > 0
    assert metrics["environment"]["versions"]["torch"] and metrics["environment"]["threads"] >= 1
    changes = {t["stage"]: t["effect"]["changes"] for t in read(only_run(tmp_path) / "plan.json")["transforms"]}
    before, after = changes["quant"]["transformer.bytes"]
    assert after["float32"] < before["float32"] * 0.7
    assert memory["weights_bytes"]["transformer"] == after


def test_what_a_run_left_reproduces_it(main, tiny, tmp_path):
    """The same config gives the same job key and the same pictures; another config gives another key."""
    for words in (["run.seed=1"], ["run.seed=1"], ["run.seed=2"]):
        main(*of(tiny["sdxl"]), *words)
    runs = [p.parent for p in sorted(tmp_path.glob("outputs/*/*/metrics.json"))]
    keys = [read(run / "metrics.json")["job_key"] for run in runs]
    pixels = [np.asarray(Image.open(run / "images" / "0000.png")) for run in runs]
    assert keys[0] == keys[1] != keys[2]
    assert np.array_equal(pixels[0], pixels[1]) and not np.array_equal(pixels[0], pixels[2])


def test_a_grid_is_a_job_per_combination_and_refused_cells_are_rows(main, tiny, tmp_path):
    grid = ["precision=fp32,bf16", "compile=none,regional", "quant=none,fp8_dynamic", "compile.backend=eager"]
    code, out, err = main("-m", *of(tiny["sdxl"]), *grid, "sweep.baseline=false")
    found = sorted(tmp_path.glob("outputs/*/*/*/metrics.json"), key=lambda p: int(p.parent.name))
    statuses = [read(path)["status"] for path in found]
    assert code == 0 and len(found) == 8
    assert statuses == ["ok", "refused"] * 4
    assert "Traceback" not in out + err
    assert out.count("quant=fp8_dynamic: float8 matmuls need compute capability 8.9") == 1
    keys = {read(path)["job_key"] for path in found}
    assert len(keys) == 8


def test_a_failing_job_of_a_grid_is_recorded_and_the_others_run(main, tiny, tmp_path, monkeypatch):
    """P90: every job has its record, the exit code is not 0, and the log has the traceback."""
    import optbuilder.pipeline as pipeline

    load = pipeline.load

    def fail(model, arguments, device):
        if arguments["dtype"] == "bfloat16":
            raise RuntimeError("out of\nmemory")
        return load(model, arguments, device)

    monkeypatch.setattr(pipeline, "load", fail)
    code, out, _ = main("-m", *of(tiny["sdxl"]), "precision=bf16,fp32", "run.isolation=none", "sweep.baseline=false")
    found = sorted(tmp_path.glob("outputs/*/*/*/metrics.json"))
    metrics = [read(path) for path in found]
    assert code == 1
    assert [m["status"] for m in metrics] == ["failed", "ok"]
    assert metrics[0]["reasons"] == ["RuntimeError: out of memory"] and "job 0: RuntimeError: out of memory" in out
    assert "Traceback" in (found[0].parent / "run.log").read_text()


def test_black_pictures_are_not_ok(main, tiny, tmp_path):
    import torch
    from diffusers import DiffusionPipeline

    pipe = DiffusionPipeline.from_pretrained(tiny["sdxl"])
    with torch.no_grad():
        pipe.vae.decoder.conv_out.weight.fill_(float("nan"))
    pipe.save_pretrained(tmp_path / "broken")
    code, out, err = main(*of(tmp_path / "broken"))
    metrics = read(only_run(tmp_path) / "metrics.json")
    assert code == 1 and metrics["status"] == "invalid_output" and "invalid_output" in out
    assert "has values that are not finite" in err


def test_an_attention_kernel_that_was_not_called_is_degraded(main, tiny, tmp_path, monkeypatch):
    import optbuilder.runner as runner

    monkeypatch.setattr(runner, "attention_kernels", lambda call: {"aten::_scaled_dot_product_attention_math": 4})
    code, _, err = main(*of(tiny["sdxl"]), "attention=sdpa_flash")
    assert code == 1 and read(only_run(tmp_path) / "metrics.json")["status"] == "degraded"
    assert "attention=sdpa_flash: no flash kernel was called" in err


def test_a_run_never_writes_into_anothers_directory(main, tiny, tmp_path):
    """P91"""
    where = f"hydra.run.dir={tmp_path}/mine"
    assert main(*of(tiny["sdxl"]), where)[0] == 0
    before = {p: p.read_bytes() for p in (tmp_path / "mine").rglob("*") if p.is_file()}
    code, _, err = main(*of(tiny["sdxl"]), "run.seed=9", where)
    assert code == 2 and "already exists" in err and len(err.strip().splitlines()) == 1
    assert {p: p.read_bytes() for p in (tmp_path / "mine").rglob("*") if p.is_file()} == before
    code, _, err = main("-m", *of(tiny["sdxl"]), "run.seed=9", f"hydra.sweep.dir={tmp_path}/mine")
    assert code == 2 and "already exists" in err


def test_starts_at_the_same_moment_get_directories_of_their_own(tiny, tmp_path):
    """P91"""
    command = [sys.executable, "-m", "optbuilder", *of(tiny["sdxl"]), "quant=fp8_dynamic"]
    started = [subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL) for _ in range(4)]
    assert [process.wait(timeout=120) for process in started] == [2] * 4
    assert len(list(tmp_path.glob("outputs/*/*/metrics.json"))) == 4


def test_files_are_complete_or_not_there(tmp_path):
    from optbuilder.record import write_json

    class Unprintable:
        def __str__(self):
            raise RuntimeError("no text")

    write_json(tmp_path / "a.json", {"x": 1})
    with pytest.raises(RuntimeError):
        write_json(tmp_path / "a.json", {"x": Unprintable()})
    assert read(tmp_path / "a.json") == {"x": 1} and [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_plan_and_options_leave_nothing_behind(main, tiny, tmp_path):
    code, out, err = main("action=plan", *of(tiny["flux"]), "precision=bf16", "compile=full")
    assert (code, err) == (0, "") and "1. precision=bf16  [lossy]" in out and "here: first, since" in out
    assert main("action=options", *of(tiny["flux"]))[0] == 0
    assert list(tmp_path.iterdir()) == []


def test_help_names_every_option(main):
    code, out, _ = main("--help")
    assert code == 0
    for path in (ROOT / "conf").glob("*/*.yaml"):
        assert re.search(rf"^  {path.stem} +\S", out, re.M) or path.stem in ("none", "default", "here"), path.stem


def test_output_off_a_terminal_has_no_bars(ob, tiny):
    done = ob(*of(tiny["sdxl"]), "precision=bf16")
    assert done.returncode == 0 and done.stderr == ""
    assert "\r" not in done.stdout and "\x1b" not in done.stdout


def test_a_true_inductor_run(ob, tiny, tmp_path):
    """The owner's command, with generated code: compiled blocks give the picture of the same run uncompiled."""
    words = [*of(tiny["flux"]), "precision=fp32"]
    assert ob(*words, "hydra.run.dir=plain").returncode == 0
    done = ob(*words, "compile=regional", "compile.inductor.epilogue_fusion=false", "hydra.run.dir=compiled")
    assert done.returncode == 0, done.stderr
    plain, compiled = (
        np.asarray(Image.open(tmp_path / d / "images" / "0000.png"), dtype=int) for d in ("plain", "compiled")
    )
    metrics = read(tmp_path / "compiled" / "metrics.json")
    assert np.abs(plain - compiled).max() <= 2
    assert metrics["counters"]["graphs"] == 3 and metrics["phases"]["compile_s"] > 1
    assert metrics["environment"]["versions"] == read(tmp_path / "plain" / "metrics.json")["environment"]["versions"]


def test_a_run_beside_its_baseline(main, tiny, tmp_path):
    code, out, _ = main(*of(tiny["sdxl"]), "layout=channels_last", "run.compare=baseline", "run.repeats=3")
    quality = read(only_run(tmp_path) / "metrics.json")["quality"]
    assert code == 0 and quality["against"] == "baseline" and float(quality["psnr_min"]) > 60
    assert quality["noise_floor"]["second_run"]["psnr_min"] == "inf" and quality["below_floor"] is False
    assert 60 < float(quality["noise_floor"]["other_rounding"]["psnr_min"]) < 200 and quality["lossless_declared"]
    assert quality["speed"]["interval"][0] <= quality["speed"]["speedup"] <= quality["speed"]["interval"][1]
    assert len(quality["images"]) == 1 and quality["images"][0]["seed"] == 0
    assert "quality" in out and "speed-up" in out


def test_a_lossless_technique_that_is_not_is_said_to(main, tiny, tmp_path, monkeypatch):
    import optbuilder.transforms.layout as layout

    real = layout.modules_named

    def and_more(pipe, names):
        next(pipe.unet.parameters()).data.mul_(1.5)
        return real(pipe, names)

    monkeypatch.setattr(layout, "modules_named", and_more)
    _, out, _ = main(*of(tiny["sdxl"]), "layout=channels_last", "run.compare=baseline")
    quality = read(only_run(tmp_path) / "metrics.json")["quality"]
    assert quality["below_floor"] and quality["lossless_declared"]
    assert "declared lossless, but below the noise floor" in out


def test_equal_runs_have_equal_pictures(main, tiny, tmp_path):
    """The baseline beside itself, and a run beside the directory of the same run."""
    main(*of(tiny["flux"]), "run.compare=baseline", "hydra.run.dir=one")
    assert read(tmp_path / "one" / "metrics.json")["quality"]["psnr_min"] == "inf"
    main(*of(tiny["flux"]), f"run.compare={tmp_path}/one", "hydra.run.dir=two")
    quality = read(tmp_path / "two" / "metrics.json")["quality"]
    assert float(quality["psnr_min"]) > 50 and quality["against"] == str(tmp_path / "one")  # PNGs round to 8 bits
    code, _, err = main(*of(tiny["flux"]), "run.compare=nowhere")
    assert code == 2 and "it is no run directory. Use baseline" in err


def test_a_profile_is_a_trace_and_a_table(main, tiny, tmp_path):
    import gzip
    import json

    _, out, _ = main(*of(tiny["sdxl"]), "run.profile=true")
    trace = json.loads(gzip.decompress((only_run(tmp_path) / "trace.json.gz").read_bytes()))
    assert any("conv" in str(event.get("name")) for event in trace["traceEvents"])
    assert "aten::" in out and "Self CPU" in out


def test_the_environment_is_recorded_without_secrets(main, tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("TORCH_SHOW_CPP_STACKTRACES", "0")
    main(*of(tiny["sdxl"]))
    found = read(only_run(tmp_path) / "metrics.json")["environment"]
    assert found["variables"]["TORCH_SHOW_CPP_STACKTRACES"] == "0" and "HF_TOKEN" not in found["variables"]
    assert re.fullmatch("[0-9a-f]{40}", found["git"]["commit"]) and isinstance(found["git"]["dirty"], bool)
    assert found["gpu"] is None and found["cpu"] and found["cores"] >= 1
    assert "hf_secret" not in "".join(
        p.read_text() for p in only_run(tmp_path).rglob("*") if p.suffix in (".json", ".log", ".yaml")
    )


def test_energy_is_measured_where_the_machine_tells_and_absent_elsewhere(tmp_path, monkeypatch):
    import optbuilder.energy as energy
    from optbuilder.machine import Machine

    monkeypatch.setattr(energy, "RAPL", tmp_path)
    assert energy.joules(Machine()) == {} and energy.used({}, {}, 3) is None
    for package, value in {"intel-rapl:0": 5_000_000, "intel-rapl:1": 7_000_000}.items():
        (tmp_path / package).mkdir()
        (tmp_path / package / "energy_uj").write_text(str(value))
    before = energy.joules(Machine())
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("11000000")
    assert before == {"cpu": 12.0} and energy.used(before, energy.joules(Machine()), 3) == {"cpu": 2.0}
    assert energy.used({"cpu": 9.0}, {"cpu": 1.0}, 1) is None
