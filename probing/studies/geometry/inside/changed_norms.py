"""Norms whose outliers are set to the mean of the other neurons, and the first position's row without its outliers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from probing.cache.tokens import Tokens
from probing.models.anatomy import Anatomy, hidden_states
from probing.probes.transforms import random_neurons
from probing.readouts.later_blocks import Condition, Read, Where, among, effect_rows, replaced
from probing.readouts.model_output import BATCH_TOKENS, token_batches
from probing.runtime.machine import give_back_memory
from probing.statistics.moments import MEAN_DEVIATIONS, deviations_of
from probing.studies.geometry.schema import FIRST_ROW

# Numbers of the norms of a block that are changed.
PLACES: Mapping[Where, tuple[int, ...]] = {"first": (1,), "second": (2,), "both": (1, 2)}

Array = NDArray[np.float64]


class Seen(NamedTuple):
    """What a model computes in its present state.

    Args:
        last: Last hidden states, shape (n_tokens, d_model), float32.
        deviations: Mean of each neuron in each layer, in standard deviations of the layer's neurons, shape
            (n_layers + 1, d_model).
    """

    last: Tensor
    deviations: Array


@torch.inference_mode()
def see_layers(
    encoder: nn.Module, anatomy: Anatomy, tokens: Tokens, counts: NDArray[np.bool_], pad_token_id: int
) -> Seen:
    """Run a model on sentences.

    Args:
        encoder: The model, in evaluation mode.
        anatomy: Its structure.
        tokens: The token table of the sentences.
        counts: Which tokens the means are over, shape (n_tokens,).
        pad_token_id: Token id that fills a batch.
    """
    layers, device = range(anatomy.n_layers + 1), next(encoder.parameters()).device
    last, sums = torch.empty(0), torch.empty(0)
    for batch in token_batches(tokens, pad_token_id, BATCH_TOKENS, anatomy.padding_is_neutral):
        inputs = {"input_ids": batch.input_ids.to(device), "attention_mask": batch.mask.long().to(device)}
        states = hidden_states(encoder, anatomy, layers, **inputs)
        if not last.numel():
            d_model = states[0].shape[-1]
            last, sums = torch.empty(tokens.n_tokens, d_model), torch.zeros(len(layers), d_model, dtype=torch.float64)
        here = batch.mask & torch.from_numpy(counts)[batch.rows]
        for layer, state in states.items():
            sums[layer] += state.cpu()[here].double().sum(0)
        last[batch.rows[batch.mask]] = states[anatomy.n_layers].float().cpu()[batch.mask]
    return Seen(last, np.stack([deviations_of(mean) for mean in (sums / counts.sum()).numpy()]))


def chosen_conditions(outliers: Sequence[int], d_model: int, n_draws: int, seed: int) -> list[Condition]:
    """Return the conditions: the outliers and as many random others, in each choice of norms."""
    generator = np.random.default_rng([seed, 2])
    drawn = [random_neurons(d_model, len(outliers), outliers, generator) for _ in range(n_draws)]
    return [
        condition
        for where in PLACES
        for condition in (
            Condition(where, "outliers", tuple(outliers)),
            *(Condition(where, "random", tuple(neurons), draw) for draw, neurons in enumerate(drawn, start=1)),
        )
    ]


def change_norms(
    norms: Mapping[int, Sequence[nn.Module]],
    outliers: Mapping[int, Sequence[int]],
    chosen: Sequence[Condition],
    read: Callable[[], tuple[Read, Array]],
    n_tokens: int,
    say: Callable[[str], None] = lambda message: None,
) -> list[dict[str, Any]]:
    """Measure a model when it is intact and under each condition.

    Args:
        norms: Modules of the first and of the second norm of all blocks, by their numbers.
        outliers: Outliers of each layer.
        chosen: The conditions.
        read: Measures the model in its present state; also returns `Seen.deviations`.
        n_tokens: Number of tokens that these are means over.
        say: Receives a line for each pass.

    Returns:
        Rows of `norm_changes.csv`. Rows with the measure `deviations` say, for each layer and each of its outliers, how
        many standard deviations the mean of this neuron is from that of all neurons, and whether it is an `outlier`
        (more than 5); `percentile` is the percentage of random draws that reduce this distance less, and `p_value` is
        by rank. All other rows are as in `interventions.csv`.
    """
    named = sorted({neuron for those in outliers.values() for neuron in those})
    say("the intact model")
    intact, before = read()
    reads: dict[Condition, Read] = {}
    deviations: dict[Condition, Array] = {}
    for condition in chosen:
        words = {"outliers": "outliers", "random": f"random neurons {condition.draw}"}[condition.kind]
        say(f"{words} made ordinary in {'both norms' if condition.where == 'both' else f'the {condition.where} norm'}")
        modules = [module for number in PLACES[condition.where] for module in norms[number]]
        ordinary = _mean_of_others({*named, *condition.neurons})
        with replaced(modules, condition.neurons, ordinary):
            reads[condition], deviations[condition] = read()
        give_back_memory()
    pairs = [(layer, neuron) for layer, those in sorted(outliers.items()) for neuron in those]
    rows = [row for pair in pairs for row in deviation_rows(*pair, before, deviations, n_tokens)]
    return rows + effect_rows(intact, reads)


def _mean_of_others(neurons: set[int]) -> Callable[[Tensor], float]:
    """Return what gives the mean of a parameter over all but these neurons."""

    def mean(parameter: Tensor) -> float:
        others = torch.ones(len(parameter), dtype=torch.bool)
        others[sorted(neurons)] = False
        return float(parameter.cpu()[others].double().mean())

    return mean


def deviation_rows(
    layer: int, neuron: int, before: Array, after: Mapping[Condition, Array], n_tokens: int
) -> list[dict[str, Any]]:
    """Return the rows of a neuron's distance from the others in one layer."""
    intact = float(before[layer, neuron])
    about = {"measure": "deviations", "layer": layer, "neuron": neuron, "n_tokens": n_tokens}
    rows: list[dict[str, Any]] = [about | {"where": "", "kind": "intact"} | _deviation(intact)]
    found = {condition: float(values[layer, neuron]) for condition, values in after.items()}
    for condition, value in found.items():
        row: dict[str, Any] = about | {"where": condition.where, "kind": condition.kind} | _deviation(value)
        row |= {"effect": value - intact, "neurons": " ".join(map(str, condition.neurons))}
        if condition.kind == "random":
            row["draw"] = condition.draw
        else:
            random = [
                abs(other) for one, other in found.items() if (one.where, one.kind) == (condition.where, "random")
            ]
            row |= among(abs(value), random, harm=-1)
        rows.append(row)
    return rows


def _deviation(value: float) -> dict[str, Any]:
    return {"value": value, "outlier": "yes" if abs(value) > MEAN_DEVIATIONS else "no"}


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
