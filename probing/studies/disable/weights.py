"""Prunes a growing share of a model's weights, by magnitude and at random, and reads it out at each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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
from probing.readouts.forward import Forward, Intact, Readers, Readout
from probing.readouts.later_blocks import LaterBlocks
from probing.readouts.names import measure_of
from probing.statistics.intervals import widened
from probing.studies.disable.schema import MAGNITUDE, MEAN, RANDOM

# Shares of the weights that are pruned, in percent; number of random draws.
PERCENT = tuple(range(0, 100, 10))
N_DRAWS = 10
N_FILES = 1 + len(PERCENT) * (1 + N_DRAWS)


def matrices(model: LaterBlocks, blocks: Sequence[int]) -> list[nn.Parameter]:
    """Return the weight matrices of some blocks, each once: of attention and of feed-forward layers.

    Norms, biases and embeddings, such as those of relative positions, are none of them.

    Args:
        model: The model.
        blocks: The blocks, from 1; all of them where blocks share their weights.
    """
    found: dict[nn.Parameter, None] = {}
    for block in own_blocks(model, blocks):
        for module in block.modules():
            weight = getattr(module, "weight", None)
            if isinstance(weight, nn.Parameter) and weight.ndim == 2 and not isinstance(module, nn.Embedding):
                found[weight] = None
    return list(found)


def _are_shared(model: LaterBlocks) -> bool:
    return len(set(model.anatomy.blocks or ())) < model.anatomy.n_layers


def own_blocks(model: LaterBlocks, blocks: Sequence[int]) -> list[nn.Module]:
    """Return the modules of some blocks; all modules where blocks share their weights."""
    every = model.anatomy.blocks or ()
    return list(dict.fromkeys(every if _are_shared(model) else [every[block - 1] for block in blocks]))


def first_block(model: LaterBlocks, blocks: Sequence[int]) -> int:
    """Return the first block whose weights are changed when those of some blocks are."""
    return 1 if _are_shared(model) else min(blocks)


def smallest(matrix: Tensor, n: int, generator: np.random.Generator | None) -> NDArray[np.int64]:
    """Return the indices of the weights of a matrix that are pruned.

    Args:
        matrix: The matrix.
        n: Number of weights.
        generator: Draws them at random, more of them beside the same ones for a larger number, if it draws the same;
            None for those of the smallest magnitude.
    """
    order = matrix.detach().abs().cpu().numpy().ravel() if generator is None else generator.random(matrix.numel())
    return np.argpartition(order, n - 1)[:n] if n else np.zeros(0, dtype=np.int64)


@contextmanager
def pruned(weights: Sequence[nn.Parameter], percent: int, draw: int, seed: int) -> Iterator[int]:
    """Set a share of the weights of every matrix to 0, and restore them; yields their number.

    Args:
        weights: The matrices; copies of a model that share them are changed, too.
        percent: The share of each, in percent.
        draw: Number of the random draw, from 1; 0 prunes the weights of the smallest magnitude.
        seed: Seed of the draws.
    """
    before, n_pruned = [weight.detach().clone() for weight in weights], 0
    try:
        for i, weight in enumerate(weights):
            generator = np.random.default_rng([seed, draw, i]) if draw else None
            gone = smallest(weight, round(percent / 100 * weight.numel()), generator)
            keep = torch.ones(weight.numel(), dtype=torch.bool)
            keep[torch.from_numpy(gone)] = False
            weight.data.mul_(keep.view(weight.shape).to(weight.device))
            n_pruned += len(gone)
        yield n_pruned
    finally:
        for weight, own in zip(weights, before, strict=True):
            weight.data.copy_(own)


@dataclass(frozen=True)
class Pass:
    """A pass over the text with pruned weights.

    Args:
        percent: Share of the weights of each matrix, in percent.
        draw: Number of the random draw; 0 for magnitude.
    """

    percent: int
    draw: int


@dataclass(frozen=True)
class WeightPruning:
    """A model whose weights are pruned.

    Args:
        readers: The model.
        blocks: The blocks whose matrices are pruned.
        seed: Seed of the random draws.
        batch_tokens: Most tokens in a batch, padding included.
    """

    readers: Readers
    blocks: Sequence[int]
    seed: int
    batch_tokens: int

    @cached_property
    def weights(self) -> list[nn.Parameter]:
        """The matrices."""
        return matrices(self.readers.model, self.blocks)

    def rows(self, readout: Readout, store: PassStore) -> Rows:
        """Return the rows of `weight_pruning.csv`.

        Args:
            readout: What is read.
            store: Where passes are stored.
        """
        passes = [Pass(percent, draw) for draw in range(N_DRAWS + 1) for percent in PERCENT if percent or not draw]
        files = {1 + one.draw * len(PERCENT) + PERCENT.index(one.percent): one for one in passes}
        forward = Forward(self.readers, readout.text, self.batch_tokens)
        whole = Intact(first_block(self.readers.model, self.blocks) - 1)

        def read(one: Pass) -> Tensor:
            with pruned(self.weights, one.percent, one.draw, self.seed):
                return forward.read(whole, readout)[-1].clone()

        found = run_unfinished(files, store, read, f"pruned weights, {readout.name}")
        n_weights = sum(weight.numel() for weight in self.weights)
        named = {"readout": readout.name, "layer": max(readout.layers(1)), "n_weights": n_weights}
        return weight_rows({one: sums.astype(np.float64) for one, sums in found.items()}, readout.n, named)


def weight_rows(
    found: Mapping[Pass, NDArray[np.float64]], n: NDArray[np.int64], named: Mapping[str, Any]
) -> Rows:  # fmt: skip
    """Return the rows of `weight_pruning.csv`: by magnitude, for each random draw, and for the mean of the draws.

    `effect` is what changes from the whole model, paired by item; that of the mean has an interval over items and
    draws. p-values are two-sided, over items, and corrected (Holm) for the shares of an order.

    Args:
        found: What each pass gave, as sums over the examples of each item, shape (n_items,).
        n: Number of examples of each item, shape (n_items,).
        named: Columns that all rows have: `readout`, `layer`, `n_weights`.
    """
    is_share, whole = measure_of(str(named["readout"])).is_share, found[Pass(0, 0)]
    draws = sorted({one.draw for one in found if one.draw})

    def row(order: str, draw: int, percent: int, sums: NDArray[np.float64]) -> dict[str, Any]:
        return {
            **named, "order": order, "draw": draw, "share": percent / 100, "value": float(sums.sum() / n.sum()),
            **tested(sums, whole, n, is_share),
        }  # fmt: skip

    by_magnitude = [row(MAGNITUDE, 0, percent, found[Pass(percent, 0)]) for percent in PERCENT]
    by_magnitude[0] |= {"low": 0.0, "high": 0.0, "p_value": 1.0}  # nothing is compared
    of_draws = [[row(RANDOM, draw, percent, found[Pass(percent, draw)]) for percent in PERCENT[1:]] for draw in draws]
    means = []
    for i, percent in enumerate(PERCENT[1:]):
        one = row(MEAN, 0, percent, np.mean([found[Pass(percent, draw)] for draw in draws], axis=0))
        effects = [of_draw[i]["effect"] for of_draw in of_draws]
        one["low"], one["high"] = widened(one["effect"], (one["low"], one["high"]), effects)
        means.append(one)
    for rows in (by_magnitude[1:], means, *of_draws):
        for one, p_value in zip(rows, holm([one["p_value"] for one in rows]), strict=True):
            one["p_value"] = float(p_value)
    return [*by_magnitude, *means, *(one for rows in of_draws for one in rows)]
