"""Where Hydra looks for its plugins: the sweeper that plans a grid before it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf


class Grid(BasicSweeper):
    """The product of the command line's choices, as in Hydra's sweeper, run by `optbuilder.sweep` on any launcher."""

    def setup(self, *, hydra_context: Any, task_function: Any, config: Any) -> None:
        super().setup(hydra_context=hydra_context, task_function=task_function, config=config)
        self.outcomes = task_function.outcomes  # where the command line looks for how the jobs ended

    def sweep(self, arguments: list[str]) -> Any:
        if self.config.action not in ("generate", "plan"):
            return super().sweep(arguments)
        from optbuilder.record import completed  # Hydra imports every plugin at its start
        from optbuilder.settings import sweep_settings
        from optbuilder.sweep import plan_only, sweep

        settings, directory = sweep_settings(self.config.sweep), Path(self.config.hydra.sweep.dir)
        loader = self.hydra_context.config_loader
        parsed = OverridesParser.create(config_loader=loader).parse_overrides([*self._parse_config(), *arguments])
        grid = self.split_arguments(parsed, None)[0]

        def compose(words: list[str]) -> Any:
            return loader.load_sweep_config(self.config, words)

        if self.config.action == "plan":
            self.outcomes[:] = plan_only(grid, settings, compose)
            return None
        with completed(directory / "multirun.yaml") as file:
            OmegaConf.save(self.config, file)
        self.outcomes[:] = sweep(grid, settings, compose, self.launched, directory)

    def launched(self, jobs: list[list[str]], initial_job_idx: int) -> None:
        """Launch the jobs; one by one where none runs beside another: Hydra's own launcher holds the configs of all of
        its jobs until the last one has ended, a third of a megabyte each."""
        alone = isinstance(self.launcher, BasicLauncher)
        for number, batch in enumerate([job] for job in jobs) if alone else [(0, jobs)]:
            self.launcher.launch(batch, initial_job_idx + number)
