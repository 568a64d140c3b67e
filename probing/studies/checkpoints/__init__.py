"""The study `checkpoints`: measures of `fit`, `geometry` and `attention` over the checkpoints of a training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

from probing.cli.commandline import command
from probing.cli.options import (
    Dtype,
    Layers,
    OneProcessOptions,
    OutputOptions,
    Probe,
    ProbedOptions,
    ProbeOptions,
    Source,
    chosen,
    option,
)
from probing.errors import about_option
from probing.models import check_revision
from probing.runs import Result, Study, Terms, study_of
from probing.runs.call import Call, save_input_text
from probing.runs.folder import RunFolder
from probing.runtime import quiet_libraries, terminal
from probing.studies.checkpoints import tables
from probing.studies.checkpoints.tables import series_name
from probing.tables.figures import Chart
from probing.text import read_corpora


@dataclass(frozen=True)
class CheckpointsOptions(OutputOptions, ProbedOptions, OneProcessOptions):
    """Options of `checkpoints`."""

    checkpoints: str | list[str] | None = None
    """Local folders of the checkpoints, or patterns such as 'DIR/step*', in any order; the step is the number in the
    folder's name. May be given without --checkpoints."""
    model: str | None = None
    """Model on the hub whose --revisions are read: an alias (pythia) or a hub id."""
    revisions: str | list[str] | None = None
    """Revisions of --model, with the step in their names, such as step0,step1000."""
    measures: str | list[str] = "all"
    """Measures of each checkpoint: all, or some of fit (accuracy of a position probe), geometry (outliers, anisotropy)
    and attention (heads at fixed offsets, attention to special tokens)."""
    layer: Layers = "all"
    dtype: Dtype = "float32"
    corpus: Source = "builtin"
    test_corpus: Source | None = None
    """Corpus on which probes and position heads are tested, given like --corpus; the test split of --corpus is then
    added to the training split."""
    max_length: int | None = None
    batch_tokens: int | None = None
    threshold_loss: float = option(1.0, at_least=0)
    """Threshold of the loss, in nats: the held-out loss has fallen when it is this far below the loss of a model that
    knows only token frequencies or, if that is unknown, below the loss of the first checkpoint."""
    threshold_position: float = option(0.05, at_least=0, at_most=1)
    """Threshold of position: position is encoded when the accuracy of its probe exceeds the accuracy of a probe of the
    token alone by this much; the lower end of the interval decides."""
    threshold_outliers: float = option(5.0, at_least=0)
    """Threshold of outliers: a neuron is an outlier when its mean is this many standard deviations from the mean of the
    neurons' means."""
    keep_activations: bool = False
    """Keep the hidden states of every checkpoint in the cache, for other commands; by default, the states that this
    command extracted are removed after each checkpoint."""
    _: KW_ONLY
    seed: int = 0
    """Seed of every random draw, equal for all checkpoints."""
    name: str | None = None
    """Name of this run; default: checkpoints-NAME-YYYYMMDD-HHMMSS."""
    cache: str | None = None
    """Folder of cached activations and finished measures; default: $PROBING_CACHE or RUNS/cache."""
    probe: Probe = ProbeOptions()
    """How the probes are trained."""

    def problems(self) -> list[str]:
        """Return the problem with a probe that has an intercept."""
        return self.probe_options.problems_without_bias()


@command(CheckpointsOptions)
def checkpoints(options: CheckpointsOptions) -> Result:
    """Measure the checkpoints of a training run: which comes first, lower loss, position or outliers?

    Returns:
        The results.
    """
    probe, call = options.probe_options, Call.of(study_of("checkpoints"), options)
    say = terminal.once(call.say)  # what every checkpoint says of the same text
    with quiet_libraries():
        from probing.studies.checkpoints.survey import (
            MEASURES,
            CheckpointConfig,
            find_checkpoints,
            survey,
        )
        from probing.studies.checkpoints.tables import Thresholds

        names = chosen("--measures", options.measures, list(MEASURES))
        thresholds = Thresholds(options.threshold_loss, options.threshold_position, options.threshold_outliers)
        series_checkpoints = find_checkpoints(options.model, options.revisions, options.checkpoints)

        def source_of(checkpoint: Any) -> Any:
            with about_option("--checkpoints" if checkpoint.revision is None else "--model"):
                return call.source(probe.solver, model=(checkpoint.model, checkpoint.revision), say=say)

        source_of(series_checkpoints[0])  # to refuse a layer that is not there before the text is read
        for checkpoint in series_checkpoints[1:]:
            if checkpoint.revision is not None:  # a missing one is refused now; folders were checked before
                check_revision(checkpoint.model, checkpoint.revision, "--revisions")
        corpora, splits = read_corpora(options.corpus, options.test_corpus, options.seed, say)
        config = CheckpointConfig(corpora, splits, probe, options.seed)
        call.expect(1)
        output = survey(series_checkpoints, source_of, names, config, options.keep_activations, thresholds)
        call.watch.end("measure")
        title = series_name(series_checkpoints[0].model, series_checkpoints[0].revision)
        folder = RunFolder(call.place, options.name, f"checkpoints-{title}"[:120])
        save_input_text(call.config, call.config["model"], folder)
        return call.write_into(folder, lambda _: output)


class Checkpoints(Study):
    """Measures of several commands over the checkpoints of a training."""

    name, kind, title = "checkpoints", "checkpoints of a training", "Checkpoints"
    function = "probing.studies.checkpoints:checkpoints"
    schemas = tables.CHECKPOINTS, tables.CHECKPOINT_OUTLIERS, tables.EMERGENCE
    page = "training.md#checkpoints"
    files: ClassVar[Mapping[str, str]] = {
        "figures/checkpoints": "Each measure over the steps.",
    }

    def tables(self, result: Result) -> list[Any]:
        """Return the main measures of each checkpoint, and the step of each quantity."""
        return tables.tables(result.checkpoints, result.emergence)

    def charts(self, result: Result) -> list[Chart]:
        """Return each measure over the steps."""
        return tables.charts(result.checkpoints, result.emergence)

    def conclusions(self, result: Result) -> list[str]:
        """Return the step and the order of emergence of each quantity."""
        return tables.conclusions(result.checkpoints, result.emergence)

    def figure_prefix(self, result: Result) -> str:
        """Return the name of the series."""
        first = result.results["models"][0]
        return series_name(first["model"], first["revision"])

    def about(self, result: Result) -> str:
        """Return the page title."""
        return f"checkpoints of {self.figure_prefix(result)}"

    def terms(self, result: Result) -> Mapping[str, Terms]:
        """Return the meanings of the headings, and of the lines of charts."""
        return {self.title: {**super().terms(result)[self.title], **tables.TERMS}}


STUDY = Checkpoints()
