"""How much usable information a linear probe has left with few neurons, without them, and after linear erasure.

Usable information (Xu et al. 2020, arXiv 2002.10689) is what a linear probe saves over the best constant answer, in
nats per token. Every condition trains its own probe, because a trained probe is no longer optimal once neurons are
taken from it. The first neurons of a ranking are compared with as many random neurons, and erasure of the labels with
erasure of labels permuted within each sentence, which removes as many directions.

The information is negative where a bias-free probe has too few neurons to make up for the missing intercept: with ten
random neurons of the built-in model's last layer, -.2 nats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from probing.data.constant_answer import prior_cross_entropy_by_sentence
from probing.data.controls import shuffled
from probing.data.examples import Examples, Sides, read
from probing.probes.recipe import Training
from probing.probes.training import LayerFit, train_probes
from probing.statistics.intervals import accuracy_interval, mean_interval
from probing.tables.rankings import CONDITIONS
from probing.transforms.erasure import fit_erasers, with_neurons, without

# The columns that identify a row.
INFORMATION_KEY = ("layer", "condition")


def usable_information(
    sides: Sides,
    rankings: Mapping[int, Sequence[int]],
    n_top: int,
    training: Training,
    seed: int,
) -> list[dict[str, Any]]:
    """Train probes under each condition and return a row per layer and condition.

    Args:
        sides: Examples and their classes.
        rankings: All neurons of each layer, the first of the ranking in front, by layer number.
        n_top: Number of first neurons that are kept or removed.
        training: Training options.
        seed: Seed of the random neurons and of the shuffled labels.

    Returns:
        Rows with `INFORMATION_COLUMNS`. `n_removed` counts neurons, or directions where labels are erased;
        `constant_cross_entropy` is that of predicting the classes' shares in training; `information` is what the
        probe saves over it, with its interval over test sentences; `share` is its ratio to the information of all
        neurons (NaN where these have none).

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
    made: dict[str, tuple[Sides, Mapping[int, int]]] = {
        "all": (sides, dict.fromkeys(layers, 0)),
        "top": (with_neurons(sides, top), dict.fromkeys(layers, d_model - n_top)),
        "random": (with_neurons(sides, drawn), dict.fromkeys(layers, d_model - n_top)),
        "without_top": (with_neurons(sides, _rest(top, d_model)), dict.fromkeys(layers, n_top)),
        "without_random": (with_neurons(sides, _rest(drawn, d_model)), dict.fromkeys(layers, n_top)),
        "erased": (without(sides, erasers), removed),
        "erased_shuffled": (without(sides, others), {layer: eraser.rank for layer, eraser in others.items()}),
    }
    rows = []
    for condition, (changed, n_removed) in made.items():
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
    """Return for each probe the sum of its cross-entropy over the examples of each sentence, in nats.

    Args:
        test: Examples with the activations that the probes read, of any side.
        fits: Probes of different layers.

    Returns:
        Shape (n_fits, n_sentences), for all sentences of the corpus.
    """
    sums = torch.zeros(len(fits), test.store.tokens.n_sentences, dtype=torch.float64)
    for batch in read(test, [fit.layer for fit in fits]):
        for total, fit, states in zip(sums, fits, batch.hidden_states, strict=True):
            loss = torch.nn.functional.cross_entropy(states @ fit.weight.T, batch.labels, reduction="none")
            total.index_add_(0, batch.sentences, loss.double())
    return sums.numpy()


def _information(sides: Sides, fit: LayerFit, loss: NDArray[np.float64]) -> dict[str, Any]:
    """Return accuracy and information with their intervals over test sentences.

    Args:
        sides: Examples and their classes.
        fit: The probe.
        loss: Sum of its cross-entropy over each sentence, shape (n_sentences,).
    """
    test, counts = sides.test, sides.train.counts(len(sides.classes))
    kept = test.labels >= 0
    labels, n_tokens = test.labels[kept], test.clusters(test.tokens_by_sentence())
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
