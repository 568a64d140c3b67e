"""Minimum description length of the labels given the activations: the online code (Voita & Titov 2020, section 2.2.2).

Accuracy says how well a probe does in the end; the code also says how much data it takes to get there. Labels are sent
in blocks of sentences, the first in the uniform code and each later one in the code of a probe trained on all before
it. A probability of a class that is not among those sentences is the softmax's own: the penalty keeps weights finite,
so it is never 0, and no floor has to be chosen.

The penalty of each probe is the one that encoded the block before it best, for each layer, so that the receiver knows
it too. A fixed penalty measures overfitting: random labels of two classes took 2.3 to 2.8 times the uniform code, for
early probes are wrong with confidence, where they should take the uniform code.
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
from probing.probes.linear import Problem
from probing.probes.recipe import Training
from probing.probes.solvers import Penalty
from probing.probes.training import LayerFit, layer_moments, train_problems

# Shares of the training sentences that probes are trained on, each to encode what comes up to the next.
SHARES = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.0625, 0.125, 0.25, 0.5, 1.0)
# Exponents of ten of the l2 penalty: of the first probe, which has next to no data, and of the weakest and strongest.
FIRST, WEAKEST, STRONGEST = -1, -8, 2


@dataclass(frozen=True)
class CodeLength:
    """How long the training labels are, encoded with one layer's activations.

    Args:
        layer: Layer number.
        online: In bits.
        uniform: n_tokens log2 n_classes, in bits.
    """

    layer: int
    online: float
    uniform: float

    @property
    def compression(self) -> float:
        """How many times shorter than the uniform code the online code is."""
        return self.uniform / self.online


def prefix_sizes(n_sentences: int) -> list[int]:
    """Return after how many sentences each block ends, ascending, at least one sentence a block."""
    return sorted({max(1, round(share * n_sentences)) for share in SHARES})


def sentence_order(train: Examples, seed: int) -> NDArray[np.int32]:
    """Return the sentences with examples in the order in which they are sent."""
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
        training: How probes are trained; its l1 penalty holds for all blocks, its l2 penalty for none, and they need
            not come closer to the optimum than controls do.
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
            tried = [fit for fit, problem in zip(fits, problems, strict=True) if problem.layer == i]
            bits[i] += block.n_tokens * coder.encode(tried) / math.log(2)
    uniform = sides.train.n_tokens * bits_per_token
    return [CodeLength(layer, online, uniform) for layer, online in zip(layers, bits, strict=True)]


class _Coder:
    """The penalty that a layer's next block is encoded with, and where its probes begin.

    Beside the penalty in force the next weaker and the next stronger one are tried on every block, and the best of the
    three is in force for the block after it.
    """

    def __init__(self) -> None:
        self.exponent = FIRST
        self.weights: dict[int, Tensor] = {}

    @property
    def tried(self) -> list[int]:
        """Exponents of the penalties tried, that in force among them, the strongest first."""
        return [e for e in range(self.exponent + 1, self.exponent - 2, -1) if WEAKEST <= e <= STRONGEST]

    def problems(self, name: str, layer: int, l1: float) -> list[Problem]:
        """Return a problem for each penalty tried, begun from the nearest probe of the block before."""
        starts = [self.weights[min(self.weights, key=lambda known: abs(known - e))] for e in self.tried if self.weights]
        return [
            Problem(f"{name}_{e}", layer, Penalty(l1, 10.0**e), starts[n] if starts else None)
            for n, e in enumerate(self.tried)
        ]

    def encode(self, fits: Sequence[LayerFit]) -> float:
        """Return the nats a token that the block takes under the penalty in force, then take the best for the next."""
        nats = {e: fit.metrics["cross_entropy"] for e, fit in zip(self.tried, fits, strict=True)}
        self.weights = {e: fit.weight for e, fit in zip(self.tried, fits, strict=True)}
        spent = nats[self.exponent]
        self.exponent = min(nats, key=lambda e: nats[e])
        return spent


def _of_sentences(examples: Examples, sentences: NDArray[np.int32]) -> Examples:
    """Return the examples of these sentences alone."""
    here = np.zeros(examples.store.tokens.n_sentences, dtype=bool)
    here[sentences] = True
    return replace(examples, labels=np.where(here[examples.store.tokens.sentences], examples.labels, -1))
