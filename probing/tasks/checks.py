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

# Kinds of numpy arrays in words, for messages.
_KINDS = {"f": "numbers with a fraction", "c": "complex numbers", "S": "bytes", "M": "dates", "m": "durations"}


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
    unit, n = unit_of(task), len(sentences_of(task, tokens))
    returned = f"the task {type(task).__name__}: `labels` returned"
    values, is_example = _where_known(task.labels(tokens, corpus))
    is_numbers = predicts_numbers(task)
    read, expected = (numbers_of, one_number(unit)) if is_numbers else (_as_array, _expected(unit))
    found: Labels = read(values, returned, unit)
    if len(found) != n:
        is_without = unit == "token" and len(found) == n - int(tokens.special.sum())
        special = " (special tokens count)" if is_without else ""
        raise UserError(
            f"{returned} {len(found)} labels for the {n} {unit}s of `{corpus.name}`{special}; return {expected}."
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
            f"{returned} text, and its `ordinal` says that labels are numbers; "
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
    returned, unit = f"the task {type(task).__name__}: `classes` returned", unit_of(task)
    chosen = task.classes(labels, n_sentences)
    if isinstance(chosen, Sequence) and not len(chosen):
        return labels[:0]
    found = np.unique(_as_array(chosen, returned, unit))
    if len(found) and found.dtype.kind != labels.dtype.kind:
        raise UserError(f"{returned} values of another type than `labels`; return some of the labels.")
    return found.astype(labels.dtype)


def _where_known(values: Any) -> tuple[Any, Any]:
    """Return a list of true, false and None with False in place of None, and where its values are not None.

    Other labels are returned unchanged, with True: text and numbers have values that mean "no label".
    """
    kinds = set(map(type, values)) if isinstance(values, list | tuple) else set()
    if type(None) not in kinds or kinds == {type(None)} or not kinds <= {type(None), bool, np.bool_}:
        return values, True
    return [bool(value) for value in values], np.array([value is not None for value in values])


def _expected(unit: str) -> str:
    return f"one label for each {unit}: text, whole numbers, or true and false"


def _as_array(values: Any, returned: str, unit: str) -> NDArray[Any]:
    """Return values as a one-dimensional array of bool, int64, or strings as objects.

    Args:
        values: A list, a tuple, an array or a tensor.
        returned: The beginning of messages.
        unit: What has a label, for messages.
    """
    expected = _expected(unit)
    if isinstance(values, list | tuple):
        return _of_list(values, returned, unit)
    if values is None or isinstance(values, str | bytes) or not hasattr(values, "__array__"):
        what = "nothing" if values is None else f"a value of the type {type(values).__name__}"
        raise UserError(f"{returned} {what}; return a list or an array with {expected}.")
    array = np.asarray(values)
    if array.ndim != 1:
        raise UserError(f"{returned} an array of shape {array.shape}; return {expected}, shape (n_{unit}s,).")
    kind = array.dtype.kind
    if kind == "O":
        return _of_list(array.tolist(), returned, unit)
    if kind not in "biuU":
        numbers = ", or set `numbers = True` to have numbers predicted" * (kind == "f")
        raise UserError(f"{returned} {_KINDS.get(kind, f'an array of {array.dtype}')}; return {expected}{numbers}.")
    return array if kind == "b" else array.astype(object if kind == "U" else np.int64)


def _of_list(values: Sequence[Any], returned: str, unit: str) -> NDArray[Any]:
    """Return listed values as an array; None is the absence of a label."""
    kinds = set(map(type, values)) - {type(None)}
    if all(issubclass(kind, str) for kind in kinds):
        return np.array(["" if value is None else str(value) for value in values], dtype=object)
    if all(issubclass(kind, bool | np.bool_) for kind in kinds):
        return np.array(values, dtype=bool)
    if all(issubclass(kind, int | np.integer) and kind is not bool for kind in kinds):
        return np.array([-1 if value is None else int(value) for value in values], dtype=np.int64)
    usual = type(next(value for value in values if value is not None))
    at, odd = next(
        ((i, value) for i, value in enumerate(values) if value is not None and type(value) is not usual),
        (0, values[0]),
    )
    mixed = f", where others are {usual.__name__}" if type(odd) is not usual else ""
    raise UserError(
        f"{returned} {odd!r:.60} of the type {type(odd).__name__} for {unit} {at}, counted from 0{mixed}; "
        f"return {_expected(unit)}."
    )
