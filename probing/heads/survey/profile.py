"""How concentrated a head's attention is and how far it reaches: entropy, distance, and the neighbouring tokens."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from probing.heads.measures import BlockMeasure
from probing.heads.reading import Attention, Batch


def profile(attention: Attention, batch: Batch) -> Mapping[str, Tensor]:
    """Return sums over the queries of each sentence, each of shape (batch, heads), float64.

    Args:
        attention: The attention of one block.
        batch: The sentences.

    Returns:
        entropy: In units of that of uniform attention over the n keys that the query may see: H / ln n (after Clark et
            al. 2019, section 3.3, who do not divide); a query that sees one key has none.
        distance: Number of tokens between query and key.
        self, previous, next: Attention to the token itself, to the previous one, and to the next one.
        n_entropy: Number of queries that have an entropy, shape (batch, 1).
    """
    probabilities, n = attention.probabilities, attention.probabilities.shape[-1]
    steps = torch.arange(n, dtype=torch.float64, device=probabilities.device)
    nearness = (steps[:, None] - steps).abs()
    per_nat = entropy_scale(attention.uniform(batch))
    return {
        "n_entropy": (per_nat > 0).sum(1, dtype=torch.float64)[:, None],
        "entropy": torch.special.entr(probabilities).sum(3, dtype=torch.float64).mul(per_nat[:, None]).sum(2),
        "distance": (probabilities * nearness.to(probabilities.dtype)).sum((2, 3), dtype=torch.float64),
        "self": _diagonal(probabilities, 0),
        "previous": _diagonal(probabilities, -1),
        "next": _diagonal(probabilities, 1),
    }


def n_queries(sums: Mapping[str, Tensor], lengths: Tensor) -> dict[str, Tensor]:
    """Return over how many queries each sum of `profile` goes, by its name.

    Args:
        sums: What `profile` returned, by sentence, layer and head.
        lengths: Number of tokens of each sentence, shape (n_sentences,).

    Returns:
        Each of shape (n_sentences,), but of entropies (n_sentences, layers), because masks differ between layers.
    """
    but_one = (lengths - 1).clamp_min(0)
    entropies = sums["n_entropy"][..., 0]
    return {"entropy": entropies, "distance": lengths, "self": lengths, "previous": but_one, "next": but_one}


def entropy_scale(seen: Tensor) -> Tensor:
    """Return 1 / ln n for each query, shape (batch, sequence), float64; 0 where it sees one key or is padding.

    Args:
        seen: What is above 0 for the n keys that a query sees, shape (batch, from, to).
    """
    n_seen = (seen > 0).sum(2)
    return torch.where(n_seen > 1, 1 / n_seen.clamp_min(2).double().log(), 0.0)


def _diagonal(probabilities: Tensor, offset: int) -> Tensor:
    return probabilities.diagonal(offset, 2, 3).sum(2, dtype=torch.float64)


PROFILE = BlockMeasure("profile", profile, {"version": 2})
