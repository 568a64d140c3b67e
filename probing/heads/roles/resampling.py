"""Compares what heads give to links with what they give to resampled placements of the same kinds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


def at_one_length(
    values: NDArray[Any],
    linked: NDArray[np.bool_],
    stratum: NDArray[np.int64],
    lengths: NDArray[np.int64],
    sizes: NDArray[np.int64] | None = None,
) -> NDArray[np.float64]:
    """Return the attention of placements with the effect of the lengths of their sentences removed, float64.

    A line in 1 / n (the attention if all scores are equal) is fitted within the kinds of placements, for each head and
    direction. It is fitted to links and unlinked pairs alike, without regard to which are linked, so that p-values stay
    uniform if links are random. The mean over links does not change.

    Args:
        values: Sum over the pairs of each placement, shape (n, ...).
        linked: Whether a placement is of links, shape (n,).
        stratum: Number of each placement's kind, shape (n,).
        lengths: Number of tokens of each placement's sentence, shape (n,).
        sizes: Number of pairs of each placement, shape (n,); one if None.
    """
    sizes = np.ones_like(lengths) if sizes is None else sizes
    uniform = sizes / lengths
    _, kind = np.unique(stratum, return_inverse=True)
    within = uniform - (np.bincount(kind, uniform) / np.bincount(kind))[kind]
    spread = within @ within
    if spread < 1e-12 * len(within):  # all sentences of a kind have the same length
        return values.astype(np.float64)
    slope = np.tensordot(within, values, 1) / spread
    centre = sizes * (uniform[linked].sum() / sizes[linked].sum())
    return values - np.multiply.outer(uniform - centre, slope)


@dataclass(frozen=True)
class Resampled:
    """A mean of each head and direction over linked placements, compared with those of resampled ones.

    Args:
        unlinked: Mean over linked placements of the mean unlinked placement of their kind, shape (2, layers, heads).
        z: By how many standard deviations of resampled means the mean differs from theirs, likewise.
        p_value: Share of the draws whose largest z is at least as large, likewise.
        n_linked: Number of linked placements.
    """

    unlinked: NDArray[np.float64]
    z: NDArray[np.float64]
    p_value: NDArray[np.float64]
    n_linked: int

    @classmethod
    def of(
        cls, values: NDArray[np.float64], linked: NDArray[np.bool_], stratum: NDArray[np.int64], seed: int, n_draws: int
    ) -> Resampled:
        """Compare linked placements with as many of each kind, drawn among all of that kind.

        Args:
            values: Shape (n, 2, layers, heads).
            linked: Whether a placement is of links, shape (n,).
            stratum: Number of each placement's kind, shape (n,).
            seed: Seed of the draws.
            n_draws: Number of draws.
        """
        shape, flat = values.shape[1:], values.reshape(len(values), -1)
        _, stratum = np.unique(stratum, return_inverse=True)
        weights = linked / linked.sum()
        mean, sd = _moments(flat, linked, stratum)
        score = np.where(sd > 0, (weights @ flat - mean) / np.where(sd > 0, sd, 1), 0.0)
        generator = np.random.default_rng(seed)
        order = np.argsort(stratum, kind="stable")
        starts = np.searchsorted(stratum[order], np.arange(stratum.max() + 1))
        n_linked = np.bincount(stratum[linked], minlength=stratum.max() + 1)
        beyond = np.zeros(flat.shape[1])
        in_stratum = np.arange(len(stratum)) - starts[stratum[order]]
        first = in_stratum < n_linked[stratum[order]]
        for _ in range(n_draws):
            drawn = np.argsort(stratum + generator.random(len(stratum)))[first]
            means = flat[drawn].mean(0)
            beyond += np.max(np.where(sd > 0, (means - mean) / np.where(sd > 0, sd, 1), 0.0)) >= score - 1e-9
        p_value = (1 + beyond) / (1 + n_draws)
        unlinked = _unlinked(flat, linked, stratum)
        return cls(unlinked.reshape(shape), score.reshape(shape), p_value.reshape(shape), int(linked.sum()))


def _moments(
    flat: NDArray[np.float64], linked: NDArray[np.bool_], stratum: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean and standard deviation of the mean over as many of each kind, drawn without replacement."""
    mean, variance = (np.zeros(flat.shape[1]) for _ in range(2))
    for kind in range(stratum.max() + 1):
        here = flat[stratum == kind]
        n, m = len(here), int(linked[stratum == kind].sum())
        mean += m * here.mean(0)
        variance += m * (n - m) / n * here.var(0, ddof=1)
    n_links = linked.sum()
    sd = np.sqrt(variance) / n_links
    return mean / n_links, np.where(sd > 1e-9 * np.abs(flat).max(0), sd, 0.0)


def _unlinked(flat: NDArray[np.float64], linked: NDArray[np.bool_], stratum: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the mean over linked placements of the mean unlinked placement of their kind."""
    n = stratum.max() + 1
    weights = np.bincount(stratum[linked], minlength=n) / np.bincount(stratum[~linked], minlength=n)
    return (np.where(linked, 0.0, weights[stratum]) @ flat) / linked.sum()
