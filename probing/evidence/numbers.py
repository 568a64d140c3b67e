"""Evidence for the ranking of a ridge probe: closed forms for what needs retraining with a probe of classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.data.examples import Examples, Sides, read_share
from probing.evidence.removal import REMOVED, AblationEffect, matched
from probing.evidence.stability import PENALTIES, bootstrap, penalty_stability, stability_of
from probing.evidence.table import Evidence, collect_evidence, is_far, order
from probing.probes.ridge import Decomposed, NumberFit, errors_of
from probing.rankings.contributions import mean_contribution
from probing.runtime.processes import sum_over_ranks
from probing.statistics.intervals import ratio_interval, ratio_p_value


@dataclass(frozen=True)
class NumberEvidence(Evidence):
    """What is known of a layer's neurons beyond the weights of a ridge probe.

    Args:
        correlation: Correlation of each neuron with the numbers on training examples, shape (d_model,).
    """

    correlation: Tensor | None = None


def collect_number_evidence(found: Decomposed, fits: Sequence[NumberFit]) -> list[NumberEvidence]:
    """Stream the training and the test examples, divided among ranks, and return the evidence of each layer."""
    sides, moments = found.sides, [fit.moments for fit in fits]
    collected = collect_evidence(sides.train, sides.test, found.layers, moments, None)
    return [
        NumberEvidence(**vars(one), correlation=_correlation(fit)) for fit, one in zip(fits, collected, strict=True)
    ]


def _correlation(fit: NumberFit) -> Tensor:
    """Return the correlation of each neuron with the numbers, 0 for dead neurons."""
    moments = fit.moments
    raw = fit.spectrum.scaling.scaled_weight(fit.product)  # the product with raw neurons around their mean
    return torch.where(moments.dead, 0.0, raw / moments.sd.clamp(min=1e-300))


def with_number_replicates(
    evidence: Sequence[NumberEvidence], found: Decomposed, fits: Sequence[NumberFit], l2: float, n: int, seed: int
) -> tuple[list[NumberEvidence], Tensor]:
    """Add the stability of each layer's ranking over bootstraps of the training sentences.

    Args:
        evidence: Evidence of each layer.
        found: Examples with the decomposition of their layers.
        fits: The probes.
        l2: Strength of the penalty.
        n: Number of bootstraps, at least 2.
        seed: Seed of the bootstraps.

    Returns:
        The evidence, and the replicates' weights on raw hidden states, shape (n, n_layers, 1, d_model).
    """
    draws = bootstrap(found.sides.train, n, seed).double()
    strengthened, weights = [], []
    for fit, one in zip(fits, evidence, strict=True):
        weight = _replicates(found.sides.train, fit, draws, l2)[:, None]
        scores = np.stack([_scores(own, one) for own in weight])
        strengthened.append(replace(one, stability=stability_of(_scores(fit.weight, one), scores)))
        weights.append(weight)
    return strengthened, torch.stack(weights, 1)


def _replicates(train: Examples, fit: NumberFit, draws: Tensor, l2: float) -> Tensor:
    """Return the weights on raw hidden states of one layer's probes on bootstraps, shape (n_replicates, d_model)."""
    table, moments, scaling = fit.standard.table(train), fit.moments, fit.spectrum.scaling
    d_model = len(moments.mean)
    second = torch.zeros(len(draws), d_model, d_model, dtype=torch.float64)
    product = torch.zeros(len(draws), d_model, dtype=torch.float64)
    counts = torch.zeros(len(draws), dtype=torch.float64)
    for batch in read_share(train, [fit.layer]):
        states, numbers = scaling.features(batch.hidden_states[0].double()), table[batch.labels]
        for i, drawn in enumerate(draws[:, batch.sentences]):
            weighted = states * drawn[:, None]
            second[i].addmm_(weighted.T, states)
            product[i] += weighted.T @ numbers
            counts[i] += drawn.sum()
    second, product, counts = (sum_over_ranks(part) for part in (second, product, counts))
    size = counts.clamp(min=1)[:, None]
    curvature = second / size[:, :, None] + l2 * torch.eye(d_model, dtype=torch.float64)
    return scaling.raw_weight(torch.linalg.solve(curvature, product / size)) * fit.standard.sd


def with_number_removals(
    evidence: Sequence[NumberEvidence], sides: Sides, fits: Sequence[NumberFit], l2: float, seed: int
) -> list[NumberEvidence]:
    """Add the loss without each neuron, exact in training for all, and measured on test examples for some.

    Also add the stability of each layer's ranking under more and under less penalty, and the centred contribution by a
    probe with an intercept in layers with neurons whose mean is far from 0.
    """
    found = []
    for fit, one in zip(fits, evidence, strict=True):
        inverse = fit.spectrum.inverse(l2)
        others = [_scores(_raw(fit, fit.spectrum.solve(fit.product, l2 * 10.0**n)), one) for n in PENALTIES.values()]
        effects, drawn = _ablation_effects(sides, fit, one, inverse, seed)
        found.append(
            replace(
                one,
                unique=fit.scaled.square() / inverse.diagonal(),
                penalty_stability=penalty_stability(_scores(fit.weight, one), np.stack(others)),
                ablation_effects=effects,
                matched=drawn,
                contribution_with_intercept=_with_intercept(fit, one, l2),
            )
        )
    return found


def _with_intercept(fit: NumberFit, evidence: Evidence, l2: float) -> Tensor | None:
    """Return the centred contributions to a probe with an intercept; None if no mean is far from 0.

    Its intercept is free, so that it is the ridge probe of centred neurons.
    """
    if not is_far(fit.moments).any():
        return None
    scaling = fit.spectrum.scaling
    mean = scaling.features(fit.moments.mean)
    curvature = fit.spectrum.second_moment - torch.outer(mean, mean) + l2 * torch.eye(len(mean), dtype=torch.float64)
    weight = _raw(fit, torch.linalg.solve(curvature, fit.product))
    return mean_contribution(weight, evidence.magnitudes, centred=True)


def _ablation_effects(
    sides: Sides, fit: NumberFit, evidence: Evidence, inverse: Tensor, seed: int
) -> tuple[dict[int, AblationEffect], list[int]]:
    """Return by how much R² on test examples falls without each of the first neurons and of as many matched ones."""
    scores = torch.from_numpy(_scores(fit.weight, evidence))
    live = [n for n in order(scores).tolist() if not evidence.moments.dead[n]]
    top = live[: min(REMOVED, len(live) // 2)]
    drawn = matched(top, live[len(top) :], evidence.moments.sd, seed)
    removed = [*top, *drawn]
    if not removed:
        return {}, []
    weights = [fit.spectrum.scaling.raw_weight(without(fit.scaled, i, inverse)) for i in removed]
    tested = errors_of(sides.test, [fit.layer], [torch.stack(weights)], fit.standard)
    lost = tested.squared[0] - fit.errors[:, None]
    intervals = r2_intervals(sides.test, lost, fit.deviations)
    value = lost.sum(0) / fit.deviations.sum()
    p = r2_p_values(sides.test, lost, fit.deviations)
    return {n: AblationEffect(float(value[i]), *intervals[i], p[i]) for i, n in enumerate(removed)}, drawn


def without(scaled: Tensor, neuron: int, inverse: Tensor) -> Tensor:
    """Return the optimum of the other neurons when one is removed, exactly: its entry is 0.

    Args:
        scaled: The optimum with all neurons, shape (d_model,).
        neuron: The neuron that is removed.
        inverse: Inverse of C + l2, shape (d_model, d_model).
    """
    weight = scaled - inverse[neuron] * (scaled[neuron] / inverse[neuron, neuron])
    weight[neuron] = 0
    return weight


def r2_intervals(
    test: Examples, saved: NDArray[np.float64], deviations: NDArray[np.float64]
) -> list[tuple[float, float]]:
    """Return 95% intervals, over the test sentences, of shares of the constant answer's squared error.

    Args:
        test: Test examples.
        saved: Squared errors saved, summed for each sentence of the corpus, shape (n_sentences, n).
        deviations: Squared errors of the constant answer, summed likewise, shape (n_sentences,).
    """
    return [ratio_interval(ratio) for ratio in _ratios(test, saved, deviations)]


def r2_p_values(test: Examples, saved: NDArray[np.float64], deviations: NDArray[np.float64]) -> list[float]:
    """Return the p-values of such shares: are they 0? The arguments are those of `r2_intervals`."""
    return [ratio_p_value(ratio) for ratio in _ratios(test, saved, deviations)]


def _ratios(
    test: Examples, saved: NDArray[np.float64], deviations: NDArray[np.float64]
) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    tested = test.clusters(test.tokens_by_sentence()) > 0
    of_constant = test.clusters(deviations)[tested]
    return [(test.clusters(column)[tested], of_constant) for column in saved.T]


def _raw(fit: NumberFit, scaled: Tensor) -> Tensor:
    """Return a weight on raw hidden states in units of the numbers, shape (1, d_model)."""
    return fit.spectrum.scaling.raw_weight(scaled)[None] * fit.standard.sd


def _scores(weight: Tensor, evidence: Evidence) -> NDArray[np.float64]:
    """Return the contribution of each neuron, shape (d_model,), given a weight of shape (1, d_model)."""
    return mean_contribution(weight, evidence.magnitudes).numpy()
