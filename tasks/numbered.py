"""The base of tasks whose labels are numbers counted from 0."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from probing.errors import out_of_range, refuse
from probing.tasks import Labels, Task


@dataclass(frozen=True)
class Numbered(Task):
    """Chooses as classes the numbers with enough examples.

    Args:
        min_count: Training examples a number needs to be a class; by default 50, fewer on a
            small corpus (a twentieth of its training sentences), never under 5.
        max_position: Highest number that can be a class.
    """

    max_position: int | None = None

    def __post_init__(self) -> None:
        """Refuse values that are out of range."""
        refuse(
            out_of_range("task_args.min_count", self.min_count, 1)
            + out_of_range("task_args.max_position", self.max_position, 1)
        )

    # Classes are numbers: an error of one is smaller than an error of ten.
    ordinal = True

    def classes(self, labels: Labels, n_sentences: int) -> Labels:
        """Return the numbers with enough training examples, ascending.

        Args:
            labels: Labels of the training tokens, -1 for tokens without one.
            n_sentences: Number of training sentences.
        """
        numbers = np.asarray(super().classes(labels, n_sentences))
        return numbers if self.max_position is None else numbers[numbers <= self.max_position]
