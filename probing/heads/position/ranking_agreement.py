"""Rank correlations between a probe's ranking of neurons and the neurons that heads read, compared with chance.

Neurons whose mean differs much between positions are useful both to a probe and to any head, so a correlation alone
says little. The partial correlation therefore keeps the spread of p(t) and of p(t + 1) - p(t) constant. Both
correlations are compared with those of the block's other heads, and with those in random bases, in which random
directions of the same space take the place of neurons.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata
from torch import Tensor

from probing.probes.objective import centre_over_classes
from probing.statistics.rank_similarity import spearman

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Agreement:
    """Rank correlations of what heads use with a ranking.

    Args:
        spearman: Plain ones, shape (n_heads,); NaN where all neurons are tied.
        partial: Partial ones, likewise.
    """

    spearman: Array
    partial: Array

    @classmethod
    def of(cls, use: Array, ranking: Array, spreads: Sequence[Array]) -> Agreement:
        """Correlate.

        Args:
            use: How much each head uses each neuron, shape (n_heads, d_model).
            ranking: The score of each neuron, shape (d_model,).
            spreads: What the partial correlation keeps constant, each of shape (d_model,).
        """
        used, ranked = rankdata(use, axis=1), rankdata(ranking)
        design = np.stack([np.ones(len(ranked)), *(rankdata(one) for one in spreads)], axis=1)
        left = [values - values @ np.linalg.pinv(design).T @ design.T for values in (ranked, used)]
        # If the spreads determine the ranks exactly, the residuals are rounding errors: they are set to 0.
        left = [np.where(np.abs(values) < 1e-6 * len(ranked), 0.0, values) for values in left]
        return cls(spearman(ranked, used), spearman(left[0], left[1]))


def contributions_in_bases(weight: Tensor, states: Tensor, classes: Tensor, bases: Tensor) -> Tensor:
    """Return the mean absolute contribution of each direction to the logit of the true class, centred over classes.

    Args:
        weight: Weights of a probe, shape (n_classes, d_model).
        states: States of tokens, shape (n, d_model).
        classes: Index of the true class of each, shape (n,).
        bases: Each column a direction, shape (n_bases, d_model, d_model).

    Returns:
        Shape (n_bases, d_model).
    """
    centred = centre_over_classes(weight.to(states.dtype))
    # A product adds up the tokens of each class much faster than by their index.
    of_class = torch.nn.functional.one_hot(classes, len(centred)).to(states.dtype).T.contiguous() / max(len(states), 1)
    found = []
    for basis in bases:
        found.append(((centred @ basis).abs_() * (of_class @ (states @ basis).abs_())).sum(0))
    return torch.stack(found)
