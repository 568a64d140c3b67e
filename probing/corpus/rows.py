"""Rows of a source that has annotations: the text of each sentence, and values of its words and of the sentence."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# A word without a value, as in CoNLL-U.
UNSPECIFIED = "_"
# A column of this name in a data set or a .jsonl file is also the column `label`, which the task `label` reads.
_LABELS, _LABEL = "labels", "label"


@dataclass(frozen=True)
class Rows:
    """The sentences of a source with their annotations.

    Args:
        texts: The sentences, as text or as lists of words.
        columns: For each column and sentence, a value for each word.
        sentence_columns: For each column, a value for each sentence: text, a number, or None.
    """

    texts: Sequence[Any]
    columns: Mapping[str, Sequence[tuple[str, ...]]] = field(default_factory=dict)
    sentence_columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    @property
    def are_words(self) -> bool:
        """Whether sentences are lists of words."""
        return bool(self.texts) and isinstance(self.texts[0], list)


def values_of_words(values: Iterable[Any]) -> tuple[str, ...]:
    """Return the values of a sentence's words as text, `_` where there is none."""
    return tuple(UNSPECIFIED if value is None else sys.intern(str(value)) for value in values)


def with_label(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return columns of words; if there is a column `labels` and no `label`, add it under the name `label`."""
    named = {_LABEL: columns[_LABELS]} if _LABELS in columns and _LABEL not in columns else {}
    return {**columns, **named}
