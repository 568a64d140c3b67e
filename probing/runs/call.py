"""A call of a command: what all commands do before they measure, and with what they have measured."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probing.cli.choices import FIGURE_FORMAT, figure_formats
from probing.cli.option_values import number_problems
from probing.cli.options import WandbOptions
from probing.errors import refuse
from probing.models import layer_numbers
from probing.results.csv_files import write_tables
from probing.results.schema import Row
from probing.runs.folder import RunFolder
from probing.runs.places import keep_inputs, only_accelerator, places, say_results
from probing.runs.result import Result
from probing.runs.study import Study
from probing.runs.tracked import tracking
from probing.runtime import terminal
from probing.runtime.distributed import refuse_several
from probing.runtime.stopwatch import Stopwatch
from probing.runtime.versions import versions
from probing.tracking import resolve_mode

if TYPE_CHECKING:
    from probing.cache.source import ActivationSource


@dataclass(frozen=True)
class Measured:
    """What a study has measured.

    Args:
        tables: Rows by the name of their table.
        results: What else belongs into `results.json`: plain values.
        curves: A row per layer for the curves of W&B, or per value of `axis`.
        axis: The column over which these are drawn.
        draw: Draws the figures into a folder, in some formats, and returns their paths.
        write: Writes other files into the folder of the results, and returns their paths.
    """

    tables: Mapping[str, Sequence[Row]]
    results: Mapping[str, Any] = field(default_factory=dict)
    curves: Sequence[Row] = ()
    axis: str = "layer"
    draw: Callable[[Path, Sequence[str]], list[Path]] | None = None
    write: Callable[[Path], list[Path]] | None = None


@dataclass(frozen=True)
class Call:
    """A call of a command that has been checked as far as that needs neither model nor text.

    Args:
        study: What is studied.
        config: The resolved options, without the name; objects in it are replaced by text before it is written.
        name: Name of the run; None for one with the time in it.
        wandb: Where and how to track it.
        cached: Folder of the cache.
        place: Folder of runs.
        watch: The times so far.
    """

    study: Study
    config: dict[str, Any]
    name: str | None
    wandb: WandbOptions
    cached: Path
    place: Path
    watch: Stopwatch

    @classmethod
    def of(
        cls, study: Study, config: dict[str, Any], name: str | None, wandb: WandbOptions, problems: Sequence[str] = ()
    ) -> Call:
        """Refuse what is wrong with the options, all numbers at once, before any work.

        Args:
            study: What is studied.
            config: The resolved options, without the name.
            name: Name of the run.
            wandb: Where and how to track it.
            problems: What is wrong with the study's own options.

        Raises:
            UserError: If something is wrong with an option, the name is taken, or a folder cannot be written; or if
                there are several processes and the study runs in one.
        """
        if not study.in_several_processes:
            refuse_several(study.name)
        shared = number_problems(config.get("seed", 0), config.get("max_length"), config.get("batch_tokens"))
        refuse([*shared, *problems])
        if not study.in_several_processes:
            only_accelerator(config.get("trainer") or {}, study.name)
        resolve_mode(wandb.mode)
        if "layer" in config:
            layer_numbers(config["layer"])
        cached, place = places(config.get("cache"), config["runs"], name)
        return cls(study, config, name, wandb, cached, place, Stopwatch())

    @property
    def say(self) -> Callable[[str], None]:
        """Takes one-line messages; drops them with `--quiet`."""
        return terminal.silence if self.config["quiet"] else terminal.say

    @property
    def shows_progress(self) -> bool:
        """Whether progress is shown."""
        return terminal.show_progress(self.config["quiet"])

    def source(self, solver: str | None = None, seed: int | None = None, **more: Any) -> ActivationSource:
        """Return the model of the options `model`, `layer`, `dtype`, ..., as far as the command has them.

        Args:
            solver: Solver of the probes that are trained; None if none are.
            seed: Seed of random weights; that of the option by default.
            more: Further fields of the source.

        Raises:
            UserError: If the model cannot be read, or does not have a layer.
        """
        from probing.cache.source import ActivationSource

        config = self.config
        options: dict[str, Any] = {
            name: config[name] for name in ("dtype", "max_length", "batch_tokens") if name in config
        }
        if "first_token" in config:
            options["without_first"] = config["first_token"] == "exclude"
        weights_seed = (config["seed"] if seed is None else seed) if config.get("random_weights") else None
        options |= {} if solver is None else {"solver": solver}
        return ActivationSource.of(
            config["model"], config["revision"], config["layer"], config["trainer"], cache=self.cached,
            random_weights_seed=weights_seed, say=self.say, shows_progress=self.shows_progress, **options, **more,
        )  # fmt: skip

    def write(self, model: Any, measure: Callable[[Path], Measured]) -> Result:
        """Measure in the folder of the run, write and log what was found, and return it with where it is logged.

        A run that is refused or cannot be written leaves no folder; one that fails otherwise leaves a partial one.

        Args:
            model: The `probing.models.ModelSource` that was read.
            measure: Measures, given the folder.

        Raises:
            UserError: If the folder cannot be written.
        """
        folder = RunFolder(self.place, self.name, f"{model.short_name}-{self.study.name}")
        keep_inputs(self.config, model.name, folder)
        return self.write_into(folder, measure)

    def write_into(self, folder: RunFolder, measure: Callable[[Path], Measured]) -> Result:
        """Do the same in a folder that is there, and show the results."""
        with tracking(folder, self.wandb, self.config) as tracker:
            measured = measure(folder.path)
            self.watch.end("measure")
            files = write_tables(folder.path, self.config, measured.tables, self.study.schemas)
            files += measured.write(folder.path) if measured.write else []
            formats = figure_formats(self.config.get("figure_format", FIGURE_FORMAT))
            figures = measured.draw(folder.path / "figures", formats) if measured.draw else []
            self.watch.end("write")
            summary = {"kind": self.study.kind, "versions": versions(), **measured.results}
            files.append(folder.path / "results.json")
            text = json.dumps({**summary, "timings": self.watch.timings()}, indent=2)
            files[-1].write_text(text, encoding="utf-8")
            if tracker:
                tracker.log_results(
                    measured.curves, [], figures, files, measured.tables, kind=self.study.name, axis=measured.axis
                )
        made = self.study.read(folder.finish())
        say_results(made, tracker.where(made.folder) if tracker else None, self.config["quiet"])
        return made
