"""Removes the outliers from the first position's row: their entries are set to the mean over later rows.

In BERT, only the row of the first position, that of [CLS], has the outlier, and yet the hidden states of all tokens
have it; in RoBERTa, most rows have it (Luo, Kulmizev & Mao 2021, section 5). This module measures whether hidden states
still have the outlier after it is removed from this row and, as a control, after random neurons of the row are changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from probing.internals.interventions import Condition
from probing.internals.norm_changes import deviation_rows
from probing.schemas.geometry import FIRST_ROW
from probing.statistics.outliers import MEAN_DEVIATIONS
from probing.transforms.affine import random_neurons

Array = NDArray[np.float64]
Rows = Sequence[Mapping[str, Any]]


@contextmanager
def ordinary_row(table: nn.Module, first_row: int, neurons: Sequence[int]) -> Iterator[None]:
    """Set the entries of some neurons in the first position's row to their mean over later rows; on exit restore them.

    Args:
        table: The position table, with a `weight` of shape (n_rows, d_model).
        first_row: The row of the first position; rows before it are never used, and do not count.
        neurons: Indices of the neurons.
    """
    weight = table.weight
    assert isinstance(weight, Tensor)
    index = torch.tensor(list(neurons), dtype=torch.int64, device=weight.device)
    before = weight.detach()[first_row, index].clone()
    try:
        with torch.no_grad():
            weight[first_row, index] = weight[first_row + 1 :][:, index].double().mean(0).to(weight.dtype)
        yield
    finally:
        with torch.no_grad():
            weight[first_row, index] = before


def change_first_row(
    table: nn.Module,
    first_row: int,
    outliers: Mapping[int, Sequence[int]],
    read: Callable[[], Array],
    n_draws: int,
    seed: int,
    n_tokens: int,
    say: Callable[[str], None] = lambda message: None,
) -> list[dict[str, Any]]:
    """Measure where outliers are when the model is intact, and when the first position's row has none.

    Args:
        table: The position table.
        first_row: The row of the first position.
        outliers: Outliers of each layer.
        read: Returns how far the mean of each neuron is from the others' in each layer of the model in its present
            state, shape (n_layers + 1, d_model), in standard deviations.
        n_draws: Number of draws of as many random neurons.
        seed: Seed of these draws.
        n_tokens: Number of tokens that the means are over.
        say: Receives a line for each pass.

    Returns:
        Rows of `first_row.csv`; its columns are those of `norm_changes.csv`.
    """
    named = sorted({neuron for those in outliers.values() for neuron in those})
    say("the intact model")
    before = read()
    generator = np.random.default_rng([seed, 4])
    conditions = [Condition("first_row", "outliers", tuple(named))]
    for draw in range(1, n_draws + 1):
        drawn = random_neurons(before.shape[1], len(named), named, generator)
        conditions.append(Condition("first_row", "random", tuple(drawn), draw))
    after: dict[Condition, Array] = {}
    for condition in conditions:
        words = {"outliers": "outliers", "random": f"random neurons {condition.draw}"}[condition.kind]
        say(f"the first position's row without its {words}")
        with ordinary_row(table, first_row, condition.neurons):
            after[condition] = read()
    pairs = [(layer, neuron) for layer, those in sorted(outliers.items()) for neuron in those]
    rows = [row for pair in pairs for row in deviation_rows(*pair, before, after, n_tokens)]
    return [{name: cell for name, cell in row.items() if name in FIRST_ROW.types} for row in rows]


def first_row_conclusions(rows: Rows) -> list[str]:
    """Return a sentence on how many outliers of layers words still have."""
    intact = {(row["layer"], row["neuron"]) for row in rows if (row["kind"], row["outlier"]) == ("intact", "yes")}
    if not intact:
        return []

    def left(kind: str) -> list[int]:
        draws: dict[Any, int] = {}
        for row in rows:
            if row["kind"] == kind and (row["layer"], row["neuron"]) in intact:
                draws[row.get("draw")] = draws.get(row.get("draw"), 0) + (row["outlier"] == "yes")
        return list(draws.values())

    (own,), random = left("outliers"), left("random")
    beside = f"; with random neurons instead {min(random)} to {max(random)}" if random else ""
    return [
        f"With the outliers' entries in the position table's first row set to the mean of later rows, {own} of "
        f"{len(intact)} outliers of layers are still beyond {MEAN_DEVIATIONS:g} sd{beside}."
    ]
