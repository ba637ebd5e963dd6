"""The number of graphs that a plan predicts for the shapes of a run is the number that torch makes."""

from __future__ import annotations

from itertools import product

import pytest

from optbuilder.builder import resolve
from optbuilder.counters import counts
from optbuilder.request import arguments, each_shape
from optbuilder.state import preserved
from tests.conftest import composed, of, only_run, read
from tests.test_effects import built

EAGER = "compile.backend=eager"
SIZES = ("[[64,64]]", "[[64,64],[64,96]]", "[[64,64],[96,96],[128,96]]")
BATCHES = ("[1]", "[1,2]", "[2,4]")
WAYS = {
    "full": ["compile=full"],
    "static": ["compile=full", "compile.dynamic=false"],
    "dynamic": ["compile=dynamic"],
    "regional": ["compile=regional"],
    "blocks_static": ["compile=regional", "compile.dynamic=false"],
}


def shaped(sizes, batches, *words):
    free = ["run.height=null", "run.width=null", "run.num_inference_steps=1"]
    return [*free, f"run.sizes={sizes}", f"run.batch_sizes={batches}", *words]


def predicted_and_made(folder, sizes, batches, *words):
    """What the plan says, and what torch does in one call of each shape."""
    with preserved(), counts() as graphs:
        plan, pipe, _ = built(folder, *shaped(sizes, batches, *words), EAGER)
        pipe.set_progress_bar_config(disable=True)
        for shape, number in each_shape(plan.run):
            pipe(**arguments(pipe, shape, number, plan.call))
        return plan.graphs, graphs().graphs


@pytest.mark.parametrize(
    ("family", "sizes", "batches", "way"),
    [
        ("sdxl", SIZES[1], "[1,2]", "regional"),
        ("flux", SIZES[1], "[1]", "full"),
        ("flux", SIZES[1], "[2,4]", "dynamic"),
        ("flux", SIZES[1], "[1]", "regional"),
    ],
)
def test_a_plan_predicts_the_number_of_graphs(family, sizes, batches, way, tiny):
    """P27, P29: sizes, batches, and a batch of one, which is a graph of its own."""
    prediction, made = predicted_and_made(tiny[family], sizes, batches, *WAYS[way])
    assert prediction.graphs == made, prediction


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family", ["sdxl", "flux"])
def test_every_prediction_holds(family, way, tiny):
    for sizes, batches in product(SIZES, BATCHES):
        planned = resolve(*composed(*of(tiny[family]), *shaped(sizes, batches, *WAYS[way], EAGER), "device=cpu"))
        if planned.refusals:
            assert "8 of one function at most" in planned.refusals[0]
            continue
        prediction, made = predicted_and_made(tiny[family], sizes, batches, *WAYS[way])
        assert prediction.graphs == made, (sizes, batches, prediction)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["shapes_sdxl", "shapes_flux"])
@pytest.mark.parametrize(
    "words",
    [
        "precision=bf16",
        "fusion=qkv",
        "attention=sdpa_math",
        "run.images_per_prompt=2",
        "vae=tiling vae.tile_size=32",
        "compile.dynamic=true",
    ],
)
def test_predictions_hold_beside_other_techniques(model, words):
    from optbuilder.model import locate

    for compile_ in ("compile=full", "compile=regional"):
        folder, _ = locate(f"package:shapes/{model}")
        prediction, made = predicted_and_made(folder, SIZES[1], "[1,2]", compile_, *words.split())
        unknown = (model, compile_, words) == ("shapes_flux", "compile=regional", "compile.dynamic=true")
        assert prediction.graphs == (None if unknown else made), (compile_, prediction)


def test_adapters_that_can_be_swapped_are_part_of_the_graphs(tiny, lora):
    """Fused ones are weights like any other; those beside the weights are in the graph, and swapping adds none."""
    words = ["lora=file", f"lora.paths=[{lora['sdxl']}]", "lora.fuse=false", "lora.hotswap_rank=4"]
    with preserved(), counts() as graphs:
        sized = shaped("[[64,64],[64,96]]", "[1]", "compile=full", EAGER)
        plan, pipe, _ = built(tiny["sdxl"], *sized, *words)
        pipe.set_progress_bar_config(disable=True)
        for swapped in (False, True):
            if swapped:
                pipe.load_lora_weights(lora["sdxl"], hotswap=True, adapter_name="adapter_0")
            for shape, number in each_shape(plan.run):
                pipe(**arguments(pipe, shape, number, plan.call))
            assert graphs().graphs == plan.graphs.graphs == 2


def test_the_decoder_of_the_vae_is_predicted_too(tiny):
    words = ["compile=full", "compile.components=[vae.decode]"]
    prediction, made = predicted_and_made(tiny["sdxl"], SIZES[1], "[1,2]", *words)
    assert prediction.graphs == made == 4


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("compile=full compile.fullgraph=false", "fullgraph=false"),
        ("compile=full quant=int8_weight_only", "not tried with quant"),
        ("compile=full attention=sliced", "sliced attention"),
        ("compile=full compile.components=[text_encoder]", "not tried with text_encoder"),
        ("compile=full run.sizes=[[60,64],[64,64]]", "latents that 2 does not divide"),
    ],
)
def test_what_cannot_be_predicted_says_why(words, why, tiny):
    sizes = [] if "run.sizes" in words else ["run.sizes=[[64,64],[64,96]]"]
    clear = ["run.height=null", "run.width=null"]
    planned = resolve(*composed(*of(tiny["sdxl"]), "device=cpu", *clear, *sizes, *words.split()))
    assert planned.refusals == [] and planned.graphs.graphs is None and why in planned.graphs.why


def test_a_plan_past_the_limit_is_refused(tiny):
    """P30: torch would raise after minutes of compiling."""
    words = shaped("[[64,64]]", "[1,2,3,4,5,6,7,8,9]", "compile=full", "compile.dynamic=false")
    planned = resolve(*composed(*of(tiny["sdxl"]), "device=cpu", *words))
    assert planned.refusals == [
        "compile=full: the shapes of the run need 9 graphs, and torch compiles 8 of one function at most. "
        "Use compile.dynamic=null, or fewer shapes."
    ]
    import torch._dynamo.config

    from optbuilder.graphs import LIMIT

    assert torch._dynamo.config.recompile_limit == LIMIT


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("run.sizes=[[64]]", "it must be [height, width] pairs"),
        ("run.sizes=[]", "it must be [height, width] pairs"),
        ("run.sizes=[[64,62]]", "needs a multiple of 4. Use 64."),
        ("run.sizes=[[64,64]] run.width=64", "run.width=64: run.sizes says it already"),
        ("run.batch_sizes=[0]", "it must be numbers from 1 on"),
        ("run.batch_sizes=[1,2] run.batch_size=2", "run.batch_size=2: run.batch_sizes says it already"),
    ],
)
def test_shapes_that_cannot_be_meant_are_refused(words, why):
    reasons = resolve(*composed("device=cpu", *words.split())).refusals
    assert len(reasons) == 1 and why in reasons[0]


def test_a_run_covers_its_shapes_and_reports_each(main, tiny, tmp_path):
    """Warm-up and timed calls go through all of them; pictures are the same in every batch, and full batches."""
    import numpy as np
    from PIL import Image

    words = shaped("[[64,64],[64,96]]", "[1,2]", "compile=full", EAGER, "run.prompts=[a,b,c]", "run.repeats=2")
    code, out, _ = main(*of(tiny["sdxl"]), *words)
    directory = only_run(tmp_path)
    metrics = read(directory / "metrics.json")
    assert code == 0 and metrics["status"] == "ok" and "64x96, batch 2: " in out
    assert metrics["counters"]["graphs"] == metrics["counters"]["graphs_predicted"] == 3
    assert metrics["counters"]["graphs_in_timed_calls"] == 0
    found = {s["name"]: (s["call_s"]["n"], len(s["images"])) for s in metrics["latency"]["shapes"]}
    one, two = (6, 3), (4, 4)
    assert found == {
        f"64x{w}, batch {b}": n for (w, b), n in zip(product((64, 96), (1, 2)), (one, two) * 2, strict=True)
    }
    calls = [c["seconds"] for c in metrics["latency"]["calls"]]
    assert len(calls) == 20 and metrics["latency"]["call_s"]["samples"] == pytest.approx(
        [sum(calls[:10]) / 10, sum(calls[10:]) / 10]
    )
    pictures = [Image.open(directory / name) for name in metrics["images"]]
    assert [p.size for p in pictures] == [(64, 64)] * 7 + [(96, 64)] * 7
    assert [p.text["prompt"] for p in pictures[3:7]] == ["a", "b", "c", "a"]
    assert [p.text["seed"] for p in pictures[3:7]] == ["0", "1", "2", "3"]
    alone, in_a_batch = (np.asarray(pictures[n], dtype=int) for n in (1, 4))
    assert np.abs(alone - in_a_batch).max() <= 1
    assert read(directory / "plan.json")["graphs"]["graphs"] == 3


def test_another_number_of_graphs_than_predicted_degrades_the_job(main, tiny, tmp_path, monkeypatch):
    """Something recompiles that the plan does not know of: here, sizes are static whatever the plan says."""
    from optbuilder.transforms import compile as stage

    arguments_of = stage.compile_arguments
    monkeypatch.setattr(stage, "compile_arguments", lambda *given: {**arguments_of(*given), "dynamic": False})
    words = shaped("[[64,64],[64,96],[64,128]]", "[1]", "compile=full", EAGER)
    code, _, err = main(*of(tiny["sdxl"]), *words)
    assert code == 1 and read(only_run(tmp_path) / "metrics.json")["status"] == "degraded"
    assert "graphs: 2 were predicted for the declared shapes, 3 were compiled (unet 2x16x16, 2x16xN" in err
