"""Videos: the mp4 file of one, and a picture that stands for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SHOWN = 4  # frames in the picture that stands for a video
FPS = 10  # frames per second where neither the run nor the model says: that of diffusers' export_to_video


def still(pixels: Any) -> Any:
    """A picture (height, width, 3) as it is; of a video (frames, height, width, 3), frames from its start to its end
    beside each other: a few values of it, but those without loss."""
    import numpy as np

    if pixels.ndim == 3:
        return pixels
    chosen = np.linspace(0, len(pixels) - 1, min(SHOWN, len(pixels))).round().astype(int)
    return np.concatenate([pixels[i] for i in chosen], axis=1)


def write_video(path: Path, frames: Any, fps: int, comment: str) -> None:
    """Write frames (floats in 0..1) as H.264 in mp4, with a comment in the file. Lossy, and small."""
    import imageio.v2 as imageio
    import numpy as np

    inside = ["-f", "mp4", "-metadata", f"comment={comment}"]
    with imageio.get_writer(
        path, format="FFMPEG", mode="I", fps=fps, quality=8, macro_block_size=2, output_params=inside
    ) as writer:
        for frame in (np.clip(frames, 0, 1) * 255).round().astype("uint8"):
            writer.append_data(frame)
