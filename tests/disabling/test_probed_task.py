"""Probes of a task: those of a run, their classes, and the keys of what they read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pytest
import torch

from probing import UserError
from probing.cache.tokens import Tokens
from probing.corpus import Corpus
from probing.disabling.probed_task import Frozen, ProbedTask, frozen_of, task_of_run
from probing.runs.run import Run
from probing.tasks import load_task
from synthetic import make_tokens

pytestmark = pytest.mark.numeric


@dataclass
class Store:
    tokens: Tokens


def of_labels(labels: list[str], name: str = "task") -> ProbedTask:
    corpus = Corpus(
        "made up", ("one two", "three"), words=(("one", "two"), ("three",)), columns={"label": _rows(labels)}
    )
    frozen = Frozen({1: torch.ones(2, 3)}, np.array(["x", "y"], dtype=object))
    task = load_task("label" if name == "task" else "position")
    return ProbedTask(name, task, frozen, cast(Any, None), [corpus], [["train", "test"]], 0)


def _rows(labels: list[str]) -> Any:
    return (tuple(labels[:2]), tuple(labels[2:]))


def test_classes_are_texts_or_numbers_as_labels_are() -> None:
    weight = {1: torch.zeros(2, 3)}
    assert frozen_of(weight, ["ADJ", "NOUN"], "--run r").classes.dtype == object
    assert frozen_of(weight, [0, 4], "--run r").classes.dtype == np.int64
    with pytest.raises(UserError, match="`--run r` has probes of the embeddings alone"):
        frozen_of({}, [0, 1], "--run r")


def test_the_key_changes_with_the_labels_but_not_with_where_they_are_from() -> None:
    tokens = make_tokens([4, 3])
    store = cast(Any, Store(tokens))
    same, again, other = (
        of_labels(labels).key([store]) for labels in (["x", "y", "x"], ["x", "y", "x"], ["x", "x", "x"])
    )
    assert same == again
    assert same["labels"] != other["labels"]
    assert set(of_labels(["x", "y", "x"], "position").key([store])) == {"probes", "retrained"}


def test_a_task_without_classes_serves_where_none_are_needed(tmp_path: Any) -> None:
    config = {"task": "sentence_label", "task_args": {"numbers": True}}
    run = cast(Run, type("R", (), {"config": config, "folder": tmp_path, "results": {}})())
    assert task_of_run(run, "--from_run r", False, ["mean", "zero"]) is not None
    for reads, kinds in ((True, ["mean"]), (False, ["translate"]), (False, ["mean", "shuffled"])):
        with pytest.raises(UserError, match="its task sentence_label predicts numbers"):
            task_of_run(run, "--from_run r", reads, kinds)
