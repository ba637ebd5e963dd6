"""Numbers with their uncertainty: intervals that cover, drift and two groups that are seen, ratios that hold."""

from __future__ import annotations

import numpy as np
import pytest

from optbuilder.quality import compared, difference
from optbuilder.request import Image
from optbuilder.samples import RESAMPLES, _percentiles, interval, medians, ratio, spread, unsteady, width


def test_spread_is_of_all_samples():
    found = spread([3.0, 1.0, 2.0])
    assert (found["n"], found["median"], found["p90"], found["min"]) == (3, 2.0, pytest.approx(2.8), 1.0)
    assert found["samples"] == [3.0, 1.0, 2.0] and found["interval"] == [1.0, 3.0]
    assert spread([1.0])["interval"] is None and spread([1.0])["p90"] == 1.0
    assert spread([1.0, 2.0])["p90"] == pytest.approx(1.9)


def test_the_interval_covers_the_true_median_about_as_often_as_it_says():
    rng = np.random.default_rng(1)
    inside = [lo <= 1.0 <= hi for lo, hi in (interval(rng.normal(1.0, 0.05, 25)) for _ in range(200))]
    assert 0.88 <= np.mean(inside) <= 1.0
    assert width(rng.normal(1.0, 0.05, 400)) < width(rng.normal(1.0, 0.05, 20))


def test_drift_and_two_groups_are_said():
    rng = np.random.default_rng(2)
    steady = rng.normal(1.0, 0.01, 30)
    assert unsteady(steady) == []
    assert "drift" in unsteady(steady * np.linspace(1.0, 1.5, 30))[0]
    assert "bimodal: 15 samples around 1" in " ".join(
        unsteady(np.where(np.arange(30) % 2, 2.0, 1.0) * rng.normal(1, 0.005, 30))
    )


def test_a_ratio_has_an_interval_around_it():
    rng = np.random.default_rng(3)
    found = ratio(rng.normal(2.0, 0.02, 20), rng.normal(1.0, 0.01, 20))
    assert found["ratio"] == pytest.approx(2.0, rel=0.02) and found["interval"][0] < 2.0 < found["interval"][1]
    assert ratio([2.0], [1.0]) == {"ratio": 2.0, "interval": None}


def test_equal_pictures_have_infinite_psnr():
    pixels = np.random.default_rng(0).random((64, 64, 3)).astype(np.float32)
    same = difference(pixels, pixels)
    assert same == {
        "psnr": "inf",
        "ssim": pytest.approx(1.0),
        "lpips": None,
        "mean_difference": 0.0,
        "max_difference": 0.0,
    }
    other = difference(pixels, np.clip(pixels + 0.1, 0, 1))
    assert 20 <= other["psnr"] < 22 and other["ssim"] < 1 and other["max_difference"] == pytest.approx(0.1, abs=1e-6)


def test_pictures_are_paired_by_prompt_and_seed():
    rng = np.random.default_rng(0)
    images = [Image(rng.random((16, 16, 3)).astype(np.float32), p, s) for p in "ab" for s in (0, 1)]
    found = compared(images, images[::-1])
    assert found["psnr_min"] == "inf" and found["max_difference"] == 0.0 and len(found["images"]) == 4
    worse = [*images[:3], Image(images[3].pixels * 0.5, "b", 1)]
    assert float(compared(worse, images)["psnr_min"]) < 20 and compared(worse, images)["psnr_median"] == "inf"


def test_a_single_sample_says_nothing_of_its_spread():
    assert interval([1.0]) is None and width([1.0]) == float("inf") and interval([1.0, 2.0]) is not None
    assert ratio([1.0], [2.0, 2.0])["interval"] is None and ratio([2.0, 2.0], [1.0])["interval"] is None
    assert ratio([4.0, 4.0], [2.0, 2.0]) == {"ratio": 2.0, "interval": [2.0, 2.0]}
    assert width([1.0, 2.0, 3.0]) == 1.0


def test_resampled_medians_are_the_same_each_time():
    values = [1.0, 2.0, 3.0, 4.0]
    assert medians(values).shape == (RESAMPLES,) == (2000,)
    assert _percentiles(range(101)) == [2.5, 97.5]
    assert (medians(values) == medians(values, 0)).all() and (medians(values) != medians(values, 1)).any()


UNSTEADY = {
    "too few to say": ([1, 1, 1, 2, 2], []),
    "few, and drifting": ([1.0, 1.1, 1.2, 1.6, 1.8, 2.0], ["drift: the last third takes 1.81 times the first"]),
    "nothing at all": ([0] * 6, []),
    "4 % slower": ([1.0] * 6 + [1.04] * 6, []),
    "4 % slower than 2 s": ([2.0] * 6 + [2.08] * 6, []),
    "6 % slower": ([1.0] * 6 + [1.06] * 6, ["drift: the last third takes 1.06 times the first"]),
    "of thirds": ([1.0] * 8 + [2.0, 2.0, 3.0, 3.0], ["drift: the last third takes 2.50 times the first"]),
    "one outlier": ([1.0] * 6 + [5.0] + [1.0] * 5, []),
    "a quarter of another kind": ([1.0, 1.0, 5.0, 1.0] * 3, ["bimodal: 9 samples around 1, 3 around 5"]),
    "a sixth of another kind": ([1.0, 1.0, 5.0, 1.0, 1.0, 1.0] * 2, []),
    "groups 5 % apart": ([1.0, 1.05] * 6, []),
    "groups 5 % of 10 s apart": ([10.0, 10.5] * 6, []),
    "groups with a spread": ([1.0, 1.55, 1.1, 1.65] * 3, ["bimodal: 6 samples around 1.05, 6 around 1.6"]),
    "groups 20 % apart": ([1.0, 1.2] * 6, ["bimodal: 6 samples around 1, 6 around 1.2"]),
    "no gap": ([1.0, 1.9, 1.2, 1.7, 1.4, 1.5, 1.1, 1.8, 1.3, 1.6, 1.0, 1.9], []),
}


@pytest.mark.parametrize("what", UNSTEADY)
def test_what_is_said_of_samples(what):
    samples, said = UNSTEADY[what]
    assert unsteady(samples) == said
