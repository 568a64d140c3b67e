"""Interventions: remove some neurons from a model and measure what its output loses.

Two different experiments share this name. If a neuron is zeroed *inside the model*, its gain and bias are set to 0 in
the LayerNorm after every block, so that it is 0 in everything that a block passes on (Kovaleva et al. 2021; Puccetti et
al. 2022: two neurons, 48 parameters, cost BERT nearly 30 points on MNLI). If a neuron is *clipped after* the model, it
is set to 0 in the last hidden states only (Luo, Kulmizev & Mao 2021: little is lost). Both findings are right; one
table shows both, each compared with the same change of random neurons.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from probing.statistics.chance import percentile_of, rank_p
from probing.statistics.intervals import accuracy_interval, difference_interval, mean_interval

Where = Literal["inside", "after", "first", "second", "both", "first_row"]
Kind = Literal["outliers", "largest_gain", "random"]
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Condition:
    """Neurons that are changed, and where.

    Args:
        where: `inside`: in every LayerNorm after a block; `after`: in the last hidden states only. Where parameters are
            set to averages: in the `first` norm of every block, the `second`, or `both`; or in the position table's row
            of the first position (`first_row`).
        kind: How the neurons were chosen.
        neurons: Indices of the neurons, ascending.
        draw: Number of the random draw, from 1; 0 if they are not random.
    """

    where: Where
    kind: Kind
    neurons: tuple[int, ...]
    draw: int = 0


class Read(NamedTuple):
    """A model's measures for each sentence, as sums over its tokens.

    Args:
        sums: Sum of each measure, by name, shape (n_sentences,).
        n_tokens: Number of tokens in each sum, by name, shape (n_sentences,).
    """

    sums: dict[str, Array]
    n_tokens: dict[str, NDArray[np.int64]]


# Measures the model in its present state, once for each set of neurons that are set to 0 in its last hidden states.
Reader = Callable[[Sequence[Sequence[int]]], list[Read]]

# Sign that makes a change of the measure positive where the model gets worse.
HARM = {"mlm_loss": 1, "position_accuracy": -1, "position_accuracy_retrained": -1}
# Measures that are means of numbers; the others are shares of tokens.
MEANS = {"mlm_loss"}


@contextmanager
def replaced(norms: Sequence[nn.Module], neurons: Sequence[int], value_of: Callable[[Tensor], float]) -> Iterator[None]:
    """Set the gain and bias of some neurons to another value in each norm; on exit restore all of them exactly.

    Args:
        norms: Modules with a `weight` of shape (d_model,) and optionally a `bias`.
        neurons: Indices of the neurons.
        value_of: Takes a gain or a bias as it was, shape (d_model,), and returns the value to set.
    """
    parameters = [
        parameter
        for norm in dict.fromkeys(norms)
        for parameter in (norm.weight, getattr(norm, "bias", None))
        if isinstance(parameter, Tensor)
    ]
    index = torch.tensor(list(neurons), dtype=torch.int64)
    before = [parameter.detach()[index.to(parameter.device)].clone() for parameter in parameters]
    try:
        with torch.no_grad():
            for parameter in parameters:
                parameter[index.to(parameter.device)] = value_of(parameter.detach())
        yield
    finally:
        with torch.no_grad():
            for parameter, values in zip(parameters, before, strict=True):
                parameter[index.to(parameter.device)] = values


def zeroed(norms: Sequence[nn.Module], neurons: Sequence[int]) -> AbstractContextManager[None]:
    """Set the gain and bias of some neurons to 0 in each norm; on exit restore all of them exactly."""
    return replaced(norms, neurons, lambda parameter: 0.0)


def conditions(outliers: Sequence[int], gains: Array, n_draws: int, seed: int) -> list[Condition]:
    """Return the conditions to compare: outliers, as many of the other neurons with the largest gains, and random ones.

    Args:
        outliers: The outlier neurons, at most half of all neurons.
        gains: Mean magnitude of each neuron's gain over the norms, shape (d_model,).
        n_draws: Number of draws of random neurons.
        seed: Seed of these draws.

    Raises:
        ValueError: If there are no outliers, or too many for as many others to be drawn.
    """
    named = sorted(set(outliers))
    others = np.setdiff1d(np.arange(len(gains)), named)
    if not 0 < len(named) <= len(others):
        raise ValueError(f"{len(named)} outliers of {len(gains)} neurons")
    generator = np.random.default_rng(seed)
    drawn = [
        tuple(sorted(generator.choice(others, len(named), replace=False).tolist())) for _ in range(n_draws)
    ]  # fmt: skip
    largest = others[np.argsort(-gains[others], kind="stable")[: len(named)]]
    return [
        Condition("inside", "outliers", tuple(named)),
        Condition("inside", "largest_gain", tuple(sorted(largest.tolist()))),
        *(Condition("inside", "random", neurons, draw) for draw, neurons in enumerate(drawn, start=1)),
        Condition("after", "outliers", tuple(named)),
        *(Condition("after", "random", neurons, draw) for draw, neurons in enumerate(drawn, start=1)),
    ]


def intervene(
    norms: Sequence[nn.Module],
    chosen: Sequence[Condition],
    reader: Reader,
    say: Callable[[str], None] = lambda message: None,
) -> list[dict[str, Any]]:
    """Measure a model when it is intact and under each condition.

    Args:
        norms: The LayerNorm after each block.
        chosen: The conditions.
        reader: Measures the model in its present state.
        say: Receives a line for each pass.

    Returns:
        Rows of `interventions.csv`. `effect` is the value minus the intact model's, with its interval over sentences,
        paired; the ends are NaN where there are too few sentences. For outliers and largest gains, `percentile` is the
        percentage of random draws, in the same place, that harm less, and `p_value` is (1 + number of draws that harm
        at least as much) / (1 + number of draws).
    """
    after = [condition for condition in chosen if condition.where == "after"]
    say("the intact model")
    intact, *clipped = reader([(), *(condition.neurons for condition in after)])
    found = dict(zip(after, clipped, strict=True))
    for condition in chosen:
        if condition.where == "inside":
            say(f"without {condition.kind.replace('_', ' ')}" + (f" {condition.draw}" if condition.draw else ""))
            with zeroed(norms, condition.neurons):
                (found[condition],) = reader([()])
    return effect_rows(intact, {condition: found[condition] for condition in chosen})


def effect_rows(intact: Read, found: Mapping[Condition, Read]) -> list[dict[str, Any]]:
    """Return a row for the intact model and for each condition, measure by measure; see `intervene`."""
    rows, chosen = [], list(found)
    for measure, n_tokens in intact.n_tokens.items():
        value, effects = _effects(measure, intact, [found[condition] for condition in chosen])
        about: dict[str, Any] = {"measure": measure, "where": "", "kind": "intact", "n_tokens": int(n_tokens.sum())}
        rows.append(about | value)
        of = dict(zip(chosen, effects, strict=True))
        for condition in chosen:
            row = about | {"where": condition.where, "kind": condition.kind} | of[condition]
            row["neurons"] = " ".join(map(str, condition.neurons))
            if condition.kind == "random":
                row["draw"] = condition.draw
            else:
                random = [e["effect"] for c, e in of.items() if (c.where, c.kind) == (condition.where, "random")]
                row |= among(row["effect"], random, HARM[measure])
            rows.append(row)
    return rows


def _effects(measure: str, intact: Read, reads: Sequence[Read]) -> tuple[dict[str, float], list[dict[str, float]]]:
    """Return the intact model's value, and the value and effect of each condition, all with intervals."""
    before, n_tokens = intact.sums[measure], intact.n_tokens[measure]
    of_value, of_effect = (
        (mean_interval, mean_interval) if measure in MEANS else (accuracy_interval, difference_interval)
    )

    def value(sums: Array) -> dict[str, float]:
        low, high = of_value(sums, n_tokens)
        return {"value": float(sums.sum() / n_tokens.sum()), "low": low, "high": high}

    def effect(difference: Array) -> dict[str, float]:
        low, high = of_effect(difference, n_tokens)
        return {"effect": float(difference.sum() / n_tokens.sum()), "effect_low": low, "effect_high": high}

    after = [read.sums[measure] for read in reads]
    return value(before), [value(sums) | effect(sums - before) for sums in after]


def among(effect: float, random: Sequence[float], harm: int) -> dict[str, float]:
    """Return an effect's percentile and p-value among the effects of random neurons; nothing without any.

    Args:
        effect: The effect.
        random: Those of random neurons.
        harm: 1 where a larger effect is a greater harm, -1 where a smaller one is.
    """
    if not random:
        return {}
    value, drawn = harm * effect, harm * np.asarray(random)
    return {"percentile": percentile_of(value, drawn), "p_value": rank_p(value, drawn)}
