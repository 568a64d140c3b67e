"""How much each head attends to the word at a fixed offset, also where words are told the positions of other words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probing.cache.tokens import Tokens
from probing.corpus import Corpus
from probing.heads.reading import Accumulator, Attention, Batch, BlockMeasure, Kept
from probing.statistics.chance import permute_within_sentences

# In tokens, from query to key. 0 is left out: a head may find the token itself by what it is.
OFFSETS = tuple(offset for offset in range(-10, 11) if offset)


def mass_at_offsets(probabilities: Tensor, ordinary: Tensor) -> dict[str, Tensor]:
    """Return sums over queries of the attention to the key at each offset; queries and keys are ordinary tokens.

    Args:
        probabilities: Attention, shape (batch, heads, from, to); padding has none.
        ordinary: Whether there is a token that is not special, shape (batch, sequence).

    Returns:
        mass: Sum of the attention to the key at the offset, shape (batch, heads, offsets), float64.
        word_mass: The same of the attention divided by all that the query gives to ordinary tokens.
        hit: Number of queries that attend to this key more than to any other token.
        n: Number of queries that have such a key, shape (batch, 1, offsets).
    """
    keys = ordinary[:, None, None, :].to(probabilities.dtype)
    to_words = (probabilities * keys).sum(3)
    per_word_mass = torch.where(to_words > 0, 1 / to_words, 0.0)
    most = probabilities.argmax(3)
    index = torch.arange(probabilities.shape[3], device=probabilities.device)
    found: dict[str, list[Tensor]] = {"mass": [], "word_mass": [], "hit": [], "n": []}
    for offset in OFFSETS:
        n, first = max(0, len(index) - abs(offset)), max(0, -offset)
        rows, columns = slice(first, first + n), slice(first + offset, first + offset + n)
        there = (ordinary[:, rows] & ordinary[:, columns])[:, None]
        mass = probabilities.diagonal(offset, 2, 3) * there
        found["mass"].append(mass.sum(2, dtype=torch.float64))
        found["word_mass"].append((mass * per_word_mass[:, :, rows]).sum(2, dtype=torch.float64))
        found["hit"].append(((most[:, :, rows] == index[columns]) & there).sum(2, dtype=torch.float64))
        found["n"].append(there.sum(2, dtype=torch.float64))
    return {name: torch.stack(values, dim=2) for name, values in found.items()}


def _of_block(attention: Attention, batch: Batch) -> Mapping[str, Tensor]:
    return mass_at_offsets(attention.probabilities, batch.ordinary)


AT_OFFSETS = BlockMeasure("offsets", _of_block, {"version": 1})


class ToldOffsets:
    """The measure: the attention at each offset, where the words of each sentence are permuted before they are read.

    A word is thus told the position of another one. (Where the model knows positions by a table alone, this is the same
    as permuting its `position_ids`; a causal model then also sees the words in that order.) By sentence, `told` is the
    attention to the key whose position is told to be at the offset, `told_true` that to the key that is there in the
    sentence, each as `mass` of `mass_at_offsets`.

    Args:
        seed: The `permuted_tokens_seed` of the request.
    """

    name = "told_offsets"

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.settings: Mapping[str, Any] = {"version": 1}

    def of_corpus(self, tokens: Tokens, corpus: Corpus) -> Callable[[Batch], Accumulator]:
        """Return what makes an accumulator for each batch."""
        places = torch.from_numpy(told_positions(tokens, self.seed))
        return lambda batch: _Told(batch, places)


def told_positions(tokens: Tokens, seed: int) -> Any:
    """Return the position that each token is told, shape (n_tokens,), int64; special tokens keep theirs."""
    index = np.arange(tokens.n_tokens)
    (drawn,) = permute_within_sentences(
        np.where(tokens.special, -1, index), tokens.sentences, tokens.input_ids, 1, seed
    )
    return np.where(tokens.special, index, drawn) - np.repeat(tokens.offsets[:-1], tokens.lengths)


class _Told:
    def __init__(self, batch: Batch, places: Tensor) -> None:
        self.batch = batch
        padding = torch.arange(batch.mask.shape[1], device=batch.mask.device).expand_as(batch.mask)
        # For each true position, where its token is read.
        self.place = torch.where(batch.mask, places.to(batch.rows.device)[batch.rows], padding)
        self.found: dict[str, list[Tensor]] = {"told": [], "told_true": []}

    def add(self, attention: Attention) -> None:
        read = attention.probabilities
        queries = self.place[:, None, :, None].expand_as(read)
        true = read.gather(2, queries).gather(3, self.place[:, None, None, :].expand_as(read))
        ordinary = self.batch.ordinary
        self.found["told"].append(mass_at_offsets(read, ordinary)["mass"])
        self.found["told_true"].append(mass_at_offsets(true, ordinary.gather(1, self.place))["mass"])

    def kept(self) -> Kept:
        return Kept({name: torch.stack(values, dim=1) for name, values in self.found.items()})
