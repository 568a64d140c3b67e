"""Minimum description length of the labels given the activations: the online code (Voita & Titov 2020, section 2.2.2).

Accuracy says how well a probe predicts in the end; the code length also says how much data it needs. Labels are sent in
blocks of sentences: the first in the uniform code, each later one in the code of a probe trained on all earlier blocks.
Classes that do not occur in the earlier blocks get the probability that softmax assigns to them. It is never 0, because
the penalty keeps weights finite, so no smoothing has to be chosen.

In each layer, the penalty of a probe is the one that encoded the previous block best, so that the receiver knows it
too. With a fixed penalty the code length measures overfitting: random labels of two classes took 2.3 to 2.8 times the
uniform code instead of about 1, because early probes are wrong with high confidence.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from probing.data.examples import Examples, Sides
from probing.data.module import layer_moments
from probing.probes.recipe import Training
from probing.probes.solvers import Penalty, Problem
from probing.probes.training import LayerFit, train_problems

# Shares of the training sentences at which blocks end. The probe trained up to one encodes the block up to the next.
SHARES = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.0625, 0.125, 0.25, 0.5, 1.0)
# Base-10 exponents of the l2 penalty: of the first probe, which has hardly any data, of the weakest and of the
# strongest.
FIRST, WEAKEST, STRONGEST = -1, -8, 2


@dataclass(frozen=True)
class CodeLength:
    """Code length of the training labels, given one layer's activations.

    Args:
        layer: Layer number.
        online: Length of the online code, in bits.
        uniform: Length of the uniform code, n_tokens log2 n_classes, in bits.
    """

    layer: int
    online: float
    uniform: float

    @property
    def compression(self) -> float:
        """Length of the uniform code divided by that of the online code."""
        return self.uniform / self.online


def prefix_sizes(n_sentences: int) -> list[int]:
    """Return the number of sentences up to the end of each block, ascending; a block has at least one sentence."""
    return sorted({max(1, round(share * n_sentences)) for share in SHARES})


def sentence_order(train: Examples, seed: int) -> NDArray[np.int32]:
    """Return the sentences with examples, in the random order in which they are sent."""
    return np.random.default_rng(seed).permutation(train.sentences())


def online_code(
    sides: Sides,
    layers: Sequence[int],
    training: Training,
    seed: int,
) -> list[CodeLength]:
    """Encode the training labels with each layer's activations; the test side is not used.

    Args:
        sides: Examples and their classes.
        layers: Layer numbers.
        training: Settings of the training. Its l1 penalty is used for all blocks, its l2 penalty is not used, and the
            tolerance is that of controls.
        seed: Seed of the order of the sentences.
    """
    order = sentence_order(sides.train, seed)
    ends = prefix_sizes(len(order))
    bits_per_token = math.log2(len(sides.classes))
    first = _of_sentences(sides.train, order[: ends[0]])
    bits = [first.n_tokens * bits_per_token] * len(layers)
    coders = [_Coder() for _ in layers]
    for number, (start, end) in enumerate(itertools.pairwise(ends), start=1):
        block = _of_sentences(sides.train, order[start:end])
        known = replace(sides, train=_of_sentences(sides.train, order[:start]), test=block)
        problems = [
            problem
            for i, (layer, coder) in enumerate(zip(layers, coders, strict=True))
            for problem in coder.problems(f"layer_{layer:02d}", i, training.penalty.l1)
        ]
        fits = train_problems(
            known, layers, layer_moments(known.train, layers), problems, training.for_controls().for_measuring(),
            f"{number} of {len(ends) - 1}", test=True,
        )  # fmt: skip
        for i, coder in enumerate(coders):
            tried = [fit for fit, problem in zip(fits, problems, strict=True) if problem.layer_index == i]
            bits[i] += block.n_tokens * coder.encode(tried) / math.log(2)
    uniform = sides.train.n_tokens * bits_per_token
    return [CodeLength(layer, online, uniform) for layer, online in zip(layers, bits, strict=True)]


class _Coder:
    """Chooses the penalty of a layer's next block, and the initial weights of its probes.

    On every block, the current penalty is tried beside the next weaker and the next stronger one. The best of the three
    becomes the current penalty of the following block.
    """

    def __init__(self) -> None:
        self.exponent = FIRST
        self.weights: dict[int, Tensor] = {}

    @property
    def tried(self) -> list[int]:
        """Exponents of the penalties to try, including the current one, strongest first."""
        return [e for e in range(self.exponent + 1, self.exponent - 2, -1) if WEAKEST <= e <= STRONGEST]

    def problems(self, name: str, layer_index: int, l1: float) -> list[Problem]:
        """Return a problem for each penalty to try, which starts from the nearest probe of the previous block."""
        starts = [self.weights[min(self.weights, key=lambda known: abs(known - e))] for e in self.tried if self.weights]
        return [
            Problem(f"{name}_{e}", layer_index, Penalty(l1, 10.0**e), starts[n] if starts else None)
            for n, e in enumerate(self.tried)
        ]

    def encode(self, fits: Sequence[LayerFit]) -> float:
        """Return the block's nats per token under the current penalty, then make the best penalty the current one."""
        nats = {e: fit.metrics["cross_entropy"] for e, fit in zip(self.tried, fits, strict=True)}
        self.weights = {e: fit.weight for e, fit in zip(self.tried, fits, strict=True)}
        spent = nats[self.exponent]
        self.exponent = min(nats, key=lambda e: nats[e])
        return spent


def _of_sentences(examples: Examples, sentences: NDArray[np.int32]) -> Examples:
    """Return the examples of these sentences only."""
    here = np.zeros(examples.store.tokens.n_sentences, dtype=bool)
    here[sentences] = True
    return replace(examples, labels=np.where(here[examples.store.tokens.sentences], examples.labels, -1))
