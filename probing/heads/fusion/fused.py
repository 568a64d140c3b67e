"""Fusion of layers: one vector for each token from its vectors after several blocks (Shi et al. 2022, section 5).

Shi et al. pretrain models whose last layer is fused with all others, so that the tokens of a sentence become less
alike. Here the model is frozen, and its hidden states are fused after the forward pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from probing.cache.store import Plan, Shard
from probing.cache.tokens import Tokens
from probing.data.examples import Activations

# Fused vectors are kept up to this size; beyond, they are fused again in every pass.
KEPT_BYTES = 2**29


class Fusion(Protocol):
    """Makes one vector for each token from those of several layers."""

    def __call__(self, states: Tensor) -> Tensor:
        """Return the fused vectors, shape (n, d_model), given those of the layers, (n_layers, n, d_model)."""
        ...

    def weights(self, states: Tensor) -> Tensor:
        """Return how much of a token's vector each layer gives, shape (n_layers, n); absolute values sum to 1."""
        ...


@dataclass(frozen=True)
class Weighted:
    """`concat`: sum_k alpha_k H_k, in which all tokens have the same weights.

    It is a linear map of the concatenated layers with one number for each layer. If all weights are 1 / n_layers, it is
    the mean of the layers; if one weight is 1 and the others are 0, it is that layer.

    Args:
        alpha: Weight of each layer, shape (n_layers,).
    """

    alpha: Tensor

    @classmethod
    def equal(cls, n_layers: int) -> Weighted:
        """Return the mean of the layers."""
        return cls(torch.full((n_layers,), 1 / n_layers))

    def __call__(self, states: Tensor) -> Tensor:
        """Return the fused vectors."""
        return torch.tensordot(self.alpha.to(states), states, 1)

    def weights(self, states: Tensor) -> Tensor:
        """Return alpha over the sum of its absolute values."""
        return (self.alpha / self.alpha.abs().sum()).to(states)[:, None].expand(states.shape[:2])


@dataclass(frozen=True)
class Largest:
    """`max`: the largest value of each neuron among the layers; it has nothing to learn."""

    def __call__(self, states: Tensor) -> Tensor:
        """Return the fused vectors."""
        return states.amax(0)

    def weights(self, states: Tensor) -> Tensor:
        """Return the share of the neurons whose value is that of each layer; the first one of equal values."""
        largest = states.argmax(0)
        return torch.stack([(largest == layer).float().mean(1) for layer in range(len(states))])


@dataclass(frozen=True)
class Gated:
    """`gate`: sum_k I_k^t H_k^t, in which each token t has its own weights, softmax over k of g(H_k^t).

    The gate g is one linear map for all layers. Its bias would add the same to all layers, and so has no effect.

    Args:
        direction: The linear map, shape (d_model,).
    """

    direction: Tensor

    def __call__(self, states: Tensor) -> Tensor:
        """Return the fused vectors."""
        return (self.weights(states)[:, :, None] * states).sum(0)

    def weights(self, states: Tensor) -> Tensor:
        """Return the gate of each layer and token."""
        return (states @ self.direction.to(states)).softmax(0)


class FusedStates:
    """A store that also holds fusions of its layers, as further layers with negative numbers.

    Args:
        base: The store of the layers.
        layers: Numbers of the layers that are fused.
        fusions: The fusions by their numbers.
    """

    def __init__(self, base: Activations, layers: Sequence[int], fusions: Mapping[int, Fusion]) -> None:
        self.base, self.layers, self.fusions = base, list(layers), dict(fusions)
        self.plan: Plan = base.plan
        self.tokens: Tokens = base.tokens
        self._kept: dict[tuple[int, int], Tensor] = {}
        self._kept_bytes = 0

    def shard_tokens(self, shard: Shard) -> slice:
        """Return the shard's rows of the table of tokens."""
        return self.base.shard_tokens(shard)

    def read(self, layer: int, shard: int) -> Tensor:
        """Return the hidden states of a layer, or the vectors of a fusion in float32, shape (n, d_model)."""
        if layer not in self.fusions:
            return self.base.read(layer, shard)
        if (kept := self._kept.get((layer, shard))) is not None:
            return kept
        found = self.fusions[layer](states_of(self.base, self.layers, shard))
        if self._kept_bytes + found.nbytes <= KEPT_BYTES:
            self._kept[layer, shard] = found
            self._kept_bytes += found.nbytes
        return found


def states_of(store: Activations, layers: Sequence[int], shard: int, rows: Tensor | None = None) -> Tensor:
    """Return the hidden states of several layers, shape (n_layers, n, d_model), float32.

    Args:
        store: The store.
        layers: Numbers of the layers.
        shard: Index of the shard.
        rows: Rows of the shard to return, shape (n,); all if None.
    """
    found = (store.read(layer, shard) for layer in layers)
    return torch.stack([(one if rows is None else one.index_select(0, rows)).float() for one in found])
