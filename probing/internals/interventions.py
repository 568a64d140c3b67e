"""Does a model need some of its neurons? They are taken out inside it, and what it says afterwards is measured.

Two different experiments go by the same words. Zeroed *inside the model*, a neuron's gain and bias are 0 in the
LayerNorm behind every block, so that it is 0 in all that a block hands to the next (Kovaleva et al. 2021; Puccetti et
al. 2022: two neurons, 48 parameters, cost BERT nearly 30 points on MNLI). *Clipped after*, the last hidden states alone
are changed, and whatever reads them does without (Luo, Kulmizev & Mao 2021: little is lost). Both are right, and here
they stand in one table, each beside as many random neurons.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from probing.statistics.intervals import accuracy_interval, difference_interval, mean_interval

INTERVENTION_COLUMNS = (
    "measure", "where", "kind", "draw", "neurons", "value", "low", "high", "effect", "effect_low", "effect_high",
    "percentile", "p_value", "n_tokens",
)  # fmt: skip

Where = Literal["inside", "after"]
Kind = Literal["outliers", "largest_gain", "random"]
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Condition:
    """Neurons that are taken out, and where.

    Args:
        where: In every LayerNorm behind a block, or in the last hidden states only.
        kind: What neurons they are.
        neurons: Which, ascending.
        draw: Of random ones, which draw, from 1.
    """

    where: Where
    kind: Kind
    neurons: tuple[int, ...]
    draw: int = 0


class Read(NamedTuple):
    """What a model says, for each sentence: sums over tokens.

    Args:
        sums: By measure, shape (n_sentences,).
        n_tokens: How many tokens each is over, by measure, shape (n_sentences,).
    """

    sums: dict[str, Array]
    n_tokens: dict[str, NDArray[np.int64]]


# Reads the model as it stands, once for each set of neurons that are set to 0 in its last hidden states.
Reader = Callable[[Sequence[Sequence[int]]], list[Read]]

# Measures that are larger where the model does worse.
HARM = {"mlm_loss": 1, "position_accuracy": -1, "position_accuracy_retrained": -1}
# Those that are means of numbers rather than shares of tokens.
MEANS = {"mlm_loss"}


@contextmanager
def zeroed(norms: Sequence[nn.Module], neurons: Sequence[int]) -> Iterator[None]:
    """Set the gain and the bias of some neurons to 0 in each norm; afterwards all are as they were, bit for bit.

    Args:
        norms: Modules with a `weight` of shape (d_model,), and perhaps a `bias`.
        neurons: Which neurons.
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
                parameter[index.to(parameter.device)] = 0
        yield
    finally:
        with torch.no_grad():
            for parameter, values in zip(parameters, before, strict=True):
                parameter[index.to(parameter.device)] = values


def conditions(outliers: Sequence[int], gains: Array, n_draws: int, seed: int) -> list[Condition]:
    """Return what is compared: outliers, as many of the largest other gains, and as many random other neurons.

    Args:
        outliers: The neurons in question; at most half of all.
        gains: Mean magnitude of each neuron's gain over the norms, shape (d_model,).
        n_draws: How many times random neurons are drawn.
        seed: Of these.

    Raises:
        ValueError: If there are no outliers, or too many to draw others.
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
    """Read a model as it is and under each condition.

    Args:
        norms: The LayerNorm behind each block.
        chosen: The conditions.
        reader: Reads the model as it stands.
        say: Takes a line for each pass.

    Returns:
        Rows as in `interventions.csv`. `effect` is the value less the intact model's, with its interval over sentences,
        paired; ends are NaN where sentences are too few. Of outliers and largest gains, `percentile` is the share of
        random draws (same place) that do less harm, times 100, and `p_value` (1 + draws that do as much or more) / (1 +
        draws).
    """
    after = [condition for condition in chosen if condition.where == "after"]
    say("the model as it is")
    intact, *clipped = reader([(), *(condition.neurons for condition in after)])
    found = dict(zip(after, clipped, strict=True))
    for condition in chosen:
        if condition.where == "inside":
            say(f"without {condition.kind.replace('_', ' ')}" + (f" {condition.draw}" if condition.draw else ""))
            with zeroed(norms, condition.neurons):
                (found[condition],) = reader([()])
    rows = []
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
                row |= _among(row, [e for c, e in of.items() if (c.where, c.kind) == (condition.where, "random")])
            rows.append(row)
    return rows


def _effects(measure: str, intact: Read, reads: Sequence[Read]) -> tuple[dict[str, float], list[dict[str, float]]]:
    """Return what is measured of the intact model, and of others with how far that is from it, with intervals."""
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


def _among(row: dict[str, Any], random: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return where an effect is among those of random neurons."""
    if not random:
        return {}
    harm = HARM[row["measure"]]
    others = np.array([harm * one["effect"] for one in random])
    as_much = int((others >= harm * row["effect"]).sum())
    return {
        "percentile": 100 * (len(others) - as_much) / len(others),
        "p_value": (1 + as_much) / (1 + len(others)),
    }
