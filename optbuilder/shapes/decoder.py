"""A second course for the autoencoder's decoder alone: sharper edges, from latents as inexact as a denoiser's."""

from pathlib import Path

import torch
from torch import nn

from optbuilder.shapes import data, loop, vae

BATCH = 16
PEAK_RATE = 1e-3
NOISE = 0.2  # up to this share of the latents' standard deviation is added


def build(work: Path) -> nn.ModuleDict:
    """The decoding half of the trained autoencoder."""
    coder = vae.load(work)
    return nn.ModuleDict({"decoder": coder.decoder, "post_quant_conv": coder.post_quant_conv})


def small_first(pictures: data.Pictures, count: int) -> torch.Tensor:
    """How often each of the first pictures is to be shown: small shapes more, since a pixel matters more to them."""
    return pictures["masks"][:count].float().mean((1, 2)).pow(-0.75)


def loss(
    net: nn.ModuleDict,
    pictures: data.Pictures,
    latents: torch.Tensor,
    weights: torch.Tensor,
    noise: float,
    random: torch.Generator,
) -> torch.Tensor:
    """How far a random batch of slightly wrong latents decodes from its pictures."""
    rows = torch.multinomial(weights, BATCH, replacement=True, generator=random)
    level = noise * torch.rand(BATCH, 1, 1, 1, generator=random)
    code = latents[rows].float() + level * torch.randn(BATCH, *latents.shape[1:], generator=random)
    found = net["decoder"](net["post_quant_conv"](code))
    return vae.difference(found, data.pixels(pictures, rows), pictures["masks"][rows])


def train(work: Path, budget: loop.Budget) -> None:
    """Trains, or resumes, the decoder; the encoder and with it the latents stay what they are."""
    net, pictures = build(work), data.pictures(work)
    kept = torch.load(work / "latents.pt", weights_only=True)
    noise = NOISE / kept["config"]["scaling_factor"]
    weights = small_first(pictures, len(kept["latents"]))
    loop.fit(
        net,
        lambda random: loss(net, pictures, kept["latents"], weights, noise, random),
        work / "decoder.pt",
        budget,
        PEAK_RATE,
    )
