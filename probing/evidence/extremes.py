"""Examples on which neurons are highest and lowest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from probing.data.examples import Examples, read_share
from probing.runtime.processes import rank_and_world_size, sum_over_ranks

ENDS = {"highest": 1, "lowest": -1}


@dataclass(frozen=True)
class Extremes:
    """The most extreme activations of some neurons.

    Args:
        neurons: The neurons, by layer.
        found: By layer and end, the activations and the rows of their tokens in the store, both of shape (n_extremes,
            n_neurons), the most extreme one first and of equal ones the first row.
    """

    neurons: Mapping[int, Sequence[int]]
    found: Mapping[tuple[int, str], tuple[Tensor, Tensor]]


def extremes(examples: Examples, neurons: Mapping[int, Sequence[int]], n: int) -> Extremes:
    """Stream the examples once, divided among ranks, and return the `n` most extreme activations at each end.

    Args:
        examples: The examples.
        neurons: Neurons by layer.
        n: Number of examples at each end; of fewer, all are returned.
    """
    layers = list(neurons)
    empty = {
        layer: (torch.empty(0, len(own)), torch.empty(0, len(own), dtype=torch.int64)) for layer, own in neurons.items()
    }
    found = {(layer, end): empty[layer] for layer in layers for end in ENDS}
    for batch in read_share(examples, layers):
        for layer, states in zip(layers, batch.hidden_states, strict=True):
            values = states[:, list(neurons[layer])].float()
            rows = batch.rows[:, None].expand_as(values)
            for end, sign in ENDS.items():
                known = found[layer, end]
                found[layer, end] = _first(torch.cat([known[0], values]), torch.cat([known[1], rows]), sign, n)
    n_there = min(n, examples.n_tokens)
    return Extremes(neurons, {at: _of_all_ranks(*own, ENDS[at[1]], n, n_there) for at, own in found.items()})


def _first(values: Tensor, rows: Tensor, sign: int, n: int) -> tuple[Tensor, Tensor]:
    """Return the first values of each column, and their rows; of equal values, the one that is given first."""
    first = (sign * values).sort(dim=0, descending=True, stable=True).indices[:n]
    return values.gather(0, first), rows.gather(0, first)


def _of_all_ranks(values: Tensor, rows: Tensor, sign: int, n: int, n_there: int) -> tuple[Tensor, Tensor]:
    """Return the first values that any rank has found."""
    rank, n_ranks = rank_and_world_size()
    all_values, all_rows = values.new_zeros(n_ranks, n, values.shape[1]), rows.new_zeros(n_ranks, n, rows.shape[1])
    all_values[rank], all_rows[rank] = -sign * torch.inf, torch.iinfo(torch.int64).max  # those of no token come last
    all_values[rank, : len(values)], all_rows[rank, : len(rows)] = values, rows
    values, rows = (sum_over_ranks(own).flatten(0, 1) for own in (all_values, all_rows))
    rows, order = rows.sort(dim=0)
    return _first(values.gather(0, order), rows, sign, n_there)
