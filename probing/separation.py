"""How far apart the classes lie along one neuron, against what chance within sentences gives."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# Labellings permuted within sentences that make the null.
DRAWS = 20


@dataclass(frozen=True)
class Separation:
    """Share of a neuron's variance explained by the class, beyond chance.

    Args:
        eta_squared: Of the true labels minus its mean under permuted labels, shape (d_model,).
        z: That difference in standard deviations of the permuted ones, shape (d_model,).
    """

    eta_squared: Tensor
    z: Tensor


def permute_within_sentences(
    labels: NDArray[np.int64], sentences: NDArray[np.int32], input_ids: NDArray[np.int32], n_draws: int, seed: int
) -> NDArray[np.int64]:
    """Return draws of the labels in which each sentence's labels are dealt anew to its own tokens.

    Such labels know a sentence's length and topic but not where a token stands. What a sentence
    is dealt depends on its own tokens and the seed, not on where in the corpus it stands.

    Args:
        labels: Class of each token, -1 for tokens that do not count and stay -1, shape (n_tokens,).
        sentences: Sentence of each token, ascending, shape (n_tokens,).
        input_ids: Shape (n_tokens,).
        n_draws: Number of draws.
        seed: Of all draws.

    Returns:
        Shape (n_draws, n_tokens).
    """
    examples = np.flatnonzero(labels >= 0)
    keys, here = _token_keys(sentences, input_ids)[examples], sentences[examples]
    salts = np.random.default_rng(seed).integers(2**64, size=n_draws, dtype=np.uint64)
    draws = np.repeat(labels[None], n_draws, axis=0)
    for draw, salt in zip(draws, salts, strict=True):
        order = np.lexsort((_mix(keys + salt), here))
        draw[examples] = labels[examples[order]]
    return draws


def _token_keys(sentences: NDArray[np.int32], input_ids: NDArray[np.int32]) -> NDArray[np.uint64]:
    """Return a number for each token made from its sentence's tokens and its place among them."""
    _, first, sentence = np.unique(sentences, return_index=True, return_inverse=True)
    places = _mix((np.arange(len(sentences)) - first[sentence]).astype(np.uint64))
    of_sentence = np.zeros(len(first), dtype=np.uint64)
    np.add.at(of_sentence, sentence, _mix(places + input_ids.astype(np.uint64)))
    return of_sentence[sentence] + places


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scatter integers over 64 bits (the finaliser of SplitMix64; Steele, Lea & Flood 2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


class SeparationAccumulator:
    """Takes batches of one layer and returns how its neurons separate the classes.

    Args:
        mean: Of the training tokens, shape (d_model,), float64; subtracted first, which changes
            nothing but the rounding.
        sd: Of the training tokens, shape (d_model,), float64.
        n_classes: Number of classes.
        n_draws: Permuted labellings.
    """

    def __init__(self, mean: Tensor, sd: Tensor, n_classes: int, n_draws: int = DRAWS) -> None:
        self.mean, self.sd = mean, sd
        self.counts = torch.zeros(n_classes, dtype=torch.float64)
        self.sums = torch.zeros(1 + n_draws, n_classes, len(mean), dtype=torch.float64)

    def update(self, hidden_states: Tensor, labels: Tensor, permuted: Tensor) -> None:
        """Add tokens: shapes (n, d_model), (n,) and (n_draws, n); those labelled -1 do not count."""
        kept = labels >= 0
        states = hidden_states[kept] - self.mean.to(hidden_states.dtype)
        self.counts += labels[kept].bincount(minlength=len(self.counts))
        for total, classes in zip(self.sums, [labels, *permuted], strict=True):
            batch = torch.zeros(total.shape, dtype=states.dtype)
            total += batch.index_add_(0, classes[kept], states)

    def result(self) -> Separation:
        """Return eta squared and its z for what was added; 0 for a neuron that does not vary."""
        n_tokens = self.counts.sum()
        means = self.sums.sum(1, keepdim=True) / n_tokens
        between = (self.sums.square() / self.counts.clamp(min=1)[:, None]).sum(1) - n_tokens * means.squeeze(1).square()
        variance = n_tokens * self.sd.square()
        eta_squared = torch.where(variance > 0, between / variance, 0.0)
        true, null = eta_squared[0], eta_squared[1:]
        excess = true - null.mean(0)
        spread = null.std(0)
        return Separation(excess, torch.where(spread > 0, excess / spread, 0.0))
