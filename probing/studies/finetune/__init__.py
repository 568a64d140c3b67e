"""The study `finetune`: tuning of a model on a task with several seeds and orders, and the importance of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import KW_ONLY, dataclass
from functools import partial
from itertools import zip_longest
from typing import Any, ClassVar

from probing.cli.commandline import command
from probing.cli.options import Folder, Model, OutputOptions, RunOptions, Source, as_options, option
from probing.errors import UserError
from probing.results import shown_table
from probing.runs import Result, Study, Terms, study_of
from probing.runs.call import Call, Measurements
from probing.runtime import quiet_libraries
from probing.studies.finetune import tables
from probing.studies.finetune.tables import (
    CURVES,
    DIFFERENCES,
    LAST,
    SCORES,
    STARTS,
    TERMS,
    TUNINGS,
    TuningGroup,
    TuningOptions,
)
from probing.tables.figures import Chart
from probing.text import Corpus, GroupBy, Split, read_corpora
from probing.text.tasks import TokenTask, described, load_task, reader_of, refuse_spans


@dataclass(frozen=True, kw_only=True)
class _TunedOptions(RunOptions):
    tuning: TuningGroup = option(TuningOptions())
    """How the model is tuned."""


@dataclass(frozen=True)
class FinetuneOptions(OutputOptions, _TunedOptions):
    """Options of `finetune`."""

    model: Model = "minilm"
    revision: str | None = None
    corpus: Source = "builtin"
    test_corpus: Source | None = None
    pairs: Folder | None = None
    """Labelled sentence pairs that replace --corpus: a folder or file of SICK, STS-B, one of STS12 to STS16, or WiC, as
    in `sts` and `wic`, or hf:NAME?config=C. For SICK, --task_args.column selects entailment or relatedness. Pairs that
    share a sentence are a document for --group_by."""
    test_pairs: Folder | None = None
    """Pairs to test on, given like --pairs. Default: the test part of --pairs, otherwise its dev part or, if it has
    only one part, a tenth of its pairs."""
    task: str | TokenTask = "sentence_label"
    """Task to predict: its name, such as sentence_label or upos, or FILE.py:CLASS for a custom task. A sentence task
    gets a sentence head, every other task a token head."""
    task_args: dict[str, Any] | None = None
    """Options of the task, such as --task_args.min_count 20."""
    group_by: GroupBy = "auto"
    starts: str | list[str] = option("pretrained,random", choices=STARTS)
    """Starting points: all, or some of pretrained, random (a randomly initialised model) and shuffled (the pretrained
    model, tuned on labels that are exchanged at random among the training examples, differently for each seed)."""
    seeds: int = option(3, at_least=1, at_most=1000)
    """Number of seeds of the head and of random initialisation, from --seed on."""
    orders: int = option(2, at_least=1, at_most=1000)
    """Number of orders of the training sentences, each with different dropout, from --seed on. Every seed is combined
    with every order."""
    max_length: int | None = None
    _: KW_ONLY
    seed: int = 0
    """Seed of the split, first seed of the head, and first order."""
    name: str | None = None
    """Name of this run; default: MODEL-finetune-YYYYMMDD-HHMMSS. A killed run of this name is continued."""
    trainer: dict[str, Any] | None = None
    """Arguments of Lightning's Trainer, such as --trainer.devices 2, --trainer.precision bf16-mixed or
    --trainer.accumulate_grad_batches 4."""
    verbose: bool = False
    """Also print a row for each tuning, and all differences."""


@command(FinetuneOptions)
def finetune(options: FinetuneOptions) -> Result | None:
    """Tune a model on a task, and measure how the score depends on pretraining, seed, order and test sentences.

    Returns:
        The tables of the run; None except in the rank-zero process.
    """
    recipe = as_options(TuningOptions, options.tuning, "tuning")
    call = Call.of(study_of("finetune"), options, is_continued=True)
    config = call.config
    config |= described(options.task, options.task_args)
    token_task, text, n_sharing = _read(
        config, options.corpus, options.test_corpus, options.task, options.task_args, call.say
    )
    texts = dict(zip_longest(("corpus", "test_corpus") if options.pairs is None else ("pairs", "test_pairs"), text[0]))
    with quiet_libraries():
        from probing.downstream.labelled_pairs import about_pairs
        from probing.models import find_model
        from probing.studies.finetune.results import carry_out, jobs_of, study_output

        call.check_trainings("tuning")
        source = find_model(options.model, options.revision, None)
        config["model"] = source.name
        call.expect(len(jobs_of(options)) + 2)

        def measure(trainings: Any, logger: Any) -> Measurements:
            with nullcontext() if options.pairs is None else about_pairs():
                tables, examples = carry_out(source, text, token_task, options, recipe, trainings, logger, call.say)
            return study_output(tables, examples, texts, config, source, n_sharing)

        return call.train(f"{source.short_name}-finetune", texts, lambda trainings: partial(measure, trainings))


def _read(
    config: dict[str, Any], corpus: Any, test_corpus: Any, task: str | TokenTask, task_args: dict[str, Any] | None,
    say: Callable[[str], None],
) -> tuple[TokenTask, tuple[Sequence[Corpus], Sequence[Sequence[Split]]], int | None]:  # fmt: skip
    """Return the task, the corpora with their sides, and the number of test pairs that share a training sentence."""
    if config["pairs"] is None:
        if config["test_pairs"] is not None:
            raise UserError(f"`--test_pairs {config['test_pairs']}`: there are no --pairs to train on; give both.")
        loaded = load_task(task, task_args)
        refuse_spans(loaded, f"--task {task}", "give a task of words or of sentences")
        text = read_corpora(corpus, test_corpus, config["seed"], say, config["group_by"], reader_of(loaded))
        return loaded, text, None
    from probing.downstream.labelled_pairs import pair_text, read_parts, task_of

    defaults = {"corpus": "builtin", "test_corpus": None}
    if option := next((name for name, value in defaults.items() if config[name] != value), None):
        raise UserError(
            f"`--pairs {config['pairs']}` and `--{option}`: a model is tuned on pairs or on single sentences; give one "
            "of the two."
        )
    sources = {option: config[option] for option in ("pairs", "test_pairs") if config[option] is not None}
    parts = {option: read_parts(source, f"--{option}", say) for option, source in sources.items()}
    of_pairs, options = task_of(task, task_args, {f"--{option} {sources[option]}": parts[option] for option in sources})
    config |= described(task, options)
    other = (sources["test_pairs"], parts["test_pairs"]) if "test_pairs" in sources else None
    pair_texts = pair_text(config["pairs"], parts["pairs"], other, config["seed"], config["group_by"], say)
    return of_pairs, (pair_texts.corpora, pair_texts.splits), pair_texts.n_sharing


class Finetune(Study):
    """The study of models tuned on a task from several starts, with several seeds and orders."""

    name, kind = "finetune", "fine-tuning"
    title = "Fine-tuning"
    function = "probing.studies.finetune:finetune"
    in_several_processes = True
    schemas = SCORES, TUNINGS, DIFFERENCES, CURVES
    page = "training.md#fine-tuning"
    files: ClassVar[Mapping[str, str]] = {
        "checkpoints/START-seedN-orderM/": "Each tuned model with its head, an ordinary model folder.",
        "answers.safetensors": "What each tuned model has right of each test sentence, for `compare`. Every tensor has "
        "a number for each test sentence with something to predict: `right/START-seedN-orderM`, the targets whose "
        "class is predicted, or the squared error that the constant answer makes and the model does not; `of`, what "
        "the score is a share of: the number of targets, or the squared errors of the constant answer; `cluster`, the "
        "number of its document, or of the sentence; `sentence` and `labels`, hashes of its text and of its targets. "
        "The score of a tuning is the sum of the first over that of the second.",
        "figures/": "Scores beside the baselines, and losses by step.",
    }

    def tables(self, result: Result) -> list[Any]:
        """Return the scores."""
        return tables.tables(result.scores)

    def more_tables(self, result: Result) -> list[Any]:
        """Return each tuning, and all differences."""
        return [shown_table(schema, result.by_name[schema.name]) for schema in (TUNINGS, DIFFERENCES)]

    def charts(self, result: Result) -> list[Chart]:
        """Return the score of each tuning with the baselines, and losses by step."""
        return tables.charts(result)

    def answer(self, result: Result) -> list[str]:
        """Return the score of each start, and the effect of pretraining."""
        layer = result.config["tuning"]["layer"]
        on = "" if layer == LAST else f" with its head on layer {layer}"
        return tables.answer(result.scores, result.differences, f"{result.config['model']}{on}", result.results)

    def terms(self, result: Result) -> Mapping[str, Terms]:
        """Return the meanings of the headings of the scores."""
        return {self.title: TERMS}

    def conclusions(self, result: Result) -> list[str]:
        """Return the comparison with baselines, and the sources of variance of the scores."""
        return tables.conclusions(result.scores, result.differences, result.results)


STUDY = Finetune()
