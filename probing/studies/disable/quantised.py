"""Rounds a model's weights and hidden states to few bits, with and without its outlier neurons, and reads it out.

Numbers are rounded to 2^bits - 1 equally spaced values about 0, up to the largest magnitude: of a whole tensor, or of
each of its channels, which are the units that a weight matrix makes and the neurons of hidden states (Dettmers et al.
2022, section 2). One neuron of large values makes the steps of the whole tensor large, so that little is left of the
others. Hidden states are rounded where they enter a block; their largest magnitudes are those of training sentences,
and larger values are cut to these.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from probing.cache.store import PassStore
from probing.comparison.agreement import holm
from probing.disabling.probed_task import run_unfinished
from probing.disabling.subject import Rows, tested
from probing.probes.transforms import random_neurons
from probing.readouts.forward import Forward, Padded, ReadableText, Readers, Readout
from probing.readouts.later_blocks import LaterBlocks
from probing.readouts.names import measure_of
from probing.statistics.intervals import widened
from probing.statistics.moments import ProfileAccumulator, outliers_of
from probing.studies.disable.schema import (
    ACTIVATIONS,
    BOTH,
    CHANNEL,
    NOTHING,
    OUTLIERS,
    RANDOM,
    RANDOM_MEAN,
    TENSOR,
    WEIGHTS,
)
from probing.studies.disable.weights import first_block, matrices

# Random draws of neurons that are kept; with so many a rank can be significant at 5%.
N_DRAWS = 20


@dataclass(frozen=True)
class Rounding:
    """How a model is rounded.

    Args:
        bits: Number of bits; 0 for the model as it is.
        rounded: Whether weights, activations or both are rounded.
        scale: Whether a whole tensor or each channel has a scale.
        kept: Neurons of hidden states that are not rounded and do not count for the scale: none, outliers, random.
        draw: Number of the random draw.
    """

    bits: int
    rounded: str = ""
    scale: str = ""
    kept: str = NOTHING
    draw: int = 0


def roundings(bits: Sequence[int]) -> list[Rounding]:
    """Return all that is measured: the model as it is, then each number of bits."""
    made = [Rounding(0)]
    for n in bits:
        made += [Rounding(n, rounded, scale) for rounded in (WEIGHTS, ACTIVATIONS, BOTH) for scale in (TENSOR, CHANNEL)]
        made += [Rounding(n, rounded, TENSOR, OUTLIERS) for rounded in (ACTIVATIONS, BOTH)]
        made += [Rounding(n, ACTIVATIONS, TENSOR, RANDOM, draw) for draw in range(1, N_DRAWS + 1)]
    return made


def rounded(values: Tensor, bits: int, largest: Tensor) -> Tensor:
    """Return values rounded to the nearest of 2^bits - 1 equally spaced ones from -largest to largest.

    Args:
        values: The values.
        bits: Number of bits, at least 2.
        largest: The largest magnitude of each, of a shape that broadcasts; 0 where all are 0.
    """
    steps = 2 ** (bits - 1) - 1
    step = torch.where(largest > 0, largest, 1.0) / steps
    return (values / step).round().clamp(-steps, steps) * step


@contextmanager
def rounded_weights(
    weights: Sequence[nn.Parameter], bits: int, by_channel: bool, columns: Collection[nn.Parameter] = ()
) -> Iterator[None]:
    """Round weight matrices, and restore them.

    Args:
        weights: The matrices.
        bits: Number of bits; 0 rounds nothing.
        by_channel: Whether each unit that a matrix makes has a scale of its own.
        columns: The matrices whose units are their columns; those of the others are their rows.
    """
    before = [weight.detach().clone() for weight in weights] if bits else []
    try:
        for weight in weights if bits else ():
            magnitude = weight.detach().abs()
            is_of_columns = any(weight is one for one in columns)
            largest = magnitude.amax(0 if is_of_columns else 1, keepdim=True) if by_channel else magnitude.amax()
            weight.data.copy_(rounded(weight.detach(), bits, largest))
        yield
    finally:
        for weight, own in zip(weights if bits else (), before, strict=True):
            weight.data.copy_(own)


def made_by_columns(model: nn.Module) -> list[nn.Parameter]:
    """Return the weights whose columns are the units that they make, as GPT-2 has them."""
    from transformers.pytorch_utils import Conv1D

    return [module.weight for module in model.modules() if isinstance(module, Conv1D)]


@dataclass(frozen=True)
class Range:
    """What rounding needs to know of the hidden states that enter a block.

    Args:
        largest: Largest magnitude of each neuron, shape (d_model,), float32.
        outliers: Neurons that any definition of `geometry` calls outliers, special tokens included; ascending.
    """

    largest: Tensor
    outliers: list[int]

    @classmethod
    def of(cls, states: Tensor) -> Range:
        """Return the range of hidden states, shape (n_tokens, d_model)."""
        profile = ProfileAccumulator(states.shape[1])
        profile.update(states)
        named = {one.neuron for one in outliers_of(profile.result())}
        return cls(states.abs().amax(0).float().cpu(), sorted(named))

    def kept(self, rounding: Rounding, seed: int, block: int) -> list[int]:
        """Return the neurons that a rounding keeps as they are."""
        if rounding.kept == OUTLIERS:
            return self.outliers
        if rounding.kept == RANDOM:
            generator = np.random.default_rng([seed, 16, block, rounding.draw])
            n = min(len(self.outliers), len(self.largest) - len(self.outliers))
            return random_neurons(len(self.largest), n, self.outliers, generator)
        return []


@dataclass(frozen=True)
class RoundedStates:
    """A change of a model: hidden states that enter its blocks are rounded.

    Args:
        layer: The layer from whose hidden states the blocks are run.
        ranges: What is known of the states that enter each of the blocks whose input is rounded.
        rounding: How they are rounded.
        seed: Seed of the draws of neurons.
    """

    layer: int
    ranges: Mapping[int, Range]
    rounding: Rounding
    seed: int

    def later(
        self, model: LaterBlocks, batch: Padded, beside: Any, states: Tensor, layers: Sequence[int]
    ) -> dict[int, Tensor]:
        """Return later hidden states."""
        entering = {block: self._round(block) for block in self.ranges}
        return model.run(batch.inputs, self.layer + 1, states, beside, layers, entering=entering)

    def _round(self, block: int) -> Any:
        found, how = self.ranges[block], self.rounding
        kept = torch.zeros(len(found.largest), dtype=torch.bool)
        kept[found.kept(how, self.seed, block)] = True
        others = found.largest.where(~kept, torch.zeros(()))
        largest = others if how.scale == CHANNEL else others.amax().expand_as(others)

        def change(states: Tensor) -> Tensor:
            own = largest.to(states.device)
            return torch.where(kept.to(states.device), states, rounded(states, how.bits, own))

        return change


@dataclass(frozen=True)
class Quantised:
    """A model whose weights and hidden states are rounded.

    Args:
        readers: The model.
        train: Training sentences, whose hidden states tell the ranges and the outliers.
        blocks: The blocks whose matrices and inputs are rounded.
        bits: Numbers of bits.
        seed: Seed of the random draws.
        batch_tokens: Most tokens in a batch, padding included.
    """

    readers: Readers
    train: ReadableText
    blocks: Sequence[int]
    bits: Sequence[int]
    seed: int
    batch_tokens: int

    @property
    def n_files(self) -> int:
        """Number of files of passes."""
        return 1 + len(roundings(self.bits))

    @cached_property
    def ranges(self) -> dict[int, Range]:
        """The range of what enters each block."""
        return {block: Range.of(self.train.states(block - 1)) for block in self.blocks}

    def rows(self, readout: Readout, store: PassStore) -> Rows:
        """Return the rows of `quantised.csv`.

        Args:
            readout: What is read.
            store: Where passes are stored.
        """
        n_kept = sum(len(one.outliers) for one in self.ranges.values())
        made = {i + 1: one for i, one in enumerate(roundings(self.bits)) if n_kept or one.kept == NOTHING}
        weights = matrices(self.readers.model, self.blocks)
        columns = made_by_columns(self.readers.model.encoder)
        forward = Forward(self.readers, readout.text, self.batch_tokens)
        first = first_block(self.readers.model, self.blocks) - 1

        def read(one: Rounding) -> Tensor:
            ranges = self.ranges if one.rounded in (ACTIVATIONS, BOTH) else {}
            of_weights = one.bits if one.rounded in (WEIGHTS, BOTH) else 0
            with rounded_weights(weights, of_weights, one.scale == CHANNEL, columns):
                return forward.read(RoundedStates(first, ranges, one, self.seed), readout)[-1].clone()

        found = run_unfinished(made, store, read, f"rounded to few bits, {readout.name}")
        named = {"readout": readout.name, "layer": max(readout.layers(1))}
        sums = {one: gave.astype(np.float64) for one, gave in found.items()}
        return quantised_rows(sums, readout.n, named, n_kept)


def quantised_rows(
    found: Mapping[Rounding, NDArray[np.float64]], n: NDArray[np.int64], named: Mapping[str, Any], n_kept: int
) -> Rows:
    """Return the rows of `quantised.csv`: each rounding, and for each number of bits the mean of the random draws.

    `effect` is what changes from the model as it is, paired by item; that of the mean has an interval over items and
    draws. p-values are two-sided, over items, and corrected (Holm) for all rows but single draws. `rank_p` of kept
    outliers is by rank among the draws: the share of these, and of what is tested, that lose no more.

    Args:
        found: What each pass gave, as sums over the examples of each item, shape (n_items,).
        n: Number of examples of each item, shape (n_items,).
        named: Columns that all rows have: `readout`, `layer`.
        n_kept: Number of neurons that are kept, over all blocks.
    """
    measure, whole = measure_of(str(named["readout"])), found[Rounding(0)]

    def row(one: Rounding, kept: str, sums: NDArray[np.float64]) -> dict[str, Any]:
        made = {
            **named, "bits": one.bits, "rounded": one.rounded, "scale": one.scale, "kept": kept, "draw": one.draw,
            "n_kept": 0 if kept == NOTHING else n_kept, "value": float(sums.sum() / n.sum()),
        }  # fmt: skip
        return made | tested(sums, whole, n, measure.is_share)

    main = [row(one, one.kept, sums) for one, sums in found.items() if one.bits and one.kept != RANDOM]
    draws, means = [], []
    for bits in dict.fromkeys(one.bits for one in found if one.kept == RANDOM):
        of_bits = {one: sums for one, sums in found.items() if (one.bits, one.kept) == (bits, RANDOM)}
        rows = [row(one, RANDOM, sums) for one, sums in of_bits.items()]
        effects = [one["effect"] for one in rows]
        mean = row(replace(next(iter(of_bits)), draw=0), RANDOM_MEAN, np.mean(list(of_bits.values()), axis=0))
        mean["low"], mean["high"] = widened(mean["effect"], (mean["low"], mean["high"]), effects)
        own = next(one for one in main if (one["bits"], one["rounded"], one["kept"]) == (bits, ACTIVATIONS, OUTLIERS))
        better = sum(measure.sign * effect >= measure.sign * own["effect"] for effect in effects)
        own["rank_p"] = (1 + better) / (1 + len(effects))
        draws += rows
        means.append(mean)
    for one, p_value in zip([*main, *means], holm([one["p_value"] for one in [*main, *means]]), strict=True):
        one["p_value"] = float(p_value)
    return [*main, *means, *draws]
