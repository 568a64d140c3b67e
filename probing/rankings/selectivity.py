"""What neurons contribute to probes of a control task, beside what they contribute to those of the task itself."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from probing.data.examples import Sides, read_share
from probing.probes.training import LayerFit
from probing.rankings.contributions import MagnitudeAccumulator, mean_contribution
from probing.runtime.distributed import sum_over_ranks


def control_task_shares(draws: Sequence[Sides], fits: Sequence[Sequence[LayerFit]]) -> list[Tensor]:
    """Return each neuron's share of the contributions to probes of a control task, the mean over its draws.

    A neuron whose share is as large there as in the probe of the task itself tells words apart rather than classes: of
    accuracy, that is the selectivity of Hewitt & Liang (2019).

    Args:
        draws: Examples with the labels of each draw, of the same tokens.
        fits: The probe of each layer, for each draw.

    Returns:
        For each layer a tensor of shape (d_model,), float64.
    """
    labels = [torch.from_numpy(sides.test.labels).long() for sides in draws]
    found = []
    for of_layer in zip(*fits, strict=True):
        sums = [MagnitudeAccumulator(fit.moments.mean, fit.weight.shape[0]) for fit in of_layer]
        for batch in read_share(draws[0].test, [of_layer[0].layer]):
            for own, of_draw in zip(sums, labels, strict=True):
                own.update(batch.hidden_states[0], of_draw[batch.rows])
        shares = []
        for own, fit in zip(sums, of_layer, strict=True):
            own.all_reduce(sum_over_ranks)
            contribution = mean_contribution(fit.weight, own.result())
            shares.append(contribution / contribution.sum().clamp(min=1e-300))
        found.append(torch.stack(shares).mean(0))
    return found
