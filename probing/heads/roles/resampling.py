"""Compares what heads give to links with what they give to placements that are drawn in their stead.

The draws are those of a conditional permutation test (Berrett et al. 2020, 1807.05405). As many placements of each kind
are drawn as there are links. Some are more likely than others: a link that is made at random is at one of as many
places as the sentence has, so that the odds are `ways` ** slope with a slope of -1. The slope is fitted, because real
roles have other ones: a subject that is always word 0 has slope 0.

A regression (`at_one_length`) removes what the odds leave of the effect of length. Each is enough where it is right:
the odds for links at random, the line in 1 / n for attention with equal scores.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from probing.heads.roles.placements import Placements

# The likelihood of the slope is flat beyond, where all links are in the shortest, or longest, sentences of their kinds.
STEEPEST = 8.0


@dataclass(frozen=True)
class Resampled:
    """A mean of each head and direction over links, compared with those of drawn placements.

    Args:
        unlinked: Mean over the pairs of unlinked placements, as many of each kind as there are links, those with larger
            odds with a larger weight; shape (2, layers, heads).
        z: By how many standard deviations of the draws the mean over links differs from their mean, likewise.
        p_value: Share of the draws whose largest z is at least as large, likewise.
    """

    unlinked: NDArray[np.float64]
    z: NDArray[np.float64]
    p_value: NDArray[np.float64]

    @classmethod
    def of(cls, values: NDArray[np.float32], placements: Placements, seed: int, n_draws: int) -> Resampled:
        """Compare links with as many placements of each kind, drawn among all of that kind.

        Args:
            values: The value of each pair, shape (n_pairs, 2, layers, heads).
            placements: Linked and unlinked placements, with at least one of each in every kind.
            seed: Seed of the draws.
            n_draws: Number of draws.
        """
        linked, n_links = placements.linked, len(placements.links)
        sums = at_one_length(placements.sums(values), placements)
        flat = sums.reshape(len(sums), -1)
        log_odds = slope_of(placements) * placements.log_ways
        generator = np.random.default_rng(seed)
        means, unlinked = np.zeros((1 + n_draws, flat.shape[1])), np.zeros(flat.shape[1])
        for rows in _kinds(placements):
            own, is_link = log_odds[rows], linked[rows]
            drawn = draw(own, int(is_link.sum()), n_draws, generator)
            means += np.vstack([is_link, drawn]) @ flat[rows] / n_links
            odds = np.exp(own - own[~is_link].max()) * ~is_link
            unlinked += is_link.sum() / n_links * (odds / odds.sum()) @ flat[rows]
        spread = means.std(0)
        varies = spread > 1e-6 * np.abs(flat).max(0)
        z = np.where(varies, (means - means.mean(0)) / np.where(varies, spread, 1), 0.0)
        p_value = (z.max(1)[:, None] >= z[0] - 1e-9).mean(0)
        shape = sums.shape[1:]
        return cls(unlinked.reshape(shape), z[0].reshape(shape), p_value.reshape(shape))


def at_one_length(sums: NDArray[np.float64], placements: Placements) -> NDArray[np.float64]:
    """Return the attention of placements with the effect of the lengths of their sentences removed.

    A line in 1 / n (the attention if all scores are equal) is fitted within the kinds of placements, for each head and
    direction. It is fitted to links and unlinked pairs alike, without regard to which are linked, so that p-values stay
    uniform if links are random. The mean over links does not change.

    Args:
        sums: Sum over the pairs of each placement, shape (n, ...).
        placements: The placements.
    """
    linked, sizes = placements.linked, placements.sizes
    uniform, within = sizes / placements.lengths, np.empty(len(sizes))
    for rows in _kinds(placements):
        within[rows] = uniform[rows] - uniform[rows].mean()
    spread = within @ within
    if spread < 1e-12 * len(within):  # all sentences of a kind have the same length
        return sums
    slope = np.tensordot(within, sums, 1) / spread
    centre = sizes * (uniform[linked].sum() / sizes[linked].sum())
    return sums - np.multiply.outer(uniform - centre, slope)


def slope_of(placements: Placements) -> float:
    """Return by which power of the number of ways the odds of being linked change: that of greatest likelihood.

    The likelihood is that of conditional logistic regression: which placements of each kind are linked, given how many.
    """
    kinds = [placements.log_ways[rows] for rows in _kinds(placements)]
    n_linked = [int(placements.linked[rows].sum()) for rows in _kinds(placements)]
    of_links = placements.log_ways[placements.linked].sum()
    if all(np.ptp(ways) < 1e-12 for ways in kinds):
        return 0.0

    def loss(slope: float) -> float:
        of_all = sum(_log_sums(slope * ways, m)[0, m] for ways, m in zip(kinds, n_linked, strict=True))
        return float(of_all - slope * of_links)

    return float(minimize_scalar(loss, bounds=(-STEEPEST, STEEPEST), method="bounded").x)


def draw(log_odds: NDArray[np.float64], m: int, n_draws: int, generator: np.random.Generator) -> NDArray[np.bool_]:
    """Draw m of n, with a probability proportional to the product of their odds; shape (n_draws, n).

    They are decided one after the other, each given how many are still to be drawn (Chen, Dempster & Liu 1994).
    """
    sums = _log_sums(log_odds, m)
    left = np.full(n_draws, m)
    drawn = np.zeros((n_draws, len(log_odds)), dtype=bool)
    for i, own in enumerate(log_odds):
        some = left > 0
        chance = np.exp(own + sums[i + 1, left[some] - 1] - sums[i, left[some]])
        drawn[some, i] = generator.random(len(chance)) < chance
        left -= drawn[:, i]
    return drawn


def _log_sums(log_odds: NDArray[np.float64], m: int) -> NDArray[np.float64]:
    """Return the log of the sum over all choices of k of those from i on of the product of odds, shape (n + 1, m + 1).

    These are the elementary symmetric polynomials, by their recursion.
    """
    sums = np.full((len(log_odds) + 1, m + 1), -np.inf)
    sums[:, 0] = 0
    for i in reversed(range(len(log_odds))):
        sums[i, 1:] = np.logaddexp(sums[i + 1, 1:], log_odds[i] + sums[i + 1, :-1])
    return sums


def _kinds(placements: Placements) -> Iterator[NDArray[np.intp]]:
    """Yield the indices of the placements of each kind."""
    order = np.argsort(placements.stratum, kind="stable")
    yield from np.split(order, np.flatnonzero(np.diff(placements.stratum[order])) + 1)
