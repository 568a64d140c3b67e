"""Losses of a probe without neurons (one or many), and stability of a ranking over bootstraps and penalties."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata
from torch import Tensor

from probing.data.examples import Examples, Sides, read
from probing.data.labelling import prior_cross_entropy_by_sentence
from probing.data.module import shuffled
from probing.probes.solvers import ClassCurvature, Penalty, Problem, centre_over_classes
from probing.probes.training import LayerFit, Training, train_probes
from probing.probes.transforms import fit_erasers, with_neurons, without
from probing.statistics import (
    TOP_OF_BOOTSTRAPS,
    TOP_OF_PENALTIES,
    accuracy_interval,
    mean_interval,
    mean_p_value,
    neuron_ranks,
    shared_ranks,
    spearman,
    top_overlap,
)
from probing.statistics.chance import holm
from probing.statistics.moments import Scaling
from probing.tables import CONDITIONS, NEGLIGIBLE_NATS

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


Outcome = Literal["seen", "negligible", "unresolved"]


@dataclass(frozen=True)
class AblationEffect:
    """Increase of the test cross-entropy if the probe is retrained without a neuron, negative if it improves.

    Args:
        value: Increase of the mean test cross-entropy, in nats.
        low: Lower end of its 95% confidence interval, from differences paired by test sentence, widened by the possible
            distance of both probes from their optima; NaN if there are too few sentences.
        p: Two-sided p-value of no effect: 1 minus the highest level at which the interval excludes 0.
    """

    value: float
    low: float
    high: float
    p: float = math.nan

    @property
    def outcome(self) -> Outcome:
        """`seen` if the interval excludes 0, `negligible` if it is within `NEGLIGIBLE_NATS` of 0, else `unresolved`."""
        if self.low > 0 or self.high < 0:
            return "seen"
        return "negligible" if max(-self.low, self.high) < NEGLIGIBLE_NATS else "unresolved"


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


def corrected(effects: Mapping[int, AblationEffect]) -> dict[int, float]:
    """Return the p-value of each removed neuron, corrected (Holm) for all removed neurons of the layer."""
    return dict(zip(effects, holm([effect.p for effect in effects.values()]), strict=True))


def with_corrected(rows: Sequence[dict[str, Any]], effects: Mapping[int, AblationEffect]) -> list[dict[str, Any]]:
    """Add the column `removed_p` to the table of a layer; it is empty for neurons that were not removed."""
    p = corrected(effects)
    return [{**row, "removed_p": p.get(row["neuron"])} if effects else row for row in rows]


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
        losses = cross_entropy_by_sentence(changed.test, fits)
        for fit, loss in zip(fits, losses, strict=True):
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


def cross_entropy_by_sentence(test: Examples, fits: Sequence[LayerFit]) -> NDArray[np.float64]:
    """Return the cross-entropy of each probe, summed over examples by sentence of the corpus, in nats.

    The shape is (n_fits, n_sentences). The probes are of different layers.
    """
    sums = torch.zeros(len(fits), test.store.tokens.n_sentences, dtype=torch.float64)
    for batch in read(test, [fit.layer for fit in fits]):
        for total, fit, states in zip(sums, fits, batch.hidden_states, strict=True):
            loss = torch.nn.functional.cross_entropy(states @ fit.weight.T, batch.labels, reduction="none")
            total.index_add_(0, batch.sentences, loss.double())
    return sums.numpy()


def _information(sides: Sides, fit: LayerFit, loss: NDArray[np.float64]) -> dict[str, Any]:
    """Return accuracy and information with their confidence intervals, given the cross-entropy of each sentence."""
    test, counts = sides.test, sides.train.counts(len(sides.classes))
    labelled = test.labels >= 0
    labels, n_tokens = test.labels[labelled], test.clusters(test.tokens_by_sentence())
    constant = prior_cross_entropy_by_sentence(sides.train, test, len(sides.classes))
    saved = constant - loss
    accuracy_low, accuracy_high = accuracy_interval(test.clusters(fit.correct_by_sentence), n_tokens)
    information_low, information_high = mean_interval(test.clusters(saved), n_tokens)
    return {
        "accuracy": float(fit.metrics["accuracy"]),
        "accuracy_low": accuracy_low,
        "accuracy_high": accuracy_high,
        "majority_accuracy": float((labels == counts.argmax()).mean()),
        "cross_entropy": float(loss.sum() / len(labels)),
        "constant_cross_entropy": float(constant.sum() / len(labels)),
        "information": float(saved.sum() / len(labels)),
        "information_low": information_low,
        "information_high": information_high,
        "n_test_tokens": len(labels),
    }


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


def replicate_problems(n_layers: int, penalty: Penalty, draws: Tensor) -> list[Problem]:
    """Return a problem for each layer and replicate; the replicates of a layer are consecutive."""
    pairs = itertools.product(range(n_layers), enumerate(draws))
    return [Problem(f"replicate_{r}", layer_index, penalty, draws=drawn) for layer_index, (r, drawn) in pairs]


def penalty_problems(
    n_layers: int, penalty: Penalty, starts: Mapping[str, Sequence[Tensor] | None] | None = None
) -> list[Problem]:
    """Return a problem for each layer and each other penalty, by layer, with initial weights if known."""
    known = starts or {}
    others = {name: Penalty(penalty.l1 * 10.0**n, penalty.l2 * 10.0**n) for name, n in PENALTIES.items()}
    pairs = itertools.product(range(n_layers), others.items())
    return [
        Problem(name, i, other_penalty, weights[i] if (weights := known.get(name)) else None)
        for i, (name, other_penalty) in pairs
    ]


@dataclass(frozen=True)
class Stability:
    """Stability of a layer's ranking over bootstraps.

    `rank_low` and `rank_high` are the best and worst rank of each neuron over the probe and its replicates, shape
    (d_model,), a range and not a confidence interval; `bootstrap_overlap` is the mean share of the first 20 neurons
    that two replicates have in common.
    """

    rank_low: NDArray[np.int64]
    rank_high: NDArray[np.int64]
    bootstrap_overlap: float


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


def penalty_stability(scores: NDArray[np.float64], others: NDArray[np.float64]) -> dict[str, float]:
    """Return the agreement with rankings under more and less penalty (in this order), as columns of `accuracy.csv`."""
    columns: dict[str, float] = {}
    k = min(TOP_OF_PENALTIES, len(scores))
    for name, other in zip(PENALTIES, others, strict=True):
        columns[f"{name}_penalty_overlap"] = float(top_overlap(neuron_ranks(scores), neuron_ranks(other), k))
        columns[f"{name}_penalty_spearman"] = float(spearman(rankdata(scores), rankdata(other)))
    return columns
