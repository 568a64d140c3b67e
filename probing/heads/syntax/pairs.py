"""The attention of all heads between the words of a sample of sentences, for a probe that needs all heads at once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.cache.tokens import Tokens
from probing.corpus import Corpus
from probing.heads.measures import Accumulator, Kept
from probing.heads.reading import Attention, Batch
from probing.heads.syntax.word_maps import WordBatch

# Most bytes of the pairs of a corpus.
MOST_BYTES = 512 * 2**20
# Stands for the attention between a word and itself, or a word that is not there.
NO_PAIR = -1.0


def sample_sentences(corpus: Corpus, n_heads: int, seed: int, most_bytes: int = MOST_BYTES) -> NDArray[np.bool_]:
    """Return a random sample of sentences whose pairs of words fit into some memory, shape (n_sentences,).

    Args:
        corpus: A corpus of words.
        n_heads: Number of heads of all blocks together.
        seed: Seed of the order in which sentences are taken; the first one that does not fit ends the sample.
        most_bytes: Most bytes of the pairs, of 4 bytes a head.
    """
    order = np.random.default_rng(seed).permutation(len(corpus.sentences))
    lengths = np.array([len(words) for words in corpus.words or ()], dtype=np.int64)
    size = np.cumsum(lengths[order] ** 2) * 4 * n_heads
    found = np.zeros(len(order), dtype=bool)
    found[order[size <= most_bytes]] = True
    return found


class HeadPairs:
    """The measure: the attention between the words of some sentences.

    `pairs` is listed by sentence: for its n words, n * n rows of shape (n_layers, heads), float32, the attending word
    first; `NO_PAIR` between a word and itself, and where a word has no piece.

    Args:
        sentences: Whether a sentence is in the sample, shape (n_sentences,).
    """

    name = "pairs"

    def __init__(self, sentences: NDArray[np.bool_]) -> None:
        self.sentences = torch.from_numpy(sentences)
        self.settings: Mapping[str, Any] = {"version": 1, "of": hashlib.sha256(sentences.tobytes()).hexdigest()}

    def of_corpus(self, tokens: Tokens, corpus: Corpus) -> Callable[[Batch], Accumulator]:
        """Return what makes an accumulator for each batch."""
        lengths = torch.tensor([len(words) for words in corpus.words or ()])
        return lambda batch: _HeadPairs(batch, torch.where(self.sentences, lengths, 0)[batch.sentences.cpu()])


class _HeadPairs:
    def __init__(self, batch: Batch, n_words: Tensor) -> None:
        self.n_words = n_words.tolist()
        self.chosen = [i for i, n in enumerate(self.n_words) if n]
        self.words = WordBatch(WordBatch.of(batch).words[self.chosen])
        self.found: list[Tensor] = []
        self.n_heads = 0

    def add(self, attention: Attention) -> None:
        self.n_heads = attention.probabilities.shape[1]
        maps = self.words.maps(attention.probabilities[self.chosen])
        self.found.append(maps.masked_fill_(~self.words.pairs[:, None], NO_PAIR).float())

    def kept(self) -> Kept:
        rows = [torch.empty(0, len(self.found), self.n_heads)] * len(self.n_words)
        for index, maps in zip(self.chosen, torch.stack(self.found, dim=-1).cpu(), strict=True):
            n = self.n_words[index]
            there = maps.movedim(0, -1)[:n, :n]  # from, to, layers, heads; words that were cut off are not in it
            own = torch.full((n, n, *there.shape[2:]), NO_PAIR)
            own[: len(there), : len(there)] = there
            rows[index] = own.flatten(0, 1)
        return Kept(listed={HeadPairs.name: rows})
