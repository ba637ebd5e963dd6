"""Every YAML below conf/ is one that works: it names a function, its options bind, and it says what it is."""

from __future__ import annotations

import re

import pytest
import yaml

from optbuilder.builder import find_function
from optbuilder.typed import conform, option_schema
from tests.conftest import CONF

STAGES = yaml.safe_load((CONF / "config.yaml").read_text())["stages"]
TECHNIQUES = [p for stage in STAGES for p in sorted((CONF / stage).glob("*.yaml")) if p.stem != "none"]


@pytest.mark.parametrize("path", TECHNIQUES, ids=lambda p: f"{p.parent.name}={p.stem}")
def test_a_technique_is_one_yaml_and_one_declared_function(path):
    first, node = path.read_text().splitlines()[0], yaml.safe_load(path.read_text())
    function = find_function(node.pop("_target_"), [])
    options, problems = conform(option_schema(function), node, path.parent.name)
    technique = function.technique
    assert first.startswith(f"# python -m optbuilder {path.parent.name}={path.stem}     ")
    assert problems == []
    assert ("Lossless" in first or "reference" in first) == technique.is_lossless(options)
    assert technique.source.startswith("https://")
    assert isinstance(technique.describe_needs(options), str)
    assert function.__doc__ and "Source: https://" in function.__doc__


def test_every_stage_has_a_way_to_leave_it_as_it_is_and_a_reason_for_its_place():
    for stage, why in STAGES.items():
        assert (CONF / stage / ("fp32.yaml" if stage == "precision" else "none.yaml")).exists()
        assert why
    assert {p.name for p in CONF.iterdir() if p.is_dir()} == {
        *STAGES,
        "model",
        "run",
        "machine",
        "experiment",
        "hydra",
        "search",
    }


def test_no_option_is_a_word_that_yaml_reads_as_a_truth_value():
    assert not [p for p in CONF.rglob("*.yaml") if p.stem in ("on", "off", "yes", "no", "true", "false", "null")]


def test_the_dispatchers_backends_are_those_of_the_installed_diffusers():
    from diffusers.models.attention_dispatch import AttentionBackendName

    from optbuilder.attention_kernels import BACKENDS

    names = {backend.value for backend in AttentionBackendName}
    files = [yaml.safe_load(p.read_text()) for p in (CONF / "attention").glob("*.yaml")]
    assert names == set(BACKENDS) == {f["backend"] for f in files if f and "backend" in f}


def test_experiments_open_with_the_command_that_runs_them():
    for path in (CONF / "experiment").glob("*.yaml"):
        lines = path.read_text().splitlines()
        assert lines[0] == "# @package _global_"
        assert path.stem == "none" or re.match(rf"# python -m optbuilder .*experiment={path.stem}", lines[1])


def test_the_public_surface_grows_on_purpose():
    """A change here is a change for users: `python -m tests.surface` writes it down."""
    from tests.surface import FILE, surface

    assert surface() == yaml.safe_load(FILE.read_text())
