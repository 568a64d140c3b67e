"""`pretrain`: small encoders from scratch, with and without position embeddings."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from probing.cli.commandline import configured
from probing.cli.option_types import FIGURE_FORMAT, FigureFormat, Source, Wandb, chosen
from probing.cli.options import WandbOptions
from probing.corpus import load_corpus
from probing.errors import out_of_range
from probing.runs.call import Call, Measured
from probing.runs.folder import check_several, continuable, folder_of_trainings, free_name
from probing.runs.study import Result, study_of
from probing.runtime.machine import quiet_libraries
from probing.runtime.processes import is_main_process
from probing.studies.pretrain.tables import (
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
from probing.tracking import Tracker


@configured
def pretrain(
    config: dict[str, Any],
    corpus: Source = "builtin", arms: str | list[str] = "learned,none", seeds: int = 1, size: Size = "tiny",
    sentences: int = 1000, lengths: int | list[int] | str | None = None, seed: int = 0, runs: str = "runs",
    name: str | None = None, cache: str | None = None, quiet: bool = False, trainer: dict[str, Any] | None = None,
    encoder: EncoderGroup = EncoderOptions(), training: TrainingGroup = TrainingOptions(),
    wandb: Wandb = WandbOptions(), figure_format: FigureFormat = FIGURE_FORMAT,
) -> Result | None:  # fmt: skip
    """Pretrain encoders that differ only in what tells them positions, and measure outliers in their checkpoints.

    Args:
        corpus: Text to learn from; a tenth of its documents is held out, or a tenth of its sentences if it marks fewer
            than 20 documents. Given as builtin, a file (.txt with one sentence per line, .conllu, .conll, .tsv, .csv,
            .jsonl; also as .gz), hf:NAME?config=C&split=S&column=T, or - for standard input.
        arms: How the encoder is given positions: all, or some of learned (a table of embeddings), none, constant (every
            token is given the same position), causal (as none, but each token attends only to itself and earlier
            tokens), sinusoidal (a table of sines that is not trained), rotary (queries and keys rotated by the
            position), alibi (scores of attention that fall with the distance), relative (a trained number for each
            distance and head, as in T5), disentangled (trained embeddings of distances, as in DeBERTa), causal_lm (as
            causal, and the next token is predicted in place of masked ones), pre_norm (learned, with norms before the
            parts of a block, where all others have them behind), plain_norm (learned, with norms without gain and
            bias).
        seeds: Number of trainings of each arm, with the seeds from --seed on.
        size: Shape of the encoder and its training, which --encoder and --training change: tiny trains in minutes on a
            processor, base is that of Luo, Kulmizev & Mao (2021).
        sentences: Maximum number of held-out sentences on which checkpoints are measured.
        lengths: Lengths of rows that each arm reads after the last step, in lengths of the rows of its training,
            such as 1,2,4; none by default.
        seed: Seed of the division of the text, of what is drawn to measure, and first seed of the trainings: initial
            weights, order of the text, masks.
        name: Name of this run; pretrain-SIZE-YYYYMMDD-HHMMSS by default. A killed run of this name goes on where it
            stopped.
        cache: Folder of activations while a checkpoint is measured; $PROBING_CACHE or RUNS/cache by default.
        trainer: Arguments of Lightning's Trainer, such as --trainer.devices 2, --trainer.precision bf16-mixed or
            --trainer.accumulate_grad_batches 4.
        encoder: Shape of the encoder and of its input, where it is not that of the size.
        training: How the encoder is trained, where it is not as the size says.

    Returns:
        The tables of the run; None on ranks other than the first.
    """
    shape, recipe = chosen_recipe(size, encoder, training)
    numbers = [*out_of_range("seeds", seeds, 1, 1000), *out_of_range("sentences", sentences, 10)]
    multiples, problems = row_multiples(lengths)
    config |= {"encoder": asdict(shape), "training": asdict(recipe)}
    # An unfinished run of the name is continued, so that whether the name is taken is found later.
    call = Call.of(study_of("pretrain"), config, None, wandb, [*numbers, *problems, *recipe_problems(shape, recipe)])
    wanted = chosen("--arms", arms, PRETRAINING_ARMS)
    text = load_corpus(corpus)
    with quiet_libraries():
        from probing.runtime.trainer import Places, check_trainer_options
        from probing.studies.pretrain.results import measured
        from probing.studies.pretrain.training import Asked, Job, measure_all, measure_lengths, packed_text, train_all

        check_trainer_options(trainer or {}, "pretraining")
        check_several(trainer or {}, name is not None)
        named = name or free_name(call.place, f"pretrain-{size}")
        folder = folder_of_trainings(call.place, named, config, {"corpus": text})
        jobs = [Job(arm, number) for number in range(seed, seed + seeds) for arm in wanted]
        asked = Asked(jobs, shape, recipe, sentences, seed, trainer or {})
        first = is_main_process()
        call.expect(len(jobs) + 2 + bool(multiples))
        written = Places(folder.path, first)
        with continuable(folder, first):
            rows = packed_text(text, asked, written)

            def measure(tracker: Tracker | None) -> Measured | None:
                logger = tracker.logger if tracker else None
                losses = train_all(rows, asked, written, logger)
                layers = measure_all(rows, asked, written, call.cached, losses, call.say)
                tables = {"arms": layers, "losses": losses}
                if multiples:
                    tables["lengths"] = measure_lengths(rows, asked, multiples, written, call.cached)
                return measured(tables, text, config["corpus"], rows) if first else None

            return call.carry_out(folder if first else None, measure)
