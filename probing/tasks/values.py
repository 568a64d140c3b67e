"""What a task or an array gives as labels or numbers, checked and brought into one form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from probing.cache.tokens import Tokens
from probing.corpus import Corpus
from probing.corpus.columns import check_label, label_of, text_of
from probing.errors import UserError, out_of_range, refuse

# --------------------------------------------------------------------------------------------------------------------
# The base class of tasks, and the protocol that every task follows.
# --------------------------------------------------------------------------------------------------------------------

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


# Kinds of numpy arrays in words, for messages.
_KINDS = {"c": "complex numbers", "S": "bytes", "M": "dates", "m": "durations"}
# Whole numbers from here on do not fit into 64 bits.
_TOO_HIGH = 2**63


class Given(NamedTuple):
    """Where labels come from, for messages.

    Args:
        subject: The beginning of a sentence that ends in what was found: "the task X: `labels` returned", "`y` has".
        verb: What the user is to do instead: return, give.
        unit: What has a label: token, sentence, row.
        way_out: What else to do if labels have a fraction.
    """

    subject: str
    verb: str
    unit: str
    way_out: str

    @property
    def expected(self) -> str:
        """What is expected, for messages."""
        return f"{self.verb} one label for each {self.unit}: text, whole numbers, or true and false"


def class_values(values: Any, given: Given) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return labels as one array of int64, bool, or strings as objects, and where there is one.

    What is missing is told by `probing.corpus.columns`: None, NaN, blank text, whole numbers below 0 and masked values.
    Whole numbers are the same with and without a fraction of 0.

    Args:
        values: A list, a tuple, an array, a masked array or a tensor.
        given: Where it comes from.

    Raises:
        UserError: If it is something else, has another shape than (n,), or holds other values or several kinds.
    """
    if isinstance(values, np.ma.MaskedArray):
        values = values.tolist()
    if isinstance(values, list | tuple):
        return _of_list(values, given)
    if values is None or isinstance(values, str | bytes) or not hasattr(values, "__array__"):
        what = "nothing" if values is None else f"a value of the type {type(values).__name__}"
        raise UserError(f"{given.subject} {what}; {given.verb} a list or an array with {_after_verb(given)}.")
    array = np.asarray(values)
    if array.ndim != 1:
        raise UserError(f"{given.subject} an array of shape {array.shape}; {given.expected}, shape (n_{given.unit}s,).")
    kind = array.dtype.kind
    if kind in "OU":
        return _of_list(array.tolist(), given)
    if kind == "b":
        return array, np.ones(len(array), dtype=bool)
    if kind in "iuf":
        return _whole_numbers(array, given)
    raise UserError(f"{given.subject} {_KINDS.get(kind, f'an array of {array.dtype}')}; {given.expected}.")


def _after_verb(given: Given) -> str:
    return given.expected.removeprefix(f"{given.verb} ")


def _whole_numbers(array: NDArray[Any], given: Given) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    is_known = np.isfinite(array) & (array >= 0)
    known = array[is_known]
    if array.dtype.kind == "f" and len(odd := known[known != np.round(known)]):
        raise UserError(
            f"{given.subject} numbers with a fraction, such as {odd[0]}; {given.expected}, {given.way_out}."
        )
    if len(known) and known.max() >= _TOO_HIGH:
        raise _too_high(known.max(), given)
    found = np.full(len(array), -1, dtype=np.int64)
    found[is_known] = known.astype(np.int64)
    return found, is_known


def _too_high(number: Any, given: Given) -> UserError:
    return UserError(f"{given.subject} {number!s:.60}, and whole numbers have to be below 2^63; {given.expected}.")


def _of_list(values: Sequence[Any], given: Given) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    is_known = np.array([text_of(value) is not None for value in values], dtype=bool)
    known = [value for value, there in zip(values, is_known.tolist(), strict=True) if there]
    kinds = {_kind(value) for value in known}
    if kinds <= {str}:
        labels = np.full(len(values), "", dtype=object)
        labels[is_known] = [label_of(value) for value in known]
        for label in set(labels.tolist()):
            check_label(label, f"{given.subject} a label that")
        return labels, labels != ""
    if kinds == {bool}:
        found = np.zeros(len(values), dtype=bool)
        found[is_known] = known
        return found, is_known
    if kinds <= {int, float}:
        numbers = np.full(len(values), -1, dtype=np.float64 if float in kinds else object)
        numbers[is_known] = known
        if float in kinds:
            return _whole_numbers(numbers, given)
        if (highest := max(known)) >= _TOO_HIGH:
            raise _too_high(highest, given)
        found = np.array([max(int(number), -1) for number in numbers.tolist()], dtype=np.int64)
        return found, found >= 0
    usual = _kind(known[0])
    at = next(i for i, value in enumerate(values) if is_known[i] and (_kind(value) is not usual or usual is None))
    odd = values[at]
    mixed = f", where others are {type(known[0]).__name__}" if usual is not None else ""
    raise UserError(
        f"{given.subject} {odd!r:.60} of the type {type(odd).__name__} for {given.unit} {at}, counted from 0{mixed}; "
        f"{given.expected}."
    )


def _kind(value: Any) -> type | None:
    """Return the kind of a label, str, bool, int or float; None if it can be none."""
    if isinstance(value, str):
        return str
    if isinstance(value, bool | np.bool_):
        return bool
    if isinstance(value, int | np.integer):
        return int
    return float if isinstance(value, float | np.floating) else None


def one_number(unit: str) -> str:
    """Return what is expected of a task of numbers, for messages."""
    return f"one finite number for each {unit}, None where there is none"


def numbers_of(values: Any, given: Given) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the numbers to predict, shape (n,), and where there is one; a number that is not finite is missing.

    Args:
        values: A list, a tuple, an array, a masked array or a tensor.
        given: Where it comes from.

    Raises:
        UserError: If a value is something else than a number or None, or the shape is wrong.
    """
    expected = f"{given.verb} {one_number(given.unit)}"
    if values is None or isinstance(values, str | bytes) or not hasattr(values, "__len__"):
        what = "nothing" if values is None else f"a value of the type {type(values).__name__}"
        raise UserError(f"{given.subject} {what}; {given.verb} a list or an array with {one_number(given.unit)}.")
    if isinstance(values, np.ma.MaskedArray):
        values = values.tolist()
    array = np.asarray(values, dtype=object if isinstance(values, list | tuple) else None)
    if array.ndim != 1:
        raise UserError(f"{given.subject} an array of shape {array.shape}; {expected}, shape (n_{given.unit}s,).")
    if array.dtype.kind not in "iuf":
        cells = array.tolist()
        for i, value in enumerate(cells):
            if text_of(value) is None:
                cells[i] = None
            elif isinstance(value, bool | np.bool_) or not isinstance(value, Real):
                raise UserError(
                    f"{given.subject} {value!r:.60} of the type {type(value).__name__} for {given.unit} {i}, counted "
                    f"from 0, and `numbers` says that labels are numbers; {expected}."
                )
        array = np.array(cells, dtype=object)
    found = array.astype(np.float64)
    return found, np.isfinite(found)


def unit_of(task: TokenTask) -> str:
    """Return what has a label: a token, or a sentence."""
    return "sentence" if isinstance(task, SentenceTask) else "token"


def labels_words(task: TokenTask, tokens: Tokens, corpus: Corpus) -> bool:
    """Return whether a task labels words, so that no word has two labels and no special token one."""
    if isinstance(task, SentenceTask):
        return False
    if task.word_means:
        return True
    labelled = has_label(labels_of(task, tokens, corpus))
    of_words = np.bincount(tokens.first_pieces.cumsum()[labelled & ~tokens.special])
    return not labelled[tokens.special].any() and of_words.max(initial=0) == 1


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
