"""The study `tuning-effect`: changes of a model by tuning, layer by layer, and whether the task causes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from statistics import fmean
from typing import Any, ClassVar

from probing.cli.commandline import command
from probing.cli.options import Dtype, Layers, OneProcessOptions, OutputOptions, ProbeOptions, Source, chosen, option
from probing.errors import UserError, about_option
from probing.results import (
    Row,
    Schema,
    Table,
    View,
    capitalised,
    count,
    estimated,
    layers_named,
    listed,
    number,
    shown,
    text,
    whole,
)
from probing.results import estimate as with_interval
from probing.runs import Result, Study, study_of
from probing.runs.call import Call
from probing.runtime import quiet_libraries, terminal
from probing.studies.checkpoints.tables import words_of
from probing.tables.figures import Chart, Line, Panel
from probing.tables.schema import layer_column
from probing.text import divided

# What is measured: of pairs of checkpoints, and of each checkpoint.
OF_PAIRS = MAPS, STATES, PUBLISHED = "maps", "states", "published"

OF_CHECKPOINTS = POSITION, OUTLIERS, SPECIAL_MASS = "position", "outliers", "special"

# Corrected p-values up to this are taken for a change by the task.
LEVEL = 0.05

# With which checkpoint one is compared, in tables, where it is the start.
START = "start"

# From which weights a checkpoint was tuned, as `finetune` names it: the pretrained model, on true or shuffled labels.
TRUE, SHUFFLED = "pretrained", "shuffled"


@dataclass(frozen=True)
class TuningMeasure:
    """Measure of change: subject and end of its sentences, and whether it is a distance, 0 for equal checkpoints."""

    words: str
    meaning: str
    is_distance: bool = True


MEASURES = {
    "maps_cosine": TuningMeasure(
        "attention maps", "1 minus the cosine of flattened maps of a sentence, mean over heads"
    ),
    "maps_jensen_shannon": TuningMeasure(
        "attention by divergence", "Jensen-Shannon divergence of the rows of maps, in nats, mean over heads"
    ),
    "maps_as_published": TuningMeasure(
        "attention maps with padding",
        "1 minus the cosine of maps of 200 x 200 tokens, padding included, as in the code of Kovaleva et al. (2019)",
    ),
    "states_cosine": TuningMeasure("hidden states", "1 minus the cosine of the same token's hidden states"),
    "states_rotated": TuningMeasure(
        "rotated hidden states", "1 minus that cosine after the best rotation, estimated on other sentences"
    ),
    "states_cka": TuningMeasure("hidden states by CKA", "1 minus linear CKA"),
    "position_accuracy": TuningMeasure("accuracy of a position probe", "test accuracy", is_distance=False),
    "mean_cosine": TuningMeasure("mean cosine of two tokens", "anisotropy", is_distance=False),
    "outlier_deviation": TuningMeasure(
        "the largest outlier", "largest distance of the mean of a neuron from the means of all neurons, in sd",
        is_distance=False,
    ),
    "special_mass": TuningMeasure(
        "attention to special tokens", "share of the attention of tokens to special tokens", is_distance=False
    ),
}  # fmt: skip

# Those whose rows the terminal shows without --verbose.
_FIRST = ("maps_cosine", "states_cosine")

_MEASURE = text(
    "measure", "What is measured: " + "; ".join(f"`{name}`, {entry.meaning}" for name, entry in MEASURES.items()) + ".",
    labels={name: entry.words for name, entry in MEASURES.items()},
)  # fmt: skip

LAYERS = Schema("layer_changes", "a row per measure and layer", (
    _MEASURE, layer_column(),
    number("start_value", "Of a property, its value in the start.", "start"),
    with_interval("tuned", "Distance of the tuned checkpoints from the start, mean over seeds and orders; of a "
                  "property, its value in these minus its value in the start. The interval is over seeds.", form=".4f"),
    number("shuffled", "The same for checkpoints that were tuned on shuffled labels.", "shuffled", ".4f"),
    number("two_seeds", "Distance of two tuned checkpoints that differ only in the seed; of a property, the size of "
           "their difference.", "two seeds", ".4f"),
    number("common", "Of distances: share of the squared change that all seeds have in common.", "in common", ".0%"),
    with_interval("ratio", "Of distances: change by tuning, divided by the change by tuning on shuffled labels, from "
                  "means of logarithms; the interval is over seeds (Welch).", "times shuffled", ".1f"),
    with_interval("difference", "Of a property: `tuned` minus `shuffled`; the interval is over seeds (Welch).",
                  "tuned - shuffled", "+.4f"),
    number("p_value", "p-value of a ratio of 1 or less, or of a difference of 0, corrected for all measures and layers "
           "(Holm).", "p"),
    text("by_task", f"Whether the task has changed the layer: `yes` if that p-value is at most {LEVEL}, "
         "`not shown` if it is above; empty if it is not known.", "by the task"),
))  # fmt: skip

CHECKPOINTS = Schema("checkpoint_changes", "a row per checkpoint, what it is compared with, measure and layer", (
    text("checkpoint", "Name of the checkpoint."),
    text("start", "Labels on which it was tuned: `pretrained` (true labels) or `shuffled`.",
         labels={"shuffled": "shuffled labels"}),
    whole("seed", "Its seed."),
    whole("order_seed", "Seed of the order of its data.", "order"),
    text("against", "Checkpoint with which it is compared: `start`, or the name of another checkpoint."),
    text("measure", "What is measured, as in `layer_changes`.", labels=_MEASURE.labels), layer_column(),
    number("change", "Distance of both; of a property, its value in the checkpoint minus its value in the other.",
           form=".4f"),
))  # fmt: skip

_OF_DISTANCES = ("layer", "tuned*", "shuffled", "ratio*", "two_seeds", "common", "by_task")

_OF_PROPERTIES = ("layer", "start_value", "tuned", "shuffled", "difference*", "by_task")

VIEWS = {
    name: View(LAYERS, _OF_DISTANCES if measure.is_distance else _OF_PROPERTIES,
               f"Change of {measure.words}: {measure.meaning}", where={"measure": name})
    for name, measure in MEASURES.items()
}  # fmt: skip

SENTENCES = {
    "by_task": "{model}: the task changes {measure} in {layers}.",
    "not_by_task": "{model}: in no layer is the change of {measure} distinguished from tuning on shuffled labels.",
    "untested": "{model}: {largest} of {measure} by tuning is {size} in layer {layer}; whether the task causes it is "
    "not known.",
    "unchanged": "{measure}: nothing is changed in any layer.",
    "change": "{measure}: {largest} is {details}.",
    "size": "{size} in layer {layer}",
    "shuffled": "{size} with shuffled labels",
    "ratio": "{ratio} times the change by shuffled labels",
    "two_seeds": "{size} between two seeds",
    "task_layers": "the task changes {layers}",
    "common": "{common:.0%} of the change is common to all seeds",
    "last_two": "{measure}: the last two layers, {layers}, change most in {n} of {checkpoints}.",
    "not_shown": "In no layer is a change of {measures} by the task shown.",
    "without_shuffled": "No change is shown to be caused by the task: this needs checkpoints that were tuned on "
    "shuffled labels, such as those of `finetune --starts pretrained,shuffled --seeds 3`.",
    "few_seeds": "No change is shown to be caused by the task: this needs at least two seeds with true and two with "
    "shuffled labels, found {pretrained} and {shuffled}.",
    "rule": "The task causes a change if it is larger than the change by tuning on shuffled labels: Welch's t over "
    "{pretrained} and {shuffled} seeds, corrected for all {n_tests} layers and measures (Holm, {level:.0%}).{few}",
    "two": " With two seeds, only large changes are shown.",
}


def _of_layers(rows: Table) -> dict[str, Table]:
    """Return the rows of each measure, by layer, in the order of the measures."""
    return {name: of_measure for name in MEASURES if (of_measure := rows.where(measure=name))}


def tables(rows: Table) -> list[Any]:
    """Return a rich table for each of the first measures, or for all if none of these is present."""
    first = [table for name in _FIRST for table in VIEWS[name].tables(rows)]
    return first or [table for view in VIEWS.values() for table in view.tables(rows)]


def more_tables(rows: Table) -> list[Any]:
    """Return the other measures."""
    if not rows.where(measure=_FIRST):
        return []
    return [table for name, view in VIEWS.items() if name not in _FIRST for table in view.tables(rows)]


def answer(rows: Table, model: str) -> list[str]:
    """Return the layers that the task has changed, in attention and in hidden states."""
    by_measure = _of_layers(rows)
    first = [name for name in _FIRST if name in by_measure] or list(by_measure)[:1]
    return [_by_task(by_measure[name], name, model) for name in first]


def _by_task(rows: Table, name: str, model: str) -> str:
    words = MEASURES[name].words
    if not _tested(rows):
        most, largest = _largest(rows)
        return SENTENCES["untested"].format(
            model=model, measure=words, largest=largest, layer=most["layer"], size=_size(most)
        )
    layers = _layers_by_task(rows)
    sentence = SENTENCES["by_task" if layers else "not_by_task"]
    return sentence.format(model=model, measure=words, layers=layers_named(layers) if layers else "")


def _tested(rows: Table) -> bool:
    return any(rows.column("by_task"))


def _layers_by_task(rows: Table) -> list[int]:
    return rows.layers(lambda row: row.get("by_task") == "yes")


def _largest(rows: Table) -> tuple[Row, str]:
    """Return the row of the largest change, and what it is called: of a single layer, it is no largest one."""
    return max(rows, key=lambda row: abs(row["tuned"])), "the largest change" if len(rows) > 1 else "the change"


def _form(row: Row) -> str:
    return ".3g" if MEASURES[row["measure"]].is_distance else "+.3g"


def _size(row: Row) -> str:
    return estimated(row, "tuned", _form(row))


def conclusions(rows: Table, checkpoints: Table, n_seeds: Mapping[str, int]) -> Iterator[str]:
    """Yield for each measure the layer of the largest change and its cause, then the limits of the evidence."""
    not_shown = []
    for name, of_measure in _of_layers(rows).items():
        if name not in _FIRST and _tested(of_measure) and not _layers_by_task(of_measure):
            not_shown.append(MEASURES[name].words)
        else:
            yield from _of_measure(of_measure, checkpoints, name)
    if not_shown:
        yield SENTENCES["not_shown"].format(measures=listed(not_shown, "or"))
    n = {start: n_seeds.get(start, 0) for start in (TRUE, SHUFFLED)}
    if not n[SHUFFLED]:
        yield SENTENCES["without_shuffled"]
    elif min(n.values()) < 2:
        yield SENTENCES["few_seeds"].format(**n)
    else:
        n_tests, few = len(rows.where(lambda row: bool(row.get("by_task")))), SENTENCES["two"] * (min(n.values()) == 2)
        yield SENTENCES["rule"].format(**n, n_tests=n_tests, level=LEVEL, few=few)


def _of_measure(rows: Table, checkpoints: Table, name: str) -> Iterator[str]:
    words = capitalised(MEASURES[name].words)
    most, largest = _largest(rows)
    if not most["tuned"]:
        yield SENTENCES["unchanged"].format(measure=words)
        return
    clauses = [SENTENCES["size"].format(size=_size(most), layer=most["layer"])]
    if LAYERS["ratio"].show(most):
        clauses.append(SENTENCES["ratio"].format(ratio=estimated(most, "ratio", ".2g")))
    elif LAYERS["shuffled"].show(most):
        clauses.append(SENTENCES["shuffled"].format(size=shown(most["shuffled"], _form(most))))
    if LAYERS["two_seeds"].show(most):
        clauses.append(SENTENCES["two_seeds"].format(size=shown(most["two_seeds"], ".3g")))
    if name not in _FIRST and (layers := _layers_by_task(rows)):  # of the first measures, the answer names them
        clauses.append(SENTENCES["task_layers"].format(layers=layers_named(layers)))
    if LAYERS["common"].show(most):
        clauses.append(SENTENCES["common"].format(common=max(most["common"], 0.0)))
    yield SENTENCES["change"].format(measure=words, largest=largest, details="; ".join(clauses))
    if name in _FIRST:
        yield from _last_two(checkpoints.where(measure=name, start=TRUE, against=START), words)


def _last_two(rows: Table, words: str) -> Iterator[str]:
    """Count checkpoints whose last two layers change most, as Kovaleva et al. (2019) report for BERT."""
    layers = sorted(layer for layer in rows.values("layer") if layer > 0)
    if len(layers) < 3:
        return
    checkpoints = [
        {row["layer"]: row["change"] for row in of_checkpoint} for of_checkpoint in rows.by("checkpoint").values()
    ]
    n = sum(
        min(change[layer] for layer in layers[-2:]) > max(change[layer] for layer in layers[:-2])
        for change in checkpoints
    )
    yield SENTENCES["last_two"].format(
        measure=words, layers=listed(layers[-2:]), n=n, checkpoints=count(len(checkpoints), "checkpoint")
    )


def charts(rows: Table) -> list[Chart]:
    """Return the mean change by layer, with a point for each checkpoint or pair: a panel for each measure."""
    panels = []
    for name, of_measure in _of_layers(rows.where(lambda row: isinstance(row.get("change"), float))).items():
        measure, tuned = MEASURES[name], of_measure.where(start=TRUE)
        of_lines = {
            "tuned, and start": tuned.where(against=START),
            "shuffled labels, and start": of_measure.where(start=SHUFFLED, against=START),
            "two seeds": tuned.where(lambda row: row["against"] != START),
        }
        lines = [_line(of_line, label) for label, of_line in of_lines.items() if of_line]
        panels.append(Panel(lines, measure.words, "distance" if measure.is_distance else "change", measure.is_distance))
    title = "what tuning changes, by layer (points: checkpoints or pairs of these; lines: their means)"
    return [Chart("tuning_effect", title, panels, reference=0)]


def _line(rows: Table, label: str) -> Line:
    """Return the mean change by layer; of a property of two seeds, whose order has no meaning, of its size."""
    is_size = label == "two seeds"
    points = {
        layer: [abs(change) if is_size else change for change in of_layer.column("change")]
        for layer, of_layer in sorted(rows.by("layer").items())
    }
    return Line(label, list(points), [fmean(some) for some in points.values()], points=list(points.values()))


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
        from probing.studies.checkpoints.survey import CheckpointConfig, without_new_entries
        from probing.studies.tuning_effect.survey import of_names, of_run, survey, text_of

        _check_which(options.run, options.start, options.tuned, options.shuffled)
        family = (
            of_names(options.start or "", words_of(options.tuned), words_of(options.shuffled))
            if options.run is None
            else of_run(options.run)
        )
        say = terminal.once(call.say)  # what every checkpoint says of the same text

        def source_of(option: str, model: str, revision: str | None = None) -> Any:
            with about_option(f"--run {options.run}:" if options.run else option):
                return call.source("lbfgs", model=(model, revision), say=say)

        first = source_of("--run" if options.run else "--start", family.start, family.revision)
        start_options = {"pretrained": "--tuned", "shuffled": "--shuffled"}
        flags = {member.name: "--run" if options.run else start_options[member.start] for member in family.members}
        sources = {member.name: source_of(flags[member.name], member.model) for member in family.members}
        corpus = text_of(options.corpus, family, options.sentences, options.seed, call.say)
        config = CheckpointConfig(*divided(corpus, None, options.seed, call.say), ProbeOptions(), options.seed)
        call.expect(3)
        with without_new_entries([first, *sources.values()], options.keep_activations):
            output = survey(family, sources, first, config, names, flags)
        call.watch.end("measure")
        return call.write(first.model, lambda _: output)


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
    schemas = LAYERS, CHECKPOINTS
    views = tuple(VIEWS.values())
    page = "training.md#what-tuning-changed"
    files: ClassVar[Mapping[str, str]] = {
        "figures/tuning_effect": "Each measure by layer, a point for each checkpoint."
    }

    def tables(self, result: Result) -> list[Any]:
        """Return the changes of attention maps and hidden states by layer."""
        return tables(result.layer_changes)

    def more_tables(self, result: Result) -> list[Any]:
        """Return the changes by all other measures."""
        return more_tables(result.layer_changes)

    def charts(self, result: Result) -> list[Chart]:
        """Return the change by layer, a panel for each measure."""
        return charts(result.checkpoint_changes)

    def answer(self, result: Result) -> list[str]:
        """Return the layers that the task has changed."""
        return answer(result.layer_changes, result.results["start"]["name"])

    def conclusions(self, result: Result) -> list[str]:
        """Return for each measure the layer of the largest change, and the limits of the evidence."""
        lines = conclusions(result.layer_changes, result.checkpoint_changes, result.results["n_seeds"])
        return list(lines)

    def about(self, result: Result) -> str:
        """Return the title of a page."""
        return f"effect of tuning on {result.results['start']['name']}"


STUDY = TuningEffect()
