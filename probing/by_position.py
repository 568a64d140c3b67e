"""Where in a sentence a probe of positions is right: what one accuracy over all tokens does not tell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from probing.columns import Row
from probing.examples import Examples, Sides, read
from probing.intervals import accuracy_interval

POSITION_COLUMNS = (
    "layer", "position", "accuracy", "accuracy_low", "accuracy_high", "n_train_tokens", "n_test_tokens",
)  # fmt: skip
# Of how many thirds of the positions a sentence tells the accuracy.
PARTS = 3


def accuracy_by_position(sides: Sides, layers: Sequence[int], weights: Sequence[Tensor]) -> list[dict[str, Any]]:
    """Return a row per layer and position, as in `positions.csv`; test tokens of other positions do not count.

    Args:
        sides: Examples of a task whose classes are numbers.
        layers: Layer numbers.
        weights: Of each layer's probe, on raw hidden states, shape (n_classes, d_model).
    """
    n_train = sides.train.counts(len(sides.classes))
    rows = []
    for layer, weight in zip(layers, weights, strict=True):
        for i, (correct, n_tokens) in enumerate(_by_class(sides.test, layer, weight, len(sides.classes))):
            n_test = int(n_tokens.sum())
            low, high = accuracy_interval(correct, n_tokens) if n_test else (float("nan"), float("nan"))
            rows.append(
                {
                    "layer": layer, "position": int(sides.classes[i]),
                    "accuracy": float(correct.sum() / n_test) if n_test else float("nan"),
                    "accuracy_low": low, "accuracy_high": high,
                    "n_train_tokens": int(n_train[i]), "n_test_tokens": n_test,
                }
            )  # fmt: skip
    return rows


def _by_class(
    test: Examples, layer: int, weight: Tensor, n_classes: int
) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Return for each class how many of its tokens each sentence, or document, that has any gets right, and has."""
    labels, sentences, right = [], [], []
    for batch in read(test, [layer]):
        predicted = (batch.hidden_states[0].to(weight.dtype) @ weight.T).argmax(1)
        labels.append(batch.labels.numpy())
        sentences.append(batch.sentences.numpy())
        right.append((predicted == batch.labels).numpy())
    of_class, of_sentence, is_right = (np.concatenate(parts) for parts in (labels, sentences, right))
    if test.documents is not None:
        of_sentence = test.documents[of_sentence]
    found = []
    for i in range(n_classes):
        own = of_class == i
        _, places = np.unique(of_sentence[own], return_inverse=True)
        found.append((np.bincount(places, is_right[own]).astype(np.int64), np.bincount(places)))
    return found


def position_line(rows: Sequence[Row]) -> str:
    """Say how accurate a layer's probe is in each third of the positions.

    Args:
        rows: Of one layer, by position.
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
    return f"Layer {there[0]['layer']}: accuracy {', '.join(said[:-1])} and {said[-1]}; each is in positions.csv."
