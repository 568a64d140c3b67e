"""What a model with a head of its own is to predict of each token or sentence, as losses of torch take it."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from probing.data.examples import Examples
from probing.data.labelling import Standard

# Class of what is not to be predicted, as losses of torch know it.
IGNORED = -100


def targets_of(examples: Examples, standard: Standard | None) -> Tensor:
    """Return the class of each token or sentence, or its standardised number; `IGNORED` or NaN without one.

    Args:
        examples: The examples.
        standard: What standardises numbers; None for classes.
    """
    labels = torch.from_numpy(examples.labels.astype(np.int64))
    if standard is None:
        return labels.where(labels >= 0, IGNORED)
    return standard.table(examples).float()[labels.clamp(min=0)].where(labels >= 0, torch.nan)


def is_target(targets: Tensor) -> Tensor:
    """Return where something is predicted."""
    return ~targets.isnan() if targets.is_floating_point() else targets != IGNORED


def nothing(targets: Tensor) -> float | int:
    """Return what stands among targets where nothing is predicted."""
    return torch.nan if targets.is_floating_point() else IGNORED
