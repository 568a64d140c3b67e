"""The random-rotation null: a model whose neurons are replaced by a random basis of the space they span.

Neurons of two models that read the same words can be matched, and their rankings then agree a little because of the
words alone: matched neurons are large on the same words. Permuting scores among neurons does not show this. A random
basis does: it keeps everything a linear probe can read, every logit and every distance, but nothing of the neurons.

For a randomly initialised model the null is exact. Its weights are Gaussian, so their distribution does not change when
the basis is rotated, and LayerNorm commutes with every rotation that keeps the mean over neurons: the rotated model has
the distribution of another randomly initialised model with the same information. For a trained model the null shows
what its neurons have in common with others beyond their words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import ortho_group
from torch import Tensor

from probing.data.examples import Examples, read
from probing.probes.objective import centre_over_classes

# With so many bases the standard error of the mean is a third of the spread of a single ranking.
BASES = 10


@dataclass(frozen=True)
class RotationNull:
    """A run's probes and activations in random bases.

    Args:
        bases: Rotations, each column a new neuron's weights on the old ones, shape (n_bases, d_model, d_model).
        scores: Contribution of each new neuron, shape (n_bases, n_layers, d_model).
    """

    bases: Tensor
    scores: NDArray[np.float64]


def random_bases(d_model: int, n: int, seed: int) -> Tensor:
    """Draw uniformly distributed (Haar) rotations that keep the mean over neurons.

    Returns:
        Shape (n, d_model, d_model), float32, each orthogonal, with rows and columns that sum to 1.

    Raises:
        ValueError: If there are fewer than three neurons, which leave nothing to rotate.
    """
    if d_model < 3:
        raise ValueError(f"expected three neurons or more, found {d_model}")
    # A reflection that exchanges the first axis and the direction in which all neurons are equal.
    axis = np.full(d_model, d_model**-0.5)
    axis[0] -= 1
    reflection = np.eye(d_model) - 2 * np.outer(axis, axis) / (axis @ axis)
    turned = ortho_group.rvs(d_model - 1, size=n, random_state=np.random.default_rng(seed)).reshape(n, d_model - 1, -1)
    bases = np.zeros((n, d_model, d_model))
    bases[:, 0, 0], bases[:, 1:, 1:] = 1, turned
    return torch.from_numpy(reflection @ bases @ reflection).float()


def rotation_null(weight: Tensor, test: Examples, layers: Sequence[int], seed: int, n: int = BASES) -> RotationNull:
    """Rank the neurons of random bases by their mean contribution; the probes are rotated with the activations.

    A rotated probe gives the same logits. It would be the optimum in the new basis if all neurons had the same sd,
    because the penalty scales each neuron by its sd. The ranking costs 2 n_bases n_tokens d_model^2 FLOP per layer and
    one pass over the test tokens.

    Args:
        weight: Weights of the probes, shape (n_layers, n_classes, d_model).
        test: Test examples.
        layers: Layer numbers, in the order of `weight`.
        seed: Seed of the bases.
        n: Number of bases.
    """
    bases = random_bases(weight.shape[2], n, seed)
    turned = centre_over_classes(weight.float())[None] @ bases[:, None]
    sums = torch.zeros(n, len(layers), weight.shape[2], dtype=torch.float64)
    n_tokens = 0
    for batch in read(test, layers):
        n_tokens += len(batch.labels)
        for i, states in enumerate(batch.hidden_states):
            for basis, rows, total in zip(bases, turned[:, i], sums[:, i], strict=True):
                total += (rows[batch.labels] * (states @ basis)).abs().sum(0)
    return RotationNull(bases, (sums / n_tokens).numpy())
