"""What each attention head tells: its share of the contributions, and a probe of its slice alone.

The neurons of the site `attention` are the concatenated outputs of the heads, so a head is a slice of them. The probe
of a slice is compared with probes of as many neurons drawn at random from the layer, because any slice of a layer
tells something.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from probing.data.examples import Sides, n_constants
from probing.data.labelling import thin
from probing.probes.training import LayerFit, Lbfgs, Training, train_probes
from probing.rankings.evaluation import BY_CHANCE, DRAWS, MOST_TOKENS, TOLERANCE, of_views
from probing.statistics.intervals import accuracy_interval

Rows = list[dict[str, Any]]


def heads_of(n_neurons: int, n_heads: int) -> list[range]:
    """Return the neurons of each head; heads have equally many, in order."""
    width = n_neurons // n_heads
    return [range(head * width, (head + 1) * width) for head in range(n_heads)]


def head_contributions(layer: int, contribution: Tensor, n_heads: int) -> Rows:
    """Return a row per head with its part of the layer's contributions, as in `heads.csv`; heads are counted from 1.

    Args:
        layer: Layer number.
        contribution: Contribution of each neuron, shape (n_neurons,).
        n_heads: Number of heads.
    """
    total = float(contribution.sum())
    rows = []
    for head, neurons in enumerate(heads_of(len(contribution), n_heads), start=1):
        own = float(contribution[neurons.start : neurons.stop].sum())
        rows.append({
            "layer": layer, "head": head, "first_neuron": neurons.start, "n_neurons": len(neurons),
            "contribution": own, "share": own / total if total else own,
        })  # fmt: skip
    return rows


def head_accuracies(sides: Sides, fit: LayerFit, n_heads: int, training: Training, seed: int) -> Rows:
    """Train a probe on each head's slice and on random slices of its width, all in one stack; return a row per head.

    `above_chance` is `yes` where the lower end of the accuracy's interval exceeds the accuracy of the majority class
    and that of every random slice; that interval is at the level that leaves 5% for all heads of the layer together
    (Bonferroni) and is wider than the one in the row.

    Args:
        sides: Examples and their classes.
        fit: The layer's probe, for its moments.
        n_heads: Number of heads.
        training: Settings of the layer's probe; these probes have its penalty.
        seed: Seed of the random slices, and of the sample of the training tokens where not all are used.
    """
    d_model = fit.weight.shape[1] - n_constants(sides.train.store)
    slices = [list(neurons) for neurons in heads_of(d_model, n_heads)]
    slices += [_drawn(d_model, len(slices[0]), fit.layer, draw, seed) for draw in range(1, DRAWS + 1)]
    few = replace(sides, train=thin(sides.train, MOST_TOKENS, seed))
    viewed = few.each(lambda examples: of_views(examples, fit.layer, slices, fit.moments.dead))
    roughly = replace(training.for_measuring(), solver=Lbfgs(TOLERANCE))
    fits = train_probes(viewed, range(len(slices)), roughly, f"heads of layer {fit.layer}")
    test, majority = sides.test, int(sides.train.counts(len(sides.classes)).argmax())
    n_tokens, of_majority = test.clusters(test.tokens_by_sentence()), float((_classes(sides) == majority).mean())
    accuracies = [float(one.correct_by_sentence.sum() / test.n_tokens) for one in fits]
    drawn, rows = accuracies[n_heads:], []
    for accuracy, one in zip(accuracies[:n_heads], fits, strict=False):
        correct = test.clusters(one.correct_by_sentence)
        low, high = accuracy_interval(correct, n_tokens)
        cautious, _ = accuracy_interval(correct, n_tokens, 1 - 2 * BY_CHANCE / n_heads)
        rows.append({
            "accuracy": accuracy, "accuracy_low": low, "accuracy_high": high, "majority_accuracy": of_majority,
            "random_accuracy": float(np.mean(drawn)), "random_lowest": min(drawn), "random_highest": max(drawn),
            "n_random": len(drawn), "above_chance": "yes" if cautious > max(of_majority, *drawn) else "no",
            "n_train_tokens": few.train.n_tokens, "n_test_tokens": test.n_tokens,
        })  # fmt: skip
    return rows


def head_rows(
    sides: Sides,
    fits: Sequence[LayerFit],
    contributions: Sequence[Tensor],
    n_heads: int,
    training: Training | None,
    seed: int,
) -> Rows:
    """Return a row per layer and head, as in `heads.csv`.

    Args:
        sides: Examples and their classes.
        fits: The probe of each layer.
        contributions: Contribution of each neuron, by layer, each of shape (n_neurons,).
        n_heads: Number of heads.
        training: Settings of the probes; None measures no accuracies.
        seed: Seed of the random slices.
    """
    rows = []
    for fit, contribution in zip(fits, contributions, strict=True):
        shares = head_contributions(fit.layer, contribution, n_heads)
        measured: Rows = head_accuracies(sides, fit, n_heads, training, seed) if training else [{}] * n_heads
        rows += [{**share, **accuracy} for share, accuracy in zip(shares, measured, strict=True)]
    return rows


def _drawn(d_model: int, n_neurons: int, layer: int, draw: int, seed: int) -> list[int]:
    """Return randomly drawn neurons of a layer, ascending; each number `draw` gives an independent draw."""
    generator = np.random.default_rng([seed, layer, draw])
    return sorted(generator.permutation(d_model)[:n_neurons].tolist())


def _classes(sides: Sides) -> Any:
    """Return the class of each test token."""
    return sides.test.labels[sides.test.labels >= 0]
