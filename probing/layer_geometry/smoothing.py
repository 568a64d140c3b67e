"""Over-smoothing: how similar the tokens of one sentence become (Shi et al. 2022, arXiv 2202.08625).

These measures compare tokens within a sentence. The mean cosine of `anisotropy` compares tokens of all sentences: do
not draw the two on one axis without saying so.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from probing.layer_geometry.anisotropy import sum_by_sentence


@dataclass(frozen=True)
class Smoothness:
    """Similarity of the tokens of each sentence; all tensors have shape (n_sentences,), float64.

    Args:
        token_similarity: Mean cosine of all pairs of the sentence's tokens; NaN for a single token.
        intra_sentence_similarity: Mean cosine of the tokens with their mean vector.
        distance: Distance to the nearest matrix with equal rows.
        relative_distance: This distance as a share of the norm, from 0 to 1.
    """

    token_similarity: Tensor
    intra_sentence_similarity: Tensor
    distance: Tensor
    relative_distance: Tensor


def smoothness(vectors: Tensor, units: Tensor, unit_sums: Tensor, lengths: Tensor) -> Smoothness:
    """Return how similar the tokens of each sentence are.

    Token similarity is 1 / (n (n - 1)) sum_{i != j} cos(h_i, h_j) = (|sum_i u_i|^2 - n) / (n (n - 1)) (Shi et al.
    section 3). It is near 1 also where all tokens share one large neuron, so compare it with its value after clipping;
    and it is near 0 for opposite vectors, which are not diverse.

    Intra-sentence similarity (Ethayarajh 2019, section 3.2) is the mean of cos(h_i, mean_j h_j).

    The distance is d_M(H) = min_Y |H - Y|_F over matrices Y with equal rows. It is the norm of H minus its mean row,
    d_M^2 = 1 / (2 n) sum_ij |h_i - h_j|^2. It grows with the size of the vectors; d_M / |H|_F does not.

    Args:
        vectors: Vectors of all tokens, sentence by sentence, shape (n, d).
        units: The vectors divided by their lengths.
        unit_sums: Sums of `units` over each sentence, shape (n_sentences, d).
        lengths: Number of tokens of each sentence, at least 1, shape (n_sentences,).
    """
    n = lengths.double()
    # Relative to the sentence's first token, equal tokens are exactly 0; relative to their mean they would be rounded.
    first = vectors[lengths.cumsum(0) - lengths]
    shifted = vectors - first.repeat_interleave(lengths, 0)
    shift = sum_by_sentence(shifted, lengths) / lengths[:, None]
    away, means = shifted - shift.repeat_interleave(lengths, 0), first + shift
    squares = torch.stack([away.norm(dim=1), vectors.norm(dim=1)], 1).double().square()
    distance, norm = sum_by_sentence(squares, lengths).sqrt().T
    sums, mean_length = unit_sums.double(), means.double().norm(dim=1)
    return Smoothness(
        torch.where(n > 1, (sums.square().sum(1) - n) / (n * (n - 1)), torch.nan),
        (sums * means).sum(1) / (n * mean_length),
        distance,
        distance / norm,
    )
