"""Many p-values at a time."""

from __future__ import annotations

import torch
from torch import Tensor


def discovery_rates(p: Tensor, candidates: Tensor) -> Tensor:
    """Return for each p-value the lowest false discovery rate at which it is a discovery (Benjamini & Hochberg 1995).

    Whoever calls a discovery what is at most q expects a share of at most q of the discoveries to be false; where
    nothing is to be discovered, q is the chance of any. That holds for independent p-values and for those of positive
    regression dependency (Benjamini & Yekutieli 2001), not for any dependency whatever.

    Args:
        p: Shape (n,), float64.
        candidates: Which are tested at all; the others have a rate of 1, shape (n,), bool.
    """
    from scipy.stats import false_discovery_control

    rates = torch.ones_like(p)
    if candidates.any():
        rates[candidates] = torch.from_numpy(false_discovery_control(p[candidates].numpy()))
    return rates
