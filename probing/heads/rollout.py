"""Attention rollout: which tokens the vectors after each block are composed of (Abnar & Zuidema 2020).

A block is assumed to keep half of each vector and to add the head-mean A of its attention as the other half. Its effect
is then (I + A) / 2, and the effect of the first k blocks is the product of k such matrices. The rows of the product sum
to 1: they are the shares of the tokens of the input in the vector of each token. Rollout knows nothing of values, MLPs
and norms, and one half is an assumption. The same product is therefore also computed with uniform attention in all
blocks: the difference between the two is due to where the heads attend.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probing.cache.tokens import Tokens
from probing.corpus import Corpus
from probing.heads.patterns import entropy_scale
from probing.heads.reading import Accumulator, Attention, Batch, Kept
from probing.heads.rows import Rows, Sentences

# The tokens whose vectors are described.
QUERIES = ("words", "special tokens")
# Shares of a vector, which sum to 1, each token counted once; then what describes all shares of a vector together.
SHARES = ("self", "special_tokens", "previous", "next", "others")
MEASURES = (*SHARES, "distance", "entropy")
_SUMS, _COUNTS = "sums", "counts"


class Rollout:
    """The measure: sums over the tokens of each sentence that describe the rows of the product, after every block.

    `sums` has the shape (n_sentences, n_layers, 2, queries, measures), where 2 stands for the model and for uniform
    attention, and `counts` has the shape (n_sentences, queries, 2): the number of tokens, and of those that have an
    entropy.
    """

    name = "rollout"
    settings: Mapping[str, Any] = {"version": 2}

    def of_corpus(self, tokens: Tokens, corpus: Corpus) -> Callable[[Batch], Accumulator]:
        """Return what makes an accumulator for each batch."""
        return _Rollout


class _Rollout:
    """Holds the product so far, for each sentence of a batch one map in place of a layer's map for each head."""

    name = Rollout.name

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.product = torch.eye(batch.mask.shape[1], dtype=torch.float64, device=batch.mask.device)
        self.found: list[Tensor] = []

    def add(self, attention: Attention) -> None:
        own = with_residual(attention.probabilities.mean(1, dtype=torch.float64))
        both = torch.stack([own, with_residual(attention.uniform(self.batch))], dim=1)
        self.product = both @ self.product
        self.found.append(described(self.product, self.batch))

    def kept(self) -> Kept:
        chosen = torch.stack([self.batch.ordinary, self.batch.special], dim=1)
        has_entropy = chosen & (entropy_scale(reached(self.product, self.batch)) > 0)[:, None]
        counts = torch.stack([chosen.sum(2), has_entropy.sum(2)], dim=2)
        return Kept({_SUMS: torch.stack(self.found, dim=1), _COUNTS: counts})


def with_residual(maps: Tensor) -> Tensor:
    """Return (I + A) / 2, with the rows of A scaled to sum to 1, which attention in half precision does not quite do.

    Args:
        maps: Attention maps, shape (batch, from, to), float64; rows of padding are 0.
    """
    scaled = maps / maps.sum(2, keepdim=True).clamp_min(torch.finfo(maps.dtype).tiny)
    return (scaled + torch.eye(maps.shape[2], dtype=maps.dtype, device=maps.device)) / 2


def described(products: Tensor, batch: Batch) -> Tensor:
    """Return sums over the tokens of each sentence, shape (batch, maps, queries, measures), float64.

    Each share is counted once: the token itself; special tokens other than itself; the previous and the next token,
    where they are not special; all others. `distance` is in tokens, and `entropy` in units of that of equal shares of
    the tokens that the blocks so far let a token see.

    Args:
        products: Rows that sum to 1, shape (batch, maps, from, to), the last one with uniform attention in all blocks.
        batch: The sentences.
    """
    n, device = products.shape[-1], products.device
    steps = torch.arange(n, device=device)
    offsets = steps - steps[:, None]
    itself, special = offsets == 0, batch.special[:, None] & (offsets != 0)
    neighbours = [(offsets == step) & ~special for step in (-1, 1)]
    known = itself | special | neighbours[0] | neighbours[1]
    groups = (itself.expand_as(known), special, *neighbours, ~known)
    by_token = [(products * group[:, None]).sum(3) for group in groups]
    by_token.append((products * offsets.abs()).sum(3))
    by_token.append(torch.special.entr(products).sum(3) * entropy_scale(reached(products, batch))[:, None])
    chosen = torch.stack([batch.ordinary, batch.special], dim=1).double()
    return chosen[:, None] @ torch.stack(by_token, dim=3)


def reached(products: Tensor, batch: Batch) -> Tensor:
    """Return what is above 0 for the tokens that the blocks so far let a token see, shape (batch, from, to).

    Args:
        products: As `described` takes them.
        batch: The sentences.
    """
    return torch.where(batch.mask[:, :, None], products[:, -1], 0.0)


def rollout_rows(sums: Tensor, counts: Tensor, layers: Sequence[int], sentences: Sentences) -> Rows:
    """Return the rows of `rollout.csv`: for the vectors after each block, a row for each kind of token and measure.

    `uniform` is the value with uniform attention in all blocks, on the same sentences.

    Args:
        sums: The sums of `Rollout`.
        counts: Its counts.
        layers: The layers to report.
        sentences: Draws of the sentences.
    """
    here = sums[:, [layer - 1 for layer in layers]].numpy()
    rows: dict[tuple[int, int, int], dict[str, Any]] = {}
    for q, m in np.ndindex(len(QUERIES), len(MEASURES)):
        counted = counts[:, q, int(MEASURES[m] == "entropy")].numpy()
        if not counted.any():
            continue
        means = sentences.means(here[:, :, :, q, m], counted)
        for i, layer in enumerate(layers):
            uniform = float(means.values[i, 1])
            rows[i, q, m] = {
                "layer": layer, "query": QUERIES[q], "measure": MEASURES[m],
                **means.row(i, 0), "uniform": uniform,
            }  # fmt: skip
    return [row for _, row in sorted(rows.items())]
