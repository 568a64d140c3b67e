"""Covariances between the neurons of two models over the same words, accumulated in one pass.

One pass serves all pairs of layers: 2 n_words (L_a d_a) (L_b d_b) FLOP for the cross products and
2 n_words (L_a d_a^2 + L_b d_b^2) for the layers' own. Seven layers of 384 neurons on each side and 50,000 words take
0.8 TFLOP, some ten seconds of a core in float32; thirteen of 768 take 12 TFLOP. The cross products, in float32, take
4 (L_a d_a) (L_b d_b) bytes: 29 MB and 400 MB.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.statistics.moments import hardly_vary
from probing.statistics.running_mean import ROWS, RunningMean


@dataclass(frozen=True)
class CrossMoments:
    """Covariances of the neurons of two models, several layers each, over the same words.

    Args:
        n_words: Number of words seen.
        own_a: Covariance of each layer of the first model, shape (n_layers_a, d_a, d_a), float64.
        own_b: Covariance of each layer of the second model, shape (n_layers_b, d_b, d_b), float64.
        cross: Covariance between the models, shape (n_layers_a, d_a, n_layers_b, d_b), float32.
        mean_a: Mean of each layer of the first model, shape (n_layers_a, d_a), float64.
        mean_b: Mean of each layer of the second model, shape (n_layers_b, d_b), float64.
    """

    n_words: int
    own_a: Tensor
    own_b: Tensor
    cross: Tensor
    mean_a: Tensor
    mean_b: Tensor

    def correlation(self, a: int, b: int, basis: Tensor | None = None) -> NDArray[np.float64]:
        """Return the correlations of the a-th layer's neurons with the b-th's, shape (d_a, d_b); 0 for dead neurons.

        Args:
            a: Index of the layer of the first model.
            b: Index of the layer of the second model.
            basis: Replacement neurons of the second model, each a column of weights on its own neurons, shape
                (d_b, n_neurons).
        """
        cross, variance, mean = self.cross[a, :, b], self.own_b[b].diagonal(), self.mean_b[b]
        if basis is not None:
            cross = cross.to(basis) @ basis
            variance, mean = (self.own_b[b].to(basis) @ basis).mul_(basis).sum(0), mean.to(basis) @ basis
        scale = _inverse_sd(self.own_a[a].diagonal(), self.mean_a[a])[:, None], _inverse_sd(variance, mean)
        return (scale[0] * cross * scale[1]).clamp(-1, 1).double().numpy()

    def cka(self, a: int, b: int) -> float:
        """Return the linear CKA of two layers (Kornblith et al. 2019, section 3), NaN where a layer is constant.

        |C_ab|^2 / (|C_aa| |C_bb|), Frobenius norms, equals the form with centred Gram matrices of words. This
        estimator is biased upwards: see `cka_chance`.
        """
        return float(
            self.cross[a, :, b].square().sum(dtype=torch.float64) / (self.own_a[a].norm() * self.own_b[b].norm())
        )

    def cka_chance(self, a: int, b: int) -> float:
        """Return the CKA of unrelated layers with these spectra: tr C_aa tr C_bb / ((n - 1) |C_aa| |C_bb|).

        This is the mean over permutations of the words: the bias of the estimator and nothing else. Models that read
        the same words are similar by that alone (layer 0 of the built-in model and its randomly initialised model: .44,
        where chance is .003), so training accounts for what exceeds the randomly initialised model.
        """
        traces = self.own_a[a].trace() * self.own_b[b].trace()
        return float(traces / ((self.n_words - 1) * self.own_a[a].norm() * self.own_b[b].norm()))


class CrossMomentsAccumulator:
    """Accumulates the covariances of two models over the same words, batch by batch.

    Products of `ROWS` words at a time are taken in float32. Their sum is float64 within each model, and float32 between
    the models, where it is the largest part of the memory.

    Args:
        n_layers: Number of layers of each model.
        d_model: Width of each model.
    """

    def __init__(self, n_layers: tuple[int, int], d_model: tuple[int, int]) -> None:
        self.sizes = tuple(zip(n_layers, d_model, strict=True))
        self.means = [RunningMean(n, d) for n, d in self.sizes]
        self.own = [torch.zeros(n, d, d, dtype=torch.float64) for n, d in self.sizes]
        (n_a, d_a), (n_b, d_b) = self.sizes
        self.cross = torch.zeros(n_a * d_a, n_b * d_b)

    @property
    def n_words(self) -> int:
        """Number of words seen."""
        return self.means[0].n

    def update(self, batch_a: Sequence[Tensor], batch_b: Sequence[Tensor]) -> None:
        """Add words: for each layer of each model a tensor (n_words, d_model); n_words may be 0.

        Raises:
            ValueError: If numbers of words, layers or neurons disagree, or a value is not finite.
        """
        sides = [self._stack(batch, *size) for batch, size in zip((batch_a, batch_b), self.sizes, strict=True)]
        if sides[0].shape[1] != sides[1].shape[1]:
            raise ValueError(f"both models must give the same words, found {[side.shape[1] for side in sides]}")
        for some in zip(*(side.split(ROWS, 1) for side in sides), strict=True):
            self._add(*(mean.update(words).float() for mean, words in zip(self.means, some, strict=True)))

    def result(self) -> CrossMoments:
        """Return the covariances of the added words; none can be added afterwards.

        Raises:
            ValueError: If no words were added.
        """
        if not self.n_words:
            raise ValueError("no words to take moments of")
        n, (own_a, own_b) = self.n_words, self.own
        # In place, since a copy would be as large again.
        cross, self.cross = self.cross.div_(n).reshape(*self.sizes[0], *self.sizes[1]), torch.zeros(0)
        return CrossMoments(n, own_a / n, own_b / n, cross, *(one.mean for one in self.means))

    def _stack(self, batch: Sequence[Tensor], n_layers: int, d_model: int) -> Tensor:
        shapes = [tuple(states.shape) for states in batch]
        if len(batch) != n_layers or len(set(shapes)) > 1 or shapes[0][1:] != (d_model,):
            raise ValueError(f"expected {n_layers} layers of shape (n_words, {d_model}), found {shapes}")
        wide = torch.promote_types(batch[0].dtype, torch.float32)
        side = torch.stack([states.to(wide) for states in batch])
        if not side.isfinite().all():
            raise ValueError("hidden states must be finite, found NaN or infinity")
        return side

    def _add(self, a: Tensor, b: Tensor) -> None:
        """Add the words' deviations from the means, shapes (n_layers, n, d_model)."""
        for side, own in zip((a, b), self.own, strict=True):
            own += side.mT @ side
        flat_a, flat_b = (side.transpose(0, 1).flatten(1) for side in (a, b))
        self.cross.addmm_(flat_a.T, flat_b)


def _inverse_sd(variance: Tensor, mean: Tensor) -> Tensor:
    sd = variance.clamp(min=0).sqrt()
    return torch.where(hardly_vary(sd, mean.abs()), 0.0, 1 / sd)
