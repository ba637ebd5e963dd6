"""The picture autoencoder both models share: 64 x 64 pixels to 8 x 16 x 16 latents."""

from pathlib import Path

import torch
from diffusers import AutoencoderKL
from torch import nn
from torch.nn import functional

from optbuilder.shapes import data, draw, loop

BATCH = 16
ENCODED = 20_000  # pictures the denoisers learn from: eleven of each prompt are enough
PEAK_RATE = 1.5e-3
PRIOR_WEIGHT = 3e-4  # of the KL term: enough to keep the latents near a unit Gaussian, too little to blur
EDGE_WEIGHT = 4.0
CHANNELS = (32, 64, 64)
FACTOR = 2 ** (len(CHANNELS) - 1)  # pixels per latent, each way
LATENT_CHANNELS = 8


def build() -> AutoencoderKL:
    """A fresh autoencoder."""
    torch.manual_seed(0)
    return AutoencoderKL(
        block_out_channels=CHANNELS,
        down_block_types=("DownEncoderBlock2D",) * len(CHANNELS),
        up_block_types=("UpDecoderBlock2D",) * len(CHANNELS),
        layers_per_block=1,
        norm_num_groups=8,
        latent_channels=LATENT_CHANNELS,
        sample_size=draw.SIDE,
    )


def edges(masks: torch.Tensor) -> torch.Tensor:
    """How much each pixel's error counts: more within a pixel of the outline. uint8 (n, h, w) to float (n, 1, h, w)."""
    cover = masks.unsqueeze(1).float()
    band = functional.max_pool2d(cover, 3, 1, 1) + functional.max_pool2d(-cover, 3, 1, 1)
    return torch.where(band > 0, EDGE_WEIGHT, 1.0)


def difference(found: torch.Tensor, wanted: torch.Tensor, masks: torch.Tensor) -> torch.Tensor:
    """How far the found pictures are from the wanted ones, mostly at the outlines."""
    off = (found - wanted) * edges(masks)
    return off.abs().mean() + off.square().mean()


def loss(vae: AutoencoderKL, pictures: data.Pictures, random: torch.Generator) -> torch.Tensor:
    """How far a random batch comes back from what went in, plus the small pull to the prior."""
    rows = torch.randint(len(pictures["masks"]), (BATCH,), generator=random)
    wanted = data.pixels(pictures, rows)
    code = vae.encode(wanted).latent_dist
    found = vae.decode(code.sample(generator=random)).sample
    prior = 0.5 * (code.mean.float() ** 2 + code.var.float() - 1 - code.logvar.float()).mean()
    return difference(found, wanted, pictures["masks"][rows]) + PRIOR_WEIGHT * prior


def train(work: Path, budget: loop.Budget) -> None:
    """Trains, or resumes, the autoencoder and encodes pictures for the two models to learn."""
    pictures, vae = data.pictures(work), build()
    loop.fit(vae, lambda random: loss(vae, pictures, random), work / "vae.pt", budget, PEAK_RATE)
    latents = encode(vae.eval(), pictures)
    data.save(
        {"latents": latents, "config": scale(latents), "prompts": pictures["prompts"][: len(latents)]},
        work / "latents.pt",
    )


def load(work: Path) -> AutoencoderKL:
    """The trained autoencoder: averaged weights, and the latents' measured scale in its config."""
    vae = build().eval()
    vae.load_state_dict(torch.load(work / "vae.pt", weights_only=True)["average"])
    vae.register_to_config(**torch.load(work / "latents.pt", weights_only=True, mmap=True)["config"])
    return vae


@torch.inference_mode()
def encode(vae: nn.Module, pictures: data.Pictures, batch: int = 100) -> torch.Tensor:
    """The first pictures' most likely latents, unscaled: float16 (ENCODED or fewer, 8, 16, 16)."""
    rows = torch.arange(min(ENCODED, len(pictures["masks"]))).split(batch)
    with torch.autocast("cpu", torch.bfloat16, enabled=loop.has_bf16()):
        latents = [vae.encode(data.pixels(pictures, r)).latent_dist.mode() for r in rows]
    return torch.cat([part.half() for part in latents])


def scale(latents: torch.Tensor) -> dict[str, float]:
    """The config entries that bring these latents to mean 0 and standard deviation 1."""
    deviation, mean = torch.std_mean(latents.float())
    return {"scaling_factor": 1 / float(deviation), "shift_factor": float(mean)}
