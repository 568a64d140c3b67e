"""Rankings of a run's neurons under shuffled labels: the part of a ranking that does not come from the labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from probing.data.controls import permute_among_types, token_types
from probing.data.examples import Sides, read
from probing.data.module import layer_moments
from probing.probes.solvers import Problem
from probing.probes.training import Adam, LayerFit, Training, train_probes, train_problems
from probing.rankings.contributions import MagnitudeAccumulator, mean_contribution

# Bound on the distance of shuffled-label probes from their optima, in nats; the true distance is about its hundredth.
# On the built-in model (65 positions; 16 parts of speech) rankings at this tolerance correlate by .99 or more with
# those at the optima, and the agreement of two of them changes by .003 or less; for comparison, it varies by .04
# between draws.
NULL_TOLERANCE = 0.1
# Where labels say little, as under the strong penalty that is then chosen, a probe gains less than that over weight 0:
# it would stop there, and its ranking would be empty.
NULL_GAIN_SHARE = 0.03


def shuffled_among_types(sides: Sides, n_draws: int, seed: int) -> list[Sides]:
    """Give the labels of each word type to another type of similar frequency; return the sides of each of `n_draws`.

    A type has the same labels on all sides, so a probe that memorises words is also right about those of the test side.
    """
    parts = (sides.train, sides.validation, sides.test)
    rows = [np.flatnonzero(part.labels >= 0) for part in parts]
    labels = np.concatenate([part.labels[own] for part, own in zip(parts, rows, strict=True)])
    types = np.concatenate([token_types(part.store.tokens)[own] for part, own in zip(parts, rows, strict=True)])
    ends = np.cumsum([len(own) for own in rows])[:-1]
    draws = (np.split(draw, ends) for draw in permute_among_types(labels, types, n_draws, seed))
    return [_relabelled(sides, rows, draw) for draw in draws]


def _relabelled(sides: Sides, rows: Sequence[NDArray[np.intp]], labels: Sequence[NDArray[np.int32]]) -> Sides:
    changed = []
    for part, own, given in zip((sides.train, sides.validation, sides.test), rows, labels, strict=True):
        changed.append(replace(part, labels=part.labels.copy()))
        changed[-1].labels[own] = given
    train, validation, test = changed
    return replace(sides, train=train, validation=validation, test=test)


def null_rankings(
    sides: Sides,
    layers: Sequence[int],
    training: Training,
    n_draws: int,
    seed: int,
) -> NDArray[np.float64]:
    """Rank the neurons of each layer by probes of shuffled labels, trained and tested like the run's own probes.

    Args:
        sides: Examples of the run, with their true labels.
        layers: Layer numbers.
        training: How the run's probes were trained.
        n_draws: Number of times the labels are shuffled; a draw is the same for all layers.
        seed: Seed of all draws.

    Returns:
        Mean contribution of each neuron, shape (n_layers, n_draws, d_model).
    """
    draws = shuffled_among_types(sides, n_draws, seed)
    scores = np.zeros((len(layers), n_draws, sides.train.store.plan.d_model))
    for own, layer in zip(scores, layers, strict=True):
        fits = _fits(sides, draws, layer, training)
        own[:] = _contributions(fits, draws, layer)
    return scores


def _fits(sides: Sides, draws: Sequence[Sides], layer: int, training: Training) -> list[LayerFit]:
    """Return a probe for each draw: all trained in one stack, except for Adam, which trains one after the other."""
    what = f"layer {layer} under shuffled labels"
    if isinstance(training.solver, Adam):  # Adam stops short of the optimum, so null rankings must too
        fits = (train_probes(draw, [layer], training.for_controls(), what) for draw in draws)
        return [fit for (fit,) in fits]
    problems = [
        Problem(
            f"draw_{i}", 0, training.penalty, labels=torch.from_numpy(draw.train.labels), gain_share=NULL_GAIN_SHARE
        )
        for i, draw in enumerate(draws)
    ]
    moments = layer_moments(sides.train, [layer])
    return train_problems(sides, [layer], moments, problems, training.loosened(NULL_TOLERANCE), what)


def _contributions(fits: Sequence[LayerFit], draws: Sequence[Sides], layer: int) -> NDArray[np.float64]:
    """Return the mean contribution of each neuron under each draw, shape (n_draws, d_model)."""
    sums = [MagnitudeAccumulator(fit.moments.mean, len(fit.weight)) for fit in fits]
    for batch in read(draws[0].test, [layer]):
        rows = batch.rows.numpy()
        for own, draw in zip(sums, draws, strict=True):
            own.update(batch.hidden_states[0], torch.from_numpy(draw.test.labels[rows].astype(np.int64)))
    pairs = zip(fits, sums, strict=True)
    return np.stack([mean_contribution(fit.weight, own.result()).numpy() for fit, own in pairs])
