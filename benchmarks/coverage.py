"""Coverage of the reported intervals: how often they contain the truth, simulated on real sentences.

    python -m benchmarks.coverage

Probes trained on one half of the built-in corpus predict the other half. The sentences of that half, with their
lengths, correct tokens and cross-entropies, are the population, so that tokens of a sentence are as dependent as in
real data. Samples of sentences are drawn with replacement, the project's own functions compute their intervals, and the
truth is the population's ratio. Prints a Markdown table with a row for each quantity and a column for each number of
sentences: the share of samples whose interval contains the truth, and in brackets that of the percentile bootstrap.
"""

from __future__ import annotations

import argparse
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from probing.builtin_tasks.position import Position

from probing.activations import Request, activations
from probing.activations.store import cache_folder
from probing.cli.options import ProbeOptions
from probing.data.examples import Sides
from probing.data.labelling import choose_classes, label, prior_cross_entropy_by_sentence
from probing.data.module import layer_moments, token_control
from probing.models import load_encoder, resolve_model
from probing.probes.closed_forms import Decomposed
from probing.probes.retraining import weights_without
from probing.probes.solvers import Penalty, Problem
from probing.probes.training import train_probes, train_variants, training_of
from probing.statistics import ENDS, accuracy_interval, difference_interval, mean_interval, ratio_interval
from probing.text import Split, read_corpora

SIZES = (20, 50, 200, 1000)
# Number of draws of the bootstrap that the intervals are compared with.
DRAWS = 300
L2 = 1e-4

Sums = NDArray[np.float64]
Interval = Callable[[Sums, Any], tuple[float, float]]


@dataclass(frozen=True)
class Quantity:
    """A quantity estimated from sentences.

    Args:
        name: Name in the table.
        interval: Function that returns its interval, given sums by sentence and tokens by sentence.
        sums: Sum over each sentence of the population, shape (n_sentences,).
        base: What their total is divided by, likewise; numbers of tokens if None.
    """

    name: str
    interval: Interval
    sums: Sums
    base: Sums | None = None

    def truth(self, n_tokens: NDArray[np.int64]) -> float:
        """Return the ratio in the population."""
        return float(self.sums.sum() / (n_tokens if self.base is None else self.base).sum())


def halves(n: int, seed: int) -> list[Split]:
    """Return a side for each of n sentences: half are test, a few are validation, the others are training."""
    drawn = np.random.default_rng(seed).random(n)
    return ["test" if u < 0.5 else "validation" if u < 0.55 else "train" for u in drawn.tolist()]


def population(
    sides: Sides, encoder: torch.nn.Module, layers: Sequence[int]
) -> tuple[list[Quantity], NDArray[np.int64]]:
    """Return the quantities, and the number of tokens of each test sentence, shape (n_sentences,).

    Args:
        sides: Examples and their classes.
        encoder: The model, for the control that sees only the token.
        layers: Layer numbers.
    """
    test, training = sides.test, training_of(ProbeOptions(tolerance=1e-4), L2, 0)
    here, n_tokens = test.sentences(), test.tokens_by_sentence()
    moments = layer_moments(sides.train, layers)
    fits = train_probes(sides, layers, training, moments=moments)
    (token,) = train_probes(token_control(sides, encoder), layers[:1], training)
    # The neuron with the largest scaled weights is one whose removal costs the probe something.
    tops = [
        int((fit.weight.double() * own.sd).square().sum(0).argmax()) for fit, own in zip(fits, moments, strict=True)
    ]
    problems = []
    for i, (fit, top) in enumerate(zip(fits, tops, strict=True)):
        (start,) = weights_without(fit.weight, [top], training.scaling(fit.moments), L2)
        problems.append(Problem(f"without_{top}", i, Penalty(0, L2), start, torch.arange(fit.weight.shape[1]) != top))
    changed = train_variants(sides, layers, fits, problems, training, test=True)
    prior = prior_cross_entropy_by_sentence(sides.train, test, len(sides.classes))
    majority = int(sides.train.counts(len(sides.classes)).argmax())
    common = np.bincount(test.store.tokens.sentences[test.labels == majority], minlength=len(n_tokens))
    found = [Quantity("accuracy of the majority class", accuracy_interval, common)]
    for fit, other in zip(fits, changed, strict=True):
        of = f"layer {fit.layer}"
        right, nats = fit.correct_by_sentence, fit.cross_entropy_by_sentence
        rise = other.cross_entropy_by_sentence - nats
        found += [
            Quantity(f"accuracy, {of}", accuracy_interval, right),
            Quantity(f"accuracy less the token's, {of}", difference_interval, right - token.correct_by_sentence),
            Quantity(
                f"accuracy less that without a neuron, {of}", difference_interval, right - other.correct_by_sentence
            ),
            Quantity(f"nats saved over a constant answer, {of}", mean_interval, prior - nats),
            Quantity(f"nats, {of}", mean_interval, nats),
            Quantity(f"ablation effect of a neuron in nats, {of}", mean_interval, rise),
        ]
    values = np.array([float(name) for name in sides.classes])
    for ridge in Decomposed.of(sides.each(lambda one: replace(one, values=values)), layers, "sd").train(1e-3):
        saved = ridge.deviations - ridge.errors
        found.append(Quantity(f"R² of position as a number, layer {ridge.layer}", _of_r2, saved, ridge.deviations))
    return [
        Quantity(q.name, q.interval, q.sums[here].astype(np.float64), None if q.base is None else q.base[here])
        for q in found
    ], n_tokens[here]


def _of_r2(saved: Sums, deviations: Sums) -> tuple[float, float]:
    return ratio_interval((saved, deviations))


def percentile_bootstrap(sums: Sums, n_tokens: Sums | NDArray[np.int64], times: Sums) -> tuple[float, float]:
    """Return the interval that was reported formerly: percentiles of the ratio over resampled sentences."""
    low, high = np.quantile((times @ sums) / (times @ n_tokens), ENDS)
    return float(low), float(high)


def coverage(
    quantity: Quantity, n_tokens: NDArray[np.int64], size: int, n_samples: int, seed: int
) -> tuple[float, float]:
    """Return how often the interval, and the percentile bootstrap, contain the population's ratio.

    Args:
        quantity: The estimated quantity.
        n_tokens: Number of tokens of each sentence of the population, shape (n_sentences,).
        size: Number of sentences in a sample.
        n_samples: Number of samples.
        seed: Seed of the samples and of the bootstrap.
    """
    generator = np.random.default_rng([seed, size])
    base = n_tokens if quantity.base is None else quantity.base
    truth = quantity.truth(n_tokens)
    times = generator.multinomial(size, np.full(size, 1 / size), DRAWS).astype(np.float64)
    hits = np.zeros(2)
    for _ in range(n_samples):
        drawn = generator.integers(len(n_tokens), size=size)
        sums, tokens = quantity.sums[drawn], base[drawn]
        for i, (low, high) in enumerate((quantity.interval(sums, tokens), percentile_bootstrap(sums, tokens, times))):
            hits[i] += low - 1e-12 <= truth <= high + 1e-12
    return float(hits[0] / n_samples), float(hits[1] / n_samples)


def report(rows: Mapping[str, Mapping[int, tuple[float, float]]], truths: Mapping[str, float]) -> str:
    """Return the coverages as a Markdown table, with those of the percentile bootstrap in brackets."""
    sizes = list(next(iter(rows.values())))
    lines = [
        f"| 95% interval of | truth | {' | '.join(f'{size} sentences' for size in sizes)} |",
        "|---|---|" + "---|" * len(sizes),
    ]
    for name, found in rows.items():
        cells = [f"{100 * now:.1f}% ({100 * before:.1f}%)" for now, before in found.values()]
        lines.append(f"| {name} | {truths[name]:.4f} | {' | '.join(cells)} |")
    every = [now for found in rows.values() for now, _ in found.values()]
    inside = sum(0.92 <= value <= 0.98 for value in every)
    lines += [
        "",
        f"{inside} of {len(every)} cells are within 92% to 98%; lowest {min(every):.3f}, highest {max(every):.3f}.",
    ]
    return "\n".join(lines)


def main() -> None:
    """Parse the options, train the probes, draw samples, print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--layers", default="0,3,6")
    parser.add_argument("--samples", type=int, default=2000, help="samples in each cell")
    parser.add_argument("--seed", type=int, default=0, help="seed of the halves and of the samples")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", module="pytorch_lightning")
    for name in ("pytorch_lightning", "pytorch_lightning.utilities.rank_zero", "lightning_fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    layers = [int(layer) for layer in options.layers.split(",")]
    (corpus,), _ = read_corpora("builtin", None, options.seed, print)
    source, task = resolve_model("minilm"), Position()
    store = activations(Request(source, corpus, layers), cache_folder(None), {}, print)
    splits = halves(len(corpus.sentences), options.seed)
    classes = choose_classes(store.tokens, corpus, task, splits)
    parts = [label(store, corpus, task, splits, classes, side) for side in ("train", "validation", "test")]
    encoder = load_encoder(source, None)
    quantities, n_tokens = population(Sides(*parts, classes, task.ordinal), encoder, layers)
    print(f"population: {len(n_tokens)} sentences, {n_tokens.sum()} tokens; {options.samples} samples a cell\n")
    rows = {
        q.name: {size: coverage(q, n_tokens, size, options.samples, options.seed) for size in SIZES} for q in quantities
    }
    print(report(rows, {q.name: q.truth(n_tokens) for q in quantities}))


if __name__ == "__main__":
    main()
