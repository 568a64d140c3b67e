"""Changes of a model's parameters: neurons of its norms, pruned weights, and numbers rounded to few bits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from probing.interventions import ACTIVATIONS, BOTH, CHANNEL, NOTHING, OUTLIERS, RANDOM, TENSOR, WEIGHTS
from probing.interventions.forward import Change, LaterBlocks, Padded, Replace
from probing.probes.transforms import random_neurons
from probing.statistics.moments import ProfileAccumulator, outliers_of


@contextmanager
def edited(parameters: Sequence[Tensor], edit: Callable[[int, Tensor], Any], index: Any = ...) -> Iterator[None]:
    """Set entries of some parameters to `edit(number, parameter)`, and restore them exactly on exit."""
    before = [parameter.detach()[index].clone() for parameter in parameters]
    try:
        with torch.no_grad():
            for number, parameter in enumerate(parameters):
                parameter[index] = edit(number, parameter.detach())
        yield
    finally:
        with torch.no_grad():
            for parameter, values in zip(parameters, before, strict=True):
                parameter[index] = values


def replaced(
    norms: Sequence[nn.Module], neurons: Sequence[int], value_of: Callable[[Tensor], float]
) -> AbstractContextManager[None]:
    """Set gain and bias of some neurons to `value_of` the old parameter in each norm; on exit restore all exactly."""
    parameters = [
        parameter
        for norm in dict.fromkeys(norms)
        for parameter in (norm.weight, getattr(norm, "bias", None))
        if isinstance(parameter, Tensor)
    ]
    return edited(parameters, lambda _, parameter: value_of(parameter), torch.tensor(list(neurons), dtype=torch.int64))


def zeroed(norms: Sequence[nn.Module], neurons: Sequence[int]) -> AbstractContextManager[None]:
    """Set the gain and bias of some neurons to 0 in each norm; on exit restore all of them exactly."""
    return replaced(norms, neurons, lambda parameter: 0.0)


def ordinary_row(table: nn.Module, first_row: int, neurons: Sequence[int]) -> AbstractContextManager[None]:
    """Set entries of some neurons in the first position's row to their mean over later rows; restore them on exit.

    Rows before `first_row`, the row of the first position, are never used and do not enter the mean. The `weight` of
    `table` has shape (n_rows, d_model).
    """
    weight, index = table.weight, torch.tensor(list(neurons), dtype=torch.int64)
    assert isinstance(weight, Tensor)
    return edited(
        [weight], lambda _, rows: rows[first_row + 1 :][:, index].double().mean(0).to(rows.dtype), (first_row, index)
    )


# --------------------------------------------------------------------------------------------------------------------
# Weight matrices of blocks, of which some are pruned.
# --------------------------------------------------------------------------------------------------------------------


def matrices(model: LaterBlocks, blocks: Sequence[int]) -> list[nn.Parameter]:
    """Return the weight matrices of attention and feed-forward layers of some blocks, without duplicates.

    Norms, biases and embeddings (also of relative positions) are excluded. If blocks share their weights, the matrices
    of all blocks are returned.
    """
    weights: dict[nn.Parameter, None] = {}
    for block in block_modules(model, blocks):
        for module in block.modules():
            weight = getattr(module, "weight", None)
            if isinstance(weight, nn.Parameter) and weight.ndim == 2 and not isinstance(module, nn.Embedding):
                weights[weight] = None
    return list(weights)


def _are_shared(model: LaterBlocks) -> bool:
    return len(set(model.anatomy.blocks or ())) < model.anatomy.n_layers


def block_modules(model: LaterBlocks, blocks: Sequence[int]) -> list[nn.Module]:
    """Return the modules of some blocks; all modules if blocks share their weights."""
    every = model.anatomy.blocks or ()
    return list(dict.fromkeys(every if _are_shared(model) else [every[block - 1] for block in blocks]))


def first_block(model: LaterBlocks, blocks: Sequence[int]) -> int:
    """Return the first block that changes if the weights of some blocks change."""
    return 1 if _are_shared(model) else min(blocks)


def smallest(matrix: Tensor, n: int, generator: np.random.Generator | None) -> NDArray[np.int64]:
    """Return the indices of n weights of a matrix to prune: the smallest magnitudes, or random with a generator.

    With a generator in the same state, a larger n adds weights to the same draw.
    """
    order = matrix.detach().abs().cpu().numpy().ravel() if generator is None else generator.random(matrix.numel())
    return np.argpartition(order, n - 1)[:n] if n else np.zeros(0, dtype=np.int64)


def pruned(weights: Sequence[nn.Parameter], percent: int, draw: int, seed: int) -> AbstractContextManager[None]:
    """Set a share of the weights of every matrix to 0, and restore them.

    Copies of the model that share the weights change, too. `draw` is the number of the random draw, from 1; 0 prunes
    the smallest magnitudes.
    """

    def prune(number: int, weight: Tensor) -> Tensor:
        generator = np.random.default_rng([seed, draw, number]) if draw else None
        keep = torch.ones(weight.numel(), dtype=torch.bool)
        keep[torch.from_numpy(smallest(weight, round(percent / 100 * weight.numel()), generator))] = False
        return weight * keep.view(weight.shape).to(weight.device)

    return edited(weights, prune)


@dataclass(frozen=True)
class PrunedShare:
    """A share of the weights that is pruned; `draw` is 0 for the smallest magnitudes."""

    percent: int
    draw: int


# --------------------------------------------------------------------------------------------------------------------
# Weights and hidden states rounded to few bits, with and without outlier neurons.
# --------------------------------------------------------------------------------------------------------------------

# Random draws of neurons that are kept; with so many a rank can be significant at 5%.
N_DRAWS = 20


@dataclass(frozen=True)
class Rounding:
    """A rounding of a model.

    Args:
        bits: Number of bits; 0 for the original model.
        rounded: `weights`, `activations` or `both`.
        scale: `tensor` or `channel`.
        unrounded: Neurons of hidden states that are neither rounded nor count for the scale: none, outliers, random.
        draw: Number of the random draw.
    """

    bits: int
    rounded: str = ""
    scale: str = ""
    unrounded: str = NOTHING
    draw: int = 0


def roundings(bits: Sequence[int]) -> list[Rounding]:
    """Return all roundings: the original model, then each number of bits."""
    settings = [Rounding(0)]
    for n in bits:
        settings += [
            Rounding(n, rounded, scale) for rounded in (WEIGHTS, ACTIVATIONS, BOTH) for scale in (TENSOR, CHANNEL)
        ]
        settings += [Rounding(n, rounded, TENSOR, OUTLIERS) for rounded in (ACTIVATIONS, BOTH)]
        settings += [Rounding(n, ACTIVATIONS, TENSOR, RANDOM, draw) for draw in range(1, N_DRAWS + 1)]
    return settings


def rounded(values: Tensor, bits: int, largest: Tensor) -> Tensor:
    """Return values rounded to the nearest of 2^bits - 1 equally spaced values from -largest to largest.

    `bits` is at least 2; `largest`, the largest magnitude, must broadcast, and is 0 where all values are 0.
    """
    steps = 2 ** (bits - 1) - 1
    step = torch.where(largest > 0, largest, 1.0) / steps
    return (values / step).round().clamp(-steps, steps) * step


def rounded_weights(
    weights: Sequence[nn.Parameter], bits: int, by_channel: bool, columns: Collection[nn.Parameter] = ()
) -> AbstractContextManager[None]:
    """Round weight matrices, and restore them; 0 bits rounds nothing.

    With `by_channel`, each output unit has a scale. Units are the columns of matrices in `columns`, the rows of others.
    """
    are_columns = [any(weight is column_weight for column_weight in columns) for weight in weights]

    def round_weight(number: int, weight: Tensor) -> Tensor:
        magnitude = weight.abs()
        largest = magnitude.amax(0 if are_columns[number] else 1, keepdim=True) if by_channel else magnitude.amax()
        return rounded(weight, bits, largest)

    return edited(weights if bits else (), round_weight)


def column_weights(model: nn.Module) -> list[nn.Parameter]:
    """Return the weights whose columns are the output units, as in GPT-2."""
    from transformers.pytorch_utils import Conv1D

    return [module.weight for module in model.modules() if isinstance(module, Conv1D)]


@dataclass(frozen=True)
class RoundingRange:
    """Statistics of the hidden states that enter a block, for rounding.

    Args:
        largest: Largest magnitude of each neuron, shape (d_model,), float32.
        outliers: Outlier neurons by any definition of `geometry`, special tokens included; ascending.
    """

    largest: Tensor
    outliers: list[int]

    @classmethod
    def of(cls, states: Tensor) -> RoundingRange:
        """Return the range of hidden states, shape (n_tokens, d_model)."""
        profile = ProfileAccumulator(states.shape[1])
        profile.update(states)
        named = {outlier.neuron for outlier in outliers_of(profile.result())}
        return cls(states.abs().amax(0).float().cpu(), sorted(named))

    def unrounded(self, rounding: Rounding, seed: int, block: int) -> list[int]:
        """Return the neurons that are not rounded."""
        if rounding.unrounded == OUTLIERS:
            return self.outliers
        if rounding.unrounded == RANDOM:
            generator = np.random.default_rng([seed, 16, block, rounding.draw])
            n = min(len(self.outliers), len(self.largest) - len(self.outliers))
            return random_neurons(len(self.largest), n, self.outliers, generator)
        return []

    def replace(self, rounding: Rounding, seed: int, block: int) -> Replace:
        """Return the function that rounds the hidden states that enter a block."""
        is_unrounded = torch.zeros(len(self.largest), dtype=torch.bool)
        is_unrounded[self.unrounded(rounding, seed, block)] = True
        others = self.largest.where(~is_unrounded, torch.zeros(()))
        largest = others if rounding.scale == CHANNEL else others.amax().expand_as(others)

        def round_states(states: Tensor, batch: Padded) -> Tensor:
            rounded_states = rounded(states, rounding.bits, largest.to(states.device))
            return torch.where(is_unrounded.to(states.device), states, rounded_states)

        return round_states


def rounding_change(model: LaterBlocks, ranges: Mapping[int, RoundingRange], seed: int) -> Callable[[Rounding], Change]:
    """Return the function that describes a rounding; `ranges` are those of the states that enter the rounded blocks."""
    blocks = list(ranges)
    weights, columns = matrices(model, blocks), column_weights(model.encoder)

    def change(rounding: Rounding) -> Change:
        of_states = ranges if rounding.rounded in (ACTIVATIONS, BOTH) else {}
        states = {block - 1: of.replace(rounding, seed, block) for block, of in of_states.items()}
        bits = rounding.bits if rounding.rounded in (WEIGHTS, BOTH) else 0
        round_weights = partial(rounded_weights, weights, bits, rounding.scale == CHANNEL, columns)
        return Change(first_block(model, blocks) - 1, states, parameters=round_weights)

    return change
