"""Rows of a source that has annotations: the text of each sentence, and values of its words and of the sentence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from probing.corpus.cells import UNSPECIFIED, check_label, text_of

# A column of this name in a data set or a .jsonl file is also the column `label`, which the task `label` reads.
_LABELS, _LABEL = "labels", "label"


@dataclass(frozen=True)
class Rows:
    """The sentences of a source with their annotations.

    Args:
        texts: The sentences, as text or as lists of words.
        columns: For each column and sentence, a value for each word, as the source has it.
        sentence_columns: For each column, a value for each sentence, as the source has it.
        n_empty: Number of rows that were left out because they have no text.
    """

    texts: Sequence[Any]
    columns: Mapping[str, Sequence[Sequence[Any]]] = field(default_factory=dict)
    sentence_columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    n_empty: int = 0

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
    known: dict[tuple[type, Any], str] = {}

    def text(column: str, value: Any) -> str:
        key = (type(value), value)
        if key not in known:
            known[key] = text_of(value) or UNSPECIFIED
            check_label(known[key], f"{typed}: a value of the column {column}")
        return known[key]

    return {
        column: tuple(tuple(text(column, value) for value in row) for row in rows) for column, rows in columns.items()
    }


def values_of_sentences(columns: Mapping[str, Sequence[Any]], typed: str) -> dict[str, tuple[Any, ...]]:
    """Return the values of sentences: text without blanks around it, a finite number, true or false; None if missing.

    Args:
        columns: For each column, a value for each sentence.
        typed: The option and its value, for messages.

    Raises:
        UserError: If a value has a lone surrogate or U+0000.
    """

    def cell(column: str, value: Any) -> Any:
        if (text := text_of(value)) is None or not isinstance(value, str):
            return value if text is not None else None
        check_label(text, f"{typed}: a value of the column {column}")
        return text

    return {column: tuple(cell(column, value) for value in rows) for column, rows in columns.items()}


def with_label(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return columns of words; if there is a column `labels` and no `label`, add it under the name `label`."""
    named = {_LABEL: columns[_LABELS]} if _LABELS in columns and _LABEL not in columns else {}
    return {**columns, **named}
