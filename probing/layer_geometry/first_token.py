"""What the first token of each sentence has of its own: outliers and norms without it, with it, and of it alone.

In decoders the first token collects the attention that heads have nothing else to do with (Xiao et al. 2023, arXiv
2309.17453), and a few of its neurons are far larger than anywhere else (Sun et al. 2024, arXiv 2402.17762). Over all
tokens, such a neuron can be an outlier although it is one of a single token per sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from probing.statistics.outliers import Profile, deviations_of, outliers_of

FIRST_TOKEN_COLUMNS = ("layer", "first_token", "measure", "neuron", "value", "n_tokens")
# Measures that are not outliers: the root mean square of the norms of tokens, the share of their squared norms that is
# the mean's, and the deviation of the neuron whose mean is farthest from the others', in sd, with its sign.
NORM, ENERGY, FARTHEST = "rms_norm", "mean_energy_share", "farthest_mean"


def first_token_rows(layer: int, profiles: Mapping[str, Profile]) -> list[dict[str, Any]]:
    """Return the rows of a layer in `first_token.csv`: its norms, its farthest neuron, and every outlier.

    Args:
        layer: Layer number.
        profiles: Profiles of the tokens without first ones (`exclude`), with them (`include`), and of them (`only`).
    """
    return [
        {"layer": layer, "first_token": which, **row, "n_tokens": profile.n_tokens}
        for which, profile in profiles.items()
        for row in _rows(profile)
    ]


def _rows(profile: Profile) -> list[dict[str, Any]]:
    of_mean = float(np.square(profile.mean).sum())
    energy = of_mean + float(profile.variance.sum())
    z = deviations_of(profile.mean)
    farthest = int(np.abs(z).argmax())
    return [
        {"measure": NORM, "value": energy**0.5},
        *([{"measure": ENERGY, "value": of_mean / energy}] if energy else []),
        {"measure": FARTHEST, "neuron": farthest, "value": float(z[farthest])},
        *({"measure": one.definition, "neuron": one.neuron, "value": one.value} for one in outliers_of(profile)),
    ]
