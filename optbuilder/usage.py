"""The text of --help: what to write, and every option of every group with its own first line."""

from __future__ import annotations

from pathlib import Path

INTRO = """\
optbuilder builds an optimized diffusion pipeline from the techniques you name, runs it and measures it.

  python -m optbuilder precision=bf16 compile=regional             one job
  python -m optbuilder -m precision=fp32,bf16 compile=none,regional    a grid: one job per combination
  python -m optbuilder action=plan quant=int8_dynamic              what would be done, in which order, and why
  python -m optbuilder action=options model=shapes_flux            what is usable on this machine with this model
  python -m optbuilder action=search search.budget=20m             the fastest plan within limits, and why
  python -m optbuilder action=script precision=bf16 compile=full   the same pipeline as plain diffusers code
  python -m optbuilder action=bundle compile=full                  a run to take elsewhere, which verifies itself there
  python -m optbuilder --cfg job quant=int8_dynamic                every value that can be overridden
  python -m optbuilder --config-dir=<folder> quant=mine            with options of your own: <folder>/quant/mine.yaml
  python -m optbuilder --hydra-help                                Hydra's own flags

Groups and their options (group=option):
"""


def usage(conf: Path) -> str:
    """The help text for the groups below `conf`."""
    lines = [INTRO]
    for group in sorted({path.parent for path in conf.rglob("*.yaml")} - {conf}):
        lines.append(group.relative_to(conf).as_posix())
        for option in sorted(group.glob("*.yaml")):
            lines.append(f"  {option.stem:<30}{summary(option)}")
    return "\n".join(lines)


def summary(option: Path) -> str:
    """What an option's file says of it in its first comment, without the command."""
    comments = [line.lstrip("# ") for line in option.read_text(encoding="utf-8").splitlines() if line.startswith("# ")]
    first = comments[0].partition("     ")[2] if comments else ""
    return first or next((line for line in comments if not line.startswith(("python -m", "@package"))), "")
