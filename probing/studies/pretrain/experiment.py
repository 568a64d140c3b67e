"""Trains all arms with all seeds, and measures their checkpoints; a killed run goes on where it stopped."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytorch_lightning as pl

from probing.corpus import Corpus
from probing.results.schema import count
from probing.runtime.files import parse_json, read_text, replacing
from probing.runtime.progress import remark, stage
from probing.runtime.terminal import silence
from probing.runtime.trainer import Places
from probing.studies.pretrain.arms import checkpoint_folder, checkpoint_steps
from probing.studies.pretrain.batches import PackedText, as_fast, prepare
from probing.studies.pretrain.checkpoint_measures import Subject, measure
from probing.studies.pretrain.options import Encoder, Recipe
from probing.studies.pretrain.training import Job, train

Row = dict[str, Any]


@dataclass(frozen=True)
class Asked:
    """What is asked.

    Args:
        jobs: The trainings.
        shape: The encoder's shape.
        recipe: How it is trained.
        n_sentences: Most held-out sentences by which checkpoints are measured.
        seed: Seed of the division of the text, and of what is drawn to measure.
        trainer: Arguments of Lightning's Trainer.
    """

    jobs: Sequence[Job]
    shape: Encoder
    recipe: Recipe
    n_sentences: int
    seed: int
    trainer: Mapping[str, Any]


def packed_text(corpus: Corpus, asked: Asked, places: Places) -> PackedText:
    """Return the packed text; its tokenizer is trained once and kept in the run's folder, for a continued run."""
    from tokenizers import Tokenizer

    file, shape = places.folder / "state" / "tokenizer.json", asked.shape
    known = as_fast(Tokenizer.from_file(str(file)), shape.row_length) if file.is_file() else None
    with stage("tokens of the text"):
        text = prepare(
            corpus, shape.vocabulary, shape.lowercase, shape.row_length, asked.recipe.held_out_rows, asked.seed, known
        )  # fmt: skip
    if known is None and places.writes:
        file.parent.mkdir(exist_ok=True)
        with replacing(file) as partial:
            text.tokenizer.backend_tokenizer.save(str(partial))
    return text


def train_all(
    text: PackedText, asked: Asked, places: Places, logger: Any, callbacks: Sequence[pl.Callback] = ()
) -> list[Row]:
    """Train what is not trained yet, and return the rows of `losses.csv`.

    Args:
        text: The packed text.
        asked: What is asked.
        places: Where to write.
        logger: Lightning logger of the curves, if any.
        callbacks: Further callbacks of Lightning.
    """
    rows: list[Row] = []
    for job in asked.jobs:
        if not places.curve(job.name).is_file():
            how = "goes on" if places.state(job.name).is_file() else "begins"
            remark(f"{job.name}: the training {how} ({asked.recipe.steps} steps)")
        with stage(f"training of {job.name}"):
            rows += train(job, text, asked.shape, asked.recipe, asked.trainer, places, logger, callbacks)
    return rows


def measure_all(
    text: PackedText, asked: Asked, places: Places, cache: Path, losses: Sequence[Row], say: Callable[[str], None],
) -> list[Row]:  # fmt: skip
    """Measure the checkpoints that are not measured yet, and return the rows of `arms.csv`.

    Args:
        text: The packed text.
        asked: What is asked.
        places: Where to write.
        cache: Folder of cached activations, which are kept while a checkpoint is measured.
        losses: Rows of `losses.csv`.
        say: Takes messages.
    """
    subject = Subject.of(
        text.held_out_corpus, text.held_out, asked.n_sentences, asked.seed, cache / places.folder.name, asked.trainer
    )
    steps = checkpoint_steps(asked.recipe.steps, asked.recipe.checkpoint_factor)
    due = [(job, step) for job in asked.jobs for step in steps]
    known = {(row["arm"], row["seed"], row["step"]): row for row in losses}
    rows: list[Row] = []
    with stage(f"measures of {count(len(due), 'checkpoint')}", len(due)) as advance:
        for job, step in due:
            folder = checkpoint_folder(places.checkpoints, job.arm, job.seed, step, asked.recipe.steps)
            kept = places.folder / "state" / f"{job.name}-{folder.name}.json"
            if kept.is_file():
                found = parse_json(read_text(kept, places.folder))
            else:
                found = measure(folder, subject, silence if rows else say)  # what is left out is said once
                if places.writes:
                    with replacing(kept) as partial:
                        partial.write_text(json.dumps(found), encoding="utf-8")
            of_curve = known[job.arm, job.seed, step]
            own = {name: of_curve[name] for name in ("arm", "seed", "step", "loss", "unigram_loss")}
            rows += [{**own, **row} for row in found]
            advance(1)
    return rows
