"""Evidence from further probes: stability of a ranking over bootstraps and penalties, and losses without neurons."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata
from torch import Tensor

from probing.data.examples import Examples, Sides, read_share
from probing.data.labelling import prior_cross_entropy_by_sentence
from probing.data.module import shuffled
from probing.probes.closed_forms import Decomposed, NumberFit, errors_of
from probing.probes.evaluation import accuracy_columns, majority_accuracy
from probing.probes.evidence import AblationEffect, Evidence, Stability, collect_evidence, is_far, with_each
from probing.probes.rankings import mean_contribution
from probing.probes.solvers import (
    ClassCurvature,
    ClassCurvatureAccumulator,
    OptimumValue,
    Penalty,
    Problem,
    centre_over_classes,
    cost_in_passes,
    cross_entropy_sums,
    dtype_that_solves,
)
from probing.probes.solvers import fits as curvature_fits
from probing.probes.training import LayerFit, Training, train_probes, train_variants
from probing.probes.transforms import (
    CONSTANT,
    fit_erasers,
    moments_with_constant,
    of_neurons,
    scaled_transform,
    transformed,
    with_constant,
    with_neurons,
    without,
)
from probing.runtime import drop_garbage
from probing.runtime.processes import sum_over_ranks
from probing.statistics import (
    TOP_OF_BOOTSTRAPS,
    TOP_OF_PENALTIES,
    mean_interval,
    mean_p_value,
    neuron_ranks,
    ranked,
    ratio_interval,
    ratio_p_value,
    shared_ranks,
    spearman,
    top_overlap,
)
from probing.statistics.moments import Scaling
from probing.tables import CONDITIONS

# Number of top neurons that are removed one by one; as many matched neurons are removed for comparison.
REMOVED = 10


def _inverse_curvature(scaling: Scaling, l2: float, n_classes: int) -> Tensor:
    """Return the inverse of C + 2 l2 K, where C is the second moment of the scaled neurons, float64."""
    values, vectors = scaling.axes
    curvature = values + 2 * l2 * n_classes
    return (vectors / curvature) @ vectors.T


def unique(weight: Tensor, scaling: Scaling, l2: float) -> Tensor:
    """Estimate the increase of the objective without each neuron from the curvature, up to a factor, shape (d_model,).

    |U_i|^2 / (2 K [(C + 2 l2 K)^-1]_ii), where U is the scaled weight centred over the K classes: the second-order
    estimate of LeCun et al. (1990) and Hassibi & Stork (1993), in which every class has the curvature 1 / K of a
    uniform guess. It orders neurons nearly as retraining does but is several times too large: use its rank, not its
    size. Dead neurons have 0. `weight` is on raw hidden states, shape (n_classes, d_model).
    """
    inverse = _inverse_curvature(scaling, l2, len(weight))
    scaled = scaling.scaled_weight(centre_over_classes(weight.double()))
    return scaled.square().sum(0) / (2 * len(weight) * inverse.diagonal())


def weights_without(weight: Tensor, neurons: Sequence[int], scaling: Scaling, l2: float) -> list[Tensor]:
    """Return for each removed neuron an initial weight of the others, (n_classes, d_model), close to their optimum.

    The other neurons take over the part of the removed neuron that they predict linearly: if v_i is about the sum of
    b_j v_j, their weights grow by W_i b_j. The column of v_i is 0. This is only a start for the training, which it
    shortens by a third. Neurons are removed one at a time.
    """
    inverse = _inverse_curvature(scaling, l2, len(weight))
    scaled = scaling.scaled_weight(weight.double())
    starts = []
    for i in neurons:
        start = scaled - scaled[:, i, None] * (inverse[i] / inverse[i, i])
        start[:, i] = 0
        starts.append(scaling.raw_weight(start).float())
    return starts


def without_by_class(
    weight: Tensor, neurons: Sequence[int], scaling: Scaling, curvature: ClassCurvature
) -> list[Tensor]:
    """Return initial weights as `weights_without`, closer to the optimum: by the curvature of each class."""
    scaled, others = scaling.scaled_weight(weight.to(curvature.inverse)), torch.arange(weight.shape[1])
    return [scaling.raw_weight(curvature.within(others != i).without(scaled)).float() for i in neurons]


def matched(top: Sequence[int], others: Sequence[int], sd: Tensor, seed: int) -> list[int]:
    """Return for each top neuron another neuron, drawn at most once from the ten nearest in sd."""
    generator, remaining, drawn = np.random.default_rng(seed), list(others), []
    for neuron in top[: len(remaining)]:
        near = sorted(remaining, key=lambda i: (abs(float(sd[i] - sd[neuron])), i))[:10]
        drawn.append(int(generator.choice(near)))
        remaining.remove(drawn[-1])
    return drawn


def _removed(scores: NDArray[np.float64], evidence: Evidence, seed: int) -> tuple[list[int], list[int]]:
    """Return the neurons of a layer to remove one by one, and the matched ones among these."""
    live = [n for _, n in ranked(scores) if not evidence.moments.dead[n]]
    top = live[: min(REMOVED, len(live) // 2)]
    drawn = matched(top, live[len(top) :], evidence.moments.sd, seed)
    return [*top, *drawn], drawn


def ablation_effect(
    with_it: NDArray[np.float64], without_it: NDArray[np.float64], n_tokens: NDArray[np.int64], shift: float
) -> AblationEffect:
    """Return the increase of the test cross-entropy if a neuron is left out, paired by sentence or document.

    Args:
        with_it: Cross-entropy of each sentence under the probe with the neuron, summed over its tokens, in nats, shape
            (n,).
        n_tokens: Number of test tokens of each, shape (n,); those without tokens are ignored.
        shift: Bound on the error of the difference due to both probes' distances to their optima, in nats.
    """
    difference = without_it - with_it
    low, high = mean_interval(difference, n_tokens)
    value = float(difference.sum() / n_tokens.sum())
    # An effect that is nearer to 0 than the error may be none; a larger one is moved by the error towards 0.
    nearer = difference - math.copysign(shift, value) * n_tokens
    p = mean_p_value(nearer, n_tokens) if abs(value) > shift else math.nan if math.isnan(low) else 1.0
    return AblationEffect(value, low - shift, high + shift, p)


def stability_of(scores: NDArray[np.float64], replicates: NDArray[np.float64]) -> Stability:
    """Return the stability of the ranking of neurons, (d_model,), over two or more bootstraps, (n_replicates, d_model).

    The range of ranks includes the ranking itself. A replicate is trained on about 63% of the sentences, some of them
    several times, so it does not scatter around the full probe: it fits noisier data, which moves some neurons up and
    others down in every replicate. The range of the replicates alone often excludes the rank that it describes.
    """
    ranks = shared_ranks(np.concatenate([scores[None], replicates]))
    replicate_ranks, k = neuron_ranks(replicates), min(TOP_OF_BOOTSTRAPS, len(scores))
    overlaps = [top_overlap(first, other, k) for first, other in itertools.combinations(replicate_ranks, 2)]
    return Stability(ranks.min(0), ranks.max(0), float(np.mean(overlaps)))


def penalty_stability(scores: NDArray[np.float64], others: Iterable[NDArray[np.float64]]) -> dict[str, float]:
    """Return the agreement with rankings under more and less penalty (in this order), as columns of `accuracy.csv`."""
    columns: dict[str, float] = {}
    k = min(TOP_OF_PENALTIES, len(scores))
    for name, other in zip(PENALTIES, others, strict=True):
        columns[f"{name}_penalty_overlap"] = float(top_overlap(neuron_ranks(scores), neuron_ranks(other), k))
        columns[f"{name}_penalty_spearman"] = float(spearman(rankdata(scores), rankdata(other)))
    return columns


# Decades by which the penalty is stronger or weaker: choices that other studies might have made.
PENALTIES = {"more": 1, "less": -1}


def bootstrap(train: Examples, n_replicates: int, seed: int) -> Tensor:
    """Draw bootstrap samples, for the stability of a ranking: how often each replicate has each sentence of the corpus.

    The shape is (n_replicates, n_sentences).

    As many training sentences are drawn as there are, with replacement (Efron 1979), or documents if confidence
    intervals are over documents, since the tokens of a unit are not independent.
    """
    of_sentence = train.cluster_of_sentence()
    clusters = np.unique(of_sentence[train.sentences()])
    times = np.zeros((n_replicates, int(of_sentence.max()) + 1))
    for replicate, row in enumerate(times):
        generator = np.random.default_rng([seed, replicate])
        np.add.at(row, generator.choice(clusters, len(clusters)), 1)
    return torch.from_numpy(times[:, of_sentence]).float()


def replicate_problems(penalty: Penalty, draws: Tensor) -> list[Problem]:
    """Return a problem of a layer for each replicate."""
    return [Problem(f"replicate_{r}", 0, penalty, draws=drawn) for r, drawn in enumerate(draws)]


def penalty_problems(penalty: Penalty, starts: Mapping[str, Sequence[Tensor] | None]) -> list[Problem]:
    """Return a problem of a layer for each other penalty, with initial weights if known."""
    others = {name: Penalty(penalty.l1 * 10.0**n, penalty.l2 * 10.0**n) for name, n in PENALTIES.items()}
    return [
        Problem(name, 0, other, weights[0] if (weights := starts.get(name)) else None) for name, other in others.items()
    ]


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
    """Add the requested evidence to each layer; return it with the replicates' weights, None without replicates.

    Weights have shape (n_replicates, n_layers, n_classes, d_model).
    """
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


def _with_replicates(
    evidence: Evidence, retraining: Retraining, n_replicates: int, near: LocalCurvature
) -> tuple[Evidence, Tensor]:
    """Add the stability of a layer's ranking over at least 2 bootstraps; also return the replicates' raw weights.

    Weights have shape (n_replicates, n_classes, d_model).
    """
    (fit,), (layer,) = retraining.fits, retraining.layers
    draws = bootstrap(retraining.sides.train, n_replicates, retraining.seed)
    problems = _preconditioned(replicate_problems(retraining.training.penalty, draws), near)
    weight = torch.stack([probe.weight for probe in retraining.train(f"layer {layer}: bootstraps", problems)])
    stability = stability_of(_scores([fit.weight], evidence)[0], _scores(weight, evidence))
    return replace(evidence, stability=stability), weight[..., : len(evidence.moments.mean)]


def _with_removals(evidence: Evidence, retraining: Retraining, near: LocalCurvature) -> Evidence:
    """Add a layer's leave-one-neuron-out losses, estimated for all and measured for some, and other penalties."""
    (fit,), (layer,), penalty = retraining.fits, retraining.layers, retraining.training.penalty
    others = _preconditioned(penalty_problems(penalty, retraining.starts), near)
    changed = retraining.train(f"layer {layer}: other penalties", others)
    (contribution,) = _scores([fit.weight], evidence)
    effects, drawn = _ablation_effects(retraining, evidence, contribution, near)
    return replace(
        evidence,
        unique=unique(fit.weight, retraining.training.scaling(fit.moments), penalty.l2)[: len(contribution)],
        penalty_stability=penalty_stability(contribution, _scores([probe.weight for probe in changed], evidence)),
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
    retraining: Retraining, evidence: Evidence, scores: NDArray[np.float64], near: LocalCurvature
) -> tuple[dict[int, AblationEffect], list[int]]:
    """Retrain a layer's probe without each of its first neurons and without each of as many matched neurons."""
    (fit,), training, sides = retraining.fits, retraining.training, retraining.sides
    removed, drawn = _removed(scores, evidence, retraining.seed)
    others = torch.arange(fit.weight.shape[1])
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
    with_all, *others = cross_entropy_by_sentence(test, layer, [fit.weight, *starts])
    n_tokens = test.clusters(test.tokens_by_sentence())
    effects = (
        ablation_effect(test.clusters(with_all), test.clusters(without_neuron), n_tokens, 0.0)
        for without_neuron in others
    )
    # With too few test sentences there is no interval.
    return [RESOLUTION if math.isnan(e.low) else max(RESOLUTION, PART * (e.high - e.low) / 2) for e in effects]


def cross_entropy_by_sentence(test: Examples, layer: int, weights: Sequence[Tensor]) -> NDArray[np.float64]:
    """Return the cross-entropy under several weights, summed over examples by sentence of the corpus, in nats.

    Weights are on raw hidden states, shape (n_classes, d_model); the result has shape (n_weights, n_sentences).
    """
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


def _scores(weights: Iterable[Tensor], evidence: Evidence) -> NDArray[np.float64]:
    """Return the contributions of the neurons under several weights, shape (n, d_model)."""
    neurons = slice(len(evidence.moments.mean))
    return np.stack([mean_contribution(weight[:, neurons], evidence.magnitudes).numpy() for weight in weights])


# --------------------------------------------------------------------------------------------------------------------
# Probes of numbers, whose variants are in closed form.
# --------------------------------------------------------------------------------------------------------------------


def collect_number_evidence(decomposed: Decomposed, fits: Sequence[NumberFit]) -> list[Evidence]:
    """Stream the training and the test examples, divided among ranks, and return the evidence of each layer."""
    sides, moments = decomposed.sides, [fit.moments for fit in fits]
    collected = collect_evidence(sides.train, sides.test, decomposed.layers, moments, None)
    return with_each(collected, correlation=list(map(_correlation, fits)))


def _correlation(fit: NumberFit) -> Tensor:
    """Return the correlation of each neuron with the numbers, 0 for dead neurons."""
    moments = fit.moments
    raw = fit.spectrum.scaling.scaled_weight(fit.product)  # the product with raw neurons around their mean
    return torch.where(moments.dead, 0.0, raw / moments.sd.clamp(min=1e-300))


def with_number_replicates(
    evidence: Sequence[Evidence], decomposed: Decomposed, fits: Sequence[NumberFit], l2: float, n: int, seed: int
) -> tuple[list[Evidence], Tensor]:
    """Add the stability of rankings over `n` >= 2 bootstraps; also return weights (n, n_layers, 1, d_model)."""
    draws = bootstrap(decomposed.sides.train, n, seed).double()
    extended, weights = [], []
    for fit, layer_evidence in zip(fits, evidence, strict=True):
        weight = _replicates(decomposed.sides.train, fit, draws, l2)[:, None]
        (scores,) = _scores([fit.weight], layer_evidence)
        extended.append(replace(layer_evidence, stability=stability_of(scores, _scores(weight, layer_evidence))))
        weights.append(weight)
    return extended, torch.stack(weights, 1)


def _replicates(train: Examples, fit: NumberFit, draws: Tensor, l2: float) -> Tensor:
    """Return the weights on raw hidden states of a layer's probes on bootstraps, shape (n_replicates, d_model)."""
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
    evidence: Sequence[Evidence], sides: Sides, fits: Sequence[NumberFit], l2: float, seed: int
) -> list[Evidence]:
    """Add the loss without each neuron, exact in training for all, and measured on test examples for some.

    Also add the stability of rankings under more and less penalty, and the centred contribution by a probe with an
    intercept in layers with neurons whose mean is far from 0.
    """
    extended = []
    for fit, layer_evidence in zip(fits, evidence, strict=True):
        inverse = fit.spectrum.inverse(l2)
        others = [_raw(fit, fit.spectrum.solve(fit.product, l2 * 10.0**n)) for n in PENALTIES.values()]
        scores, *changed = _scores([fit.weight, *others], layer_evidence)
        effects, drawn = _number_ablation_effects(sides, fit, layer_evidence, inverse, seed)
        extended.append(
            replace(
                layer_evidence,
                unique=fit.scaled.square() / inverse.diagonal(),
                penalty_stability=penalty_stability(scores, changed),
                ablation_effects=effects,
                matched=drawn,
                contribution_with_intercept=_with_intercept(fit, layer_evidence, l2),
            )
        )
    return extended


def _with_intercept(fit: NumberFit, evidence: Evidence, l2: float) -> Tensor | None:
    """Return centred contributions to the ridge probe with a free intercept; None if no mean is far from 0."""
    if not is_far(fit.moments).any():
        return None
    scaling = fit.spectrum.scaling
    mean = scaling.features(fit.moments.mean)
    curvature = fit.spectrum.second_moment - torch.outer(mean, mean) + l2 * torch.eye(len(mean), dtype=torch.float64)
    weight = _raw(fit, torch.linalg.solve(curvature, fit.product))
    return mean_contribution(weight, evidence.magnitudes, centred=True)


def _number_ablation_effects(
    sides: Sides, fit: NumberFit, evidence: Evidence, inverse: Tensor, seed: int
) -> tuple[dict[int, AblationEffect], list[int]]:
    """Return the fall of R² on test examples without each of the first neurons and of as many matched neurons."""
    removed, drawn = _removed(_scores([fit.weight], evidence)[0], evidence, seed)
    if not removed:
        return {}, []
    weights = [fit.spectrum.scaling.raw_weight(optimum_without(fit.scaled, i, inverse)) for i in removed]
    tested = errors_of(sides.test, [fit.layer], [torch.stack(weights)], fit.standard)
    lost = tested.squared[0] - fit.errors[:, None]
    value, test = lost.sum(0) / fit.deviations.sum(), sides.test
    tested_clusters = test.clusters(test.tokens_by_sentence()) > 0
    of_constant = test.clusters(fit.deviations)[tested_clusters]
    ratios = [(test.clusters(column)[tested_clusters], of_constant) for column in lost.T]
    return {
        n: AblationEffect(float(value[i]), *ratio_interval(ratio), ratio_p_value(ratio))
        for i, (n, ratio) in enumerate(zip(removed, ratios, strict=True))
    }, drawn


def optimum_without(scaled: Tensor, neuron: int, inverse: Tensor) -> Tensor:
    """Return the exact optimum without a neuron, given the optimum with all and the inverse of C + l2."""
    weight = scaled - inverse[neuron] * (scaled[neuron] / inverse[neuron, neuron])
    weight[neuron] = 0
    return weight


def _raw(fit: NumberFit, scaled: Tensor) -> Tensor:
    """Return a weight on raw hidden states in units of the numbers, shape (1, d_model)."""
    return fit.spectrum.scaling.raw_weight(scaled)[None] * fit.standard.sd


# --------------------------------------------------------------------------------------------------------------------
# What probes decode of the class from some neurons alone, and without them or any linear information on it.
# --------------------------------------------------------------------------------------------------------------------


def usable_information(
    sides: Sides,
    rankings: Mapping[int, Sequence[int]],
    n_top: int,
    training: Training,
    seed: int,
) -> list[dict[str, Any]]:
    """Train probes under each condition and return a row per layer and condition.

    `n_removed` counts neurons, or directions if labels are erased; `constant_cross_entropy` belongs to the prediction
    of the classes' shares in training; `information` is the saving of the probe over it, with its confidence interval
    over test sentences; `share` is its ratio to the information of all neurons (NaN if these have none). `rankings` has
    all neurons of each layer, the best first.

    Raises:
        ValueError: If `n_top` is not between 1 and half the neurons: as many random ones are drawn from the others.
    """
    layers, d_model = list(rankings), sides.train.store.plan.d_model
    if not 1 <= n_top <= d_model // 2:
        raise ValueError(f"{n_top} top neurons: expected 1 to {d_model // 2}, half of the {d_model} there are")
    top = {layer: sorted(ranking[:n_top]) for layer, ranking in rankings.items()}
    drawn = {layer: _draw(ranking[n_top:], n_top, seed, layer) for layer, ranking in rankings.items()}
    erasers = fit_erasers(sides.train, layers, len(sides.classes))
    others = fit_erasers(shuffled(sides, seed).train, layers, len(sides.classes))
    removed = {layer: eraser.rank for layer, eraser in erasers.items()}
    changed_sides: dict[str, tuple[Sides, Mapping[int, int]]] = {
        "all": (sides, dict.fromkeys(layers, 0)),
        "top": (with_neurons(sides, top), dict.fromkeys(layers, d_model - n_top)),
        "random": (with_neurons(sides, drawn), dict.fromkeys(layers, d_model - n_top)),
        "without_top": (with_neurons(sides, _rest(top, d_model)), dict.fromkeys(layers, n_top)),
        "without_random": (with_neurons(sides, _rest(drawn, d_model)), dict.fromkeys(layers, n_top)),
        "erased": (without(sides, erasers), removed),
        "erased_shuffled": (without(sides, others), {layer: eraser.rank for layer, eraser in others.items()}),
    }
    rows = []
    for condition, (changed, n_removed) in changed_sides.items():
        fits = train_probes(changed, layers, training, CONDITIONS[condition])
        for fit in fits:
            (loss,) = cross_entropy_by_sentence(changed.test, fit.layer, [fit.weight])
            row = {"layer": fit.layer, "condition": condition, "n_neurons": changed.test.store.plan.d_model}
            rows.append({**row, "n_removed": n_removed[fit.layer], **_information(sides, fit, loss)})
    full = {row["layer"]: row["information"] for row in rows if row["condition"] == "all"}
    for row in rows:
        row["share"] = row["information"] / full[row["layer"]] if full[row["layer"]] > 0 else float("nan")
    return sorted(rows, key=lambda row: layers.index(row["layer"]))


def _draw(neurons: Sequence[int], n: int, seed: int, layer: int) -> list[int]:
    return sorted(np.random.default_rng([seed, layer]).choice(neurons, n, replace=False).tolist())


def _rest(neurons: Mapping[int, Sequence[int]], d_model: int) -> dict[int, list[int]]:
    return {layer: sorted(set(range(d_model)) - set(some)) for layer, some in neurons.items()}


def _information(sides: Sides, fit: LayerFit, loss: NDArray[np.float64]) -> dict[str, Any]:
    """Return accuracy and information with their confidence intervals, given the cross-entropy of each sentence."""
    test = sides.test
    n_tokens = test.n_tokens
    constant = prior_cross_entropy_by_sentence(sides.train, test, len(sides.classes))
    saved = constant - loss
    low, high = mean_interval(test.clusters(saved), test.clusters(test.tokens_by_sentence()))
    return {
        **accuracy_columns(test, fit.correct_by_sentence),
        "majority_accuracy": majority_accuracy(sides),
        "cross_entropy": float(loss.sum() / n_tokens),
        "constant_cross_entropy": float(constant.sum() / n_tokens),
        "information": float(saved.sum() / n_tokens),
        "information_low": low,
        "information_high": high,
        "n_test_tokens": n_tokens,
    }
