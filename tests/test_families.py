"""The models people use: facts that agree with diffusers, plans without a network, and tiny versions that run."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys

import numpy as np
import pytest
import yaml

from optbuilder.builder import resolve
from optbuilder.dummy import SCALES, dummy, known_pipelines
from optbuilder.errors import Refused
from optbuilder.machine import described
from optbuilder.model import describe, families
from optbuilder.options import options
from tests.conftest import CONF, ROOT, composed, only_run, read

NAMES = sorted(
    p.stem for p in (CONF / "model").glob("*.yaml") if p.stem not in ("custom", "shapes_sdxl", "shapes_flux")
)
VIDEOS = ("cogvideox", "hunyuan_video", "ltx_video", "wan_t2v")
# Parameters of the denoiser in billions, as their authors give them on the model's page or in its paper.
BILLIONS = {"sdxl": 2.6, "sd15": 0.86, "sd35_medium": 2.5, "sd35_large": 8.1, "flux_dev": 12, "flux_schnell": 12,
            "flux_kontext": 12, "flux2": 32, "pixart_sigma": 0.6, "sana": 1.6, "qwen_image": 20, "z_image": 6,
            "ltx_video": 2, "wan_t2v": 1.4, "cogvideox": 5.5, "hunyuan_video": 13}  # fmt: skip
TINY = ["model.weights=dummy", "model.scale=tiny", "device=cpu", "run.repeats=1", "run.warmup=0"]


def settings(name):
    return yaml.safe_load((CONF / "model" / f"{name}.yaml").read_text())


def machine(name):
    return described(yaml.safe_load((CONF / "machine" / f"{name}.yaml").read_text()))


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("the Hub was asked")

    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)


def test_every_family_is_a_model_of_conf_and_the_other_way_round():
    assert {settings(name)["repo_id"] for name in NAMES} == set(families())
    assert {families()[settings(name)["repo_id"]].name for name in NAMES} == set(NAMES) == set(BILLIONS)
    classes = {describe(repo_id).pipeline_class for repo_id in families()}
    assert classes == set(known_pipelines())


@pytest.mark.parametrize("name", NAMES)
def test_the_facts_are_those_of_diffusers_classes(name):
    """Classes exist, every config value is one of its class's, and the number of parameters is the published one."""
    import diffusers
    import torch
    import transformers

    model, source = (
        describe(settings(name)["repo_id"]),
        read(families()[settings(name)["repo_id"]] / "model_index.json"),
    )
    assert hasattr(diffusers, model.pipeline_class) and source["_source"]["date"] == "2026-12-01"
    for component, cls in model.components.items():
        library = {"diffusers": diffusers, "transformers": transformers}.get(model.libraries[component])
        assert library is None or hasattr(library, cls), component
    for component, config in dummy(model, "full").configs.items():
        kind = getattr(diffusers, config["_class_name"])
        assert kind.__name__ == model.components[component] and component in source["_source"]
        assert set(config) <= {"_class_name", *inspect.signature(kind.__init__).parameters}
    with torch.device("meta"):
        denoiser = model.denoisers[0]
        built = getattr(diffusers, model.components[denoiser]).from_config(dict(model.configs[denoiser]))
    count = sum(t.numel() for t in [*built.parameters(), *built.buffers()]) / 1e9
    assert count == pytest.approx(BILLIONS[name], rel=0.04)


@pytest.mark.parametrize("name", NAMES)
def test_what_conf_says_is_what_the_configs_and_the_call_say(name, no_network):
    plan = resolve(*composed(f"model={name}", "machine=h100"))
    assert plan.refusals == [] and plan.notes == []
    known, model = settings(name)["known"], plan.model
    heads = {h for denoiser in model.denoisers for h in model.head_sizes(denoiser)}
    assert f"https://huggingface.co/{settings(name)['repo_id']}" in known["sources"]
    assert known["license"] and (known["head_size"] is None or name == "z_image" or heads == {known["head_size"]})
    assert (known["output"] == "video") == (name in VIDEOS) == (plan.run.num_frames is not None)
    guided = model.configs[model.denoisers[0]].get("guidance_embeds")
    assert not guided or known["guidance_distilled"]
    assert plan.run.height % known["multiple_of"] == plan.run.width % known["multiple_of"] == 0


@pytest.mark.parametrize("name", NAMES)
def test_every_option_is_planned_or_refused_with_a_reason(name, no_network, monkeypatch):
    """With every package there, so that it is the model and the machine that decide."""
    import optbuilder.technique as technique

    there = technique.installed_version
    monkeypatch.setattr(technique, "installed_version", lambda package: there(package) or "99.0")
    config, _ = composed(f"model={name}", "precision=bf16")
    found = options(config, nodes(config["stages"]), machine("h100"))
    usable = {f"{o.stage}={o.name}" for o in found if not o.reasons}
    assert {"precision=bf16", "layout=channels_last", "quant=fp8_dynamic", "offload=group_block"} <= usable
    assert all(len(reason) > 20 and reason.endswith((".", "?")) for o in found for reason in o.reasons)


def nodes(stages):
    files = {stage: sorted((CONF / stage).glob("*.yaml")) for stage in stages}
    return {s: {p.stem: yaml.safe_load(p.read_text()) for p in f if p.stem != "none"} for s, f in files.items()}


@pytest.mark.parametrize("name", NAMES)
def test_every_scale_has_configs_that_fit_together(name):
    """Built without memory; half has fewer parameters than full, tiny fewer than five million."""
    import diffusers
    import torch

    sizes = []
    for scale in SCALES:
        model = dummy(describe(settings(name)["repo_id"]), scale)
        denoiser = model.denoisers[0]
        with torch.device("meta"):
            built = getattr(diffusers, model.components[denoiser]).from_config(dict(model.configs[denoiser]))
        sizes.append(sum(p.numel() for p in built.parameters()))
    assert sizes[0] < 5e6 < sizes[1] < 0.9 * sizes[2]


# An option of each stage, with what it needs to have something to do in a tiny model. Each runs in every family with
# its effect proven, or is refused with a reason.
CHEAP = ["precision=bf16", "scheduler=euler", "scheduler=unipc_flow", "lora=file", "kernels=local", "fusion=qkv",
         "attention=sdpa_math", "layout=channels_last", "quant=int8_weight_only", "quant=int8_weight_only_at_load",
         "parallel=ulysses", "compile=regional compile.backend=eager",
         "cache=first_block cache.threshold=1 run.num_inference_steps=6", "vae=slicing run.images_per_prompt=2",
         "offload=model"]  # fmt: skip
DEAR = ["scheduler=dpmpp_2m_flow", "scheduler=dpmpp_2m_karras", "attention=native_math", "attention=sdpa_flash",
        "quant=fp8_layerwise", "quant=int8_dynamic quant.min_parameters=100", "compile=full compile.backend=eager",
        "cache=mag_cache run.num_inference_steps=6", "cache=pyramid_attention run.num_inference_steps=6",
        "cache=faster_cache run.num_inference_steps=6", "cache=taylorseer run.num_inference_steps=8",
        "vae=tiling vae.tile_size=64 run.height=128 run.width=128", "offload=group_block"]  # fmt: skip
# Each architecture once: what is dear is not run again in the variants of it.
ALIKE = ("sd35_large", "flux_schnell", "flux_kontext")


def outcome(name, *words):
    """`ok`, `refused: why`, or what went wrong."""
    from optbuilder.counters import counts
    from optbuilder.effects import apply
    from optbuilder.metrics import degraded
    from optbuilder.pipeline import load
    from optbuilder.runner import kernels_called, run
    from optbuilder.state import preserved

    plan = resolve(*composed(f"model={name}", *TINY, *words))
    if plan.refusals:
        return f"refused: {plan.refusals[0]}"
    with preserved(), counts() as so_far:
        pipe, _ = apply(plan, load(plan.model, plan.load, plan.load_device))
        result = run(pipe, plan.run, call=plan.call, graphs=so_far)
        kernels = kernels_called(pipe, plan.run, plan.call)
        counted = vars(so_far()) | {"graphs_in_timed_calls": 0, "attention_kernels": kernels}
    shape = (plan.run.num_frames, plan.run.height, plan.run.width, 3)[plan.run.num_frames is None :]
    assert [image.pixels.shape for image in result.images] == [shape] * plan.run.images_per_prompt
    return " ".join(result.problems + degraded(plan, counted)) or "ok"


def judged(name, words):
    found = {word: outcome(name, *word.split()) for word in words}
    told = [
        word
        for word, said in found.items()
        if said.startswith("refused: ") and re.search("(Use|Leave|Write|set) ", said)
    ]
    return {word: said for word, said in found.items() if said != "ok" and word not in told}


@pytest.mark.parametrize("name", NAMES)
def test_a_tiny_version_runs(name):
    assert outcome(name) == "ok"


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n in ALIKE else ()) for n in NAMES])
def test_a_tiny_version_runs_with_every_stage_or_says_why_not(name):
    assert judged(name, CHEAP) == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name not in ALIKE])
def test_a_tiny_version_runs_with_what_takes_longer(name):
    assert judged(name, DEAR) == {}


# --- dummy weights


def tiny(name, *words):
    return resolve(*composed(f"model={name}", *TINY, *words)).require()


def loaded(plan):
    from optbuilder.pipeline import load

    return load(plan.model, plan.load, plan.load_device)


def drawn(plan, pipe=None):
    from optbuilder.runner import run

    return [image.pixels for image in run(pipe or loaded(plan), plan.run, call=plan.call).images]


def test_dummy_weights_are_the_same_again_and_prompts_tell():
    words = ["run.prompts=[a, b, a]", "run.seed=0"]
    once, again = drawn(tiny("flux_dev", *words)), drawn(tiny("flux_dev", *words))
    assert all(np.array_equal(a, b) for a, b in zip(once, again, strict=True))
    one_seed = tiny("flux_dev", *words)
    pipe = loaded(one_seed)
    embeddings = {text: pipe.encode_prompt(text)[0] for text in ("a", "b")}
    assert embeddings["a"].shape == (1, 512, 32) and not np.allclose(embeddings["a"], embeddings["b"])
    assert np.array_equal(embeddings["a"], pipe.encode_prompt(prompt="a")[0])


@pytest.mark.parametrize(
    "name", ["sdxl", "sd35_large", "flux_dev", "qwen_image", "z_image", "ltx_video", "hunyuan_video"]
)
def test_a_picture_of_dummy_weights_is_the_same_alone_and_in_a_batch(name):
    """Embeddings are repeated for every picture of a prompt, by the pipeline or before it."""
    both = drawn(tiny(name, "run.images_per_prompt=2", "run.prompts=[a]", "run.seed=3"))
    alone = drawn(tiny(name, "run.prompts=[a]", "run.seed=4"))
    assert np.allclose(both[1], alone[0], atol=1e-4) and not np.allclose(both[0], both[1], atol=1e-2)
    together = drawn(tiny(name, "run.batch_size=2", "run.prompts=[b, a]", "run.seed=3"))
    assert np.allclose(together[1], alone[0], atol=1e-4)


def test_modules_that_a_class_keeps_in_float32_stay_there():
    import torch

    pipe = loaded(tiny("wan_t2v", "precision=bf16"))
    kept = {name for name, p in pipe.transformer.named_parameters() if p.dtype == torch.float32}
    assert {"scale_shift_table", "blocks.0.norm2.weight"} <= kept
    assert pipe.transformer.blocks[0].attn1.to_q.weight.dtype == torch.bfloat16


WRONG = [
    (["model.weights=dumy"], "model.weights='dumy': it is not one of: pretrained, dummy"),
    (["model.weights=dummy", "model.scale=tin"], "model.scale='tin': there is no such scale. Did you mean 'tiny'?"),
    (["model.scale=tiny"], "only random weights come in another size. Use model.weights=dummy too"),
    (["model.weights=dummy", "quant=gguf"], "quant=gguf"),
    (
        ["model.weights=dummy", "quant=bnb_nf4", "machine=h100"],
        "dummy weights are not loaded. Use quant=int8_weight_only",
    ),
    (["run.image=nowhere.png"], "run.image='nowhere.png': there is no such file"),
    (["run.num_frames=9"], "run.num_frames=9: FluxPipeline takes no num_frames"),
]


@pytest.mark.parametrize(("words", "reason"), WRONG, ids=lambda v: str(v)[:40])
def test_a_mistake_about_dummy_weights_is_one_line(words, reason, main):
    code, _, err = main("action=plan", "model=flux_dev", *words)
    assert code == 2 and reason in err and "Traceback" not in err


def test_a_pipeline_whose_embeddings_nobody_knows_is_refused(tmp_path):
    (tmp_path / "model_index.json").write_text('{"_class_name": "KolorsPipeline"}')
    with pytest.raises(Refused, match="embeddings of KolorsPipeline are not known"):
        resolve(*composed("model=custom", f"model.repo_id={tmp_path}", "model.weights=dummy"))


def test_a_local_folder_gives_the_architecture_instead(tmp_path):
    import shutil

    folder = tmp_path / "mine"
    shutil.copytree(families()["black-forest-labs/FLUX.1-dev"], folder)
    path = folder / "transformer" / "config.json"
    path.write_text(path.read_text().replace('"num_layers": 19', '"num_layers": 4'))
    plan = resolve(*composed("model=flux_dev", f"model.repo_id={folder}", "model.weights=dummy", "model.scale=half"))
    assert plan.model.configs["transformer"]["num_layers"] == 2 and plan.refusals == []


def test_numbers_of_dummy_weights_are_marked(main, tmp_path, capsys):
    """In the plan, the record, the summary, the table, the report and a comparison; no quality is claimed."""
    from optbuilder.compare import read as compared
    from optbuilder.compare import show
    from optbuilder.report.cells import cells
    from optbuilder.report.page import content
    from optbuilder.results import row

    code, out, _ = main("model=sana", *TINY, "run.compare=baseline", "layout=channels_last")
    assert code == 0 and "(random weights, tiny size)" in out and "nothing to tell: random weights" in out
    assert "PSNR" not in out
    directory = only_run(tmp_path)
    plan, metrics = read(directory / "plan.json"), read(directory / "metrics.json")
    assert (plan["model"]["weights"], plan["model"]["scale"]) == ("dummy", "tiny")
    assert any("say nothing of quality" in note for note in plan["notes"])
    assert "psnr_min" not in metrics["quality"] and metrics["quality"]["of_random_weights"]["psnr_min"]
    found = cells([directory])
    assert row("0", found[0].outcome, {})["psnr_min"] == "" and found[0].psnr is None
    page = content(found, [directory])
    assert "pareto" not in page["charts"] and "random weights" in page["title"]
    assert main("model=sana", *TINY, "hydra.run.dir=second")[0] == 0
    show(directory, compared(directory), tmp_path / "second", compared(tmp_path / "second"))
    assert "PSNR" not in capsys.readouterr().out
    code, _, err = main("action=search", "model=sana", *TINY, "search.min_psnr=30")
    assert code == 2 and "search.min_psnr: pictures of random weights have no quality to keep" in err


@pytest.mark.parametrize("name", [pytest.param("flux_kontext", marks=pytest.mark.slow), "wan_t2v"])
def test_a_run_of_dummy_weights_leaves_a_script_that_draws_the_same(name, main, tmp_path):
    """With its picture or its video, in plain diffusers."""
    from PIL import Image

    assert main(f"model={name}", *TINY, "fusion=qkv", "run.reuse_prompt_embeds=true")[0] == 0
    directory = only_run(tmp_path)
    text = (directory / "script.py").read_text()
    assert "random_pipeline(PIPELINE, CONFIGS, PROMPTS, LOAD, 'cpu')" in text and "from_pretrained(given" not in text
    code = "import runpy, sys; sys.modules['optbuilder'] = None; runpy.run_path('script.py', run_name='__main__')"
    command = [sys.executable, "-c", code, "--output", "again"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    one, other = (np.asarray(Image.open(directory / f / "0000.png")) for f in ("images", "again"))
    assert np.array_equal(one, other)
    assert (directory / "again" / "0000.mp4").exists() == (name == "wan_t2v")


def test_load_gives_a_pipeline_of_dummy_weights():
    import optbuilder

    pipe = optbuilder.load(
        "model.weights=dummy", "model.scale=tiny", model="pixart_sigma", precision="fp32", device="cpu"
    )
    output = pipe("a", height=64, width=64, num_inference_steps=1, use_resolution_binning=False, output_type="np")
    assert output.images.shape == (1, 64, 64, 3) and pipe.text_encoder is None


# --- videos, and pictures to start from


def test_a_video_is_recorded_with_its_frames(main, tmp_path):
    """As an mp4 that players know, with a picture of some frames beside it; a later run is compared with those."""
    import imageio.v2 as imageio
    from PIL import Image

    assert main("model=ltx_video", *TINY, "run.fps=12")[0] == 0
    directory = only_run(tmp_path)
    metrics = read(directory / "metrics.json")
    assert metrics["status"] == "ok" and metrics["videos"] == ["videos/0000.mp4"]
    with imageio.get_reader(directory / "videos" / "0000.mp4") as video:
        facts, frames = video.get_meta_data(), [frame for frame in video]
    assert (facts["codec"], facts["fps"], facts["size"]) == ("h264", 12.0, (64, 64)) and len(frames) == 9
    with Image.open(directory / metrics["images"][0]) as strip:
        assert strip.size == (4 * 64, 64) and strip.text["prompt"] == "a cat walks on the grass"
        last = np.asarray(strip)[:, -64:]
    assert np.abs(last.mean(axis=(0, 1)) - frames[-1].mean(axis=(0, 1))).max() < 8  # H.264 keeps colours, not noise
    assert main("model=ltx_video", *TINY, f"run.compare={directory}", "hydra.run.dir=second")[0] == 0
    assert read(tmp_path / "second" / "metrics.json")["quality"]["of_random_weights"]["psnr_min"] == "inf"


def test_every_frame_of_a_video_is_checked_and_compared():
    from optbuilder.quality import difference
    from optbuilder.request import Image, invalid

    frames = np.random.default_rng(0).random((4, 32, 32, 3)).astype(np.float32)
    assert invalid(Image(frames, "a", 0)) is None
    constant, broken, off = frames.copy(), frames.copy(), frames.copy()
    constant[2], broken[3, 0, 0, 0], off[1] = 0.5, np.nan, 1 - off[1]
    assert "frame 2 of the video of 'a' (seed 0) has the same value everywhere" in str(invalid(Image(constant, "a", 0)))
    assert "frame 3 of the video" in str(invalid(Image(broken, "a", 0)))
    assert difference(frames, frames)["psnr"] == "inf"
    assert difference(off, frames)["mean_difference"] == pytest.approx(np.abs(off - frames).mean(), rel=1e-3)


def test_a_video_without_its_packages_is_refused_at_plan_time(monkeypatch):
    monkeypatch.setattr("optbuilder.checks.installed_version", lambda name: None if "imageio" in name else "9")
    plan = resolve(*composed("model=wan_t2v", "machine=h100"))
    assert "writing them needs imageio and imageio-ffmpeg. Write pip install" in plan.refusals[0]


def test_the_picture_to_start_from_decides(tmp_path):
    from PIL import Image

    file = tmp_path / "green.png"
    Image.new("RGB", (64, 64), (0, 160, 0)).save(file)
    given, other = drawn(tiny("flux_kontext")), drawn(tiny("flux_kontext", f"run.image={file}"))
    assert np.abs(given[0] - other[0]).max() > 1e-3
    assert "takes no image" in resolve(*composed("model=sdxl", f"run.image={file}", "machine=h100")).refusals[0]


# --- ladders of these models

LADDERS = {"flux_fast": 7, "diffusion_fast": 7, "low_vram": 5, "speed_memory": 5, "kernels_ltx": 4}


@pytest.mark.parametrize("name", LADDERS)
def test_every_rung_of_the_ladders_is_planned_on_an_h100(name, no_network, monkeypatch):
    """With the packages that they name; each rung has one technique more than the one before."""
    import hydra
    from hydra.core.global_hydra import GlobalHydra

    import optbuilder.technique as technique
    from optbuilder.grid import cells

    there = technique.installed_version
    monkeypatch.setattr(technique, "installed_version", lambda package: there(package) or "99.0")
    GlobalHydra.instance().clear()
    words = [f"experiment={name}", "machine=h100", "++kernels.allow_download=true"]
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):

        def compose(chosen):
            return hydra.compose("config", overrides=chosen, return_hydra_config=True)

        rungs = cells([words], compose(words).sweep.ladder, compose)
    assert [cell.reasons for cell in rungs] == [[]] * LADDERS[name]
    stages = [[t.stage for t in cell.plan.transforms] for cell in rungs]
    assert [len(found) for found in stages] == [1, 1, *range(2, LADDERS[name])]
    lines = (CONF / "experiment" / f"{name}.yaml").read_text().splitlines()
    assert any(line.startswith("# Source: https://") for line in lines)
    assert any("eported" in line for line in lines)


def test_the_readme_names_every_model_and_ladder():
    text = (ROOT / "README.md").read_text().split("## Models")[1].split("## Grids")[0]
    rows = re.findall(r"^\| `(\w+)` \| (\S+) ", text, re.M)
    assert sorted(name for name, _ in rows) == NAMES
    assert all(settings(name)["repo_id"] == repo_id for name, repo_id in rows)
    assert all(name in text for name in LADDERS)
