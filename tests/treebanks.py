"""Made-up treebanks, and what measures of the attention keep of maps that a test gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.cache.tokens import Tokens
from probing.corpus import Corpus, from_words
from probing.heads.accumulation import Batch, Measure, SumsStore, attention_of

# Returns the maps of a sentence, given its index and the words of its tokens.
MapsOf = Callable[[int, NDArray[np.int16]], Tensor]

RELATIONS = ("nsubj", "obl:tmod", "det", "punct")


def treebank(n: int, seed: int = 0, shortest: int = 4, longest: int = 14) -> Corpus:
    """Return made-up sentences with a random tree over each, of words with one to three pieces."""
    generator = np.random.default_rng(seed)
    words, heads, relations = [], [], []
    for i in range(n):
        length = int(generator.integers(shortest, longest + 1))
        words.append([f"w{i}_{j}" for j in range(length)])
        order = generator.permutation(length)
        of = [0] * length
        for k, word in enumerate(order[1:], 1):
            of[word] = int(order[generator.integers(k)]) + 1
        heads.append(tuple(map(str, of)))
        relations.append(tuple("root" if head == 0 else str(generator.choice(RELATIONS)) for head in of))
    return from_words("made up", words, {"head": heads, "deprel": relations})


@dataclass(frozen=True)
class Stored:
    """What a measure kept, without files."""

    tokens: Tokens
    values: Tensor

    def by_token(self, name: str) -> Tensor:
        return self.values


def tokens_of_words(corpus: Corpus, seed: int = 0) -> Tokens:
    """Return a table of tokens in which each word has one to three pieces, with a special token at both ends."""
    generator = np.random.default_rng(seed)
    words = [[-1, *np.repeat(np.arange(len(of)), generator.integers(1, 4, len(of))), -1] for of in corpus.words or ()]
    lengths = np.array([len(of) for of in words], dtype=np.int32)
    flat = np.concatenate(words).astype(np.int16)
    return Tokens(lengths, np.zeros(len(flat), dtype=np.int32), flat)


def batch_of(tokens: Tokens, sentences: Sequence[int], is_causal: bool = False) -> Batch:
    lengths = tokens.lengths[list(sentences)]
    n = int(lengths.max())
    mask = torch.arange(n) < torch.from_numpy(lengths)[:, None]
    rows = torch.from_numpy(tokens.offsets[list(sentences)])[:, None] + torch.arange(n)
    rows = torch.where(mask, rows, 0)
    words = torch.where(mask, torch.from_numpy(tokens.words.astype(np.int64))[rows], -1)
    special = mask & (words < 0)
    special[:, 0] |= is_causal
    return Batch(torch.tensor(sentences), rows, rows, mask, special, words, is_causal)


def kept_of(measure: Measure, corpus: Corpus, tokens: Tokens, maps_of: MapsOf, size: int = 7) -> SumsStore:
    """Return what a measure keeps of maps by sentence, each of shape (n_layers, heads, from, to)."""
    values: dict[int, Tensor] = {}
    begin = measure.of_corpus(tokens, corpus)
    for first in range(0, tokens.n_sentences, size):
        batch = batch_of(tokens, range(first, min(first + size, tokens.n_sentences)))
        maps = [maps_of(int(i), tokens.words[tokens.of_sentences(int(i), 1)]) for i in batch.sentences]
        n, length = batch.mask.shape
        padded = torch.full((n, *maps[0].shape[:2], length, length), torch.nan)
        for i, one in enumerate(maps):
            padded[i, :, :, : one.shape[-1], : one.shape[-1]] = one
        accumulator = begin(batch)
        for layer in range(padded.shape[1]):
            accumulator.add(attention_of(layer + 1, padded[:, layer], torch.empty(0), None, batch))
        of = accumulator.kept().by_token[measure.name]
        values |= {int(s): of[i][batch.mask[i]] for i, s in enumerate(batch.sentences)}
    return cast(SumsStore, Stored(tokens, torch.cat([values[i] for i in range(tokens.n_sentences)])))


def random_maps(n: int, seed: int, heads: int = 3) -> Tensor:
    return torch.randn(2, heads, n, n, generator=torch.Generator().manual_seed(seed)).mul(2).softmax(-1)
