"""The last course: the shipped decoder alone, for sharper edges from the inexact latents that denoisers give."""

from pathlib import Path

import torch
from diffusers import AutoencoderKL
from torch import nn

from optbuilder.shapes import data, export, flux, loop, sdxl, vae

BATCH = 16
PEAK_RATE = 1e-3
NOISE = 0.2  # up to this share of the latents' standard deviation is added
FOLDERS = (sdxl.FOLDER, flux.FOLDER)  # both ship the same autoencoder


def small_first(pictures: data.Pictures) -> torch.Tensor:
    """How often each picture is to be shown: small and pointed shapes more, since a pixel matters more to them."""
    return pictures["masks"].float().mean((1, 2)).pow(-0.75)


def loss(coder: AutoencoderKL, pictures: data.Pictures, weights: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    """How far a random batch of pictures comes back from slightly wrong latents."""
    rows = torch.multinomial(weights, BATCH, replacement=True, generator=random)
    wanted = data.pixels(pictures, rows)
    with torch.no_grad():
        code = coder.encode(wanted).latent_dist.mode().float()
    level = NOISE / coder.config.scaling_factor * torch.rand(BATCH, 1, 1, 1, generator=random)
    found = coder.decode(code + level * torch.randn(code.shape, generator=random)).sample
    return vae.difference(found, wanted, pictures["masks"][rows])


def train(work: Path, budget: loop.Budget, folders: tuple[Path, ...] = FOLDERS) -> None:
    """Trains, or resumes, the decoder and writes it into the folders; encoder and latents stay what they are."""
    coder, pictures = AutoencoderKL.from_pretrained(folders[0] / "vae"), data.pictures(work)
    half, weights = nn.ModuleList([coder.decoder, coder.post_quant_conv]), small_first(pictures)
    loop.fit(half, lambda random: loss(coder, pictures, weights, random), work / "decoder.pt", budget, PEAK_RATE)
    for folder in folders:
        export.save(coder, folder / "vae")
