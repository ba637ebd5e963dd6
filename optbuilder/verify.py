"""Whether a bundle keeps its promise on this machine: versions, artifacts, pictures and speed, a row for each check."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from rich.table import Table
from rich.text import Text

from optbuilder.artifacts import compiled
from optbuilder.bundle import ARTIFACTS, with_artifacts
from optbuilder.environment import unfair
from optbuilder.errors import Refused
from optbuilder.job import Outcome, generate
from optbuilder.request import Image
from optbuilder.show import wide_console
from optbuilder.technique import installed_version


@dataclass(frozen=True)
class Check:
    """What was compared, whether it is as promised (None: nothing is promised here), and the figures."""

    name: str
    kept: bool | None
    text: str


def verify(folder: Path, bundle: Mapping[str, Any], model: str | None = None) -> list[Check]:
    """Run the bundle here and compare. Raises `Refused` where it cannot run: no such model, a package that lacks."""
    config = with_artifacts(bundle["config"], (folder / ARTIFACTS).absolute())
    if model:
        config["model"] = {**config["model"], "repo_id": model, "revision": None}
    checks = list(versions((folder / "requirements.txt").read_text(encoding="utf-8")))
    with tempfile.TemporaryDirectory() as directory:
        outcome = generate(config, bundle["choices"], Path(directory), record=False)
    if outcome.status == "refused":
        raise Refused(*outcome.reasons, *(["The bundle needs: " + bundle["needs"]["model"] + "."] if not model else []))
    checks.append(Check("run", outcome.status == "ok", " ".join([outcome.status, *outcome.reasons])))
    if "latency" in outcome.metrics:
        checks += measured(folder, bundle["promise"], outcome)
    return checks


def versions(lock: str) -> Iterator[Check]:
    """A row for every package in another version than the lock's, else one for all."""
    locked = [Requirement(line) for line in lock.splitlines()]
    there = {r.name: (installed_version(r.name) or "none").partition("+")[0] for r in locked}
    others = [r for r in locked if not r.specifier.contains(there[r.name], prereleases=True)]
    for other in others:
        yield Check("versions", False, f"{other}, here {there[other.name]}")
    if not others:
        yield Check("versions", True, f"{len(locked)} packages as locked")


def measured(folder: Path, promise: Mapping[str, Any], outcome: Outcome) -> Iterator[Check]:
    """The rows of a run that came to its end."""
    from optbuilder.baseline import pictures

    metrics = outcome.metrics
    elsewhere = list(unfair(promise["environment"], metrics["environment"]))
    yield artifacts(promise["counters"], metrics["counters"], elsewhere)
    yield same_pictures(outcome.pictures, pictures(folder), promise["psnr_min_elsewhere"], elsewhere)
    yield speed(promise, metrics["latency"]["call_s"], elsewhere)


def artifacts(promised: Mapping[str, Any], found: Mapping[str, Any], elsewhere: Sequence[str]) -> Check:
    """What was compiled is found again, and nothing else is compiled: what the artifacts are keyed by explains why."""
    there, anew = compiled(found)
    text = f"{there} found, {anew} compiled anew"
    if not sum(compiled(promised)):
        return Check("artifacts", None, "none in the bundle")
    if elsewhere:
        return Check("artifacts", None, f"{text}, since {elsewhere[0]}")
    return Check("artifacts", not anew, text)


def same_pictures(
    images: Sequence[Image], expected: Sequence[Image], psnr_elsewhere: float, elsewhere: Sequence[str]
) -> Check:
    """Bit-identical on the same hardware and versions; elsewhere within a distance, since rounding differs."""
    from optbuilder.baseline import as_recorded
    from optbuilder.quality import compared

    drawn = as_recorded(images)
    if sorted(i.pixels.shape for i in drawn) != sorted(i.pixels.shape for i in expected):
        return Check("pictures", False, f"{len(expected)} expected, {len(drawn)} drawn, or other sizes")
    found = compared(drawn, expected)
    same = found["max_difference"] < 0.5 / 255
    text = "bit-identical" if same else f"PSNR {float(found['psnr_min']):.1f} dB at worst"
    if elsewhere and not same:
        text += f", {psnr_elsewhere:.0f} dB asked, since {elsewhere[0]}"
    return Check("pictures", same or (bool(elsewhere) and float(found["psnr_min"]) >= psnr_elsewhere), text)


def speed(promise: Mapping[str, Any], found: Mapping[str, Any], elsewhere: Sequence[str]) -> Check:
    """The promised interval reaches up to what a call takes here, with some room; elsewhere no speed is promised."""
    from optbuilder.samples import ratio

    promised, room = promise["call_s"], promise["slower_at_most"]
    times = ratio(found["samples"], promised["samples"])
    between = "" if times["interval"] is None else " ({:.2f} to {:.2f})".format(*times["interval"])
    text = f"{found['median']:.3f} s, {times['ratio']:.2f}{between} times the promised {promised['median']:.3f} s"
    if elsewhere:
        return Check("speed", None, f"{text}: not promised, since {elsewhere[0]}")
    least = (found["interval"] or [found["median"]])[0]
    most = (promised["interval"] or [promised["median"]])[-1]
    return Check("speed", least <= room * most, f"{text}; at most {room} times its interval")


def print_checks(checks: Sequence[Check]) -> int:
    """The rows on the terminal, and the exit code: 1 if any promise is not kept."""
    table = Table("check", "as promised", "")
    words = {True: Text("yes", style="green"), False: Text("no", style="bold red"), None: Text("-")}
    for check in checks:
        table.add_row(check.name, words[check.kept], Text(check.text))
    wide_console().print(table)
    return 1 if any(check.kept is False for check in checks) else 0
