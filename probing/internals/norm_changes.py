"""Sets gains and biases of some neurons in norms to the mean of the other neurons, to remove outliers.

This is done in the first norm of every block, in the second, and in both, for the outliers and, as a control, for as
many random neurons. This measures whether the outliers are still there, and what the model's output loses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from probing.cache.tokens import Tokens
from probing.internals.interventions import Condition, Read, Where, among, effect_rows, replaced
from probing.internals.readouts import BATCH_TOKENS, token_batches
from probing.models.anatomy import Anatomy, hidden_states
from probing.runtime.memory import give_back_memory
from probing.statistics.outliers import MEAN_DEVIATIONS, deviations_of
from probing.transforms.affine import random_neurons

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
