"""How well positions are read in the directions of the position part: by the nearest mean, in sentences left out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from probing.statistics.intervals import accuracy_interval
from probing.statistics.two_way_design import Design

Array = NDArray[np.float64]

ORDERS = 20
# Tokens whose position is read at a time.
BLOCK = 4096


@dataclass(frozen=True)
class Read:
    """How well positions are read.

    Args:
        accuracy: Share of the tokens whose position is read.
        low: Lower end of its 95% interval, over sentences; NaN with few sentences.
        high: Upper end.
        by_chance: Mean accuracy if the tokens of every sentence are in random order.
        p_value: Share of such orders, and of the true one, with at least this accuracy.
        error: Mean distance of the read position from the true one, in tokens.
        error_by_chance: The same in random order.
        n_tokens: Number of tokens that are read.
    """

    accuracy: float
    low: float
    high: float
    by_chance: float
    p_value: float
    error: float
    error_by_chance: float
    n_tokens: int


def read_positions(
    states: Array, design: Design, means: Array, fitted: NDArray[np.bool_], judged: NDArray[np.bool_], seed: int
) -> Read | None:
    """Read the positions of some tokens by the means of others; None if there are none of either.

    A token is read as the position with the largest density of a normal distribution about the position's mean, whose
    covariance is that of all fitted tokens about the means of their positions, times the position's frequency.

    Args:
        states: The tokens in the directions that are read, shape (n_tokens, k).
        design: The tokens' positions and sentences.
        means: What position adds in these directions, shape (n_positions, k); the fitted tokens' mean is found here.
        fitted: Whether each token is one of those that means and covariance are of, shape (n_tokens,).
        judged: Whether each token is read, shape (n_tokens,).
        seed: Seed of the random orders.
    """
    index = design.index
    if not fitted.any() or not judged.any() or states.shape[1] == 0:
        return None
    counts = np.bincount(index[fitted], minlength=design.n_positions)
    seen = counts > 0
    about = states[fitted] - means[index[fitted]]
    mean = about.mean(0)
    covariance = np.atleast_2d(np.cov(about, rowvar=False))
    eigenvalues, axes = np.linalg.eigh(covariance)
    whiten = axes / np.sqrt(np.maximum(eigenvalues, 1e-12 * max(float(eigenvalues[-1]), 1e-300)))
    tokens, centres = (states[judged] - mean) @ whiten, means[seen] @ whiten
    bias = np.log(counts[seen]) - 0.5 * np.square(centres).sum(1)
    nearest = [(tokens[at : at + BLOCK] @ centres.T + bias).argmax(1) for at in range(0, len(tokens), BLOCK)]
    read = design.values[seen][np.concatenate(nearest)]
    sentences = np.unique(design.of_token[judged], return_inverse=True)[1].reshape(-1)
    true = design.values[index[judged]]
    right = np.bincount(sentences, read == true).astype(np.float64)
    sizes = np.bincount(sentences)
    generator = np.random.default_rng([seed, 14])
    chance = np.empty((ORDERS, 2))
    for draw in range(ORDERS):
        # Within each sentence, in random order.
        shuffled = true[np.lexsort((generator.random(len(true)), sentences))]
        chance[draw] = (read == shuffled).mean(), np.abs(read - shuffled).mean()
    accuracy = float((read == true).mean())
    return Read(
        accuracy, *accuracy_interval(right, sizes), float(chance[:, 0].mean()),
        (1 + int((chance[:, 0] >= accuracy).sum())) / (1 + ORDERS), float(np.abs(read - true).mean()),
        float(chance[:, 1].mean()), len(true),
    )  # fmt: skip
