"""A model made a stranger to others: its neurons replaced by a random basis of the space they span.

Neurons of two models that read the same words can be matched, and their rankings are then a little alike, by the words
alone: what was matched is large on the same words. Dealing scores to neurons at random does not show this. A random
basis does: it keeps all that a linear probe can read, every logit and every distance, and of the neurons nothing.

Untrained models have no other kind of neurons. Their weights are Gaussian, so their distribution does not change when
the basis turns, and LayerNorm commutes with every rotation that keeps the mean over neurons: rotated so, an untrained
model is distributed as another untrained one that happens to know the same. So chance is exact for them, and for a
trained model it says what its neurons have in common with others beyond their words.
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
from probing.rankings.contributions import centre_over_classes

# The mean of so many is known to a third of what one ranking varies by.
BASES = 10


@dataclass(frozen=True)
class Strangers:
    """A run's probes and activations in random bases.

    Args:
        bases: A new neuron's weights on the old ones in each column, shape (n_bases, d_model, d_model).
        scores: Contribution of each new neuron, shape (n_bases, n_layers, d_model).
    """

    bases: Tensor
    scores: NDArray[np.float64]


def random_bases(d_model: int, n: int, seed: int) -> Tensor:
    """Draw rotations uniformly (Haar) from those that keep the mean over neurons.

    Returns:
        Shape (n, d_model, d_model), float32, each orthogonal, with rows and columns that sum to 1.

    Raises:
        ValueError: If there are fewer than three neurons: then nothing is left to turn.
    """
    if d_model < 3:
        raise ValueError(f"expected three neurons or more, found {d_model}")
    # A reflection that takes the first axis to the direction of equal neurons, and back.
    axis = np.full(d_model, d_model**-0.5)
    axis[0] -= 1
    reflection = np.eye(d_model) - 2 * np.outer(axis, axis) / (axis @ axis)
    turned = ortho_group.rvs(d_model - 1, size=n, random_state=np.random.default_rng(seed)).reshape(n, d_model - 1, -1)
    bases = np.zeros((n, d_model, d_model))
    bases[:, 0, 0], bases[:, 1:, 1:] = 1, turned
    return torch.from_numpy(reflection @ bases @ reflection).float()


def strangers(weight: Tensor, test: Examples, layers: Sequence[int], seed: int, n: int = BASES) -> Strangers:
    """Rank the neurons of random bases by their mean contribution, the probes turned with the activations.

    A turned probe gives the same logits. It is the optimum in the new basis as far as neurons vary alike, since the
    penalty scales each by its sd. Costs 2 n_bases n_tokens d_model^2 FLOP a layer and a pass over the test tokens.

    Args:
        weight: Of the probes, shape (n_layers, n_classes, d_model).
        test: Test examples.
        layers: Layer numbers, in the order of `weight`.
        seed: Of the bases.
        n: Bases.
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
    return Strangers(bases, (sums / n_tokens).numpy())
