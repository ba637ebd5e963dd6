"""report.html: what it says is what was measured, and a person can use it: in Chromium, without a network."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from optbuilder.errors import Refused
from optbuilder.report.cells import cells
from optbuilder.report.contribution import contributions
from optbuilder.report.page import findings, write_report
from optbuilder.report.pictures import heat_map
from tests.conftest import of

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
HOSTILE = "<script>alert(1)</script>"


def job(folder: Path, seconds: list[float], techniques: dict[str, str], psnr: str | None = None, peak: int = 10**9):
    """Write the record of a job that was measured so."""
    folder.mkdir(parents=True)
    spread = {"median": sorted(seconds)[len(seconds) // 2], "interval": None, "p90": max(seconds), "samples": seconds}
    memory = {"rss_peak_bytes": peak, "device_allocated_peak_bytes": None}
    base = folder.parent / "0"
    quality = psnr and {"against": str(base), "psnr_min": psnr, "ssim_min": 1.0, "speed": {
        "speedup": 1 / spread["median"], "interval": [0.9, 1.1], "break_even_images": 7.0}}  # fmt: skip
    metrics = {
        "status": "ok", "reasons": [], "job_key": folder.name, "images": [], "quality": quality,
        "environment": {"git": None},
        "latency": {"call_s": spread, "images_per_s": 1 / spread["median"], "step_s": None,
                    "text_encode_s": None, "denoise_s": None, "decode_s": None},
        "phases": {"import_s": 0, "load_s": 1, "transforms_s": {}, "compile_s": None, "first_call_s": 2},
        "memory": {"phases": {"run": memory}, "weights_bytes": {}},
    }  # fmt: skip
    transforms = [{"stage": s, "option": o, "options": {}} for s, o in {"precision": "fp32", **techniques}.items()]
    plan = {"model": {"repo_id": "m", "components": {}}, "run": {}, "device": "cpu", "transforms": transforms}
    (folder / "metrics.json").write_text(json.dumps(metrics))
    (folder / "plan.json").write_text(json.dumps(plan))


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    """Two techniques that make a call 2 and 1.25 times as fast, and together 2.5 times."""
    folder = tmp_path / "grid"
    job(folder / "0", [1.0, 1.0, 1.0], {})
    job(folder / "1", [0.5, 0.5, 0.5], {"quant": "int8_dynamic"}, "35.0", 5 * 10**8)
    job(folder / "2", [0.8, 0.8, 0.8], {"layout": "channels_last"}, "inf")
    job(folder / "3", [0.4, 0.4, 0.4], {"quant": "int8_dynamic", "layout": "channels_last"}, "35.0", 5 * 10**8)
    return folder


def test_contributions_are_those_of_pairs_alike_in_all_else(grid):
    lines = {line.technique: line for line in contributions(cells([grid]))}
    assert lines["quant=int8_dynamic"].held == pytest.approx(2.0) and lines["quant=int8_dynamic"].pairs == 2
    assert lines["layout=channels_last"].held == pytest.approx(1.25)
    assert lines["quant=int8_dynamic"].memory == pytest.approx(0.5) and lines["quant=int8_dynamic"].psnr == 35.0
    assert lines["layout=channels_last"].interval == pytest.approx([1.25, 1.25])


def test_the_average_is_of_all_jobs_and_pairs_are_not(grid):
    """Without job 3, quantization is seen only where the layout was left: one pair, two jobs without it."""
    shutil.rmtree(grid / "3")
    line = next(line for line in contributions(cells([grid])) if line.technique == "quant=int8_dynamic")
    assert line.pairs == 1 and line.held == pytest.approx(2.0)
    assert line.average == pytest.approx((1.0 * 0.8) ** 0.5 / 0.5)


def test_findings_name_the_best_of_each_kind(grid):
    said = list(findings([cell for cell in cells([grid]) if cell.measured]))
    assert said[0].startswith("Fastest: quant=int8_dynamic layout=channels_last: 2.50x") and "(job 3)" in said[0]
    assert "Fastest at 40 dB or better: layout=channels_last" in said[1] and "the same pictures" in said[1]
    assert "-50 % memory" in said[2] and "pays back after 7 images" in said[2]


def test_the_front_has_no_job_that_another_beats(grid):
    from optbuilder.report.charts import and_memory, front, speed_and_quality

    job(grid / "4", [0.9, 0.9, 0.9], {"fusion": "qkv"}, "34.0")
    assert front(cells([grid]), speed_and_quality) == {"2", "3"}
    job(grid / "5", [0.9, 0.9, 0.9], {"offload": "model"}, "34.0", 10**8)
    assert front(cells([grid]), and_memory) == {"2", "3", "5"}


def test_grids_of_several_models_and_machines_are_told_apart(grid, tmp_path):
    """Nothing of one is called faster than the other's, and what differs between the machines is said."""
    other = shutil.copytree(grid, tmp_path / "elsewhere")
    for path in other.glob("*/metrics.json"):
        metrics = json.loads(path.read_text())
        metrics["environment"] = {"git": None, "device": {"name": "another"}, "packages": {"torch": "2.0"}}
        metrics["latency"]["call_s"]["samples"] = [s / 10 for s in metrics["latency"]["call_s"]["samples"]]
        path.write_text(json.dumps(metrics))
    found = cells([grid, other])
    said = list(findings(found))
    assert [line.partition(":")[0] for line in said] == [f"grid {grid}"] * 3 + [f"grid {other}"] * 3
    page = write_report([grid, other], tmp_path / "report.html").read_text()
    assert "Not all jobs ran in the same environment" in page and "elsewhere/0, elsewhere/1" in page


def test_a_heat_map_is_black_where_equal_and_white_where_far():
    import numpy as np

    colours = heat_map(np.array([[0.0, 255.0 / 8, 255.0]]))
    assert colours[0].tolist() == [[0, 0, 0], [255, 255, 255], [255, 255, 255]]


def test_a_folder_without_records_is_refused(tmp_path):
    with pytest.raises(Refused, match=r"there is no metrics\.json"):
        write_report([tmp_path], tmp_path / "report.html")


@pytest.fixture(scope="module")
def made(tmp_path_factory, tiny) -> Path:
    """A true grid of four jobs, one refused, whose prompt is a script."""
    import os
    import subprocess
    import sys

    folder = tmp_path_factory.mktemp("made")
    words = [w for w in of(tiny["sdxl"]) if not w.startswith("run.prompts")]
    command = [sys.executable, "-m", "optbuilder", "-m", *words, f'run.prompts="{HOSTILE}"', "run.repeats=2",
               "layout=none,channels_last", "quant=none,fp8_dynamic", "hydra.sweep.dir=grid"]  # fmt: skip
    done = subprocess.run(
        command, cwd=folder, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return folder / "grid"


def test_a_prompt_stays_text(made):
    page = (made / "report.html").read_text()
    assert HOSTILE not in page and "&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_a_report_of_two_grids_keeps_them_apart(made, tmp_path):
    other = shutil.copytree(made, tmp_path / "other")
    found = {cell.name: cell for cell in cells([made, other])}
    assert found["other/2"].baseline == "other/0" and found["grid/2"].baseline == "grid/0"
    assert [line.pairs for line in contributions(list(found.values()))] == [2]
    write_report([made, other], tmp_path / "report.html")


@pytest.fixture
def page(made):
    """The report in headless Chromium, with what its console said."""
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        said, asked = [], []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"file://{made}/report.html")
        page.wait_for_selector("#pareto .main-svg")
        yield page
        assert said == [] and [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []


def column(page, key):
    return page.eval_on_selector_all(
        f"#table tbody tr:not([hidden]) td.{key}", "cells => cells.map(c => c.textContent)"
    )


def test_the_table_sorts_by_a_key_and_empty_cells_stay_below(page):
    button = page.locator("#table th button", has_text="s per picture")
    button.focus()
    page.keyboard.press("Enter")
    rising = column(page, "seconds")
    page.keyboard.press("Enter")
    falling = column(page, "seconds")
    assert rising[:3] == sorted(rising[:3], key=float) and rising[3:] == ["", ""]
    assert falling[:3] == rising[2::-1] and falling[3:] == ["", ""]
    assert page.locator('#table th[aria-sort="descending"]').count() == 1


def test_the_filter_takes_words_and_their_opposites(page):
    page.fill("#filter", "refused")
    assert column(page, "status") == ["refused"] * 2
    page.fill("#filter", "channels_last -fp8")
    assert column(page, "job") == ["2"] and page.inner_text("#count") == "1 of 5 jobs"


def test_pointing_at_a_job_shows_its_pictures(page):
    """At first the fastest one is shown."""
    before = page.inner_text("#seen")
    for point in page.locator("#pareto .scatterlayer .trace").first.locator("path.point").all():
        box = point.bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.wait_for_timeout(300)
        assert page.locator("#seen img").count() >= 1
    assert {before, page.inner_text("#seen")} & {"baseline", "layout=channels_last"}


@pytest.mark.parametrize("width", [1400, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_wider_than_the_window_and_text_is_readable(page, width, scheme):
    page.set_viewport_size({"width": width, "height": 844})
    page.emulate_media(color_scheme=scheme)
    page.wait_for_timeout(500)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    paper, ink = page.evaluate(
        "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
    )
    tick = page.evaluate("getComputedStyle(document.querySelector('#pareto .xtick text')).fill")
    lightness = [sum(map(int, c[c.index("(") + 1 : c.index(")")].split(",")[:3])) / 765 for c in (paper, ink, tick)]
    assert abs(lightness[0] - lightness[1]) > 0.6 and abs(lightness[0] - lightness[2]) > 0.6
