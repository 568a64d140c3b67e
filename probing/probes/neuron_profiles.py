"""Profiles of neurons over the examples: means by position, correlations, cosine shares, extremes and confusions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.data.examples import Batch, Examples, Sides, read_share
from probing.data.module import are_columns
from probing.results import Row, layer_cells
from probing.runtime.processes import most_over_ranks, rank_and_world_size, sum_over_ranks
from probing.statistics import NO_INTERVAL, accuracy_interval, mean_interval
from probing.statistics.chance import CosineSums, normalise, shares_of
from probing.statistics.moments import ROWS, RunningMean, hardly_vary
from probing.tables.evidence_sentences import say

# Other neurons of a layer that are named.
N_OTHERS = 5


def profile_rows(examples: Examples, neurons: Mapping[int, Sequence[int]], n_others: int = N_OTHERS) -> list[Row]:
    """Stream the examples once for each layer, divided among ranks, and return the rows of `profiles.csv`.

    Confidence intervals are over sentences, or over documents if these are the independent units.
    """
    rows: list[Row] = []
    for layer, layer_neurons in neurons.items():
        sums = _Sums(examples, list(layer_neurons))
        for batch in read_share(examples, [layer]):
            sums.update(batch)
        sums.all_reduce()
        by_neuron = zip(layer_neurons, sums.means(), sums.correlations(n_others), sums.cosines(), strict=True)
        rows += (
            {**layer_cells(layer), "neuron": neuron, **row}
            for neuron, *parts in by_neuron
            for part in parts
            for row in part
        )
    return rows


class _Sums:
    """Sums of a layer."""

    def __init__(self, examples: Examples, neurons: list[int]) -> None:
        d_model = examples.store.plan.d_model
        self.examples, self.neurons = examples, neurons
        self.rows = np.flatnonzero(examples.labels >= 0)
        self.values = torch.zeros(len(self.rows), len(neurons), dtype=torch.float64)
        self.mean = RunningMean(d_model, columns=are_columns(examples.store))
        self.squares = torch.zeros(d_model, dtype=torch.float64)
        self.products = torch.zeros(len(neurons), d_model, dtype=torch.float64)
        self.unit_sums = CosineSums(d_model)

    def update(self, batch: Batch) -> None:
        """Add the examples of a batch of the layer."""
        at = torch.from_numpy(np.searchsorted(self.rows, batch.rows.numpy()))
        self.values[at] = batch.hidden_states[0][:, self.neurons].double()
        for states in batch.hidden_states[0].double().split(ROWS):
            self._add(self.mean.update(states))
            units = normalise(states)
            self.unit_sums.update(units, units)

    def _add(self, deviations: Tensor) -> None:
        self.squares += deviations.square().sum(0)
        self.products += deviations[:, self.neurons].T @ deviations

    def all_reduce(self) -> None:
        """All-reduce the sums over processes."""
        self.values = sum_over_ranks(self.values)
        self._add(self.mean.all_reduce(sum_over_ranks))
        self.mean.limits = most_over_ranks(self.mean.limits)
        self.squares, self.products = sum_over_ranks(self.squares), sum_over_ranks(self.products)
        self.unit_sums.all_reduce(sum_over_ranks)

    def means(self) -> Iterator[list[Row]]:
        """Yield each neuron's mean over all examples, and by position if examples are tokens."""
        tokens = self.examples.store.tokens
        sentences = tokens.sentences[self.rows]
        clusters = self.examples.cluster_of_sentence()[sentences]
        everywhere = np.arange(len(self.rows))
        groups: list[tuple[dict[str, Any], NDArray[np.int64]]] = [({"measure": "mean"}, everywhere)]
        if self.examples.pooling is None:
            groups += [
                ({"measure": "position", "index": position}, at)
                for position, at in _grouped(self.rows - tokens.offsets[sentences])
            ]
        for values in self.values.numpy().T:
            yield [{**about, **_mean(values[at], clusters[at])} for about, at in groups]

    def correlations(self, n: int) -> Iterator[list[Row]]:
        """Yield for each neuron the most strongly correlated others, strongest first; none for dead neurons."""
        sd = (self.squares / max(self.mean.n, 1)).sqrt()
        dead = hardly_vary(sd, self.mean.mean.abs(), self.mean.constant)
        for neuron, products in zip(self.neurons, self.products, strict=True):
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
        """Yield each neuron's contribution to the mean cosine of the examples, and its share if defined."""
        by_neuron = self.unit_sums.by_neuron()
        shares = shares_of(by_neuron, float(by_neuron.sum()))
        for neuron in self.neurons:
            measures = {"cosine_contribution": float(by_neuron[neuron]), "cosine_share": float(shares[neuron])}
            yield [
                {"measure": name, "value": value, **self._n()} for name, value in measures.items() if np.isfinite(value)
            ]

    def _n(self) -> dict[str, int]:
        return {"n_test_tokens": len(self.rows)}


def _grouped(positions: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield each position, ascending, and the indices of its examples."""
    order = positions.argsort(kind="stable")
    distinct, starts = np.unique(positions[order], return_index=True)
    yield from zip(distinct.tolist(), np.split(order, starts[1:]), strict=True)


def _mean(values: NDArray[np.float64], clusters: NDArray[np.int64]) -> dict[str, float]:
    """Return the mean of values with its confidence interval over clusters."""
    _, cluster = np.unique(clusters, return_inverse=True)
    low, high = mean_interval(np.bincount(cluster, values), np.bincount(cluster))
    return {"value": float(values.mean()), "value_low": low, "value_high": high, "n_test_tokens": len(values)}


ENDS = {"highest": 1, "lowest": -1}


@dataclass(frozen=True)
class Extremes:
    """The most extreme activations of some neurons.

    `by_end` has, by layer and end, the activations and the rows of their tokens in the store, both of shape
    (n_extremes, n_neurons), the most extreme first and for ties the first row.
    """

    neurons: Mapping[int, Sequence[int]]
    by_end: Mapping[tuple[int, str], tuple[Tensor, Tensor]]


def extremes(examples: Examples, neurons: Mapping[int, Sequence[int]], n: int) -> Extremes:
    """Stream the examples once, divided among ranks; return the (at most) `n` most extreme activations at each end."""
    layers = list(neurons)
    empty = {
        layer: (torch.empty(0, len(numbers)), torch.empty(0, len(numbers), dtype=torch.int64))
        for layer, numbers in neurons.items()
    }
    by_end = {(layer, end): empty[layer] for layer in layers for end in ENDS}
    for batch in read_share(examples, layers):
        for layer, states in zip(layers, batch.hidden_states, strict=True):
            values = states[:, list(neurons[layer])].float()
            rows = batch.rows[:, None].expand_as(values)
            for end, sign in ENDS.items():
                known = by_end[layer, end]
                by_end[layer, end] = _first(torch.cat([known[0], values]), torch.cat([known[1], rows]), sign, n)
    n_rows = min(n, examples.n_tokens)
    return Extremes(neurons, {at: _of_all_ranks(*pair, ENDS[at[1]], n, n_rows) for at, pair in by_end.items()})


def _first(values: Tensor, rows: Tensor, sign: int, n: int) -> tuple[Tensor, Tensor]:
    """Return the first values of each column, and their rows; of equal values, the first."""
    first = (sign * values).sort(dim=0, descending=True, stable=True).indices[:n]
    return values.gather(0, first), rows.gather(0, first)


def _of_all_ranks(values: Tensor, rows: Tensor, sign: int, n: int, n_rows: int) -> tuple[Tensor, Tensor]:
    """Merge the first values of all ranks."""
    rank, n_ranks = rank_and_world_size()
    all_values, all_rows = values.new_zeros(n_ranks, n, values.shape[1]), rows.new_zeros(n_ranks, n, rows.shape[1])
    all_values[rank], all_rows[rank] = -sign * torch.inf, torch.iinfo(torch.int64).max  # those of no token come last
    all_values[rank, : len(values)], all_rows[rank, : len(rows)] = values, rows
    values, rows = (sum_over_ranks(of_ranks).flatten(0, 1) for of_ranks in (all_values, all_rows))
    rows, order = rows.sort(dim=0)
    return _first(values.gather(0, order), rows, sign, n_rows)


# The terminal's sentence gives the accuracy in so many equal parts of the positions.
PARTS = 3

Classes = NDArray[np.int32]


def predicted_classes(test: Examples, layers: Sequence[int], weights: Sequence[Tensor]) -> list[Classes]:
    """Stream test tokens, divided among ranks; return each layer's predicted class indices, (n_tokens,), -1 if none."""
    classes = torch.zeros(len(layers), len(test.labels), dtype=torch.int32)
    for batch in read_share(test, layers):
        for of_layer, states, weight in zip(classes, batch.hidden_states, weights, strict=True):
            of_layer[batch.rows] = (states.to(weight.dtype) @ weight.T).argmax(1).to(classes) + 1
    return list(sum_over_ranks(classes).numpy() - 1)


def class_scores(sides: Sides, layer: int, predicted: Classes) -> list[dict[str, Any]]:
    """Return a row per class of `sides`, as in `class_scores.csv`; NaN where there is nothing to measure."""
    test, labels = sides.test, sides.classes.tolist()
    labelled = np.flatnonzero(test.labels >= 0)
    true, taken_for = test.labels[labelled], predicted[labelled]
    clusters = test.cluster_of_sentence()[test.store.tokens.sentences[labelled]]
    n_train, right = sides.train.counts(len(labels)), true == taken_for
    of_true, of_taken = (_groups(of, len(labels)) for of in (true, taken_for))
    rows = []
    for i, label in enumerate(labels):
        actual, taken = of_true[i], of_taken[i]
        wrong = np.bincount(taken_for[actual][~right[actual]], minlength=len(labels))
        most = int(wrong.argmax())
        rows.append(
            {
                "layer": layer, "class": label, "n_train_tokens": int(n_train[i]), "n_test_tokens": len(actual),
                "n_predicted": len(taken),
                **_share("recall", right[actual], clusters[actual]),
                **_share("precision", right[taken], clusters[taken]),
                "f1": 2 * int(right[actual].sum()) / n_both if (n_both := len(actual) + len(taken)) else float("nan"),
                "confused_with": labels[most] if wrong[most] else "", "n_confused": int(wrong[most]),
            }
        )  # fmt: skip
    return rows


def _groups(of: Classes, n_classes: int) -> list[NDArray[np.int64]]:
    """Return the indices of each class, ascending."""
    order = np.argsort(of, kind="stable")
    return np.split(order, np.searchsorted(of[order], np.arange(1, n_classes)))


def _share(name: str, right: NDArray[np.bool_], clusters: NDArray[np.int64]) -> dict[str, float]:
    """Return the share of correct tokens, with its confidence interval over their clusters."""
    _, cluster, n_tokens = np.unique(clusters, return_inverse=True, return_counts=True)
    correct = np.bincount(cluster[right], minlength=len(n_tokens))
    low, high = accuracy_interval(correct, n_tokens) if len(right) else NO_INTERVAL
    return {name: float(right.mean()) if len(right) else float("nan"), f"{name}_low": low, f"{name}_high": high}


def confusions(sides: Sides, layer: int, predicted: Classes) -> list[dict[str, Any]]:
    """Return a row per class and predicted class that occur together, as in `confusions.csv`."""
    labels, labelled = sides.classes.tolist(), sides.test.labels >= 0
    pairs, counts = np.unique(
        np.stack([sides.test.labels[labelled], predicted[labelled]], 1), axis=0, return_counts=True
    )
    return [
        {"layer": layer, "class": labels[true], "predicted": labels[taken_for], "n_test_tokens": n}
        for (true, taken_for), n in zip(pairs.tolist(), counts.tolist(), strict=True)
    ]


def positions_of(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return rows of `class_scores.csv` as rows of `positions.csv`: the accuracy at a position is its recall."""
    names = {
        "layer": "layer", "class": "position", "recall": "accuracy", "recall_low": "accuracy_low",
        "recall_high": "accuracy_high", "n_train_tokens": "n_train_tokens", "n_test_tokens": "n_test_tokens",
    }  # fmt: skip
    return [{name: row[column] for column, name in names.items()} for row in rows]


def position_line(rows: Sequence[Row]) -> str:
    """Return a sentence with a layer's accuracy in each third of the positions, "" for too few positions."""
    occupied = [row for row in rows if row["n_test_tokens"]]
    if len(occupied) < PARTS:
        return ""
    parts = [part.tolist() for part in np.array_split(np.arange(len(occupied)), PARTS)]
    thirds = []
    for part in parts:
        part_rows = [occupied[i] for i in part]
        right = sum(row["accuracy"] * row["n_test_tokens"] for row in part_rows)
        mean = right / sum(row["n_test_tokens"] for row in part_rows)
        thirds.append(f"{mean:.3f} at positions {part_rows[0]['position']} to {part_rows[-1]['position']}")
    return say("positions", layer=occupied[0]["layer"], parts=", ".join(thirds[:-1]), last=thirds[-1])
