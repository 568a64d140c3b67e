"""The links of a predicate, and where else they could be: in sentences with pairs of words that look like them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import comb, log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probing.cache.tokens import Tokens
from probing.corpus import Corpus
from probing.heads.roles.framenet import Span
from probing.heads.roles.role_files import LEAST_DISTANCE

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
