"""Random pipelines of the UNet and the DiT family, small enough to run a step in milliseconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from diffusers import (
    AutoencoderKL,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    FluxPipeline,
    FluxTransformer2DModel,
    StableDiffusionXLPipeline,
    UNet2DConditionModel,
)
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection, T5Config, T5EncoderModel

from optbuilder.shapes import tokens


def vae(**kwargs: object) -> AutoencoderKL:
    blocks = {"down_block_types": ["DownEncoderBlock2D"] * 3, "up_block_types": ["UpDecoderBlock2D"] * 3}
    return AutoencoderKL(
        block_out_channels=[8, 8, 16], norm_num_groups=4, layers_per_block=1, latent_channels=4, **blocks, **kwargs
    )


def _clip_config(tokenizer: Any) -> CLIPTextConfig:
    ids = {key: getattr(tokenizer, key) for key in ("eos_token_id", "bos_token_id", "pad_token_id")}
    sizes = {"hidden_size": 32, "intermediate_size": 64, "projection_dim": 32, "max_position_embeddings": 16}
    return CLIPTextConfig(vocab_size=len(tokenizer), num_hidden_layers=2, num_attention_heads=2, **sizes, **ids)


def sdxl() -> StableDiffusionXLPipeline:
    torch.manual_seed(0)
    first, second = tokens.clip(tokens.END), tokens.clip("!")
    unet = UNet2DConditionModel(
        sample_size=16,
        block_out_channels=(32, 64),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        transformer_layers_per_block=(1, 2),
        attention_head_dim=(1, 2),
        cross_attention_dim=64,
        norm_num_groups=8,
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=8,
        projection_class_embeddings_input_dim=32 + 6 * 8,
    )
    return StableDiffusionXLPipeline(
        vae=vae(),
        unet=unet,
        scheduler=EulerDiscreteScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear"),
        text_encoder=CLIPTextModel(_clip_config(first)),
        text_encoder_2=CLIPTextModelWithProjection(_clip_config(second)),
        tokenizer=first,
        tokenizer_2=second,
    )


def flux() -> FluxPipeline:
    torch.manual_seed(0)
    clip, t5 = tokens.clip(tokens.END), tokens.t5()
    transformer = FluxTransformer2DModel(
        patch_size=1,
        in_channels=16,
        num_layers=2,
        num_single_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        pooled_projection_dim=32,
        axes_dims_rope=(4, 6, 6),
    )
    encoder = T5EncoderModel(T5Config(vocab_size=len(t5), d_model=32, d_kv=16, d_ff=64, num_layers=1, num_heads=2))
    return FluxPipeline(
        vae=vae(use_quant_conv=False, use_post_quant_conv=False, shift_factor=0.0),
        transformer=transformer,
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        text_encoder=CLIPTextModel(_clip_config(clip)),
        text_encoder_2=encoder,
        tokenizer=clip,
        tokenizer_2=t5,
    )


def save(folder: Path) -> dict[str, Path]:
    """Write both pipelines below a folder."""
    folders = {"sdxl": folder / "tiny_sdxl", "flux": folder / "tiny_flux"}
    sdxl().save_pretrained(folders["sdxl"])
    flux().save_pretrained(folders["flux"])
    return folders


def lora(folder: Path, target: Path, seed: int = 1, rank: int = 4) -> Path:
    """Write a random adapter for the pipeline in `folder`; gives its folder."""
    from diffusers import DiffusionPipeline
    from peft import LoraConfig, get_peft_model_state_dict

    torch.manual_seed(seed)
    pipe = DiffusionPipeline.from_pretrained(folder)
    name = "unet" if hasattr(pipe, "unet") else "transformer"
    denoiser = getattr(pipe, name)
    layers = ["to_q", "to_k", "to_v", "to_out.0"]
    denoiser.add_adapter(LoraConfig(r=rank, lora_alpha=rank, target_modules=layers, init_lora_weights=False))
    pipe.save_lora_weights(target, **{f"{name}_lora_layers": get_peft_model_state_dict(denoiser)})
    return target


def gguf(folder: Path, target: Path) -> Path:
    """Write the Flux transformer in `folder` as a GGUF file, its large matrices in Q8_0."""
    import numpy as np
    from diffusers import FluxTransformer2DModel
    from gguf import GGMLQuantizationType, GGUFWriter, quants

    writer = GGUFWriter(target, "flux")
    for name, tensor in FluxTransformer2DModel.from_pretrained(folder / "transformer").state_dict().items():
        array = tensor.numpy().astype(np.float32)
        if array.ndim == 2 and array.shape[1] % 32 == 0:
            q8 = GGMLQuantizationType.Q8_0
            writer.add_tensor(name, quants.quantize(array, q8), raw_dtype=q8)
        else:
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target
