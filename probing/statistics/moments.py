"""Streamed moments of a layer's neurons, over all tokens and by class, and the scaled space that they define."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.statistics import MEAN_DEVIATIONS

# Number of vectors to multiply at a time: intermediate results then stay in the processor's cache, and no sum of
# float32 products is longer.
ROWS = 2048


class RunningMean:
    """Accumulates vectors and returns rows whose outer products add up to the scatter matrix of all vectors.

    Two sets of n and m vectors together have the scatter S + T + n m / (n + m) d d', where S and T are their scatters
    and d is the difference of their means (Chan, Golub & LeVeque 1979, equation 1.5). The last term is the outer
    product of one more row. A scatter is thus a sum of outer products, from which nothing is subtracted. So no sum of
    squares is negative, a neuron that never varies has exactly 0 if its value is a float32 number, and a neuron that
    hardly varies around a large mean retains its precision. The mean has shape (d_model,) or, for example, (n_layers,
    d_model). For `columns` of an array, `limits` has -minimum and maximum of each.
    """

    def __init__(self, *shape: int, columns: bool = False) -> None:
        self.n = 0
        self.mean = torch.zeros(shape, dtype=torch.float64)
        self.limits = torch.full((2, *shape), -torch.inf, dtype=torch.float64) if columns else None

    def update(self, vectors: Tensor) -> Tensor:
        """Add vectors, shape (..., n, d_model), and return deviations, shape (..., n + 1, d_model), of the same dtype.

        The rows are the vectors minus the mean of the batch, and a row for the distance of that mean from the mean of
        earlier batches. Vectors are float32 or float64; without vectors (n = 0) there are no rows.
        """
        n = vectors.shape[-2]
        if n == 0:
            return vectors
        mean = vectors.mean(-2, dtype=torch.float64)
        if self.limits is not None:
            self.limits = torch.maximum(self.limits, limits_of(vectors))
        difference, total = mean - self.mean, self.n + n
        deviations = vectors.new_empty(*mean.shape[:-1], n + 1, mean.shape[-1])
        subtract_(deviations[..., :n, :].copy_(vectors), mean.unsqueeze(-2))
        deviations[..., n, :] = difference * (self.n * n / total) ** 0.5
        self.mean += difference * (n / total)
        self.n = total
        return deviations

    def all_reduce(self, sum_over_ranks: Callable[[Tensor], Tensor]) -> Tensor:
        """All-reduce number and mean of the vectors; return a row, shape (..., 1, d_model), float64.

        Each process adds the outer product of its row to its scatter before the scatters of all processes are summed.
        `sum_over_ranks` returns the sum of a tensor over processes.
        """
        n, rank_mean = self.n, self.mean
        self.n = int(sum_over_ranks(torch.tensor(n)))
        self.mean = sum_over_ranks(n * rank_mean) / max(self.n, 1)
        return (rank_mean - self.mean).unsqueeze(-2) * n**0.5

    def n_added(self) -> int:
        """Return the number of vectors; raise a ValueError if there are none."""
        if not self.n:
            raise ValueError("no tokens to take moments of")
        return self.n

    @property
    def constant(self) -> Tensor | None:
        """Whether each column is constant, shape (d_model,), bool; None for neurons, which share a unit."""
        return None if self.limits is None else is_constant(self.limits)


def subtract_(vectors: Tensor, mean: Tensor) -> Tensor:
    """Subtract a float64 mean from vectors in place, as exactly as their dtype allows."""
    rounded = mean.to(vectors)
    # The first step is exact where a neuron hardly varies, the second corrects the rounding of the mean.
    return vectors.sub_(rounded).sub_((mean - rounded).to(vectors))


# A neuron is dead whose sd is at most this fraction of its size: ten times the rounding error of a float32 constant. So
# is one whose sd is at most this fraction of the median, which is lost where it is added to others in float32.
ROUNDING = 1e-6
# A column is constant whose values differ by at most this fraction of their size, two roundings of a float32 number, or
# by so little that their squares vanish in float32.
OWN_ROUNDING, VANISHES = 2.0**-22, 1e-16


def limits_of(vectors: Tensor) -> Tensor:
    """Return minus the minimum of each column and its maximum, shape (2, d_model), float64."""
    return torch.stack([-vectors.amin(-2), vectors.amax(-2)]).double()


def is_constant(limits: Tensor, times: float = 1) -> Tensor:
    """Return whether columns of these limits vary by at most `times` times the rounding of their values."""
    return limits.sum(0) <= (times * OWN_ROUNDING * limits.abs().amax(0)).clamp(min=VANISHES)


class PrincipalAxes(NamedTuple):
    """Eigenvalues, ascending, (d_model,), and eigenvectors, (d_model, d_model), of a symmetric matrix."""

    values: Tensor
    vectors: Tensor

    @classmethod
    def of(cls, matrix: Tensor) -> PrincipalAxes:
        """Return the axes of a positive semidefinite matrix, in float64 on the CPU; eigenvalues are at least 0."""
        values, vectors = torch.linalg.eigh(matrix.cpu().double())
        return cls(values.clamp(min=0), vectors)


@dataclass(frozen=True)
class Moments:
    """Moments of the neurons of a layer over its training tokens, float64.

    Args:
        sd: Population standard deviation of each neuron, shape (d_model,).
        covariance: Sum of float32 products divided by `n_tokens`, shape (d_model, d_model).
        constant: Which columns of an array are constant, shape (d_model,), bool; None for neurons of a model.
        axes: Cached principal axes of the second moment of scaled neurons, by the name of the scale: with thousands of
            neurons they take longer than the training, and many probes share them.
    """

    n_tokens: int
    mean: Tensor
    sd: Tensor
    covariance: Tensor
    constant: Tensor | None = None
    axes: dict[str, PrincipalAxes] = field(default_factory=dict, repr=False, compare=False)

    @property
    def second_moment(self) -> Tensor:
        """Uncentred second moment, the mean over tokens of h h', shape (d_model, d_model)."""
        return self.covariance + torch.outer(self.mean, self.mean)

    @property
    def rms(self) -> Tensor:
        """Root mean square of each neuron, shape (d_model,)."""
        return torch.hypot(self.sd, self.mean)

    @property
    def dead(self) -> Tensor:
        """Whether each neuron hardly varies, shape (d_model,), bool."""
        return hardly_vary(self.sd, self.rms, self.constant)


class MomentsAccumulator:
    """Accumulates batches of hidden states and returns their moments; products are float32, everything else float64."""

    def __init__(self, d_model: int, columns: bool = False) -> None:
        self.mean = RunningMean(d_model, columns=columns)
        self.squares = torch.zeros(d_model, dtype=torch.float64)
        self.products = torch.zeros(d_model, d_model, dtype=torch.float64)

    def update(self, hidden_states: Tensor) -> None:
        """Add tokens, shape (n, d_model); n may be 0."""
        for states in hidden_states.split(ROWS):
            deviations = self.mean.update(states)
            self.squares += deviations.square().sum(0, dtype=torch.float64)
            self.products += deviations.T @ deviations

    def all_reduce(self, sum_over_ranks: Callable[[Tensor], Tensor]) -> None:
        """All-reduce the sums; `sum_over_ranks` returns the sum of a tensor over processes."""
        apart = self.mean.all_reduce(sum_over_ranks)
        self.squares = sum_over_ranks(self.squares + apart.square().sum(0))
        self.products = sum_over_ranks(self.products + apart.T @ apart)

    def result(self) -> Moments:
        """Return the moments of all tokens added; there must be some."""
        n = self.mean.n_added()
        return Moments(n, self.mean.mean, (self.squares / n).sqrt(), self.products / n, self.mean.constant)


@dataclass(frozen=True)
class Covariance:
    """Mean, (d_model,), and population covariance, (d_model, d_model), of the neurons of a layer, in float64."""

    n_tokens: int
    mean: Tensor
    covariance: Tensor
    constant: Tensor | None = None

    @property
    def sd(self) -> Tensor:
        """Standard deviation of each neuron, shape (d_model,)."""
        return self.covariance.diagonal().clamp(min=0).sqrt()

    @property
    def dead(self) -> Tensor:
        """Whether each neuron hardly varies, shape (d_model,), bool."""
        return hardly_vary(self.sd, self.mean.abs(), self.constant)

    @property
    def varies(self) -> bool:
        """Whether any neuron varies."""
        return not bool(self.dead.all())


class CovarianceAccumulator:
    """Accumulates batches of hidden states in float64 and returns their mean and covariance."""

    def __init__(self, d_model: int, columns: bool = False) -> None:
        self.mean = RunningMean(d_model, columns=columns)
        self.products = torch.zeros(d_model, d_model, dtype=torch.float64)

    def update(self, hidden_states: Tensor) -> None:
        """Add tokens, shape (n, d_model); n may be 0."""
        for states in hidden_states.split(ROWS):
            deviations = self.mean.update(states.double())
            self.products.addmm_(deviations.T, deviations)

    def all_reduce(self, sum_over_ranks: Callable[[Tensor], Tensor]) -> None:
        """All-reduce the sums; `sum_over_ranks` returns the sum of a tensor over processes."""
        apart = self.mean.all_reduce(sum_over_ranks)
        self.products = sum_over_ranks(self.products.addmm(apart.T, apart))

    def result(self) -> Covariance:
        """Return the moments of all tokens added; there must be some."""
        n = self.mean.n_added()
        return Covariance(n, self.mean.mean, self.products / n, self.mean.constant)


def hardly_vary(sd: Tensor, size: Tensor, constant: Tensor | None = None) -> Tensor:
    """Return whether each neuron, shape (d_model,), varies by no more than rounding errors.

    Rounding errors are relative to `size`, the neuron's root mean square or absolute mean, and to the median sd. For
    columns of an array, `constant` alone decides.
    """
    return constant if constant is not None else sd <= ROUNDING * torch.maximum(sd.median(), size)


@dataclass(frozen=True)
class ClassMoments:
    """Moments of the tokens of each class, float64.

    Args:
        counts: Number of tokens of each class, shape (n_classes,).
        mean: Mean of each class, shape (n_classes, d_model); 0 for a class without tokens.
        scatter: Sum over the class's tokens of (v - mean)(v - mean)', shape (n_classes, d_model, d_model).
    """

    counts: Tensor
    mean: Tensor
    scatter: Tensor

    @property
    def within(self) -> Tensor:
        """Sum of squares within classes, shape (d_model,)."""
        return self.scatter.diagonal(dim1=1, dim2=2).sum(0)

    @property
    def between(self) -> Tensor:
        """Sum of squares of the class means around the mean of all tokens, shape (d_model,)."""
        mean = (self.counts @ self.mean) / self.counts.sum()
        return self.counts @ (self.mean - mean).square()

    @cached_property
    def pooled(self) -> Tensor:
        """Covariance within classes, pooled over all classes, shape (d_model, d_model)."""
        return self.scatter.sum(0) / self.counts.sum()


class ClassMomentsAccumulator:
    """Accumulates batches of a layer and returns the moments of its classes: n_classes x d_model^2 numbers.

    Everything is summed in float64 because scatter matrices are inverted: if neurons nearly repeat each other, rounding
    to float32 can leave a matrix that is singular or not positive definite.
    """

    def __init__(self, d_model: int, n_classes: int) -> None:
        self.means = [RunningMean(d_model) for _ in range(n_classes)]
        self.scatter = torch.zeros(n_classes, d_model, d_model, dtype=torch.float64)

    def update(self, hidden_states: Tensor, labels: Tensor) -> None:
        """Add tokens and their labels, shapes (n, d_model) and (n,); tokens labelled -1 are ignored."""
        by_class = labels.argsort(stable=True)[int((labels < 0).sum()) :]
        counts = labels[by_class].bincount(minlength=len(self.means))
        parts = hidden_states[by_class].split(counts.tolist())
        for mean, scatter, states in zip(self.means, self.scatter, parts, strict=True):
            deviations = mean.update(states.double())
            scatter.addmm_(deviations.T, deviations)

    def result(self) -> ClassMoments:
        """Return the moments of all tokens added."""
        counts = torch.tensor([mean.n for mean in self.means], dtype=torch.float64)
        return ClassMoments(counts, torch.stack([mean.mean for mean in self.means]), self.scatter)


PenaltySpace = Literal["sd", "rms", "raw"]


@dataclass(frozen=True)
class Scaling:
    """Divides each neuron of a layer by its scale; a dead neuron becomes 0.

    With u the scaled weight and s the scale, the weight on raw hidden states is w = u / s, so that both give the same
    logits: u . (v / s) = w . v. The space `sd` divides by the standard deviation, `rms` by the root mean square, `raw`
    by nothing.
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
        """Return second moments or covariances of scaled neurons, (..., d_model, d_model), given the raw products."""
        inverse = self.inverse.to(products)
        return inverse[:, None] * products * inverse

    @property
    def axes(self) -> PrincipalAxes:
        """Principal axes of the second moment of scaled neurons, computed once for these moments."""
        cache = self.moments.axes
        if self.space not in cache:
            cache[self.space] = PrincipalAxes.of(self.products(self.moments.second_moment))
        return cache[self.space]

    def scaled_weight(self, weight: Tensor) -> Tensor:
        """Return the weight on scaled neurons, shape (..., d_model), 0 if dead, given the weight on raw neurons."""
        inverse = self.inverse.to(weight)
        return torch.where(inverse > 0, weight / inverse, 0.0)

    def raw_weight(self, scaled_weight: Tensor) -> Tensor:
        """Return the weight on raw hidden states, shape (..., d_model), 0 for dead neurons, given the scaled weight."""
        return scaled_weight * self.inverse.to(scaled_weight)


# --------------------------------------------------------------------------------------------------------------------
# Outlier dimensions by five definitions, because these disagree.
# --------------------------------------------------------------------------------------------------------------------

Definition = Literal["argmin_share", "argmax_share", "mean_profile", "layer_norm", "variance"]

# Luo, Kulmizev & Mao choose by eye, at shares of .88 and more. Below .5, other neurons are extreme in most tokens.
SHARE = 0.5
# In standard deviations of a token's own neurons.
TOKEN_DEVIATIONS = 3.0
# In mean variances (Rudman, Chen & Eickhoff 2023).
VARIANCES = 5.0
# Puccetti et al. (2022): a parameter deviates by more than 3 sd, in more than 3 layers, and 6 neurons are taken.
NORM_DEVIATIONS, NORM_LAYERS, NORM_FIRST = 3.0, 3, 6

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Outlier:
    """A neuron that is an outlier by a definition.

    `value` is a share, a deviation in sd (with its sign), a multiple of the mean variance, or a number of layers.
    """

    definition: Definition
    neuron: int
    value: float


@dataclass(frozen=True)
class Profile:
    """Statistics of a layer's tokens that the definitions use; arrays have shape (d_model,), float64.

    `argmin_share` and `argmax_share` are the shares of tokens in which the neuron is the smallest or the largest,
    `beyond_share` that in which it is more than 3 sd from the mean of that token's neurons.
    """

    n_tokens: int
    mean: Array
    variance: Array
    argmin_share: Array
    argmax_share: Array
    beyond_share: Array


class ProfileAccumulator:
    """Accumulates batches of tokens in float64 and returns their profile."""

    def __init__(self, d_model: int) -> None:
        self.mean = RunningMean(d_model)
        self.squares, self.smallest, self.largest, self.beyond = np.zeros((4, d_model))

    @property
    def n_tokens(self) -> int:
        """Number of tokens added."""
        return self.mean.n

    def update(self, hidden_states: Tensor) -> None:
        """Add tokens, shape (n, d_model), float32 or wider; n may be 0. Of equal neurons, the first counts."""
        for states in hidden_states.split(ROWS):
            deviations = self.mean.update(states.double()).numpy()
            self.squares += np.einsum("nd,nd->d", deviations, deviations)
            squares = np.square(states.numpy() - states.numpy().mean(1, keepdims=True))
            self.beyond += (squares > TOKEN_DEVIATIONS**2 * squares.mean(1, keepdims=True)).sum(0)
        states, d_model = hidden_states.numpy(), hidden_states.shape[1]
        self.smallest += np.bincount(states.argmin(1), minlength=d_model)
        self.largest += np.bincount(states.argmax(1), minlength=d_model)

    def result(self) -> Profile:
        """Return the profile of all tokens added; there must be some."""
        if not self.n_tokens:
            raise ValueError("no tokens to take a profile of")
        n = self.n_tokens
        shares = (total / n for total in (self.smallest, self.largest, self.beyond))
        return Profile(n, self.mean.mean.numpy(), self.squares / n, *shares)


def pooled(profiles: Sequence[Profile]) -> Profile:
    """Return the profile of the union of several sets of tokens, or of several layers."""
    n = sum(profile.n_tokens for profile in profiles)
    weights = [profile.n_tokens / n for profile in profiles]

    def mean_of(arrays: Sequence[Array]) -> Array:
        return np.sum([weight * array for weight, array in zip(weights, arrays, strict=True)], axis=0)

    mean = mean_of([profile.mean for profile in profiles])
    within = mean_of([profile.variance + (profile.mean - mean) ** 2 for profile in profiles])
    names = ("argmin_share", "argmax_share", "beyond_share")
    shares = ([getattr(profile, name) for profile in profiles] for name in names)
    return Profile(n, mean, within, *map(mean_of, shares))


def by_share(
    definition: Literal["argmin_share", "argmax_share"], profile: Profile, least: float = SHARE
) -> list[Outlier]:
    """Return neurons that are the smallest, or the largest, in most tokens (Luo, Kulmizev & Mao 2021, section 3).

    The share is 1 / n sum over tokens of 1[argmin_j h_j = k]; an outlier has at least `least`. Special tokens and full
    stops have other extreme neurons, so the share over all tokens may be below the share over the other tokens. The
    authors pool all layers except the embeddings; `pooled` does this.
    """
    return _named(definition, getattr(profile, definition), getattr(profile, definition) >= least)


def by_mean_profile(mean: Array, deviations: float = MEAN_DEVIATIONS) -> list[Outlier]:
    """Return neurons whose mean is far from the mean neuron's: |m_k - mean(m)| > 5 sd(m), over the neurons of a layer.

    The value is the number of sd, with its sign. (Luo, Kulmizev & Mao 2021, figures 1 and 2, choose from the profile by
    eye.) The sd includes the outlier, so that one of d neurons never deviates by more than sqrt(d - 1) sd: a
    model with fewer than 27 neurons cannot have an outlier.
    """
    z = deviations_of(mean)
    return _named("mean_profile", z, np.abs(z) > deviations)


def by_variance(variance: Array, times: float = VARIANCES) -> list[Outlier]:
    """Return neurons that vary at least 5 times as much as the mean neuron (Rudman, Chen & Eickhoff 2023)."""
    ratio = variance / variance.mean() if variance.any() else np.zeros_like(variance)
    return _named("variance", ratio, ratio >= times)


def by_layer_norm(gains: Sequence[Tensor], biases: Sequence[Tensor]) -> list[Outlier]:
    """Return neurons whose parameters deviate in the output LayerNorm of more than 3 layers (Puccetti et al. 2022).

    This follows the authors' code. Neurons are flagged if |p_k - mean(p)| > 3 sd(p), over the neurons, in the gain of
    each layer and, separately, in the bias. Neurons flagged in more than 3 layers are ordered by the number of layers.
    The lists of gains and biases are interleaved, and the first 6 entries are taken, each neuron once. LayerNorms after
    attention and after the embeddings do not count. The value is the number of layers, the larger of gain and bias. A
    model with three blocks cannot have an outlier. `gains` has a vector per layer, shape (d_model,), `biases` a vector
    per layer with a bias.
    """
    lists = [_flagged_often(vectors) for vectors in (gains, biases)]
    interleaved = [
        (neuron, n_layers)
        for i in range(max(map(len, lists)))
        for flagged in lists
        for neuron, n_layers in flagged[i : i + 1]
    ][:NORM_FIRST]
    most = {neuron: max(n for other, n in lists[0] + lists[1] if other == neuron) for neuron, _ in interleaved}
    return [Outlier("layer_norm", neuron, float(n_layers)) for neuron, n_layers in most.items()]


def _flagged_often(vectors: Sequence[Tensor]) -> list[tuple[int, int]]:
    """Return neurons that deviate in more than 3 vectors, with that number; most first, ties by lower index."""
    if not vectors:
        return []
    wide = [vector.detach().double().numpy() for vector in vectors]
    n_layers = np.sum([np.abs(deviations_of(vector)) > NORM_DEVIATIONS for vector in wide], axis=0)
    order = np.argsort(-n_layers, kind="stable")
    return [(int(k), int(n_layers[k])) for k in order if n_layers[k] > NORM_LAYERS]


def deviations_of(values: Array) -> Array:
    """Return the deviation of each value from the mean, in sd, signed; 0 if all are equal, NaN if any is NaN."""
    sd = values.std()
    return np.zeros_like(values) if sd == 0 else (values - values.mean()) / sd


def _named(definition: Definition, values: Array, named: NDArray[np.bool_]) -> list[Outlier]:
    """Return the neurons selected by `named`, by decreasing magnitude, ties by lower index."""
    order = np.argsort(-np.abs(values), kind="stable")
    return [Outlier(definition, int(k), float(values[k])) for k in order if named[k]]


def outliers_of(profile: Profile) -> list[Outlier]:
    """Return the outliers of a profile by all definitions that use hidden states."""
    return [
        *by_share("argmin_share", profile),
        *by_share("argmax_share", profile),
        *by_mean_profile(profile.mean),
        *by_variance(profile.variance),
    ]
