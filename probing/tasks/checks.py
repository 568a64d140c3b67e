"""What a task returns, checked and brought into one form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probing.cache.tokens import Tokens
from probing.corpus import Corpus
from probing.errors import UserError
from probing.tasks.base import Labels, SentenceTask, TokenTask, predicts_numbers
from probing.tasks.numbers import numbers_of, one_number
from probing.tasks.values import Given, class_values


def unit_of(task: TokenTask) -> str:
    """Return what has a label: a token, or a sentence."""
    return "sentence" if isinstance(task, SentenceTask) else "token"


def sentences_of(task: TokenTask, tokens: Tokens) -> NDArray[np.integer[Any]]:
    """Return the sentence of each label that a task gives, shape (n_tokens,), or (n_sentences,)."""
    return np.arange(tokens.n_sentences) if isinstance(task, SentenceTask) else tokens.sentences


def labels_of(task: TokenTask, tokens: Tokens, corpus: Corpus) -> Labels:
    """Return the labels that a task gives, as int64, as an object array of strings, or as float64 where it has numbers.

    Labels of tokens that are true or false are left out at special tokens and at later pieces of words; labels of
    sentences are left out where a sentence has only special tokens. Tokens that are set aside have no label.

    Returns:
        Shape (n_tokens,), or (n_sentences,) for a task of sentences.

    Raises:
        UserError: If the task returns something else than one label for each token or sentence, or sentences are to be
            pooled by a first token that is not special.
    """
    n, given = len(sentences_of(task, tokens)), _given(task, "labels")
    values = task.labels(tokens, corpus)
    found: Labels
    found, is_example = (numbers_of if predicts_numbers(task) else class_values)(values, given)
    if len(found) != n:
        is_without = given.unit == "token" and len(found) == n - int(tokens.special.sum())
        special = " (special tokens count)" if is_without else ""
        expected = f"return {one_number(given.unit)}" if predicts_numbers(task) else given.expected
        raise UserError(
            f"{given.subject} {len(found)} labels for the {n} {given.unit}s of `{corpus.name}`{special}; {expected}."
        )
    if isinstance(task, SentenceTask):
        if task.pooling == "cls" and not tokens.measured.all():
            raise UserError(
                "`--task_args.pooling cls` takes the first token, which `--first_token exclude` leaves out; give mean "
                "or max, or leave out one of the two."
            )
        if task.pooling == "cls" and not tokens.special[tokens.offsets[:-1]].all():
            raise UserError(
                "`--task_args.pooling cls`: the model's tokenizer puts no special token before a sentence; "
                "give mean or max."
            )
        is_example = is_example & (np.bincount(tokens.sentences[~tokens.special], minlength=n) > 0)
    else:
        is_example = is_example & (tokens.first_pieces if found.dtype.kind == "b" else tokens.measured)
    if found.dtype.kind == "b":
        found = found.astype(np.int64)
        found = found if task.ordinal else np.array(["False", "True"], dtype=object)[found]
    absent: Any = {"O": "", "f": np.nan}.get(found.dtype.kind, -1)
    found = np.where(is_example, found, absent)
    if task.ordinal and found.dtype.kind == "f":
        raise UserError(
            f"the task {type(task).__name__} has `numbers = True` and `ordinal = True`; its labels are either numbers "
            "to predict as such, or classes with distances: leave one out."
        )
    if task.ordinal and found.dtype.kind == "O":
        raise UserError(
            f"{given.subject} text, and its `ordinal` says that labels are numbers; "
            "return whole numbers, or set `ordinal = False`."
        )
    return found


def classes_of(task: TokenTask, labels: Labels, n_sentences: int) -> Labels:
    """Return the labels that a task makes classes, ascending, in the form of the labels.

    Args:
        task: The task.
        labels: Labels of the training tokens, as `labels_of` returns them.
        n_sentences: Number of training sentences.

    Raises:
        UserError: If the task returns anything but a list or an array of values of the type of its labels.
    """
    given = _given(task, "classes")
    chosen = task.classes(labels, n_sentences)
    if isinstance(chosen, Sequence) and not len(chosen):
        return labels[:0]
    values, is_known = class_values(chosen, given)
    found = np.unique(values[is_known])
    if len(found) and found.dtype.kind != labels.dtype.kind:
        raise UserError(f"{given.subject} values of another type than `labels`; return some of the labels.")
    return found.astype(labels.dtype)


def _given(task: TokenTask, method: str) -> Given:
    way_out = "or set `numbers = True` to have numbers predicted"
    return Given(f"the task {type(task).__name__}: `{method}` returned", "return", unit_of(task), way_out)
