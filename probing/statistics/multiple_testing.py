"""False discovery rates of many p-values."""

from __future__ import annotations

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
