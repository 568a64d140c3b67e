"""Logits split into weight x activation per neuron: tensors in, tensors out.

A contribution is W[c, i] * v[i], in logit units. Softmax ignores a vector added to every class's
weights and a ranking does not, so weights are centred over classes first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


def centre_over_classes(weight: Tensor) -> Tensor:
    """Subtract from each neuron's weights their mean over classes: the same softmax, an identifiable weight.

    Args:
        weight: Shape (..., n_classes, d_model).
    """
    return weight - weight.mean(-2, keepdim=True)


def neuron_contributions(weight: Tensor, hidden_states: Tensor) -> Tensor:
    """Split each logit of a bias-free probe into one signed term per neuron.

    Args:
        weight: Probe weight, shape (n_classes, d_model).
        hidden_states: Activations of one layer, shape (n_tokens, d_model).

    Returns:
        Shape (n_tokens, n_classes, d_model), in logit units; the sum over the last axis is the
        logit of the weight centred over classes.

    Raises:
        ValueError: If the two disagree about d_model; the message shows both shapes.
    """
    if weight.shape[-1] != hidden_states.shape[-1]:
        raise ValueError(
            f"weight {tuple(weight.shape)} and hidden_states {tuple(hidden_states.shape)} differ in d_model"
        )
    return centre_over_classes(weight) * hidden_states[:, None, :]


@dataclass(frozen=True)
class ClassMagnitudes:
    """How large each neuron is on the tokens of each class: all a mean contribution needs of the activations.

    Args:
        counts: Tokens of each class, shape (n_classes,), float64.
        magnitude: Sum over the class's tokens of |v|, shape (n_classes, d_model), float64.
        deviation: The same of |v - mean|, the mean being that of the training tokens.
    """

    counts: Tensor
    magnitude: Tensor
    deviation: Tensor


class MagnitudeAccumulator:
    """Takes batches of one layer and returns its class magnitudes, without (n_tokens, n_classes, d_model).

    Args:
        mean: Of the training tokens, shape (d_model,).
        n_classes: Number of classes.
    """

    def __init__(self, mean: Tensor, n_classes: int) -> None:
        self.mean = mean
        self.counts = torch.zeros(n_classes, dtype=torch.float64)
        self.magnitude = torch.zeros(n_classes, len(mean), dtype=torch.float64)
        self.deviation = torch.zeros_like(self.magnitude)

    def update(self, hidden_states: Tensor, labels: Tensor) -> None:
        """Add tokens, shapes (n, d_model) and (n,); those labelled -1 do not count."""
        kept = labels >= 0
        states, classes = hidden_states[kept].double(), labels[kept]
        self.counts += classes.bincount(minlength=len(self.counts))
        self.magnitude.index_add_(0, classes, states.abs())
        self.deviation.index_add_(0, classes, (states - self.mean).abs_())

    def all_reduce(self, sum_over_ranks: Callable[[Tensor], Tensor]) -> None:
        """Take together what several processes have added.

        Args:
            sum_over_ranks: Returns the sum of a tensor over all of them.
        """
        self.counts = sum_over_ranks(self.counts)
        self.magnitude, self.deviation = sum_over_ranks(self.magnitude), sum_over_ranks(self.deviation)

    def result(self) -> ClassMagnitudes:
        """Return the sums of what was added."""
        return ClassMagnitudes(self.counts, self.magnitude, self.deviation)


def class_contributions(weight: Tensor, sums: ClassMagnitudes) -> Tensor:
    """Return the mean of |W[c, i] * v[i]| over the tokens of each class c, 0 for a class without tokens.

    Args:
        weight: Shape (n_classes, d_model).
        sums: Of the same layer.

    Returns:
        Shape (n_classes, d_model), in logit units, float64.
    """
    return centre_over_classes(weight.double()).abs() * sums.magnitude / sums.counts.clamp(min=1)[:, None]


def mean_contribution(weight: Tensor, sums: ClassMagnitudes, centred: bool = False) -> Tensor:
    """Return the mean over tokens of |W[y, i] * v[i]|, y being the token's true class (Luo et al. 2021, section 3.3).

    Args:
        weight: Shape (n_classes, d_model).
        sums: Of the same layer.
        centred: Take v[i] - mean(v[i]) instead of v[i].

    Returns:
        Shape (d_model,), in logit units, float64.
    """
    size = sums.deviation if centred else sums.magnitude
    return (centre_over_classes(weight.double()).abs() * size).sum(0) / sums.counts.sum().clamp(min=1)


def sentence_contributions(weight: Tensor, hidden_states: Tensor, labels: Tensor, rows: Tensor, out: Tensor) -> None:
    """Add to each sentence's row the sum over its tokens of |W[y, i] * v[i]|.

    Args:
        weight: Shape (n_classes, d_model).
        hidden_states: Shape (n, d_model).
        labels: Class of each token, shape (n,).
        rows: Row of each token's sentence, shape (n,).
        out: Shape (n_sentences, d_model), float64; added to.
    """
    sizes = centre_over_classes(weight.double()).abs()
    out.index_add_(0, rows, sizes[labels] * hidden_states.double().abs())
