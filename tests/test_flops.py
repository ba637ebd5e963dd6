"""Parameters and operations of a denoiser are counted, and are those of the model whatever was applied to it."""

from __future__ import annotations

import csv

import torch
from diffusers import ConfigMixin, ModelMixin
from diffusers.configuration_utils import register_to_config

from optbuilder.flops import first_inputs, size
from tests.conftest import of


class Layer(ModelMixin, ConfigMixin):
    @register_to_config
    def __init__(self, wide: int = 16, looks: bool = False):
        super().__init__()
        self.linear = torch.nn.Linear(8, wide)

    def forward(self, x):
        if self.config.looks and bool(x.sum() > 0):
            return x
        return self.linear(x)


def counted(**config):
    layer = Layer(**config)
    with first_inputs(layer) as given:
        layer(torch.zeros(3, 5, 8))
        layer(torch.zeros(1, 1, 8))
    assert not layer._forward_pre_hooks
    return size(layer, given[0])


def test_the_first_call_of_a_known_layer():
    assert counted() == {"parameters": 8 * 16 + 16, "flops": 2 * 3 * 5 * 8 * 16}
    assert counted(looks=True) == {"parameters": 8 * 16 + 16, "flops": None}


def test_a_grid_has_the_same_size_of_the_model_in_every_row(ob, tiny, tmp_path):
    words = [*of(tiny["flux"]), "quant=none,int8_weight_only", "run.repeats=1", "sweep.baseline=false"]
    assert ob("-m", *words, "hydra.sweep.dir=g").returncode == 0
    rows = list(csv.DictReader((tmp_path / "g" / "results.csv").open()))
    sizes = {(row["num_params_M"], row["flops_M"]) for row in rows}
    assert len(rows) == 2 and len(sizes) == 1 and all(float(value) > 0 for value in sizes.pop())
