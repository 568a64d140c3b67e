"""Rows of a source that has annotations, and what their cells say: a label, a number, or nothing."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

from probing.errors import UserError

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
    """Return a cell as text; None where it is missing.

    Args:
        value: Text, a number, true or false, or None; scalars of NumPy count as those of Python.
    """
    if isinstance(value, Real) and not isinstance(value, Integral):
        value = float(value)
        if not math.isfinite(value):
            return None
        value = int(value) if value.is_integer() and abs(value) <= _EXACT else value
    text = "" if value is None or type(value).__name__ in _MISSING_TYPES else str(value).strip()
    return None if text in ("", UNSPECIFIED) else text


def label_of(value: Any) -> str:
    """Return the class that a cell names, as text; empty where there is none."""
    text = text_of(value)
    return "" if text is None or _BELOW_ZERO.fullmatch(text) else text


def number_of(value: Any) -> float | None:
    """Return the number that a cell holds; None where it is missing.

    Raises:
        ValueError: If it holds something else, such as a word, true or false.
    """
    if isinstance(value, bool):
        raise ValueError(f"{value!r} is not a number")
    if (text := text_of(value)) is None:
        return None
    if "_" in text:  # Python reads 1_000 as a number
        raise ValueError(f"{text!r} is not a number")
    number = float(text)
    return number if math.isfinite(number) else None


def truth_of(value: Any) -> bool | None:
    """Return whether a cell says yes (T, True or 1) or no (F, False or 0); None where it is missing, as a number is.

    Raises:
        ValueError: If it holds something else.
    """
    label = label_of(value).casefold()
    if label in ("t", "true", "f", "false"):
        return label.startswith("t")
    if (number := score_of(label)) in (None, 0, 1):
        return None if number is None else bool(number)
    raise ValueError(f"{value!r} is neither yes nor no")


def score_of(value: Any) -> float | None:
    """Return the number that a cell holds where none is below 0; None where it is missing, and for -1 and -100 too.

    Raises:
        ValueError: If it holds something else, or a fraction below 0.
    """
    number = number_of(value)
    if number is None or number >= 0:
        return number
    if not number.is_integer():
        raise ValueError(f"{value!r} is below 0")
    return None


def check_label(label: str, where: str) -> None:
    """Refuse a label that files and other programs do not hold as it is.

    Args:
        label: The label.
        where: What it is, for the message.

    Raises:
        UserError: If it has a lone surrogate or U+0000.
    """
    check_text(label, where)
    if "\0" in label:
        raise UserError(f"{where} has the character U+0000 ({label[:60]!a}), which ends text elsewhere; remove it.")


def check_text(text: str, where: str) -> None:
    """Refuse text that no file can hold, because it has one half of a character.

    Args:
        text: A sentence, a word or a label.
        where: What it is, for the message: the option as the user typed it, and the place.

    Raises:
        UserError: If a surrogate has no partner.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(
            f"{where} has one half of a character, a lone surrogate ({text[error.start]!a} in {text[:60]!a}), which "
            "UTF-8 cannot hold; write the whole character, or remove it."
        ) from None


# A word that begins a new document in files of CoNLL-2003.
BEGINS_DOCUMENT = "-DOCSTART-"


@dataclass(frozen=True)
class Rows:
    """The sentences of a source with their annotations.

    Args:
        texts: The sentences, as text or as lists of words.
        columns: For each column and sentence, a value for each word, as the source has it.
        sentence_columns: For each column, a value for each sentence, as the source has it.
        n_empty: Number of rows that were left out because they have no text.
        documents: Number of documents begun up to each sentence; None where only words say it.
        places: What the source calls the column of sentences or words (under an empty name), and that of a column here
            if it has another name there.
        note: What else was chosen in reading it, as a clause.
    """

    texts: Sequence[Any]
    columns: Mapping[str, Sequence[Sequence[Any]]] = field(default_factory=dict)
    sentence_columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    n_empty: int = 0
    documents: Sequence[int] | None = None
    places: Mapping[str, str] = field(default_factory=dict)
    note: str = ""

    @property
    def are_words(self) -> bool:
        """Whether sentences are lists of words."""
        return bool(self.texts) and isinstance(self.texts[0], list)


def values_of_words(
    columns: Mapping[str, Sequence[Iterable[Any]]], typed: str
) -> dict[str, tuple[tuple[str, ...], ...]]:
    """Return the values of words as text, `_` where one is missing.

    Args:
        columns: For each column and sentence, a value for each word.
        typed: The option and its value, for messages.

    Raises:
        UserError: If a value has a lone surrogate or U+0000.
    """

    def texts(column: str, rows: Sequence[Iterable[Any]]) -> tuple[tuple[str, ...], ...]:
        different = {(type(value), value) for row in rows for value in row}
        known = {key: text_of(key[1]) or UNSPECIFIED for key in different}
        for text in known.values():
            check_label(text, f"{typed}: a value of the column {column}")
        spelt = _same_spelling(known.values())
        known = {key: spelt.get(text, text) for key, text in known.items()}
        return tuple(tuple(known[type(value), value] for value in row) for row in rows)

    return {column: texts(column, rows) for column, rows in columns.items()}


def values_of_sentences(columns: Mapping[str, Sequence[Any]], typed: str) -> dict[str, tuple[Any, ...]]:
    """Return the values of sentences: text without blanks around it, a finite number, true or false; None if missing.

    Args:
        columns: For each column, a value for each sentence.
        typed: The option and its value, for messages.

    Raises:
        UserError: If a value has a lone surrogate or U+0000.
    """

    def cells(column: str, rows: Sequence[Any]) -> tuple[Any, ...]:
        texts = [text_of(value) for value in rows]
        for text in {text for text, value in zip(texts, rows, strict=True) if text and isinstance(value, str)}:
            check_label(text, f"{typed}: a value of the column {column}")
        spelt = _same_spelling(filter(None, texts))
        return tuple(
            spelt.get(text, text) if isinstance(value, str) and text else value if text is not None else None
            for text, value in zip(texts, rows, strict=True)
        )

    return {column: cells(column, rows) for column, rows in columns.items()}


def _same_spelling(texts: Iterable[str]) -> dict[str, str]:
    """Return what the texts of one column become: `1` for `1.0` among numbers, `True` for `TRUE` among true and false.

    A column that also has other texts, or a number such as `01`, stays as it is.
    """
    different = set(texts) - {UNSPECIFIED}
    if all(map(_PLAIN_NUMBER.fullmatch, different)):
        return {text: text.partition(".")[0] for text in different if not text.partition(".")[2].strip("0")}
    if {text.casefold() for text in different} <= {"true", "false"}:
        return {text: text.capitalize() for text in different}
    return {}
