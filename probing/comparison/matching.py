"""Match the neurons of one model with those of another by their activations on the same words, read in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from probing.comparison.nulls import ROUNDING, excess
from probing.statistics.bootstrap import percentiles
from probing.statistics.moments import ROWS, RunningMean, hardly_vary

Method = Literal["many_to_one", "one_to_one"]
Array = NDArray[np.float64]

PERMUTATIONS = 1999


def match(correlation: Array, method: Method) -> NDArray[np.int64]:
    """Return for each neuron of the first model its partner in the second, by |correlation|.

    `many_to_one` takes the strongest correlation (several neurons may share a partner; ties go to the lower index);
    `one_to_one` takes the assignment with the highest sum (Jonker & Volgenant 1987): 0.02 s for 768 neurons, 0.06 s for
    1024.

    Args:
        correlation: Correlations of the neurons, shape (d_a, d_b).
        method: How partners are assigned.

    Returns:
        Shape (d_a,); -1 for neurons without a partner: dead neurons, whose correlations are 0, and in `one_to_one`
        those that remain where the second model has fewer neurons.

    Raises:
        ValueError: If a correlation is not finite.
    """
    if not np.isfinite(correlation).all():
        raise ValueError("correlations must be finite, found NaN or infinity")
    size = np.abs(correlation)
    partner = np.full(len(size), -1, dtype=np.int64)
    if method == "many_to_one":
        partner[:] = size.argmax(1)
    else:
        rows, columns = linear_sum_assignment(size, maximize=True)
        partner[rows] = columns
    matched = np.flatnonzero(partner >= 0)
    partner[matched[size[matched, partner[matched]] == 0]] = -1
    return partner


@dataclass(frozen=True)
class MatchQuality:
    """Mean correlation of matched neurons; NaN where no neuron is matched.

    Args:
        fit: Mean |correlation| on the sentences used for matching: high by selection alone.
        held_out: Mean correlation on the other sentences, times its sign in the matching, so that an accidental match
            is near 0 rather than above it.
        chance: Mean of `held_out` when partners are permuted among the matched neurons; it is above 0 where all neurons
            correlate. Where the rotation null is higher, its mean replaces it.
        chance_low: Lower end of the interval that holds 95 of 100 such permutations.
        chance_high: Upper end of that interval.
        p_value: One-sided p-value: share of permutations with as large a `held_out`, the true one included.
        n_matched: Number of neurons with a partner.
    """

    fit: float
    held_out: float
    chance: float
    chance_low: float
    chance_high: float
    p_value: float
    n_matched: int


def holds(partner: NDArray[np.int64], fit: Array, held_out: Array) -> float:
    """Return the mean correlation of matched neurons on held-out sentences, times its sign on the matching sentences.

    Args:
        partner: Result of `match`, shape (d_a,); some neurons must be matched.
        fit: Correlations it was fitted on, shape (d_a, d_b).
        held_out: Correlations on the other sentences, shape (d_a, d_b).
    """
    rows = np.flatnonzero(partner >= 0)
    columns = partner[rows]
    return float((np.sign(fit[rows, columns]) * held_out[rows, columns]).mean())


def judge(
    partner: NDArray[np.int64],
    fit: Array,
    held_out: Array,
    rotated: Sequence[float] = (),
    permutations: int = PERMUTATIONS,
    seed: int = 0,
) -> MatchQuality:
    """Return how well a match holds on sentences that were not used for it.

    Args:
        partner: Result of `match`, shape (d_a,).
        fit: Correlations it was fitted on, shape (d_a, d_b).
        held_out: Correlations on the other sentences, shape (d_a, d_b).
        rotated: Values of `holds` for the second model in random bases (see `random_bases`).
        permutations: Number of permutations.
        seed: Seed of the permutations.
    """
    rows = np.flatnonzero(partner >= 0)
    columns = partner[rows]
    if not len(rows):
        nan = float("nan")
        return MatchQuality(nan, nan, nan, nan, nan, nan, 0)
    signed = np.sign(fit) * held_out
    generator = np.random.default_rng(seed)
    null = np.array([signed[rows, generator.permutation(columns)].mean() for _ in range(permutations)])
    (low, high), moved = percentiles(null), excess(rotated, float(null.mean()))
    true = holds(partner, fit, held_out)
    p_value = float((1 + (null + moved >= true - ROUNDING).sum()) / (1 + permutations))
    return MatchQuality(
        float(np.abs(fit[rows, columns]).mean()), true, float(null.mean()) + moved, low, high + moved, p_value,
        len(rows),
    )  # fmt: skip


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
