"""Classes of attention maps (after Kovaleva et al. 2019, section 4.1), and how concentrated and far attention is."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from probing.heads.reading import Attention, Batch, BlockMeasure

CLASSES = ("vertical", "diagonal", "vertical and diagonal", "block", "heterogeneous")
# From this value of v + d on, a map has stripes; from this value of b on, blocks.
STRIPES, BLOCK = 0.5, 0.5
# A map has both patterns if the weaker one has at least this share of v + d.
BOTH = 0.25
# Factors by which all thresholds are multiplied to see how much depends on them.
SWEEP = (0.75, 1.25)


def patterns(attention: Attention, batch: Batch) -> Mapping[str, Tensor]:
    """Return for each map how vertical (v) and how diagonal (d) it is, each of shape (batch, heads), float64.

    Of pairs of sentences, also how much it keeps within them (b), and the same with the boundary moved (b_moved).
    """
    uniform = attention.uniform(batch)
    v, d = stripes(attention.probabilities, batch, uniform)
    if batch.segments is None:
        return {"v": v, "d": d}
    b, b_moved = (
        blocks(attention.probabilities, batch, of, uniform) for of in (batch.segments, exchanged(batch.segments))
    )
    return {"v": v, "d": d, "b": b, "b_moved": b_moved}


def stripes(probabilities: Tensor, batch: Batch, uniform: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return how vertical and how diagonal maps are: (mass - e) / (1 - e), at least 0, with e under uniform attention.

    The mass of the vertical pattern is the attention to special tokens. The mass of the diagonal pattern is the
    attention to the token itself, the previous and the next one, unless they are special. Both are means over all
    queries.

    Args:
        probabilities: Shape (batch, heads, from, to).
        batch: The sentences.
        uniform: Uniform attention over what the block's mask shows, shape (batch, from, to); that of the batch if None.

    Returns:
        Both of shape (batch, heads), float64.
    """
    found = _stripe_masses(probabilities, batch)
    expected = _stripe_masses((batch.uniform if uniform is None else uniform)[:, None], batch)
    v, d = (_above_uniform(mass, e) for mass, e in zip(found, expected, strict=True))
    return v, d


def blocks(probabilities: Tensor, batch: Batch, segments: Tensor, uniform: Tensor | None = None) -> Tensor:
    """Return how much maps keep within the segments of a pair, above uniform attention; shape (batch, heads), float64.

    Special tokens are removed and the rows of the others renormalised. Uniform attention is over what a token may see:
    in causal models, over earlier tokens only, so that a token of the first segment sees no token of the second one.

    Args:
        probabilities: Shape (batch, heads, from, to).
        batch: The pairs.
        segments: The segment of each token, shape (batch, sequence).
        uniform: Uniform attention over what the block's mask shows, shape (batch, from, to); that of the batch if None.
    """
    ordinary = batch.ordinary
    seen = (ordinary[:, :, None] & ordinary[:, None, :])[:, None]
    same = (segments[:, :, None] == segments[:, None, :])[:, None]

    def mass(maps: Tensor) -> Tensor:
        maps = torch.where(seen, maps.double(), 0.0)
        rows = (maps * same).sum(3) / maps.sum(3).clamp_min(torch.finfo(torch.float64).tiny)
        return rows.sum(2) / ordinary.sum(1).clamp_min(1)[:, None]

    return _above_uniform(mass(probabilities), mass((batch.uniform if uniform is None else uniform)[:, None]))


def exchanged(segments: Tensor) -> Tensor:
    """Return the segments that pairs would have if their first sentences were as long as their second ones.

    Args:
        segments: Shape (batch, sequence); -1 for special tokens and padding, which stay.
    """
    ordinary = segments >= 0
    is_second = ordinary.cumsum(1) > (segments == 1).sum(1, keepdim=True)
    return torch.where(ordinary, is_second.to(segments.dtype), segments)


def classify(v: Tensor, d: Tensor, b: Tensor | None = None, factor: float = 1.0) -> Tensor:
    """Return the class of each map as an index into `CLASSES`.

    Args:
        v: How vertical it is, of any shape.
        d: How diagonal it is, of the same shape.
        b: How much it keeps within segments; None for single sentences.
        factor: Factor of all thresholds.
    """
    share = v / (v + d).clamp_min(torch.finfo(torch.float64).tiny)
    striped, low = v + d >= STRIPES * factor, BOTH * factor
    found = torch.full(v.shape, CLASSES.index("heterogeneous"))
    if b is not None:
        found[b >= BLOCK * factor] = CLASSES.index("block")
    found[striped] = CLASSES.index("vertical and diagonal")
    found[striped & (share > 1 - low)] = CLASSES.index("vertical")
    found[striped & (share < low)] = CLASSES.index("diagonal")
    return found


def _stripe_masses(maps: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    n = batch.lengths[:, None]
    columns = maps.sum(2, dtype=torch.float64)
    vertical = (columns * batch.special[:, None]).sum(2)
    diagonal = torch.zeros_like(vertical)
    for offset in (-1, 0, 1):
        keys = batch.ordinary[:, max(offset, 0) : batch.ordinary.shape[1] + min(offset, 0)]
        diagonal += (maps.diagonal(offset, 2, 3) * keys[:, None]).sum(2, dtype=torch.float64)
    return vertical / n, diagonal / n


def _above_uniform(mass: Tensor, uniform: Tensor) -> Tensor:
    """Return (mass - uniform) / (1 - uniform), at least 0; 0 where uniform attention has all of the mass."""
    room = 1 - uniform
    return torch.where(room > 1e-9, (mass - uniform) / room.clamp_min(1e-9), 0.0).clamp_min(0)


PATTERNS = BlockMeasure("patterns", patterns, {"version": 2})


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
