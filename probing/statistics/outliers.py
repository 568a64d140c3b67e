"""Outlier dimensions by five definitions, because these disagree.

The indices of outliers belong to a checkpoint: the same architecture trained from another seed has others. They are
therefore always detected and never looked up, and finding none is a result. A neuron may be an outlier of the mean and
not of the variance, or the other way round: the first matters for cosines, the second for principal components.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from probing.statistics.moments import ROWS, RunningMean

Definition = Literal["argmin_share", "argmax_share", "mean_profile", "layer_norm", "variance"]
DEFINITIONS: tuple[Definition, ...] = ("argmin_share", "argmax_share", "mean_profile", "layer_norm", "variance")

# Luo, Kulmizev & Mao choose by eye, at shares of .88 and more. Below .5, other neurons are extreme in most tokens.
SHARE = 0.5
# In standard deviations; Luo, Kulmizev & Mao choose from the profile by eye.
MEAN_DEVIATIONS = 5.0
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

    Args:
        definition: The definition.
        neuron: Index of the neuron, from 0.
        value: What the definition measures: a share, a deviation in sd (with its sign), a multiple of the mean
            variance, or a number of layers.
    """

    definition: Definition
    neuron: int
    value: float


@dataclass(frozen=True)
class Profile:
    """Statistics of a layer's tokens that the definitions use; arrays have shape (d_model,), float64.

    Args:
        n_tokens: Number of tokens.
        mean: Mean of each neuron.
        variance: Population variance of each neuron.
        argmin_share: Share of the tokens in which the neuron is the smallest.
        argmax_share: Share of the tokens in which the neuron is the largest.
        beyond_share: Share of the tokens in which the neuron is more than 3 sd from the mean of that token's neurons.
    """

    n_tokens: int
    mean: Array
    variance: Array
    argmin_share: Array
    argmax_share: Array
    beyond_share: Array


class ProfileAccumulator:
    """Takes batches of tokens and returns their profile; sums are in float64.

    Args:
        d_model: Number of neurons.
    """

    def __init__(self, d_model: int) -> None:
        self.mean = RunningMean(d_model)
        self.squares, self.smallest, self.largest, self.beyond = np.zeros((4, d_model))

    @property
    def n_tokens(self) -> int:
        """Number of tokens added."""
        return self.mean.n

    def update(self, hidden_states: Tensor) -> None:
        """Add tokens, shape (n, d_model), float32 or wider; n may be 0. Among equal neurons the first counts."""
        for states in hidden_states.split(ROWS):
            deviations = self.mean.update(states.double()).numpy()
            self.squares += np.einsum("nd,nd->d", deviations, deviations)
            squares = np.square(states.numpy() - states.numpy().mean(1, keepdims=True))
            self.beyond += (squares > TOKEN_DEVIATIONS**2 * squares.mean(1, keepdims=True)).sum(0)
        states, d_model = hidden_states.numpy(), hidden_states.shape[1]
        self.smallest += np.bincount(states.argmin(1), minlength=d_model)
        self.largest += np.bincount(states.argmax(1), minlength=d_model)

    def result(self) -> Profile:
        """Return the profile of all tokens added.

        Raises:
            ValueError: If no tokens were added.
        """
        if not self.n_tokens:
            raise ValueError("no tokens to take a profile of")
        n = self.n_tokens
        shares = (found / n for found in (self.smallest, self.largest, self.beyond))
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

    The share is 1 / n sum over tokens of 1[argmin_j h_j = k]. Special tokens and full stops have extreme neurons of
    their own, so that the share over all tokens may be below the share over the other tokens. The authors pool all
    layers except the embeddings; `pooled` does this.

    Args:
        definition: Whether to look at the smallest or the largest neuron.
        profile: Profile of the tokens.
        least: Least share of an outlier.
    """
    return _named(definition, getattr(profile, definition), getattr(profile, definition) >= least)


def by_mean_profile(mean: Array, deviations: float = MEAN_DEVIATIONS) -> list[Outlier]:
    """Return neurons whose mean is far from the mean neuron's: |m_k - mean(m)| > 5 sd(m), over the neurons of a layer.

    The value is the number of sd, with its sign. (Luo, Kulmizev & Mao 2021, figures 1 and 2, choose from the profile by
    eye.) The sd includes the outlier itself, so that one of d neurons never deviates by more than sqrt(d - 1) sd: a
    model with fewer than 27 neurons cannot have an outlier.

    Args:
        mean: Mean of each neuron, shape (d_model,).
        deviations: Number of sd that an outlier exceeds.
    """
    z = deviations_of(mean)
    return _named("mean_profile", z, np.abs(z) > deviations)


def by_variance(variance: Array, times: float = VARIANCES) -> list[Outlier]:
    """Return neurons that vary at least 5 times as much as the mean neuron (Rudman, Chen & Eickhoff 2023).

    Args:
        variance: Variance of each neuron, shape (d_model,).
        times: Least variance of an outlier, in multiples of the mean variance.
    """
    ratio = variance / variance.mean() if variance.any() else np.zeros_like(variance)
    return _named("variance", ratio, ratio >= times)


def by_layer_norm(gains: Sequence[Tensor], biases: Sequence[Tensor]) -> list[Outlier]:
    """Return neurons whose parameters deviate in the output LayerNorm of more than 3 layers (Puccetti et al. 2022).

    This follows the authors' code. Neurons are flagged where |p_k - mean(p)| > 3 sd(p), over the neurons, in the gain
    of each layer and, separately, in the bias. Those flagged in more than 3 layers are ordered by the number of layers.
    The list of gains and the list of biases are interleaved, and the first 6 entries are taken, each neuron once. The
    LayerNorms after attention and after the embeddings do not count. The value is the number of layers, the larger one
    of gain and bias. A model with three blocks cannot have an outlier.

    Args:
        gains: Gain of each layer, shape (d_model,).
        biases: Bias of each layer that has one, shape (d_model,).
    """
    lists = [_flagged_often(vectors) for vectors in (gains, biases)]
    interleaved = [
        (neuron, n_layers)
        for i in range(max(map(len, lists)))
        for found in lists
        for neuron, n_layers in found[i : i + 1]
    ][:NORM_FIRST]
    most = {neuron: max(n for other, n in lists[0] + lists[1] if other == neuron) for neuron, _ in interleaved}
    return [Outlier("layer_norm", neuron, float(n_layers)) for neuron, n_layers in most.items()]


def _flagged_often(vectors: Sequence[Tensor]) -> list[tuple[int, int]]:
    """Return neurons that deviate in more than 3 of the vectors, with that number; most first, ties by lower index."""
    if not vectors:
        return []
    wide = [vector.detach().double().numpy() for vector in vectors]
    n_layers = np.sum([np.abs(deviations_of(vector)) > NORM_DEVIATIONS for vector in wide], axis=0)
    order = np.argsort(-n_layers, kind="stable")
    return [(int(k), int(n_layers[k])) for k in order if n_layers[k] > NORM_LAYERS]


def deviations_of(values: Array) -> Array:
    """Return how far each value is from the mean of them all, in sd, with its sign; 0 where they do not vary.

    If one is NaN, all are.
    """
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
