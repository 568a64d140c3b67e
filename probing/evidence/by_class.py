"""How well a probe reads each class, which one accuracy over all tokens hides, and what it confuses."""

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

Classes = NDArray[np.int32]


def predicted_classes(test: Examples, layers: Sequence[int], weights: Sequence[Tensor]) -> list[Classes]:
    """Stream the test tokens once, divided among ranks, and return what each layer's probe predicts.

    Args:
        test: Test examples.
        layers: Layer numbers.
        weights: Weight of each layer's probe on raw hidden states, shape (n_classes, d_model).

    Returns:
        For each layer the index of the predicted class of each token, -1 where it is no example, shape (n_tokens,).
    """
    found = torch.zeros(len(layers), len(test.labels), dtype=torch.int32)
    for batch in read_share(test, layers):
        for of_layer, states, weight in zip(found, batch.hidden_states, weights, strict=True):
            of_layer[batch.rows] = (states.to(weight.dtype) @ weight.T).argmax(1).to(found) + 1
    return list(sum_over_ranks(found).numpy() - 1)


def class_scores(sides: Sides, layer: int, predicted: Classes) -> list[dict[str, Any]]:
    """Return a row per class, as in `class_scores.csv`; NaN where there is nothing to measure.

    Args:
        sides: Examples and their classes; test tokens of other classes are left out.
        layer: The layer.
        predicted: Index of the predicted class of each test token, shape (n_tokens,).
    """
    test, labels = sides.test, sides.classes.tolist()
    here = np.flatnonzero(test.labels >= 0)
    true, taken_for = test.labels[here], predicted[here]
    clusters = test.cluster_of_sentence()[test.store.tokens.sentences[here]]
    n_train, right = sides.train.counts(len(labels)), true == taken_for
    of_true, of_taken = (_groups(of, len(labels)) for of in (true, taken_for))
    rows = []
    for i, label in enumerate(labels):
        own, taken = of_true[i], of_taken[i]
        wrong = np.bincount(taken_for[own][~right[own]], minlength=len(labels))
        most = int(wrong.argmax())
        rows.append(
            {
                "layer": layer, "class": label, "n_train_tokens": int(n_train[i]), "n_test_tokens": len(own),
                "n_predicted": len(taken),
                **_share("recall", right[own], clusters[own]), **_share("precision", right[taken], clusters[taken]),
                "f1": 2 * int(right[own].sum()) / (len(own) + len(taken)) if len(own) + len(taken) else float("nan"),
                "confused_with": labels[most] if wrong[most] else "", "n_confused": int(wrong[most]),
            }
        )  # fmt: skip
    return rows


def _groups(of: Classes, n_classes: int) -> list[NDArray[np.int64]]:
    """Return the indices of each class, ascending."""
    order = np.argsort(of, kind="stable")
    return np.split(order, np.searchsorted(of[order], np.arange(1, n_classes)))


def _share(name: str, right: NDArray[np.bool_], clusters: NDArray[np.int64]) -> dict[str, float]:
    """Return the share of some tokens that are right, and its interval over their clusters."""
    _, cluster, n_tokens = np.unique(clusters, return_inverse=True, return_counts=True)
    correct = np.bincount(cluster[right], minlength=len(n_tokens))
    low, high = accuracy_interval(correct, n_tokens) if len(right) else NO_INTERVAL
    return {name: float(right.mean()) if len(right) else float("nan"), f"{name}_low": low, f"{name}_high": high}


def confusions(sides: Sides, layer: int, predicted: Classes) -> list[dict[str, Any]]:
    """Return a row per class and predicted class that occur together, as in `confusions.csv`.

    Args:
        sides: Examples and their classes.
        layer: The layer.
        predicted: Index of the predicted class of each test token, shape (n_tokens,).
    """
    labels, here = sides.classes.tolist(), sides.test.labels >= 0
    pairs, counts = np.unique(np.stack([sides.test.labels[here], predicted[here]], 1), axis=0, return_counts=True)
    return [
        {"layer": layer, "class": labels[true], "predicted": labels[taken_for], "n_test_tokens": n}
        for (true, taken_for), n in zip(pairs.tolist(), counts.tolist(), strict=True)
    ]


def positions_of(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return rows of `class_scores.csv` as those of `positions.csv`: the accuracy at a position is its recall."""
    names = {
        "layer": "layer", "class": "position", "recall": "accuracy", "recall_low": "accuracy_low",
        "recall_high": "accuracy_high", "n_train_tokens": "n_train_tokens", "n_test_tokens": "n_test_tokens",
    }  # fmt: skip
    return [{name: row[column] for column, name in names.items()} for row in rows]


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
