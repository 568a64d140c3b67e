"""Tunes a model from all starts with all seeds and orders; a killed run goes on where it stopped."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from probing.corpus import Corpus
from probing.corpus.splits import GroupBy, Split
from probing.models import ModelSource
from probing.runtime.progress import remark, stage
from probing.runtime.trainer import Places, Row
from probing.studies.finetune.baselines import baselines
from probing.studies.finetune.examples import Task, labelled
from probing.studies.finetune.options import TuningOptions
from probing.studies.finetune.results import kept_answers, tables_of
from probing.studies.finetune.training import Job, read_answers, tune
from probing.tasks import TokenTask


@dataclass(frozen=True)
class Asked:
    """What is asked.

    Args:
        jobs: The tunings.
        task: The task, which gives the labels.
        group_by: The option's value: what is independent, sentences or documents.
        max_length: Number of tokens at which sentences are cut; None for the model's own limit.
        recipe: How models are tuned.
        trainer: Arguments of Lightning's Trainer.
        seed: Seed of what baselines draw.
    """

    jobs: Sequence[Job]
    task: TokenTask
    group_by: GroupBy
    max_length: int | None
    recipe: TuningOptions
    trainer: Mapping[str, Any]
    seed: int


def jobs_of(starts: Sequence[str], first: int, seeds: int, orders: int) -> list[Job]:
    """Return the tunings: every start with every seed and every order, each numbered from `first`."""
    numbers = range(first, first + seeds), range(first, first + orders)
    return [Job(start, seed, order) for start in starts for seed in numbers[0] for order in numbers[1]]


def carry_out(
    source: ModelSource, text: tuple[Sequence[Corpus], Sequence[Sequence[Split]]], asked: Asked, places: Places,
    logger: Any, say: Callable[[str], None],
) -> tuple[dict[str, list[Row]], Task]:  # fmt: skip
    """Tune what is not tuned yet, and return the rows of every table, and what was tuned on.

    Args:
        source: The model.
        text: The corpora, and the side of the split of each of their sentences.
        asked: What is asked.
        places: Where to write.
        logger: Lightning logger of the curves, if any.
        say: Takes messages.
    """
    with stage("tokens and labels of the text"):
        task = labelled(source, *text, asked.task, asked.group_by, asked.max_length, say)
    curve: list[Row] = []
    for job in asked.jobs:
        if places.finished(job.name) is None and places.state(job.name).is_file():
            remark(f"{job.name}: the tuning goes on")
        with stage(f"tuning of {job.name}"):
            curve += tune(job, source, task, asked.recipe, asked.trainer, places, logger)
    with stage("baselines"):  # all processes share their passes
        others = baselines(task, source, asked.seed, asked.trainer)
    if not places.writes:
        return {}, task
    answers = {job: read_answers(places, job) for job in asked.jobs}
    kept_answers(task, text[0][-1], answers).write(places.folder)
    return tables_of(asked.jobs, task, answers, others, curve), task
