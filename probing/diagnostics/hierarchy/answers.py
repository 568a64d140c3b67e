"""Which word of each sentence a probe answers, and how its answers are counted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.data.examples import Examples, read
from probing.diagnostics.hierarchy.parts import Text
from probing.statistics.intervals import accuracy_interval, difference_interval

# A row of a table.
Row = dict[str, Any]


def answered_words(examples: Examples, layers: Sequence[int], weights: Sequence[Tensor]) -> NDArray[np.int64]:
    """Return the index of the word that each probe finds likeliest, among the words of its sentence.

    Special tokens and padding are no words. Of equally likely words the first is taken.

    Args:
        examples: The words, every one of each sentence.
        layers: Layer numbers.
        weights: Weight of each layer's probe on raw hidden states, shape (2, d_model); class 1 is the word looked for.

    Returns:
        Shape (n_layers, n_sentences).
    """
    directions = [(weight[1] - weight[0]).double() for weight in weights]
    scores: list[Tensor] = []
    rows: list[Tensor] = []
    for batch in read(examples, layers):
        pairs = zip(batch.hidden_states, directions, strict=True)
        scores.append(torch.stack([states.double() @ direction for states, direction in pairs]))
        rows.append(batch.rows)
    at, tokens = torch.cat(rows).numpy(), examples.store.tokens
    begins = np.flatnonzero(np.diff(tokens.sentences[at], prepend=-1))
    of_words = torch.cat(scores, 1).numpy()
    highest = np.maximum.reduceat(of_words, begins, axis=1)
    is_highest = of_words == np.repeat(highest, np.diff(np.append(begins, len(at))), axis=1)
    # The first of the words with the highest score: all other words get a number beyond the last word.
    words = np.where(is_highest, tokens.words[at].astype(np.int64), np.iinfo(np.int64).max)
    return np.minimum.reduceat(words, begins, axis=1)


def counted(name: str, right: NDArray[np.bool_]) -> Row:
    """Return the share of sentences of which something holds, with its 95% interval.

    Args:
        name: Column of the share; its interval is in `NAME_low` and `NAME_high`.
        right: Whether it holds, shape (n_sentences,).
    """
    low, high = accuracy_interval(right.astype(np.int64), np.ones(len(right), dtype=np.int64))
    return {name: float(right.mean()), f"{name}_low": low, f"{name}_high": high}


def compared(name: str, first: NDArray[np.bool_], second: NDArray[np.bool_]) -> Row:
    """Return by how much the share of the first is above that of the second, with its 95% interval, paired.

    Args:
        name: Column of the difference.
        first: Whether something holds of each sentence, shape (n_sentences,).
        second: The same of something else.
    """
    difference = first.astype(np.int64) - second
    low, high = difference_interval(difference, np.ones(len(first), dtype=np.int64))
    return {name: float(difference.mean()), f"{name}_low": low, f"{name}_high": high}


def generalised(answers: NDArray[np.int64], text: Text, chosen: NDArray[np.bool_], linear: str) -> Row:
    """Return how often a probe's answers follow each rule in the sentences where the two rules differ.

    Args:
        answers: The word that it answers, shape (n_sentences,).
        text: The sentences.
        chosen: Which sentences are counted, shape (n_sentences,).
        linear: Name of the column with the share of answers that follow linear order.
    """
    right, first = ((answers == rule)[chosen] for rule in (text.answers, text.linear))
    found = counted("generalisation", right)
    own = {"generalisation": found["generalisation"], "low": found["generalisation_low"]}
    return {
        **own, "high": found["generalisation_high"], **counted(linear, first), **compared("preference", right, first)
    }  # fmt: skip
