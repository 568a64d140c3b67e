"""Position heads of later layers: their contrast for the word at their offset, and how much they attend to it.

Both are computed from the hidden states that enter the head's block, among words only, so that attention to special
tokens affects neither. See `probing.heads.position_controls` for the contrast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.cache.tokens import Tokens
from probing.heads.position import CLEAREST, MOST_HITS, MOST_MASS, OFFSETS, mass_at_offsets
from probing.models.attention_heads import QueryKey, read_heads
from probing.readouts.forward import ReadableText, Readers
from probing.readouts.names import CONTRAST, WORD_MASS
from probing.readouts.text import Padded
from probing.runtime.arithmetic import on_float64_device

# What is read of each head, in the order of the rows that a reading gives.
MEASURES = (CONTRAST, WORD_MASS)


@dataclass(frozen=True)
class PositionHead:
    """A head that attends to a fixed offset.

    Args:
        layer: Its block, from 1.
        head: Its number in the block, from 1.
        offset: In tokens, from query to key.
    """

    layer: int
    head: int
    offset: int


def words_of(tokens: Tokens, is_causal: bool) -> Tensor:
    """Return which tokens are words, shape (n_tokens,): the first one of a causal model counts as special."""
    return torch.from_numpy(~tokens.special & ((tokens.positions > 0) | (not is_causal)))


@torch.inference_mode()
def find_position_heads(
    readers: Readers, text: ReadableText, batch_tokens: int, above: Sequence[int] = (0,)
) -> list[PositionHead]:
    """Return the position heads, and the clearest heads above some layers, which need not be position heads.

    A position head gives more than half of its attention to one offset (Clark et al. 2019), or attends there most in
    nine of ten queries (Voita et al. 2019). The offset of a head is the one with the most attention.

    Args:
        readers: The model.
        text: The sentences that they are chosen by.
        batch_tokens: Most tokens in a batch, padding included.
        above: For each of these layers, the clearest heads of the blocks above it are returned too.
    """
    model = readers.model
    words = words_of(text.tokens, model.heads.is_causal).to(readers.device)
    shape = (model.heads.n_layers, model.heads.n_heads, len(OFFSETS))
    sums = {name: torch.zeros(shape, dtype=torch.float64) for name in ("mass", "word_mass", "hit")}
    n = torch.zeros(len(OFFSETS), dtype=torch.float64)
    for batch in text.batches(batch_tokens, readers.pad_token_id, model.anatomy.padding_is_neutral, readers.device):
        ordinary = batch.mask & words[batch.rows]
        pairs = (batch.mask[:, :, None] & batch.mask[:, None, :])[:, None]

        def add(
            block: int, probabilities: Tensor, values: Tensor, ordinary: Tensor = ordinary, pairs: Tensor = pairs
        ) -> None:
            maps = torch.where(pairs, probabilities, 0.0)
            found = mass_at_offsets(on_float64_device(maps), on_float64_device(ordinary))
            for name, of in sums.items():
                of[block - 1] += found[name].sum(0).cpu()
            if block == 1:
                n.add_(found["n"].sum((0, 1)).cpu())

        read_heads(model.encoder, model.heads, add, batch.inputs)
    means = {name: (of / n.clamp_min(1)).numpy() for name, of in sums.items()}
    chosen = means["mass"].argmax(2)
    at = {name: np.take_along_axis(of, chosen[..., None], 2)[..., 0] for name, of in means.items()}
    is_one = (at["mass"] > MOST_MASS) | (at["hit"] >= MOST_HITS)
    for layer in above:
        later = np.where(np.arange(shape[0])[:, None] >= layer, at["word_mass"], -1.0)
        clearest = np.argsort(-later, axis=None, kind="stable")[:CLEAREST]
        is_one.flat[clearest] |= later.flat[clearest] >= 0
    return [PositionHead(i + 1, j + 1, OFFSETS[chosen[i, j]]) for i, j in np.argwhere(is_one).tolist()]


@dataclass(frozen=True, eq=False)
class PositionHeads:
    """The contrast and the attention among words of some heads at their offsets.

    Args:
        text: The sentences that are read.
        heads: The heads.
        query_keys: How the heads of each block make scores.
        is_causal: Whether no token attends to a later one.
        device: Where hidden states are.
    """

    text: ReadableText
    heads: Sequence[PositionHead]
    query_keys: Sequence[QueryKey]
    is_causal: bool
    device: torch.device

    def rows(self, block: int) -> list[tuple[str, PositionHead]]:
        """Return the measure and the head of each row of a reading when this block is the first one changed."""
        return [(measure, one) for one in self.heads if one.layer >= block for measure in MEASURES]

    def layers(self, block: int) -> list[int]:
        """Return the layers that enter the blocks of the heads, from this block on."""
        return sorted({one.layer - 1 for one in self.heads if one.layer >= block})

    def begin(self, layers: Sequence[int]) -> _Reading:
        """Begin a reading of the heads of the blocks that these layers enter."""
        heads = [one for one in self.heads if one.layer - 1 in layers]
        return _Reading(self, heads, torch.zeros(len(MEASURES) * len(heads), self.text.tokens.n_sentences).double())

    @cached_property
    def words(self) -> Tensor:
        """Which tokens are words, shape (n_tokens,)."""
        return words_of(self.text.tokens, self.is_causal).to(self.device)

    def n(self, head: PositionHead) -> NDArray[np.int64]:
        """Number of words of each sentence that have a word at the head's offset, and see it, shape (n_sentences,)."""
        sentences, words = self.text.tokens.sentences, self.words.cpu().numpy()
        other = np.arange(len(words)) + head.offset
        inside = (other >= 0) & (other < len(words)) & words & (head.offset < 0 or not self.is_causal)
        there = inside.nonzero()[0]
        there = there[words[other[there]] & (sentences[other[there]] == sentences[there])]
        return np.bincount(sentences[there], minlength=self.text.tokens.n_sentences)

    def maps(self, head: PositionHead) -> tuple[Tensor, Tensor, Tensor]:
        """Return W_Q and b_Q, scaled, and W_K of a head, float32."""
        of = self.query_keys[head.layer - 1]
        found = (one[head.head - 1].float().to(self.device) for one in (of.query, of.query_bias, of.key))
        query, bias, key = found
        return query, bias, key


@dataclass(frozen=True, eq=False)
class _Reading:
    of: PositionHeads
    heads: Sequence[PositionHead]
    found: Tensor

    def take(self, states: Mapping[int, Tensor], batch: Padded) -> None:
        words, sentences = batch.mask & self.of.words[batch.rows], batch.sentences.cpu()
        for i, head in enumerate(self.heads):
            given = states[head.layer - 1]
            norm = self.of.query_keys[head.layer - 1].norm
            given = given.float() if norm is None else norm(given.cpu().double()).float().to(given.device)
            at = at_offset(given, words, *self.of.maps(head), head.offset, self.of.is_causal)
            for j, value in enumerate(at):
                self.found[len(MEASURES) * i + j, sentences] = value.cpu()

    def sums(self) -> Tensor:
        return self.found


def at_offset(
    inputs: Tensor, words: Tensor, query: Tensor, bias: Tensor, key: Tensor, offset: int, is_causal: bool
) -> tuple[Tensor, Tensor]:
    """Return sums over queries of each sentence of a head's contrast at an offset, and of its attention among words.

    Args:
        inputs: Input of the block's attention, shape (batch, sequence, d_model).
        words: Which tokens are words, shape (batch, sequence).
        query: W_Q times the scale of the scores, shape (d_model, d_head).
        bias: b_Q times this scale, shape (d_head,).
        key: W_K, shape (d_model, d_head). (Its bias adds the same to all scores of a query.)
        offset: In tokens, from query to key.
        is_causal: Whether no token attends to a later one.

    Returns:
        Both of shape (batch,), float64.
    """
    scores = (inputs @ query + bias) @ (inputs @ key).transpose(1, 2)
    seen = words[:, :, None] & words[:, None, :]
    seen = seen.tril() if is_causal else seen
    there, here = seen.diagonal(offset, 1, 2), scores.diagonal(offset, 1, 2)
    first = max(0, -offset)
    queries = slice(first, first + here.shape[1])
    mean = (scores * seen).sum(2) / seen.sum(2).clamp_min(1)
    total = scores.masked_fill(~seen, -torch.inf).logsumexp(2)
    contrast = torch.where(there, here - mean[:, queries], 0.0)
    mass = torch.where(there, (here - total[:, queries]).exp(), 0.0)
    contrast, mass = on_float64_device(contrast), on_float64_device(mass)
    return contrast.sum(1, dtype=torch.float64), mass.sum(1, dtype=torch.float64)
