"""What plan.json and metrics.json hold, as far as anything reads it back. Records may come from anywhere."""

from __future__ import annotations

import re
from typing import Any

from optbuilder.foreign import decibels, number, plain_value, positive_number, text, whatever


def interval(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(number, value))


def name_of_a_picture(value: Any) -> bool:
    """Nothing outside of the run directory."""
    return isinstance(value, str) and re.fullmatch(r"images/\d+\.png", value) is not None


_MEMORY = {"rss_peak_bytes": positive_number, "device_allocated_peak_bytes?": positive_number}
_PART = {"median": number, "samples": [number], "n?": number, "interval?": interval}
_SPREAD = {
    "median": positive_number, "samples": [positive_number], "p90": number, "interval?": interval, "min?": number,
    "n?": number, "warnings?": [text],
}  # fmt: skip
_QUALITY = {
    "against": text, "psnr_min?": decibels, "ssim_min?": number, "max_difference?": decibels,
    "of_random_weights?": whatever,
    "speed?": {"speedup": positive_number, "interval?": interval, "break_even_images?": number},
}  # fmt: skip
_ENVIRONMENT = {"git?": {"commit?": text}, "versions?": {"*?": text}, "gpu?": {"sm_clock_mhz?": number}}

UNMEASURED = {"status": text, "reasons": [text], "job_key?": text, "environment?": _ENVIRONMENT}
MEASURED = {
    **UNMEASURED,
    "images?": [name_of_a_picture],
    "latency": {
        "call_s": _SPREAD, "images_per_s": positive_number, "calls?": [{"call": number}],
        **dict.fromkeys(("text_encode_s?", "denoise_s?", "decode_s?", "step_s?"), _PART),
    },
    "phases": {
        **dict.fromkeys(("import_s", "load_s", "first_call_s"), number), "transforms_s": {"*": number},
        "compile_s?": number, "first_image_s?": number,
    },
    "memory": {"phases": {"run": _MEMORY, "load?": _MEMORY, "warmup?": _MEMORY}, "weights_bytes": {"*": {"*": number}}},
    "quality?": _QUALITY,
    "artifacts?": {"found": number, "compiled": number, "why?": text},
    "denoiser?": {"parameters": number, "flops?": number},
    "energy?": {"joules_per_image": {"*": number}},
    "environment": _ENVIRONMENT,
}  # fmt: skip

_EFFECT = {"changes": {"*?": whatever}, "notes": [text]}
UNMEASURED_PLAN = {
    "model?": {"repo_id": text, "components": {"*": text}},
    "device?": text,
    "run?": {"*?": whatever},
    "transforms?": [{"stage": text, "option": text, "options": {"*?": whatever}, "effect?": _EFFECT}],
}

MEASURED_PLAN = {key.rstrip("?"): shape for key, shape in UNMEASURED_PLAN.items()}

OVERRIDES = {"hydra": {"overrides": {"task": [plain_value], "hydra": [plain_value]}}}

CONFIG = {  # of a model's component
    "_class_name?": text,
    "block_out_channels?": [positive_number],
    "down_block_types?": [text],
    "attention_head_dim?": lambda value: _sizes(value),
    "num_attention_heads?": lambda value: _sizes(value),
    "sample_size?": lambda value: _sizes(value),
}


def _sizes(value: Any) -> bool:
    return all(map(positive_number, value)) if isinstance(value, list) else positive_number(value)
