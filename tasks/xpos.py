"""The fine-grained tag (NN, VBZ, ...) of a word in the treebank's own tag set, from the column `xpos` of CoNLL-U."""

from __future__ import annotations

from dataclasses import dataclass

from .column import WordLabels


@dataclass(frozen=True)
class FineGrainedTag(WordLabels):
    """The column `xpos`."""

    column = "xpos"
