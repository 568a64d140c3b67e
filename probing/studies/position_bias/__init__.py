"""The study `position-bias`: does the start of a document weigh more in its embedding than the end?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Any, ClassVar, cast

from probing.cli.commandline import command
from probing.cli.options import (
    BatchOptions,
    Folder,
    Layers,
    OutputOptions,
    RunOptions,
    Source,
    StatesOptions,
    defaults,
    option,
)
from probing.downstream import POOLINGS, Pooling
from probing.errors import UserError, out_of_range, refuse
from probing.models import length_limits, load_tokenizer
from probing.models.source import sentence_model
from probing.results import (
    Row,
    Schema,
    Table,
    View,
    ends,
    estimate,
    estimated,
    in_brackets,
    interval,
    number,
    shown,
    sign_of_interval,
    text,
    whole,
)
from probing.runs import Result, Study, model_name, study_of
from probing.runs.call import Call, Measurements
from probing.runs.loading import load_fit_of_classes, read_as_run
from probing.runs.run import Run
from probing.runtime import quiet_libraries
from probing.runtime.processes import is_main_process
from probing.statistics import few_sentences
from probing.tables.figures import Chart, Line, Panel, XAxis, spaced_layers
from probing.text import Corpus, from_sentences, load_corpus

# What is measured at each place: the change by an edit, and the weight in a fit.
EDITS = REPLACE, DELETE, INSERT = "replace", "delete", "insert"

WEIGHT = "weight"

MEASURES = {REPLACE: "replaced", DELETE: "deleted", INSERT: "inserted", WEIGHT: "weight"}

WORDS = {
    REPLACE: "a sentence replaced", DELETE: "a sentence deleted", INSERT: "a sentence inserted",
    WEIGHT: "weight of a sentence",
}  # fmt: skip

# The order in which the sentences of a document are read.
AS_WRITTEN, SHUFFLED = "as_written", "shuffled"

ORDERS = {AS_WRITTEN: "as written", SHUFFLED: "shuffled"}

# Vectors of the same texts, and with which others each is compared.
MODEL, BAG = "model", "bag"

CENTRED, POSITION, RANDOM, NEURONS = "centred", "position_removed", "random_held", "neurons_held"

EMBEDDINGS = {
    MODEL: "unchanged", BAG: "bag of words", CENTRED: "mean subtracted", POSITION: "position parts subtracted",
    RANDOM: "random neurons fixed", NEURONS: "position neurons fixed",
}  # fmt: skip

AGAINST = {CENTRED: MODEL, POSITION: CENTRED, RANDOM: MODEL, NEURONS: RANDOM}

SENTENCES = {
    "answer": "In embeddings of {model}, the start of a document {verdict}: {edit} at the start moves the embedding by "
    "{at_start:.4f} (1 - cosine), at the end by {at_end:.4f}, with the same sentences at both ends{difference}.",
    "null": "Relative bias of the model, compared with a bag of word embeddings, which has no positions: {model} and "
    "{bag} if sentences are shuffled; {model_as_written} and {bag_as_written} as written, where the first sentence may "
    "contain more information.",
    "middle": "Start compared with the middle, sentences shuffled: {start:.4f} and {middle:.4f}{difference}; in the "
    "bag of words {bag_start:.4f} and {bag_middle:.4f}.",
    "weights": "In a least-squares fit, the weight of the first sentence is {at_start:.2f} times its share of the "
    "tokens and the weight of the last one {at_end:.2f} times{difference}; the weighted sum of the embeddings of the "
    "sentences explains {explained:.0%} of the embedding of a document.",
    "correction": "Relative bias with {correction}: {relative}; compared with {baseline}, {verdict} ({change}).",
    "correlation": "On {set}, Spearman's correlation of cosines and human scores is {spearman:.4f}; it changes by "
    "{changes}.",
    "change": "{difference} with {correction}, compared with {baseline}",
}

_VERDICTS = {
    1: "has more weight than its end", -1: "has less weight than its end",
    0: "is not shown to have more or less weight than its end",
}  # fmt: skip

_UNTESTED = "is not tested against its end, because there are too few documents"

_CHANGED = {1: "it increases", -1: "it decreases", 0: "no change is resolved"}

_CORRECTIONS = {
    CENTRED: "one mean vector subtracted from all embeddings", POSITION: "the part of each position subtracted, too",
    RANDOM: "random neurons fixed at their mean (mean over draws)",
    NEURONS: "the neurons that encode position most fixed at their mean",
}  # fmt: skip

_BASELINES = {MODEL: "the model", CENTRED: "the mean alone subtracted", RANDOM: "as many random neurons"}

_EMBEDDING = text(
    "embedding", "Vector of a text: `model`, the unchanged embedding of the model; `bag`, the mean of its word "
    "embeddings, without positions and without the model's blocks, as the null; `centred`, the embedding minus the "
    "mean of all tokens; `position_removed`, minus that mean and the position part of each token; `random_held` and "
    "`neurons_held`, with random neurons fixed at their mean (mean over draws), and with the neurons that encode "
    "position most.", "vector", labels=EMBEDDINGS,
)  # fmt: skip

_MEASURE = text(
    "measure", "What is measured at each place: how far the vector moves, as 1 minus the cosine, if a sentence is "
    "replaced, deleted or inserted there; or the weight of the sentence there in a least-squares fit of the document's "
    "vector, 1 for a sentence whose weight is its share of the tokens.", labels=MEASURES,
)  # fmt: skip

_ORDER = text(
    "order", "Order of the sentences of a document: as written, or shuffled, which is the mean of a random order and "
    "of its reverse, so that the same sentences are at both ends.", labels=ORDERS,
)  # fmt: skip

BIAS = Schema("bias", "a row per measure, order and vector", (
    _MEASURE, _ORDER, _EMBEDDING,
    number("at_start", "The measure at the first place.", "start", form=".4f"),
    number("at_middle", "In the middle: at the middle place, or the mean of both.", "middle", form=".4f"),
    number("at_end", "At the last place.", "end", form=".4f"),
    estimate("start_end", "Start minus end, paired by document: above 0, the start has more weight.", "start - end",
             "+.4f"),
    number("start_end_p", "p-value of a difference of 0 (Student's t over documents, as the interval); not corrected "
           "for several measures.", "p", ".2g"),
    estimate("start_middle", "Start minus middle, paired by document.", "start - middle", "+.4f"),
    number("start_middle_p", "Its p-value.", "p (middle)", ".2g"),
    estimate("relative", "Start minus end, divided by the mean of all places, so that vectors can be compared: +.5 if "
             "the start exceeds the end by half of the mean.", "bias", "+.3f"),
    text("against", "The vectors with which these are compared.", "baseline", labels=EMBEDDINGS),
    estimate("relative_difference", "Relative bias minus the relative bias of the vectors in `against`, paired by "
             "document.", "change", "+.3f"),
    number("least", "Of random neurons: least relative bias of a draw.", form="+.3f"),
    number("most", "Of random neurons: largest relative bias of a draw.", form="+.3f"),
    whole("n_documents", "Number of documents.", "documents"),
))  # fmt: skip

PLACES = Schema("places", "a row per measure, order, vector and place in the document", (
    _MEASURE, _ORDER, _EMBEDDING,
    whole("position", "Place of the sentence in the document, from 1; a sentence is inserted before the sentence at "
          "this place, or at the end.", "place"),
    number("value", "The measure there, mean over documents; low, high: its 95% interval.", form=".4f", interval=""),
    whole("n_documents", "Number of documents.", "documents"),
))  # fmt: skip

SIMILARITY = Schema("similarity", "a row per set of sentence pairs and vector", (
    text("set", "The set of pairs with human scores."), _EMBEDDING,
    number("spearman", "Spearman's correlation of cosines and scores, over all pairs; low, high: its 95% interval over "
           "pairs.", form=".4f", interval=""),
    text("against", "The vectors with which these are compared.", "baseline", labels=EMBEDDINGS),
    estimate("difference", "Correlation minus the correlation of the vectors in `against`, paired by pair of "
             "sentences.", form="+.4f"),
    whole("n_pairs", "Number of pairs.", "pairs"),
), optional=True)  # fmt: skip

VIEWS = (
    View(BIAS, ("measure", "at_start", "at_middle", "at_end", "start_end*", "start_end_p"),
         "The embedding of the model, sentences {order}", "order", {"embedding": MODEL}),
    View(BIAS, ("embedding", "relative*", "relative_difference*"), "Relative bias of all vectors, sentences shuffled: "
         "{measure}", "measure", {"order": SHUFFLED}),
    View(SIMILARITY, ("set", "embedding", "spearman", "difference*"),
         "Similar sentences: Spearman's correlation of cosines and human scores"),
)  # fmt: skip


def answer(bias: Table, model: str) -> list[str]:
    """Return whether the start has more weight than the end, with the same sentences at both."""
    (row,) = bias.where(measure=bias[0]["measure"], order=SHUFFLED, embedding=MODEL)
    verdict = _VERDICTS[sign_of_interval(row, "start_end")] if ends(row, "start_end") else _UNTESTED
    edit, difference = WORDS[row["measure"]], _difference(row, "start_end")
    return [SENTENCES["answer"].format(**row, model=model, verdict=verdict, edit=edit, difference=difference)]


def _difference(row: Row, of: str, form: str = "+.4f") -> str:
    p = BIAS[f"{of}_p"].show(row)
    return in_brackets(f"difference {shown(row[of], form)}", interval(row, of, " to ", form), f"p = {p}" if p else "")


def conclusions(bias: Table, pairs: Table, results: Mapping[str, Any]) -> Iterator[str]:
    """Yield the null, the middle, the weights, and the effect of each correction."""
    rows = {(row["embedding"], row["order"]): row for row in bias.where(measure=bias[0]["measure"])}
    model, bag = rows[MODEL, SHUFFLED], rows[BAG, SHUFFLED]
    relative = {key: estimated(row, "relative", "+.3f") for key, row in rows.items()}
    yield SENTENCES["null"].format(
        model=relative[MODEL, SHUFFLED], bag=relative[BAG, SHUFFLED],
        model_as_written=relative[MODEL, AS_WRITTEN], bag_as_written=relative[BAG, AS_WRITTEN],
    )  # fmt: skip
    yield SENTENCES["middle"].format(
        start=model["at_start"], middle=model["at_middle"], difference=_difference(model, "start_middle"),
        bag_start=bag["at_start"], bag_middle=bag["at_middle"],
    )  # fmt: skip
    (weights,) = bias.where(measure=WEIGHT, order=SHUFFLED, embedding=MODEL)
    explained, difference = results["explained"][SHUFFLED], _difference(weights, "start_end", "+.2f")
    yield SENTENCES["weights"].format(**weights, explained=explained, difference=difference)
    for name, baseline in AGAINST.items():
        if row := rows.get((name, SHUFFLED)):
            tested = ends(row, "relative_difference")
            yield SENTENCES["correction"].format(
                correction=_CORRECTIONS[name], relative=shown(row["relative"], "+.3f"), baseline=_BASELINES[baseline],
                verdict=_CHANGED[sign_of_interval(row, "relative_difference")] if tested else "not tested",
                change=", ".join(filter(None, [
                    shown(row["relative_difference"], "+.3f"), interval(row, "relative_difference", " to ", "+.3f"),
                ])),
            )  # fmt: skip
    for name, rows_of_set in pairs.by("set").items():
        changes = [
            SENTENCES["change"].format(
                difference=estimated(row, "difference", "+.4f"), correction=_CORRECTIONS[row["embedding"]],
                baseline=_BASELINES[row["against"]],
            )
            for row in rows_of_set.where(embedding=tuple(AGAINST))
        ]  # fmt: skip
        (row,) = rows_of_set.where(embedding=MODEL)
        yield SENTENCES["correlation"].format(set=name, spearman=row["spearman"], changes="; ".join(changes))
    if few := few_sentences(model["n_documents"], "document"):
        yield few


# The lines of a chart, from the vectors and the order of sentences.
LINES = {
    (MODEL, SHUFFLED): "model, shuffled",
    (MODEL, AS_WRITTEN): "model, as written",
    (BAG, SHUFFLED): "bag of words, shuffled",
}

BY_PLACE = XAxis(
    "place", lambda places: "place of the sentence (1 = first)", lambda places: places,
    lambda places, _: [str(place) if place in spaced_layers(places, 12) else "" for place in places],
)  # fmt: skip


def charts(rows: Table) -> list[Chart]:
    """Return what an edit changes, and the weight of a sentence, by place: a panel for each measure."""
    panels = [
        Panel(
            [_line(of_measure, *which) for which in LINES], WORDS[measure],
            "relative to the mean of all places", True,
        )
        for measure, of_measure in rows.by("measure").items()
    ]  # fmt: skip
    title = "weight of each place of a document in its embedding (bars: 95% over documents)"
    return [Chart("position_bias", title, panels, x=BY_PLACE, reference=1)]


def _line(rows: Table, embedding: str, order: str) -> Line:
    """Return the line of some vectors, over its mean of all places; all 0 if the mean is 0."""
    shown_rows = rows.where(embedding=embedding, order=order)
    mean = sum(shown_rows.column("value")) / len(shown_rows)
    return Line.of(shown_rows, "value", LINES[embedding, order], "", "position", 1 / mean if mean else 0.0)


# Options whose values are those of `--run`, where it is given.
OF_RUN = ("model", "revision", "random_weights")

# Stands for the pooling of the checkpoint; the others average or take tokens of one layer.
AS_CHECKPOINT = "checkpoint"


@dataclass(frozen=True)
class PositionBiasOptions(OutputOptions, RunOptions, BatchOptions, StatesOptions):
    """Options of `position-bias`."""

    layer: Layers = -1
    """Layer whose hidden states are pooled; default: the last layer."""
    corpus: Source = "builtin"
    """Text whose consecutive sentences form documents; if the corpus marks documents (.conllu, empty lines in .txt),
    none crosses their boundaries."""
    pooling: str = AS_CHECKPOINT
    """How token vectors become an embedding: checkpoint (as the model's sentence-transformers files specify, otherwise
    mean_special), mean_special (all tokens), mean (special tokens are excluded) or cls (the first token)."""
    sentences: int = option(8, at_least=3)
    """Number of sentences per document, at least 3."""
    documents: int = option(40, at_least=2)
    """Maximum number of documents to measure, at most half of those available; replacement sentences and position parts
    come from the rest."""
    edits: str | list[str] = option("replace", choices=EDITS)
    """Edits of a sentence, some or all: replace (by a sentence of another document with about as many tokens), delete,
    insert (a sentence of another document)."""
    top: int = option(10, at_least=1)
    """Number of neurons that are set to their mean after the model: those that encode position most."""
    draws: int = option(20, at_least=1)
    """Number of draws of equally many random neurons, for comparison."""
    run: Folder | None = None
    """Finished run of fit for the task position, with the same model and layer. The neurons with the largest
    contributions in this run are set to their mean, instead of the neurons whose variance position explains most."""
    sts: str | list[str] | None = None
    """Folders of sentence pairs with human scores, as in the command sts, separated by commas, on which the cost of
    corrections is measured."""
    _: KW_ONLY
    seed: int = 0
    """Seed of every random draw: documents, orders, replacement sentences, neurons, random initialisation."""
    name: str | None = None
    """Name of this run; default: MODEL-position-bias-YYYYMMDD-HHMMSS."""


@command(PositionBiasOptions)
def position_bias(options: PositionBiasOptions) -> Result | None:
    """Measure the position bias of embeddings: does a sentence weigh more at the start of a document than at the end?

    Returns:
        The results; None except in the rank-zero process.
    """
    call, edit_names = Call.of(study_of("position-bias"), options), options.selected("edits")
    fit_run = None if options.run is None else _run_of(call.config)
    with quiet_libraries():
        from probing.downstream.sentence_vectors import first_token_check
        from probing.studies.position_bias.survey import BiasConfig, DocumentVectors, documents_of, survey, texts_of

        text, sets = load_corpus(options.corpus), _read_sets(call.config["sts"], call.say)
        setting = _setting(call, options.tokenizer)
        refuse(out_of_range("top", options.top, 1, setting.source.config.hidden_size - 1))
        neurons = None if fit_run is None else _neurons(fit_run, setting.layer, options.top)
        count = partial(_n_tokens, setting)
        drawn = documents_of(
            text, options.sentences, options.documents, INSERT in edit_names, setting.limit, setting.n_special, count,
            options.seed,
        )  # fmt: skip
        if drawn.n_too_long:
            runs = f"{drawn.n_too_long} runs of {options.sentences} sentences"
            call.say(f"{runs} do not fit in {setting.limit} tokens: left out")
        texts = texts_of(drawn, edit_names, options.seed)
        call.expect(2 + bool(sets))
        corpora = [texts.corpus, drawn.of_others, *(pair_set.corpus for pair_set in sets)]
        check = first_token_check([setting.pooling], setting.source.model.short_name)
        store, others, *rest = setting.source.read(corpora, [check] * len(corpora))
        if not is_main_process():
            return None
        call.watch.end("extract")
        read = DocumentVectors(
            texts, store, others, list(zip(sets, rest, strict=True)), _word_table(setting.source, text)
        )
        bias_config = BiasConfig(setting.layer, setting.pooling, neurons, options.top, options.draws, options.seed)
        return call.write(
            setting.source.model, lambda _: _study_output(survey(read, bias_config), read, drawn, setting)
        )


@dataclass(frozen=True)
class _Setting:
    source: Any
    tokenizer: Any
    layer: int
    pooling: Pooling
    pooling_source: str
    limit: int
    n_special: int


def _setting(call: Call, tokenizer: Any) -> _Setting:
    """Return the settings from the options, or else from the files of the checkpoint."""
    poolings = [name for name in POOLINGS if name != "first_last"]
    source = call.source(tokenizer=tokenizer)
    if len(source.layers) > 1:
        raise UserError(f"`--layer {call.config['layer']}`: expected one layer, found {len(source.layers)}; name one.")
    flag_text = call.config["pooling"]
    if flag_text == AS_CHECKPOINT:
        sentence_config = sentence_model(source.model)
        pooling, pooling_source = (
            sentence_config.pooling or "mean_special",
            "the checkpoint" if sentence_config.pooling else "the default",
        )
        if sentence_config.pooling is None:
            call.say(
                f"{source.model.name} has no file that says how it pools: the mean over all tokens is taken (--pooling)"
            )
        if sentence_config.ignored_modules:
            call.say(f"what comes after the pooling is left out: {', '.join(sentence_config.ignored_modules)}")
    else:
        if flag_text not in poolings:
            raise UserError(
                f"`--pooling {flag_text}`: expected {', '.join([AS_CHECKPOINT, *poolings])}; give one of them."
            )
        sentence_config, pooling, pooling_source = (
            sentence_model(source.model, with_pooling=False),
            flag_text,
            "--pooling",
        )
    model_tokenizer = load_tokenizer(source.model)
    least, limit = length_limits(source.model, model_tokenizer)
    if (
        source.max_length is None
        and sentence_config.max_length is not None
        and least <= sentence_config.max_length <= limit
    ):
        source = replace(source, max_length=sentence_config.max_length)
    return _Setting(
        source, model_tokenizer, source.layers[0], cast(Pooling, pooling), pooling_source,
        min(source.max_length or limit, limit), int(model_tokenizer.num_special_tokens_to_add()),
    )  # fmt: skip


def _n_tokens(setting: _Setting, sentences: Sequence[str]) -> Any:
    """Return the number of tokens of distinct sentences, without special tokens, shape (n_sentences,)."""
    from probing.activations import tokens_of

    tokens = tokens_of(setting.source.request(from_sentences("documents", sentences)), setting.tokenizer)
    return tokens.lengths.astype("int64") - setting.n_special


def _read_sets(flag_value: str | Sequence[str] | None, say: Callable[[str], None]) -> list[Any]:
    folders = flag_value.split(",") if isinstance(flag_value, str) else list(flag_value or [])
    if not folders:
        return []
    from probing.interventions.pair_cosines import read_similarity

    sets = read_similarity(*(folder.strip() for folder in folders), option="--sts ")
    for line in (line for one in sets for line in one.messages()):
        say(line)
    return sets


def _run_of(config: dict[str, Any]) -> Run:
    """Return the run whose neurons are fixed, and record in the configuration that its model is read."""
    run = load_fit_of_classes(config["run"])
    needs = {"the task position": run.config["task"] == "position"}
    read_as_run(run, f"--run {config['run']}", config, defaults(position_bias), OF_RUN, needs)
    return run


def _neurons(run: Run, layer: int, n: int) -> list[int]:
    if layer not in run.layers:
        run_layers = ", ".join(map(str, run.layers))
        raise UserError(
            f"`--run {run.folder}`: expected a run with layer {layer}, found {run_layers}; give `--layer` too."
        )
    return [row["neuron"] for row in run.top(layer, n)]


def _word_table(source: Any, text: Corpus) -> Any:
    from probing.activations import load
    from probing.models.anatomy import word_table

    encoder, _ = load(source.request(text))
    return word_table(encoder)


def _study_output(measured: tuple[Any, Any], read: Any, documents: Any, setting: _Setting) -> Measurements:
    from probing.data.labelling import origin

    model = setting.source.model
    stores = {"documents": read.store, "others": read.others} | {pair_set.label: store for pair_set, store in read.sets}
    results = {
        "model": {"name": model.name, "fingerprint": model.fingerprint(setting.source.random_weights_seed is None)},
        "cache": {name: origin(store) for name, store in stores.items()},
        "layer": setting.layer,
        "pooling": {"pooling": setting.pooling, "told_by": setting.pooling_source},
        "max_length": setting.limit,
        "n_documents": {"measured": len(documents.evaluated), "others": len(documents.others),
                        "too_long": documents.n_too_long},
        "tokens_per_document": float(documents.n_tokens[documents.evaluated].sum(1).mean()),
        "donor_distance": read.texts.donor_distance,
        **measured[1],
    }  # fmt: skip
    return Measurements(measured[0], results)


class PositionBias(Study):
    """Comparison of the weight of the start and the end of a document in its embedding."""

    name, kind, title = "position-bias", "position bias of embeddings", "Position bias of embeddings"
    function = "probing.studies.position_bias:position_bias"
    in_several_processes = True
    schemas = BIAS, PLACES, SIMILARITY
    views = VIEWS
    page = "small-studies.md#position-bias-of-embeddings"
    files: ClassVar[Mapping[str, str]] = {
        "figures/position_bias": "Effect of an edit, and weight of a sentence, by its place in the document.",
    }

    def charts(self, result: Result) -> list[Chart]:
        """Return the effect of an edit, and the weight of a sentence, by place."""
        return charts(result.places)

    def answer(self, result: Result) -> list[str]:
        """Return whether the start has more weight than the end."""
        return answer(result.bias, model_name(result.config))

    def conclusions(self, result: Result) -> list[str]:
        """Return the baselines of the bias, and the effect of corrections."""
        return list(conclusions(result.bias, result.similarity, result.results))


STUDY = PositionBias()
