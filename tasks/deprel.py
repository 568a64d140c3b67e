"""How a word depends on its head (nsubj, obj, ...), the column `deprel` of CoNLL-U."""

from __future__ import annotations

from dataclasses import dataclass

from .column import WordLabels


@dataclass(frozen=True)
class DependencyRelation(WordLabels):
    """The column `deprel`."""

    column = "deprel"
