"""Tasks, the targets that a probe predicts for each token or sentence: loading them, and checking their labels."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from hashlib import sha256
from importlib.metadata import EntryPoint, entry_points
from numbers import Real
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from probing.cli.arguments import OptionSource, checked
from probing.errors import UserError, as_clause, did_you_mean, out_of_range, refuse
from probing.runtime.files import DOCUMENT, open_file
from probing.text import Corpus, Split
from probing.text.columns import check_label, label_of, text_of
from probing.text.tokens import Tokens

# An int64 array, an object array of strings, or a float64 array of numbers that a probe is to predict.
Labels = NDArray[Any]

Pooling = Literal["mean", "cls", "max"]


class TokenTask(Protocol):
    """Protocol of a task, which labels tokens: a dataclass whose fields are its options (`--task_args.NAME`)."""

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
    """A task, the target that a probe predicts for each token. Derive a task from it and define `labels`.

    Fields of a subclass that is a frozen dataclass (`@dataclass(frozen=True)`) are the task's options,
    `--task_args.NAME` on the command line. A subclass may set these:

    - `ordinal = True`: labels are numbers, and an error of one is smaller than an error of ten. The run then has the
      mean error and the accuracy of each number, and the controls of positions.
    - `numbers = True`: labels are numbers to predict as such, with or without a fraction, and not classes. A ridge
      probe predicts them, and R² replaces accuracy. A label is None where there is no number.
    - `word_means = True`: a word's activations are the mean over its pieces; its label is at its first piece.

    Args:
        min_count: Training examples a label needs to be a class; by default 50, fewer on a small corpus (a twentieth of
            its training sentences), never under 5.
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
        label is missing: None, NaN, a number below 0, blank text or `_` (see `probing.text.columns`). Labels that are
        true or false count only at the first piece of a word; special tokens and later pieces are left out.

        Where `numbers` is true, labels are numbers; a token with None or a number that is not finite is not an example.

        Args:
            tokens: The table of tokens: `sentences`, `positions`, `words`, `special`, `first_pieces` and more for each
                token; `piece_texts(corpus)` and `word_texts(corpus)` are the characters of the token and of its word,
                or the token's text where the tokenizer added it, such as [CLS].
            corpus: The sentences, their words, and the columns of their source.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define `labels`")

    def column_of(self, corpus: Corpus) -> str | None:
        """Return the name of the corpus's column that labels are read from, for messages; None if from elsewhere."""
        return None

    def may_be_on(self, side: Split, labels: Labels) -> NDArray[np.bool_]:
        """Return whether each label may be an example of a side of the split; all may by default."""
        return np.ones(len(labels), dtype=bool)

    def classes(self, labels: Labels, n_sentences: int) -> Labels | Sequence[Any]:
        """Return the labels with enough training examples, ascending; `labels` include tokens that are not examples."""
        labels_present, counts = np.unique(labels[has_label(labels)], return_counts=True)
        return labels_present[counts >= self.threshold(n_sentences)]

    def threshold(self, n_sentences: int) -> int:
        """Return the number of training examples that a label needs."""
        return self.min_count if self.min_count is not None else min(50, max(5, n_sentences // 20))


@dataclass(frozen=True)
class SentenceTask(Task):
    """A task of whole sentences, each with one vector and one label. Derive a task from it and define `labels`.

    Its `labels(tokens, corpus)` returns one label for each sentence, in the order of `corpus.sentences`; all else is as
    for `Task`.

    Args:
        min_count: Training sentences a label needs to be a class; by default 50, fewer on a small corpus (a twentieth
            of its training sentences), never under 5.
        pooling: Vector of a sentence: the mean or the maximum over its tokens without special tokens, or the vector of
            its first token, which must be special (cls).
    """

    pooling: Pooling = "mean"


class Span(NamedTuple):
    """Characters `start` to before `end` of a sentence, given by its index, with a label; None if it has none.

    In a pair, `second` has the same of the second span, which is in the same sentence.
    """

    sentence: int
    start: int
    end: int
    label: Any = None
    second: tuple[int, int] | None = None


@dataclass(frozen=True)
class SpanTask(SentenceTask):
    """A task of spans of text, each with one vector and one label. Derive a task from it and define `spans`.

    With `n_spans = 2`, each label is of a pair of spans (`Span.second`), whose vectors are put side by side.

    Args:
        min_count: Training spans a label needs to be a class; by default 50, fewer on a small corpus (a twentieth of
            its training sentences), never under 5.
        pooling: Vector of a span: the mean or the maximum over its tokens.
    """

    pooling: Literal["mean", "max"] = "mean"

    n_spans = 1

    def spans(self, corpus: Corpus) -> Sequence[Span]:
        """Return the spans of a corpus, in the order of its sentences; a sentence may have none, or several."""
        raise NotImplementedError(f"{type(self).__name__} does not define `spans`")

    def spans_of(self, corpus: Corpus) -> Sequence[Span]:
        """Return the spans of a corpus, which are read once: a fit uses them dozens of times."""
        if id(self) not in corpus.spans:
            corpus.spans[id(self)] = self, self.spans(corpus)
        return corpus.spans[id(self)][1]

    def labels(self, tokens: Tokens, corpus: Corpus) -> Labels | Sequence[Any]:
        """Return the label of each span, shape (n_spans,)."""
        return [span.label for span in self.spans_of(corpus)]


def rows_of_spans(spans: Sequence[Span], tokens: Tokens, second: bool = False) -> NDArray[np.int64]:
    """Return the sentence, the first token and the token after the last of each span, shape (n_spans, 3).

    A token is of a span if they share a character. A span has no tokens if it is cut, because its sentence is too long
    for the model or the first token is set aside. With `second`, the rows are of the second spans of pairs.
    """
    assert tokens.spans is not None
    rows = np.flatnonzero(~tokens.special & (tokens.spans[:, 1] > tokens.spans[:, 0]))
    begins, ends = (tokens.sentences[rows] * _APART + tokens.spans[rows, i] for i in (0, 1))
    characters = [(span.sentence, *(span.second if second else span[1:3])) for span in spans]  # type: ignore[misc]
    places = np.array(characters, dtype=np.int64).reshape(-1, 3)
    if (np.diff(places[:, 0]) < 0).any():
        raise ValueError("spans have to be in the order of their sentences")
    start, end = (places[:, 0] * _APART + places[:, i] for i in (1, 2))
    first, after = np.searchsorted(ends, start, side="right"), np.searchsorted(begins, end)
    last = np.concatenate([[-1], ends])[np.searchsorted(begins, (places[:, 0] + 1) * _APART)]
    first_start = np.append(begins, end.max(initial=0) + 1)[first]
    is_whole = (first < after) & (first_start <= start) & (last >= end)
    row = np.append(rows, 0)
    bounds = row[np.where(is_whole, first, -1)], np.where(is_whole, row[after - 1] + 1, 0)
    return np.stack([places[:, 0], *bounds], 1)


# More than the characters of any sentence.
_APART = np.int64(2**31)


def refuse_spans(task: TokenTask, flag_text: str, way_out: str) -> None:
    """Refuse a task of spans where words or whole sentences are labelled."""
    if isinstance(task, SpanTask):
        raise UserError(f"`{flag_text}`: its task labels spans, and words or sentences are expected; {way_out}.")


def reader_of(task: TokenTask) -> Callable[[Corpus], str | None]:
    """Return the function from a corpus to the column that a task reads labels from; see `Task.column_of`."""
    return task.column_of if isinstance(task, Task) else lambda corpus: None


def has_label(labels: Labels) -> NDArray[np.bool_]:
    """Return whether each token has a label."""
    kind = labels.dtype.kind
    has: NDArray[np.bool_] = labels != "" if kind == "O" else ~np.isnan(labels) if kind == "f" else labels >= 0
    return has


def predicts_numbers(task: TokenTask) -> bool:
    """Return whether a task's labels are numbers to predict as such; by default they are classes."""
    return bool(getattr(task, "numbers", False))


# Kinds of numpy arrays in words, for messages.
_KINDS = {"c": "complex numbers", "S": "bytes", "M": "dates", "m": "durations"}

# Whole numbers from here on do not fit into 64 bits.
_TOO_HIGH = 2**63


class LabelWording(NamedTuple):
    """Source of labels, for messages: `subject` begins a sentence that names the values, such as "`y` has".

    `verb` is the user's corrective action (return, give), `unit` what has a label (token, sentence, row), `way_out` an
    alternative if labels have a fraction.
    """

    subject: str
    verb: str
    unit: str
    way_out: str

    @property
    def labels(self) -> str:
        """The expected labels, for messages."""
        return f"one label for each {self.unit}: text, whole numbers, or true and false"

    @property
    def expected(self) -> str:
        """What the user is to do, for messages."""
        return f"{self.verb} {self.labels}"


def class_values(values: Any, wording: LabelWording) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return labels as an array of int64, bool, or strings as objects, and a mask of the labels present.

    `values` is a list, a tuple, an array, a masked array or a tensor of shape (n,) and of a single kind; otherwise
    `UserError` is raised. Missing are None, NaN, blank text, whole numbers below 0 and masked values (see
    `probing.text.columns`). Whole numbers are the same with and without a fraction of 0.
    """
    if isinstance(values, np.ma.MaskedArray):
        values = values.tolist()
    if isinstance(values, list | tuple):
        return _of_list(values, wording)
    if values is None or isinstance(values, str | bytes) or not hasattr(values, "__array__"):
        what = "nothing" if values is None else f"a value of the type {type(values).__name__}"
        raise UserError(f"{wording.subject} {what}; {wording.verb} a list or an array with {wording.labels}.")
    array = np.asarray(values)
    if array.ndim != 1:
        raise UserError(
            f"{wording.subject} an array of shape {array.shape}; {wording.expected}, shape (n_{wording.unit}s,)."
        )
    kind = array.dtype.kind
    if kind in "OU":
        return _of_list(array.tolist(), wording)
    if kind == "b":
        return array, np.ones(len(array), dtype=bool)
    if kind in "iuf":
        return _whole_numbers(array, wording)
    raise UserError(f"{wording.subject} {_KINDS.get(kind, f'an array of {array.dtype}')}; {wording.expected}.")


def _whole_numbers(array: NDArray[Any], wording: LabelWording) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    is_known = np.isfinite(array) & (array >= 0)
    known = array[is_known]
    if array.dtype.kind == "f" and len(odd := known[known != np.round(known)]):
        raise UserError(
            f"{wording.subject} numbers with a fraction, such as {odd[0]}; {wording.expected}, {wording.way_out}."
        )
    if len(known) and known.max() >= _TOO_HIGH:
        raise _too_high(known.max(), wording)
    whole = np.full(len(array), -1, dtype=np.int64)
    whole[is_known] = known.astype(np.int64)
    return whole, is_known


def _too_high(number: Any, wording: LabelWording) -> UserError:
    return UserError(f"{wording.subject} {number!s:.60}, and whole numbers have to be below 2^63; {wording.expected}.")


def _of_list(values: Sequence[Any], wording: LabelWording) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    is_known = np.array([text_of(value) is not None for value in values], dtype=bool)
    known = [value for value, known_value in zip(values, is_known.tolist(), strict=True) if known_value]
    kinds = {_kind(value) for value in known}
    if kinds <= {str}:
        labels = np.full(len(values), "", dtype=object)
        labels[is_known] = [label_of(value) for value in known]
        for label in set(labels.tolist()):
            check_label(label, f"{wording.subject} a label that")
        return labels, labels != ""
    if kinds == {bool}:
        label_values = np.zeros(len(values), dtype=bool)
        label_values[is_known] = known
        return label_values, is_known
    if kinds <= {int, float}:
        numbers = np.full(len(values), -1, dtype=np.float64 if float in kinds else object)
        numbers[is_known] = known
        if float in kinds:
            return _whole_numbers(numbers, wording)
        if (highest := max(known)) >= _TOO_HIGH:
            raise _too_high(highest, wording)
        label_values = np.array([max(int(number), -1) for number in numbers.tolist()], dtype=np.int64)
        return label_values, label_values >= 0
    first_kind = _kind(known[0])
    at = next(
        i for i, value in enumerate(values) if is_known[i] and (_kind(value) is not first_kind or first_kind is None)
    )
    odd = values[at]
    mixed = f", where others are {type(known[0]).__name__}" if first_kind is not None else ""
    raise UserError(
        f"{wording.subject} {odd!r:.60} of the type {type(odd).__name__} for {wording.unit} {at}, counted from 0"
        f"{mixed}; {wording.expected}."
    )


def _kind(value: Any) -> type | None:
    """Return the kind of a label, str, bool, int or float; None for other types."""
    if isinstance(value, str):
        return str
    if isinstance(value, bool | np.bool_):
        return bool
    if isinstance(value, int | np.integer):
        return int
    return float if isinstance(value, float | np.floating) else None


def number_requirement(unit: str) -> str:
    """Return the requirement on labels that are numbers, for messages."""
    return f"one finite number for each {unit}, None where there is none"


def numbers_of(values: Any, wording: LabelWording) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the numbers to predict, shape (n,), and a mask of the numbers present, which are finite.

    `values` is as for `class_values`; a value that is neither a number nor None raises `UserError`.
    """
    expected = f"{wording.verb} {number_requirement(wording.unit)}"
    if values is None or isinstance(values, str | bytes) or not hasattr(values, "__len__"):
        what = "nothing" if values is None else f"a value of the type {type(values).__name__}"
        raise UserError(
            f"{wording.subject} {what}; {wording.verb} a list or an array with {number_requirement(wording.unit)}."
        )
    if isinstance(values, np.ma.MaskedArray):
        values = values.tolist()
    array = np.asarray(values, dtype=object if isinstance(values, list | tuple) else None)
    if array.ndim != 1:
        raise UserError(f"{wording.subject} an array of shape {array.shape}; {expected}, shape (n_{wording.unit}s,).")
    if array.dtype.kind not in "iuf":
        cells = array.tolist()
        for i, value in enumerate(cells):
            if text_of(value) is None:
                cells[i] = None
            elif isinstance(value, bool | np.bool_) or not isinstance(value, Real):
                raise UserError(
                    f"{wording.subject} {value!r:.60} of the type {type(value).__name__} for {wording.unit} {i}, "
                    f"counted from 0, and `numbers` says that labels are numbers; {expected}."
                )
        array = np.array(cells, dtype=object)
    numbers = array.astype(np.float64)
    return numbers, np.isfinite(numbers)


def unit_of(task: TokenTask) -> str:
    """Return the unit that has a label: token, sentence or span."""
    if isinstance(task, SpanTask):
        return "span"
    return "sentence" if isinstance(task, SentenceTask) else "token"


def labels_words(task: TokenTask, tokens: Tokens, corpus: Corpus) -> bool:
    """Return whether a task labels words, so that no word has two labels and no special token has a label."""
    if isinstance(task, SentenceTask):
        return False
    if task.word_means:
        return True
    labelled = has_label(labels_of(task, tokens, corpus))
    of_words = np.bincount(tokens.first_pieces.cumsum()[labelled & ~tokens.special])
    return not labelled[tokens.special].any() and of_words.max(initial=0) == 1


def sentences_of(task: TokenTask, tokens: Tokens, corpus: Corpus) -> NDArray[np.integer[Any]]:
    """Return the sentence of each label of a task, shape (n_tokens,), (n_sentences,) or (n_spans,)."""
    if isinstance(task, SpanTask):
        return np.array([span.sentence for span in task.spans_of(corpus)], dtype=np.int64)
    return np.arange(tokens.n_sentences) if isinstance(task, SentenceTask) else tokens.sentences


def on_side(
    task: TokenTask, labels: Labels, tokens: Tokens, corpus: Corpus, splits: Sequence[Split], side: Split
) -> NDArray[np.bool_]:
    """Return whether each of a task's labels belongs to a side; `splits` has the side of each sentence."""
    mask = np.array([split == side for split in splits])[sentences_of(task, tokens, corpus)]
    return mask & task.may_be_on(side, labels) if isinstance(task, Task) else mask


def labels_of(task: TokenTask, tokens: Tokens, corpus: Corpus) -> Labels:
    """Return a task's labels as int64, as an object array of strings, or as float64 where it has numbers.

    The shape is (n_tokens,), or (n_sentences,) for a task of sentences. True and false are left out at special tokens
    and at later pieces of words; labels of sentences are left out where a sentence has only special tokens. Tokens that
    are set aside have no label.

    Raises:
        UserError: If the task does not return one label for each token or sentence, or sentences are to be pooled by a
            first token that is not special.
    """
    n, wording = len(sentences_of(task, tokens, corpus)), _wording_of(task, "labels")
    values = task.labels(tokens, corpus)
    token_labels: Labels
    token_labels, is_example = (numbers_of if predicts_numbers(task) else class_values)(values, wording)
    if len(token_labels) != n:
        is_without = wording.unit == "token" and len(token_labels) == n - int(tokens.special.sum())
        special = " (special tokens count)" if is_without else ""
        expected = f"return {number_requirement(wording.unit)}" if predicts_numbers(task) else wording.expected
        raise UserError(
            f"{wording.subject} {len(token_labels)} labels for the {n} {wording.unit}s of `{corpus.name}`{special}; "
            f"{expected}."
        )
    if isinstance(task, SpanTask):
        spans = task.spans_of(corpus)
        for i in range(task.n_spans):
            _, first, after = rows_of_spans(spans, tokens, bool(i)).T
            is_example = is_example & (first < after)
    elif isinstance(task, SentenceTask):
        if task.pooling == "cls" and not tokens.included.all():
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
        is_example = is_example & (tokens.first_pieces if token_labels.dtype.kind == "b" else tokens.included)
    if token_labels.dtype.kind == "b":
        token_labels = token_labels.astype(np.int64)
        token_labels = token_labels if task.ordinal else np.array(["False", "True"], dtype=object)[token_labels]
    absent: Any = {"O": "", "f": np.nan}.get(token_labels.dtype.kind, -1)
    token_labels = np.where(is_example, token_labels, absent)
    if task.ordinal and token_labels.dtype.kind == "f":
        raise UserError(
            f"the task {type(task).__name__} has `numbers = True` and `ordinal = True`; its labels are either numbers "
            "to predict as such, or classes with distances: leave one out."
        )
    if task.ordinal and token_labels.dtype.kind == "O":
        raise UserError(
            f"{wording.subject} text, and its `ordinal` says that labels are numbers; "
            "return whole numbers, or set `ordinal = False`."
        )
    return token_labels


def classes_of(task: TokenTask, labels: Labels, n_sentences: int) -> Labels:
    """Return the labels that a task makes classes, ascending, in the form of the labels.

    `labels` are of the training tokens, as of `labels_of`; classes of another type raise `UserError`.
    """
    wording = _wording_of(task, "classes")
    chosen = task.classes(labels, n_sentences)
    if isinstance(chosen, Sequence) and not len(chosen):
        return labels[:0]
    values, is_known = class_values(chosen, wording)
    class_labels = np.unique(values[is_known])
    if len(class_labels) and class_labels.dtype.kind != labels.dtype.kind:
        raise UserError(f"{wording.subject} values of another type than `labels`; return some of the labels.")
    return class_labels.astype(labels.dtype)


def _wording_of(task: TokenTask, method: str) -> LabelWording:
    way_out = "or set `numbers = True` to have numbers predicted"
    return LabelWording(f"the task {type(task).__name__}: `{method}` returned", "return", unit_of(task), way_out)


GROUP = "probing.tasks"

# Modules of files that were named by their path begin with this.
_OF_A_FILE = "probing_task_file_"


def installed() -> dict[str, EntryPoint]:
    """Return the installed tasks, by name."""
    return {entry.name: entry for entry in entry_points(group=GROUP)}


# What a task is called elsewhere.
ELSEWHERE = {
    "pos": "upos", "pos_tag": "upos", "part_of_speech": "upos", "dep": "deprel", "dependency": "deprel",
    "ner": "label", "tag": "label", "tags": "label", "classification": "sentence_label", "sentiment": "sentence_label",
}  # fmt: skip


def names_class(task: str) -> bool:
    """Return whether a task's name names a class in a file or a module."""
    return ":" in task or task.endswith(".py")


def load_task(task: str | TokenTask, options: Mapping[str, Any] | None = None) -> TokenTask:
    """Build a task from its options, whose types are checked.

    Args:
        task: The name of an installed task, `FILE.py:CLASS`, `MODULE:CLASS`, or an object, which is returned.
        options: The options of a named task; an object has none.

    Raises:
        UserError: If there is no such task, or an option is unknown or has the wrong type.
    """
    if not isinstance(task, str):
        _check_object(task, options or {})
        return task
    entries = installed()
    if task in entries:
        kind, name = entries[task].load(), task
    elif names_class(task):
        kind, name = _class_of(task), task.rpartition(":")[2]
    else:
        near = did_you_mean(task, entries, elsewhere=ELSEWHERE)
        raise UserError(
            f"`--task {task}` is not installed{near}; tasks are {', '.join(sorted(entries)) or 'none'}, "
            "or FILE.py:CLASS for one of your own."
        )
    # The command line's own checks, so that a task's options behave like any other option.
    loaded = kind(**checked(kind, options or {}, f"the task {name}", OptionSource("--task_args.")))
    if missing := _missing(loaded):
        raise UserError(f"`--task {task}`: the class {name} is not a task, since it lacks {missing}.")
    return loaded


def described(task: str | TokenTask, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the options `task` and `task_args` that represent a task, or its name, in a run's configuration.

    An object is described by its class and the values of its fields: by the name of an installed task, by
    `MODULE:CLASS`, or by `FILE.py:CLASS` for a class of a script. Values that YAML cannot hold are described in words.
    `options` are of a named task.
    """
    if isinstance(task, str):
        return {"task": task, "task_args": dict(options or {})}
    _check_object(task, options or {})
    kind = type(task)
    of_class = f"{kind.__module__}:{kind.__qualname__}"
    names_of = [name for name, entry in installed().items() if entry.value.replace(" ", "") == of_class]
    names = [task_field.name for task_field in fields(task) if task_field.init] if is_dataclass(task) else [*vars(task)]
    return {
        "task": names_of[0] if names_of else f"{_place(kind)}:{kind.__qualname__}",
        "task_args": {name: _plain(getattr(task, name)) for name in names},
    }


def _check_object(task: Any, options: Mapping[str, Any]) -> None:
    if isinstance(task, type):
        raise UserError(
            f"`task`: expected a task's name or an object, found the class {task.__name__}; give `{task.__name__}()`."
        )
    if missing := _missing(task):
        raise UserError(
            f"`task`: expected a task's name or an object derived from probing.Task, found {task!r:.60}, "
            f"which lacks {missing}."
        )
    if options:
        raise UserError(
            f"`task_args`: these are the options of a task given by its name; the object {type(task).__name__}(...) "
            "has its own, so leave `task_args` out."
        )


def _missing(task: Any) -> str:
    """Return the attributes that a class or an object lacks to be a task, in words."""
    if getattr(task if isinstance(task, type) else type(task), "labels", None) is Task.labels:
        return "a method `labels` of its own"
    # The last two may be fields that only an object has, so a class is not checked for them.
    needed = ("labels", "classes", "ordinal", "word_means")[: 2 if isinstance(task, type) else None]
    lacking = [f"`{name}`" for name in needed if not hasattr(task, name)]
    return " and ".join(filter(None, [", ".join(lacking[:-1]), *lacking[-1:]]))


def _class_of(class_path: str) -> type:
    """Return the class that `FILE.py:CLASS` or `MODULE:CLASS` names.

    A class that is not a task is refused, so that a configuration cannot have an arbitrary class instantiated.
    """
    place, _, name = class_path.rpartition(":") if ":" in class_path else (class_path, "", "")
    module = _module_of_file(Path(place), class_path) if place.endswith(".py") else _module(place, class_path)
    task_names = [
        cls.__name__
        for cls in vars(module).values()
        if isinstance(cls, type) and cls.__module__ == module.__name__ and not _missing(cls)
    ]
    example = f"; give {place}:{task_names[0]}" if task_names else "; derive one from probing.Task"
    if not name:
        raise UserError(
            f"`--task {class_path}`: expected FILE.py:CLASS, and the name of the class is missing{example}."
        )
    target: Any = module
    for part in name.split("."):
        target = getattr(target, part, None)
    if target is None and place == "__main__":
        raise UserError(
            f"`--task {class_path}`: the class {name} was of a notebook or a session that is gone; write it to a file "
            "and give FILE.py:CLASS."
        )
    if target is None:
        near = did_you_mean(name, task_names)
        raise UserError(f"`--task {class_path}`: {place} has no class {name}{near}{example}.")
    if not isinstance(target, type):
        raise UserError(f"`--task {class_path}`: {name} is not a class{example}.")
    if missing := _missing(target):
        raise UserError(f"`--task {class_path}`: the class {name} is not a task, since it lacks {missing}{example}.")
    return target


def _module_of_file(path: Path, class_path: str) -> ModuleType:
    """Import a file as a module; the same content is imported once."""
    try:
        path = path.expanduser().resolve(strict=True)
        with open_file(path, most=DOCUMENT) as file:
            content = file.read()
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"`--task {class_path}`: {path} cannot be read ({reason}); give FILE.py:CLASS.") from None
    name = _OF_A_FILE + sha256(f"{path}\0".encode() + content).hexdigest()[:16]
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up here while it is imported.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, UserError) or not isinstance(error, Exception):
            raise
        raise UserError(f"`--task {class_path}`: {path} cannot be imported ({_where(error, path)}).") from error
    return module


def _module(name: str, class_path: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"`--task {class_path}`: the module {name} cannot be imported ({type(error).__name__}: "
            f"{as_clause(error)}); install it, or give FILE.py:CLASS."
        ) from error


def _where(error: Exception, path: Path) -> str:
    """Return an error of a file with its line, as a clause."""
    if isinstance(error, SyntaxError):
        return f"line {error.lineno} is not Python: {error.msg}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    at = f" in line {lines[-1]}" if lines else ""
    return f"{type(error).__name__}{at}: {as_clause(error)}"


def _place(kind: type) -> str:
    """Return a class's module for a configuration: its name, or its file if it cannot be imported by its name."""
    name = kind.__module__
    file = getattr(sys.modules.get(name), "__file__", None)
    if file and (name == "__main__" or name.startswith(_OF_A_FILE)):
        path = Path(file).resolve()
        return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
    return name


def _plain(value: Any) -> Any:
    """Return a value as YAML holds it; others as text."""
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(element) for element in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(element) for key, element in value.items()}
    return f"{value!r:.200}" if not inspect.isroutine(value) else value.__qualname__


# Tasks that read a column that the user names.
_OF_ANY_COLUMN = ("column", "sentence_label")


def short_name(config: Mapping[str, Any]) -> str:
    """Return the name of a run's task without file or module; of a task of any column, the column unless `label`."""
    task = str(config["task"])
    column = (config.get("task_args") or {}).get("column")
    return str(column) if task in _OF_ANY_COLUMN and column not in (None, "label") else task.rpartition(":")[2]


def label_name(config: Mapping[str, Any]) -> str:
    """Return the name of what a run's probes predict, for titles: `--label_name`, or else that of the task."""
    return str(config.get("label_name") or short_name(config))


def task_in_words(config: Mapping[str, Any]) -> str:
    """Return `label_name` as words of a sentence."""
    return label_name(config).replace("_", " ")


# Most characters of `--label_name`, which stands in the titles of figures.
LONGEST_LABEL_NAME = 60


def label_name_problems(name: str | None) -> list[str]:
    """Return the problems with `--label_name`."""
    if name is None or (name.strip() and name.isprintable() and len(name) <= LONGEST_LABEL_NAME):
        return []
    return [f"`--label_name {name!r}`: expected a name of 1 to {LONGEST_LABEL_NAME} printable characters"]


# What stands for the token itself.
TOKEN = "token"


@dataclass(frozen=True)
class Covariate:
    """A covariate, whose values are fixed, as typed: `token`, a task, `FILE.py:CLASS`, or a column of the corpus.

    `task` is the task whose labels are fixed; None for the token itself and for columns.
    """

    typed: str
    task: TokenTask | None = None

    @classmethod
    def of(cls, typed: str | None) -> Covariate | None:
        """Return the covariate of an option's value, None without value; `UserError` if a task cannot be loaded."""
        if typed is None:
            return None
        if typed not in installed() and not names_class(typed):
            return cls(typed)
        try:
            return cls(typed, load_task(typed))
        except UserError as error:
            raise UserError(error.original.replace("`--task ", "`--control_for ")) from None

    def task_in(self, corpus: Corpus, of: TokenTask) -> TokenTask | None:
        """Return the task whose labels are fixed in a corpus, while the task `of` is probed; None for the token itself.

        Unknown tasks and columns, tasks of numbers, and tasks of tokens with `of` of sentences raise `UserError`.
        """
        typed, unit = f"`--control_for {self.typed}`", unit_of(of)
        if self.typed == TOKEN:
            if unit != "token":
                raise UserError(f"{typed}: the task labels {unit}s, which have many; give a label of {unit}s.")
            return None
        task = self.task
        if task is None and corpus.column_with(self.typed):
            task = load_task("column", {"column": self.typed})
        elif task is None and self.typed in corpus.sentence_columns:
            task = load_task("sentence_label", {"column": self.typed})
        if task is None:
            columns = sorted({*corpus.columns, *corpus.sentence_columns})
            raise UserError(
                f"{typed} is neither token, nor a task ({', '.join(sorted(installed()))}, FILE.py:CLASS), nor a column "
                f"of `{corpus.name}`, which has {', '.join(columns) or 'none'}."
            )
        if predicts_numbers(task):
            raise UserError(f"{typed}: of its numbers hardly two are equal; give a task of classes.")
        if unit_of(task) not in {"sentence", unit}:
            raise UserError(
                f"{typed}: it labels {unit_of(task)}s, and the probed task {unit}s; give a label of {unit}s."
            )
        return task
