"""The shipped folders draw what prompts ask for, words never seen together included; and in every precision."""

from functools import cache

import numpy as np
import pytest
import torch
from diffusers import DiffusionPipeline

from optbuilder.shapes import accept, flux, sdxl

FOLDERS = {"sdxl": sdxl.FOLDER, "flux": flux.FOLDER}


@cache
def loaded(name: str) -> DiffusionPipeline:
    """A shipped pipe."""
    pipe = DiffusionPipeline.from_pretrained(FOLDERS[name])
    pipe.set_progress_bar_config(disable=True)
    return pipe


@pytest.mark.parametrize("name", FOLDERS)
def test_prompts_are_drawn(name: str) -> None:
    samples = accept.generate(loaded(name), accept.asked(24), batch=24)
    assert accept.accuracy(samples)["all"] >= 0.85, accept.report(samples)


@pytest.mark.slow
@pytest.mark.parametrize("name", FOLDERS)
def test_95_of_100_prompts_are_drawn(name: str) -> None:
    samples = accept.generate(loaded(name), accept.asked(200))
    assert accept.accuracy(samples)["all"] >= 0.95, accept.report(samples)
    assert accept.accuracy(samples, lambda s: "new" if s.new else "known")["new"] >= 0.9, accept.report(samples)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", FOLDERS)
def test_the_vae_decodes_alike_in_half_precision(name: str, dtype: torch.dtype) -> None:
    pipe = loaded(name)
    picture = accept.draw.draw(accept.draw.Drawing("star", "", "red", "blue", 32, 32, 16))
    pixels = pipe.image_processor.preprocess(picture)
    with torch.inference_mode():
        latents = pipe.vae.encode(pixels).latent_dist.mode()
        full = pipe.vae.decode(latents).sample
        half = DiffusionPipeline.from_pretrained(FOLDERS[name], torch_dtype=dtype).vae.decode(latents.to(dtype)).sample
    assert np.isfinite(half.float().numpy()).all()
    assert (full - half.float()).abs().mean() < 0.02


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_is_small_and_names_no_machine(name: str) -> None:
    files = [path for path in FOLDERS[name].rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 30e6
    assert any(path.name == "README.md" for path in files)
    for path in files:
        if path.suffix == ".json":
            text = path.read_text()
            assert "_name_or_path" not in text and "/root" not in text and "/home" not in text, path
