"""The universal part of speech (NOUN, VERB, ...) of a word, from the column `upos` of CoNLL-U."""

from __future__ import annotations

from dataclasses import dataclass

from .column import WordLabels


@dataclass(frozen=True)
class UniversalPartOfSpeech(WordLabels):
    """The column `upos`."""

    column = "upos"
