"""No third outcome: a pair of options from two stages runs with every effect proven, or is refused with a reason."""

from __future__ import annotations

import random

import pytest

from tests.pairs import outcome, pairs, usable, words_of

SAMPLE = 6


def judged(folder, lora, chosen):
    wrong = {}
    for (one, first), (other, second) in chosen:
        found = outcome(folder, [*words_of(one, first, lora), *words_of(other, second, lora)])
        if found != "ok" and not (found.startswith("refused: ") and "Use " in found):
            wrong[f"{one}={first} {other}={second}"] = found
    return wrong


@pytest.mark.parametrize("family", ["sdxl", "flux"])
def test_a_sample_of_pairs(family, tiny, lora):
    everything = list(pairs(usable(tiny[family], lora[family])))
    chosen = random.Random(family).sample(everything, SAMPLE)
    assert judged(tiny[family], lora[family], chosen) == {}


@pytest.mark.slow
@pytest.mark.timeout(5400)
@pytest.mark.parametrize("family", ["sdxl", "flux"])
def test_every_pair(family, tiny, lora):
    assert judged(tiny[family], lora[family], pairs(usable(tiny[family], lora[family]))) == {}
