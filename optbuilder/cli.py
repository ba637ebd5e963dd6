"""The command line: `python -m optbuilder group=option key=value ...`, and `-m` for a grid."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from optbuilder.builder import resolve
from optbuilder.bundle import bundle
from optbuilder.directories import is_worker
from optbuilder.environment import cpu_name, process_age_s
from optbuilder.errors import Refused, nearest
from optbuilder.folders import CONF
from optbuilder.isolation import isolated
from optbuilder.job import Outcome, generate, refused
from optbuilder.options import options
from optbuilder.overrides import explained, group_of, prepared, translated
from optbuilder.permissions import own_code_only, require_permission
from optbuilder.recipe import with_recipe
from optbuilder.record import plan_json
from optbuilder.script import script
from optbuilder.show import print_options, print_plan, print_summary, print_sweep
from optbuilder.usage import usage

ACTIONS = ("generate", "plan", "options", "script", "search", "bundle")


def main() -> None:
    """Run what the command line asks for. The exit code is 0 if every job did it, 2 for a mistake, 1 for a failure."""
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # Hydra raises, and the message is ours
    if {"-h", "--help"} & set(sys.argv[1:]):  # Hydra's own help reads every group several times and knows no summaries
        sys.exit(print(usage(CONF)))
    outcomes: list[Any] = []

    def task(cfg: DictConfig) -> None:
        outcomes.append(act(cfg, HydraConfig.get()))

    task.outcomes = outcomes  # type: ignore[attr-defined] - a sweeper puts there how its jobs ended, wherever they ran
    with translated(CONF), own_code_only():
        sys.argv[1:] = prepared(sys.argv[1:], CONF)
        hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(task)()
    sys.exit(report(outcomes))


def act(cfg: DictConfig, hydra_config: DictConfig) -> Any:
    """Do what the config's `action` says."""
    directory, choices = Path(hydra_config.runtime.output_dir), hydra_config.runtime.choices
    try:
        config = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
        if cfg.action not in ACTIONS:
            raise Refused(f"action={cfg.action!r}: there is no such action. {nearest(str(cfg.action), ACTIONS)}")
        if cfg.action in ("generate", "search", "bundle") and config["machine"]:
            raise Refused("machine: a described machine has nothing to run on. Use action=plan or action=options.")
        config, choices = with_recipe(config, choices, hydra_config.overrides.task)
        require_permission(config, hydra_config.overrides.task)
        if cfg.action == "generate":
            return run_job(config, choices, hydra_config)
        if cfg.action == "search":
            return run_search(config, hydra_config)
        if cfg.action == "bundle":
            return bundle(config, choices, directory)
        if cfg.action == "script":
            return show_script(config, choices)
        return show_plan(config, choices) if cfg.action == "plan" else show_options(config)
    except OmegaConfBaseException as error:
        reasons = [explained(error, CONF, sys.argv[1:])]
    except Refused as error:
        reasons = error.reasons
    return refused(directory, reasons, record=cfg.action in ("generate", "bundle") and not is_worker())


def run_job(config: Mapping[str, Any], choices: Mapping[str, str], hydra_config: DictConfig) -> Outcome:
    """Generate: a single job in this process, those of a grid each in one of its own."""
    directory = Path(hydra_config.runtime.output_dir)
    if hydra_config.mode == RunMode.MULTIRUN and config["run"]["isolation"] != "none":
        return isolated(
            config, dict(choices), directory, OmegaConf.to_container(hydra_config.job_logging, resolve=True)
        )
    return generate(config, choices, directory, record=not is_worker())


def run_search(config: Mapping[str, Any], hydra_config: DictConfig) -> Outcome:
    """Search, and print the answer; exit code 130 after Ctrl-C, with the best so far."""
    from optbuilder.search.run import Search, search  # Optuna is an extra
    from optbuilder.search.settings import search_settings
    from optbuilder.search.space import space_of

    settings = search_settings(config["search"], config["stages"])
    words = [w for w in hydra_config.overrides.task if group_of(w) not in ("action", "search")]
    plan = resolve(config, hydra_config.runtime.choices).require()
    if plan.model.weights == "dummy" and settings.limits.least:
        why = "pictures of random weights have no quality to keep. Leave it out, or use model.weights=pretrained"
        raise Refused(f"search.min_{min(settings.limits.least)}: {why}.")
    space = space_of(config, option_nodes(config["stages"]), words, settings, len(plan.run.prompts))
    master, loader = OmegaConf.create({"hydra": hydra_config}), GlobalHydra.instance().config_loader()
    log_settings = OmegaConf.to_container(hydra_config.job_logging, resolve=True)
    directory = Path(hydra_config.runtime.output_dir)
    machine = f"{plan.machine.device} {plan.machine.name or cpu_name()}"
    until = time.monotonic() - process_age_s() + settings.budget_s  # the budget counts from the command on
    given = Search(
        settings, words, lambda w: loader.load_sweep_config(master, w), log_settings, directory, machine, until
    )
    found = search(given, space)
    print(*found.said, f"files       {directory}", sep="\n")
    if found.stopped:
        raise KeyboardInterrupt
    return Outcome("ok" if found.winner else "failed", directory)


def show_plan(config: Mapping[str, Any], choices: Mapping[str, str]) -> Outcome:
    plan = resolve(config, choices)
    told = plan_json(plan, "")
    print_plan(told)
    return Outcome("refused" if plan.refusals else "ok", Path(), plan.refusals, plan=told)


def show_script(config: Mapping[str, Any], choices: Mapping[str, str]) -> Outcome:
    print(script(resolve(config, choices).require()), end="")
    return Outcome("ok", Path())


def show_options(config: Mapping[str, Any]) -> Outcome:
    print_options(options(config, option_nodes(config["stages"])), config["model"]["repo_id"])
    return Outcome("ok", Path())


def option_nodes(stages: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """The config of every option of every stage, from everywhere Hydra looks (--config-dir too)."""
    loader = GlobalHydra.instance().config_loader()
    folders = [
        Path(p.path.removeprefix("file://"))
        for p in loader.get_search_path().get_path()
        if "://" not in p.path.removeprefix("file://")
    ]
    found: dict[str, dict[str, Any]] = {}
    for stage in stages:
        files = {f.stem: f for folder in reversed(folders) for f in sorted((folder / stage).glob("*.yaml"))}
        found[stage] = {
            name: OmegaConf.to_container(OmegaConf.load(f)) or {} for name, f in files.items() if name != "none"
        }
    return found


def report(outcomes: list[Outcome]) -> int:
    """Print how the jobs ended, and return the exit code: of a grid, refused jobs are results, not mistakes."""
    if is_worker():
        outcomes = []
    recorded = [outcome for outcome in outcomes if outcome.metrics]
    if len(recorded) > 1:
        print_sweep({outcome.directory.name: outcome for outcome in recorded}, told=("refused", "skipped"))
        print(*(recorded[0].directory.parent / name for name in ("results.csv", "report.html")), sep="\n")
    elif len(outcomes) > 1:
        print_sweep({str(number): outcome for number, outcome in enumerate(outcomes)})
    elif recorded and recorded[0].status != "refused":
        print_summary(recorded[0])
    for reason in (r for outcome in outcomes[:1] for r in outcome.reasons if len(outcomes) == 1):
        print(reason, file=sys.stderr)
    statuses = {outcome.status for outcome in outcomes}
    return 1 if statuses - {"ok", "skipped", "refused"} else 2 if statuses == {"refused"} else 0
