"""Whether neurons go with the labels among tokens that are alike in what is held fixed (`--given`)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from probing.data.examples import Examples, read_clusters
from probing.runtime.distributed import sum_over_ranks
from probing.statistics.conditional_separation import (
    ConditionalAccumulator,
    StratumMeans,
    WithinStrata,
    strata_with_several,
)
from probing.statistics.separation import Separation, neurons_at_a_time


def separation_given(train: Examples, layer: int, n_classes: int) -> Separation | None:
    """Stream one layer's training examples twice, divided among ranks, and return how its neurons go with the labels.

    Args:
        train: Training examples.
        layer: Layer number.
        n_classes: Number of classes; of no importance where numbers are predicted.

    Returns:
        None if nothing is held fixed.
    """
    if train.given is None:
        return None
    stratum = strata_with_several(train.given, train.labels)
    used = replace(train, labels=np.where(stratum >= 0, train.labels, -1).astype(np.int32))
    codes, kept = used.codes(n_classes), stratum >= 0
    between = codes.excess_between(used.labels, used.store.tokens.sentences)
    vectors = WithinStrata.of(codes, torch.from_numpy(used.labels[kept]).long(), torch.from_numpy(stratum[kept]))
    strata, parts = torch.from_numpy(stratum), []
    for neurons in torch.arange(used.store.plan.d_model).split(neurons_at_a_time(vectors.labels.shape[1])):
        here = slice(int(neurons[0]), int(neurons[-1]) + 1)
        means = StratumMeans.empty(len(vectors.sizes), len(neurons))
        for batch, _ in read_clusters(used, [layer]):
            means.add(batch.hidden_states[0][:, here].double(), strata[batch.rows], batch.sentences)
        means = StratumMeans(sum_over_ranks(means.states), sum_over_ranks(means.of_sentences)).over(vectors.sizes)
        sums = ConditionalAccumulator(means, vectors, between)
        for batch, clusters in read_clusters(used, [layer]):
            sums.update(batch.hidden_states[0][:, here], strata[batch.rows], batch.labels, batch.sentences, clusters)
        sums.all_reduce(sum_over_ranks)
        parts.append(sums.result())
    return Separation.of_all(parts)


def compared_with(train: Examples) -> dict[str, int]:
    """Return the numbers of training tokens that are compared, and of the values that they have."""
    assert train.given is not None
    stratum = strata_with_several(train.given, train.labels)
    return {"n_tokens": int((stratum >= 0).sum()), "n_values": int(stratum.max(initial=-1)) + 1}
