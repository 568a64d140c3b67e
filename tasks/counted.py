"""The base of all tasks: a label is a class if it has enough training examples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from probing.errors import out_of_range, refuse
from probing.tasks import Labels, has_label


@dataclass(frozen=True)
class Counted:
    """Chooses as classes the labels with enough examples.

    Args:
        min_count: Training examples a label needs to be a class; by default 50, fewer on a small
            corpus (a twentieth of its training sentences), never under 5.
    """

    min_count: int | None = None

    def __post_init__(self) -> None:
        """Refuse values that are out of range."""
        refuse(out_of_range("task_args.min_count", self.min_count, 1))

    ordinal = False
    word_means = False

    def classes(self, labels: Labels, n_sentences: int) -> Labels:
        """Return the labels with enough training examples, ascending.

        Args:
            labels: Labels of the training tokens, including tokens that are not examples.
            n_sentences: Number of training sentences.
        """
        found, counts = np.unique(labels[has_label(labels)], return_counts=True)
        return found[counts >= self.threshold(n_sentences)]

    def threshold(self, n_sentences: int) -> int:
        """Return the number of training examples that a label needs."""
        return self.min_count if self.min_count is not None else min(50, max(5, n_sentences // 20))
