"""Two runs side by side, and runs sent to trackers."""

from __future__ import annotations

import sys

import pytest

from tests.conftest import of, read


@pytest.fixture
def compare(monkeypatch, capsys, tmp_path):
    def run(*words):
        from optbuilder.compare import main

        monkeypatch.setattr(sys, "argv", ["compare", *map(str, words)])
        try:
            main()
            code = 0
        except SystemExit as exit_:
            code = exit_.code
        return code, *capsys.readouterr()

    return run


def test_two_runs_side_by_side(main, compare, tiny, tmp_path):
    from PIL import Image

    for name, words in {"one": [], "two": ["precision=bf16", "quant=int8_weight_only"]}.items():
        main(*of(tiny["flux"]), "run.repeats=3", f"hydra.run.dir={name}", *words)
    code, out, err = compare(tmp_path / "one", tmp_path / "two")
    assert (code, err) == (0, "")
    for words in ("precision.option", "quant.config", "latency call_s", "x (", "memory run", "weights", "phase load_s",
                  "effect quant", "quantized", "pictures, second against first", "SSIM"):  # fmt: skip
        assert words in out
    assert "run.seed" not in out and "not a fair comparison" not in out
    assert Image.open(tmp_path / "two" / "compared.png").size == (3 * 64, 64)


def test_another_machine_or_version_is_said(compare):
    from optbuilder.environment import unfair

    here = {"cpu": "A", "threads": 2, "versions": {"torch": "2.13.0"}, "gpu": {"sm_clock_mhz": 1900}}
    there = {"cpu": "B", "threads": 2, "versions": {"torch": "2.12.0"}, "gpu": {"sm_clock_mhz": 1200}}
    assert list(unfair(here, here)) == []
    said = list(unfair(here, there))
    assert said == ["cpu is 'A' and 'B'", "torch is 2.13.0 and 2.12.0", "the GPU's clock was 1900 and 1200 MHz"]


def test_what_is_no_run_directory_is_one_line(compare, tmp_path):
    code, _, err = compare(tmp_path, tmp_path)
    assert code == 2 and "it is no run directory" in err and len(err.splitlines()) == 1
    code, _, err = compare(tmp_path)
    assert code == 2 and "Write python -m optbuilder.compare RUN_A RUN_B" in err


def test_a_run_is_sent_to_tensorboard(main, tiny, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    code, _, _ = main(*of(tiny["sdxl"]), "track=tensorboard", "hydra.run.dir=tracked")
    median = read(tmp_path / "tracked" / "metrics.json")["latency"]["call_s"]["median"]
    events = EventAccumulator(str(tmp_path / "tracked" / "tensorboard" / "tracked")).Reload()
    assert code == 0
    assert events.Scalars("latency/call_s/median")[0].value == pytest.approx(median, rel=1e-4)
    assert len(events.Images("images")) == 1


def test_a_run_is_sent_to_mlflow(main, tiny, tmp_path, monkeypatch):
    import mlflow

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    assert main(*of(tiny["sdxl"]), "track=mlflow", "hydra.run.dir=tracked")[0] == 0
    runs = mlflow.search_runs(experiment_names=["optbuilder"])
    assert len(runs) == 1 and runs["metrics.latency/call_s/median"][0] > 0 and runs["params.precision"][0] == "fp32"


def test_an_unknown_or_missing_tracker_is_refused(main, tiny):
    code, _, err = main("action=plan", *of(tiny["sdxl"])[:2], "track=tensorbord")
    assert code == 2 and "Did you mean 'tensorboard'?" in err
    code, _, err = main("action=plan", *of(tiny["sdxl"])[:2], "track=aim")
    assert code == 2 and "the package aim is not installed" in err


@pytest.mark.parametrize(
    ("words", "judged"),
    [
        (["run.prompts=[a red circle on a blue background]", "run.num_inference_steps=8"], True),
        (["run.prompts=[a cat on a mat]", "run.num_inference_steps=2"], False),
        (["run.prompts=[a red circle on a blue background]", "run.height=96", "run.num_inference_steps=2"], False),
    ],
)
def test_the_shapes_of_a_model_that_comes_along_are_judged_where_the_judge_can_read_them(main, tmp_path, words, judged):
    once = ["run.repeats=1", "run.warmup=0", "hydra.run.dir=x"]
    code, _, err = main("model=shapes_flux", "precision=bf16", "run.compare=baseline", *words, *once)
    assert code == 0, err
    shapes = read(tmp_path / "x" / "metrics.json")["quality"]["shapes"]
    assert shapes == ({"here": 1, "baseline": 1, "of": 1} if judged else None)
