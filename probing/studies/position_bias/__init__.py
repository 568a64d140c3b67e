"""The study `position-bias`: does the start of a document weigh more in its embedding than the end?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from probing.runs import Result, Study, model_name, study_of
from probing.runs.call import Call, Measurements
from probing.runs.loading import load_fit_of_classes, read_as_run
from probing.runs.run import Run
from probing.runtime import quiet_libraries
from probing.runtime.processes import is_main_process
from probing.studies.position_bias import tables
from probing.studies.position_bias.tables import EDITS, INSERT
from probing.tables.figures import Chart
from probing.text import Corpus, from_sentences, load_corpus

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
    schemas = tables.BIAS, tables.PLACES, tables.SIMILARITY
    views = tables.VIEWS
    page = "small-studies.md#position-bias-of-embeddings"
    files: ClassVar[Mapping[str, str]] = {
        "figures/position_bias": "Effect of an edit, and weight of a sentence, by its place in the document.",
    }

    def charts(self, result: Result) -> list[Chart]:
        """Return the effect of an edit, and the weight of a sentence, by place."""
        return tables.charts(result.places)

    def answer(self, result: Result) -> list[str]:
        """Return whether the start has more weight than the end."""
        return tables.answer(result.bias, model_name(result.config))

    def conclusions(self, result: Result) -> list[str]:
        """Return the baselines of the bias, and the effect of corrections."""
        return list(tables.conclusions(result.bias, result.similarity, result.results))


STUDY = PositionBias()
