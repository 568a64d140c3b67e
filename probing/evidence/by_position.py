"""Accuracy of a position probe at each position, which one accuracy over all tokens hides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.data.examples import Examples, Sides, read_share
from probing.results.schema import Row
from probing.runtime.processes import sum_over_ranks
from probing.statistics.intervals import NO_INTERVAL, accuracy_interval
from probing.tables.evidence_sentences import say

# The terminal's sentence gives the accuracy in so many equal parts of the positions.
PARTS = 3


def accuracy_by_position(sides: Sides, layers: Sequence[int], weights: Sequence[Tensor]) -> list[dict[str, Any]]:
    """Stream the test tokens, divided among ranks, and return a row per layer and position, as in `positions.csv`.

    Args:
        sides: Examples of a task whose classes are numbers; test tokens of other positions are left out.
        layers: Layer numbers.
        weights: Weight of each layer's probe on raw hidden states, shape (n_classes, d_model).
    """
    test, n_train = sides.test, sides.train.counts(len(sides.classes))
    rows = []
    for layer, weight in zip(layers, weights, strict=True):
        right = _right(test, layer, weight)
        for i, label in enumerate(sides.classes.tolist()):
            of_class = test.labels == i
            correct, n_tokens = (_by_cluster(test, tokens) for tokens in (of_class & right, of_class))
            n_test = int(of_class.sum())
            low, high = accuracy_interval(correct, n_tokens) if n_test else NO_INTERVAL
            rows.append(
                {
                    "layer": layer, "position": label,
                    "accuracy": float(correct.sum() / n_test) if n_test else float("nan"),
                    "accuracy_low": low, "accuracy_high": high,
                    "n_train_tokens": int(n_train[i]), "n_test_tokens": n_test,
                }
            )  # fmt: skip
    return rows


def _right(test: Examples, layer: int, weight: Tensor) -> NDArray[np.bool_]:
    """Return which tokens a probe predicts correctly, shape (n_tokens,)."""
    right = torch.zeros(len(test.labels), dtype=torch.uint8)
    for batch in read_share(test, [layer]):
        predicted = (batch.hidden_states[0].to(weight.dtype) @ weight.T).argmax(1)
        right[batch.rows] = (predicted == batch.labels).to(right)
    return sum_over_ranks(right).numpy().astype(bool)


def _by_cluster(test: Examples, tokens: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return how many of the selected tokens each cluster (sentence or document) has."""
    table = test.store.tokens
    return test.clusters(np.bincount(table.sentences[tokens], minlength=table.n_sentences)).astype(np.int64)


def position_line(rows: Sequence[Row]) -> str:
    """Return a sentence with the accuracy of a layer's probe in each third of the positions, "" for too few positions.

    Args:
        rows: Rows of one layer, ordered by position.
    """
    there = [row for row in rows if row["n_test_tokens"]]
    if len(there) < PARTS:
        return ""
    parts = [part.tolist() for part in np.array_split(np.arange(len(there)), PARTS)]
    said = []
    for part in parts:
        own = [there[i] for i in part]
        right = sum(row["accuracy"] * row["n_test_tokens"] for row in own)
        mean = right / sum(row["n_test_tokens"] for row in own)
        said.append(f"{mean:.3f} at positions {own[0]['position']} to {own[-1]['position']}")
    return say("positions", layer=there[0]["layer"], parts=", ".join(said[:-1]), last=said[-1])
