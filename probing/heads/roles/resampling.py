"""The links of a predicate, and where else they could be: in sentences with pairs of words that look like them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import comb, log
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from probing.cache.tokens import Tokens
from probing.corpus import Corpus
from probing.heads.roles.role_files import LEAST_DISTANCE, Span

# Most unlinked placements for each predicate. The scores of 2,000 links and their pairs by 72 heads then take
# 12 MB.
UNLINKED = 10

Kind = tuple[Any, ...]
Place = tuple[int, Span, Span]


@dataclass(frozen=True)
class Placements:
    """The links of predicates, and pairs of other sentences that look like them.

    Args:
        pairs: For each placement the indices of its pairs, shape (n, most), -1 beyond their number.
        stratum: Number of each placement's kind, shape (n,); placements of a kind look alike.
        linked: Whether a placement is of links, shape (n,).
        lengths: Number of tokens of each placement's sentence, shape (n,).
        log_ways: Log of the number of places that as many links of a predicate could have in the sentence, shape (n,).
        n_unmatched: Number of links that are left out.
    """

    pairs: NDArray[np.int64]
    stratum: NDArray[np.int64]
    linked: NDArray[np.bool_]
    lengths: NDArray[np.int64]
    log_ways: NDArray[np.float64]
    n_unmatched: int

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Number of pairs of each placement, shape (n,)."""
        return (self.pairs >= 0).sum(1)

    @property
    def links(self) -> NDArray[np.int64]:
        """Indices of the pairs that are links and are compared, ascending."""
        of_links = self.pairs[self.linked]
        return np.sort(of_links[of_links >= 0])

    def sums(self, values: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the sum of the values of each placement's pairs, given one for each pair, shape (n, ...), float64."""
        found = np.zeros((len(self.pairs), *values.shape[1:]))
        for column in self.pairs.T:
            there = column >= 0
            found[there] += values[column[there]]
        return found


def draw_placements(
    links: Iterable[Place],
    kinds: Mapping[Place, Kind],
    unlinked: Mapping[Kind, Mapping[int, Place]],
    generator: np.random.Generator,
) -> list[tuple[tuple[Kind, ...], list[Place], bool]]:
    """Return placements, each with its kind and whether it is of links, and draw the unlinked ones.

    The links of a predicate are left out if no other sentence has unlinked pairs that look like all of them.

    Args:
        links: The links.
        kinds: What pairs that look like a link share.
        unlinked: For each kind of link the sentences that have an unlinked pair of this kind, with this pair.
        generator: Draws unlinked placements, at most `UNLINKED` for each linked one.
    """
    by_predicate: dict[tuple[int, Span], list[Place]] = {}
    for place in links:
        by_predicate.setdefault(place[:2], []).append(place)
    of_kind: dict[tuple[Kind, ...], list[list[Place]]] = {}
    where: dict[tuple[Kind, ...], set[int]] = {}
    for own in by_predicate.values():
        # All links of a predicate or none: if only those were kept that look like pairs of other sentences, the
        # sentences with links would be those that are unlike the others.
        own.sort()
        together = tuple(kinds[place] for place in own)
        common = set.intersection(*(set(unlinked[one]) for one in together))
        if common:
            of_kind.setdefault(together, []).append(own)
            where[together] = common
    found = []
    for together, linked in of_kind.items():
        found += [(together, places, True) for places in linked]
        sentences = sorted(where[together])
        n = min(len(sentences), UNLINKED * len(linked))
        for i in sorted(generator.choice(len(sentences), n, replace=False)):
            found.append((together, [unlinked[one][sentences[i]] for one in together], False))
    return found


def indexed(
    placements: list[tuple[tuple[Kind, ...], list[Place], bool]],
    index: Mapping[Place, int],
    corpus: Corpus,
    tokens: Tokens,
    n_links: int,
) -> Placements:
    """Return placements by the indices of their pairs.

    Args:
        placements: As `draw_placements` returns them.
        index: Index of each pair.
        corpus: The sentences.
        tokens: Their tokens.
        n_links: Number of links that were to be compared.
    """
    most = max((len(places) for _, places, _ in placements), default=1)
    rows = [[index[place] for place in places] + [-1] * (most - len(places)) for _, places, _ in placements]
    number = {kind: i for i, kind in enumerate(dict.fromkeys(kind for kind, _, _ in placements))}
    sentences, words = [places[0][0] for _, places, _ in placements], corpus.words or ()
    n_compared = sum(len(places) for _, places, is_link in placements if is_link)
    return Placements(
        np.array(rows, dtype=np.int64).reshape(len(rows), most),
        np.array([number[kind] for kind, _, _ in placements], dtype=np.int64),
        np.array([is_link for _, _, is_link in placements], dtype=bool),
        tokens.lengths[sentences].astype(np.int64),
        np.array([_log_ways(places, len(words[places[0][0]])) for _, places, _ in placements]),
        n_links - n_compared,
    )


def _log_ways(places: Sequence[Place], n_words: int) -> float:
    """Return the log of the number of choices of a predicate and of so many fillers that are not too near to it."""
    _, (first, last), _ = places[0]
    near = range(max(first - LEAST_DISTANCE + 1, 0), min(last + LEAST_DISTANCE, n_words))
    return log(n_words) + log(max(comb(n_words - len(near), len(places)), 1))


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
