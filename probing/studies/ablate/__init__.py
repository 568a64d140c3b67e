"""The study `ablate`: the loss of a model without a head or a layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from probing.cli.commandline import command
from probing.cli.option_types import Folder, Layers, Source, chosen, chosen_with_data
from probing.cli.options import (
    BatchOptions,
    CorpusOptions,
    ModelOptions,
    OutputOptions,
    RunOptions,
    defaults,
    option,
)
from probing.errors import UserError, out_of_range, refuse
from probing.interventions import POSITION, READOUTS_OF_TUNED, TASK, TUNED
from probing.models import layer_numbers
from probing.results import Html
from probing.runs import Result, Study, Terms, study_of
from probing.runs.call import Call, Measured
from probing.runs.loading import Tuned, load_fit_of_classes, read_as_run, read_as_tuned, tuned_of
from probing.runs.places import task_of
from probing.runs.run import Run
from probing.runtime import quiet_libraries
from probing.runtime.processes import is_main_process
from probing.studies.ablate import tables
from probing.tables.figures import Chart
from probing.text import GroupBy, read_corpora

# Options whose values are those of `--run`, where it is given.
OF_RUN = ("model", "revision", "random_weights", "corpus", "test_corpus", "max_length")

# What `--prune` takes.
UNITS_PRUNED, WEIGHTS_PRUNED = "units", "weights"


@dataclass(frozen=True)
class AblateOptions(OutputOptions, RunOptions, BatchOptions, CorpusOptions, ModelOptions):
    """Options of `ablate`."""

    layer: Layers = "all"
    """Layers whose heads are ablated: one (6), several (0,3,6 or 3-6), the last (-1) or all; layer k is block k,
    counted from 1."""
    corpus: Source = "builtin"
    """Text to read: probes are trained on its training split, and heads are ablated on its test split. Given as
    builtin, a file (.txt with one sentence per line, .conllu, .conll, .tsv, .csv, .jsonl; also as .gz),
    hf:NAME?config=C&split=S&column=T, or - for standard input."""
    test_corpus: Source | None = None
    """Corpus on which heads are ablated, given like --corpus; the test split of --corpus is then added to the training
    split."""
    run: Folder | None = None
    """Finished run of `fit` for the task position, whose probes decode the later layers; its model, corpus and split
    are then used (--corpus and --model give their new locations if they have moved). By default, probes are trained as
    in `fit`."""
    units: str | list[str] = "all"
    """Units to ablate: heads, layers (all heads of a layer) or all."""
    kinds: str | list[str] = "all"
    """Replacements of a head's output: all, or some of uniform (its output under uniform attention), zero, mean
    (over training tokens), resample (its output at a random token of another sentence) and skip, which removes a
    whole layer."""
    readouts: str | list[str] = "position"
    """Measures to read during ablation, one or more: position (by probes of the later layers), mlm (the loss of masked
    words, by the model's head), sts=DIR (Spearman's correlation of the last layer's cosines with human scores), wic=DIR
    (accuracy of the last layer's cosines), with data as in sts and wic; task=RUN (the score of a tuned model's head on
    the test split of a run of `finetune`), where RUN is the folder of the run or of one of its checkpoints. The model,
    corpus and split of RUN are then used."""
    tokens: int = option(20_000, at_least=1)
    """Maximum number of tokens of test sentences, and also of the training sentences that replacement values come from;
    if there are more, sentences are sampled at random."""
    retrain: int = option(5, at_least=0)
    """Number of heads and layers with the largest effect, and of random ones, without which probes are retrained, under
    the first of --kinds; 0 retrains no probe."""
    prune: bool | str | list[str] = False
    """Also ablate heads and layers cumulatively: the least important first and, for comparison, in random orders and in
    reverse order; by zero if it is among the kinds, otherwise by mean. Without a value, or with units, heads and layers
    are pruned; with weights, a growing share of the weights of every matrix, by magnitude and at random; units,weights
    or all prunes both."""
    prune_share: float = option(0.1, at_least=0, at_most=1)
    """Share of all heads, or layers, that each step of --prune additionally ablates; 0 ablates one more at each
    step."""
    quantise: int | list[int] | str | None = None
    """Also round the weights of the layers, their input hidden states, and both, to these numbers of bits, such as 8,4,
    with one scale per tensor and one per channel. Outlier neurons and, for comparison, equally many random neurons keep
    full precision."""
    _: KW_ONLY
    seed: int = 0
    """Seed of every random draw: the split, sampled sentences, replacement tokens and random initialisation."""
    name: str | None = None
    """Name of this run; default: MODEL-ablate-YYYYMMDD-HHMMSS."""
    cache: str | None = None
    """Folder of cached activations and finished passes; default: $PROBING_CACHE or RUNS/cache."""


@command(AblateOptions)
def ablate(options: AblateOptions) -> Result | None:
    """Ablate one head or layer at a time, and measure how well probes of the later layers still decode positions.

    Returns:
        The results; None except in the rank-zero process.
    """
    call = Call.of(study_of("ablate"), options)
    config = call.config
    readout_sources: dict[str, Any] = {**chosen_with_data("--readouts", config["readouts"], READOUTS_OF_TUNED)}
    tuned = _tuned_of(readout_sources.pop(TASK, None), config)
    fit_run = _run_of(config["run"], config)
    with quiet_libraries():
        from probing.studies.ablate.figures import study_output
        from probing.studies.ablate.survey import others, survey

        ablation, setup = _config_and_setup(call, fit_run or tuned, readout_sources, options.tokenizer)
        call.expect(1 + (POSITION in setup.readouts) + bool(others(setup)))
        stores = setup.read()
        call.watch.end("extract")
        if not is_main_process():
            return None
        files = setup.source.model

        def measure(_: Path) -> Measured:
            results = survey(setup, stores, ablation)
            return study_output(results, stores, files.short_name, tuned)

        return call.write(files, measure)


def _config_and_setup(
    call: Call, source_run: Run | Tuned | None, readout_sources: dict[str, Any], tokenizer: Any
) -> tuple[Any, Any]:
    """Return the configuration of the survey and the `InterventionSetup`."""
    from probing.interventions.heads import KINDS, UNITS
    from probing.interventions.subject import InterventionSetup, data_of
    from probing.studies.ablate.survey import AblationConfig, check

    config = call.config
    units, kinds = chosen("--units", config["units"], UNITS), chosen("--kinds", config["kinds"], KINDS)
    prune = _pruned(config["prune"])
    check(units, kinds, UNITS_PRUNED in prune)
    data = data_of(readout_sources)
    if isinstance(source_run, Tuned):
        data[TUNED] = _task_of(source_run)
    split_seed = config["seed"] if source_run is None else source_run.config["seed"]
    source = call.source(seed=split_seed, tokenizer=tokenizer)
    blocks = source.blocks(layer_numbers(config["layer"]))
    source = replace(source, layers=list(range(source.config.num_hidden_layers + 1)))
    split_by: GroupBy = "sentence" if source_run is None else source_run.split_by
    if isinstance(source_run, Tuned) and source_run.are_pairs:
        corpora, splits = _pairs_of(source_run, config, call.say)
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
    frozen = None if isinstance(source_run, Tuned) else _frozen(source_run, source)
    setup = InterventionSetup(source, corpora, splits, split_seed, frozen, data)
    return _of_layers(ablation, setup, config), setup


def _of_layers(ablation: Any, setup: Any, config: dict[str, Any]) -> Any:
    """Return the configuration without skipped layers, unless typed, if a layer is more than its block."""
    name, skips = setup.source.model.name, "skip" in ablation.kinds and "layers" in ablation.units
    needs = {
        "--prune weights": (ablation.prune_weights, "prunes all matrices of a layer"),
        f"--quantise {config['quantise']}": (ablation.bits, "rounds what enters a layer and all of its matrices"),
        "--kinds skip": (skips and config["kinds"] != "all", "takes whole layers out"),
    }
    for flag_text, (is_requested, what) in needs.items():
        if is_requested:
            setup.model.check_layers(flag_text, what, name)
    if not skips or setup.model.are_layers:
        return ablation
    setup.source.say(f"no layer is skipped: a layer of {name} is spread over several modules")
    return replace(ablation, kinds=[kind for kind in ablation.kinds if kind != "skip"])


def _pruned(flag_value: bool | str | list[str]) -> list[str]:
    if isinstance(flag_value, bool):
        return [UNITS_PRUNED] if flag_value else []
    return chosen("--prune", flag_value, (UNITS_PRUNED, WEIGHTS_PRUNED))


def _bits(flag_value: int | list[int] | str | None) -> list[int]:
    if flag_value is None:
        return []
    words = ",".join(map(str, flag_value)) if isinstance(flag_value, list) else str(flag_value)
    try:
        bit_counts = list(dict.fromkeys(int(word) for word in words.split(",")))
    except ValueError:
        raise UserError(f"`--quantise {words}`: expected numbers of bits, such as 8,4.") from None
    refuse([problem for bits in bit_counts for problem in out_of_range("quantise", bits, 2, 16)])
    return bit_counts


def _run_of(folder: str | None, config: dict[str, Any]) -> Run | None:
    """Return the run whose probes are read, and add its settings to the configuration."""
    if folder is None:
        return None
    run = load_fit_of_classes(folder)
    is_position = run.config["task"] == "position" and not run.config["task_args"]
    needs = {"the task position": is_position}
    read_as_run(run, f"--run {folder}", config, defaults(ablate), OF_RUN, needs)
    return run


def _tuned_of(folder: str | None, config: dict[str, Any]) -> Tuned | None:
    """Return the tuned model whose head is read, and add its settings to the configuration."""
    if folder is None:
        return None
    option = f"--readouts {TASK}={folder}"
    if config["run"] is not None:
        raise UserError(f"`--run` and `{option}` both say which text is read; leave one of the two out.")
    tuned = tuned_of(folder, option)
    read_as_tuned(tuned, config, defaults(ablate))
    return tuned


def _pairs_of(tuned: Tuned, config: dict[str, Any], say: Callable[[str], None]) -> Any:
    """Return the corpora of the pairs that a model was tuned on, and the split of each pair."""
    from probing.downstream.labelled_pairs import pair_text, read_parts

    parts, other = read_parts(config["corpus"], "--corpus", say), None
    if config["test_corpus"] is not None:
        other = config["test_corpus"], read_parts(config["test_corpus"], "--test_corpus", say)
    pairs = pair_text(config["corpus"], parts, other, tuned.config["seed"], tuned.split_by, say)
    prints = [text["fingerprint"] for text in tuned.results["corpora"].values()]
    if [corpus.fingerprint for corpus in pairs.corpora] != prints:
        raise UserError(
            f"`{tuned.flag_text}`: the pairs at `{config['corpus']}` are others than those that the run read; give "
            "their folder or file with --corpus, or repeat the run."
        )
    return pairs.corpora, pairs.splits


def _task_of(tuned: Tuned) -> Any:
    from probing.interventions.pair_cosines import TunedTask

    return TunedTask(task_of(tuned), tuned.split_by, tuned.results["classes"], tuned.flag_text)


def _frozen(run: Run | None, source: Any) -> Any:
    if run is None:
        return None
    from probing.interventions.probed_task import frozen_of_run

    return frozen_of_run(run, source.model, source.random_weights_seed, (), "run")


class Ablate(Study):
    """Effects of ablating heads and layers."""

    name, kind, title = "ablate", "ablation of heads and layers", "Ablation of heads and layers"
    function = "probing.studies.ablate:ablate"
    in_several_processes = True
    schemas = tables.SCHEMAS
    views = tables.VIEWS
    page = "ablate.md"
    files: ClassVar[Mapping[str, str]] = {
        "figures/": "Effects by layer and head, and pruning curves.",
    }

    def tables(self, result: Result) -> list[Any]:
        """Return the effects, and the views of pruned and rounded weights."""
        return [*tables.effect_tables(result.by_name), *super().tables(result)]

    def charts(self, result: Result) -> list[Chart]:
        """Return the effects of layers, and the curves of pruning."""
        return tables.charts(result.by_name)

    def conclusions(self, result: Result) -> list[str]:
        """Return the conclusions, a sentence for each question."""
        return tables.conclusions(result.by_name, result.results)

    def maps(self, result: Result) -> Iterable[Html]:
        """Return the maps of heads."""
        from probing.studies.ablate.figures import maps_of_page

        return maps_of_page(result.ablated)

    def terms(self, result: Result) -> Mapping[str, Terms]:
        """Return the meanings of the headings."""
        return {self.title: {**tables.EFFECTS, **super().terms(result)[self.title]}}


STUDY = Ablate()
