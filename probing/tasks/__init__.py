"""Tasks: what a probe predicts of each token or sentence."""

from __future__ import annotations

from probing.tasks.loading import GROUP, described, load_task, short_name, task_in_words
from probing.tasks.values import (
    Labels,
    Pooling,
    SentenceTask,
    Task,
    TokenTask,
    classes_of,
    has_label,
    labels_of,
    labels_words,
    predicts_numbers,
    reader_of,
    sentences_of,
    unit_of,
)

__all__ = [
    "GROUP", "Labels", "Pooling", "SentenceTask", "Task", "TokenTask", "classes_of", "described", "has_label",
    "labels_of", "labels_words", "load_task", "predicts_numbers", "reader_of", "sentences_of", "short_name",
    "task_in_words", "unit_of",
]  # fmt: skip
