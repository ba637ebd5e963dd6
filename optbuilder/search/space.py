"""What a search may try: the options of every stage that the plan accepts here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from optbuilder.errors import Refused
from optbuilder.options import options
from optbuilder.overrides import group_of
from optbuilder.search.propose import DEAR, Space
from optbuilder.search.settings import BATCH, SearchSettings

# Stages that make a call slower: they are tried only where memory counts. The first ones are tried first.
SAVING_MEMORY = ("vae", "offload")
ORDER = ("precision", "attention", "cache", "fusion", "layout", "quant", "vae", "offload", "kernels", "scheduler")


def space_of(
    config: Mapping[str, Any], nodes: Mapping[str, Mapping[str, Any]], words: Sequence[str], settings: SearchSettings,
    prompts: int,
) -> Space:  # fmt: skip
    """The options of every stage that the plan accepts here, without the stages fixed on the command line.

    `search.space` narrows a stage, adds one that is left out, and gives an option (`cache.threshold`) values to try.
    Where throughput counts, it is also tried how many of the prompts may go into one call.
    """
    fixed, asked = {group_of(word) for word in words}, settings.space or {}
    left = [stage for stage in _stages(settings, asked) if stage in nodes and stage not in fixed]
    usable = [o for o in options(config, {stage: nodes[stage] for stage in left}) if not o.reasons]
    usable = [o for o in usable if o.lossless or not settings.lossless]
    found = {stage: [o.name for o in usable if o.stage == stage and o.name != "fp32"] for stage in left}
    for stage, allowed in asked.items():
        wrong = sorted(set(allowed) - {*nodes[stage], "none", "fp32"}) if stage in nodes else ()
        if wrong:
            raise Refused(f"search.space.{stage}: there is no {stage}={wrong[0]}. Use {', '.join(nodes[stage])}.")
        if stage in found:
            found[stage] = [name for name in found[stage] if name in allowed]
        elif "." in stage:
            found[stage] = [str(value) for value in allowed]
    if "throughput" in settings.objectives and not any(word.startswith(f"{BATCH}=") for word in words):
        found.setdefault(BATCH, [str(n) for n in range(2, prompts + 1) if prompts % n == 0])
    return {stage: names for stage, names in found.items() if names}


def _stages(settings: SearchSettings, asked: Mapping[str, Any]) -> list[str]:
    memory = "memory" in {*settings.objectives, *settings.limits.most}
    return [s for s in (*ORDER, DEAR) if memory or s in asked or s not in SAVING_MEMORY]
