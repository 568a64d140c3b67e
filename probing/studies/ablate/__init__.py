"""The study `ablate`: the loss of a model without heads, layers or neurons, or with fewer or rounded weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from errno import ENOENT
from pathlib import Path
from typing import Any, ClassVar, Literal

from probing.cli.commandline import command
from probing.cli.options import (
    BatchOptions,
    CorpusOptions,
    Definition,
    FirstToken,
    Folder,
    Layers,
    ModelOptions,
    OutlierOptions,
    OutputOptions,
    RunOptions,
    Source,
    SpecialTokens,
    chosen,
    chosen_with_data,
    declared,
    defaults,
    layer_numbers,
    option,
)
from probing.errors import UserError, flag, out_of_range, refuse
from probing.interventions import (
    INTERCHANGE,
    NEURON_KINDS,
    POSITION,
    READOUTS_OF_NEURONS,
    READOUTS_OF_UNITS,
    STS,
    TASK,
    TUNED,
    WIC,
    WORDS,
    NeuronReplacement,
)
from probing.models import load_encoder, load_tokenizer
from probing.results import Html, listed
from probing.runs import Result, Study, Terms, study_of
from probing.runs.call import Call, Measurements
from probing.runs.loading import Tuned, load_fit_of_classes, read_as_run, read_as_tuned, tuned_of
from probing.runs.places import task_of
from probing.runs.run import Run, load_fit, of_text
from probing.runtime import quiet_libraries
from probing.runtime.processes import is_main_process
from probing.runtime.progress import stage
from probing.studies.ablate import neuron_tables, tables
from probing.tables.figures import Chart, Drawings
from probing.text import Corpus, GroupBy, Split, read_corpora, read_couples
from probing.text.tasks import short_name

# What is ablated, as messages name it.
UNITS, NEURONS, OUTLIERS = "heads and layers", "neurons", "outliers"

# Options that are not for all of these.
APPLIES_TO = {
    **dict.fromkeys(("units", "prune", "prune_share", "quantise"), (UNITS,)),
    **dict.fromkeys(("run", "test_corpus", "kinds", "readouts", "tokens", "retrain"), (UNITS, NEURONS)),
    **dict.fromkeys(("top", "pairs", "at"), (NEURONS,)),
    "draws": (NEURONS, OUTLIERS),
    **dict.fromkeys(("fit_corpus", "special_tokens", "definition", "first_token"), (OUTLIERS,)),
}

# Draws by default: with fewer than 20, no p-value by rank can be below .05.
DRAWS, DRAWS_OF_OUTLIERS = 20, 10

# Options whose values are those of `--run`, where it is given.
OF_RUN = ("model", "revision", "random_weights", "corpus", "test_corpus", "max_length")

# What `--prune` takes.
UNITS_PRUNED, WEIGHTS_PRUNED = "units", "weights"


# Kinds that all neurons of a layer can be changed by, since they leave something of it.
_LEAVE_SOME = frozenset({"direction", "shuffled", "translate", INTERCHANGE})

# What reads pairs, by what is read of them.
_READ_BY = {TASK: "the run's own probes", WORDS: "the model's own head for masked words"}

# Number of neurons of a ranking by default.
TOP = 10


def _flag_value(value: Any) -> str:
    """Return the value of an option as it is typed."""
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


@dataclass(frozen=True)
class AblateOptions(OutputOptions, RunOptions, OutlierOptions, BatchOptions, CorpusOptions, ModelOptions):
    """Options of `ablate`."""

    layer: Layers = "all"
    """Layers to ablate: one (6), several (0,3,6 or 3-6), the last (-1) or all. Of heads, layer k is block k, counted
    from 1; of neurons, it is the output of block k, and 0 the embedding output."""
    corpus: Source = "builtin"
    """Text to read: probes are trained on its training split, and heads or neurons are ablated on its test split. Given
    as builtin, a file (.txt with one sentence per line, .conllu, .conll, .tsv, .csv, .jsonl; also as .gz),
    hf:NAME?config=C&split=S&column=T, or - for standard input."""
    test_corpus: Source | None = None
    """Corpus on which heads or neurons are ablated, given like --corpus; the test split of --corpus is then added to
    the training split."""
    run: Folder | None = None
    """Finished run of `fit` whose probes decode the later layers; its model, corpus and split are then used (--corpus
    and --model give their new locations if they have moved). For heads and layers its task is position. By default,
    probes of position are trained as in `fit`."""
    units: str | list[str] = "all"
    """Units to ablate, without --neurons: heads, layers (all heads of a layer) or all."""
    neurons: int | list[int] | str | None = None
    """Ablate neurons of the residual stream in each layer of --layer, in place of heads and layers: numbers such as
    18,99; ranked, the first --top by contribution in --run; all; or outliers, which are set to 0 in the LayerNorm after
    every block and, for comparison, clipped in the last hidden states."""
    top: int | None = option(None, at_least=1)
    """Number of neurons that --neurons ranked takes, at most half of all; default: 10."""
    kinds: str | list[str] | None = None
    """Replacements. Of a head's output: all (the default), or some of uniform (its output under uniform attention),
    zero, mean (over training tokens), resample (its output at a random token of another sentence) and skip, which
    removes a whole layer. Of neurons: mean (the default), some of mean, zero, resample, direction (values after linear
    erasure, by LEACE, of the task of --run, or of position), shuffled (like direction, but with shuffled labels: a
    control), translate (values plus another class's mean minus their own class's mean), or all of these; or
    interchange (values at the same token of the other sentence of --pairs)."""
    pairs: str | None = None
    """File of text pairs between which --kinds interchange exchanges neurons. Lines: `sentence TAB counterfactual`,
    decoded by the probes of --run, or `text TAB counterfactual TAB word TAB other word`, with [MASK] in both texts."""
    at: Literal["words", "everywhere"] = "words"
    """Whether neurons are changed only at words, or everywhere, including special tokens."""
    readouts: str | list[str] | None = None
    """Measures to read during ablation, one or more: position (by probes of the later layers, and by heads while
    neurons are changed), task (the classes of the task of --run, by its probes; for neurons), mlm (the loss of masked
    words, by the model's head), sts=DIR (Spearman's correlation of the last layer's cosines with human scores), wic=DIR
    (accuracy of the last layer's cosines), with data as for the commands sts and wic; tuned=RUN (for heads and layers,
    the score of a tuned model's head on the test split of a run of `finetune`), where RUN is the folder of the run or
    of one of its checkpoints, whose model, corpus and split are then used. Default: position, or task for neurons with
    a --run of another task."""
    tokens: int = option(20_000, at_least=1)
    """Maximum number of tokens of test sentences, and also of the training sentences that replacement values come from;
    if there are more, sentences are sampled at random."""
    draws: int | None = option(None, at_least=0, at_most=1000)
    """Number of random sets of as many other neurons, and of matched sets of each size, for comparison with --neurons;
    default: 20, or 10 with outliers."""
    retrain: int = option(5, at_least=0)
    """Number of ablations for which probes are retrained: of the heads and layers with the largest effect, and of
    random ones, under the first of --kinds; of random and of matched sets of neurons of the largest size. 0 retrains no
    probe."""
    prune: bool | str | list[str] = False
    """Also ablate heads and layers cumulatively: the least important first and, for comparison, in random orders and in
    reverse order; outputs are replaced by zero if it is among --kinds, otherwise by mean. Without a value, or with
    units, heads and layers are pruned; with weights, a growing share of the weights of every matrix, by magnitude and
    at random; units,weights or all prunes both."""
    prune_share: float = option(0.1, at_least=0, at_most=1)
    """Share of all heads, or layers, that each step of --prune additionally ablates; 0 ablates one more at each
    step."""
    quantise: int | list[int] | str | None = None
    """Numbers of bits, such as 8,4, to which the weights of the layers, their input hidden states, and both are also
    rounded, with a scale per tensor and with a scale per channel. Outlier neurons and, for comparison, equally many
    random neurons keep full precision."""
    fit_corpus: Source | None = None
    special_tokens: SpecialTokens = "exclude"
    """Whether special tokens are included where --neurons outliers are identified."""
    definition: Definition = "mean_profile"
    """Definition of --neurons outliers, as in `geometry`."""
    first_token: FirstToken = "include"
    """Whether the first token of each sequence is included where --neurons outliers are identified; the model always
    reads it."""
    _: KW_ONLY
    seed: int = 0
    """Seed of every random draw: the split, sampled sentences, replacement tokens, drawn neurons and random
    initialisation."""
    name: str | None = None
    """Name of this run; default: MODEL-ablate-YYYYMMDD-HHMMSS."""
    cache: str | None = None
    """Folder of cached activations and finished passes; default: $PROBING_CACHE or RUNS/cache."""

    @property
    def ablated(self) -> str:
        """What is ablated, as in messages."""
        return UNITS if self.neurons is None else OUTLIERS if _flag_value(self.neurons) == "outliers" else NEURONS

    def problems(self) -> list[str]:
        """Return the problems with options that do not apply to what is ablated, and with the choice of neurons."""
        problems = super().problems()
        neurons = None if self.neurons is None else flag("neurons", _flag_value(self.neurons))
        selected = f"{neurons} is given" if neurons else f"{self.ablated} are ablated"
        for name, kinds in APPLIES_TO.items():
            value = getattr(self, name)
            if self.ablated not in kinds and value != declared(AblateOptions)[name].default:
                flag_text = flag(name, *([] if value is True else [_flag_value(value)]))
                problems.append(f"{flag_text} is for {listed(kinds)}, and {selected}; leave it out")
        is_ranked = self.neurons is not None and _flag_value(self.neurons) == "ranked"
        if is_ranked and self.run is None:
            problems.append(f"{flag('neurons', 'ranked')} takes the first neurons of a ranking; give {flag('run')} too")
        if self.ablated == NEURONS and not is_ranked and self.top is not None:
            problems.append(f"{flag('top', self.top)} is for {flag('neurons', 'ranked')}, and {selected}; leave it out")
        if self.pairs is not None and self.retrain != declared(AblateOptions)["retrain"].default:
            problems.append(f"{flag('retrain', self.retrain)} with {flag('pairs', self.pairs)}: no probe is retrained")
        return problems


@command(AblateOptions)
def ablate(options: AblateOptions) -> Result | None:
    """Ablate heads, layers or neurons, and measure what the model loses, such as positions that probes decode.

    Returns:
        The results; None except in the rank-zero process.
    """
    call = Call.of(study_of("ablate"), options)
    run = {UNITS: _ablate_units, NEURONS: _ablate_neurons, OUTLIERS: _ablate_outliers}[options.ablated]
    return run(call, options.tokenizer)


# --------------------------------------------------------------------------------------------------------------------
# Heads and layers.
# --------------------------------------------------------------------------------------------------------------------


def _ablate_units(call: Call, tokenizer: Any) -> Result | None:
    """Ablate one head or layer after the other."""
    config = call.config
    readout_sources = dict(chosen_with_data("--readouts", config["readouts"] or POSITION, READOUTS_OF_UNITS))
    tuned = _tuned_of(readout_sources.pop(TUNED, None), config)
    fit_run = _run_of(config)
    with quiet_libraries():
        from probing.studies.ablate.survey import others, survey

        ablation, setup = _config_and_setup(call, fit_run or tuned, readout_sources, tokenizer)
        call.expect(1 + (POSITION in setup.readouts) + bool(others(setup)))
        stores = setup.read()
        call.watch.end("extract")
        if not is_main_process():
            return None
        files = setup.source.model

        return call.write(files, lambda _: survey(setup, stores, ablation, tuned))


def _config_and_setup(
    call: Call, source_run: Run | Tuned | None, readout_sources: dict[str, Any], tokenizer: Any
) -> tuple[Any, Any]:
    """Return the configuration of the survey and the `InterventionSetup`."""
    from probing.downstream.labelled_pairs import text_of_tuned
    from probing.interventions import heads
    from probing.interventions.pair_cosines import TunedTask
    from probing.interventions.probed_task import frozen_of_run
    from probing.interventions.subject import InterventionSetup, data_of
    from probing.studies.ablate.survey import AblationConfig, check

    config = call.config
    units = chosen("--units", config["units"], heads.UNITS)
    kinds = chosen("--kinds", config["kinds"] or "all", heads.KINDS)
    prune = _pruned(config["prune"])
    check(units, kinds, UNITS_PRUNED in prune)
    data = data_of(readout_sources)
    if isinstance(source_run, Tuned):
        classes, flag_text = source_run.results["classes"], source_run.flag_text
        data[TUNED] = TunedTask(task_of(source_run), source_run.split_by, classes, flag_text)
    split_seed = config["seed"] if source_run is None else source_run.config["seed"]
    source = call.source(seed=split_seed, tokenizer=tokenizer)
    blocks = source.blocks(layer_numbers(config["layer"]))
    source = replace(source, layers=list(range(source.config.num_hidden_layers + 1)))
    split_by: GroupBy = "sentence" if source_run is None else source_run.split_by
    corpora: Sequence[Corpus]
    splits: Sequence[Sequence[Split]]
    if isinstance(source_run, Tuned):
        corpora, splits = text_of_tuned(source_run, config, call.say)
    else:
        corpora, splits = read_corpora(config["corpus"], config["test_corpus"], split_seed, call.say, split_by)
    ablation = AblationConfig(
        units,
        kinds,
        blocks,
        config["tokens"],
        config["retrain"],
        config["seed"],
        UNITS_PRUNED in prune,
        config["prune_share"],
        WEIGHTS_PRUNED in prune,
        _bits(config["quantise"]),
    )
    frozen = None
    if isinstance(source_run, Run):
        frozen = frozen_of_run(source_run, source.model, source.random_weights_seed, (), "run")
    setup = InterventionSetup(source, corpora, splits, split_seed, frozen, data)
    return _of_layers(ablation, setup, config), setup


def _of_layers(ablation: Any, setup: Any, config: dict[str, Any]) -> Any:
    """Return the configuration without skipped layers, unless typed, if a layer is more than its block."""
    name, skips = setup.source.model.name, "skip" in ablation.kinds and "layers" in ablation.units
    needs = {
        "--prune weights": (ablation.prune_weights, "prunes all matrices of a layer"),
        f"--quantise {config['quantise']}": (ablation.bits, "rounds what enters a layer and all of its matrices"),
        "--kinds skip": (skips and config["kinds"] not in (None, "all"), "takes whole layers out"),
    }
    for flag_text, (is_requested, what) in needs.items():
        if is_requested:
            setup.model.check_layers(flag_text, what, name)
    if not skips or setup.model.are_layers:
        return ablation
    setup.source.say(f"no layer is skipped: a layer of {name} is spread over several modules")
    return replace(ablation, kinds=[kind for kind in ablation.kinds if kind != "skip"])


def _pruned(words: bool | str | list[str]) -> list[str]:
    if isinstance(words, bool):
        return [UNITS_PRUNED] if words else []
    return chosen("--prune", words, (UNITS_PRUNED, WEIGHTS_PRUNED))


def _bits(words: int | list[int] | str | None) -> list[int]:
    if words is None:
        return []
    bit_counts = list(dict.fromkeys(_numbers("quantise", words, "numbers of bits, such as 8,4")))
    refuse([problem for bits in bit_counts for problem in out_of_range("quantise", bits, 2, 16)])
    return bit_counts


def _run_of(config: dict[str, Any]) -> Run | None:
    """Return the run whose probes are read, and add its settings to the configuration."""
    if (folder := config["run"]) is None:
        return None
    is_of_units = config["neurons"] is None
    run = load_fit_of_classes(folder) if is_of_units else of_text(load_fit(folder))
    needs = {"the task position": _is_of_positions(run)} if is_of_units else {}
    read_as_run(run, f"--run {folder}", config, defaults(ablate), OF_RUN, needs)
    return run


def _tuned_of(folder: str | None, config: dict[str, Any]) -> Tuned | None:
    """Return the tuned model whose head is read, and add its settings to the configuration."""
    if folder is None:
        return None
    option = f"--readouts {TUNED}={folder}"
    if config["run"] is not None:
        raise UserError(f"`--run` and `{option}` both say which text is read; leave one of the two out.")
    tuned = tuned_of(folder, option)
    read_as_tuned(tuned, config, defaults(ablate))
    return tuned


# --------------------------------------------------------------------------------------------------------------------
# Neurons, and outliers in the LayerNorms.
# --------------------------------------------------------------------------------------------------------------------


def _is_of_positions(run: Run) -> bool:
    """Return whether a run predicts positions, with the default options of this task."""
    return run.config["task"] == POSITION and not run.config["task_args"]


def _selected_neurons(
    config: dict[str, Any], run: Run | None
) -> tuple[Sequence[int] | None, list[NeuronReplacement], dict[str, str | None]]:
    """Return the neurons that are changed, how, and what is read with which data; set the readouts in `config`.

    The neurons are in the order typed: empty for all neurons of a layer, None for the first of the run's ranking.

    Raises:
        UserError: If options contradict each other.
    """
    words = _flag_value(config["neurons"])
    kinds = _kinds(config)
    if words == "all" and not _LEAVE_SOME.issuperset(kinds):
        raise UserError(
            f"`--neurons all` with `--kinds {_flag_value(config['kinds'] or kinds)}` would leave nothing of the layer; "
            "give `--kinds direction`, which removes only the directions from which position, or the task of `--run`, "
            "is decoded, its control `shuffled`, or `translate`."
        )
    readouts = _readouts(config, kinds, run)
    if words in ("ranked", "all"):
        return None if words == "ranked" else (), kinds, readouts
    neurons = _numbers("neurons", words, "numbers of neurons, such as 18,99, or ranked, all or outliers")
    if twice := [n for n in neurons if neurons.count(n) > 1]:
        raise UserError(f"`--neurons {words}`: neuron {twice[0]} is there twice; name each once.")
    return neurons, kinds, readouts


def _neurons_by_layer(
    config: Mapping[str, Any], neurons: Sequence[int] | None, run: Run | None, source: Any
) -> dict[int, list[int]]:
    """Return the neurons that are changed, by layer; for `neurons` see `_selected_neurons`.

    Raises:
        UserError: If no later layer reads one of the layers, the run has no ranking of it, a neuron number is out
            of range, or the neurons are more than half of the layer.
    """
    n_layers, d_model = source.config.num_hidden_layers, source.config.hidden_size
    flag_text = f"--neurons {_flag_value(config['neurons'])}"
    ranked_layers = run.layers if neurons is None and run else list(range(n_layers))
    wrong = [layer for layer in source.layers if layer not in ranked_layers or layer == n_layers]
    if wrong and layer_numbers(config["layer"]) is not None:
        why = "no later layer reads them" if wrong[0] == n_layers else "the run has no ranking of them"
        usable = ", ".join(str(layer) for layer in ranked_layers if layer < n_layers)
        raise UserError(
            f"`--layer {wrong[0]}` with `{flag_text}`: neurons of this layer cannot be changed, because "
            f"{why}; give some of {usable}."
        )
    changed_layers = [layer for layer in source.layers if layer in ranked_layers and layer < n_layers]
    if not changed_layers:
        raise UserError(f"`{flag_text}` has the last layer alone, which no later layer reads; give another run.")
    refuse([
        problem for neuron in neurons or () for problem in out_of_range("neurons", neuron, 0, d_model - 1)
    ])  # fmt: skip
    most = d_model // 2
    top = min(TOP, most) if config["top"] is None else config["top"]
    n, words = (top, f"--top {top}") if neurons is None else (len(neurons), flag_text)
    if n > most:
        raise UserError(f"`{words}`: {n} neurons are more than half of the {d_model}; give at most {most}.")
    if neurons is not None or run is None:
        return {layer: list(neurons or range(d_model)) for layer in changed_layers}
    return {layer: [row["neuron"] for row in run.top(layer, top)] for layer in changed_layers}


def _kinds(config: Mapping[str, Any]) -> list[NeuronReplacement]:
    """Return the replacements of neurons; with `--pairs`, `interchange` alone."""
    words, pairs = _flag_value(config["kinds"] or "mean"), config["pairs"]
    if pairs is None:
        if INTERCHANGE in words.split(","):
            raise UserError(
                f"`--kinds {words}`: neurons are exchanged between the sentences of pairs; give them as --pairs FILE, "
                "with lines `sentence TAB counterfactual`."
            )
        return chosen("--kinds", words, NEURON_KINDS)
    if words != INTERCHANGE:
        raise UserError(f"`--pairs {pairs}` is read by `--kinds interchange` alone, and `--kinds {words}` is given.")
    if pairs == "-":
        raise UserError("`--pairs -`: pairs are read more than once; give them as a file.")
    readout = _read_of_pairs(pairs)
    if config["run"] is None and readout == TASK:
        raise UserError(
            f"`--pairs {pairs}`: the probes of a run read whole sentences; give `--run` too, or texts with [MASK]."
        )
    if config["readouts"] not in (None, readout):
        raise UserError(
            f"`--readouts {_flag_value(config['readouts'])}` with `--kinds interchange`: pairs are read by "
            f"{_READ_BY[readout]} alone; leave the option out."
        )
    return [INTERCHANGE]


def _read_of_pairs(pairs: str) -> str:
    """Return the readout of a file of pairs: the run's task for whole sentences, words for texts with masks."""
    return TASK if read_couples(pairs)[0].words is None else WORDS


def _readouts(config: dict[str, Any], kinds: Sequence[NeuronReplacement], run: Run | None) -> dict[str, str | None]:
    """Return the readouts with their data, by default the run's task, and set them in the configuration."""
    has_no_task = run is None or _is_of_positions(run)
    if INTERCHANGE in kinds and (readout := _read_of_pairs(config["pairs"])) == WORDS:
        config["readouts"] = readout
        return {readout: None}
    if INTERCHANGE in kinds and has_no_task:
        raise UserError(
            f"`--run {config['run']}` with `--kinds interchange`: tokens at the same position are exchanged, and the "
            "run predicts positions; give a run of another task, or pairs of texts with [MASK]."
        )
    config["readouts"] = config["readouts"] or (POSITION if has_no_task else TASK)
    readouts = chosen_with_data("--readouts", config["readouts"], READOUTS_OF_NEURONS)
    if TASK in readouts and run is None:
        raise UserError("`--readouts task` reads the classes of the task of a run; give `--run` too.")
    if TASK in readouts and has_no_task:
        readouts = {name: data for name, data in readouts.items() if name != TASK} | {POSITION: None}
    others = [name for name in (STS, WIC) if name in readouts]
    if others and "translate" in kinds:
        raise UserError(
            f"`--readouts {others[0]}={readouts[others[0]]}` with `--kinds translate`: words are moved from their own "
            "class to another, and those of these sentences have none; leave one of the two out."
        )
    return {name: readouts[name] for name in READOUTS_OF_NEURONS if name in readouts}


def _numbers(option: str, value: Any, expected: str) -> list[int]:
    """Return the numbers that an option lists; `expected` says which, for the message."""
    words = _flag_value(value)
    try:
        return [int(word) for word in words.split(",")]
    except ValueError:
        raise UserError(f"`--{option} {words}`: expected {expected}.") from None


def _ablate_neurons(call: Call, tokenizer: Any) -> Result | None:
    """Change one set of neurons after the other."""
    config = call.config
    run = _run_of(config)
    neurons, kinds, readouts = _selected_neurons(config, run)
    # The short name of the run's task; None for position with its default options, or without a run.
    task_name = None if run is None or _is_of_positions(run) else short_name(run.config)
    with quiet_libraries():
        from probing.interventions.probed_task import frozen_of_run, task_of_run
        from probing.interventions.subject import InterventionSetup, data_of
        from probing.studies.ablate.interchange import Couples, check_later, survey_couples, survey_words
        from probing.studies.ablate.neurons import NeuronConfig, neuron_output, survey

        split_seed = config["seed"] if run is None else int(run.config["seed"])
        source = call.source(seed=split_seed, tokenizer=tokenizer)
        n_layers, ranked = source.config.num_hidden_layers, _neurons_by_layer(config, neurons, run, source)
        data, task, pairs = data_of(readouts), None, config["pairs"]
        if run is not None and task_name is not None:
            task = task_of_run(run, f"--run {run.folder}", TASK in readouts, kinds)
        split_by: GroupBy = "sentence" if run is None else run.split_by
        texts = read_corpora(config["corpus"], config["test_corpus"], split_seed, call.say, split_by)
        frozen, of_run = None, () if run is None else (run, source.model, source.random_weights_seed)
        if of_run and pairs is None:
            frozen = frozen_of_run(*of_run, range(min(ranked) + 1, n_layers + 1), "run")
        elif of_run and TASK in readouts:
            frozen = frozen_of_run(*of_run, (), "run")
            check_later(frozen, ranked, f"--run {config['run']}")
        whole = replace(source, layers=list(range(n_layers + 1)))
        setup = InterventionSetup(whole, *texts, split_seed, frozen, data, task)
        flag_text = f"--neurons {_flag_value(config['neurons'])}"
        setup.model.check_layers(flag_text, "changes what enters a layer", source.model.name)
        call.expect(2)
        stores = setup.read()
        call.watch.end("extract")
        if not is_main_process():
            return None
        draws = DRAWS if config["draws"] is None else config["draws"]
        settings = NeuronConfig(
            ranked, kinds, config["at"], config["tokens"], draws, config["retrain"], config["seed"], task_name
        )

        def measure(_: Path) -> Measurements:
            with stage("what is lost without neurons"):
                if WORDS in readouts:
                    changed = survey_words(
                        setup, stores[-1], read_couples(pairs), f"--pairs {pairs}", settings, call.say
                    )
                elif frozen is not None and pairs is not None:
                    changed = survey_couples(setup, Couples.read(pairs), frozen, settings, call.say)
                else:
                    changed = survey(setup, stores, settings)
            return neuron_output(changed, stores)

        return call.write(source.model, measure)


def _ablate_outliers(call: Call, tokenizer: Any) -> Result | None:
    """Set the outliers of all layers to 0 inside the model, and clip them after it."""
    config = call.config
    with quiet_libraries():
        from probing.data.labelling import origin
        from probing.interventions.outliers import OutlierModel, ablate_outliers
        from probing.models.anatomy import examine
        from probing.models.residual_stream import find_parameters
        from probing.probes.outliers import find_outliers, read_text_to_measure

        source = call.source(tokenizer=tokenizer)
        call.expect(3)
        text, stores = read_text_to_measure(source, config)
        call.watch.end("extract")
        if not is_main_process():
            return None
        model, draws = source.model, DRAWS_OF_OUTLIERS if config["draws"] is None else config["draws"]

        def measure(_: Path) -> Measurements:
            encoder, model_tokenizer = load_encoder(model, source.random_weights_seed), load_tokenizer(model)
            parameters = find_parameters(encoder, examine(encoder, model_tokenizer.pad_token_id or 0))
            outliers = find_outliers(stores[-1], source.layers, parameters, config).chosen
            with stage("interventions on outliers"):
                rows = ablate_outliers(OutlierModel(
                    model, encoder, model_tokenizer, stores[0], text, outliers, config["special_tokens"],
                    source.random_weights_seed is None, draws, config["seed"], source.say,
                ))  # fmt: skip
            results = {
                "cache": {"measured": origin(stores[0]), "fitted": origin(stores[-1])},
                "outliers": {str(layer): neurons for layer, neurons in outliers.items()},
            }
            return Measurements({"interventions": rows}, results)

        return call.write(model, measure)


class Ablate(Study):
    """Effects of ablating heads, layers and neurons."""

    name, kind, title = "ablate", "ablation", "Ablation"
    function = "probing.studies.ablate:ablate"
    in_several_processes = True
    schemas = (*tables.SCHEMAS, *neuron_tables.SCHEMAS)
    views = tables.VIEWS
    page = "ablate.md"
    files: ClassVar[Mapping[str, str]] = {
        "figures/": "Effects by layer and head, pruning curves, and effects by number of neurons.",
    }

    def tables(self, result: Result) -> list[Any]:
        """Return the effects, and the views of pruned and rounded weights."""
        of_neurons = neuron_tables.tables(result.neuron_interventions)
        of_outliers = neuron_tables.outlier_tables(result.interventions)
        return [*tables.effect_tables(result.by_name), *super().tables(result), *of_neurons, *of_outliers]

    def charts(self, result: Result) -> list[Chart]:
        """Return the effects of layers, the curves of pruning, and those of the number of neurons."""
        return [*tables.charts(result.by_name), *neuron_tables.charts(result.neuron_interventions)]

    def drawings(self, result: Result) -> Drawings:
        """Return the maps of heads, and the effects of outliers."""
        from probing.studies.ablate.survey import head_maps

        model = self.figure_prefix(result)
        return {**head_maps(result.ablated, model), **neuron_tables.drawings(result.interventions, model)}

    def conclusions(self, result: Result) -> list[str]:
        """Return the conclusions, a sentence for each question."""
        return [
            *tables.conclusions(result.by_name, result.results),
            *neuron_tables.conclusions(result.neuron_interventions),
            *neuron_tables.outlier_conclusions(result.interventions),
        ]

    def maps(self, result: Result) -> Iterable[Html]:
        """Return the maps of heads."""
        from probing.studies.ablate.survey import maps_of_page

        return maps_of_page(result.ablated)

    def terms(self, result: Result) -> Mapping[str, Terms]:
        """Return the meanings of the headings."""
        terms = {
            "": (tables.EFFECTS, result.ablated), " of neurons": (neuron_tables.TERMS, result.neuron_interventions),
            " of outliers": (neuron_tables.OUTLIER_TERMS, result.interventions),
        }  # fmt: skip
        of_title = super().terms(result)[self.title]
        return {f"{self.title}{of}": {**of_title, **words} for of, (words, rows) in terms.items() if rows}

    def read(self, folder: Path) -> Result:
        """Read results; those of a run have the tables of what it ablated."""
        result = super().read(folder)
        main = ("ablated", "neuron_interventions", "interventions")
        if not any((folder / f"{name}.csv").is_file() for name in main):
            raise FileNotFoundError(ENOENT, "none of the tables of `ablate` is there", str(folder / "ablated.csv"))
        return result


STUDY = Ablate()
