"""The study `pretrain`: small encoders from scratch, with and without position embeddings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, asdict, dataclass
from typing import Any, ClassVar

from probing.cli.commandline import command
from probing.cli.options import OutputOptions, RunOptions, Source, option
from probing.runs import Result, Study, Terms, study_of
from probing.runs.call import Call, Measurements
from probing.runtime import quiet_libraries
from probing.studies.pretrain import tables
from probing.studies.pretrain.tables import (
    ARMS,
    LENGTHS,
    LOSSES,
    PRETRAINING_ARMS,
    EncoderGroup,
    EncoderOptions,
    Size,
    TrainingGroup,
    TrainingOptions,
    chosen_recipe,
    recipe_problems,
    row_multiples,
)
from probing.tables.figures import Chart
from probing.text import load_corpus


@dataclass(frozen=True, kw_only=True)
class _TrainedOptions(RunOptions):
    encoder: EncoderGroup = option(EncoderOptions())
    """Shape of the encoder and of its input, where it differs from --size."""
    training: TrainingGroup = option(TrainingOptions())
    """How the encoder is trained, where this differs from --size."""


@dataclass(frozen=True)
class PretrainOptions(OutputOptions, _TrainedOptions):
    """Options of `pretrain`."""

    corpus: Source = "builtin"
    """Text to learn from; a tenth of its documents is held out, or a tenth of its sentences if it marks fewer than 20
    documents. Given as builtin, a file (.txt with one sentence per line, .conllu, .conll, .tsv, .csv, .jsonl; also as
    .gz), hf:NAME?config=C&split=S&column=T, or - for standard input."""
    arms: str | list[str] = option("learned,none", choices=PRETRAINING_ARMS)
    """Sources of position information: all, or some of learned (a trained table of embeddings), none, constant (every
    token gets the same position), causal (as none, but each token attends only to itself and earlier tokens),
    sinusoidal (a table of sines that is not trained), rotary (queries and keys rotated by the position), alibi
    (attention scores that fall with the distance), relative (a trained number for each distance and head, as in T5),
    disentangled (trained embeddings of distances, as in DeBERTa), causal_lm (as causal, but predicts the next token
    instead of masked tokens), pre_norm (learned, with norms before the parts of a block; in all other arms they
    follow), plain_norm (learned, with norms without gain and bias)."""
    seeds: int = option(1, at_least=1, at_most=1000)
    """Number of trainings of each arm, with seeds from --seed on."""
    size: Size = "tiny"
    """Shape of the encoder and its training, which --encoder and --training change: tiny trains in minutes on a CPU;
    base follows Luo, Kulmizev & Mao (2021)."""
    sentences: int = option(1000, at_least=10)
    """Maximum number of held-out sentences on which checkpoints are measured."""
    lengths: int | list[int] | str | None = None
    """Lengths of rows that each arm reads after the last step, in multiples of the training length, such as 1,2,4;
    default: none."""
    _: KW_ONLY
    seed: int = 0
    """Seed of the split of the text and of measurement samples, and first seed of the trainings: initial weights, order
    of the text, masks."""
    name: str | None = None
    """Name of this run; default: pretrain-SIZE-YYYYMMDD-HHMMSS. A killed run of this name is continued."""
    cache: str | None = None
    """Folder of activations while a checkpoint is measured; default: $PROBING_CACHE or RUNS/cache."""
    trainer: dict[str, Any] | None = None
    """Arguments of Lightning's Trainer, such as --trainer.devices 2, --trainer.precision bf16-mixed or
    --trainer.accumulate_grad_batches 4."""

    def problems(self) -> list[str]:
        """Return the problems with the lengths, the shape of the encoder and its training."""
        return row_multiples(self.lengths)[1] + recipe_problems(*chosen_recipe(self.size, self.encoder, self.training))


@command(PretrainOptions)
def pretrain(options: PretrainOptions) -> Result | None:
    """Pretrain encoders that differ only in their position information, and measure outliers in their checkpoints.

    Returns:
        The tables of the run; None except in the rank-zero process.
    """
    shape, recipe = chosen_recipe(options.size, options.encoder, options.training)
    multiples, selected = row_multiples(options.lengths)[0], options.selected("arms")
    call = Call.of(study_of("pretrain"), options, is_continued=True)
    call.config.update(encoder=asdict(shape), training=asdict(recipe))
    text = load_corpus(options.corpus)
    with quiet_libraries():
        from probing.studies.pretrain import training as steps

        call.check_trainings("pretraining")
        seeds = range(options.seed, options.seed + options.seeds)
        jobs = [steps.TrainingJob(arm, number) for number in seeds for arm in selected]
        plan = steps.RunPlan(jobs, shape, recipe, options.sentences, options.seed, options.trainer or {})
        call.expect(len(jobs) + 2 + bool(multiples))

        def begin(trainings: Any) -> Callable[[Any], Measurements]:
            rows = steps.packed_text(text, plan, trainings)

            def measure(logger: Any) -> Measurements:
                losses = steps.train_all(rows, plan, trainings, logger)
                layers = steps.measure_all(rows, plan, trainings, call.cached, losses, call.say)
                tables = {"arms": layers, "losses": losses}
                if multiples:
                    tables["lengths"] = steps.measure_lengths(rows, plan, multiples, trainings, call.cached)
                return steps.study_output(tables, text, call.config["corpus"], rows)

            return measure

        return call.train(f"pretrain-{options.size}", {"corpus": text}, begin)


class Pretrain(Study):
    """The study of encoders that differ only in their information on positions."""

    name, kind = "pretrain", "pretraining with and without positions"
    title = "Encoders with and without positions"
    function = "probing.studies.pretrain:pretrain"
    in_several_processes = True
    schemas = ARMS, LOSSES, LENGTHS
    page = "training.md#pretraining"
    files: ClassVar[Mapping[str, str]] = {
        "checkpoints/ARM-seedN/stepNNNN/": "Each checkpoint, an ordinary model folder.",
        "figures/": "Losses, farthest means and positions; with `--lengths`, losses by length.",
    }

    def tables(self, result: Result) -> list[Any]:
        """Return each arm after its last step, and on longer rows, over seeds."""
        return tables.tables(result.arms, result.lengths)

    def more_tables(self, result: Result) -> list[Any]:
        """Return the losses of each arm and seed, and every layer after the last step."""
        return tables.more_tables(result.arms)

    def charts(self, result: Result) -> list[Chart]:
        """Return losses, farthest means and positions, and losses by length."""
        return tables.charts(result.arms, result.lengths, result.results["n_vocabulary"])

    def conclusions(self, result: Result) -> list[str]:
        """Return the conclusions on each arm, and the verdict."""
        return tables.conclusions(result.arms, result.lengths, result.results["growth"])

    def terms(self, result: Result) -> Mapping[str, Terms]:
        """Return the meanings of the headings, of the lines of charts and of the verdict."""
        return {self.title: {**super().terms(result)[self.title], **tables.TERMS}}


STUDY = Pretrain()
