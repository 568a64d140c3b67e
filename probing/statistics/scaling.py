"""The scaled space of a layer's neurons, in which the weights of its probe are penalised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from probing.statistics.moments import Moments, PrincipalAxes

PenaltySpace = Literal["sd", "rms", "raw"]


@dataclass(frozen=True)
class Scaling:
    """Divides each neuron of a layer by its scale; a dead neuron becomes 0.

    With u the scaled weight and s the scale, the weight on raw hidden states is w = u / s, so that both give the same
    logits: u . (v / s) = w . v.

    Args:
        moments: Moments of the layer's training tokens.
        space: `sd` divides by the standard deviation, `rms` by the root mean square, `raw` by nothing.
    """

    moments: Moments
    space: PenaltySpace

    @property
    def inverse(self) -> Tensor:
        """1 / scale of each neuron, and 0 for dead neurons, shape (d_model,), float64."""
        sd = self.moments.sd
        scale = {"sd": sd, "rms": self.moments.rms, "raw": torch.ones_like(sd)}[self.space]
        return torch.where(self.moments.dead, 0.0, 1 / scale)

    def features(self, hidden_states: Tensor) -> Tensor:
        """Return scaled hidden states, shape (..., d_model)."""
        return hidden_states * self.inverse.to(hidden_states)

    def products(self, products: Tensor) -> Tensor:
        """Return second moments or covariances of scaled neurons.

        Args:
            products: The same of raw hidden states, shape (..., d_model, d_model).
        """
        inverse = self.inverse.to(products)
        return inverse[:, None] * products * inverse

    @property
    def axes(self) -> PrincipalAxes:
        """Principal axes of the second moment of scaled neurons, computed once for these moments."""
        kept = self.moments.axes
        if self.space not in kept:
            kept[self.space] = PrincipalAxes.of(self.products(self.moments.second_moment))
        return kept[self.space]

    def scaled_weight(self, weight: Tensor) -> Tensor:
        """Return the weight on scaled neurons, 0 for dead ones.

        Args:
            weight: Weight on raw hidden states, shape (..., d_model).
        """
        inverse = self.inverse.to(weight)
        return torch.where(inverse > 0, weight / inverse, 0.0)

    def raw_weight(self, scaled_weight: Tensor) -> Tensor:
        """Return the weight on raw hidden states, 0 for dead neurons.

        Args:
            scaled_weight: Weight on scaled neurons, shape (..., d_model).
        """
        return scaled_weight * self.inverse.to(scaled_weight)
