"""The part of a survey that fuses layers: three tasks, on the sentences that are not trained on."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from probing.cache import tokens_of
from probing.cli.options import ProbeOptions
from probing.data.preparation import example_checks, label_sides
from probing.errors import UserError, as_clause
from probing.heads.fusion.fused import Fusion, Largest, Weighted
from probing.heads.fusion.fusion_comparison import (
    CONCAT,
    EQUAL,
    GATE,
    LARGEST,
    accuracy_rows,
    compare_fusions,
    corrected,
    similarity_rows,
)
from probing.heads.rows import Rows
from probing.heads.subject import Part, Subject
from probing.heads.sums import SumsStore
from probing.models import load_tokenizer
from probing.runtime.terminal import silence
from probing.tasks import TokenTask, load_task

NAME = "fusion"
TASKS = ("upos", "deprel", "position")


def tasks_of(subject: Subject) -> tuple[dict[str, TokenTask], str]:
    """Return the tasks whose labels the corpora have in every part, and what the last of the others lacks."""
    found: dict[str, TokenTask] = {}
    lack = ""
    requests = subject.requests
    tokens = [tokens_of(request, load_tokenizer(request.source)) for request in requests]
    for name in TASKS:
        task = load_task(name)
        corpora = [request.corpus for request in requests]
        checks = example_checks(task, corpora, subject.asked.splits, ProbeOptions(), silence)
        try:
            for check, own in zip(checks, tokens, strict=True):
                check(own)
        except UserError as error:
            lack = as_clause(error)
        else:
            found[name] = task
    return found, lack


def _lacks(subject: Subject) -> str | None:
    if len(subject.layers) < 2:
        return f"at least two layers to fuse, and `--layer {subject.layers[0]}` is one"
    found, lack = tasks_of(subject)
    return None if found else f"labels of {', '.join(TASKS[:-1])} or {TASKS[-1]}, and {lack}"


def _tables(subject: Subject, stores: Mapping[str, SumsStore]) -> dict[str, Rows]:
    layers, states = list(subject.layers), subject.hidden_states
    is_test = subject.tested[1]
    corpora, splits = [request.corpus for request in subject.requests], subject.asked.splits
    rows: Rows = []
    single = zip(layers, torch.eye(len(layers)), strict=True)
    shared: dict[int, Fusion] = {layer: Weighted(one) for layer, one in single}
    for name, task in tasks_of(subject)[0].items():
        sides = label_sides(states, corpora, splits, task)
        tested = compare_fusions(sides, layers, subject.source.trainer, subject.seed)
        rows += accuracy_rows(name, tested)
        learned = {number: tested.fusions[number] for number in (CONCAT, GATE)}
        rows += similarity_rows(states[-1], is_test, layers, learned, task=name)
    shared |= {EQUAL: Weighted.equal(len(layers)), LARGEST: Largest()}
    rows += similarity_rows(states[-1], is_test, layers, shared)
    return {NAME: corrected(rows)}


FUSION = Part(NAME, _lacks, lambda subject: [], _tables, by_name_only=True, trains=True)
