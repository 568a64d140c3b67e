"""The studies `wic` and `sts`: performance of hidden states without training, by cosine."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from probing.cli.commandline import configured
from probing.cli.option_types import (
    FIGURE_FORMAT,
    Dtype,
    FigureFormat,
    Folder,
    Folders,
    Layers,
    Model,
    Tokenizer,
    Wandb,
)
from probing.cli.options import WandbOptions
from probing.downstream import CLIPPING, POOLINGS, SPACES, TRANSDUCTIVE, WORDS, Definition, Space
from probing.errors import UserError, out_of_range, refuse
from probing.models import load_tokenizer
from probing.page.charts import line_chart
from probing.page.terms import ACCURACY, TRANSFORMS
from probing.results import (
    Column,
    Html,
    Schema,
    element,
    ends,
    estimate,
    in_brackets,
    interval,
    layers_named,
    number,
    text,
    whole,
)
from probing.runs import Result, SectionPlace, Study, Terms, folded, section_of, study_of
from probing.runs.call import Call, Measured
from probing.runtime import quiet_libraries
from probing.runtime.processes import is_main_process
from probing.runtime.progress import stage
from probing.statistics import few_sentences, label, size_lines
from probing.tables.figures import Line
from probing.tables.schema import SIZES, layer_column

Row = Mapping[str, Any]

# Advice where a covariance was fitted on too few vectors.
FEWER_DIRECTIONS = "Keep fewer directions of whitening with `--components`."

MORE_TEXT = "Fit it on more text with `--fit_on`, or keep fewer directions of whitening with `--components`."


def wic_tables(rows: Sequence[Row], chosen: Sequence[Row]) -> list[Any]:
    """Return rich tables: the accuracies by layer, and the layer and threshold that each protocol chose."""
    spaces = list(dict.fromkeys(row["transform"] for row in rows))
    part = next(row["reported_on"] for row in chosen if row["protocol"] == "held_out")
    headings = [heading for space in spaces for heading in (_label(space, rows), "area")]
    layers = _table(f"Accuracy on {part} and area under the ROC curve, by layer", "layer", *headings)
    for layer in dict.fromkeys(row["layer"] for row in rows):
        by_space = {row["transform"]: row for row in rows if row["layer"] == layer}
        cells = [f"{by_space[space][measure]:.3f}" for space in spaces for measure in ("accuracy", "auc")]
        layers.add_row(str(layer), *cells)
    columns = ("layer", "threshold", "accuracy", "95% range", "gain", "95% range", "won", "lost", "p")
    chosen_elsewhere = _table(f"Layer and threshold chosen on train, reported on {part}", "space", *columns)
    published = _table(
        "As published, which is too high: chosen on train and reported on train",
        "space", "best layer", "best of 9 thresholds", "accuracy on train",
    )  # fmt: skip
    for row in chosen:
        name = _label(row["transform"], [row]) if "transform" in row else "always yes"
        start = [name, str(row.get("layer", ""))]
        if row["protocol"] == "published":
            published.add_row(*start, f"{row['threshold']:.1f}", f"{row['accuracy']:.3f}")
        else:
            chosen_elsewhere.add_row(
                *start,
                f"{row['threshold']:.3f}" if "threshold" in row else "",
                f"{row['accuracy']:.3f}",
                interval(row, "accuracy"),
                *(_gain(row, "+.3f", 1) if "gain" in row else ["", ""]),
                *((str(row["n_gained"]), str(row["n_lost"]), f"{row['p_value']:.2g}") if "gain" in row else ()),
            )
    return [layers, chosen_elsewhere, published]


def wic_lines(chosen: Sequence[Row]) -> list[str]:
    """Return a sentence for each space, then the amount of text that the transforms were fitted on."""
    lines = []
    constant = next(row for row in chosen if row["protocol"] == "constant_true")["accuracy"]
    for row in chosen:
        if row["protocol"] == "held_out":
            name = label(WORDS[row["transform"]].capitalize(), [row])
            line = (
                f"{name}: accuracy {row['accuracy']:.3f} on {row['reported_on']}"
                f"{in_brackets(interval(row, 'accuracy', ' to '), f'always yes {constant:.3f}')} in layer "
                f"{row['layer']}, chosen on train"
            )
            lines.append(line + _verdict(row, "+.3f", 1, f"{row['n_pairs']} pairs") + ".")
    return lines + _why_no_intervals(chosen) + size_lines(chosen, FEWER_DIRECTIONS)


def sts_tables(rows: Sequence[Row], chosen: Sequence[Row]) -> list[Any]:
    """Return rich tables: the correlations by layer for the first pooling, and the layers that each protocol chose."""
    rows = [row for row in rows if row["aggregation"] == "all"]
    pooling = rows[0]["pooling"]
    sets = list(dict.fromkeys(row["set"] for row in rows))
    tables = []
    for space in dict.fromkeys(row["transform"] for row in rows if row["pooling"] == pooling):
        of_pooling = [row for row in rows if row["pooling"] == pooling]
        table = _table(f"Spearman x 100: {pooling}, {_label(space, of_pooling)}", "layer", *sets)
        for layer in dict.fromkeys(row["layer"] for row in rows if row["pooling"] == pooling):
            by_set = {
                r["set"]: r for r in rows if (r["pooling"], r["layer"], r["transform"]) == (pooling, layer, space)
            }
            table.add_row(str(layer), *(_spearman(by_set[name]) for name in sets))
        static = {r["set"]: r for r in rows if (r["pooling"], r["transform"]) == ("static", space)}
        if static:
            table.add_row("static", *(_spearman(static[name]) for name in sets))
        tables.append(table)
    return [*tables, *_chosen_sts(chosen, "held_out"), *_chosen_sts(chosen, "published")]


def _chosen_sts(chosen: Sequence[Row], protocol: str) -> list[Any]:
    title = {
        "held_out": "Spearman x 100 with the layer chosen on other pairs, in three aggregations",
        "published": "As published, which can be too high: Spearman x 100 with the layer chosen on the set itself",
    }[protocol]
    is_transductive = any(TRANSDUCTIVE in row.get("fitted_on", "") for row in chosen)
    title += "; transforms fitted on the set's own sentences (transductive)" if is_transductive else ""
    by_space: dict[tuple[Any, ...], dict[str, Row]] = {}
    for row in chosen:
        if row["protocol"] == protocol:
            by_space.setdefault((row["set"], row["pooling"], row["transform"]), {})[row["aggregation"]] = row
    on = ["chosen on"] if protocol == "held_out" else []
    table = _table(title, "set", "vectors", "layer", *on, "all", "95% range", "mean", "wmean", "gain", "95% range")
    for (name, pooling, space), by in by_space.items():
        row = by["all"]
        table.add_row(
            name,
            f"{pooling}, {_label(space, [row])}",
            str(row["layer"]),
            *[str(row.get("chosen_on", "")) for _ in on],
            _spearman(row),
            interval(row, times=100, form=".1f"),
            *(_spearman(by[how]) for how in ("mean", "wmean")),
            *(_gain(row, "+.1f", 100) if "gain" in row else ()),
        )
    return [table] if by_space else []


def sts_lines(chosen: Sequence[Row]) -> list[str]:
    """Return a sentence for each set and space over all pairs, in the chosen layer or else the best layer.

    The last sentences give the amount of text that the transforms were fitted on.
    """
    protocols = [row["protocol"] for row in chosen if row["pooling"] != "static"]
    protocol = "held_out" if "held_out" in protocols else "published"
    lines = []
    for row in chosen:
        if row["aggregation"] == "all" and (row["protocol"] == protocol or row["pooling"] == "static"):
            where = f" in layer {row['layer']}" if row["layer"] != "" else ""
            on = f", chosen on {row['chosen_on']}" if "chosen_on" in row else ""
            if protocol == "published" and where:
                on += " itself, which can be too high"
            name = f"{row['set']}, {row['pooling']}, {_label(row['transform'], [row])}"
            line = f"{name}: Spearman {_spearman(row)}{in_brackets(interval(row, '', ' to ', '.1f', 100))}{where}{on}"
            lines.append(line + _verdict(row, "+.1f", 100, f"{row['n_pairs']} pairs") + ".")
    return lines + _why_no_intervals(chosen) + size_lines(chosen, MORE_TEXT)


def _label(space: str, rows: Sequence[Row]) -> str:
    return label(WORDS[space], [row for row in rows if row.get("transform") == space])


def _why_no_intervals(chosen: Sequence[Row]) -> list[str]:
    few = few_sentences(min(row["n_pairs"] for row in chosen if "n_pairs" in row), "pair")
    return [few] if few else []


def _gain(row: Row, form: str, times: int) -> list[str]:
    return [format(times * row["gain"], form), interval(row, "gain", " to ", form, times)]


def _verdict(row: Row, form: str, times: int, pairs: str) -> str:
    if "gain" not in row:
        return ""
    (gain, within), gain_ends = _gain(row, form, times), ends(row, "gain")
    p_value = f"McNemar p = {row['p_value']:.2g}" if "p_value" in row else ""
    comment = (
        "" if gain_ends and (gain_ends[0] > 0 or gain_ends[1] < 0) else f", a difference that {pairs} do not resolve"
    )
    if row["transform"] in CLIPPING and not row["n_clipped"]:
        comment = ", because no neuron is an outlier there"
    return f"; {gain} compared with plain{in_brackets(within, p_value)}{comment}"


def _spearman(row: Row) -> str:
    """Return a correlation in points; `-` if undefined (missing or NaN), as when all sentences share a vector."""
    value = row.get("spearman", math.nan)
    return f"{100 * value:.1f}" if value == value else "-"


def _table(title: str, *headings: str) -> Any:
    from probing.runtime.terminal import plain_table

    table = plain_table(title, collapse_padding=True)
    for heading in headings:
        is_name = heading in ("space", "set", "vectors", "chosen on")
        table.add_column(heading, justify="left" if is_name else "right", no_wrap=not is_name)
    return table


_SPACE = text("transform", "How the hidden states are transformed before their cosines are taken.")

_N_CLIPPED = whole("n_clipped", "Number of neurons that are clipped.")

_CLIPPED = text("clipped", "The neurons that are clipped.", may_be_empty=True)

_N_PAIRS = whole("n_pairs", "Number of pairs.")

_THRESHOLD = number("threshold", "Cosine from which on a pair is predicted to mean the same, chosen on train.")

_PROTOCOL = text("protocol", "How the layer was chosen: held_out, on other pairs, or published, on the same.")

_GAIN = estimate("gain", "Difference from the untransformed hidden states.", form="+.3f")

WIC = Schema("wic", "a row per layer and space", (
    layer_column(), _SPACE, _THRESHOLD,
    number("train_accuracy", "Accuracy on the training pairs."),
    estimate("accuracy", "Share of the pairs that are predicted correctly."),
    estimate("auc", "Area under the ROC curve."),
    number("train_auc", "The same of the training pairs."),
    number("published_threshold", "The best of the nine thresholds 0.1 to 0.9 on the reported pairs themselves."),
    number("published_accuracy", "Its accuracy."),
    number("constant_true_accuracy", "Accuracy of answering for every pair that the word means the same."),
    _N_CLIPPED, _CLIPPED,
    whole("n_train_pairs", "Number of training pairs."), _N_PAIRS, *SIZES,
))  # fmt: skip

WIC_CHOSEN = Schema("chosen", "a row per protocol and space", (
    _PROTOCOL, _SPACE, layer_column("The chosen layer."), _THRESHOLD,
    estimate("accuracy", "Accuracy in the chosen layer."),
    text("reported_on", "Part whose pairs the accuracy is of."),
    _GAIN,
    whole("n_gained", "Number of pairs that are predicted correctly only in this space."),
    whole("n_lost", "Number of pairs that are predicted correctly only from untransformed hidden states."),
    number("p_value", "McNemar's test of the first against the second."),
    _N_CLIPPED, _N_PAIRS, *SIZES,
))  # fmt: skip

_SET = text("set", "Collection of pairs of sentences with human scores.")

_POOLING = text("pooling", "How the vector of a sentence is made from those of its tokens.")

# Static vectors have no layer: the cell is empty.
_LAYER = replace(layer_column("Number of the layer; empty of static vectors."), may_be_empty=True)

_AGGREGATION = text("aggregation", "all pairs together, the mean of the subsets, or wmean, weighted by their pairs.")

_CORRELATION = (
    Column("spearman", float, "Spearman's correlation of cosines and human scores; low, high: its 95% interval.",
           form=".3f", interval=""),
    _GAIN, _N_PAIRS, _N_CLIPPED, _CLIPPED,
    text("fitted_on", "Text that the transform was fitted on."),
    *SIZES,
)  # fmt: skip

STS = Schema("sts", "a row per set, pooling, layer, space and aggregation", (
    _SET, _POOLING, _LAYER, _SPACE, _AGGREGATION, *_CORRELATION,
))  # fmt: skip

STS_CHOSEN = Schema("chosen", "a row per protocol, set, pooling, space and aggregation", (
    _PROTOCOL, _SET, _POOLING, _SPACE, replace(_LAYER, meaning="The chosen layer; empty of static vectors."),
    text("chosen_on", "Pairs on which the layer was chosen."),
    whole("n_chosen_on", "Number of these."),
    _AGGREGATION, *_CORRELATION,
))  # fmt: skip

EVALUATIONS: Terms = {
    **{words: TRANSFORMS[space] for space, words in WORDS.items()},
    "static vectors": "One vector per word type, the same in all sentences, instead of the model's hidden states.",
    "layer": ACCURACY["layer"],
    "space": "How hidden states were transformed before their cosines were taken.",
    "always yes": "Answering for every pair that the word means the same.",
    "threshold": "Cosine from which on a pair is predicted to mean the same, chosen on the training part.",
    "accuracy": "Share of the pairs that are predicted correctly.",
    "area": "Area under the ROC curve: the probability that a pair with the same meaning has a higher cosine than a "
    "pair with two meanings.",
    "95% range": "Interval over pairs, of the number to its left.",
    "gain": "Difference from untransformed hidden states.",
    "won": "Number of pairs that are predicted correctly only in this space.",
    "lost": "Number of pairs that are predicted correctly only from untransformed hidden states.",
    "p": "McNemar's test of pairs won against pairs lost.",
    "best layer": "Layer with the highest accuracy on the training part itself.",
    "best of 9 thresholds": "Threshold, among 0.1 to 0.9, with the highest accuracy on the training part itself.",
    "accuracy on train": "Accuracy of both on the pairs they were chosen on, which is too high for other pairs.",
    "set": "Collection of sentence pairs with human scores of how similar they are.",
    "vectors": "How the vector of a sentence is made from those of its tokens, and in which space.",
    "chosen on": "Pairs on which the layer was chosen.",
    "all": "Spearman's correlation of cosines and human scores, times 100, over all pairs of the set.",
    "mean": "The mean of that correlation over the subsets.",
    "wmean": "The same mean, each subset weighted by its number of pairs.",
}


def senses_section(result: Result, anchor: str) -> Html:
    """Return the results of `wic` in sentences, as lines over the layers, and in the tables of the terminal."""
    return _section(result, anchor, [_senses(result.wic, result.chosen)])


def similarity_section(result: Result, anchor: str) -> Html:
    """Return the results of `sts` in sentences, as lines over the layers, and in the tables of the terminal."""
    return _section(result, anchor, _similarities(result.sts))


def _section(result: Result, anchor: str, charts: Sequence[Html]) -> Html:
    return section_of(
        result,
        anchor,
        *charts,
        *folded(result.tables()),
    )


def _senses(rows: Sequence[Row], chosen: Sequence[Row]) -> Html:
    part = next(row["reported_on"] for row in chosen if row["protocol"] == "held_out")
    lines = _by_space(rows, "accuracy", "accuracy")
    lines.append(_level("always yes", rows, rows[0]["constant_true_accuracy"]))
    title = (
        f"Accuracy on {part} by layer and space, the threshold chosen on train, with 95% intervals over "
        f"{rows[0]['n_pairs']} pairs"
    )
    return element("figure", element("figcaption", title), line_chart(lines, title))


def _similarities(rows: Sequence[Row]) -> list[Html]:
    charts = []
    # Where all cosines of a set are the same, as of the first token's embedding, there is no correlation.
    defined = [row for row in rows if math.isfinite(row.get("spearman", math.nan))]
    rows = [row for row in defined if row["aggregation"] == "all"]
    for name in dict.fromkeys(row["set"] for row in rows):
        set_rows = [row for row in rows if row["set"] == name]
        static = [row for row in set_rows if (row["pooling"], row["transform"]) == ("static", "none")]
        pooled = [row for row in set_rows if row["pooling"] != "static"]
        pooled = [row for row in pooled if row["pooling"] == pooled[0]["pooling"]]
        if pooled:
            lines = _by_space(pooled, "spearman", "")
            lines += [_level("static vectors, plain", pooled, row["spearman"]) for row in static]
            title = (
                f"{name}, sentences by {pooled[0]['pooling']}: Spearman of cosines and human scores by layer and "
                f"space, with 95% intervals over {pooled[0]['n_pairs']} pairs (values below 0 are drawn at 0)"
            )
            charts.append(element("figure", element("figcaption", title), line_chart(lines, title)))
    return charts


def _by_space(rows: Sequence[Row], column: str, of: str) -> list[Line]:
    """Return a line for each space; `of` names the interval as in `ends`."""
    lines = []
    for space in dict.fromkeys(row["transform"] for row in rows):
        space_rows = sorted((row for row in rows if row["transform"] == space), key=lambda row: row["layer"])
        layers, values = [row["layer"] for row in space_rows], [row[column] for row in space_rows]
        lines.append(Line(label(WORDS[space], space_rows), layers, values, [ends(row, of) for row in space_rows]))
    return lines


def _level(label: str, rows: Sequence[Row], value: float) -> Line:
    layers = sorted({row["layer"] for row in rows})
    return Line(label, layers, [value] * len(layers))


@configured
def sts(
    config: dict[str, Any],
    folders: Folders | None = None, model: Model = "minilm", layer: Layers = "all", revision: str | None = None,
    random_weights: bool = False, dtype: Dtype = "float32", pooling: str | list[str] = "mean",
    transforms: str | list[str] = "clip,whiten", definition: Definition = "mean_profile",
    components: int | None = None, fit_on: str = "train", static: str | None = None, max_length: int | None = None,
    batch_tokens: int | None = None, seed: int = 0, runs: str = "runs", name: str | None = None,
    cache: str | None = None, quiet: bool = False, trainer: dict[str, Any] | None = None,
    wandb: Wandb = WandbOptions(), tokenizer: Tokenizer = None, figure_format: FigureFormat = FIGURE_FORMAT,
) -> Result | None:  # fmt: skip
    """Correlate sentence cosines with human scores (STS, SICK-R), per layer: plain, clipped and whitened.

    Args:
        folders: Folders with STS12 to STS16, STS-B and SICK, or hf:NAME?config=C; may be given without `--folders`.
        pooling: How token vectors become a sentence vector, some or all: mean (special tokens are excluded),
            mean_special (all tokens), cls (the first token), first_last (the average of layer 1 and each layer).
        transforms: Transforms to compare with the plain vectors: all, none, or some of clip, clip_random, whiten,
            standardise, center, all_but_the_top.
        fit_on: Text that transforms are fitted on: train (the training parts, or the built-in corpus if there are
            none), a corpus such as builtin or text.txt, or target (the sentences of each test set, which is
            transductive).
        static: File of word vectors in GloVe's format, whose mean over a sentence is evaluated for comparison.
        name: Name of this run; default: MODEL-sts-YYYYMMDD-HHMMSS.

    Returns:
        The results; None except in the rank-zero process.
    """
    from probing.cli.option_types import chosen as named

    call = Call.of(study_of("sts"), config, name, wandb, out_of_range("components", components, 1))
    poolings = named("--pooling", pooling, POOLINGS)
    spaces: list[Space] = ["none", *named("--transforms", transforms, SPACES[1:], "none")]
    sets = _read_sets(config["folders"] or (), call.say)
    outside = _outside(fit_on, spaces != ["none"] and not any(pairs.part == "train" for pairs in sets), call.say)
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
        from probing.studies.similarity.results import sts_output

        source = call.source(tokenizer=tokenizer)
        files = source.model
        refuse(out_of_range("components", components, 1, source.config.hidden_size))
        if spaces != ["none"]:
            check_text_to_fit_on(sets, outside, reported(sets), fit_on)
        corpora = [pairs.corpus for pairs in sets] + ([outside] if outside else [])
        words = read_static(static, [text for corpus in corpora for text in corpus.sentences]) if static else None
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
        fitting = TransformFitting(spaces, definition, components, seed)

        def measure(_: Path) -> Measured:
            with stage(f"cosines of {layers_named(source.layers)}"):
                tables = evaluate(vectors, source.layers, poolings, fitting, fit_on, seed)
            return sts_output(*tables, vectors, descriptions, poolings, files.short_name)

        return call.write(files, measure)


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


@configured
def wic(
    config: dict[str, Any],
    folder: Folder | None = None, model: Model = "minilm", layer: Layers = "all", revision: str | None = None,
    random_weights: bool = False,
    dtype: Dtype = "float32", part: Literal["dev", "test"] = "dev", transforms: str | list[str] = "clip,whiten",
    definition: Definition = "mean_profile",
    components: int | None = None, max_length: int | None = None, batch_tokens: int | None = None,
    seed: int = 0, runs: str = "runs", name: str | None = None, cache: str | None = None, quiet: bool = False,
    trainer: dict[str, Any] | None = None, wandb: Wandb = WandbOptions(),
    tokenizer: Tokenizer = None, figure_format: FigureFormat = FIGURE_FORMAT,
) -> Result | None:  # fmt: skip
    """Distinguish word senses by cosine (WiC), per layer: plain, clipped and whitened.

    Args:
        folder: Folder of the WiC data set, or hf:NAME?config=C for its SuperGLUE form; may be given without `--folder`.
        part: Part whose accuracy is reported; layer and threshold are selected on train.
        transforms: Transforms to compare with the plain hidden states: all, none, or some of clip, clip_random, whiten,
            standardise, center, all_but_the_top; they are fitted on the tokens of training sentences.
        name: Name of this run; default: MODEL-wic-YYYYMMDD-HHMMSS.

    Returns:
        The results; None except in the rank-zero process.
    """
    from probing.cli.option_types import chosen as named

    call = Call.of(study_of("wic"), config, name, wandb, out_of_range("components", components, 1))
    spaces: list[Space] = ["none", *named("--transforms", transforms, SPACES[1:], "none")]
    data = _read_pairs(config["folder"], part, call.say)
    with quiet_libraries():
        from probing.activations.source import report_dropped_text
        from probing.downstream.sentence_vectors import FittingText, TransformFitting, not_in
        from probing.downstream.wic import evaluate, target_check, unknown_pairs, without_cut_words
        from probing.studies.similarity.results import wic_output

        source = call.source(tokenizer=tokenizer)
        refuse(out_of_range("components", components, 1, source.config.hidden_size))
        corpora = [pairs.corpus for pairs in data.values()]
        is_fitted_on = not_in(corpora[0].sentences, corpora[1].sentences)
        if not is_fitted_on.any():
            raise UserError(f"`wic {folder}`: every sentence of train is in {part} too; give parts that differ.")
        call.expect(2)
        stores = source.read(corpora, [target_check(pairs) for pairs in data.values()])
        if not is_main_process():
            return None
        call.watch.end("extract")
        report_dropped_text(corpora, [store.tokens for store in stores], call.say)
        pairs = without_cut_words(data, stores, call.say)
        n_unknown = unknown_pairs(pairs, stores, load_tokenizer(source.model), call.say)
        fitting = TransformFitting(spaces, definition, components, seed)
        results = {"n_unknown_pairs": n_unknown, "n_sentences_fitted_on": int(is_fitted_on.sum())}

        def measure(_: Path) -> Measured:
            with stage(f"cosines of {layers_named(source.layers)}"):
                tables = evaluate(pairs, stores, FittingText(stores[0], is_fitted_on), source.layers, fitting, seed)
            return wic_output(*tables, data, pairs, stores, results, source.model.short_name)

        return call.write(source.model, measure)


def _read_pairs(folder: str | None, part: str, say: Callable[[str], None]) -> dict[str, Any]:
    from probing.downstream.labelled_pairs import READABLE, read_wic

    if not folder:
        raise UserError(f"`wic` takes {READABLE}.")
    data = read_wic(folder, ["train", part])
    for line in (line for which, some in data.items() for line in some.messages(which)):
        say(line)
    return data


class WordsInContext(Study):
    """Distinction of word senses by the cosine of a word's vectors."""

    name, kind, title = "wic", "word-in-context evaluation", "Word senses"
    function = "probing.studies.similarity:wic"
    in_several_processes = True
    schemas = WIC, WIC_CHOSEN
    page = "similarity.md"
    files: ClassVar[Mapping[str, str]] = {
        "figures/wic": "Accuracy by layer and space.",
    }

    def tables(self, result: Result) -> list[Any]:
        """Return accuracies by layer and space."""
        return wic_tables(result.wic, result.chosen)

    def conclusions(self, result: Result) -> list[str]:
        """Return a sentence for each question."""
        return wic_lines(result.chosen)

    def section(self, result: Result, place: SectionPlace) -> Html:
        """Return the accuracy by layer, and the tables of the terminal."""
        return senses_section(result, place.anchor)

    def terms(self, result: Result) -> Mapping[str, Terms]:
        """Return the meanings of the headings."""
        return {"Words and sentences": EVALUATIONS}


class SentenceSimilarity(Study):
    """Correlation of the cosine of two sentences' vectors with human scores."""

    name, kind, title = "sts", "similarity evaluation", "Similar sentences"
    function = "probing.studies.similarity:sts"
    in_several_processes = True
    schemas = STS, STS_CHOSEN
    page = "similarity.md"
    files: ClassVar[Mapping[str, str]] = {
        "figures/sts_POOLING": "Correlation by layer and space, a panel for each set.",
    }

    def tables(self, result: Result) -> list[Any]:
        """Return correlations by layer and space."""
        return sts_tables(result.sts, result.chosen)

    def conclusions(self, result: Result) -> list[str]:
        """Return a sentence for each question."""
        return sts_lines(result.chosen)

    def section(self, result: Result, place: SectionPlace) -> Html:
        """Return the correlation by layer, a chart for each set, and the tables of the terminal."""
        return similarity_section(result, place.anchor)

    def terms(self, result: Result) -> Mapping[str, Terms]:
        """Return the meanings of the headings."""
        return {"Words and sentences": EVALUATIONS}


WIC_STUDY, STS_STUDY = WordsInContext(), SentenceSimilarity()
