"""The small StableDiffusionXLPipeline: a UNet with cross attention and two CLIP text encoders, trained together."""

from pathlib import Path
from typing import Any

import torch
from diffusers import EulerDiscreteScheduler, StableDiffusionXLPipeline, UNet2DConditionModel
from torch import nn
from torch.nn import functional
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer

from optbuilder.shapes import data, draw, export, loop, tokens, vae

BATCH = 32
DROPPED = 0.1  # share of prompts replaced by zeros, as the pipeline does for the missing negative prompt
WIDTHS = (64, 96)  # of the two text encoders
TIME_IDS = (draw.SIDE, draw.SIDE, 0, 0, draw.SIDE, draw.SIDE)  # original size, crop, target size
TIME_WIDTH = 16
CALL = "num_inference_steps=25, guidance_scale=4.0"
FOLDER = Path(__file__).parent / "shapes_sdxl"


def text_config(width: int, pad: int, **more: Any) -> CLIPTextConfig:
    """A CLIP text encoder of this width; 32 channels a head."""
    tokenizer = tokens.clip(tokens.END)
    return CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=3,
        num_attention_heads=width // 32,
        max_position_embeddings=tokens.LENGTH,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=pad,
        **more,
    )


def louder(encoder: nn.Module) -> nn.Module:
    """Raises CLIP's token embeddings from standard deviation 0.02 to 0.5: a short training then hears the words."""
    nn.init.normal_(encoder.get_input_embeddings().weight, std=0.5)
    return encoder


def unet() -> UNet2DConditionModel:
    """A fresh UNet: SDXL's blocks, three resolutions (16, 8 and 4), attention at the lower two."""
    return UNet2DConditionModel(
        sample_size=draw.SIDE // vae.FACTOR,
        in_channels=vae.LATENT_CHANNELS,
        out_channels=vae.LATENT_CHANNELS,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        block_out_channels=(64, 128, 128),
        layers_per_block=1,
        transformer_layers_per_block=1,
        attention_head_dim=(1, 2, 2),  # heads per block: diffusers' name for it is a known misnomer
        norm_num_groups=16,
        cross_attention_dim=sum(WIDTHS),
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=TIME_WIDTH,
        projection_class_embeddings_input_dim=WIDTHS[1] + len(TIME_IDS) * TIME_WIDTH,
    )


def build() -> nn.ModuleDict:
    """The three models that are trained together, freshly initialized."""
    torch.manual_seed(0)
    end = tokens.clip(tokens.END).eos_token_id
    first = CLIPTextModel(text_config(WIDTHS[0], pad=end))
    second = CLIPTextModelWithProjection(text_config(WIDTHS[1], pad=0, projection_dim=WIDTHS[1]))
    return nn.ModuleDict({"unet": unet(), "text_encoder": louder(first), "text_encoder_2": louder(second)})


def scheduler() -> EulerDiscreteScheduler:
    """SDXL's noise schedule, predicting v and starting from the noisiest timestep, which flat backgrounds need."""
    return EulerDiscreteScheduler(
        beta_start=0.00085,
        beta_end=0.012,
        beta_schedule="scaled_linear",
        prediction_type="v_prediction",
        timestep_spacing="trailing",
    )


def words(net: nn.ModuleDict, first: torch.Tensor, second: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What SDXL's encode_prompt returns for these token ids: embeddings per token, and pooled."""
    one = net["text_encoder"](first, output_hidden_states=True)
    two = net["text_encoder_2"](second, output_hidden_states=True)
    return torch.cat([one.hidden_states[-2], two.hidden_states[-2]], dim=-1), two.text_embeds


def loss(net: nn.ModuleDict, lessons: data.Lessons, signal: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    """The squared error of v at random timesteps; `signal` is each timestep's share of the picture's variance."""
    latents, first, second = lessons.batch(BATCH, random)
    noise = torch.randn(latents.shape, generator=random)
    timesteps = torch.randint(len(signal), (BATCH,), generator=random)
    keep = signal[timesteps].sqrt().view(-1, 1, 1, 1)
    add = (1 - signal[timesteps]).sqrt().view(-1, 1, 1, 1)
    embeds, pooled = words(net, first, second)
    told = (torch.rand(BATCH, generator=random) >= DROPPED).float().unsqueeze(1)
    conditions = {"text_embeds": pooled * told, "time_ids": torch.tensor(TIME_IDS).repeat(BATCH, 1)}
    noisy = keep * latents + add * noise
    found = net["unet"](noisy, timesteps, embeds * told.unsqueeze(2), added_cond_kwargs=conditions).sample
    return functional.mse_loss(found.float(), keep * noise - add * latents)


def loss_on(net: nn.ModuleDict, lessons: data.Lessons) -> loop.Loss:
    """The loss of a random batch, for the training loop."""
    signal = scheduler().alphas_cumprod
    return lambda random: loss(net, lessons, signal, random)


def tokenizers() -> tuple[CLIPTokenizer, CLIPTokenizer]:
    """The first encoder's and the second's; they differ in what they pad with."""
    return tokens.clip(tokens.END), tokens.clip("!")


def train(work: Path, budget: loop.Budget, folder: Path = FOLDER) -> None:
    """Trains, or resumes, and writes the diffusers folder."""
    net, coder, (first, second) = build(), vae.load(work), tokenizers()
    lessons = data.lessons(work, coder.config.scaling_factor, 0.0, (first, second))  # SDXL's pipe does not shift
    if budget.compiled:
        net["unet"].compile(dynamic=False)
    state = loop.fit(net, loss_on(net, lessons), work / "sdxl.pt", budget)
    pipe = StableDiffusionXLPipeline(
        vae=coder,
        **net,
        tokenizer=first,
        tokenizer_2=second,
        scheduler=scheduler(),
        add_watermarker=False,
    )
    export.write(pipe, folder, part="sdxl", call=CALL, steps=state["step"], minutes=state["seconds"] / 60)
