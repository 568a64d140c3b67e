"""Many p-values together: false discovery rates, and p-values that hold for all at once."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def discovery_rates(p: Tensor, candidates: Tensor) -> Tensor:
    """Return for each p-value the lowest false discovery rate at which it is a discovery (Benjamini & Hochberg 1995).

    If every p-value with a rate of at most q is called a discovery, the expected share of false discoveries is at most
    q; where all null hypotheses are true, q bounds the probability of any discovery. This holds for independent
    p-values and under positive regression dependency (Benjamini & Yekutieli 2001), but not under every dependency.

    Args:
        p: The p-values, shape (n,), float64.
        candidates: Whether each is tested, shape (n,), bool; those that are not have a rate of 1.
    """
    from scipy.stats import false_discovery_control

    rates = torch.ones_like(p)
    if candidates.any():
        rates[candidates] = torch.from_numpy(false_discovery_control(p[candidates].numpy()))
    return rates


def holm(p: Sequence[float]) -> list[float]:
    """Return p-values that are corrected for their number by Holm (1979).

    If every null hypothesis whose corrected p-value is at most a level is rejected, the probability of rejecting any
    true one is at most that level, however the p-values depend on one another.

    Args:
        p: The p-values; one that is NaN was not tested, and stays so.
    """
    corrected, least = list(p), 0.0
    tested = sorted((value, i) for i, value in enumerate(p) if not math.isnan(value))
    for rank, (value, i) in enumerate(tested):
        least = max(least, (len(tested) - rank) * value)
        corrected[i] = min(least, 1.0)
    return corrected
