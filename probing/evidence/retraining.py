"""Evidence that needs further training: how stable a ranking is, and what removing its first neurons costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probing.data.examples import Sides, read_share
from probing.evidence.leave_one_out import (
    REMOVED,
    AblationEffect,
    ablation_effect,
    matched,
    unique,
    without,
    without_by_class,
)
from probing.evidence.stability import bootstrap, penalty_problems, penalty_stability, replicate_problems, stability_of
from probing.evidence.table import Evidence, order
from probing.evidence.with_intercept import (
    is_far,
    moments_with_constant,
    on_hidden_states,
    start_with_intercept,
    with_constants,
)
from probing.probes.class_curvature import SAMPLES as CURVATURE_SAMPLES
from probing.probes.class_curvature import ClassCurvature, ClassCurvatureAccumulator
from probing.probes.class_curvature import fits as curvature_fits
from probing.probes.objective import cross_entropy_sums
from probing.probes.problem import Problem
from probing.probes.recipe import Training
from probing.probes.solvers import Readout
from probing.probes.training import LayerFit, train_variants
from probing.rankings.contributions import mean_contribution
from probing.runtime.distributed import sum_over_ranks

# Largest distance of changed probes from their optima, in nats; ranks no longer move by then.
VARIANT_TOLERANCE = 1e-3
# Largest error of the test cross-entropy of a probe without a neuron, compared with its optimum: RESOLUTION nats, or
# SHARE of the increase of the training objective without the neuron.
RESOLUTION, SHARE = 1e-5, 0.005


@dataclass(frozen=True)
class Retraining:
    """Retrains finished probes with small changes.

    Args:
        sides: Examples and their classes.
        layers: Layer numbers.
        fits: The finished probes.
        training: The training options of the finished probes.
        seed: Seed of the bootstraps and of the matched neurons.
    """

    sides: Sides
    layers: Sequence[int]
    fits: Sequence[LayerFit]
    training: Training
    seed: int

    def train(self, what: str, problems: Sequence[Problem], test: bool = False) -> list[LayerFit]:
        """Train changed probes, all in one stack."""
        roughly = self.training.loosened(VARIANT_TOLERANCE)
        return train_variants(self.sides, self.layers, self.fits, problems, roughly, what, test)

    def of_layer(self, layer_index: int) -> Retraining:
        """Return the retraining of one layer, given its index, so that no other layer is read."""
        return replace(self, layers=[self.layers[layer_index]], fits=[self.fits[layer_index]])


def strengthened(
    evidence: Sequence[Evidence], retraining: Retraining, n_replicates: int, removals: bool
) -> tuple[list[Evidence], Tensor | None]:
    """Add to each layer's evidence what was asked for; return it with the replicates' weights, None without them."""
    found, weight = list(evidence), None
    if n_replicates:
        found, weight = with_replicates(found, retraining, n_replicates)
    return with_intercept_probes(with_removals(found, retraining), retraining) if removals else found, weight


def with_replicates(
    evidence: Sequence[Evidence], retraining: Retraining, n_replicates: int
) -> tuple[list[Evidence], Tensor]:
    """Add the stability of each layer's ranking over bootstraps of the training sentences.

    Args:
        evidence: Evidence of each layer.
        retraining: Retraining of the finished probes.
        n_replicates: Number of bootstraps, at least 2.

    Returns:
        The evidence, and the replicates' weights on raw hidden states, shape (n_replicates, n_layers, n_classes,
        d_model).
    """
    draws = bootstrap(retraining.sides.train, n_replicates, retraining.seed)
    problems = replicate_problems(len(evidence), retraining.training.penalty, draws)
    fits = retraining.train("bootstraps", problems)
    weight = torch.stack([fit.weight for fit in fits]).unflatten(0, (len(evidence), n_replicates))
    found = [
        replace(one, stability=stability_of(_scores(fit.weight[None], one)[0], _scores(own, one)))
        for fit, own, one in zip(retraining.fits, weight, evidence, strict=True)
    ]
    return found, weight.transpose(0, 1).contiguous()


def with_removals(evidence: Sequence[Evidence], retraining: Retraining) -> list[Evidence]:
    """Add the loss without each neuron: estimated for all, measured for the first and for matched neurons.

    Also add the stability of each layer's ranking under more and under less penalty.
    """
    penalty = retraining.training.penalty
    others = retraining.train("other penalties", penalty_problems(len(evidence), penalty))
    found = []
    for i, (fit, one) in enumerate(zip(retraining.fits, evidence, strict=True)):
        own, changed = _scores(fit.weight[None], one), _scores_of(others[2 * i : 2 * i + 2], one)
        estimate = unique(fit.weight, retraining.training.scaling(fit.moments), penalty.l2)
        effects, drawn = _ablation_effects(retraining.of_layer(i), one, torch.from_numpy(own[0]))
        found.append(
            replace(
                one,
                unique=estimate,
                penalty_stability=penalty_stability(own[0], changed),
                ablation_effects=effects,
                matched=drawn,
            )
        )
    return found


def with_intercept_probes(evidence: Sequence[Evidence], retraining: Retraining) -> list[Evidence]:
    """Add the centred contribution by a probe with an intercept, in layers with neurons whose mean is far from 0."""
    found, training = list(evidence), retraining.training
    indices = [i for i, one in enumerate(evidence) if is_far(one.moments).any()]
    if not indices:
        return found
    layers = [retraining.layers[i] for i in indices]
    scalings = [training.scaling(evidence[i].moments) for i in indices]
    fits = [
        replace(fit, weight=start_with_intercept(fit.weight, scaling), moments=moments_with_constant(scaling))
        for fit, scaling in zip((retraining.fits[i] for i in indices), scalings, strict=True)
    ]
    of_layers = replace(
        retraining, sides=with_constants(retraining.sides, dict(zip(layers, scalings, strict=True))),
        layers=layers, fits=fits, training=replace(training, penalty_space="raw"),
    )  # fmt: skip
    problems = [Problem(f"with_intercept_{layer:02d}", i, training.penalty) for i, layer in enumerate(layers)]
    trained = of_layers.train("probes with an intercept", problems)
    for i, fit, scaling in zip(indices, trained, scalings, strict=True):
        weight = on_hidden_states(fit.weight, scaling)
        contribution = mean_contribution(weight, evidence[i].magnitudes, centred=True)
        found[i] = replace(found[i], contribution_with_intercept=contribution)
    return found


def _ablation_effects(
    retraining: Retraining, evidence: Evidence, scores: Tensor
) -> tuple[dict[int, AblationEffect], list[int]]:
    """Retrain one layer's probe without each of its first neurons and without each of as many matched neurons."""
    (fit,), training, sides = retraining.fits, retraining.training, retraining.sides
    live = [n for n in order(scores).tolist() if not evidence.moments.dead[n]]
    top = live[: min(REMOVED, len(live) // 2)]
    drawn = matched(top, live[len(top) :], evidence.moments.sd, retraining.seed)
    removed, others = [*top, *drawn], torch.arange(len(scores))
    readout, curvature = _surroundings(sides, retraining.layers[0], fit, training, retraining.seed)
    penalty, scaling = training.penalty, training.scaling(fit.moments)
    starts = (
        without(fit.weight, removed, scaling, penalty.l2)
        if curvature is None
        else without_by_class(fit.weight, removed, scaling, curvature)
    )
    # The full probe is retrained as well, because it is only as close to its optimum as its own tolerance.
    problems = [Problem("with_all", 0, penalty, curvature=curvature, readout=readout)]
    problems += [
        Problem(f"without_{n}", 0, penalty, start, others != n, curvature=curvature, readout=readout)
        for n, start in zip(removed, starts, strict=True)
    ]
    whole, *changed = retraining.train(f"layer {fit.layer} without a neuron", problems, test=True)
    clusters = sides.test.clusters
    with_all, n_tokens = clusters(whole.cross_entropy_by_sentence), clusters(sides.test.tokens_by_sentence())
    effects = {
        n: ablation_effect(with_all, clusters(other.cross_entropy_by_sentence), n_tokens, whole.shift + other.shift)
        for n, other in zip(removed, changed, strict=True)
    }  # fmt: skip
    return effects, drawn


def _surroundings(
    sides: Sides, layer: int, fit: LayerFit, training: Training, seed: int
) -> tuple[Readout, ClassCurvature | None]:
    """Stream one layer's tokens, divided among ranks, and return test cross-entropy and curvature near its probe.

    Returns:
        A local model of the mean test cross-entropy as a function of the weight on raw hidden states, and the
        objective's curvature in the space where weights are penalised; None where the blocks of so many classes would
        be too large.
    """
    n_classes, d_model = fit.weight.shape
    gradient, doubt = torch.zeros(n_classes, d_model, dtype=torch.float64), torch.zeros(n_classes, dtype=torch.float64)
    for batch in read_share(sides.test, [layer]):
        sums = cross_entropy_sums(fit.weight[None], batch.hidden_states[0], batch.labels)
        gradient += sums.gradient[0]
        doubt += sums.class_covariance[0].diagonal()
    gradient, doubt = (sum_over_ranks(total) / sides.test.n_tokens for total in (gradient, doubt))
    readout = Readout(gradient.float(), fit.objective, RESOLUTION, SHARE)
    if not curvature_fits(n_classes, d_model):
        return readout, None
    thresholds = doubt.float() * (sides.train.n_tokens / (CURVATURE_SAMPLES * d_model))
    blocks = ClassCurvatureAccumulator(fit.weight, thresholds, seed)
    for batch in read_share(sides.train, [layer]):
        blocks.update(batch.hidden_states[0])
    blocks.all_reduce(sum_over_ranks)
    return readout, blocks.result(training.scaling(fit.moments), sides.train.n_tokens, training.penalty.l2)


def _scores(weights: Tensor, evidence: Evidence) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the contributions of the neurons under several weights, shape (n, d_model)."""
    return np.stack([mean_contribution(weight, evidence.magnitudes).numpy() for weight in weights])


def _scores_of(fits: Sequence[LayerFit], evidence: Evidence) -> np.ndarray[Any, np.dtype[np.float64]]:
    return _scores(torch.stack([fit.weight for fit in fits]), evidence)
