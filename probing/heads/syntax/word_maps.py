"""Attention between the words of a sentence, and the word that a head attends to most.

Attention to a word is the sum over its pieces, attention from a word is the mean over them (Clark et al. 2019, section
4.1). Special tokens are then left out, and so is the attention of a word to itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from probing.cache.tokens import Tokens
from probing.corpus import Corpus
from probing.heads.measures import Accumulator, Kept
from probing.heads.reading import Attention, Batch

# Marks a word that has no piece, or whose sentence has no other word with a piece.
NONE = -1


@dataclass(frozen=True)
class WordBatch:
    """The words of a batch of sentences.

    Args:
        words: Index of each token's word in its sentence, -1 for special tokens and padding, shape (batch, sequence).
    """

    words: Tensor

    @classmethod
    def of(cls, batch: Batch, kept: Tensor | None = None) -> WordBatch:
        """Return the words of a batch; the first token of a causal model is special and belongs to no word.

        Args:
            batch: The sentences.
            kept: Whether a token is of a word that is kept, shape (batch, sequence); all are kept if None.
        """
        return cls(torch.where(batch.ordinary if kept is None else batch.ordinary & kept, batch.words, NONE))

    @cached_property
    def pieces(self) -> Tensor:
        """Whether a token is a piece of a word, shape (batch, sequence, words), float32."""
        n_words = int(self.words.max()) + 1 if self.words.numel() else 0
        return (self.words[:, :, None] == torch.arange(n_words, device=self.words.device)).float()

    @cached_property
    def n_pieces(self) -> Tensor:
        """Number of pieces of each word, shape (batch, words), float32."""
        return self.pieces.sum(1)

    @cached_property
    def present(self) -> Tensor:
        """Whether a word has a piece, shape (batch, words)."""
        return self.n_pieces > 0

    @cached_property
    def means(self) -> Tensor:
        """The map from pieces to means over the pieces of each word, shape (batch, words, sequence), float32."""
        return (self.pieces / self.n_pieces.clamp_min(1)[:, None]).transpose(1, 2)

    @cached_property
    def pairs(self) -> Tensor:
        """Whether two different words are there, shape (batch, words, words)."""
        both = self.present[:, :, None] & self.present[:, None, :]
        return both & ~torch.eye(both.shape[1], dtype=torch.bool, device=both.device)

    @cached_property
    def has_another(self) -> Tensor:
        """Whether a word is there and another one too, shape (batch, words)."""
        return self.pairs.any(2)

    def maps(self, probabilities: Tensor) -> Tensor:
        """Return the attention between different words, shape (batch, heads, from, to); 0 elsewhere.

        Args:
            probabilities: The attention between tokens, shape (batch, heads, from, to).
        """
        n, heads, length, _ = probabilities.shape
        pieces, means = self.pieces.to(probabilities.dtype), self.means.to(probabilities.dtype)
        # Heads and queries are one axis here, so that the matrix of pieces is not repeated for each head.
        to_words = (probabilities.reshape(n, heads * length, length) @ pieces).view(n, heads, length, -1)
        return (means[:, None] @ to_words).masked_fill_(~self.pairs[:, None], 0.0)

    def at_tokens(self, values: Tensor) -> Tensor:
        """Return for each token the value of its word, `NONE` for other tokens.

        Args:
            values: A value of each word, shape (batch, ..., words).

        Returns:
            Shape (batch, sequence, ...).
        """
        if not values.shape[-1]:
            return values.new_full((*self.words.shape, *values.shape[1:-1]), NONE)
        by_word = values.movedim(-1, 1)
        rows = torch.arange(len(self.words), device=self.words.device)[:, None]
        found = by_word[rows, self.words.clamp_min(0)]
        found[self.words < 0] = NONE
        return found


class Attended(NamedTuple):
    """For each word, the other word for which attention is largest, each of shape (batch, heads, words), int16.

    Ties go to the lower index. `NONE` for a word that has no piece, or if no other word has.

    Args:
        from_word: The word that this word attends to most.
        to_word: The word that attends to this word most.
    """

    from_word: Tensor
    to_word: Tensor


def most_attended(maps: Tensor, words: WordBatch) -> Attended:
    """Return for each word the word that it attends to most, and the word that attends to it most.

    Args:
        maps: The attention between words, shape (batch, heads, from, to).
        words: The words.
    """
    if not maps.shape[-1]:
        nothing = torch.empty(maps.shape[:3], dtype=torch.int16, device=maps.device)
        return Attended(nothing, nothing)
    candidates = maps.masked_fill(~words.pairs[:, None], -1.0)
    missing = ~words.has_another[:, None]
    # The transpose is copied, because argmax takes five times as long over columns as over rows.
    both = (candidates, candidates.transpose(2, 3).contiguous())
    return Attended(*(one.argmax(3).to(torch.int16).masked_fill_(missing, NONE) for one in both))


class MostAttended:
    """The measure: for each word and head, the word that it attends to most and the word that attends to it most.

    It needs no annotation, so that any treebank of the same words can be compared with it. `most_attended` is kept by
    token, each piece of a word having that of its word: shape (n_tokens, n_layers, heads, 2), int16.
    """

    name = "most_attended"
    settings: Mapping[str, Any] = {"version": 1}

    def of_corpus(self, tokens: Tokens, corpus: Corpus) -> Callable[[Batch], Accumulator]:
        """Return what makes an accumulator for each batch."""
        return _MostAttended


class _MostAttended:
    def __init__(self, batch: Batch) -> None:
        self.words = WordBatch.of(batch)
        self.found: list[Tensor] = []

    def add(self, attention: Attention) -> None:
        maps = self.words.maps(attention.probabilities)
        self.found.append(torch.stack(most_attended(maps, self.words), dim=2))

    def kept(self) -> Kept:
        return Kept(by_token={self.name: self.words.at_tokens(torch.stack(self.found, dim=1))})

    name = MostAttended.name
