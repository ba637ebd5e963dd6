"""What each stage promises beyond its effect: order, honesty about what was skipped, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from optbuilder.builder import resolve
from optbuilder.counters import counts
from optbuilder.runner import run
from optbuilder.state import preserved
from tests.conftest import composed, of
from tests.test_effects import CACHES, EAGER, SMALL, built, pictures


def refusals(folder, *words):
    return " ".join(resolve(*composed(*of(folder), "device=cpu", *words)).refusals)


def at_work(folder, *words):
    """A job's result with its plan, pipeline and counts, inside its own process state."""
    with preserved(), counts() as so_far:
        plan, pipe, effects = built(folder, *words)
        return run(pipe, plan.run, call=plan.call, graphs=so_far), plan, pipe, effects, so_far()


# --- lora


@pytest.mark.parametrize("family", ["sdxl", "flux"])
def test_an_adapter_survives_fusion_and_quantization(family, tiny, lora):
    """P15, P16, P24, P48: merged first, then fused, then quantized; the picture is the adapter's."""
    plain = pictures(tiny[family])[0]
    adapter = ["lora=file", f"lora.paths=[{lora[family]}]"]
    beside = pictures(tiny[family], *adapter, "lora.fuse=false")[0]
    merged, effects, _, _ = pictures(tiny[family], *adapter)
    stacked = pictures(tiny[family], *adapter, "fusion=qkv", "quant=int8_weight_only")[0]
    assert np.abs(beside - plain).max() > 0.01
    assert np.abs(merged - beside).max() < 1e-4
    assert np.abs(stacked - beside).max() < np.abs(beside - plain).max() / 4
    assert "adapters on" in effects["lora=file"].notes[0]


def test_an_adapter_is_never_dropped_silently(tiny, lora):
    adapter = ["lora=file", f"lora.paths=[{lora['sdxl']}]"]
    assert "would drop the adapters" in refusals(tiny["sdxl"], *adapter, "lora.fuse=false", "fusion=qkv")
    assert "which FluxPipeline has not" in refusals(tiny["flux"], *adapter)
    assert "it needs a file" in refusals(tiny["sdxl"], "lora=file")
    assert "there is no .safetensors file" in refusals(tiny["sdxl"], "lora=file", "lora.paths=[nowhere]")
    assert "need as many weights" in refusals(tiny["sdxl"], *adapter, "lora.weights=[1.0,2.0]")
    assert "fused adapters cannot be swapped" in refusals(tiny["sdxl"], *adapter, "lora.hotswap_rank=8")
    assert "cannot merge adapters into" in refusals(tiny["sdxl"], *adapter, "quant=int8_weight_only_at_load")


def test_several_adapters_have_weights_of_their_own(tiny, lora, tmp_path):
    from tests import tiny as models

    second = models.lora(tiny["sdxl"], tmp_path, seed=2)
    both = ["lora=file", f"lora.paths=[{lora['sdxl']},{second}]"]
    alone = pictures(tiny["sdxl"], "lora=file", f"lora.paths=[{lora['sdxl']}]")[0]
    assert np.abs(pictures(tiny["sdxl"], *both, "lora.weights=[1.0,0.0]")[0] - alone).max() < 1e-4
    assert np.abs(pictures(tiny["sdxl"], *both, "lora.weights=[1.0,1.0]")[0] - alone).max() > 0.01


def test_a_prepared_graph_takes_another_adapter_as_it_is(tiny, lora, tmp_path):
    """P41: one graph for two adapters of different rank."""
    from tests import tiny as models

    other = models.lora(tiny["sdxl"], tmp_path, seed=3, rank=2)
    words = [
        "lora=file",
        f"lora.paths=[{lora['sdxl']}]",
        "lora.fuse=false",
        "lora.hotswap_rank=4",
        "compile=full",
        EAGER,
    ]
    with preserved(), counts() as so_far:
        plan, pipe, _ = built(tiny["sdxl"], *words)
        first = run(pipe, plan.run, graphs=so_far).images[0].pixels
        pipe.load_lora_weights(other, hotswap=True, adapter_name="adapter_0")
        second = run(pipe, plan.run, graphs=so_far).images[0].pixels
        assert so_far().graphs == 1
    assert np.abs(first - second).max() > 0.01


# --- kernels


def test_code_of_ones_own_runs_behind_a_class_of_layer(tiny, tmp_path, monkeypatch):
    (tmp_path / "mine_rms.py").write_text(
        "import torch\n"
        "def rms_norm(self, x):\n"
        "    return torch.nn.functional.rms_norm(x, x.shape[-1:], self.weight, self.eps)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    words = ["kernels=local", "+kernels.layers.RMSNorm=mine_rms.rms_norm"]
    assert "is not of a trusted module" in refusals(tiny["flux"], *words)
    assert "it needs a layer" in refusals(tiny["flux"], "kernels=local")
    words.append("trusted_modules=[mine_rms]")
    result, _, _, effects, _ = at_work(tiny["flux"], *words)
    layers = int(effects["kernels=local"].notes[0].split("forward of ")[1].split(" ")[0])
    assert layers == 12
    assert np.abs(result.images[0].pixels - pictures(tiny["flux"])[0]).max() < 1e-4
    assert "no effect" in no_effect(tiny["sdxl"], *words)
    compiled = at_work(tiny["flux"], *words, "compile=regional", EAGER)
    assert np.abs(compiled[0].images[0].pixels - result.images[0].pixels).max() < 1e-4


def no_effect(folder, *words):
    from optbuilder.errors import NoEffect

    with pytest.raises(NoEffect) as error:
        pictures(folder, *words)
    return str(error.value)


def test_the_hub_is_asked_only_when_allowed(tiny):
    assert "set kernels.allow_download=true" in refusals(tiny["flux"], "kernels=hub")


# --- fusion


def test_fusion_says_what_it_costs(tiny):
    notes = pictures(tiny["sdxl"], "fusion=qkv")[1]["fusion=qkv"].notes
    assert notes[0].startswith("unet: fused projections take +") and notes[0].endswith(" bytes")
    dropped = pictures(tiny["sdxl"], "fusion=qkv", "fusion.drop_split=true")[1]["fusion=qkv"]
    assert dropped.notes == ["unet: fused projections take +0 bytes"]


def test_fusion_leaves_the_generator_alone(tiny):
    import torch

    from optbuilder.transforms.fusion import fuse_qkv

    with preserved():
        _, pipe, _ = built(tiny["sdxl"])
        torch.manual_seed(5)
        fuse_qkv(pipe)
        after = torch.rand(1)
        torch.manual_seed(5)
        assert torch.equal(after, torch.rand(1))


# --- cache


@pytest.mark.parametrize("words", CACHES)
def test_a_cache_counts_what_it_skipped(words, tiny):
    _, plan, _, _, counted = at_work(tiny["flux"], *words.split())
    calls = counted.calls
    assert 0 < calls["cache.computed"] < calls["cache.offered"]
    assert plan.transforms[-1].technique.ran({}, {"calls": calls}) is None


def test_a_cache_that_skips_nothing_is_said_to():
    from optbuilder.transforms.cache import first_block

    assert "nothing was skipped" in first_block.technique.ran({}, {"calls": {"cache.offered": 8, "cache.computed": 8}})


@pytest.mark.parametrize("words", CACHES)
def test_a_prompt_is_the_same_after_another_and_after_an_interruption(words, tiny):
    """P60: what a cache holds is forgotten before each prompt."""
    with preserved():
        plan, pipe, _ = built(tiny["flux"], *words.split())
        plan.run.prompts = ["b"]
        alone = run(pipe, plan.run, call=plan.call).images[0].pixels
        plan.run.prompts = ["a"]

        def interrupt(*_):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run(pipe, plan.run, call={**plan.call, "callback_on_step_end": interrupt})
        plan.run.prompts = ["b"]
        assert np.array_equal(run(pipe, plan.run, call=plan.call).images[0].pixels, alone)


@pytest.mark.parametrize("cache", ["first_block", "mag_cache", "dbcache"])
@pytest.mark.parametrize("offload", ["none", "model", "group_block"])
def test_block_caches_work_under_full_graph_blocks_and_offload(cache, offload, tiny):
    """P59, P61, P63: compiled first, hooks outside; the same picture as without compilation, no break."""
    steps = ["run.num_inference_steps=6", f"cache={cache}", "cache.threshold=1", f"offload={offload}"]
    compiled, _, _, _, counted = at_work(tiny["flux"], *steps, "compile=regional", EAGER)
    plain = at_work(tiny["flux"], *steps)[0]
    assert np.abs(compiled.images[0].pixels - plain.images[0].pixels).max() < 1e-5
    assert counted.graphs == 3 and counted.graph_breaks == {}
    assert counted.calls["cache.computed"] < counted.calls["cache.offered"]


def test_caches_are_refused_where_they_cannot_work(tiny):
    assert "has no enable_cache" in refusals(tiny["sdxl"], "cache=first_block")
    assert "Use compile=regional" in refusals(tiny["flux"], "cache=first_block", "compile=full")
    assert "decides inside each block" in refusals(tiny["flux"], "cache=pyramid_attention", "compile=regional")
    assert "acts on NucleusMoE models only" in refusals(tiny["flux"], "cache=text_kv")
    assert "acts on Cosmos3 models only" in refusals(tiny["flux"], "cache=sea_cache")
    assert "is not the run's" in refusals(tiny["flux"], "cache=mag_cache", "cache.num_inference_steps=28")
    assert "before the first to be skipped" in refusals(tiny["flux"], "cache=taylorseer")


def test_a_library_that_patches_classes_is_undone(tiny):
    from diffusers import FluxPipeline, FluxTransformer2DModel

    methods = FluxPipeline.__call__, FluxTransformer2DModel.forward
    pictures(tiny["flux"], "cache=dbcache", "run.num_inference_steps=4")
    assert (FluxPipeline.__call__, FluxTransformer2DModel.forward) == methods


def test_every_cache_of_the_installed_diffusers_is_offered():
    import diffusers.hooks as hooks
    import yaml

    from tests.conftest import CONF

    configs = {name for name in dir(hooks) if name.endswith("CacheConfig")} | {"PyramidAttentionBroadcastConfig"}
    source = "".join(p.read_text() for p in (CONF.parent / "optbuilder" / "transforms").glob("cache*.py"))
    offered = [yaml.safe_load(p.read_text()) for p in (CONF / "cache").glob("*.yaml")]
    assert len([node for node in offered if node]) == len(configs) + 1  # and cache-dit's own
    assert all(name in source for name in configs)


# --- scheduler


def test_the_wrong_family_is_refused_with_the_right_list(tiny):
    """P66"""
    assert (
        "FluxPipeline is a flow-matching model. Use scheduler=dpmpp_2m_flow, flow_euler, flow_heun, unipc_flow"
        in refusals(tiny["flux"], "scheduler=ddim")
    )
    assert "Use scheduler=ddim, dpmpp_2m, dpmpp_2m_karras, euler, euler_a, lcm, unipc" in refusals(
        tiny["sdxl"], "scheduler=flow_euler"
    )
    assert "would change nothing. Use scheduler=none" in refusals(tiny["sdxl"], "scheduler=euler")
    assert "passes sigmas of its own" in refusals(tiny["flux"], "scheduler=flow_heun")
    assert "has no such option" in refusals(tiny["sdxl"], "scheduler=ddim", "+scheduler.config.karras=true")


@pytest.mark.parametrize("words", ["scheduler=dpmpp_2m", "scheduler=unipc", "scheduler=euler_a", "precision=bf16"])
def test_sigmas_stay_on_the_cpu_and_no_step_looks_them_up(words, tiny):
    """P69: the pipelines begin at index 0, so that no step asks the device where it is."""
    scheduler = at_work(tiny["sdxl"], words)[2].scheduler
    assert scheduler.begin_index == 0 and scheduler.sigmas.device.type == "cpu"


# --- vae


def test_what_would_change_nothing_is_refused(tiny):
    """P76"""
    assert "have nothing to slice" in refusals(tiny["sdxl"], "vae=slicing")
    assert "fits one tile of 64x64" in refusals(tiny["sdxl"], "vae=tiling", "vae.tile_size=64")
    assert "it needs a model" in refusals(tiny["sdxl"], "vae=tiny")


def test_a_tiny_decoder_takes_the_vaes_place(tiny, tmp_path):
    from diffusers import AutoencoderTiny

    small = {"encoder_block_out_channels": [8] * 3, "decoder_block_out_channels": [8] * 3}
    blocks = {"num_encoder_blocks": [1, 1, 1], "num_decoder_blocks": [1, 1, 1]}
    AutoencoderTiny(**small, **blocks, latent_channels=4).save_pretrained(tmp_path)
    picture, effects, _, _ = pictures(tiny["sdxl"], "vae=tiny", f"vae.repo_id={tmp_path}")
    assert effects["vae=tiny"].changes["vae.class"] == ["AutoencoderKL", "AutoencoderTiny"]
    assert picture.shape == (64, 64, 3)


# --- offload


def test_offload_refuses_what_cannot_work_here(tiny):
    """P72"""
    assert "cannot offload layers from the CPU to the CPU" in refusals(tiny["sdxl"], "offload=sequential")
    assert "copies on a CUDA stream" in refusals(tiny["sdxl"], "offload=group_leaf", "offload.use_stream=true")
    assert "has no effect without use_stream" in refusals(
        tiny["sdxl"], "offload=group_leaf", "offload.record_stream=true"
    )
    assert "groups of blocks need a size" in refusals(
        tiny["sdxl"], "offload=group_block", "offload.num_blocks_per_group=null"
    )
    disk = ["offload=group_block", "offload.offload_to_disk_path=disk", "quant=int8_weight_only"]
    assert "cannot be written to disk" in refusals(tiny["sdxl"], *disk)


def test_groups_wait_on_disk(tiny, tmp_path):
    words = ["offload=group_block", f"offload.offload_to_disk_path={tmp_path}/disk"]
    assert np.abs(pictures(tiny["flux"], *words)[0] - pictures(tiny["flux"])[0]).max() < 1e-4
    assert list((tmp_path / "disk").rglob("*.safetensors"))


def test_with_an_offload_the_pipeline_is_loaded_to_host_memory(tiny):
    """Every component has one owner of its place."""
    config, choices = composed(*of(tiny["sdxl"]), "machine=h100", "offload=model")
    assert resolve(config, choices).load_device == "cpu"
    config, choices = composed(*of(tiny["sdxl"]), "machine=h100")
    assert resolve(config, choices).load_device == "cuda:0"


def test_quantized_weights_are_offloaded(tiny):
    """P21. Where the weights lie in memory changes the last digit of a product."""
    words = ["quant=int8_weight_only", SMALL]
    together = pictures(tiny["flux"], *words)[0]
    for offload in ("model", "group_block", "group_leaf"):
        apart = pictures(tiny["flux"], *words, f"offload={offload}")[0]
        assert np.allclose(apart, together, rtol=0, atol=1e-6)


# --- quantization while loading


def test_a_gguf_file_gives_the_denoisers_weights(tiny, tmp_path):
    from tests import tiny as models

    file = models.gguf(tiny["flux"], tmp_path / "flux.gguf")
    picture, effects, _, _ = pictures(tiny["flux"], "quant=gguf", f"quant.path={file}")
    assert "GGUFParameter" in str(effects["quant=gguf"].changes["transformer.weights"][1])
    assert np.abs(picture - pictures(tiny["flux"])[0]).max() < 0.1
    assert "it needs a file" in refusals(tiny["flux"], "quant=gguf")
    assert "there is no such .gguf file" in refusals(tiny["flux"], "quant=gguf", "quant.path=x.gguf")


def test_layers_named_in_exclude_are_loaded_as_they_are(tiny):
    def taken(*words):
        change = pictures(tiny["flux"], "quant=int8_weight_only_at_load", *words)[1][
            "quant=int8_weight_only_at_load"
        ].changes
        return change["transformer.weights"][1]["Int8Tensor"]

    assert taken("quant.exclude=[]") == 48 > taken()


def test_what_cannot_be_combined_with_float8_storage_is_refused(tiny):
    assert "a graph cannot hold" in refusals(tiny["flux"], "quant=fp8_layerwise", "compile=regional")
    assert "cannot concatenate them" in refusals(tiny["flux"], "quant=int8_weight_only_at_load", "fusion=qkv")
    assert "bitsandbytes>=0.43.3" in refusals(tiny["flux"], "quant=bnb_nf4")


def test_weights_quantized_while_loading_can_be_saved_and_loaded_again(tiny, tmp_path):
    """P14"""
    import torch
    from diffusers import FluxTransformer2DModel

    with preserved():
        _, pipe, _ = built(tiny["flux"], "quant=int8_weight_only_at_load", "precision=bf16")
        pipe.transformer.save_pretrained(tmp_path)
        again = FluxTransformer2DModel.from_pretrained(tmp_path, dtype=torch.bfloat16)
        before, after = (dict(m.named_parameters())["x_embedder.weight"] for m in (pipe.transformer, again))
    assert torch.equal(before, after)


@pytest.mark.parametrize("offload", ["model", "group_block"])
def test_the_guides_combination(offload, tiny):
    """Quantized while loading, offloaded, blocks compiled: the picture of the same without offload and compilation."""
    words = ["quant=int8_weight_only_at_load", "precision=bf16"]
    together, _, _, _, counted = at_work(tiny["flux"], *words, f"offload={offload}", "compile=regional", EAGER)
    assert np.array_equal(together.images[0].pixels, pictures(tiny["flux"], *words)[0])
    assert counted.graphs == 3 and counted.graph_breaks == {}


# --- run


def test_prompts_in_a_batch_are_the_pictures_of_each_alone(tiny):
    """P82"""
    with preserved():
        plan, pipe, _ = built(tiny["sdxl"])
        plan.run.prompts, plan.run.seed, plan.run.images_per_prompt = ["a", "b", "c"], 5, 2
        alone = run(pipe, plan.run).images
        plan.run.batch_size = 2
        together = run(pipe, plan.run)
    assert len(together.timed) == 2 * plan.run.repeats
    assert [(i.prompt, i.seed) for i in together.images] == [(i.prompt, i.seed) for i in alone]
    assert all(np.abs(a.pixels - b.pixels).max() < 1e-4 for a, b in zip(alone, together.images, strict=True))


@pytest.mark.parametrize("family", ["sdxl", "flux"])
def test_prompts_are_encoded_once_where_asked(family, tiny):
    plain = pictures(tiny[family])[0]
    with preserved():
        plan, pipe, _ = built(tiny[family], "run.reuse_prompt_embeds=true", "run.repeats=3")
        result = run(pipe, plan.run, call=plan.call)
    assert np.array_equal(result.images[0].pixels, plain)
    assert all(call.text_encode < result.first.text_encode / 3 for _, call in result.timed)


# --- compile


def test_a_second_process_finds_the_artifacts(ob, tiny, tmp_path):
    """P35"""
    from tests.conftest import read

    words = [*of(tiny["flux"]), "compile=regional", f"compile.cache_dir={tmp_path}/cache"]
    for name in ("cold", "warm"):
        assert ob(*words, f"hydra.run.dir={name}").returncode == 0
    cold, warm = (read(tmp_path / name / "metrics.json") for name in ("cold", "warm"))
    assert cold["counters"]["cache_hits"] == 0 and cold["counters"]["cache_misses"] == 3
    assert warm["counters"]["cache_hits"] == 3 and warm["counters"]["cache_misses"] == 0
    assert warm["artifacts"] == {"found": 3, "compiled": 0, "why": None} and cold["artifacts"]["compiled"] == 3
    assert warm["phases"]["compile_s"] < cold["phases"]["compile_s"]


def test_a_package_is_compiled_once_and_found_again(tiny, tmp_path):
    words = ["compile=aot", f"compile.package_dir={tmp_path}"]
    result, _, pipe, _, counted = at_work(tiny["flux"], *words)
    assert counted.calls["aot.called"] == 2 * 2 and counted.graphs == 0
    assert counted.calls["aot.compiled"] == counted.calls["aot.loaded"] == 1
    assert np.abs(result.images[0].pixels - pictures(tiny["flux"])[0]).max() < 1e-4
    package = list(tmp_path.rglob("*.pt2"))
    written = package[0].stat().st_mtime_ns
    again, *_, found = at_work(tiny["flux"], *words)
    assert "aot.compiled" not in found.calls and found.calls["aot.loaded"] == 1
    assert len(package) == 1 and package[0].stat().st_mtime_ns == written
    assert np.array_equal(again.images[0].pixels, result.images[0].pixels)
    assert type(pipe.transformer).__name__ == "FluxTransformer2DModel"


@pytest.mark.parametrize("cache", [[], ["cache=first_block", "cache.threshold=1", "run.num_inference_steps=6"]])
def test_blocks_run_one_package_with_their_own_weights(cache, tiny, tmp_path_factory):
    folder = tmp_path_factory.getbasetemp() / "packages"
    words = ["compile=aot", "compile.regional=true", f"compile.package_dir={folder}", *cache]
    result, _, _, effects, counted = at_work(tiny["flux"], *words)
    assert "4 blocks run packages" in effects["compile=aot"].notes[0] and counted.calls["aot.called"] > 0
    assert np.abs(result.images[0].pixels - pictures(tiny["flux"], *cache)[0]).max() < 1e-4
    assert len(list(folder.rglob("*.pt2"))) in (2, 3)
    assert "Use compile.regional=false" in refusals(tiny["flux"], *words, "quant=int8_weight_only")


def test_a_package_is_of_its_own_weights(tiny):
    """Weights are part of a package: one that differs in a single number has another name."""
    import torch

    from optbuilder.transforms.aot import digest

    with preserved():
        _, pipe, _ = built(tiny["flux"])
        before = digest(pipe.transformer)
        with torch.no_grad():
            pipe.transformer.proj_out.weight[1, 1] += 1e-3
        assert digest(pipe.transformer) != before


def test_outputs_of_cuda_graphs_are_copied():
    """P31: on a GPU, the next replay would write over them."""
    import torch

    from optbuilder.transforms.compile import fresh_outputs

    held = torch.ones(2)
    out = fresh_outputs(lambda: (held, {"x": held, "n": 3}))()
    held.zero_()
    assert out[0].sum() == 2 and out[1]["x"].sum() == 2 and out[1]["n"] == 3


# --- parallel


def test_sharing_a_picture_needs_gpus_and_torchrun(tiny, monkeypatch):
    assert "finds none here" in refusals(tiny["flux"], "parallel=ulysses")
    config, choices = composed(*of(tiny["flux"]), "machine=h100", "parallel=ring")
    assert "torchrun --nproc-per-node" in resolve(config, choices).refusals[0]
    monkeypatch.setenv("WORLD_SIZE", "4")
    plan = resolve(config, choices)
    assert plan.refusals == [] and plan.transforms[-1].options == {"kind": "ring", "degree": 4}
    for words, reason in {
        "compile=full": "do not compile",
        "offload=model": "stay on its GPU",
        "attention=flex": "cannot share",
    }.items():
        config, choices = composed(*of(tiny["flux"]), "machine=h100", "parallel=ring", words)
        assert reason in " ".join(resolve(config, choices).refusals)
    config, choices = composed(*of(tiny["sdxl"]), "machine=h100", "parallel=ulysses")
    assert "has no plan for sharing its sequence" in resolve(config, choices).refusals[0]


def test_one_process_records_for_all(monkeypatch):
    from optbuilder.directories import hydra_folder, is_worker, run_directory

    assert not is_worker() and run_directory("generate").startswith("outputs/") and hydra_folder("generate") == ".hydra"
    monkeypatch.setenv("RANK", "1")
    assert is_worker() and run_directory("generate") == "." and hydra_folder("generate") is None
