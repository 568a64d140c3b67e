"""The studies `wic` and `sts`: performance of hidden states without training, by cosine."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from probing.cli.commandline import command
from probing.cli.options import BatchOptions, Folder, Folders, Options, OutputOptions, RunOptions, StatesOptions, option
from probing.downstream import CLIPPING, POOLINGS, SPACES, TRANSDUCTIVE, WORDS, Definition, Space
from probing.errors import UserError, out_of_range, refuse
from probing.models import load_tokenizer
from probing.page.terms import TRANSFORMS
from probing.results import (
    CHANGED,
    Column,
    Row,
    Schema,
    Table,
    View,
    count,
    curve_points,
    estimate,
    estimated,
    layers_named,
    number,
    sign_of_interval,
    text,
    whole,
)
from probing.runs import Result, Study, Terms, study_of
from probing.runs.call import Call, Measurements
from probing.runtime import quiet_libraries
from probing.runtime.processes import is_main_process
from probing.runtime.progress import stage
from probing.statistics import few_sentences, label, size_lines
from probing.tables.figures import Chart, Line, Panel
from probing.tables.schema import SIZES, layer_column

if TYPE_CHECKING:
    from probing.activations import ActivationStore
    from probing.downstream.sentence_vectors import Vectors

SENTENCES = {
    "wic": "{space}: accuracy {accuracy} on {part} in layer {layer}, selected on train; always answering yes has "
    "{constant:.3f}{gain}.",
    "sts": "{set}, {pooling}, {space}: Spearman x 100 is {spearman}{where}{gain}.",
    "layer": " in layer {layer}",
    "selected": " in layer {layer}, selected on {chosen_on}",
    "published": " in layer {layer}, selected on {chosen_on} itself, which can be too high",
    "gain": "; compared with plain, {gain}{p}, {verdict}",
    "transductive": "Transforms are fitted on the sentences of each evaluated set itself (transductive).",
}
_UNCHANGED = "unchanged, because no neuron is an outlier there"
_UNDEFINED = "not defined"

# Advice where a covariance was fitted on too few vectors.
FEWER_DIRECTIONS = "Keep fewer directions of whitening with `--components`."

MORE_TEXT = "Fit it on more text with `--fit_on`, or keep fewer directions of whitening with `--components`."

_SPACE = text(
    "transform", "How the hidden states are transformed before their cosines are taken.", "space", labels=WORDS
)

_N_CLIPPED = whole("n_clipped", "Number of neurons that are clipped.")

_CLIPPED = text("clipped", "The neurons that are clipped.", may_be_empty=True)

_N_PAIRS = whole("n_pairs", "Number of pairs.")

_THRESHOLD = number("threshold", "Cosine above which a pair is predicted to have one meaning, selected on train.")

_PROTOCOL = text(
    "protocol", "How the layer was selected: held_out, on other pairs; published, on the same pairs; constant_true, "
    "the baseline that always answers yes.", labels={"held_out": "other pairs", "constant_true": "always yes"},
)  # fmt: skip

_GAIN = estimate("gain", "Difference from the untransformed hidden states.", form="+.3f")

WIC = Schema("wic", "a row per layer and space", (
    layer_column(), _SPACE, _THRESHOLD,
    number("train_accuracy", "Accuracy on the training pairs."),
    estimate("accuracy", "Share of the pairs that are predicted correctly."),
    estimate("auc", "Area under the ROC curve: the probability that a pair with one meaning has a higher cosine than a "
             "pair with two meanings."),
    number("train_auc", "Area under the ROC curve of the training pairs."),
    number("published_threshold", "The best of the nine thresholds 0.1 to 0.9 on the reported pairs."),
    number("published_accuracy", "Its accuracy."),
    number("constant_true_accuracy", "Accuracy of the baseline that answers yes (the same meaning) for every pair."),
    _N_CLIPPED, _CLIPPED,
    whole("n_train_pairs", "Number of training pairs."), _N_PAIRS, *SIZES,
), needed=("layer", "transform", "accuracy", "constant_true_accuracy"))  # fmt: skip

WIC_CHOSEN = Schema("chosen", "a row per protocol and space", (
    _PROTOCOL, _SPACE, layer_column("The selected layer."), _THRESHOLD,
    estimate("accuracy", "Accuracy in the selected layer."),
    text("reported_on", "Part on which the accuracy is measured."),
    _GAIN,
    whole("n_gained", "Number of pairs that are predicted correctly only in this space.", "won"),
    whole("n_lost", "Number of pairs that are predicted correctly only from untransformed hidden states.", "lost"),
    number("p_value", "McNemar's test of pairs won and pairs lost, corrected for all transforms (Holm).", "p", ".2g"),
    _N_CLIPPED, _N_PAIRS, *SIZES,
))  # fmt: skip

_SET = text("set", "Collection of pairs of sentences with human scores.")

_POOLING = text("pooling", "Pooling of token vectors to a sentence vector; `static`, the mean of word vectors.")

# Static vectors have no layer: the cell is empty.
_LAYER = replace(layer_column("Number of the layer; empty for static vectors."), may_be_empty=True)

_AGGREGATION = text("aggregation", "all pairs together, the mean of the subsets, or wmean, weighted by their pairs.")

_CORRELATION = (
    Column("spearman", float, "Spearman's correlation of cosines and human scores; low, high: its 95% interval.",
           "Spearman", ".1f", "", times=100),
    replace(_GAIN, form="+.1f", times=100), _N_PAIRS, _N_CLIPPED, _CLIPPED,
    text("fitted_on", "Text on which the transform was fitted."),
    *SIZES,
)  # fmt: skip

STS = Schema("sts", "a row per set, pooling, layer, space and aggregation", (
    _SET, _POOLING, _LAYER, _SPACE, _AGGREGATION, *_CORRELATION,
))  # fmt: skip

STS_CHOSEN = Schema("chosen", "a row per protocol, set, pooling, space and aggregation", (
    _PROTOCOL, _SET, _POOLING, _SPACE, replace(_LAYER, meaning="The selected layer; empty for static vectors."),
    text("chosen_on", "Pairs on which the layer was selected.", "selected on"),
    whole("n_chosen_on", "Number of pairs on which the layer was selected."),
    _AGGREGATION, *_CORRELATION,
))  # fmt: skip

WIC_VIEWS = (
    View(WIC_CHOSEN, ("protocol", "transform", "layer", "threshold", "accuracy*", "gain*", "n_gained", "n_lost",
         "p_value"), "Layer and threshold selected on train, accuracy on {reported_on}", "reported_on",
         {"protocol": ("held_out", "constant_true")}),
    View(WIC_CHOSEN, ("transform", "layer", "threshold", "accuracy"),
         "As published, which is too high: best layer and best of 9 thresholds, selected and evaluated on train", "",
         {"protocol": "published"}),
)  # fmt: skip
_PIVOT = "aggregation", "spearman", {"mean": "mean", "wmean": "wmean"}
_KEYS = "set", "pooling", "transform", "protocol"
STS_VIEWS = (
    View(STS_CHOSEN, ("set", "pooling", "transform", "layer", "chosen_on", "spearman*", "gain*"),
         "Spearman x 100 in the layer selected on other pairs: over all pairs, and mean over subsets", "",
         {"protocol": "held_out", "aggregation": "all"}, _PIVOT, _KEYS),
    View(STS_CHOSEN, ("set", "pooling", "transform", "layer", "spearman*", "gain*"),
         "As published, which can be too high: Spearman x 100 in the layer selected on the set itself", "",
         {"protocol": "published", "aggregation": "all"}, _PIVOT, _KEYS),
)  # fmt: skip
# What the rows and lines of both studies are called, beside the headings of their tables.
TERMS: Terms = {
    **{words: TRANSFORMS[space] for space, words in WORDS.items()},
    "static": "One vector per word type, the same in all sentences, instead of the hidden states of the model.",
    "static vectors": "One vector per word type, the same in all sentences, instead of the hidden states of the model.",
    "always yes": "The baseline that answers yes (the same meaning) for every pair.",
    "chance": "Area under the ROC curve of a random ranking.",
}


def wic_tables(rows: Table, chosen: Table) -> list[Any]:
    """Return accuracies and areas by layer, and the layer and threshold that each protocol selects."""
    part = _part(chosen)
    spaces = {space: _label(space, of_space) for space, of_space in _by_space(rows).items()}
    titles = {"accuracy": f"Accuracy on {part}, by layer", "auc": f"Area under the ROC curve on {part}, by layer"}
    return [
        *(table for name, title in titles.items() for table in _by_layer(WIC, rows, "transform", name, spaces, title)),
        *(table for view in WIC_VIEWS for table in view.tables(chosen)),
    ]


def sts_tables(rows: Table, chosen: Table) -> list[Any]:
    """Return the correlations by layer for the first pooling, and the layers that each protocol selects."""
    pooling = rows[0]["pooling"]
    tables = []
    for space, of_space in rows.where(aggregation="all", pooling=(pooling, "static")).by("transform").items():
        if pooled := of_space.where(pooling=pooling):
            title = f"Spearman x 100: {pooling}, {_label(space, pooled)}"
            # Static vectors have the last row.
            named = Table({**row, "layer": "static" if row["layer"] == "" else row["layer"]} for row in of_space)
            tables += _by_layer(STS, named, "set", "spearman", {name: name for name in named.values("set")}, title)
    return [*tables, *(table for view in STS_VIEWS for table in view.tables(chosen))]


def _by_layer(
    schema: Schema, rows: Table, column: str, number: str, headings: Mapping[str, str], title: str
) -> list[Any]:
    """Return a table of a number by layer, with a column for each value of a column."""
    where = {column: next(iter(headings))}
    return View(schema, ("layer",), title, where=where, pivot=(column, number, headings)).tables(rows)


def _by_space(rows: Table) -> dict[str, Table]:
    """Return the rows of each space; a row without one, of a damaged file, raises KeyError."""
    return {space: rows.where(transform=space) for space in dict.fromkeys(row["transform"] for row in rows)}


def _part(chosen: Table) -> str:
    return str(chosen.where(protocol="held_out")[0]["reported_on"])


def wic_lines(chosen: Table) -> Iterator[str]:
    """Yield a sentence for each space, then the amount of text on which the transforms were fitted."""
    (constant,) = chosen.where(protocol="constant_true")
    for row in chosen.where(protocol="held_out"):
        yield SENTENCES["wic"].format(
            space=_label(row["transform"], [row]).capitalize(), accuracy=estimated(row, "accuracy"),
            part=row["reported_on"], layer=row["layer"], constant=constant["accuracy"], gain=_gain(row, "+.3f", 1),
        )  # fmt: skip
    yield from _why_no_intervals(chosen)
    yield from size_lines(chosen, FEWER_DIRECTIONS)


def sts_lines(chosen: Table) -> Iterator[str]:
    """Yield a sentence for each set and space over all pairs, in the selected layer or else the best layer.

    The last sentences give the amount of text on which the transforms were fitted.
    """
    protocols = chosen.where(lambda row: row["pooling"] != "static").values("protocol")
    protocol = "held_out" if "held_out" in protocols else "published"
    for row in chosen.where(lambda row: row["protocol"] == protocol or row["pooling"] == "static", aggregation="all"):
        is_defined = math.isfinite(row.get("spearman", math.nan))
        where = "selected" if protocol == "held_out" else "published"
        yield SENTENCES["sts"].format(
            set=row["set"], pooling=row["pooling"], space=_label(row["transform"], [row]),
            spearman=estimated(row, "spearman", ".1f", "", 100) if is_defined else _UNDEFINED,
            where="" if row["layer"] == "" else SENTENCES[where if "chosen_on" in row else "layer"].format(**row),
            gain=_gain(row, "+.1f", 100),
        )  # fmt: skip
    if any(TRANSDUCTIVE in row.get("fitted_on", "") for row in chosen):
        yield SENTENCES["transductive"]
    yield from _why_no_intervals(chosen)
    yield from size_lines(chosen, MORE_TEXT)


def _label(space: str, rows: Sequence[Row]) -> str:
    return label(WORDS[space], [row for row in rows if row.get("transform") == space])


def _why_no_intervals(chosen: Table) -> list[str]:
    few = few_sentences(min(chosen.column("n_pairs")), "pair")
    return [few] if few else []


def _gain(row: Row, form: str, times: int) -> str:
    if "gain" not in row:
        return ""
    is_unchanged = row["transform"] in CLIPPING and not row["n_clipped"]
    return SENTENCES["gain"].format(
        gain=estimated(row, "gain", form, times=times), verdict=_UNCHANGED if is_unchanged else
        CHANGED[sign_of_interval(row, "gain")], p=f", McNemar p = {row['p_value']:.2g}" if "p_value" in row else "",
    )  # fmt: skip


def wic_charts(rows: Table, chosen: Table) -> list[Chart]:
    """Return accuracy and area under the curve by layer and space, with their baselines."""
    accuracies = [*_lines(rows, rows, "accuracy"), _level("always yes", rows, rows[0]["constant_true_accuracy"])]
    areas = [*_lines(rows, rows, "auc"), _level("chance", rows, 0.5)]
    panels = [
        Panel(accuracies, f"accuracy on {_part(chosen)}, threshold selected on train", "share of pairs"),
        Panel(areas, "area under the ROC curve", "area"),
    ]
    title = f"is a word used in the same sense twice? (bars: 95% over {count(rows[0]['n_pairs'], 'pair')})"
    return [Chart("wic", title, panels, limits=(0, 1))]


def sts_charts(rows: Table) -> list[Chart]:
    """Return the correlation by layer and space for each pooling, a panel for each set."""
    # Where all cosines of a set are the same, as of the first token's embedding, there is no correlation.
    rows = rows.where(lambda row: math.isfinite(row.get("spearman", math.nan)), aggregation="all")
    charts = []
    for pooling, of_pooling in rows.where(lambda row: row["pooling"] != "static").by("pooling").items():
        panels = []
        for name, of_set in of_pooling.by("set").items():
            static = rows.where(set=name, pooling="static", transform="none")
            levels = [_level("static vectors, plain", of_set, row["spearman"]) for row in static]
            title = f"{name}, {pooling} ({count(of_set[0]['n_pairs'], 'pair')})"
            panels.append(Panel([*_lines(of_set, of_pooling, "spearman", ""), *levels], title))
        title = f"sentences by {pooling}: correlation of cosines and human scores (bars: 95% over pairs)"
        charts.append(Chart(f"sts_{pooling}", title, panels, "Spearman's correlation", from_zero=True))
    return charts


def _lines(rows: Table, of_figure: Table, column: str, interval: str | None = None) -> list[Line]:
    return [
        Line.of(of_space, column, _label(space, of_figure), interval) for space, of_space in _by_space(rows).items()
    ]


def _level(label: str, rows: Table, value: float) -> Line:
    layers = sorted(rows.values("layer"))
    return Line(label, layers, [value] * len(layers))


@dataclass(frozen=True)
class _StsSource(Options):
    folders: Folders | None = None
    """Folders with STS12 to STS16, STS-B and SICK, or hf:NAME?config=C; may be given without `--folders`."""


@dataclass(frozen=True)
class StsOptions(OutputOptions, RunOptions, BatchOptions, StatesOptions, _StsSource):
    """Options of `sts`."""

    pooling: str | list[str] = option("mean", choices=POOLINGS)
    """How token vectors become a sentence vector, some or all: mean (special tokens are excluded), mean_special (all
    tokens), cls (the first token), first_last (the average of layer 1 and each layer)."""
    transforms: str | list[str] = option("clip,whiten", choices=SPACES[1:], nothing="none")
    """Transforms to compare with the plain vectors: all, none, or some of clip, clip_random, whiten, standardise,
    center, all_but_the_top."""
    definition: Definition = "mean_profile"
    """Definition of the outliers that are clipped, as in `geometry`."""
    components: int | None = None
    fit_on: str = "train"
    """Text that transforms are fitted on: train (the training parts, or the built-in corpus if there are none), a
    corpus such as builtin or text.txt, or target (the sentences of each test set, which is transductive)."""
    static: str | None = None
    """File of word vectors in GloVe's format, whose mean over a sentence is evaluated for comparison."""
    _: KW_ONLY
    seed: int = 0
    """Seed of every random draw: bootstrap samples, clip_random's neurons and random initialisation."""
    name: str | None = None
    """Name of this run; default: MODEL-sts-YYYYMMDD-HHMMSS."""


@command(StsOptions)
def sts(options: StsOptions) -> Result | None:
    """Correlate sentence cosines with human scores (STS, SICK-R), per layer: plain, clipped and whitened.

    Returns:
        The results; None except in the rank-zero process.
    """
    call, poolings = Call.of(study_of("sts"), options), options.selected("pooling")
    spaces: list[Space] = ["none", *options.selected("transforms")]
    sets = _read_sets(call.config["folders"] or (), call.say)
    outside = _outside(
        options.fit_on, spaces != ["none"] and not any(pairs.part == "train" for pairs in sets), call.say
    )
    with quiet_libraries():
        from probing.activations.source import report_dropped_text
        from probing.downstream.sentence_vectors import (
            TransformFitting,
            Vectors,
            check_text_to_fit_on,
            evaluate,
            first_token_check,
            read_static,
            reported,
        )

        source = call.source(tokenizer=options.tokenizer)
        files = source.model
        refuse(out_of_range("components", options.components, 1, source.config.hidden_size))
        if spaces != ["none"]:
            check_text_to_fit_on(sets, outside, reported(sets), options.fit_on)
        corpora = [pairs.corpus for pairs in sets] + ([outside] if outside else [])
        words = (
            read_static(options.static, [text for corpus in corpora for text in corpus.sentences])
            if options.static
            else None
        )
        call.expect(2)
        stores = _with_first(source, poolings, source.model.name).read(
            corpora, [first_token_check(poolings, files.short_name)] * len(corpora)
        )
        if not is_main_process():
            return None
        call.watch.end("extract")
        report_dropped_text(corpora, [store.tokens for store in stores], call.say)
        vectors = Vectors(sets, stores[: len(sets)], (outside, stores[-1]) if outside else None, words)
        descriptions = _described(vectors, load_tokenizer(files), call.say)
        fitting = TransformFitting(spaces, options.definition, options.components, options.seed)

        def measure(_: Path) -> Measurements:
            with stage(f"cosines of {layers_named(source.layers)}"):
                tables = evaluate(vectors, source.layers, poolings, fitting, options.fit_on, options.seed)
            return _sts_output(*tables, vectors, descriptions, poolings)

        return call.write(files, measure)


def _sts_output(
    rows: Sequence[Row], chosen: Sequence[Row], texts: Mapping[str, Any], vectors: Vectors,
    sets: Sequence[Mapping[str, Any]], poolings: Sequence[str],
) -> Measurements:  # fmt: skip
    """Return the tables with their summary and curves; the transforms were fitted on `texts`."""
    from probing.data.labelling import origin
    from probing.downstream.sentence_vectors import defined

    cached = {pairs.corpus.name: origin(store) for pairs, store in zip(vectors.sets, vectors.stores, strict=True)}
    if vectors.outside:
        cached[vectors.outside[0].name] = origin(vectors.outside[1])
    fitted_on = {label: {"corpora": text.names, "n_sentences": text.n_sentences} for label, text in texts.items()}
    curves = curve_points(
        Table(rows).where(pooling=poolings[0], aggregation="all"),
        lambda row: {f"{row['set']}_{row['transform']}_spearman".replace(" ", "_"): row["spearman"]},
    )
    results = {"fitted_on": fitted_on, "cache": cached, "sets": list(sets)}
    return Measurements({"sts": defined(rows), "chosen": defined(chosen)}, results, curves)


def _read_sets(folders: Sequence[str], say: Callable[[str], None]) -> Any:
    from probing.downstream import READABLE, read_sts
    from probing.downstream.sentence_vectors import reported

    if not folders:
        raise UserError(f"`sts` takes {READABLE}.")
    sets = read_sts(folders)
    if not reported(sets):
        raise UserError(f"`sts {' '.join(folders)}`: these are training parts only; give dev or test parts too.")
    for pairs in sets:
        for line in pairs.messages():
            say(line)
    return sets


def _described(vectors: Any, tokenizer: Any, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return descriptions of the sets, and report sentences without a vector."""
    from probing.downstream.sentence_vectors import described, unknown_messages

    stores = zip(vectors.sets, vectors.stores, strict=True)
    descriptions = [described(pairs, store, vectors.static, tokenizer) for pairs, store in stores]
    for line in (line for description in descriptions for line in unknown_messages(description)):
        say(line)
    return descriptions


def _with_first(source: Any, poolings: Sequence[str], model: str) -> Any:
    """Return the source with the layer that the pooling `first_last` also needs."""
    from probing.downstream.sentence_vectors import FIRST

    if "first_last" not in poolings:
        return source
    if source.config.num_hidden_layers < FIRST:
        raise UserError(f"`--pooling first_last`: {model} has no blocks, so no layer {FIRST}; take mean.")
    return replace(source, layers=sorted({*source.layers, FIRST}))


def _outside(fit_on: str, lacks_training_part: bool, say: Callable[[str], None]) -> Any:
    from probing.text import load_corpus

    if fit_on == "train" and lacks_training_part:
        say("there is no training part: transforms are fitted on the built-in corpus")
        return load_corpus("builtin", "--fit_on")
    return None if fit_on in ("train", "target") else load_corpus(fit_on, "--fit_on")


@dataclass(frozen=True)
class _WicSource(Options):
    folder: Folder | None = None
    """Folder of the WiC data set, or hf:NAME?config=C for its SuperGLUE form; may be given without `--folder`."""


@dataclass(frozen=True)
class WicOptions(OutputOptions, RunOptions, BatchOptions, StatesOptions, _WicSource):
    """Options of `wic`."""

    part: Literal["dev", "test"] = "dev"
    """Part whose accuracy is reported; layer and threshold are selected on train."""
    transforms: str | list[str] = option("clip,whiten", choices=SPACES[1:], nothing="none")
    """Transforms to compare with the plain hidden states: all, none, or some of clip, clip_random, whiten, standardise,
    center, all_but_the_top; they are fitted on the tokens of training sentences."""
    definition: Definition = "mean_profile"
    """Definition of the outliers that are clipped, as in `geometry`."""
    components: int | None = None
    _: KW_ONLY
    seed: int = 0
    """Seed of every random draw: bootstrap samples, clip_random's neurons and random initialisation."""
    name: str | None = None
    """Name of this run; default: MODEL-wic-YYYYMMDD-HHMMSS."""


@command(WicOptions)
def wic(options: WicOptions) -> Result | None:
    """Distinguish word senses by cosine (WiC), per layer: plain, clipped and whitened.

    Returns:
        The results; None except in the rank-zero process.
    """
    call = Call.of(study_of("wic"), options)
    spaces: list[Space] = ["none", *options.selected("transforms")]
    data = _read_pairs(call.config["folder"], options.part, call.say)
    with quiet_libraries():
        from probing.activations.source import report_dropped_text
        from probing.downstream.sentence_vectors import FittingText, TransformFitting, not_in
        from probing.downstream.wic import evaluate, target_check, unknown_pairs, without_cut_words

        source = call.source(tokenizer=options.tokenizer)
        refuse(out_of_range("components", options.components, 1, source.config.hidden_size))
        corpora = [pairs.corpus for pairs in data.values()]
        is_fitted_on = not_in(corpora[0].sentences, corpora[1].sentences)
        if not is_fitted_on.any():
            raise UserError(
                f"`wic {options.folder}`: every sentence of train is in {options.part} too; give parts that differ."
            )
        call.expect(2)
        stores = source.read(corpora, [target_check(pairs) for pairs in data.values()])
        if not is_main_process():
            return None
        call.watch.end("extract")
        report_dropped_text(corpora, [store.tokens for store in stores], call.say)
        pairs = without_cut_words(data, stores, call.say)
        n_unknown = unknown_pairs(pairs, stores, load_tokenizer(source.model), call.say)
        fitting = TransformFitting(spaces, options.definition, options.components, options.seed)
        results = {"n_unknown_pairs": n_unknown, "n_sentences_fitted_on": int(is_fitted_on.sum())}

        def measure(_: Path) -> Measurements:
            with stage(f"cosines of {layers_named(source.layers)}"):
                tables = evaluate(
                    pairs, stores, FittingText(stores[0], is_fitted_on), source.layers, fitting, options.seed
                )
            return _wic_output(*tables, data, pairs, stores, results)

        return call.write(source.model, measure)


def _wic_output(
    rows: Sequence[Row], chosen: Sequence[Row], read: Mapping[str, Any], pairs: Mapping[str, Any],
    stores: Sequence[ActivationStore], results: Mapping[str, Any],
) -> Measurements:  # fmt: skip
    """Return the tables with summary and curves; `read` are all pairs by part, `pairs` those read whole."""
    from probing.data.labelling import origin
    from probing.downstream.sentence_vectors import defined

    counts = {
        "n_read_pairs": {which: some.n_read for which, some in read.items()},
        "n_pairs": {which: some.n_pairs for which, some in pairs.items()},
        "n_unlabelled_pairs": {which: some.n_unlabelled for which, some in read.items()},
        "n_cut_pairs": {which: read[which].n_pairs - some.n_pairs for which, some in pairs.items()},
    }
    cached = {which: origin(store) for which, store in zip(read, stores, strict=True)}
    curves = curve_points(rows, lambda row: {f"{row['transform']}_{name}": row[name] for name in ("accuracy", "auc")})
    tables = {"wic": defined(rows), "chosen": defined(chosen)}
    return Measurements(tables, {**counts, **results, "cache": cached}, curves)


def _read_pairs(folder: str | None, part: str, say: Callable[[str], None]) -> dict[str, Any]:
    from probing.downstream.labelled_pairs import READABLE, read_wic

    if not folder:
        raise UserError(f"`wic` takes {READABLE}.")
    data = read_wic(folder, ["train", part])
    for line in (line for which, some in data.items() for line in some.messages(which)):
        say(line)
    return data


class _Cosines(Study):
    """A study of cosines, without training."""

    in_several_processes = True
    page = "small-studies.md#word-senses-and-similarity"

    def terms(self, result: Result) -> Mapping[str, Terms]:
        """Return the meanings of the headings and of what the rows are called."""
        return {self.title: {**TERMS, **super().terms(result)[self.title]}}


class WordsInContext(_Cosines):
    """Distinction of word senses by the cosine of a word's vectors."""

    name, kind, title = "wic", "word-in-context evaluation", "Word senses"
    function = "probing.studies.similarity:wic"
    schemas = WIC, WIC_CHOSEN
    views = WIC_VIEWS
    files: ClassVar[Mapping[str, str]] = {
        "figures/wic": "Accuracy by layer and space.",
    }

    def tables(self, result: Result) -> list[Any]:
        """Return accuracies by layer and space."""
        return wic_tables(result.wic, result.chosen)

    def charts(self, result: Result) -> list[Chart]:
        """Return the accuracy and the area under the ROC curve by layer."""
        return wic_charts(result.wic, result.chosen)

    def conclusions(self, result: Result) -> list[str]:
        """Return a sentence for each space."""
        return list(wic_lines(result.chosen))


class SentenceSimilarity(_Cosines):
    """Correlation of the cosine of two sentences' vectors with human scores."""

    name, kind, title = "sts", "similarity evaluation", "Similar sentences"
    function = "probing.studies.similarity:sts"
    schemas = STS, STS_CHOSEN
    views = STS_VIEWS
    files: ClassVar[Mapping[str, str]] = {
        "figures/sts_POOLING": "Correlation by layer and space, a panel for each set.",
    }

    def tables(self, result: Result) -> list[Any]:
        """Return correlations by layer and space."""
        return sts_tables(result.sts, result.chosen)

    def charts(self, result: Result) -> list[Chart]:
        """Return the correlation by layer, a chart for each pooling."""
        return sts_charts(result.sts)

    def conclusions(self, result: Result) -> list[str]:
        """Return a sentence for each set and space."""
        return list(sts_lines(result.chosen))


WIC_STUDY, STS_STUDY = WordsInContext(), SentenceSimilarity()
