"""What neurons are over the examples: their means by position, shares of the mean cosine, and those they vary with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.data.examples import Batch, Examples, read_share
from probing.data.module import are_columns
from probing.results.schema import Row, layer_cells
from probing.runtime.processes import most_over_ranks, sum_over_ranks
from probing.statistics.intervals import mean_interval
from probing.statistics.mean_cosine import CosineSums, normalise, shares_of
from probing.statistics.moments import ROWS, RunningMean, hardly_vary

# Other neurons of a layer that are named.
N_OTHERS = 5


def profile_rows(examples: Examples, neurons: Mapping[int, Sequence[int]], n_others: int = N_OTHERS) -> list[Row]:
    """Stream the examples once for each layer, divided among ranks, and return the rows of `profiles.csv`.

    Sums are of float64 numbers. Intervals are over sentences, or documents if these are what is independent.

    Args:
        examples: The examples, such as the test tokens of a run.
        neurons: Neurons by layer.
        n_others: Number of other neurons that are named, those of the strongest correlations.
    """
    rows: list[Row] = []
    for layer, own in neurons.items():
        sums = _Sums(examples, list(own))
        for batch in read_share(examples, [layer]):
            sums.update(batch)
        sums.all_reduce()
        by_neuron = zip(own, sums.means(), sums.correlations(n_others), sums.cosines(), strict=True)
        rows += (
            {**layer_cells(layer), "neuron": neuron, **row}
            for neuron, *parts in by_neuron
            for part in parts
            for row in part
        )
    return rows


class _Sums:
    """Sums of one layer.

    Args:
        examples: The examples.
        own: The neurons.
    """

    def __init__(self, examples: Examples, own: list[int]) -> None:
        d_model = examples.store.plan.d_model
        self.examples, self.own = examples, own
        self.here = np.flatnonzero(examples.labels >= 0)
        self.values = torch.zeros(len(self.here), len(own), dtype=torch.float64)
        self.mean = RunningMean(d_model, columns=are_columns(examples.store))
        self.squares = torch.zeros(d_model, dtype=torch.float64)
        self.products = torch.zeros(len(own), d_model, dtype=torch.float64)
        self.unit_sums = CosineSums(d_model)

    def update(self, batch: Batch) -> None:
        """Add the examples of a batch of the layer."""
        at = torch.from_numpy(np.searchsorted(self.here, batch.rows.numpy()))
        self.values[at] = batch.hidden_states[0][:, self.own].double()
        for states in batch.hidden_states[0].double().split(ROWS):
            self._add(self.mean.update(states))
            units = normalise(states)
            self.unit_sums.update(units, units)

    def _add(self, deviations: Tensor) -> None:
        self.squares += deviations.square().sum(0)
        self.products += deviations[:, self.own].T @ deviations

    def all_reduce(self) -> None:
        """All-reduce the sums of all processes."""
        self.values = sum_over_ranks(self.values)
        self._add(self.mean.all_reduce(sum_over_ranks))
        self.mean.limits = most_over_ranks(self.mean.limits)
        self.squares, self.products = sum_over_ranks(self.squares), sum_over_ranks(self.products)
        self.unit_sums.all_reduce(sum_over_ranks)

    def means(self) -> Iterator[list[Row]]:
        """Yield each neuron's mean over all examples, and over those at each position where examples are tokens."""
        tokens = self.examples.store.tokens
        sentences = tokens.sentences[self.here]
        clusters = self.examples.cluster_of_sentence()[sentences]
        everywhere = np.arange(len(self.here))
        groups: list[tuple[dict[str, Any], NDArray[np.int64]]] = [({"measure": "mean"}, everywhere)]
        if self.examples.pooling is None:
            groups += [
                ({"measure": "position", "index": position}, at)
                for position, at in _grouped(self.here - tokens.offsets[sentences])
            ]
        for values in self.values.numpy().T:
            yield [{**about, **_mean(values[at], clusters[at])} for about, at in groups]

    def correlations(self, n: int) -> Iterator[list[Row]]:
        """Yield for each neuron the others of the strongest correlations, the strongest first; of dead ones none."""
        sd = (self.squares / max(self.mean.n, 1)).sqrt()
        dead = hardly_vary(sd, self.mean.mean.abs(), self.mean.constant)
        for neuron, products in zip(self.own, self.products, strict=True):
            r = products / (self.squares[neuron] * self.squares).sqrt()
            r[dead] = 0.0
            r[neuron] = 0.0
            if dead[neuron]:
                r[:] = 0.0
            first = r.abs().sort(descending=True, stable=True).indices[:n].tolist()
            yield [
                {"measure": "correlation", "index": other, "value": float(r[other]), **self._n()}
                for other in first
                if r[other]
            ]

    def cosines(self) -> Iterator[list[Row]]:
        """Yield what each neuron contributes to the mean cosine of the examples, and its share where there is one."""
        by_neuron = self.unit_sums.by_neuron()
        shares = shares_of(by_neuron, float(by_neuron.sum()))
        for neuron in self.own:
            found = {"cosine_contribution": float(by_neuron[neuron]), "cosine_share": float(shares[neuron])}
            yield [
                {"measure": name, "value": value, **self._n()} for name, value in found.items() if np.isfinite(value)
            ]

    def _n(self) -> dict[str, int]:
        return {"n_test_tokens": len(self.here)}


def _grouped(positions: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield each position, ascending, and the indices of its examples."""
    order = positions.argsort(kind="stable")
    found, starts = np.unique(positions[order], return_index=True)
    yield from zip(found.tolist(), np.split(order, starts[1:]), strict=True)


def _mean(values: NDArray[np.float64], clusters: NDArray[np.int64]) -> dict[str, float]:
    """Return the mean of values with its interval over clusters."""
    _, cluster = np.unique(clusters, return_inverse=True)
    low, high = mean_interval(np.bincount(cluster, values), np.bincount(cluster))
    return {"value": float(values.mean()), "value_low": low, "value_high": high, "n_test_tokens": len(values)}
