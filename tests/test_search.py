"""Searches: what is tried next, what is called better, and that the answer is true, within its limits, and usable."""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode

from optbuilder.folders import CONF
from optbuilder.job import Outcome, recorded
from optbuilder.search.answer import answer, contributions, front
from optbuilder.search.confirm import confirmed, fitting
from optbuilder.search.propose import propose
from optbuilder.search.run import Search, search
from optbuilder.search.settings import Limits, SearchSettings
from optbuilder.search.tried import Tried, best, better, gain
from tests.conftest import of, read

SPACE = {
    "precision": ["bf16", "fp16"],
    "attention": ["sdpa_math"],
    "layout": ["channels_last"],
    "quant": ["int8_dynamic"],
    "compile": ["regional", "full"],
}
# How many times faster each technique makes a call, and how many dB of PSNR it leaves; compiled, quantization helps.
SPEED = {
    "bf16": 1.5,
    "fp16": 0.4,
    "sdpa_math": 0.8,
    "channels_last": 1.1,
    "int8_dynamic": 0.7,
    "regional": 1.4,
    "full": 1.6,
}
PSNR = {"bf16": 50.0, "fp16": 60.0, "int8_dynamic": 34.0}


def measured(choice: Mapping[str, str], name: str = "x") -> Tried:
    """What a machine would measure that has these speeds, with a spread of 1 %."""
    speed = 1.0
    for option in choice.values():
        speed *= 1.3 if option == "int8_dynamic" and "compile" in choice else SPEED[option]
    seconds = 1 / speed
    figures = {"latency": seconds, "memory": 1e9 * (0.5 if "quant" in choice else 1), "cold_start": 2.0}
    lossy = [PSNR[option] for option in choice.values() if option in PSNR]
    if choice:
        figures["psnr"] = min(lossy, default=float("inf"))
    return Tried(Path(name), dict(choice), "ok", figures, [seconds * f for f in (0.99, 1.0, 1.0, 1.01)])


def tried_all(limits: Limits = Limits(), space=SPACE, accepts=lambda choice: True) -> list[Tried]:  # noqa: B008
    """Every plan that a search proposes until nothing is left."""
    known: list[Tried] = []
    while (choice := propose(known, [], space, "latency", limits, accepts)) is not None:
        known.append(measured(choice, str(len(known))))
        assert len(known) < 100
    return known


def everything(space=SPACE) -> list[Tried]:
    options = [[None, *names] for names in space.values()]
    cells = [{s: o for s, o in zip(space, cell, strict=True) if o} for cell in itertools.product(*options)]
    return [measured(cell) for cell in cells]


def test_the_best_of_the_whole_grid_is_found_in_a_quarter_of_it():
    known, grid = tried_all(), everything()
    assert len(known) <= len(grid) / 4, len(known)
    found, wanted = best(known, "latency"), best(grid, "latency")
    assert found.choice == wanted.choice == {
        "precision": "bf16", "layout": "channels_last", "quant": "int8_dynamic", "compile": "full"}  # fmt: skip


def test_the_best_within_the_limits_is_found():
    """40 dB leave no quantization; the winner is another one."""
    limits = Limits(least={"psnr": 40.0})
    found = best([t for t in tried_all(limits) if t.within(limits)], "latency")
    assert found.choice == {"precision": "bf16", "layout": "channels_last", "compile": "full"}


def test_cheap_trials_come_before_dear_ones_and_losers_are_not_combined():
    known = tried_all()
    first_compiled = next(number for number, t in enumerate(known) if "compile" in t.choice)
    assert known[0].choice == {} and all(len(t.choice) <= 1 for t in known[:6])
    eager_later = [t for t in known[first_compiled:] if "compile" not in t.choice]
    assert first_compiled > 6 and len(eager_later) <= 1  # the best without its compiling: what that contributes
    assert not [t for t in known if len(t.choice) > 1 and "sdpa_math" in t.choice.values()]


def test_what_is_refused_or_running_is_not_proposed():
    refused = tried_all(accepts=lambda choice: "full" not in choice.values())
    assert refused and not [t for t in refused if "full" in t.choice.values()]
    first = propose([], [{}], SPACE, "latency", Limits(), lambda choice: True)
    assert first == {"precision": "bf16"}


def test_a_tie_goes_to_the_simpler_plan():
    one, two = measured({"precision": "bf16"}), measured({"precision": "bf16", "layout": "channels_last"})
    noisy = Tried(Path("y"), two.choice, "ok", {**two.figures, "latency": 0.65}, [0.4, 0.6, 0.66, 0.7, 0.9])
    assert not better(noisy, one, "latency") and better(one, noisy, "latency")
    assert best([noisy, one], "latency") is one and best([two, one], "latency") is two


def test_a_finalist_that_breaks_a_limit_when_measured_again_is_not_the_answer():
    settings = SearchSettings(max_latency="0.6s")
    known = [measured({}), measured({"compile": "full", "precision": "bf16"}), measured({"compile": "regional"})]
    slower = Tried(Path("1_confirmed"), known[1].choice, "ok", {**known[1].figures, "latency": 0.7}, [0.7, 0.7])
    found = answer(settings, known, [measured({}), slower], False)
    assert found.winner is None and found.said[0] == "Nothing that was tried keeps every limit."
    found = answer(SearchSettings(), known, [measured({}), known[1]], False)
    assert found.said[0].startswith("compile=full + precision=bf16: 2.40x faster than the baseline (2.3")
    assert "PSNR 50.0 dB, +0 % memory" in found.said[0]


def test_contributions_are_those_of_plans_without_the_technique():
    known = [measured(c) for c in ({}, {"precision": "bf16"}, {"precision": "bf16", "layout": "channels_last"})]
    assert contributions(known[2], known, "latency")[0].startswith("layout=channels_last makes it 1.10x better (1.0")
    assert {t.choice.get("precision") for t in front(known)} == {None, "bf16"}


def test_options_of_the_best_are_tuned_and_stages_added():
    space = {**SPACE, "cache": ["first_block"], "cache.threshold": ["0.2"]}
    speeds = {"first_block": 1.5, "0.2": 1.3}

    def with_cache(choice):
        own = {stage: option for stage, option in choice.items() if "cache" not in stage}
        one = measured(own)
        times = math.prod(speeds.get(option, 1.0) for option in choice.values())
        figures = {**one.figures, "latency": one.figures["latency"] / times}
        return Tried(Path("x"), dict(choice), "ok", figures, [c / times for c in one.calls])

    known: list[Tried] = []
    while (choice := propose(known, [], space, "latency", Limits(), lambda choice: True)) is not None:
        known.append(with_cache(choice))
    assert best(known, "latency").choice["cache.threshold"] == "0.2"
    assert not [t for t in known if "cache.threshold" in t.choice and "cache" not in t.choice]


def test_several_objectives_have_a_winner_each():
    settings = SearchSettings(objective=["latency", "memory"], max_latency="1s")
    known = [measured(c) for c in ({}, {"compile": "full"}, {"precision": "bf16", "quant": "int8_dynamic"})]
    found = answer(settings, known, [], False)
    assert found.winners == {"latency": known[1], "memory": known[2]} and found.winner is known[1]
    assert found.said[0].startswith("For latency: compile=full: 1.60x faster")
    assert any(line.startswith("For memory: precision=bf16 + quant=int8_dynamic: 2.00x less") for line in found.said)


def test_throughput_is_of_pictures_and_latency_of_calls():
    one = measured({})
    two = Tried(Path("y"), {"run.batch_size": "2"}, "ok", {**one.figures, "latency": 1.5, "throughput": 0.75},
                [1.5, 1.5, 1.5], 2.0)  # fmt: skip
    assert gain(two, one, "throughput")[0] == pytest.approx(4 / 3) and gain(two, one, "latency")[0] < 1


def test_what_came_nearest_to_a_limit_is_said():
    found = answer(SearchSettings(max_latency="1ms"), [measured({}), measured({"compile": "full"})], [], False)
    assert found.said[1] == "The least latency was 0.625, by compile=full; the limit is 0.001."


def simulated(directory: Path, objective: Any, storage: str | None = None) -> Search:
    """A search whose jobs are records of what `measured` says, on a random model's plans."""
    loader = GlobalHydra.instance().config_loader()
    master = loader.load_configuration("config", [], RunMode.MULTIRUN)

    def run(config: Any, choices: Mapping[str, str], folder: Path, log_settings: Any) -> Outcome:
        choice = {s: choices[s] for s in SPACE if choices[s] not in ("none", "fp32")}
        one, each = measured(choice), len(config["run"]["prompts"]) // config["run"]["batch_size"]
        calls = [seconds * config["run"]["batch_size"] ** 0.5 for seconds in one.calls]
        spread = {"median": calls[1], "samples": calls, "p90": calls[-1]}
        metrics = {
            "status": "ok", "reasons": [], "energy": None, "environment": {},
            "images": [f"images/{n:04d}.png" for n in range(len(config["run"]["prompts"]))],
            "quality": {"against": "x", "psnr_min": str(one.figures["psnr"]), "ssim_min": 1.0} if choice else None,
            "latency": {"call_s": spread, "images_per_s": 1.0, "calls": [{"call": n} for n in range(each)]},
            "phases": {"import_s": 1.0, "load_s": 1.0, "first_call_s": 1.0, "transforms_s": {}, "first_image_s": 2.0},
            "memory": {"weights_bytes": {}, "phases": {"run": {
                "device_allocated_peak_bytes": None, "rss_peak_bytes": one.figures["memory"]}}},
        }  # fmt: skip
        (folder / "metrics.json").write_text(json.dumps(metrics))
        plan = {"model": {"repo_id": "x", "components": {}}, "device": "cpu", "run": {}, "transforms": []}
        (folder / "plan.json").write_text(json.dumps(plan))
        return recorded(folder)

    words = ["run.prompts=[a,b,c,d]"]
    settings = SearchSettings(objective=objective, budget="60s", storage=storage)
    directory.mkdir()
    compose = lambda more: loader.load_sweep_config(master, more)  # noqa: E731
    return Search(settings, words, compose, {"handlers": {}}, directory, "here", time.monotonic() + 60, run)


@pytest.fixture
def hydra_ready():
    with initialize_config_dir(str(CONF), version_base="1.3"):
        yield


@pytest.fixture
def no_report(monkeypatch):
    monkeypatch.setattr("optbuilder.search.run.write_answer", lambda *_: None)


def test_a_search_for_throughput_tries_batches(hydra_ready, no_report, tmp_path):
    space = {"precision": ["bf16"], "run.batch_size": ["2", "4"]}
    found = search(simulated(tmp_path / "s", "throughput"), space)
    assert dict(found.winner.choice) == {"precision": "bf16", "run.batch_size": "4"}
    assert found.said[0].startswith("precision=bf16 + run.batch_size=4: 3.00x more pictures per second")


def test_workers_share_a_search_and_one_that_died_is_waited_for_no_longer(
    hydra_ready, no_report, tmp_path, monkeypatch
):
    """One worker takes the baseline and dies; another waits, measures it, and goes on; a third finds all known."""
    from optbuilder.search import trials

    monkeypatch.setattr(trials, "BEAT_S", 1)
    storage, space = f"sqlite:///{tmp_path}/shared.db", {"precision": ["bf16"], "layout": ["channels_last"]}
    given = simulated(tmp_path / "one", "latency", storage)
    settings = {k: v for k, v in vars(given.settings).items() if k not in ("budget", "storage")}
    study = trials.opened(storage, tmp_path, [given.words, given.machine, settings], ["latency"])
    study.enqueue_trial({"precision": "none", "layout": "none"})
    dead = study.ask()
    for stage in space:
        dead.suggest_categorical(stage, ["none", *space[stage]])
    study._storage.record_heartbeat(dead._trial_id)
    found = search(given, space)
    assert dict(found.winner.choice) == {"precision": "bf16", "layout": "channels_last"}
    assert {t.state.name for t in study.trials if t.number == dead.number} == {"FAIL"}
    count = len(trials.known(study))
    search(simulated(tmp_path / "two", "latency", storage), space)
    assert len(trials.known(study)) == count and not list((tmp_path / "two").glob("[0-9]"))


@pytest.mark.parametrize(("left_s", "expected"), [(100, "3021"), (62, "302"), (40, "30"), (20, "0")])
def test_the_best_is_measured_again_first_and_nothing_that_does_not_end_within_the_budget(
    hydra_ready, tmp_path, monkeypatch, left_s, expected
):
    """The slowest of four plans is the baseline, number 0; trials take 20 s, its own 5 s."""
    now, given = [0.0], simulated(tmp_path / "s", "latency")
    monkeypatch.setattr("optbuilder.search.run.time", SimpleNamespace(monotonic=lambda: now[0]))
    choices = [{}, {"layout": "channels_last"}, {"compile": "regional"}, {"compile": "full"}]
    known = [replace(measured(c, str(n)), seconds=20.0 if c else 5.0) for n, c in enumerate(choices)]

    def run(config, choices, folder, log_settings):
        now[0] += next(t.seconds for t in known if folder.name == f"{t.name}_confirmed")
        now[0] += config["run"]["repeats_budget_s"]
        return given.run(config, choices, folder, log_settings)

    again = list(confirmed(replace(given, run=run, until=left_s), known))
    assert "".join(t.name[0] for t in again) == expected and now[0] <= left_s
    assert not fitting(replace(given, until=now[0] + 30), known)({})  # 6 s of it are kept for repeats


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["search.budget=soon"], "search.budget='soon': it is no number with one of the units ms, s, m, h"),
        (["search.objective=speed"], "search.objective='speed': it is not one of: latency, throughput, memory"),
        (["search.objective=[]"], "search.objective=None: it is not one of: latency"),
        (["search.space={quant.groups: 4}"], "search.space={'quant.groups': 4}: it must hold a list of options"),
        (["search.space={quantt: [int8_dynamic]}"], "search.space.quantt: there is no such stage"),
        (["search.space={quant: [int8]}"], "search.space.quant: there is no quant=int8"),
        (["search.max_memory=2GiBB"], "search.max_memory='2GiBB': it is no number with one of the units B, KB"),
        (["search=fast"], "search='fast': there is no such option. Did you mean 'fastest'?"),
        (["recipe=none.yaml"], "recipe='none.yaml': it is no recipe"),
    ],
)
def test_a_wrong_word_is_one_line(words, said, main):
    code, _, err = main("action=search", *words)
    assert code == 2 and err.startswith(said) and len(err.splitlines()) == 1


def test_a_search_answers_goes_on_and_its_recipe_runs(ob, tiny, tmp_path):
    """On a random model: bf16 and quantization, no compiler."""
    stages = {"precision": "[bf16]", "layout": "[]", "quant": "[int8_weight_only]", "attention": "[]"}
    space = ", ".join(f"{stage}: {names}" for stage, names in {**stages, "fusion": "[]", "kernels": "[]"}.items())
    words = ["action=search", *of(tiny["sdxl"]), "compile=none", "scheduler=none", f"search.space={{{space}}}",
             "search.min_psnr=45", "search.confirm_repeats=2", "hydra.run.dir=found"]  # fmt: skip
    done = ob(*words, "search.budget=10m")
    found = tmp_path / "found"
    assert done.returncode == 0, done.stderr
    records = {p.parent.name: read(p) for p in found.glob("*/metrics.json")}
    assert {m["status"] for m in records.values()} == {"ok"} and "0_confirmed" in records
    winner = read(found / "answer.json")["winner"]
    quality = records[winner["job"]]["quality"]
    assert quality is None or float(quality["psnr_min"]) >= 45
    assert done.stdout.count("best so far: trial") == len([n for n in records if n.isdigit()])
    for name in ("recipe.yaml", "script.py", "report.html", "results.csv"):
        assert (found / name).stat().st_size > 100
    again = ob(*words, "search.budget=20m")
    assert again.returncode == 0 and "best so far" not in again.stdout, again.stdout + again.stderr
    done = ob("recipe=found/recipe.yaml", *of(tiny["flux"]), "quant=none", "hydra.run.dir=used")
    assert done.returncode == 0, done.stderr
    stages = {t["stage"]: t["option"] for t in read(tmp_path / "used" / "plan.json")["transforms"]}
    assert "quant" not in stages
    assert {s: o for s, o in stages.items() if o != "fp32"} == {
        s: o for s, o in winner["choice"].items() if s != "quant"
    }


def test_ctrl_c_keeps_what_was_found_and_answers(ob, tiny, tmp_path):
    import os
    import signal
    import subprocess
    import sys

    words = ["action=search", *of(tiny["sdxl"]), "search.budget=10m", "compile=none", "hydra.run.dir=found"]
    command = [sys.executable, "-m", "optbuilder", *words]
    start = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )
    deadline = time.monotonic() + 120
    while len(list((tmp_path / "found").glob("[0-9]/metrics.json"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    start.send_signal(signal.SIGINT)
    out, _ = start.communicate(timeout=60)
    assert start.returncode == 130 and "Tried: " in out
    assert json.loads((tmp_path / "found" / "answer.json").read_text())["said"]


@pytest.mark.slow
@pytest.mark.parametrize("model", ["shapes_sdxl", "shapes_flux"])
def test_a_quarter_of_the_grids_time_finds_a_plan_as_good_as_its_best(model, tmp_path):
    from tests.bench.search import DATA, searched

    found = searched(model, read(DATA / f"grid_{model}.json"), tmp_path)
    assert found["as_good"] and found["limit_kept"], found
