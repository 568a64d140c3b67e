"""The dependency relation of a word to its head (nsubj, obj, ...), from the column `deprel` of CoNLL-U."""

from __future__ import annotations

from dataclasses import dataclass

from .column import WordLabels


@dataclass(frozen=True)
class DependencyRelation(WordLabels):
    """The column `deprel`."""

    column = "deprel"
