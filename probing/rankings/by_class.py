"""The neurons of each class: which ones make up the logit of the tokens that belong to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from probing.probes.objective import centre_over_classes
from probing.rankings.contributions import ClassMagnitudes, class_contributions

# Neurons of each class in the table; `contributions.safetensors` has all.
MOST = 20


def class_rows(layer: int, weight: Tensor, sums: ClassMagnitudes, classes: Sequence[Any]) -> list[dict[str, Any]]:
    """Return a row per class and neuron among its first `MOST`, as in `classes.csv`; classes without tokens have none.

    Args:
        layer: Layer number.
        weight: Probe weight on raw hidden states, shape (n_classes, d_model).
        sums: Class magnitudes of the test tokens.
        classes: The label of each class.
    """
    contribution, centred = class_contributions(weight, sums), centre_over_classes(weight.double())
    totals, n_tokens = contribution.sum(1).tolist(), sums.counts.int().tolist()
    order = torch.sort(contribution, dim=1, descending=True, stable=True).indices[:, :MOST]  # ties by lower index
    return [
        {
            "layer": layer, "class": label, "n_test_tokens": n_tokens[c], "rank": rank, "neuron": neuron,
            "contribution": float(contribution[c, neuron]),
            "share": float(contribution[c, neuron]) / totals[c] if totals[c] else 0.0,
            "weight": float(centred[c, neuron]),
        }
        for c, label in enumerate(classes)
        if n_tokens[c]
        for rank, neuron in enumerate(order[c].tolist(), start=1)
    ]  # fmt: skip
