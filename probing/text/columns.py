"""Columns of words, sentences and labels in a source, identified by all cells."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, pairwise
from numbers import Integral, Real
from typing import Any, NamedTuple

from probing.errors import UserError, did_you_mean
from probing.results import listed, shortened

# A cell without a value, as CoNLL-U writes it.
UNSPECIFIED = "_"

_BELOW_ZERO = re.compile(r"-[0-9]+")

# A number as it is usually written, without zeros before it.
_PLAIN_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?")

# What pandas has in the place of missing values, by name, since pandas need not be installed.
_MISSING_TYPES = ("NAType", "NaTType")

# Whole numbers up to here are exact as floating-point numbers.
_EXACT = 2.0**53


def text_of(value: Any) -> str | None:
    """Return a cell (text, number, truth value, or None, also of NumPy) as text; None where it is missing."""
    if isinstance(value, Real) and not isinstance(value, Integral):
        value = float(value)
        if not math.isfinite(value):
            return None
        value = int(value) if value.is_integer() and abs(value) <= _EXACT else value
    text = "" if value is None or type(value).__name__ in _MISSING_TYPES else str(value).strip()
    return None if text in ("", UNSPECIFIED) else text


def label_of(value: Any) -> str:
    """Return the class in a cell, as text; empty where there is none."""
    text = text_of(value)
    return "" if text is None or _BELOW_ZERO.fullmatch(text) else text


# Columns of CoNLL-U whose cells have values by key, such as `Number=Sing|Person=3`.
KEYED = ("feats", "misc")


def features(cell: str) -> dict[str, str]:
    """Return the values in a cell by their keys; parts without a key are left out."""
    pairs = (part.partition("=") for part in cell.split("|"))
    return {key: value for key, equals, value in pairs if key and equals}


def number_of(value: Any) -> float | None:
    """Return the number in a cell; None where it is missing; `ValueError` for words, true and false."""
    if isinstance(value, bool):
        raise ValueError(f"{value!r} is not a number")
    if (text := text_of(value)) is None:
        return None
    if "_" in text:  # Python reads 1_000 as a number
        raise ValueError(f"{text!r} is not a number")
    number = float(text)
    return number if math.isfinite(number) else None


def truth_of(value: Any) -> bool | None:
    """Return the truth value of T, True, 1, F, False or 0, None if missing (as for numbers); else `ValueError`."""
    label = label_of(value).casefold()
    if label in ("t", "true", "f", "false"):
        return label.startswith("t")
    if (number := score_of(label)) in (None, 0, 1):
        return None if number is None else bool(number)
    raise ValueError(f"{value!r} is neither yes nor no")


def score_of(value: Any) -> float | None:
    """Return a nonnegative number, None if missing or a whole number below 0 such as -100; else `ValueError`."""
    number = number_of(value)
    if number is None or number >= 0:
        return number
    if not number.is_integer():
        raise ValueError(f"{value!r} is below 0")
    return None


def check_label(label: str, where: str) -> None:
    """Raise `UserError` for a label with a lone surrogate or U+0000, which other programs do not preserve."""
    check_text(label, where)
    if "\0" in label:
        raise UserError(f"{where} has the character U+0000 ({label[:60]!a}), which ends text elsewhere; remove it.")


def check_text(text: str, where: str) -> None:
    """Raise `UserError`, which begins with `where`, for text that has a lone surrogate, which UTF-8 cannot encode."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(
            f"{where} has one half of a character, a lone surrogate ({text[error.start]!a} in {text[:60]!a}), which "
            "UTF-8 cannot hold; write the whole character, or remove it."
        ) from None


# Name of the spans of a sentence in a .jsonl file, as jiant has them, and of the column of sentences that holds them.
TARGETS = "targets"


class Target(NamedTuple):
    """A labelled span of a sentence, its first character and the one after the last; a pair has a second span."""

    first: tuple[int, int]
    second: tuple[int, int] | None
    label: str


# A word that begins a new document in files of CoNLL-2003.
BEGINS_DOCUMENT = "-DOCSTART-"


@dataclass(frozen=True)
class Rows:
    """The sentences of a source, as text or as lists of words, with their annotations.

    Args:
        columns: For each column and sentence, a value for each word, as in the source.
        sentence_columns: For each column, a value for each sentence, as in the source.
        documents: Number of documents begun up to each sentence; None if only words mark them.
        places: The source's name of the column of sentences or words (key ""), and of columns renamed here.
        sides: The side of the split of each sentence, where the source divides them.
    """

    texts: Sequence[Any]
    columns: Mapping[str, Sequence[Sequence[Any]]] = field(default_factory=dict)
    sentence_columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    n_empty: int = 0
    documents: Sequence[int] | None = None
    places: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    sides: Sequence[str] = ()

    @property
    def are_words(self) -> bool:
        """Whether sentences are lists of words."""
        return bool(self.texts) and isinstance(self.texts[0], list)


def values_of_words(
    columns: Mapping[str, Sequence[Iterable[Any]]], flag_text: str
) -> dict[str, tuple[tuple[str, ...], ...]]:
    """Return the values of words as text, for each column and sentence, `_` if missing; refuse unusable labels."""

    def texts(column: str, rows: Sequence[Iterable[Any]]) -> tuple[tuple[str, ...], ...]:
        different = {(type(value), value) for row in rows for value in row}
        known = {key: text_of(key[1]) or UNSPECIFIED for key in different}
        for text in known.values():
            check_label(text, f"{flag_text}: a value of the column {column}")
        spelt = _same_spelling(known.values())
        known = {key: spelt.get(text, text) for key, text in known.items()}
        return tuple(tuple(known[type(value), value] for value in row) for row in rows)

    return {column: texts(column, rows) for column, rows in columns.items()}


def values_of_sentences(columns: Mapping[str, Sequence[Any]], flag_text: str) -> dict[str, tuple[Any, ...]]:
    """Return the values of sentences by column: stripped text, a finite number, true or false; None if missing."""

    def cells(column: str, rows: Sequence[Any]) -> tuple[Any, ...]:
        texts = [text_of(value) for value in rows]
        for text in {text for text, value in zip(texts, rows, strict=True) if text and isinstance(value, str)}:
            check_label(text, f"{flag_text}: a value of the column {column}")
        spelt = _same_spelling(filter(None, texts))
        return tuple(
            spelt.get(text, text) if isinstance(value, str) and text else value if text is not None else None
            for text, value in zip(texts, rows, strict=True)
        )

    return {column: cells(column, rows) for column, rows in columns.items()}


def _same_spelling(texts: Iterable[str]) -> dict[str, str]:
    """Return the spelling of a column of numbers only (`1` for `1.0`) or truth values only (`True` for `TRUE`)."""
    different = set(texts) - {UNSPECIFIED}
    if all(map(_PLAIN_NUMBER.fullmatch, different)):
        return {text: text.partition(".")[0] for text in different if not text.partition(".")[2].strip("0")}
    if {text.casefold() for text in different} <= {"true", "false"}:
        return {text: text.capitalize() for text in different}
    return {}


# Names of columns, in any case. In a data set, running text goes before its words; in JSON lines it is the reverse.
WORDS, TEXT = ("words", "tokens", "word", "token", "form"), ("text", "sentence")

LABEL = ("label", "labels")

# Further names in the first line of a file of words.
_TAGS = {"tag", "tags", "pos", "upos", "xpos", "ner", "chunk", "class", "pos_tag", "pos_tags", "ner_tag", "ner_tags"}

# Words below which a file is too small to tell anything from; its first column then has the words.
_FEW = 20

# Of numbers with more values than this, none is a class where another column has classes.
_MOST_NUMBERS = 10

_ENUMERATED = re.compile(r"(.*?)(\d+)", re.DOTALL)

_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")

# A tag of chunks or names, in capitals, or a feature with its value.
_TAG = re.compile(r"[BIESLUO](-.+)?|[^a-z\s]*[A-Z][^a-z\s]*|\S+[=|]\S*")

# Spans in brackets, as CoNLL-2012 has them: `(TOP(S(NP*`, `(12)`, and `*` or `-` where none begins or ends.
_SPAN = re.compile(r"[^()]*[()].*|[*\-]")

# Scripts that put no blanks between words, and how long a sentence without blanks is at least.
_WITHOUT_BLANKS = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")

_SENTENCE = 6


class ColumnSelection(NamedTuple):
    """Columns of text and of labels that the user names, by name or by number from 1; None to choose them.

    `is_word` is whether `text` is a column of words; `flag_text` and `example`, such as `d.conll?`, are for messages.
    """

    flag_text: str
    text: str | None = None
    label: str | None = None
    is_word: bool = False
    example: str = ""

    @property
    def n_columns(self) -> int:
        """Number of the last column that is read where the user names both by number; otherwise 0."""
        numbers = [int(column) for column in (self.text, self.label) if column is not None and column.isdecimal()]
        return max(numbers) if len(numbers) == 2 else 0

    def fits(self, cells: Sequence[str], n: int) -> bool:
        """Return whether a line has a cell for each column, or, where both are named, for the columns read."""
        return len(cells) == n or len(cells) > n == self.n_columns

    def way_out(self, settings: str) -> str:
        """Return advice for ambiguous columns, as a clause."""
        return f"name the columns to read, as in `{self.example}{settings}`"

    def named(self, columns: Sequence[ColumnSummary], value: str | None, setting: str) -> ColumnSummary | None:
        """Return the column of a name or a number, None without; raise `UserError` if there is no such column."""
        if value is None:
            return None
        names = [column.name for column in columns]
        if value in names:
            return columns[names.index(value)]
        by_number = {str(column.number): column for column in columns if column.number}
        if value in by_number:
            return by_number[value]
        raise UserError(
            f"`{self.flag_text}`: there is no column {value}{did_you_mean(value, names)}; give one of "
            f"{', '.join(names)} as {setting}=."
        )


@dataclass(frozen=True)
class ColumnSummary:
    """A column, and properties of its cells; its name is its number, from 1, if the source gives none.

    `rows` has for each sentence a value for each word; for values of sentences, a single row of all. `number` is the
    place of the column among all of a file, from 1; 0 for columns that have no order, such as keys of JSON.
    """

    name: str
    rows: Sequence[Sequence[Any]]
    is_named: bool = True
    number: int = 0

    @property
    def place(self) -> str:
        """Name of the column in the message about the columns read."""
        return f"column {self.name}"

    @property
    def shown(self) -> str:
        """The column with two of its values, for messages."""
        return f"{self.name} ({', '.join(shortened(text, 20) for text in list(self.counts)[:2]) or 'empty'})"

    @cached_property
    def counts(self) -> Counter[str]:
        """Frequency of each value, as text; missing values are left out."""
        counts: Counter[str] = Counter()
        for value, n in Counter(chain.from_iterable(self.rows)).items():
            if (text := text_of(value)) is not None:
                counts[text] += n
        return counts

    @property
    def n_types(self) -> int:
        """Number of different values."""
        return len(self.counts)

    @cached_property
    def n_cells(self) -> int:
        """Number of cells."""
        return sum(map(len, self.rows))

    @cached_property
    def are_numbers(self) -> bool:
        """Whether all values are numbers."""
        return bool(self.counts) and all(_NUMBER.fullmatch(text) for text in self.counts)

    @cached_property
    def are_scores(self) -> bool:
        """Whether all values are numbers, of which some have a fraction or many differ."""
        has_fraction = self.are_numbers and any(not float(text).is_integer() for text in self.counts)
        return self.are_numbers and (has_fraction or self.n_types > min(_MOST_NUMBERS, self.n_cells / 4))

    @cached_property
    def are_features(self) -> bool:
        """Whether nearly all values are features with their values, such as `Number=Sing|Person=3`."""
        return bool(self.counts) and sum("=" in text for text in self.counts) >= 0.9 * self.n_types

    @cached_property
    def are_tags(self) -> bool:
        """Whether nearly all values are spelt like tags."""
        spelt = [text for text in self.counts if any(map(str.isalpha, text))]
        return bool(spelt) and sum(bool(_TAG.fullmatch(text)) for text in spelt) >= 0.9 * len(spelt)

    @cached_property
    def are_spans(self) -> bool:
        """Whether all values are brackets around spans of words, or none."""
        return self.n_types > 1 and all(_SPAN.fullmatch(text) for text in self.counts)

    @cached_property
    def counts_up(self) -> bool:
        """Whether its numbers, perhaps after equal letters, grow from cell to cell of a sentence."""
        split = {text: _ENUMERATED.fullmatch(text) for text in self.counts}
        if not split or sum(map(bool, split.values())) < 0.95 * len(split):
            return False
        n_pairs = n_growing = 0
        for row in self.rows if max(map(len, self.rows)) > 1 else [[*chain.from_iterable(self.rows)]]:
            for previous, other in pairwise(split.get(text_of(cell) or "") for cell in row):
                if previous is not None and other is not None and len(previous[2]) < 19 > len(other[2]):
                    n_pairs += 1
                    n_growing += previous[1] == other[1] and int(previous[2]) < int(other[2])
        return n_pairs > 0 and n_growing >= 0.95 * n_pairs

    @cached_property
    def is_same_in_sentence(self) -> bool:
        """Whether the words of a sentence share a value, and sentences have several, as with a sentence's number."""
        longer = [row for row in self.rows if len(row) > 1]
        return self.n_types > 1 and bool(longer) and sum(len(set(row)) == 1 for row in longer) >= 0.95 * len(longer)

    @property
    def may_be_words(self) -> bool:
        """Whether cells can be words: varied, and neither counts, numbers, spans nor constant in a sentence."""
        return self.n_types > 1 and not (
            self.counts_up or self.are_numbers or self.are_spans or self.is_same_in_sentence
        )

    @property
    def is_beside_labels(self) -> bool:
        """Whether the cells are no labels if another column can have them."""
        return self.are_scores or self.are_spans or self.are_features or self.is_same_in_sentence

    @cached_property
    def are_sentences(self) -> bool:
        """Whether over half of the values are several words, or long in a script without blanks, and differ."""
        several = sum(n for text, n in self.counts.items() if _is_sentence(text))
        return 2 * several > self.counts.total() and 2 * self.n_types > self.counts.total()

    @property
    def recurs(self) -> bool:
        """Whether a value occurs twice or more on average."""
        return 1 <= 2 * self.n_types <= self.n_cells

    def resembles(self, other: ColumnSummary) -> bool:
        """Return whether most cells begin like another column's cells, as lemmas and stems do."""
        pairs = Counter(zip(chain.from_iterable(self.rows), chain.from_iterable(other.rows), strict=True))
        alike = sum(n for (first, two), n in pairs.items() if str(first)[:2].casefold() == str(two)[:2].casefold())
        return alike >= 0.6 * self.n_cells


def _is_sentence(text: str) -> bool:
    return len(text.split()) > 1 or (len(text) >= _SENTENCE and bool(_WITHOUT_BLANKS.search(text)))


def by_name(columns: Iterable[ColumnSummary], names: Sequence[str]) -> ColumnSummary | None:
    """Return the column that has the first of these names, in any case; None without."""
    listed = [column for column in columns if column.is_named]
    return next((column for name in names for column in listed if column.name.strip().casefold() == name), None)


def is_header(cells: Sequence[str], others: Sequence[Sequence[str]]) -> bool:
    """Return whether the first line of a file of words names its columns; `others` are the cells of later lines."""
    names = [cell.strip().casefold() for cell in cells]
    has_names = any(name in (*WORDS, *TEXT) for name in names) and any(name in _TAGS or name in LABEL for name in names)
    at = [i for i, name in enumerate(names) if name in _TAGS]
    return has_names and not any(row[i] == cells[i] for row in others for i in at if i < len(row))


def choose_words(columns: Sequence[ColumnSummary], selection: ColumnSelection) -> ColumnSummary:
    """Return the column of words; raise `UserError` if it is ambiguous.

    It is the column with such a name. Else it is, of the columns that can be words, the column with the most different
    values by far, or whose values are not spelt like tags; of words and their lemmas, the words. A file of two columns,
    or of few words, begins with the words unless that cannot be.
    """
    if (chosen := selection.named(columns, selection.text, "word")) or (chosen := by_name(columns, WORDS)):
        return chosen
    labels = selection.named(columns, selection.label, "label")
    nonempty = [column for column in columns if column.n_types and column is not labels]
    if len(nonempty) == 2 and labels is None and (chosen := _words_of_two(*nonempty)):
        return chosen
    may = [column for column in nonempty if column.may_be_words]
    most = max((column.n_types for column in may), default=0)
    near = [column for column in may if 2 * column.n_types >= most]
    near = [column for column in near if not column.are_tags] or near
    # Of words and lemmas the words have endings, and capitals; the first one where several are alike.
    first = max(near, key=_spelling, default=None)
    if first and all(column is first or column.resembles(first) for column in near):
        return first
    if nonempty and nonempty[0].n_cells < _FEW and not (nonempty[0].counts_up and nonempty[0].are_numbers):
        return nonempty[0]
    problem = f"{_named(near)} may be the words" if near else "no column looks like words"
    raise UserError(
        f"`{selection.flag_text}`: {problem}, of {_named(columns)}; {selection.way_out(_example(columns, near))}."
    )


def _words_of_two(first: ColumnSummary, second: ColumnSummary) -> ColumnSummary | None:
    """Return the words of a file of two columns: the first, unless only the second can be; None if ambiguous."""
    is_open = second.may_be_words and second.n_types > first.n_types and first.n_cells >= _FEW
    if first.counts_up and not first.may_be_words and second.may_be_words and second.n_types > 2:
        return None if first.are_numbers or first.n_cells >= _FEW else first
    if first.is_same_in_sentence and 2 * first.n_types > len(first.rows) and second.may_be_words:
        return None  # a number of each sentence
    if not is_open or first.resembles(second):
        return first
    is_clear = not first.may_be_words or first.are_tags > second.are_tags or second.n_types >= 1.5 * first.n_types
    return second if is_clear else None


def _spelling(column: ColumnSummary) -> tuple[int, int, int]:
    """Return the numbers of different values, of their letters, and of capitals."""
    letters = "".join(column.counts)
    return column.n_types, len(letters), sum(map(str.isupper, letters))


def choose_labels(
    columns: Sequence[ColumnSummary], words: ColumnSummary, selection: ColumnSelection, are_in_order: bool = False
) -> ColumnSummary | None:
    """Return the column of labels of words; None where columns have names, of which the user can give one.

    It is the column with such a name, else the only column that looks like labels: neither missing nor constant, a
    count, a number of a text or a sentence, lemmas, scores, features, or brackets around spans. If several do where
    columns `are_in_order`, as in a file of cells, it is the last. Other cases raise `UserError`.
    """
    if (chosen := selection.named(columns, selection.label, "label")) or (chosen := by_name(columns, LABEL)):
        return chosen
    others = [column for column in columns if column is not words]
    nonempty = [column for column in others if column.n_types]
    vary = [column for column in nonempty if column.n_types > 1 and not column.counts_up]
    candidates = [column for column in vary if not (column.is_beside_labels or _are_like(column, words))]
    last = next((column for column in reversed(columns) if column.n_types), words)
    if (are_in_order and last in candidates) or len(candidates or vary) == 1:
        return (candidates or vary)[-1]
    if len(others) == 1 and not (others[0].counts_up and words.n_cells >= _FEW):
        return others[0]
    if words.is_named:
        return None
    several = f"{_named(candidates or vary)} may have" if candidates or vary else "none has"
    example = _example(columns, [words], candidates or vary)
    raise UserError(
        f"`{selection.flag_text}`: the words are {_named([words])}, and {several} the labels; "
        f"{selection.way_out(example)}."
    )


def _are_like(column: ColumnSummary, words: ColumnSummary) -> bool:
    """Return whether cells are forms of the words, such as lemmas, or nearly as many different values."""
    is_open = words.n_cells >= _FEW and not (column.are_tags or column.are_numbers)
    return column.resembles(words) or (is_open and column.n_types > 0.7 * words.n_types)


def _named(columns: Sequence[ColumnSummary]) -> str:
    """Return columns with examples of their cells, for messages."""
    return f"column{'s' * (len(columns) != 1)} {listed([column.shown for column in columns])}"


def _example(
    columns: Sequence[ColumnSummary], words: Sequence[ColumnSummary], labels: Sequence[ColumnSummary] = ()
) -> str:
    """Return settings that name plausible columns."""
    word = (*words, *columns)[0]
    label = next((column for column in (*reversed(labels), *reversed(columns)) if column is not word), word)
    return f"word={word.name}&label={label.name}"


def choose_sentences(columns: Sequence[ColumnSummary], selection: ColumnSelection) -> ColumnSummary | None:
    """Return the column of sentences: by name, else the only column whose cells are sentences; None if ambiguous."""
    if (chosen := selection.named(columns, selection.text, "text")) or (chosen := by_name(columns, TEXT)):
        return chosen
    candidates = [column for column in columns if column.are_sentences]
    return candidates[0] if len(candidates) == 1 else None


def label_of_sentences(columns: Sequence[ColumnSummary], selection: ColumnSelection) -> ColumnSummary | None:
    """Return the column of labels of sentences; None if it is ambiguous.

    It is the column with such a name, else the only one that does not count the sentences, or the only one with
    classes.
    """
    if (chosen := selection.named(columns, selection.label, "label")) or (chosen := by_name(columns, LABEL)):
        return chosen
    others = [column for column in columns if column.n_types and not (column.counts_up and column.n_cells > 2)]
    for candidates in (others, [column for column in others if column.recurs and column.n_types > 1]):
        if len(candidates) == 1:
            return candidates[0]
    return None


def with_label(columns: Mapping[str, Any], label: ColumnSummary | None) -> dict[str, Any]:
    """Return columns with the column of labels also under the name `label`, which tasks read."""
    return {**columns, LABEL[0]: columns[label.name]} if label and label.name in columns else dict(columns)
