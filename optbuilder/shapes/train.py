"""python -m optbuilder.shapes.train vae|sdxl|flux|decoder: trains a part of the shapes models on this machine's CPU."""

import argparse
import importlib
from pathlib import Path

import torch

from optbuilder.shapes import data, loop


def main(arguments: list[str] | None = None) -> None:
    """Trains the part named on the command line, resuming what the work folder holds."""
    parser = argparse.ArgumentParser(prog="python -m optbuilder.shapes.train", description=__doc__)
    parser.add_argument("part", choices=("vae", "sdxl", "flux", "decoder"), help="in this order")
    parser.add_argument("--minutes", type=float, default=50.0, help="in all, earlier runs included; 0: export only")
    parser.add_argument("--work", type=Path, default=data.WORK, help="checkpoints and latents go here")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--compile", action="store_true", help="compile the denoiser: pays off from 15 minutes on")
    given = parser.parse_args(arguments)
    torch.set_num_threads(given.threads)
    torch.set_flush_denormal(True)  # AdamW's fading averages would slow every step down
    part = importlib.import_module(f"optbuilder.shapes.{given.part}")
    part.train(given.work, loop.Budget(minutes=given.minutes, compiled=given.compile))


if __name__ == "__main__":
    main()
