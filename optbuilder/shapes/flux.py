"""The small FluxPipeline: a transformer with double and single blocks, a CLIP and a T5 encoder, trained together."""

import math
from pathlib import Path

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel
from torch import nn
from torch.nn import functional
from transformers import CLIPTextModel, CLIPTokenizer, T5Config, T5EncoderModel, T5Tokenizer

from optbuilder.shapes import data, draw, export, loop, tokens, vae
from optbuilder.shapes.sdxl import louder, text_config

BATCH = 32
DROPPED = 0.1  # share of prompts replaced by "", so that true_cfg_scale works
SHIFT = 3.0  # towards high noise: neighbouring latents are so alike that the shape is settled there
CLIP_WIDTH, T5_WIDTH = 64, 128
GRID = draw.SIDE // vae.FACTOR // 2  # image tokens a side: the pipeline packs 2 x 2 latents into one
CALL = "height=64, width=64, num_inference_steps=25, guidance_scale=0.0, max_sequence_length=16"
FOLDER = Path(__file__).parent / "shapes_flux"


def transformer() -> FluxTransformer2DModel:
    """A fresh transformer: 2 double and 4 single blocks of 3 heads."""
    return FluxTransformer2DModel(
        patch_size=1,
        in_channels=4 * vae.LATENT_CHANNELS,
        num_layers=2,
        num_single_layers=4,
        attention_head_dim=64,
        num_attention_heads=3,
        joint_attention_dim=T5_WIDTH,
        pooled_projection_dim=CLIP_WIDTH,
        guidance_embeds=False,
        axes_dims_rope=(16, 24, 24),
    )


def t5_encoder() -> T5EncoderModel:
    """A fresh T5 encoder."""
    return T5EncoderModel(
        T5Config(
            vocab_size=len(tokens.t5()),
            d_model=T5_WIDTH,
            d_kv=32,
            d_ff=256,
            num_layers=2,
            num_heads=4,
            feed_forward_proj="gated-gelu",
            dropout_rate=0.0,
        )
    )


def build() -> nn.ModuleDict:
    """The three models that are trained together, freshly initialized."""
    torch.manual_seed(0)
    clip = CLIPTextModel(text_config(CLIP_WIDTH, pad=tokens.clip(tokens.END).eos_token_id))
    return nn.ModuleDict({"transformer": transformer(), "text_encoder": louder(clip), "text_encoder_2": t5_encoder()})


def scheduler() -> FlowMatchEulerDiscreteScheduler:
    """Flux's, whose shift depends on the number of image tokens: SHIFT at our 64."""
    return FlowMatchEulerDiscreteScheduler(
        use_dynamic_shifting=True,
        base_image_seq_len=GRID**2,
        base_shift=math.log(SHIFT),
        max_shift=math.log(2 * SHIFT),
    )


def loss(net: nn.ModuleDict, lessons: data.Lessons, random: torch.Generator) -> torch.Tensor:
    """The squared error of the velocity at logit-normal noise levels, shifted."""
    latents, first, second = lessons.batch(BATCH, random)
    told = torch.rand(BATCH, 1, generator=random) >= DROPPED
    first, second = (torch.where(told, ids, lessons.empty[i]) for i, ids in enumerate((first, second)))
    noise = torch.randn(latents.shape, generator=random)
    sigma = (torch.randn(BATCH, generator=random) + math.log(SHIFT)).sigmoid()
    share = sigma.view(-1, 1, 1, 1)
    size = BATCH, latents.shape[1], 2 * GRID, 2 * GRID
    noisy, wanted = (
        FluxPipeline._pack_latents(x, *size) for x in ((1 - share) * latents + share * noise, noise - latents)
    )
    found = net["transformer"](
        hidden_states=noisy,
        timestep=sigma,
        pooled_projections=net["text_encoder"](first).pooler_output,
        encoder_hidden_states=net["text_encoder_2"](second)[0],
        txt_ids=torch.zeros(tokens.LENGTH, 3),
        img_ids=FluxPipeline._prepare_latent_image_ids(BATCH, GRID, GRID, torch.device("cpu"), torch.float32),
    ).sample
    return functional.mse_loss(found.float(), wanted)


def loss_on(net: nn.ModuleDict, lessons: data.Lessons) -> loop.Loss:
    """The loss of a random batch, for the training loop."""
    return lambda random: loss(net, lessons, random)


def tokenizers() -> tuple[CLIPTokenizer, T5Tokenizer]:
    """The CLIP encoder's and the T5 encoder's."""
    return tokens.clip(tokens.END), tokens.t5()


def train(work: Path, budget: loop.Budget, folder: Path = FOLDER) -> None:
    """Trains, or resumes, and writes the diffusers folder."""
    net, coder, (first, second) = build(), vae.load(work), tokenizers()
    lessons = data.lessons(work, coder.config.scaling_factor, coder.config.shift_factor, (first, second))
    if budget.compiled:
        for block in (*net["transformer"].transformer_blocks, *net["transformer"].single_transformer_blocks):
            block.compile(dynamic=False)
    state = loop.fit(net, loss_on(net, lessons), work / "flux.pt", budget)
    pipe = FluxPipeline(
        vae=coder,
        **net,
        tokenizer=first,
        tokenizer_2=second,
        scheduler=scheduler(),
    )
    export.write(pipe, folder, part="flux", call=CALL, steps=state["step"], minutes=state["seconds"] / 60)
