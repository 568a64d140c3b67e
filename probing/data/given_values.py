"""What `--given` holds fixed: the value of each example, and labels permuted among examples with the same value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probing.cache.tokens import Tokens
from probing.corpus import Corpus
from probing.data.examples import Examples, Sides
from probing.data.words import type_keys
from probing.errors import UserError
from probing.statistics.separation import strata_with_several
from probing.tasks import TokenTask, has_label, labels_of, labels_words, unit_of
from probing.tasks.given import HeldFixed


def values_of(given: HeldFixed, tokens: Tokens, corpus: Corpus, task: TokenTask) -> NDArray[np.int64]:
    """Return a number for the value of each token, -1 without one; shape (n_tokens,), or (n_sentences,).

    Args:
        given: What is held fixed.
        tokens: The table of tokens.
        corpus: The corpus that they belong to.
        task: The task that is probed, which has labels of tokens or of sentences.

    Raises:
        UserError: If none has a value, or what is held fixed does not apply, as `HeldFixed.task_in` says.
    """
    other = given.task_in(corpus, task)
    if other is None:
        return np.unique(type_keys(tokens, labels_words(task, tokens, corpus)), return_inverse=True)[1]
    labels = labels_of(other, tokens, corpus)
    if not has_label(labels).any():
        unit = unit_of(other)
        raise UserError(f"`--given {given.typed}`: it gives no {unit} of `{corpus.name}` a label; give another.")
    values = numbered(labels)
    if unit_of(other) == "token":
        return _of_whole_words(values, tokens)
    return values if unit_of(task) == "sentence" else values[tokens.sentences]


def _of_whole_words(values: NDArray[np.int64], tokens: Tokens) -> NDArray[np.int64]:
    """Return the values with those of a word at its pieces that have none: tasks label one piece or the other."""
    word = np.where(tokens.special, 0, tokens.first_pieces.cumsum())
    of_word = np.full(word.max(initial=0) + 1, -1)
    known = (values >= 0) & ~tokens.special
    of_word[word[known][::-1]] = values[known][::-1]
    return np.where((values < 0) & ~tokens.special, of_word[word], values)


def numbered(labels: NDArray[Any]) -> NDArray[np.int64]:
    """Return the number of each label among the distinct ones, -1 where one is missing."""
    found, known = np.full(len(labels), -1), has_label(labels)
    found[known] = np.unique(labels[known], return_inverse=True)[1]
    return found


def with_given(sides: Sides, values: Sequence[NDArray[np.int64]]) -> Sides:
    """Return the sides with the values of their examples.

    Args:
        sides: The sides.
        values: Those of the training corpus and, last, of the test corpus.
    """
    return replace(
        sides.each(lambda examples: replace(examples, given=values[0])), test=replace(sides.test, given=values[-1])
    )


def check_given(values: NDArray[np.int64], labels: NDArray[np.integer[Any]], typed: str, unit: str) -> None:
    """Refuse values that determine the label, so that nothing is left to compare.

    Args:
        values: Number of each token's value, -1 without one, shape (n_tokens,).
        labels: Label of each training token, -1 of others, shape (n_tokens,).
        typed: The option as it was typed, for the message.
        unit: What has a label.

    Raises:
        UserError: If no two training examples with the same value have different labels.
    """
    if not (strata_with_several(values, labels) >= 0).any():
        raise UserError(
            f"`{typed}`: no two training {unit}s with the same value have different labels, so that nothing is left to "
            "compare; leave the option out, or give more data."
        )


def permuted_within(examples: Examples, seed: int) -> Examples:
    """Return the examples with their labels permuted among those with the same value.

    Examples without a value are permuted among each other.

    Args:
        examples: The examples, with their values.
        seed: Seed of the permutation.
    """
    assert examples.given is not None
    kept = np.flatnonzero(examples.labels >= 0)
    labels, values = examples.labels.copy(), examples.given[kept]
    order = np.lexsort((np.random.default_rng(seed).random(len(kept)), values))
    labels[kept[np.argsort(values, kind="stable")]] = examples.labels[kept[order]]
    return replace(examples, labels=labels)
