"""Two run directories side by side: `python -m optbuilder.compare RUN_A RUN_B`."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.table import Column, Table
from rich.text import Text

from optbuilder.environment import unfair
from optbuilder.errors import Refused
from optbuilder.job import read_record
from optbuilder.noise import hush
from optbuilder.record import completed, model_name
from optbuilder.show import bytes_text, wide_console


def main() -> None:
    """Print the comparison and write the pictures beside each other. Exits with 2 for what is no run directory."""
    try:
        if len(sys.argv) != 3:
            raise Refused(
                f"{len(sys.argv) - 1} folders: two are compared. Write python -m optbuilder.compare RUN_A RUN_B."
            )
        hush()
        one, other = (Path(word) for word in sys.argv[1:])
        show(one, read(one), other, read(other))
    except Refused as refused:
        print(refused, file=sys.stderr)
        sys.exit(2)


def read(directory: Path) -> dict[str, Any]:
    """The plan and metrics of a run directory. Raises `Refused` where there are none."""
    try:
        return dict(zip(("plan", "metrics"), read_record(directory), strict=True))
    except (OSError, ValueError) as error:
        raise Refused(f"{str(directory)!r}: it is no run directory ({error}). Use the folder of a run.") from None


def show(one: Path, a: Mapping[str, Any], other: Path, b: Mapping[str, Any]) -> None:
    """The comparison on the terminal, and a contact sheet where both have pictures of the same prompts and seeds."""
    console = wide_console()
    table = Table("", Column(Text(str(one))), Column(Text(str(other))), "")
    random = any((side["plan"].get("model") or {}).get("weights") == "dummy" for side in (a, b))
    for row in [*rows(a, b), *([] if random else picture_rows(one, other))]:
        table.add_row(*map(Text, row))
    console.print(table)
    for line in unfair(a["metrics"]["environment"] or {}, b["metrics"]["environment"] or {}):
        console.print(f"not a fair comparison: {line}", style="yellow", markup=False)
    if sheet := contact_sheet(one, other):
        console.print(f"pictures (first, second, difference): {sheet}", markup=False)


def rows(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    """Status, config differences, effects, speed with its interval, memory, and quality."""
    yield "status", a["metrics"]["status"], b["metrics"]["status"], ""
    left, right = dict(_flat(_asked(a["plan"]))), dict(_flat(_asked(b["plan"])))
    for key in sorted(left.keys() | right.keys()):
        if left.get(key) != right.get(key):
            yield key, str(left.get(key, "")), str(right.get(key, "")), "differs"
    yield from _effects(a["plan"], b["plan"])
    if "latency" in a["metrics"] and "latency" in b["metrics"]:
        yield from _figures(a["metrics"], b["metrics"])
        yield from _qualities(a["metrics"]["quality"] or {}, b["metrics"]["quality"] or {})


def _effects(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    """What each transform did, where it is not the same in both: what it said, and the facts that it changed."""
    told = [{t["stage"]: _effect(t["effect"]) for t in p.get("transforms", []) if t["effect"]} for p in (a, b)]
    for stage in dict.fromkeys([*told[0], *told[1]]):
        if told[0].get(stage) != told[1].get(stage):
            yield f"effect {stage}", *(each.get(stage, "") for each in told), ""


def _effect(effect: Mapping[str, Any]) -> str:
    facts: dict[str, list[str]] = {}
    for name in effect["changes"]:
        component, _, fact = name.rpartition(".")
        facts.setdefault(fact, []).append(component)
    changed = "; ".join(f"{fact} of {', '.join(components)}" for fact, components in facts.items())
    return ". ".join([*effect["notes"], *([f"changed {changed}"] if changed else [])])


def _qualities(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    """How far each is from what it was compared with itself."""
    for name in ("psnr_min", "ssim_min", "max_difference"):
        values = [q.get(name) for q in (a, b)]
        if values != [None, None]:
            yield f"quality {name}", *("" if v is None else f"{float(v):.4g}" for v in values), ""


def picture_rows(one: Path, other: Path) -> Iterator[tuple[str, str, str, str]]:
    """How far the second run's pictures are from the first's, of the prompts and seeds that both have."""
    from optbuilder.baseline import pictures
    from optbuilder.quality import compared, key

    first, second = pictures(one), pictures(other)
    seen = {key(image) for image in first}
    both = [image for image in second if key(image) in seen]
    if both:
        found = compared(both, first)
        yield "pictures, second against first", "", f"PSNR {float(found['psnr_min']):.1f} dB", f"n={len(both)}"
        yield "", "", f"SSIM {found['ssim_min']:.4f}", f"largest difference {found['max_difference']:.3f}"


def _figures(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    from optbuilder.samples import ratio

    for name in ("call_s", "text_encode_s", "denoise_s", "decode_s", "step_s"):
        left, right = a["latency"][name], b["latency"][name]
        both = left and right and left["samples"] and right["samples"] and statistics.median(right["samples"])
        found = ratio(left["samples"], right["samples"]) if both else None
        interval = f" ({found['interval'][0]:.2f} to {found['interval'][1]:.2f})" if found and found["interval"] else ""
        faster = f"{found['ratio']:.2f}x{interval}" if found else ""
        counted = (f"{x['median']:.4f} (n={len(x['samples'])})" if x else "" for x in (left, right))
        yield f"latency {name}", *counted, faster
    for phase in ("load", "warmup", "run"):
        pair = [m["memory"]["phases"][phase] for m in (a, b)]
        if None not in pair:
            yield _bytes_row(f"memory {phase}", *(memory["rss_peak_bytes"] for memory in pair))
    yield _bytes_row("weights", *(sum(sum(s.values()) for s in m["memory"]["weights_bytes"].values()) for m in (a, b)))
    for name in ("load_s", "first_call_s", "first_image_s"):
        values = [m["phases"][name] for m in (a, b)]
        yield f"phase {name}", *("" if v is None else f"{v:.2f}" for v in values), ""


def _bytes_row(name: str, left: float, right: float) -> tuple[str, str, str, str]:
    return name, bytes_text(left), bytes_text(right), f"{right / left:.2f}x" if left else ""


def _asked(plan: Mapping[str, Any]) -> dict[str, Any]:
    stages = {t["stage"]: {"option": t["option"], **t["options"]} for t in plan.get("transforms", [])}
    return {
        "model": model_name(plan["model"]) if plan.get("model") else None,
        "device": plan.get("device"),
        "run": {key: value for key, value in plan.get("run", {}).items() if key != "compare"},
        **stages,
    }


def _flat(node: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in node.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def contact_sheet(one: Path, other: Path) -> Path | None:
    """Each picture of both runs with the same prompt and seed in a row: first, second, and four times their difference.

    Written beside the second run's plan as compared.png; None where they have no picture in common.
    """
    import numpy as np
    from PIL import Image

    from optbuilder.baseline import pictures
    from optbuilder.quality import key

    seen = {key(image): image.pixels for image in pictures(one)}
    same_size = [(seen[key(image)], image.pixels) for image in pictures(other) if key(image) in seen]
    if not same_size:
        return None
    lines = [np.concatenate([a, b, np.clip(np.abs(a - b) * 4, 0, 1)], axis=1) for a, b in same_size]
    widest = max(line.shape[1] for line in lines)
    lines = [np.pad(line, ((0, 0), (0, widest - line.shape[1]), (0, 0))) for line in lines]
    target = other / "compared.png"
    with completed(target) as file:
        Image.fromarray((np.concatenate(lines) * 255).round().astype("uint8")).save(file, format="PNG")
    return target


if __name__ == "__main__":
    main()
