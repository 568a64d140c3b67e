"""Outliers and norms of tokens without the first token of each sentence, with it, and of the first tokens alone.

In decoders the first token receives the attention that heads do not need elsewhere (Xiao et al. 2023, arXiv
2309.17453), and a few of its neurons are far larger than anywhere else (Sun et al. 2024, arXiv 2402.17762). Such a
neuron can be an outlier over all tokens, although it is large in a single token per sentence only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probing.statistics.outliers import Profile, deviations_of, outliers_of

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
