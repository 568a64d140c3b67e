"""The study `tuning-effect`: changes of a model by tuning, layer by layer, and whether the task causes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

from probing.cli.commandline import command
from probing.cli.options import Dtype, Layers, OneProcessOptions, OutputOptions, ProbeOptions, Source, chosen, option
from probing.errors import UserError, about_option
from probing.runs import Result, Study, study_of
from probing.runs.call import Call
from probing.runtime import quiet_libraries, terminal
from probing.studies.checkpoints.tables import words_of
from probing.studies.tuning_effect import tables
from probing.studies.tuning_effect.tables import OF_CHECKPOINTS, OF_PAIRS, PUBLISHED
from probing.tables.figures import Chart
from probing.text import divided


@dataclass(frozen=True)
class TuningEffectOptions(OutputOptions, OneProcessOptions):
    """Options of `tuning-effect`."""

    run: str | None = None
    """Folder of a run of finetune: its checkpoints from the pretrained model, on true and on shuffled labels (finetune
    --starts pretrained,shuffled), are compared with the model that they started from."""
    start: str | None = None
    """Without --run, the model before tuning: an alias, a hub id or a local folder."""
    tuned: str | list[str] | None = None
    """Without --run, the checkpoints that were tuned from --start, one for each seed, separated by commas."""
    shuffled: str | list[str] | None = None
    """Without --run, checkpoints that were tuned from --start on shuffled labels, one for each seed."""
    measures: str | list[str] = "all"
    """Measures: all, or some of maps (attention), states (hidden states), position (accuracy of a position probe),
    outliers (with the mean cosine of two tokens), special (attention to special tokens) and published (maps of 200 x
    200 tokens, including padding; slow and not included in all)."""
    layer: Layers = "all"
    dtype: Dtype = "float32"
    corpus: Source | None = None
    """Text that all checkpoints read: builtin, a file, or hf:NAME; default: the text of --run, otherwise builtin."""
    sentences: int = option(300, at_least=0)
    """Maximum number of sentences of the text, sampled by --seed; 0 reads all."""
    max_length: int | None = None
    batch_tokens: int | None = None
    keep_activations: bool = False
    """Keep the hidden states of all checkpoints in the cache; by default, newly cached states are removed at the
    end."""
    _: KW_ONLY
    seed: int = 0
    """Seed of the sample of sentences, and of the split of the position probe."""
    name: str | None = None
    """Name of this run; default: MODEL-tuning-effect-YYYYMMDD-HHMMSS."""
    cache: str | None = None
    """Folder of cached activations and finished measures; default: $PROBING_CACHE or RUNS/cache."""
    verbose: bool = False
    """Also print the tables of all other measures."""


@command(TuningEffectOptions)
def tuning_effect(options: TuningEffectOptions) -> Result:
    """Measure what tuning changes in a model, compared with other seeds and with tuning on shuffled labels.

    Returns:
        The results.
    """
    call = Call.of(study_of("tuning-effect"), options)
    names = _selected_measures(options.measures)
    with quiet_libraries():
        from probing.activations.source import ActivationSource
        from probing.studies.checkpoints.survey import CheckpointConfig, without_new_entries
        from probing.studies.tuning_effect.survey import of_names, of_run, study_output, survey, text_of

        _check_which(options.run, options.start, options.tuned, options.shuffled)
        family = (
            of_names(options.start or "", words_of(options.tuned), words_of(options.shuffled))
            if options.run is None
            else of_run(options.run)
        )
        say = terminal.once(call.say)  # what every checkpoint says of the same text

        def source_of(option: str, model: str, revision: str | None = None) -> ActivationSource:
            with about_option(f"--run {options.run}:" if options.run else option):
                return ActivationSource.of(
                    model, revision, options.layer, options.trainer, "lbfgs", cache=call.cached, dtype=options.dtype,
                    max_length=options.max_length, batch_tokens=options.batch_tokens, say=say,
                )  # fmt: skip

        first = source_of("--run" if options.run else "--start", family.start, family.revision)
        start_options = {"pretrained": "--tuned", "shuffled": "--shuffled"}
        flags = {member.name: "--run" if options.run else start_options[member.start] for member in family.members}
        sources = {member.name: source_of(flags[member.name], member.model) for member in family.members}
        corpus = text_of(options.corpus, family, options.sentences, options.seed, call.say)
        config = CheckpointConfig(*divided(corpus, None, options.seed, call.say), ProbeOptions(), options.seed)
        call.expect(3)
        with without_new_entries([first, *sources.values()], options.keep_activations):
            tables = survey(family, sources, first, config, names, flags)
        call.watch.end("measure")
        return call.write(first.model, lambda folder: study_output(tables, family, first, sources, config.corpora[0]))


def _selected_measures(measures: str | Sequence[str]) -> list[str]:
    default_names = [name for name in (*OF_PAIRS, *OF_CHECKPOINTS) if name != PUBLISHED]
    if measures in ("all", ["all"]):
        return default_names
    return chosen("--measures", measures, [*OF_PAIRS, *OF_CHECKPOINTS])


def _check_which(run: Any, start: Any, tuned: Any, shuffled: Any) -> None:
    single = {"--start": start, "--tuned": tuned, "--shuffled": shuffled}
    if run is not None and (option := next((option for option, value in single.items() if value is not None), None)):
        raise UserError(
            f"`--run {run}` and `{option}`: the checkpoints are those of a run of `finetune`, or are named; give one "
            "of the two."
        )
    if run is None and (start is None or not words_of(tuned)):
        raise UserError(
            "`tuning-effect` compares checkpoints with the model that was tuned: give a run of `finetune` as `--run "
            "runs/NAME`, or models as `--start MODEL --tuned A,B,C`."
        )


class TuningEffect(Study):
    """Changes of a model by tuning, layer by layer."""

    name, kind, title = "tuning-effect", "effect of tuning", "Effect of tuning"
    function = "probing.studies.tuning_effect:tuning_effect"
    schemas = tables.LAYERS, tables.CHECKPOINTS
    views = tuple(tables.VIEWS.values())
    page = "training.md#what-tuning-changed"
    files: ClassVar[Mapping[str, str]] = {
        "figures/tuning_effect": "Each measure by layer, a point for each checkpoint."
    }

    def tables(self, result: Result) -> list[Any]:
        """Return the changes of attention maps and hidden states by layer."""
        return tables.tables(result.layer_changes)

    def more_tables(self, result: Result) -> list[Any]:
        """Return the changes by all other measures."""
        return tables.more_tables(result.layer_changes)

    def charts(self, result: Result) -> list[Chart]:
        """Return the change by layer, a panel for each measure."""
        return tables.charts(result.checkpoint_changes)

    def answer(self, result: Result) -> list[str]:
        """Return the layers that the task has changed."""
        return tables.answer(result.layer_changes, result.results["start"]["name"])

    def conclusions(self, result: Result) -> list[str]:
        """Return for each measure the layer of the largest change, and the limits of the evidence."""
        lines = tables.conclusions(result.layer_changes, result.checkpoint_changes, result.results["n_seeds"])
        return list(lines)

    def about(self, result: Result) -> str:
        """Return the title of a page."""
        return f"effect of tuning on {result.results['start']['name']}"


STUDY = TuningEffect()
