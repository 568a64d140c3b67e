"""The study `geometry`: outlier dimensions, anisotropy, over-smoothing and the sources of outliers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from probing.cli.commandline import command
from probing.cli.option_types import FirstToken, Folder, Source, chosen, chosen_with_data
from probing.cli.options import OutputOptions, RunOptions, StatesOptions, defaults, option
from probing.errors import UserError, out_of_range, refuse
from probing.interventions import POSITION, READOUTS_OF_RUN, STS, TASK, WIC, WORDS
from probing.models import layer_numbers, load_encoder, load_tokenizer
from probing.results import Html, layers_named
from probing.runs import Result, SectionPlace, Study, Terms, study_of
from probing.runs.call import Call, Measured
from probing.runs.loading import read_as_run
from probing.runs.run import Run, load_fit, of_text
from probing.runtime import quiet_libraries
from probing.runtime.processes import is_main_process
from probing.runtime.progress import stage
from probing.studies.geometry import tables
from probing.studies.geometry.position import position_charts
from probing.studies.geometry.tables import SCHEMAS
from probing.tables.figures import Chart
from probing.text import GroupBy, load_corpus, read_couples, splits_of
from probing.text.tasks import short_name

# Options whose values are those of `--from_run`, where it is given.
OF_RUN = ("model", "revision", "random_weights", "corpus", "max_length")

# Options that are about neurons of the stream alone.
_ABOUT_NEURONS = ("kind", "pairs", "at", "readouts", "tokens", "retrain")

Kind = Literal["mean", "zero", "resample", "direction", "shuffled", "translate", "interchange"]

KINDS: tuple[Kind, ...] = ("mean", "zero", "resample", "direction", "shuffled", "translate")

# Kinds that all neurons of a layer can be changed by, since they leave something of it.
_LEAVE_SOME = frozenset({"direction", "shuffled", "translate", "interchange"})

# The kind that reads pairs of sentences in place of the corpus.
INTERCHANGE: Kind = "interchange"

# What reads pairs, by what is read of them.
_READ_BY = {TASK: "the run's own probes", WORDS: "the model's own head for masked words"}

# Number of neurons from a run by default.
TOP = 10


@dataclass(frozen=True)
class Stream:
    """Neurons of the residual stream that are changed.

    `neurons` are in the order typed: empty for all neurons of the layer, None if a run's ranking supplies them. `top`
    is their number, None for the default. `readouts` has None for a readout without data. `flag_text` is the option
    that names the neurons, with its value, for messages.
    """

    neurons: Sequence[int] | None
    run: Run | None
    flag_text: str
    top: int | None
    kinds: Sequence[Kind]
    readouts: Mapping[str, str | None]

    @property
    def task_name(self) -> str | None:
        """Short name of the run's task; None for position with its default options, or without a run."""
        return None if self.run is None or _is_of_positions(self.run) else short_name(self.run.config)

    def split_seed(self, seed: int) -> int:
        """Return the seed of the sentence split: the run's seed, or `seed` without a run."""
        return seed if self.run is None else int(self.run.config["seed"])

    def ranked(self, layers: Sequence[int], is_all: bool, n_layers: int, d_model: int) -> dict[int, list[int]]:
        """Return the neurons that are changed, by layer; `is_all` means that `--layer` names all layers by default.

        Raises:
            UserError: If no later layer reads one of the layers, the run has no ranking of it, a neuron number is out
                of range, or the neurons are more than half of the layer.
        """
        is_ranked = self.neurons is None
        ranked_layers = self.run.layers if is_ranked and self.run is not None else list(range(n_layers))
        wrong = [layer for layer in layers if layer not in ranked_layers or layer == n_layers]
        if wrong and not is_all:
            why = "no later layer reads them" if wrong[0] == n_layers else "the run has no ranking of them"
            usable = ", ".join(str(layer) for layer in ranked_layers if layer < n_layers)
            raise UserError(
                f"`--layer {wrong[0]}` with `{self.flag_text}`: neurons of this layer cannot be changed, because "
                f"{why}; give some of {usable}."
            )
        changed_layers = [layer for layer in layers if layer in ranked_layers and layer < n_layers]
        if not changed_layers:
            raise UserError(
                f"`{self.flag_text}` has the last layer alone, which no later layer reads; give another run."
            )
        if self.neurons is not None:
            refuse([
                problem for neuron in self.neurons for problem in out_of_range("neurons", neuron, 0, d_model - 1)
            ])  # fmt: skip
        most = d_model // 2
        top = min(TOP, most) if self.top is None else self.top
        n = top if self.neurons is None else len(self.neurons)
        if n > most:
            option = f"`--top {n}`" if self.neurons is None else f"`{self.flag_text}`"
            raise UserError(f"{option}: {n} neurons are more than half of the {d_model}; give at most {most}.")
        if self.neurons is not None or self.run is None:
            return {layer: list(self.neurons or range(d_model)) for layer in changed_layers}
        return {layer: [row["neuron"] for row in self.run.top(layer, top)] for layer in changed_layers}


def stream_of(config: dict[str, Any], default_values: Mapping[str, Any]) -> Stream | None:
    """Return the neurons that are changed, and set the options that a run determines in `config`.

    Raises:
        UserError: If options contradict each other, or the run is not one whose neurons can be changed.
    """
    flags = [name for name in ("neurons", "from_run") if config[name] is not None]
    if flags == ["from_run"] and config["position"] and not config["interventions"]:
        flags = []  # the run's ranking is only compared with the position part
    if not flags:
        for name in _ABOUT_NEURONS:
            if config[name] != default_values[name]:
                named = "none are named; give `--neurons` or `--from_run` too"
                if config["from_run"] is not None:
                    named = "none are; add `--interventions`"
                raise UserError(f"`--{name} {_flag_value(config[name])}` says how neurons are changed, and {named}.")
        return None
    flag_text = f"--{flags[0]} {_flag_value(config[flags[0]])}"
    if not config["interventions"]:
        raise UserError(f"`{flag_text}` names neurons that are changed inside of the model; add `--interventions`.")
    takes_all = _flag_value(config["neurons"]) == "all"
    if len(flags) == 2 and not takes_all:
        raise UserError(
            f"`{flag_text}` and `--from_run {config['from_run']}` both name neurons; leave one of the two out."
        )
    if config["dtype"] != "float32":
        raise UserError(f"`--dtype {config['dtype']}`: neurons are changed in float32 alone; leave the option out.")
    if config["first_token"] == "exclude":
        raise UserError(
            f"`--first_token exclude` and `{flag_text}`: neurons are changed at every word, the first one too; leave "
            "one of the two out."
        )
    if config["corpus"] == "-":
        raise UserError("`--corpus -`: with neurons that are changed the text is read twice; give it as a file.")
    refuse([
        *out_of_range("tokens", config["tokens"], 1), *out_of_range("retrain", config["retrain"], 0),
        *(out_of_range("top", config["top"], 1) if config["from_run"] else []),
    ])  # fmt: skip
    kinds = _kinds(config, default_values)
    if takes_all and not _LEAVE_SOME.issuperset(kinds):
        raise UserError(
            f"`--neurons all` with `--kind {_flag_value(config['kind'])}` would leave nothing of the layer; give "
            "`--kind direction`, which removes only the directions from which position, or the task of `--from_run`, "
            "is decoded, its control `shuffled`, or `translate`."
        )
    run = None if config["from_run"] is None else _run_of(config, default_values)
    readouts = _readouts(config, kinds, run)
    if takes_all:
        return Stream((), run, flag_text, None, kinds, readouts)
    if run is None:
        return Stream(_numbers(config["neurons"]), None, flag_text, None, kinds, readouts)
    return Stream(None, run, flag_text, config["top"], kinds, readouts)


def compared_run(config: dict[str, Any], default_values: Mapping[str, Any], stream: Stream | None) -> Run | None:
    """Return the run whose ranking is compared with the position part, if any, and set its options in `config`.

    Raises:
        UserError: If the run does not rank neurons of hidden states, or an option contradicts it.
    """
    if not config["position"] or config["from_run"] is None:
        return None
    return _run_of(config, default_values) if stream is None else stream.run


def _kinds(config: Mapping[str, Any], default_values: Mapping[str, Any]) -> list[Kind]:
    """Return the replacements of neurons; with `--pairs`, `interchange` alone."""
    kind_text, pairs = _flag_value(config["kind"]), config["pairs"]
    if pairs is None:
        if INTERCHANGE in kind_text.split(","):
            raise UserError(
                f"`--kind {kind_text}`: neurons are exchanged between the sentences of pairs; give them as --pairs "
                "FILE, with lines `sentence TAB counterfactual`."
            )
        return chosen("--kind", config["kind"], KINDS)
    if kind_text != INTERCHANGE:
        raise UserError(f"`--pairs {pairs}` is read by `--kind interchange` alone, and `--kind {kind_text}` is given.")
    if pairs == "-":
        raise UserError("`--pairs -`: pairs are read more than once; give them as a file.")
    readout = _read_of_pairs(pairs)
    if config["from_run"] is None and readout == TASK:
        raise UserError(
            f"`--pairs {pairs}`: the probes of a run read whole sentences; give `--from_run` too, or texts with [MASK]."
        )
    for name, allowed in (("readouts", readout), ("retrain", None)):
        if config[name] not in (default_values[name], allowed):
            raise UserError(
                f"`--{name} {_flag_value(config[name])}` with `--kind interchange`: pairs are read by "
                f"{_READ_BY[readout]} alone; leave the option out."
            )
    return [INTERCHANGE]


def _read_of_pairs(pairs: str) -> str:
    """Return the readout of a file of pairs: the run's task for whole sentences, words for texts with masks."""
    return TASK if read_couples(pairs)[0].words is None else WORDS


def _readouts(config: dict[str, Any], kinds: Sequence[Kind], run: Run | None) -> dict[str, str | None]:
    """Return the readouts with their data, by default the run's task, and set them in the configuration."""
    is_of_positions = run is None or _is_of_positions(run)
    if INTERCHANGE in kinds and (readout := _read_of_pairs(config["pairs"])) == WORDS:
        config["readouts"] = readout
        return {readout: None}
    if config["readouts"] is None:
        config["readouts"] = POSITION if is_of_positions else TASK
    if INTERCHANGE in kinds and is_of_positions:
        raise UserError(
            f"`--from_run {config['from_run']}` with `--kind interchange`: tokens at the same position are exchanged, "
            "and the run predicts positions; give a run of another task, or pairs of texts with [MASK]."
        )
    readouts = chosen_with_data("--readouts", config["readouts"], READOUTS_OF_RUN)
    if TASK in readouts and run is None:
        raise UserError("`--readouts task` reads the classes of the task of a run; give `--from_run` too.")
    if TASK in readouts and is_of_positions:
        readouts = {name: data for name, data in readouts.items() if name != TASK} | {POSITION: None}
    others = [name for name in (STS, WIC) if name in readouts]
    if others and "translate" in kinds:
        raise UserError(
            f"`--readouts {others[0]}={readouts[others[0]]}` with `--kind translate`: words are moved from their own "
            "class to another, and those of these sentences have none; leave one of the two out."
        )
    return {name: readouts[name] for name in READOUTS_OF_RUN if name in readouts}


def _is_of_positions(run: Run) -> bool:
    return run.config["task"] == POSITION and not run.config["task_args"]


def _flag_value(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _numbers(neurons_text: Any) -> list[int]:
    """Parse `--neurons` into neuron numbers; refuse duplicates."""
    words = _flag_value(neurons_text)
    try:
        numbers = [int(word) for word in words.split(",")]
    except ValueError:
        raise UserError(f"`--neurons {words}`: expected numbers of neurons, such as 18,99, or all.") from None
    if twice := [n for n in numbers if numbers.count(n) > 1]:
        raise UserError(f"`--neurons {words}`: neuron {twice[0]} is there twice; name each once.")
    return numbers


def _run_of(config: dict[str, Any], default_values: Mapping[str, Any]) -> Run:
    run = of_text(load_fit(config["from_run"]))
    read_as_run(run, f"--from_run {config['from_run']}", config, default_values, OF_RUN)
    return run


SpecialTokens = Literal["exclude", "include"]

ClipTo = Literal["zero", "mean"]

Place = Literal["words", "everywhere"]

Definition = Literal["argmin_share", "argmax_share", "mean_profile", "layer_norm", "variance"]

# Draws of other neurons by default, beside outliers, and beside neurons that are named: with fewer than 20, no p-value
# by rank can be below .05.
DRAWS, DRAWS_BESIDE_NEURONS = 10, 20


@dataclass(frozen=True)
class GeometryOptions(OutputOptions, RunOptions, StatesOptions):
    """Options of `geometry`."""

    corpus: Source = "builtin"
    fit_corpus: Source | None = None
    """Corpus, given like --corpus, on which outliers are identified and transforms are fitted; default: --corpus."""
    max_length: int | None = None
    batch_tokens: int | None = None
    special_tokens: SpecialTokens = "exclude"
    """Whether special tokens are included in the measurements; outliers are always reported both without and with
    them."""
    transforms: str | list[str] = "all"
    """Transforms to compare with the untransformed states: all, none, or some of clip, whiten, standardise, center,
    all_but_the_top."""
    definition: Definition = "mean_profile"
    """Definition of the outliers that are clipped; outliers by all five definitions are reported."""
    clip_to: ClipTo = "zero"
    """Value of clipped neurons: zero, or mean as a control."""
    draws: int | None = option(None, at_least=0, at_most=1000)
    """Number of draws of other neurons, as many as there are outliers, for comparison; default: 10. With --neurons or
    --from_run, also the number of random and of matched sets of each size; default: 20."""
    whitening: Literal["pca", "zca"] = "pca"
    """Kind of whitening: pca, or zca, which rotates whitened vectors back; both give the same cosines."""
    components: int | None = None
    shrinkage: float = option(0.0, at_least=0, at_most=1)
    """Weight, from 0 to 1, with which whitening shrinks the covariance towards a multiple of the identity, for few
    tokens."""
    top: int | None = None
    """Number of principal directions that all_but_the_top removes; default: d_model / 100. With --from_run, the number
    of neurons that are changed instead, at most half of all; default: 10."""
    estimators: str | list[str] = "none"
    """Published estimators of the mean cosine to report in addition to the exact value: all, none, or some of e19, lkm,
    tvs."""
    smoothing_bound: bool = False
    """Also run the model to measure, for every sentence, how much each block changes the distance between tokens, with
    an upper bound: every term of Theorem 2 of Shi et al. (2022). Post-LN models only."""
    interventions: bool = False
    """Also set the outliers to 0 inside the model, in the LayerNorm after every block, and measure the model's loss on
    masked words or, without a masked-language-model head, how well probes decode positions. Clipping outliers only
    after the model is measured in the same way. With --neurons or --from_run, change these neurons instead."""
    neurons: int | list[int] | str | None = None
    """Neurons, such as 18,99, that are changed inside the model in the hidden states of each layer of --layer, to
    measure the loss of later layers compared with random sets of the same size; with --kind direction, shuffled,
    translate or interchange also all."""
    from_run: Folder | None = None
    """Finished run of `fit` whose --top neurons by contribution are changed, in each layer that is both in the run and
    in --layer; --neurons all changes all neurons. The run's model, corpus, split and task are used (--corpus and
    --model give their new locations if they have moved)."""
    kind: str | list[str] = "mean"
    """Replacement of the neurons: some of mean (over training tokens), zero, resample (values at a random token of
    another sentence), direction (values after linear erasure, by LEACE, of the task of --from_run, or of position
    without it), shuffled (as direction for shuffled labels, a control), translate (values plus the difference between
    the means of another class and of their class), interchange (values at the same token of the other sentence of
    --pairs); or all, without interchange."""
    pairs: str | None = None
    """File of pairs between which --kind interchange exchanges neurons: `sentence TAB counterfactual`, decoded by the
    probes of --from_run or, for texts with [MASK], `text TAB counterfactual TAB word TAB other word`."""
    at: Place = "words"
    """Whether neurons are changed only at words, or everywhere, including special tokens."""
    readouts: str | list[str] | None = None
    """Measures to read while neurons are changed, one or more: task (the classes of the task of --from_run, by its
    probes of the later layers; the default with --from_run), position (by probes of the later layers and by heads;
    the default without a run), or, as in `ablate`, mlm (the loss of masked words, by the model's head), sts=DIR,
    wic=DIR."""
    tokens: int = 20_000
    """Maximum number of tokens of test sentences while neurons are changed, and also of the training sentences that
    replacement values come from; if there are more, sentences are sampled at random."""
    retrain: int = 5
    """Number of random sets, and of matched sets, of the largest size for which a probe of the last layer is also
    retrained, in addition to the selected neurons; 0 retrains no probe."""
    norms: bool = False
    """Also split the mean output of each outlier in every norm of every block into terms. Then set the outliers' gains
    and biases to the mean of the other neurons', and measure again the outliers, how well probes decode positions, and
    the loss of masked words."""
    path: bool = False
    """Also follow outliers along the residual stream, from the embeddings through the outputs and norms of the blocks,
    on the first token and on words."""
    position: bool = False
    """Also split the hidden states into mean, position, context and rest, and measure the amount of position, its
    number of directions, its shape, and whether these directions are neurons; with --from_run compared with its
    ranking."""
    extremes: bool = False
    """Also find massive activations and other large values, by token and layer, the attention to tokens and their
    additions to the stream, and what heads attend to without outliers in their queries and keys."""
    _: KW_ONLY
    seed: int = 0
    """Seed of every random draw: tokens, neurons, sentences and random initialisation."""
    name: str | None = None
    """Name of this run; default: MODEL-geometry-YYYYMMDD-HHMMSS."""
    first_token: FirstToken = "include"


@command(GeometryOptions)
def geometry(options: GeometryOptions) -> Result | None:
    """Find outlier dimensions, and measure anisotropy before and after clipping, whitening and other transforms.

    Returns:
        The measurements; None except in the rank-zero process.
    """
    call = Call.of(study_of("geometry"), options)
    return _run(call, *_neurons_of(call.config), options.tokenizer)


def _neurons_of(config: dict[str, Any]) -> tuple[Stream | None, Any]:
    """Return the changed neurons and the run whose ranking is compared; set the run's options in `config`."""
    _check_corpora(config["corpus"], config["fit_corpus"])
    stream = stream_of(config, defaults(geometry))
    if config["extremes"] and config["first_token"] == "exclude":
        raise UserError(
            "`--first_token exclude` and `--extremes`: the largest values are often those of the first token; leave "
            "one of the two out."
        )
    compared = compared_run(config, defaults(geometry), stream)
    if config["draws"] is None:
        config["draws"] = DRAWS if stream is None else DRAWS_BESIDE_NEURONS
    if stream is None:
        refuse(out_of_range("top", config["top"], 0))
    return stream, compared


def _run(call: Call, stream: Stream | None, compared: Any, tokenizer: Any) -> Result | None:
    """Measure the quantities that the options select."""
    config, seed = call.config, call.config["seed"]
    with quiet_libraries():
        from probing.studies.geometry.extremes.survey import measure_extremes, read_attention
        from probing.studies.geometry.figures import GeometryTables, study_output
        from probing.studies.geometry.inside.stream import StreamInputs, check, measure_inside
        from probing.studies.geometry.position.survey import PositionSample, survey_position
        from probing.studies.geometry.survey import survey

        split_seed = seed if stream is None else stream.split_seed(seed)
        source = call.source(seed=split_seed, tokenizer=tokenizer)
        plan, d_model = _plan(config, stream), source.config.hidden_size
        ranking = {} if compared is None else _ranking(compared, source.layers, d_model, config["from_run"])
        refuse([
            *out_of_range("components", config["components"], 1, d_model),
            *out_of_range("top", plan.fitting.n_top, 0, d_model - 1),
        ])  # fmt: skip
        inside = {
            "smoothing": config["smoothing_bound"], "norms": config["norms"], "path": config["path"],
            "interventions": config["interventions"] and stream is None,
        }  # fmt: skip
        check(source.model, inside["norms"], inside["path"])
        ranked, reads = ({}, None) if stream is None else _inputs_of_stream(config, stream, source)
        call.expect(2 + sum(inside.values()) + config["position"] + 3 * config["extremes"] + 2 * (stream is not None))
        text, stores = _read(source, config)
        changing = None if stream is None else _changing(config, stream, ranked, reads, source, text, split_seed)
        attention = read_attention(source, text, stores[0], seed) if config["extremes"] else None
        call.watch.end("extract")
        if not is_main_process():
            return None

        def measure(folder: Path) -> Measured:
            model, store, summary = source.model, stores[0], None
            # The model, whose parameters are measured, and its tokenizer, which tells punctuation.
            encoder, model_tokenizer = load_encoder(model, source.random_weights_seed), load_tokenizer(model)
            of_layers = survey(store, stores[-1], source.layers, encoder, model_tokenizer, plan)
            if missing := of_layers.not_applicable:
                source.say(
                    f"{model.name} has no {', '.join(missing)} in the width of its hidden states: not applicable"
                )
            tables = measure_inside(folder, StreamInputs(
                model, encoder, model_tokenizer, store, text, of_layers.clipped, plan.special_tokens == "include",
                source.random_weights_seed is None, plan.n_draws, seed, source.say,
            ), inside)  # fmt: skip
            if changing is not None:
                with stage("what is lost without neurons"):
                    changed = changing()
                tables |= {"neuron_interventions": changed.interventions, "neuron_draws": changed.draws}
                summary = changed.summary
            if config["position"]:
                tables |= survey_position(PositionSample(store, plan.special_tokens, seed), source.layers, ranking)
            if config["extremes"]:
                outliers = of_layers.tables["outliers"]
                tables |= measure_extremes(source, store, attention, of_layers.clipped, outliers, seed)
            return study_output(GeometryTables(of_layers, tables, summary), stores, model.short_name)

        return call.write(source.model, measure)


def _plan(config: Mapping[str, Any], stream: Stream | None) -> Any:
    from probing.probes.transforms import KINDS, Fitting
    from probing.studies.geometry.layers import ESTIMATORS
    from probing.studies.geometry.survey import GeometryPlan

    top = None if stream is not None and stream.run is not None else config["top"]
    fitting = Fitting(config["clip_to"], config["whitening"], config["components"], config["shrinkage"], top)
    return GeometryPlan(
        config["special_tokens"], chosen("--transforms", config["transforms"], KINDS, "none"), config["definition"],
        fitting, config["draws"], chosen("--estimators", config["estimators"], ESTIMATORS, "none"), config["seed"],
    )  # fmt: skip


def _ranking(compared: Run, layers: Sequence[int], d_model: int, from_run: Any) -> dict[int, list[int]]:
    """Return all neurons of the layers that a run ranks, by rank; raise a `UserError` if it ranks none of them."""
    both = [layer for layer in layers if layer in compared.layers]
    if not both:
        raise UserError(
            f"`--from_run {from_run}` ranks the neurons of {layers_named(compared.layers)}, and none of these is among "
            f"{layers_named(layers)}; give other layers, or another run."
        )
    return {layer: [row["neuron"] for row in compared.top(layer, d_model)] for layer in both}


def _inputs_of_stream(config: Mapping[str, Any], stream: Stream, source: Any) -> tuple[dict[int, list[int]], Any]:
    """Return the changed neurons by layer, and the data and the task that are read, None for position or without a run.

    Raises:
        UserError: If the neurons cannot be changed, or the data or the task not be read.
    """
    from probing.interventions.probed_task import task_of_run
    from probing.interventions.subject import data_of

    is_all, n_layers = layer_numbers(config["layer"]) is None, source.config.num_hidden_layers
    ranked = stream.ranked(source.layers, is_all, n_layers, source.config.hidden_size)
    data, task, run = data_of(stream.readouts), None, stream.run
    if run is not None and stream.task_name is not None:
        task = task_of_run(run, f"--from_run {run.folder}", TASK in stream.readouts, stream.kinds)
    return ranked, (data, task)


def _changing(
    config: Mapping[str, Any], stream: Stream, ranked: Any, reads: Any, source: Any, corpus: Any, split_seed: int,
) -> Callable[[], Any]:  # fmt: skip
    """Read the inputs of the interventions, and return a function that measures their effects."""
    from probing.interventions.probed_task import frozen_of_run
    from probing.interventions.subject import InterventionSetup
    from probing.runs.places import texts_of
    from probing.studies.geometry.neurons.interchange import Couples, check_later, survey_couples, survey_words
    from probing.studies.geometry.neurons.sets import NeuronConfig
    from probing.studies.geometry.neurons.survey import survey

    split_by: GroupBy = "sentence" if stream.run is None else stream.run.split_by
    if stream.run is not None and stream.run.config["test_corpus"] is not None:
        corpora, splits, _ = texts_of(stream.run, [config["corpus"], *stream.run.moved], source.say)
    else:
        corpora, splits = [corpus], [splits_of(corpus, split_seed, split_by)]
    whole = replace(source, layers=list(range(source.config.num_hidden_layers + 1)))
    frozen = None
    if stream.run is not None and config["pairs"] is not None and TASK in stream.readouts:
        frozen = frozen_of_run(stream.run, source.model, source.random_weights_seed, (), "from_run")
        check_later(frozen, ranked, f"--from_run {stream.run.folder}")
    elif stream.run is not None and config["pairs"] is None:
        later = range(min(ranked) + 1, source.config.num_hidden_layers + 1)
        frozen = frozen_of_run(stream.run, source.model, source.random_weights_seed, later, "from_run")
    setup = InterventionSetup(whole, corpora, splits, split_seed, frozen, *reads)
    setup.model.check_layers(stream.flag_text, "changes what enters a layer", source.model.name)
    stores = setup.read()
    neuron_config = NeuronConfig(
        ranked, stream.kinds, config["at"], config["tokens"], config["draws"], config["retrain"], config["seed"],
        stream.task_name,
    )  # fmt: skip
    if WORDS in stream.readouts:
        texts, flag_text = read_couples(config["pairs"]), f"--pairs {config['pairs']}"
        return lambda: survey_words(setup, stores[-1], texts, flag_text, neuron_config, source.say)
    if frozen is not None and config["pairs"] is not None:
        couples = Couples.read(config["pairs"])
        return lambda: survey_couples(setup, couples, frozen, neuron_config, source.say)
    return lambda: survey(setup, stores, neuron_config)


def _check_corpora(corpus: Source, fit_corpus: Source | None) -> None:
    if fit_corpus == corpus == "-":
        raise UserError("`--fit_corpus -`: standard input can be read only once; give one of the two as a file.")


def _read(source: Any, config: Mapping[str, Any]) -> tuple[Any, list[Any]]:
    """Return the corpus that is measured, and the activations of each corpus, `--fit_corpus` last."""
    from probing.activations.source import report_dropped_text
    from probing.studies.geometry.position.survey import check_position
    from probing.studies.geometry.survey import check_tokens

    def check(tokens: Any) -> None:
        check_tokens(tokens, config["special_tokens"])
        if config["position"]:
            check_position(tokens, config["special_tokens"])

    corpora = [load_corpus(config["corpus"])]
    if config["fit_corpus"] is not None:
        corpora.append(load_corpus(config["fit_corpus"], "--fit_corpus"))
    checks = [check, partial(check_tokens, special_tokens=config["special_tokens"])]
    stores = source.read(corpora, checks[: len(corpora)])
    report_dropped_text(corpora, [store.tokens for store in stores], source.say)
    return corpora[0], stores


class Geometry(Study):
    """The study of outlier dimensions, anisotropy, similarity of tokens, and neurons inside the model."""

    name, kind, title = "geometry", "geometry", "Geometry"
    function = "probing.studies.geometry:geometry"
    in_several_processes = True
    schemas = SCHEMAS
    page = "geometry.md"
    files: ClassVar[Mapping[str, str]] = {
        "transforms/KIND.safetensors": "The fitted transforms.",
        "figures/": "Mean cosine, outliers and similarity by layer, position, and what was measured inside the model.",
    }

    def tables(self, result: Result) -> list[Any]:
        """Return the measurements."""
        from probing.studies.geometry.section import parts

        return [*tables.tables(result), *(table for part in parts(result) for table in part.tables)]

    def charts(self, result: Result) -> list[Chart]:
        """Return the line charts of the layers and of position."""
        return [*tables.charts(result.geometry), *position_charts(result.by_name)]

    def conclusions(self, result: Result) -> list[str]:
        """Return the conclusions, a sentence for each question."""
        from probing.studies.geometry.section import parts

        clipped = {int(layer): neurons for layer, neurons in result.results["clipped"].items()}
        more = [sentence for part in parts(result) for sentence in part.sentences]
        return [*tables.conclusions(result, clipped), *more]

    def more_tables(self, result: Result) -> list[Any]:
        """Return all measures of each layer by transform, and the outliers."""
        from probing.studies.geometry.section import more_tables

        return more_tables(result)

    def section(self, result: Result, place: SectionPlace) -> Html:
        """Return the measures of each layer, its outliers, and the measurements inside the model."""
        from probing.studies.geometry.section import geometry_section

        return geometry_section(result, place.anchor)

    def terms(self, result: Result) -> Mapping[str, Terms]:
        """Return the meanings of the headings."""
        from probing.studies.geometry import section

        terms = {
            "Changed neurons": (section.CHANGED_NEURONS, result.neuron_interventions),
            "Massive activations and attention sinks": (section.EXTREMES, result.massive),
            "Position": (section.POSITION, result.position_split),
        }
        return {self.title: section.GEOMETRY, **{part: of for part, (of, rows) in terms.items() if rows}}


STUDY = Geometry()
