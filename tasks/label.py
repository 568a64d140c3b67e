"""The label of a word in a .tsv or .jsonl file of words and labels, or in a data set."""

from __future__ import annotations

from dataclasses import dataclass

from .column import WordLabels


@dataclass(frozen=True)
class Label(WordLabels):
    """The column `label`."""

    column = "label"
