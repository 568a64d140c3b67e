"""Minimum description length of the labels given the activations: the online code (Voita & Titov 2020, section 2.2.2).

Accuracy says how well a probe does in the end; the code also says how much data it takes to get there. Labels are sent
in blocks of sentences, the first in the uniform code and each later one in the code of a probe trained on all before
it. A probability of a class that is not among those sentences is the softmax's own: the penalty keeps weights finite,
so it is never 0, and no floor has to be chosen. A code may be longer than the uniform one, for early probes are wrong
with confidence: with labels shuffled within sentences, the built-in model's layers compress by .74 to .77.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytorch_lightning as pl
from numpy.typing import NDArray

from probing.examples import Examples, Sides
from probing.training import Training, roughly, train_probes

# Shares of the training sentences that probes are trained on, each to encode what comes up to the next.
SHARES = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.0625, 0.125, 0.25, 0.5, 1.0)


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
    trainer_options: Mapping[str, Any],
    seed: int,
    callbacks: Callable[[str], Sequence[pl.Callback]] = lambda block: (),
) -> list[CodeLength]:
    """Encode the training labels with each layer's activations; the test side is not used.

    Args:
        sides: Examples and their classes.
        layers: Layer numbers.
        training: How probes are trained; they need not come closer to the optimum than controls do.
        trainer_options: Arguments of Lightning's Trainer.
        seed: Of the order of the sentences.
        callbacks: Returns Lightning callbacks for a block, such as `3 of 10`.
    """
    order = sentence_order(sides.train, seed)
    ends = prefix_sizes(len(order))
    bits_per_token = math.log2(len(sides.classes))
    first = _of_sentences(sides.train, order[: ends[0]])
    bits = [first.n_tokens * bits_per_token] * len(layers)
    options = {name: value for name, value in trainer_options.items() if name != "enable_checkpointing"}
    for number, (start, end) in enumerate(itertools.pairwise(ends), start=1):
        block = _of_sentences(sides.train, order[start:end])
        known = replace(sides, train=_of_sentences(sides.train, order[:start]), test=block)
        fits = train_probes(known, layers, roughly(training), options, None, callbacks(f"{number} of {len(ends) - 1}"))
        for i, fit in enumerate(fits):
            bits[i] += block.n_tokens * fit.metrics["cross_entropy"] / math.log(2)
    uniform = sides.train.n_tokens * bits_per_token
    return [CodeLength(layer, online, uniform) for layer, online in zip(layers, bits, strict=True)]


def _of_sentences(examples: Examples, sentences: NDArray[np.int32]) -> Examples:
    """Return the examples of these sentences alone."""
    here = np.zeros(examples.store.tokens.n_sentences, dtype=bool)
    here[sentences] = True
    return replace(examples, labels=np.where(here[examples.store.tokens.sentences], examples.labels, -1))
