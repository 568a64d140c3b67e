"""The base class of tasks, and the protocol that every task follows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from probing.cache.tokens import Tokens
from probing.corpus import Corpus
from probing.errors import UserError, out_of_range, refuse

# An int64 array, an object array of strings, or a float64 array of numbers that a probe is to predict.
Labels = NDArray[Any]

Pooling = Literal["mean", "cls", "max"]


class TokenTask(Protocol):
    """Gives each token a label. A task is a dataclass whose fields are its options (`--task_args.NAME`)."""

    @property
    def ordinal(self) -> bool:
        """Whether labels are numbers, so that distances between labels are meaningful."""
        ...

    @property
    def word_means(self) -> bool:
        """Whether a word's activations are the mean over its pieces; its label is then at the first piece."""
        ...

    def labels(self, tokens: Tokens, corpus: Corpus) -> Labels | Sequence[Any]:
        """Return the label of each token, -1 or an empty string if it is not an example; shape (n_tokens,)."""
        ...

    def classes(self, labels: Labels, n_sentences: int) -> Labels | Sequence[Any]:
        """Return the labels that become classes, ascending, given the labels of the training tokens."""
        ...


@dataclass(frozen=True)
class Task:
    """A task: what a probe predicts of each token. Derive your own from it and define `labels`.

    Fields of a subclass that is a frozen dataclass (`@dataclass(frozen=True)`) are the task's options,
    `--task_args.NAME` on the command line. A subclass may set these:

    - `ordinal = True`: labels are numbers, and an error of one is smaller than an error of ten. The run then has the
      mean error and the accuracy of each number, and the controls of positions.
    - `numbers = True`: labels are numbers to predict as such, with or without a fraction, and not classes. A ridge
      probe predicts them, and the run has R² in the place of accuracy. A label is None where there is no number.
    - `word_means = True`: a word's activations are the mean over its pieces; its label is at its first piece.

    Args:
        min_count: Training examples a label needs to be a class; by default 50, fewer on a small
            corpus (a twentieth of its training sentences), never under 5.
    """

    min_count: int | None = None

    ordinal = False
    numbers = False
    word_means = False

    def __post_init__(self) -> None:
        """Refuse values that are out of range."""
        refuse(out_of_range("task_args.min_count", self.min_count, 1))
        if self.numbers and self.min_count is not None:
            raise UserError(
                "`--task_args.min_count`: the task predicts numbers, which form no classes to have a least size; "
                "leave it out."
            )

    def labels(self, tokens: Tokens, corpus: Corpus) -> Labels | Sequence[Any]:
        """Return the label of each token, in the order of `tokens`; shape (n_tokens,).

        Labels are text, whole numbers, or true and false, in a list or an array. A token is not an example where the
        label is missing: None, NaN, a number below 0, blank text or `_` (see `probing.corpus.columns`). Labels that are
        true or false count only at the first piece of a word; special tokens and later pieces are left out.

        Where `numbers` is true, labels are numbers; where one is None or not finite, the token is not an example.

        Args:
            tokens: The table of tokens: `sentences`, `positions`, `words`, `special`, `first_pieces` and more for each
                token; `piece_texts(corpus)` and `word_texts(corpus)` are its characters and those of its word, or
                the token's own text where the tokenizer added it, such as [CLS].
            corpus: The sentences, their words, and the columns of their source.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define `labels`")

    def column_of(self, corpus: Corpus) -> str | None:
        """Return the name of the corpus's column that labels are read from, for messages; None if from elsewhere."""
        return None

    def classes(self, labels: Labels, n_sentences: int) -> Labels | Sequence[Any]:
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


@dataclass(frozen=True)
class SentenceTask(Task):
    """A task of whole sentences, each with one vector and one label. Derive your own from it and define `labels`.

    Its `labels(tokens, corpus)` returns one label for each sentence, in the order of `corpus.sentences`; all else is as
    for `Task`.

    Args:
        min_count: Training sentences a label needs to be a class; by default 50, fewer on a small corpus
            (a twentieth of its training sentences), never under 5.
        pooling: Vector of a sentence: the mean or the maximum over its tokens without special ones, or that of its
            first token, which must be special (cls).
    """

    pooling: Pooling = "mean"


def reader_of(task: TokenTask) -> Callable[[Corpus], str | None]:
    """Return what gives the column of a corpus that a task reads labels from; see `Task.column_of`."""
    return task.column_of if isinstance(task, Task) else lambda corpus: None


def has_label(labels: Labels) -> NDArray[np.bool_]:
    """Return whether each token has a label."""
    kind = labels.dtype.kind
    has: NDArray[np.bool_] = labels != "" if kind == "O" else ~np.isnan(labels) if kind == "f" else labels >= 0
    return has


def predicts_numbers(task: TokenTask) -> bool:
    """Return whether a task's labels are numbers to predict as such; those that do not say so have classes."""
    return bool(getattr(task, "numbers", False))
