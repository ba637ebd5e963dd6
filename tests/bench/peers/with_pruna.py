"""Pruna's smash, as its documentation shows it."""

from __future__ import annotations

from typing import Any

from timed import measured


def build(work: dict[str, Any]) -> Any:
    import torch
    from diffusers import DiffusionPipeline
    from pruna import SmashConfig, smash

    config = SmashConfig(device="cpu")
    if work["technique"] == "compile":
        config.add({"torch_compile": {"fullgraph": True, "target": "module_list"}})
    elif work["technique"] != "plain":
        raise NotImplementedError(f"pruna has no {work['technique']}")
    pipe = DiffusionPipeline.from_pretrained(work["model"], dtype=torch.float32)
    return smash(model=pipe, smash_config=config)


if __name__ == "__main__":
    measured(build)
