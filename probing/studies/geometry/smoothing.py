"""Over-smoothing, how similar the tokens of one sentence become (Shi et al. 2022), and what the first token does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.statistics.moments import Profile, deviations_of, outliers_of
from probing.studies.geometry.anisotropy import sum_by_sentence


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


# Measures that are not outliers: the root mean square of the norms of tokens, the share of their mean squared norm that
# is due to the mean vector, the mean cosine of two tokens, and the largest deviation of a neuron's mean from the mean
# over all neurons, in sd over neurons, with its sign.
NORM, ENERGY, COSINE, FARTHEST = "rms_norm", "mean_energy_share", "mean_cosine", "farthest_mean"


@dataclass(frozen=True)
class Group:
    """Some of a layer's tokens.

    Args:
        profile: Their profile.
        units: Sum of their unit vectors, shape (d_model,), float64.
    """

    profile: Profile
    units: NDArray[np.float64]

    @property
    def mean_cosine(self) -> float:
        """The mean cosine over all pairs of two different tokens; NaN for fewer than two."""
        n = self.profile.n_tokens
        return float((np.square(self.units).sum() - n) / (n * (n - 1))) if n > 1 else float("nan")


def first_token_rows(layer: int, groups: Mapping[str, Group]) -> list[dict[str, Any]]:
    """Return the rows of a layer in `first_token.csv`: norms, mean cosine, the farthest neuron, and every outlier.

    Args:
        layer: Layer number.
        groups: The tokens without first ones (`exclude`), with them (`include`), and these alone (`only`).
    """
    return [
        {"layer": layer, "first_token": which, **row, "n_tokens": group.profile.n_tokens}
        for which, group in groups.items()
        for row in _rows(group)
    ]


def _rows(group: Group) -> list[dict[str, Any]]:
    profile, cosine = group.profile, group.mean_cosine
    of_mean = float(np.square(profile.mean).sum())
    energy = of_mean + float(profile.variance.sum())
    z = deviations_of(profile.mean)
    farthest = int(np.abs(z).argmax())
    return [
        {"measure": NORM, "value": energy**0.5},
        *([{"measure": ENERGY, "value": of_mean / energy}] if energy else []),
        *([{"measure": COSINE, "value": cosine}] if np.isfinite(cosine) else []),
        {"measure": FARTHEST, "neuron": farthest, "value": float(z[farthest])},
        *({"measure": one.definition, "neuron": one.neuron, "value": one.value} for one in outliers_of(profile)),
    ]
