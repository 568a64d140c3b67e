"""How much a ranking changes when sentences, or documents, are resampled, and when the penalty changes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata
from torch import Tensor

from probing.data.examples import Examples
from probing.probes.solvers import Penalty, Problem
from probing.statistics.rank_similarity import (
    TOP_OF_BOOTSTRAPS,
    TOP_OF_PENALTIES,
    neuron_ranks,
    shared_ranks,
    spearman,
    top_overlap,
)

# Decades by which the penalty is stronger or weaker: choices that other studies might have made.
PENALTIES = {"more": 1, "less": -1}


def bootstrap(train: Examples, n_replicates: int, seed: int) -> Tensor:
    """Return how often each sentence of the corpus is drawn in each replicate, shape (n_replicates, n_sentences).

    As many training sentences are drawn as there are, with replacement (Efron 1979); whole sentences, or documents if
    intervals are over these, since the tokens of one are not independent.
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
    """Return a problem for each layer and each other penalty; the problems of a layer are consecutive.

    Args:
        n_layers: Number of layers.
        penalty: The penalty of the finished probes.
        starts: Initial weights of each layer's probe under each of `PENALTIES`, where they are known.
    """
    known = starts or {}
    others = {name: Penalty(penalty.l1 * 10.0**n, penalty.l2 * 10.0**n) for name, n in PENALTIES.items()}
    pairs = itertools.product(range(n_layers), others.items())
    return [Problem(name, i, own, weights[i] if (weights := known.get(name)) else None) for i, (name, own) in pairs]


@dataclass(frozen=True)
class Stability:
    """How stable a layer's ranking is over bootstraps.

    Args:
        rank_low: Best rank of each neuron over the probe itself and its replicates, shape (d_model,).
        rank_high: Worst rank of each neuron over the same; the two are a range of stability, not a confidence interval.
        bootstrap_overlap: Share of the first 20 neurons that two replicates have in common, averaged over all pairs.
    """

    rank_low: NDArray[np.int64]
    rank_high: NDArray[np.int64]
    bootstrap_overlap: float


def stability_of(scores: NDArray[np.float64], replicates: NDArray[np.float64]) -> Stability:
    """Return how stable a ranking is over bootstraps of the training sentences.

    The range of ranks includes the ranking itself. A replicate is trained on about 63% of the sentences, some of them
    several times, so it does not scatter around the full probe: it fits noisier data, which moves some neurons up and
    others down in every replicate. The range of the replicates alone often excludes the rank that it describes.

    Args:
        scores: Scores of the probe's own ranking, shape (d_model,).
        replicates: Scores in each of two or more replicates, shape (n_replicates, d_model).
    """
    ranks = shared_ranks(np.concatenate([scores[None], replicates]))
    found, k = neuron_ranks(replicates), min(TOP_OF_BOOTSTRAPS, len(scores))
    overlaps = [top_overlap(one, other, k) for one, other in itertools.combinations(found, 2)]
    return Stability(ranks.min(0), ranks.max(0), float(np.mean(overlaps)))


def penalty_stability(scores: NDArray[np.float64], others: NDArray[np.float64]) -> dict[str, float]:
    """Return how far a ranking agrees with those under more and under less penalty, as columns of `accuracy.csv`.

    Args:
        scores: Scores of the probe's own ranking, shape (d_model,).
        others: Scores under each of `PENALTIES`, in their order, shape (2, d_model).
    """
    found: dict[str, float] = {}
    k = min(TOP_OF_PENALTIES, len(scores))
    for name, other in zip(PENALTIES, others, strict=True):
        found[f"{name}_penalty_overlap"] = float(top_overlap(neuron_ranks(scores), neuron_ranks(other), k))
        found[f"{name}_penalty_spearman"] = float(spearman(rankdata(scores), rankdata(other)))
    return found
