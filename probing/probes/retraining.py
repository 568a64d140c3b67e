"""Evidence from further training: stability of a ranking, and losses without its first neurons."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.data.examples import Examples, Sides, read_share
from probing.probes.evidence import Evidence, is_far, order
from probing.probes.rankings import mean_contribution
from probing.probes.removal import (
    REMOVED,
    AblationEffect,
    ablation_effect,
    bootstrap,
    matched,
    penalty_problems,
    penalty_stability,
    replicate_problems,
    stability_of,
    unique,
    weights_without,
    without_by_class,
)
from probing.probes.solvers import (
    ClassCurvature,
    ClassCurvatureAccumulator,
    OptimumValue,
    Problem,
    cost_in_passes,
    cross_entropy_sums,
    dtype_that_solves,
)
from probing.probes.solvers import fits as curvature_fits
from probing.probes.training import LayerFit, Training, train_variants
from probing.probes.transforms import (
    CONSTANT,
    moments_with_constant,
    of_neurons,
    scaled_transform,
    transformed,
    with_constant,
)
from probing.runtime import drop_garbage
from probing.runtime.processes import sum_over_ranks
from probing.statistics.moments import Scaling

# Largest distance of changed probes from their optima, in nats; training further does not change ranks any more.
VARIANT_TOLERANCE = 1e-3

# Largest error of the test cross-entropy of a probe without a neuron, compared with its optimum: RESOLUTION nats, SHARE
# of the increase of the training objective without the neuron, or PART of half the width of the effect's interval, to
# which the error is added. The probe with all neurons, from which every effect is taken, is allowed a fifth of that.
RESOLUTION, SHARE, PART = 1e-5, 0.005, 0.05

# Number of passes that the curvature saves for each bootstrap.
SAVED = 8

# Number of sampled tokens per class's block, in multiples of its width: twice that of a single probe's curvature, as
# some thirty problems use it. They take an eighth fewer passes with 16 than with 8, and 4% fewer still with 32.
SAMPLES = 16


@dataclass(frozen=True)
class Retraining:
    """Retrains finished probes with small changes.

    If the probes have an intercept, all of this is about neurons and a constant; evidence is about the neurons only.
    """

    sides: Sides
    layers: Sequence[int]
    fits: Sequence[LayerFit]
    training: Training
    seed: int
    starts: Mapping[str, Sequence[Tensor] | None] = field(default_factory=dict)

    def train(self, what: str, problems: Sequence[Problem], test: bool = False) -> list[LayerFit]:
        """Train changed probes, all in one stack."""
        roughly = self.training.loosened(VARIANT_TOLERANCE)
        return train_variants(self.sides, self.layers, self.fits, problems, roughly, what, test)

    def of_layer(self, layer_index: int) -> Retraining:
        """Return the retraining of a layer, given its index, so that no other layer is read."""
        starts = {name: [weights[layer_index]] for name, weights in self.starts.items() if weights}
        return replace(self, layers=[self.layers[layer_index]], fits=[self.fits[layer_index]], starts=starts)


@dataclass(frozen=True)
class LocalCurvature:
    """Local models near the optimum of a layer's finished probe.

    `readout` models the mean test cross-entropy as a function of the raw weight; `curvature` of the objective is in the
    space of the penalty, or None if the blocks of so many classes would be too large.
    """

    readout: OptimumValue
    curvature: ClassCurvature | None


def add_retraining_evidence(
    evidence: Sequence[Evidence], retraining: Retraining, n_replicates: int, removals: bool
) -> tuple[list[Evidence], Tensor | None]:
    """Add the requested evidence to each layer; return it with the replicates' weights, None without replicates."""
    extended, weights = list(evidence), []
    for i, layer_evidence in enumerate(evidence if n_replicates or removals else ()):
        # One layer after the other, since the curvature of a single layer may take a gigabyte.
        drop_garbage()  # the stacks of the last layer, which hold its curvature
        layer_retraining = retraining.of_layer(i)
        near = local_curvature(layer_retraining, with_curvature=removals or _pays(layer_retraining, n_replicates))
        if n_replicates:
            layer_evidence, weight = _with_replicates(layer_evidence, layer_retraining, n_replicates, near)
            weights.append(weight)
        extended[i] = _with_removals(layer_evidence, layer_retraining, near) if removals else layer_evidence
        del near
    drop_garbage()
    extended = with_intercept_probes(extended, retraining) if removals else extended
    return extended, torch.stack(weights, 1) if weights else None


def with_replicates(
    evidence: Sequence[Evidence], retraining: Retraining, n_replicates: int
) -> tuple[list[Evidence], Tensor]:
    """Add the stability of rankings over at least 2 bootstraps; also return the replicates' raw weights.

    Weights have shape (n_replicates, n_layers, n_classes, d_model).
    """
    extended, weight = add_retraining_evidence(evidence, retraining, n_replicates, removals=False)
    assert weight is not None
    return extended, weight


def with_removals(evidence: Sequence[Evidence], retraining: Retraining) -> list[Evidence]:
    """Add leave-one-neuron-out losses, estimated for all and measured for some, and stability under other penalties."""
    layers = (retraining.of_layer(i) for i in range(len(evidence)))
    return [
        _with_removals(layer_evidence, layer_retraining, local_curvature(layer_retraining))
        for layer_evidence, layer_retraining in zip(evidence, layers, strict=True)
    ]


def _with_replicates(
    evidence: Evidence, retraining: Retraining, n_replicates: int, near: LocalCurvature
) -> tuple[Evidence, Tensor]:
    """Add replicates for a layer, as `with_replicates`; weights have shape (n_replicates, n_classes, d_model)."""
    (fit,), (layer,) = retraining.fits, retraining.layers
    draws = bootstrap(retraining.sides.train, n_replicates, retraining.seed)
    problems = _preconditioned(replicate_problems(1, retraining.training.penalty, draws), near)
    weight = torch.stack([probe.weight for probe in retraining.train(f"layer {layer}: bootstraps", problems)])
    stability = stability_of(_scores(fit.weight[None], evidence)[0], _scores(weight, evidence))
    return replace(evidence, stability=stability), weight[..., : len(evidence.moments.mean)]


def _with_removals(evidence: Evidence, retraining: Retraining, near: LocalCurvature) -> Evidence:
    """Add removals for a layer, as `with_removals`."""
    (fit,), (layer,), penalty = retraining.fits, retraining.layers, retraining.training.penalty
    others = _preconditioned(penalty_problems(1, penalty, retraining.starts), near)
    changed = _scores_of(retraining.train(f"layer {layer}: other penalties", others), evidence)
    (contribution,) = _scores(fit.weight[None], evidence)
    effects, drawn = _ablation_effects(retraining, evidence, torch.from_numpy(contribution), near)
    return replace(
        evidence,
        unique=unique(fit.weight, retraining.training.scaling(fit.moments), penalty.l2)[: len(contribution)],
        penalty_stability=penalty_stability(contribution, changed),
        ablation_effects=effects,
        matched=drawn,
    )


def _preconditioned(problems: Sequence[Problem], near: LocalCurvature) -> list[Problem]:
    """Return the problems with the curvature near the layer's finished probe, which reduces their passes to a third.

    It includes the penalty of the finished probe, also for problems with another penalty: this costs them some passes,
    but less time than another inverse.
    """
    # With an l1 penalty, most weights leave or enter zero on the way, and the curvature is restricted to the others.
    return [problem if problem.penalty.l1 else replace(problem, curvature=near.curvature) for problem in problems]


def with_intercept_probes(evidence: Sequence[Evidence], retraining: Retraining) -> list[Evidence]:
    """Add the centred contribution by a probe with an intercept, in layers with neurons whose mean is far from 0."""
    extended, training = list(evidence), retraining.training
    indices = [i for i, layer_evidence in enumerate(evidence) if is_far(layer_evidence.moments).any()]
    if not indices:
        return extended
    layers = [retraining.layers[i] for i in indices]
    scalings = [training.scaling(evidence[i].moments) for i in indices]
    fits = [
        replace(
            fit,
            weight=_start_with_intercept(fit.weight, scaling),
            moments=moments_with_constant(scaling.moments, scaling),
        )
        for fit, scaling in zip((retraining.fits[i] for i in indices), scalings, strict=True)
    ]
    transforms = {layer: scaled_transform(scaling) for layer, scaling in zip(layers, scalings, strict=True)}
    sides, _ = with_constant(transformed(retraining.sides, transforms), {})
    of_layers = replace(
        retraining, sides=sides, layers=layers, fits=fits, training=replace(training, penalty_space="raw")
    )
    problems = [Problem(f"with_intercept_{layer:02d}", i, training.penalty) for i, layer in enumerate(layers)]
    trained = of_layers.train("probes with an intercept", problems)
    for i, fit, scaling in zip(indices, trained, scalings, strict=True):
        weight = scaling.raw_weight(of_neurons(fit).weight)
        contribution = mean_contribution(weight, evidence[i].magnitudes, centred=True)
        extended[i] = replace(extended[i], contribution_with_intercept=contribution)
    return extended


def _start_with_intercept(weight: Tensor, scaling: Scaling) -> Tensor:
    """Return an initial weight on scaled neurons and the constant, (n_classes, d_model + 1), with the same logits.

    Only neurons with a mean far from 0 differ: they start at 0, and their means go into the intercept.
    """
    intercept = weight.double() @ scaling.moments.mean / CONSTANT
    scaled = torch.where(is_far(scaling.moments), 0.0, scaling.scaled_weight(weight.double()))
    return torch.cat([scaled, intercept[:, None]], 1).float()


def _ablation_effects(
    retraining: Retraining, evidence: Evidence, scores: Tensor, near: LocalCurvature
) -> tuple[dict[int, AblationEffect], list[int]]:
    """Retrain a layer's probe without each of its first neurons and without each of as many matched neurons."""
    (fit,), training, sides = retraining.fits, retraining.training, retraining.sides
    live = [n for n in order(scores).tolist() if not evidence.moments.dead[n]]
    top = live[: min(REMOVED, len(live) // 2)]
    drawn = matched(top, live[len(top) :], evidence.moments.sd, retraining.seed)
    removed, others = [*top, *drawn], torch.arange(fit.weight.shape[1])
    readout, curvature = near.readout, near.curvature
    penalty, scaling = training.penalty, training.scaling(fit.moments)
    starts = (
        weights_without(fit.weight, removed, scaling, penalty.l2)
        if curvature is None
        else without_by_class(fit.weight, removed, scaling, curvature)
    )
    resolutions = _resolutions(retraining, starts)
    # The full probe is retrained as well, because it is only as close to its optimum as its own tolerance.
    most = replace(readout, resolution=max(RESOLUTION, min(resolutions, default=0.0) / 5))
    problems = [Problem("with_all", 0, penalty, curvature=curvature, readout=most)]
    for n, start, resolution in zip(removed, starts, resolutions, strict=True):
        problem_readout = replace(readout, resolution=resolution)
        problems.append(
            Problem(f"without_{n}", 0, penalty, start, others != n, curvature=curvature, readout=problem_readout)
        )
    whole, *changed = retraining.train(f"layer {fit.layer}: without a neuron", problems, test=True)
    clusters = sides.test.clusters
    with_all, n_tokens = clusters(whole.cross_entropy_by_sentence), clusters(sides.test.tokens_by_sentence())
    effects = {
        n: ablation_effect(with_all, clusters(other.cross_entropy_by_sentence), n_tokens, whole.shift + other.shift)
        for n, other in zip(removed, changed, strict=True)
    }  # fmt: skip
    return effects, drawn


def _resolutions(retraining: Retraining, starts: Sequence[Tensor]) -> list[float]:
    """Return the required precision in nats of test cross-entropies without a neuron, from the effects at `starts`."""
    (fit,), (layer,), test = retraining.fits, retraining.layers, retraining.sides.test
    with_all, *others = _test_losses(test, layer, [fit.weight, *starts])
    n_tokens = test.clusters(test.tokens_by_sentence())
    effects = (
        ablation_effect(test.clusters(with_all), test.clusters(without_neuron), n_tokens, 0.0)
        for without_neuron in others
    )
    # With too few test sentences there is no interval.
    return [RESOLUTION if math.isnan(e.low) else max(RESOLUTION, PART * (e.high - e.low) / 2) for e in effects]


def _test_losses(test: Examples, layer: int, weights: Sequence[Tensor]) -> NDArray[np.float64]:
    """Return the cross-entropy of each test sentence under several weights, in nats, shape (n, n_sentences)."""
    total = torch.zeros(len(weights), test.store.tokens.n_sentences, dtype=torch.float64)
    for batch in read_share(test, [layer]):
        states = batch.hidden_states[0].to(weights[0])
        for sentence_losses, weight in zip(total, weights, strict=True):
            loss = torch.nn.functional.cross_entropy(states @ weight.T, batch.labels, reduction="none")
            sentence_losses.index_add_(0, batch.sentences, loss.double())
    return sum_over_ranks(total).numpy()


def _pays(retraining: Retraining, n_replicates: int) -> bool:
    """Return whether computing the curvature only for bootstraps takes less time than the passes that it saves."""
    (fit,) = retraining.fits
    return cost_in_passes(retraining.sides.train.n_tokens, fit.weight.shape[1]) < SAVED * n_replicates


def local_curvature(retraining: Retraining, with_curvature: bool = True) -> LocalCurvature:
    """Stream a layer's tokens, divided among ranks, and return test cross-entropy and curvature near its probe."""
    (fit,), (layer,), sides, training = retraining.fits, retraining.layers, retraining.sides, retraining.training
    weight = fit.weight.to(dtype_that_solves([fit.moments], training.penalty.l2, training.solver.tolerance))
    n_classes, d_model = weight.shape
    gradient, doubt = torch.zeros(n_classes, d_model, dtype=torch.float64), torch.zeros(n_classes, dtype=torch.float64)
    for batch in read_share(sides.test, [layer]):
        states = batch.hidden_states[0]
        gradient += cross_entropy_sums(weight[None], states, batch.labels, with_curvature=False).gradient[0]
        p = (states.to(weight) @ weight.T).softmax(1)
        doubt += (p * (1 - p)).sum(0)
    gradient, doubt = (sum_over_ranks(total) / sides.test.n_tokens for total in (gradient, doubt))
    readout = OptimumValue(gradient.float(), fit.objective, RESOLUTION, SHARE)
    if not with_curvature or not curvature_fits(n_classes, d_model):
        return LocalCurvature(readout, None)
    thresholds = doubt.float() * (sides.train.n_tokens / (SAMPLES * d_model))
    blocks = ClassCurvatureAccumulator(weight, thresholds, retraining.seed)
    for batch in read_share(sides.train, [layer]):
        blocks.update(batch.hidden_states[0])
    blocks.all_reduce(sum_over_ranks)
    curvature = blocks.result(training.scaling(fit.moments), sides.train.n_tokens, training.penalty.l2)
    return LocalCurvature(readout, curvature)


def _scores(weights: Tensor, evidence: Evidence) -> NDArray[np.float64]:
    """Return the contributions of the neurons under several weights, shape (n, d_model)."""
    neurons = slice(len(evidence.moments.mean))
    return np.stack([mean_contribution(weight[:, neurons], evidence.magnitudes).numpy() for weight in weights])


def _scores_of(fits: Sequence[LayerFit], evidence: Evidence) -> NDArray[np.float64]:
    return _scores(torch.stack([fit.weight for fit in fits]), evidence)
