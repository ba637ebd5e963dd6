"""cache-dit as its documentation shows it, with the options that optbuilder's cache=dbcache has by default."""

from __future__ import annotations

from typing import Any

from timed import measured


def build(work: dict[str, Any]) -> Any:
    import torch
    from diffusers import DiffusionPipeline

    pipe = DiffusionPipeline.from_pretrained(work["model"], dtype=torch.float32)
    if work["technique"] == "compile":
        denoiser = pipe.unet if hasattr(pipe, "unet") else pipe.transformer
        denoiser.compile_repeated_blocks(fullgraph=True)
    elif work["technique"] == "dbcache":
        import cache_dit

        config = cache_dit.DBCacheConfig(
            Fn_compute_blocks=1, Bn_compute_blocks=0, max_warmup_steps=2, max_cached_steps=-1,
            residual_diff_threshold=0.08,
        )  # fmt: skip
        cache_dit.enable_cache(pipe, cache_config=config)
    return pipe


if __name__ == "__main__":
    measured(build)
