"""Calls of a command: the checks before all measurements, and the output after them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probing.activations.store import cache_folder, folder
from probing.cli.options import FIGURE_FORMAT, Options, WandbOptions, as_options, configuration, figure_formats
from probing.errors import UserError, as_clause, lack_of_machine, refuse
from probing.results import Row, Table, as_read, without_empty_cells, write_tables
from probing.runs import Result, Study, refuse_several, several
from probing.runs.folder import (
    ResumableFolder,
    RunFolder,
    check_name,
    continuable,
    end_of_trainings,
    folder_of_trainings,
    free_name,
)
from probing.runtime import Stopwatch, logger_problems, terminal, versions
from probing.runtime.processes import interrupt_behind, is_main_process, launched
from probing.runtime.progress import BRIEF, expect, messages, stage
from probing.tables.figures import write_drawings
from probing.tracking import Tracker, resolve_mode

if TYPE_CHECKING:
    from probing.activations.source import ActivationSource
    from probing.runtime.trainer import Places
    from probing.text import Corpus


@contextmanager
def tracking(
    folder: RunFolder | ResumableFolder | None, options: WandbOptions, config: Mapping[str, Any], light: bool = False
) -> Iterator[Tracker | None]:
    """Track the run in the rank-zero process, where there is a folder; less is logged of a `light` run, part of many.

    A refused request leaves no folder behind, a failed run a partial folder.
    """
    if folder is None:
        yield None
        return
    tracker = None
    try:
        # Starting the tracker takes seconds and may be interrupted.
        tracker = Tracker(options, folder.path, folder.final.name, config, terminal.say, light, folder.final)
        yield tracker
    except BaseException as error:
        if tracker:
            tracker.finish(exit_code=1)
        if interrupt := interrupt_behind(error):
            message = f"the unfinished run is {folder.path}, which is not continued: the same command begins it again"
            raise type(interrupt)(f"{message}, and `cache prune` removes it") from None
        lacks = lack_of_machine(error)
        if lacks or isinstance(error, UserError | OSError):
            folder.discard()
        if isinstance(error, OSError) or (lacks and "written" in lacks):
            raise UserError(
                f"`--runs {folder.final.parent}`: the results could not be written ({as_clause(error)}); "
                "make room, or name another folder, and run the same command again: the activations are cached."
            ) from error
        raise
    tracker.finish()


def runs_folder(runs: str) -> Path:
    """Return the folder of runs, checked now (`UserError`) because it may be written only hours later."""
    return writable_folder(runs, f"--runs {runs}", "name a writable folder")


def places(cache: str | None, runs: str, name: str | None) -> tuple[Path, Path]:
    """Return the folder of the cache and the folder of runs; raise `UserError` for unusable folders or names."""
    cached, place = cache_folder(cache, runs), runs_folder(runs)
    if name is not None:
        check_name(place, name)
    return cached, place


def save_input_text(config: dict[str, Any], model: str, folder: RunFolder) -> list[Path]:
    """Replace objects in the configuration by text: an option's model, and files for lists of sentences; return these.

    If the files cannot be written, the run's folder is removed and `UserError` raised.
    """
    files = []
    if "model" in config:
        config["model"] = model
    for option in ("corpus", "test_corpus", "fit_corpus"):
        if isinstance(sentences := config.get(option), list):
            files.append(folder.path / f"{option}.txt")
            lines = "".join(f"{' '.join(text.split())}\n" for text in sentences)
            try:
                files[-1].write_text(lines, encoding="utf-8")
            except OSError as error:
                folder.discard()
                raise UserError(f"`--runs {folder.final.parent}` cannot be written ({as_clause(error)}).") from None
            config[option] = str(folder.final / files[-1].name)
    return files


def print_output_location(folder: Path, where: str | None, has_more: bool = False) -> None:
    """Print the folder of the results, the last lines of every command that writes some.

    Args:
        folder: Folder on disk.
        where: Address on Weights & Biases, or the command that uploads them; None for neither.
        has_more: Whether `--verbose` prints more.
    """
    hints = ["open report.html in a browser"] * (folder / "report.html").exists() + ["--verbose prints all"] * has_more
    where_to_look = f"Results: {folder}", f"({'; '.join(hints)})" * bool(hints)
    is_long = sys.stdout.isatty() and len(" ".join(where_to_look)) > terminal.columns()
    print(("\n" if is_long else " ").join(filter(None, where_to_look)))
    if where:
        print(f"{'On' if where.startswith('http') else 'To upload to'} Weights & Biases: {where}")


def say_results(result: Result, where: str | None, quiet: bool, verbose: bool = False) -> None:
    """Print the answer, the first tables unless `quiet`, and the location on disk and on W&B (`where`).

    With `verbose`, or if that is an option of the results, all sentences and tables are printed.
    """
    answer, conclusions, more = result.answer(), result.conclusions(), result.study.more_tables(result)
    if quiet:
        terminal.tell(*conclusions)
        has_more = False
    elif verbose or result.config.get("verbose"):
        terminal.tell(*answer)
        terminal.show(*result.tables(), *more)
        terminal.tell(*conclusions[len(answer) :])
        has_more = False
    else:
        # The last lines say where the results are.
        reserved = 2 + 2 * bool(where)
        has_more = terminal.brief(conclusions, result.tables(), reserved) or bool(more)
    print_output_location(result.folder, where, has_more)


def writable_folder(path: str | Path, flag_text: str, way_out: str) -> Path:
    """Return the path of a writable folder that exists or can be created; otherwise raise `UserError`."""
    path = folder(path, flag_text)
    existing = next(part for part in (path, *path.parents) if os.path.exists(part))
    if not os.access(existing, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        raise UserError(f"`{flag_text}` cannot be written ({existing} is read-only for you); {way_out}.")
    return path


def only_accelerator(trainer: Mapping[str, Any], what: str) -> None:
    """Raise `UserError` for Trainer arguments other than accelerator and known loggers, in a single-process command."""
    if wrong := set(trainer) - {"accelerator", "logger"}:
        raise UserError(
            f"`--trainer.{min(wrong)}`: `{what}` runs in one process and takes only `--trainer.accelerator` and "
            f"`--trainer.logger`; {several()} run in several processes."
        )
    refuse(logger_problems(trainer))


@dataclass(frozen=True)
class Measurements:
    """Measurements of a study.

    Args:
        tables: Rows by the name of their table.
        results: Further entries of `results.json`: plain values.
        curves: Rows for the curves of W&B, for each layer or value of `axis`.
        axis: The column over which the curves are drawn.
        write: Writes other files into the folder of the results, and returns their paths.
        is_timed: Whether `results.json` has the times of the stages. It has none where a run that was killed and
            continued must end in the same bytes as an uninterrupted run.
    """

    tables: Mapping[str, Sequence[Row]]
    results: Mapping[str, Any] = field(default_factory=dict)
    curves: Sequence[Row] = ()
    axis: str = "layer"
    write: Callable[[Path], list[Path]] = lambda folder: []
    is_timed: bool = True

    def with_python_values(self) -> Measurements:
        """Return the measurements with Python's numbers and lists in place of those of NumPy and torch."""
        values = {name: _python_values(getattr(self, name)) for name in ("tables", "results", "curves")}
        return replace(self, **values)


def _python_values(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _python_values(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_python_values(entry) for entry in value]
    return value.tolist() if hasattr(value, "tolist") else value


@dataclass(frozen=True)
class Call:
    """A call of a command, checked as far as this needs neither model nor text.

    Args:
        study: The study.
        config: The resolved options, without the name; objects in it are replaced by text before it is written.
        name: Name of the run; None for a name that contains the time.
        wandb: Where and how to track the run.
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
    def of(cls, study: Study, options: Options, is_continued: bool = False) -> Call:
        """Check what is known of the options without model and text.

        Args:
            study: The study.
            options: The options of the command, whose values are checked already.
            is_continued: Whether an unfinished run of the name is continued, as by `train`, so that whether the name is
                taken is found later.

        Raises:
            UserError: If the name is taken, a folder cannot be written, an argument of the Trainer does not apply, or
                there are several processes and the study runs in a single process.
        """
        config = configuration(options)
        if not study.in_several_processes:
            refuse_several(study.name)
            only_accelerator(config.get("trainer") or {}, study.name)
        given = vars(options)
        tracked = as_options(WandbOptions, given["wandb"], "wandb")
        resolve_mode(tracked.mode)
        name = given["name"]
        cached, place = places(config.get("cache"), config["runs"], None if is_continued else name)
        return cls(study, config, name, tracked, cached, place, Stopwatch())

    @property
    def say(self) -> Callable[[str], None]:
        """Function that takes one-line messages."""
        return messages(self.config["quiet"])

    def expect(self, n_stages: int) -> None:
        """Announce the number of stages before the results are written; see `probing.runtime.progress.expect`."""
        expect([*[None] * n_stages, BRIEF])

    def source(
        self, solver: str | None = None, seed: int | None = None, model: tuple[str, str | None] | None = None,
        **more: Any,
    ) -> ActivationSource:  # fmt: skip
        """Return the model of the options `model`, `layer`, `dtype`, ..., as far as the command has them.

        Args:
            solver: Solver of the probes; None if none are trained.
            seed: Seed of random initialisation; the option `seed` by default.
            model: A model and its revision in place of those of the options.
            more: Further fields of the `ActivationSource`.

        Raises:
            UserError: If the model cannot be read, or does not have a layer.
        """
        from probing.activations.source import ActivationSource

        config = self.config
        options: dict[str, Any] = {
            name: config[name] for name in ("dtype", "max_length", "batch_tokens") if name in config
        }
        if "first_token" in config:
            options["without_first"] = config["first_token"] == "exclude"
        weights_seed = (config["seed"] if seed is None else seed) if config.get("random_weights") else None
        options |= {} if solver is None else {"solver": solver}
        name, revision = model or (config["model"], config["revision"])
        return ActivationSource.of(
            name, revision, config["layer"], config["trainer"], cache=self.cached, random_weights_seed=weights_seed,
            **{"say": self.say, **options, **more},
        )  # fmt: skip

    def check_trainings(self, solver: str) -> None:
        """Raise `UserError` for arguments of the Trainer that trainings of models (`solver`) do not honour.

        Several processes need a name, by which all of them know the folder.
        """
        from probing.runtime.trainer import check_trainer_options

        trainer = self.config["trainer"] or {}
        check_trainer_options(trainer, solver)
        several = bool(launched()) or any(str(trainer.get(option, 1)) != "1" for option in ("devices", "num_nodes"))
        if several and self.name is None:
            raise UserError(
                "`--trainer.devices` and `--trainer.num_nodes`: several processes need a name by which all of them "
                "know the run's folder; give --name."
            )

    def train(
        self, stem: str, texts: Mapping[str, Corpus | None], begin: Callable[[Places], Callable[[Any], Measurements]]
    ) -> Result | None:
        """Train and measure models in several processes, in a folder that a killed run of its name continues.

        Args:
            stem: Beginning of the default name, which the time follows.
            texts: The texts by the options that name them.
            begin: Function from the paths of the trainings to the one that trains and measures, given the logger of
                curves.
        """
        from probing.runtime.trainer import Places

        named, is_first = self.name or free_name(self.place, stem), is_main_process()
        folder = folder_of_trainings(self.place, named, self.config, texts)
        with continuable(folder, is_first):
            train = begin(Places(folder.path, is_first))

            def measure(tracker: Tracker | None) -> Measurements:
                output = train(tracker and tracker.logger)

                def write(path: Path) -> list[Path]:
                    return [*output.write(path), *end_of_trainings(path, self.config, texts)]

                return replace(output, write=write, is_timed=False)

            return self.carry_out(folder if is_first else None, measure)

    def write(self, model: Any, measure: Callable[[Path], Measurements]) -> Result:
        """Measure in the folder of the run, write, log and show the results, and return them.

        A run that is refused or cannot be written leaves no folder; a run that fails otherwise leaves a partial folder.

        Args:
            model: The `probing.models.ModelSource` that was read.
            measure: Function from the folder to the measurements.
        """
        folder = RunFolder(self.place, self.name, f"{model.short_name}-{self.study.name}")
        save_input_text(self.config, model.name, folder)
        return self.write_into(folder, measure)

    def write_into(self, folder: RunFolder | ResumableFolder, measure: Callable[[Path], Measurements]) -> Result:
        """Do the same in an existing folder."""
        result = self.carry_out(folder, lambda tracker: measure(folder.path))
        assert result is not None  # there is a folder
        return result

    def carry_out(
        self, folder: RunFolder | ResumableFolder | None, measure: Callable[[Tracker | None], Measurements]
    ) -> Result | None:
        """Do the same in several processes; `folder` is None and the result ignored except in the rank-zero process."""
        with tracking(folder, self.wandb, self.config) as tracker:
            output = measure(tracker)
            if folder is None or tracker is None:
                return None
            output = output.with_python_values()
            self.watch.end("measure")
            tables = {
                schema.name: without_empty_cells(as_read(output.tables[schema.name], schema), schema)
                for schema in self.study.schemas
                if schema.name in output.tables
            }
            with stage("tables and figures"):
                files, figures = self._write(folder.path, output, tables)
            self.watch.end("write")
            summary = {"kind": self.study.kind, "versions": versions(), **output.results}
            summary |= {"timings": self.watch.timings()} if output.is_timed else {}
            files.append(folder.path / "results.json")
            text = json.dumps(summary, indent=2)
            files[-1].write_text(text, encoding="utf-8")
            tracker.log_results(
                output.curves, [], figures, files, output.tables, axis=output.axis,
                kind=self.study.artifact or self.study.name,
            )  # fmt: skip
        result = Result(self.study, folder.finish(), self.config, json.loads(text), tables)
        say_results(result, tracker.where(result.folder, self.config.get("verbose", False)), self.config["quiet"])
        return result

    def _write(self, folder: Path, output: Measurements, tables: Mapping[str, Table]) -> tuple[list[Path], list[Path]]:
        """Write tables, figures and other files into a folder; return the files, and the figures."""
        files = write_tables(folder, self.config, output.tables, self.study.schemas)
        files += output.write(folder)
        formats = figure_formats(self.config.get("figure_format", FIGURE_FORMAT))
        result = Result(self.study, folder, self.config, dict(output.results), tables)
        return files, write_drawings(folder / "figures", self.study.all_drawings(result), formats)
