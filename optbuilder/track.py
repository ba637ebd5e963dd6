"""Send a run's figures and pictures to a tracker that people already use, through accelerate's trackers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

TRACKERS = {
    "tensorboard": "tensorboard",
    "mlflow": "mlflow",
    "wandb": "wandb",
    "trackio": "trackio",
    "aim": "aim",
}


def send(tracker: str, directory: Path, plan: Mapping[str, Any], metrics: Mapping[str, Any]) -> None:
    """Log a recorded run: its plan as parameters, every number in metrics.json as a scalar, and its pictures.

    The tracker is set up by its own environment variables (MLFLOW_TRACKING_URI and so on); files of tensorboard and aim
    go below the run directory.
    """
    import numpy as np
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS
    from PIL import Image

    made = LOGGER_TYPE_TO_CLASS[tracker](**_arguments(tracker, directory))
    made.start()
    made.store_init_configuration(dict(parameters(plan)))
    made.log(dict(scalars(metrics)), step=0)
    pictures = [np.asarray(Image.open(directory / name)) for name in metrics.get("images", [])]
    if pictures and hasattr(made, "log_images"):
        made.log_images(
            {"images": np.stack(pictures)}, step=0, **({"dataformats": "NHWC"} if tracker == "tensorboard" else {})
        )
    if hasattr(made, "finish"):
        made.finish()


def _arguments(tracker: str, directory: Path) -> dict[str, Any]:
    if tracker == "mlflow":
        return {"experiment_name": "optbuilder", "run_name": directory.name}
    folder = {"logging_dir": str(directory / tracker)} if tracker in ("tensorboard", "aim") else {}
    return {"run_name": "optbuilder" if tracker != "tensorboard" else directory.name, **folder}


def parameters(plan: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What was asked for, as words: the model, the option of each stage, and the run's settings."""
    yield "model", plan["model"]["repo_id"]
    for transform in plan["transforms"]:
        yield transform["stage"], transform["option"]
    for key, value in plan["run"].items():
        yield f"run.{key}", str(value)[:200]


def scalars(metrics: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Every number in a tree of figures, by its path; lists of samples are left to metrics.json."""
    for name, value in metrics.items():
        key = re.sub(r"[^\w.: /-]", "_", name)  # what mlflow takes in a name
        if isinstance(value, Mapping):
            yield from scalars(value, f"{prefix}{key}/")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            yield f"{prefix}{key}", float(value)
