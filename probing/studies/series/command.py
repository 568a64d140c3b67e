"""`series`: the measures of `fit`, `geometry` and `attention` over the checkpoints of one training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from probing.cli.commandline import configured
from probing.cli.option_types import FIGURE_FORMAT, Dtype, FigureFormat, Layers, Probe, Source, Wandb, chosen
from probing.cli.options import ProbeOptions, WandbOptions, as_options
from probing.corpus.splits import read_corpora
from probing.errors import about_option, out_of_range
from probing.models import check_revision
from probing.runs.call import Call, keep_inputs
from probing.runs.folder import RunFolder
from probing.runs.study import Result, study_of
from probing.runtime import terminal
from probing.runtime.machine import quiet_libraries


@configured
def series(
    config: dict[str, Any],
    checkpoints: str | list[str] | None = None, model: str | None = None, revisions: str | list[str] | None = None,
    measures: str | list[str] = "all", layer: Layers = "all", dtype: Dtype = "float32", corpus: Source = "builtin",
    test_corpus: Source | None = None, max_length: int | None = None, batch_tokens: int | None = None,
    threshold_loss: float = 1.0, threshold_position: float = 0.05, threshold_outliers: float = 5.0,
    keep_activations: bool = False, seed: int = 0, runs: str = "runs", name: str | None = None,
    cache: str | None = None, quiet: bool = False, trainer: dict[str, Any] | None = None,
    probe: Probe = ProbeOptions(), wandb: Wandb = WandbOptions(),
    figure_format: FigureFormat = FIGURE_FORMAT,
) -> Result:  # fmt: skip
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
        trainer: Arguments of Lightning's Trainer, of which only --trainer.accelerator and --trainer.logger
            are accepted.
        probe: How the probes are trained.

    Returns:
        The finished series.
    """
    probe = as_options(ProbeOptions, probe, "probe")
    problems = probe.problems_without_bias() + _problems(threshold_loss, threshold_position, threshold_outliers)
    call = Call.of(study_of("series"), config, name, wandb, problems)
    say = terminal.once(call.say)  # what every checkpoint says of the same text
    with quiet_libraries():
        from probing.studies.series.measures import MEASURES, How, Text
        from probing.studies.series.survey import find_checkpoints, measured, survey
        from probing.studies.series.tables import Thresholds

        names = chosen("--measures", measures, list(MEASURES))
        thresholds = Thresholds(threshold_loss, threshold_position, threshold_outliers)
        found_there = find_checkpoints(model, revisions, checkpoints)
        source_of = _source_of(
            layer, trainer, probe.solver, cache=call.cached, dtype=dtype, max_length=max_length,
            batch_tokens=batch_tokens, say=say,
        )  # fmt: skip
        source_of(found_there[0])  # to refuse a layer that is not there before the text is read
        _check_revisions(found_there[1:])
        text = Text(*read_corpora(corpus, test_corpus, seed, say))
        how = How(probe, seed)
        call.expect(1)
        found = survey(found_there, source_of, names, text, how, keep_activations)
        call.watch.end("measure")
        title = _title(found_there)
        folder = RunFolder(call.place, name, f"series-{title}"[:120])
        keep_inputs(config, config["model"], folder)
        return call.write_into(folder, lambda _: measured(found, names, thresholds, title))


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
    from probing.studies.series.tables import series_name

    return series_name(str(checkpoints[0].model), checkpoints[0].revision)
