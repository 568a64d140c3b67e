"""`series`: the measures of `fit`, `geometry` and `attention` over the checkpoints of one training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from probing.cli.choices import FIGURE_FORMAT, FigureFormat, chosen, figure_formats
from probing.cli.option_values import Dtype, Layers, Source, number_problems, resolved
from probing.cli.options import ProbeOptions, WandbOptions
from probing.cli.python_calls import command
from probing.cli.shared_options import with_shared_help
from probing.commands.folders import keep_inputs, only_accelerator, places, say_results
from probing.corpus.sides import read_corpora
from probing.errors import about_option, out_of_range, refuse
from probing.models import check_revision, layer_numbers
from probing.runs.folder import RunFolder
from probing.runs.loading import read_folder
from probing.runs.tracked import tracking
from probing.runs.trainings import CheckpointSeries
from probing.runtime.distributed import refuse_several
from probing.runtime.stopwatch import Stopwatch
from probing.tracking import Tracker, resolve_mode


@command
@with_shared_help
@resolved
def series(
    config: dict[str, Any],
    checkpoints: str | list[str] | None = None, model: str | None = None, revisions: str | list[str] | None = None,
    measures: str | list[str] = "all", layer: Layers = "all", dtype: Dtype = "float32", corpus: Source = "builtin",
    test_corpus: Source | None = None, max_length: int | None = None, batch_tokens: int | None = None,
    threshold_loss: float = 1.0, threshold_position: float = 0.05, threshold_outliers: float = 5.0,
    keep_activations: bool = False, seed: int = 0, runs: str = "runs", name: str | None = None,
    cache: str | None = None, quiet: bool = False, trainer: dict[str, Any] | None = None,
    probe: ProbeOptions = ProbeOptions(), wandb: WandbOptions = WandbOptions(),
    figure_format: FigureFormat = FIGURE_FORMAT,
) -> CheckpointSeries:  # fmt: skip
    """Measure the checkpoints of a training one after the other: what comes first, loss, position or outliers?

    Args:
        checkpoints: Local folders of the checkpoints, or patterns such as 'DIR/step*', in any order; the step is the
            number in the folder's name. May be given without --checkpoints.
        model: Model on the hub whose --revisions are read: an alias (pythia) or a hub id.
        revisions: Revisions of --model, with the step in their names, such as step0,step1000.
        measures: What is measured of each checkpoint: all, or some of fit (accuracy of a position probe), geometry
            (outliers, anisotropy) and attention (heads at fixed offsets, attention to special tokens).
        test_corpus: Corpus on which probes and position heads are tested, given like --corpus; the test part of
            --corpus then joins the training part.
        threshold_loss: The loss has fallen once the held-out loss is this many nats below that of a model that knows
            only token frequencies or, if that is not known, below that of the first checkpoint.
        threshold_position: Position is encoded once the accuracy of its probe exceeds that of a probe of the token
            alone by this much; the lower end of the interval decides.
        threshold_outliers: A neuron is an outlier once its mean is this many standard deviations from the mean of the
            neurons' means.
        keep_activations: Keep the hidden states of every checkpoint in the cache, for other commands; by default, those
            that the series made are removed once the checkpoint is measured.
        seed: Seed of every random draw, the same for all checkpoints.
        name: Name of this run; series-NAME-YYYYMMDD-HHMMSS by default.
        cache: Folder of cached activations and finished measures; $PROBING_CACHE or RUNS/cache by default.
        trainer: Arguments of Lightning's Trainer, of which only --trainer.accelerator is accepted.
        probe: How the probes are trained.

    Returns:
        The finished series.
    """
    from probing.runtime import terminal

    refuse_several("series")
    say = terminal.once(terminal.silence if quiet else terminal.say)  # what every checkpoint says of the same text
    refuse(
        number_problems(seed, max_length, batch_tokens)
        + probe.problems()
        + _problems(threshold_loss, threshold_position, threshold_outliers)
    )
    resolve_mode(wandb.mode)
    layer_numbers(layer)
    cached, place = places(cache, runs, name)
    only_accelerator(trainer or {}, "a series")
    with terminal.quiet_libraries():
        from probing.pretraining.series.emergence import Thresholds
        from probing.pretraining.series.measures import MEASURES, How, Text
        from probing.pretraining.series.names import find_checkpoints
        from probing.pretraining.series.survey import survey

        watch = Stopwatch()
        names = chosen("--measures", measures, list(MEASURES))
        thresholds = Thresholds(threshold_loss, threshold_position, threshold_outliers)
        found_there = find_checkpoints(model, revisions, checkpoints)
        shows_progress = terminal.show_progress(quiet)
        source_of = _source_of(
            layer, trainer, probe.solver, cache=cached, dtype=dtype, max_length=max_length, batch_tokens=batch_tokens,
            say=say, shows_progress=shows_progress,
        )  # fmt: skip
        source_of(found_there[0])  # to refuse a layer that is not there before the text is read
        _check_revisions(found_there[1:])
        text = Text(*read_corpora(corpus, test_corpus, seed, say))
        how = How(probe, seed, terminal.training_bars(shows_progress))
        found = survey(found_there, source_of, names, text, how, keep_activations, say)
        watch.end("measure")
        folder = RunFolder(place, name, f"series-{_title(found_there)}"[:120])
        keep_inputs(config, config["model"], folder)
        with tracking(folder, wandb, config) as tracker:
            _write(folder.path, config, found, (names, thresholds), watch, tracker)
        made = read_folder(CheckpointSeries, folder.finish())
    say_results(made, tracker.where(made.folder) if tracker else None, quiet)
    return made


def _source_of(layer: Layers, trainer: Any, solver: str, **how: Any) -> Callable[[Any], Any]:
    """Return what makes the `probing.cache.source.ActivationSource` of a checkpoint.

    Args:
        layer: Layers, as typed.
        trainer: Arguments of Lightning's Trainer.
        solver: Solver of the probes, for which these are.
        how: Further fields of the source.
    """
    from probing.cache.source import ActivationSource

    def source_of(one: Any) -> Any:
        with about_option("--checkpoints" if one.revision is None else "--model"):
            return ActivationSource.of(one.model, one.revision, layer, trainer, solver, **how)

    return source_of


def _check_revisions(checkpoints: Sequence[Any]) -> None:
    """Refuse a revision that is not there, before any checkpoint is measured; folders were looked at when found."""
    for one in checkpoints:
        if one.revision is not None:
            check_revision(one.model, one.revision, "--revisions")


def _problems(loss: float, position: float, outliers: float) -> list[str]:
    """Return the problems with these numbers that are known without a checkpoint."""
    return [
        *out_of_range("threshold_loss", loss, 0),
        *out_of_range("threshold_position", position, 0, 1),
        *out_of_range("threshold_outliers", outliers, 0),
    ]


def _title(checkpoints: Sequence[Any]) -> str:
    """Return what the checkpoints are of."""
    from probing.tables.series import series_name

    return series_name(str(checkpoints[0].model), checkpoints[0].revision)


def _write(
    folder: Path,
    config: Mapping[str, Any],
    found: Any,
    asked: tuple[Sequence[str], Any],
    watch: Stopwatch,
    tracker: Tracker | None,
) -> None:
    """Write tables, the figure and summary into the run's folder, and log them.

    Args:
        folder: The run's folder.
        config: The resolved configuration.
        found: The `probing.pretraining.series.survey.Found`.
        asked: The measures and the thresholds.
        watch: The times so far.
        tracker: The run on W&B, if there is one.
    """
    from probing.pretraining.series.figures import write_figures
    from probing.pretraining.series.results import tables_of, write_summary
    from probing.tables.csv_files import write_tables
    from probing.tables.series import COLUMNS, by_step

    tables = tables_of(found, asked[1])
    files = write_tables(folder, config, tables, COLUMNS)
    formats = figure_formats(config["figure_format"])
    figures = write_figures(folder / "figures", tables, _title(found.checkpoints), formats)
    watch.end("write")
    files.append(write_summary(folder, found, tables, *asked, watch.timings()))
    if tracker:
        tracker.log_results(by_step(tables), [], figures, files, tables, kind="series", axis="step")
