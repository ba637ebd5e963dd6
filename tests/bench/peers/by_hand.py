"""The snippets of diffusers' guides, put together by a person."""

from __future__ import annotations

from typing import Any

from timed import measured


def build(work: dict[str, Any]) -> Any:
    import torch
    from diffusers import DiffusionPipeline

    pipe = DiffusionPipeline.from_pretrained(work["model"], dtype=torch.float32)
    denoiser = pipe.unet if hasattr(pipe, "unet") else pipe.transformer
    if work["technique"] == "compile":
        denoiser.compile_repeated_blocks(fullgraph=True)
    elif work["technique"] != "plain":
        raise NotImplementedError(f"diffusers has no {work['technique']}")
    return pipe


if __name__ == "__main__":
    measured(build)
