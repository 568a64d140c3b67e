"""Do heads link predicates with what fills their roles? (After Kovaleva et al. 2019, section 4.2.)

The score of a head is the mean over links of the largest attention from a piece of one side to a piece of the other.
The text and figure 3 of the paper disagree about the direction, so both are measured.

A high score alone says little, since many heads attend to words at some distance whatever their role. Each link is
therefore compared with unlinked pairs of words that look alike: pairs of the same signed distance, the same parts of
speech (where the corpus has them), the same numbers of words and of pieces, because a maximum grows with these, and the
same place. In each draw of the null, the links are resampled among all such pairs. If links were made at random, the
true ones would be one more draw, so that p-values are uniform. A p-value compares with the largest statistic over all
heads and both directions of each draw, and so corrects for the choice of a head. (The paper selects the heads above the
99th percentile of its 144 heads: 1% of them, 1.4 heads, whatever they do.)

The place matters because links are not at random places: subjects, for example, come early. A head attends from token i
to token j of n by exp(s_ij) / sum_k exp(s_ik), with scores s_ij that depend on the embeddings of the positions i and j
even in a randomly initialised model, and with n terms in the sum. So the comparison of links and unlinked pairs must
account for i, j and n. Both positions are matched exactly, not in bins, because in a randomly initialised model the
embeddings of neighbouring positions are unrelated. An exact match of n would leave few links; but the effect of n is
smooth, and is removed by a regression. Within the kinds of pairs, a line in 1 / n (the attention if all scores are
equal) is fitted for each head and direction, and what it predicts is subtracted before links are compared. The line is
fitted to links and unlinked pairs alike, without regard to which pairs are linked, so that p-values stay uniform if
links are random. In a randomly initialised model, made-up links from word 2 to word 0, more of them in short sentences,
are significant if the match of positions or the regression is left out, and are not significant with both
(tests/heads/test_roles.py). The effect of a link cannot be separated from that of its place if no unlinked pair has the
same kind and place: such a link is left out and counted.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.cache.tokens import Tokens
from probing.corpus import Corpus
from probing.heads.measures import Accumulator, Kept
from probing.heads.reading import Attention, Batch
from probing.heads.roles.framenet import Span
from probing.heads.roles.role_files import RoleLinks, distance
from probing.heads.sums import SumsStore
from probing.statistics.intervals import mean_interval

QUERIES = ("predicate", "filler")
DRAWS = 1000
# Most unlinked pairs for each link. The scores of 2,000 links and their pairs by 72 heads then take 12 MB.
UNLINKED = 10
# A role with fewer links that are compared is not tested by itself.
MIN_LINKS = 20
ALL = "all"


@dataclass(frozen=True)
class Pairs:
    """Pairs of words that are compared: the links, and unlinked pairs that look alike.

    Args:
        sentences: Index of each pair's sentence, shape (n_pairs,), ascending.
        tokens: For both sides the first piece of the pair in its sentence, and the first piece after it, shape
            (n_pairs, 2, 2); the predicate is the first side.
        stratum: Number of each pair's kind, shape (n_pairs,); pairs of a kind look alike.
        roles: The role of each link, empty for unlinked pairs, shape (n_pairs,), objects.
        lengths: Number of tokens of each pair's sentence, shape (n_pairs,).
    """

    sentences: NDArray[np.int64]
    tokens: NDArray[np.int64]
    stratum: NDArray[np.int64]
    roles: NDArray[Any]
    lengths: NDArray[np.int64]

    @cached_property
    def slots(self) -> NDArray[np.int64]:
        """Index of each pair among those of its sentence, shape (n_pairs,)."""
        first = np.searchsorted(self.sentences, self.sentences)
        return np.arange(len(self.sentences)) - first

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of all that changes their scores."""
        return hashlib.sha256(self.sentences.tobytes() + self.tokens.tobytes()).hexdigest()


def pairs_of(links: RoleLinks, tokens: Tokens, seed: int) -> Pairs:
    """Return the links of sentences and unlinked pairs that look alike, at most `UNLINKED` for each link.

    Args:
        links: The sentences and links.
        tokens: The sentences' tokens.
        seed: Seed of the choice of unlinked pairs.
    """
    generator = np.random.default_rng(seed)
    pieces = [_pieces(tokens, sentence) for sentence in range(tokens.n_sentences)]
    columns = links.corpus.columns.get("upos")

    def kind(sentence: int, predicate: Span, filler: Span) -> tuple[Any, ...] | None:
        """Return what pairs that look alike share; None if a word was cut off."""
        ends = [pieces[sentence].get(word) for side in (predicate, filler) for word in range(side[0], side[1] + 1)]
        if not all(ends):
            return None
        begins = [pieces[sentence][first][0] for first, _ in (predicate, filler)]
        n_pieces = [
            pieces[sentence][last][1] - begin for (_, last), begin in zip((predicate, filler), begins, strict=True)
        ]
        upos = [columns[sentence][first : last + 1] for first, last in (predicate, filler)] if columns else []
        sizes = [last - first for first, last in (predicate, filler)]
        return distance(predicate, filler), *sizes, *begins, *n_pieces, *upos

    linked: dict[tuple[int, Span, Span], str] = {}
    for link in links.links:
        linked.setdefault((link.sentence, link.predicate, link.filler), link.role)
    kinds = {place: found for place in linked if (found := kind(*place)) is not None}
    n_linked = Counter(kinds.values())
    shapes = {found[:3] for found in n_linked}
    others: dict[tuple[Any, ...], list[tuple[int, Span, Span]]] = {}
    for sentence in range(tokens.n_sentences):
        for predicate, filler in _spans(max(pieces[sentence], default=-1) + 1, shapes):
            place = sentence, predicate, filler
            if place not in linked and (found := kind(*place)) in n_linked and found is not None:
                others.setdefault(found, []).append(place)
    chosen = [(place, found, linked[place]) for place, found in kinds.items()]
    for found, places in others.items():
        n = min(len(places), UNLINKED * n_linked[found])
        chosen += [(places[i], found, "") for i in sorted(generator.choice(len(places), n, replace=False))]
    chosen.sort(key=lambda one: one[0])
    number = {found: i for i, found in enumerate(n_linked)}
    ends = [
        [[pieces[sentence][first][0], pieces[sentence][last][1]] for first, last in sides]
        for (sentence, *sides), _, _ in chosen
    ]
    sentences = np.array([place[0] for place, _, _ in chosen], dtype=np.int64)
    return Pairs(
        sentences,
        np.array(ends, dtype=np.int64).reshape(-1, 2, 2),
        np.array([number[found] for _, found, _ in chosen], dtype=np.int64),
        np.array([role for _, _, role in chosen], dtype=object),
        tokens.lengths[sentences].astype(np.int64),
    )


def _pieces(tokens: Tokens, sentence: int) -> dict[int, tuple[int, int]]:
    """Return for each word of a sentence its first piece, and the first piece after it."""
    words = tokens.words[tokens.of_sentences(sentence, 1)]
    found: dict[int, tuple[int, int]] = {}
    for i, word in enumerate(words.tolist()):
        if word >= 0:
            found[word] = (found.get(word, (i, i))[0], i + 1)
    return found


def _spans(n_words: int, shapes: set[tuple[Any, ...]]) -> list[tuple[Span, Span]]:
    """Return all pairs of spans of some distances and sizes (last - first) in a sentence."""
    found = []
    for apart, size, other_size in sorted(shapes):
        for first in range(n_words - size):
            predicate = first, first + size
            begin = predicate[1] + apart if apart > 0 else first + apart - other_size
            if begin >= 0 and begin + other_size < n_words:
                found.append((predicate, (begin, begin + other_size)))
    return found


@dataclass(frozen=True)
class Roles:
    """The measure: the largest attention between the pieces of each pair, in both directions.

    Args:
        pairs: The pairs.
    """

    pairs: Pairs
    name: str = "roles"

    @property
    def settings(self) -> Mapping[str, Any]:
        """Everything other than model and corpus that changes the scores."""
        return {"version": 1, "pairs": self.pairs.fingerprint}

    def of_corpus(self, tokens: Tokens, corpus: Corpus) -> Callable[[Batch], Accumulator]:
        """Return what makes an accumulator for each batch."""
        n_slots = int(self.pairs.slots.max()) + 1
        starts = np.searchsorted(self.pairs.sentences, np.arange(tokens.n_sentences + 1))
        return lambda batch: _Largest(self.pairs.tokens, starts, n_slots, batch)


class _Largest:
    def __init__(self, tokens: NDArray[np.int64], starts: NDArray[np.int64], n_slots: int, batch: Batch) -> None:
        self.n_slots, self.found = n_slots, list[Tensor]()
        self.ends = [tokens[starts[s] : starts[s + 1]].tolist() for s in batch.sentences.tolist()]

    def add(self, attention: Attention) -> None:
        maps = attention.probabilities
        made = torch.zeros(len(maps), self.n_slots, 2, maps.shape[1], device=maps.device)
        for i, pairs in enumerate(self.ends):
            for slot, (predicate, filler) in enumerate(pairs):
                made[i, slot] = largest(maps[i], slice(*predicate), slice(*filler))
        self.found.append(made)

    def kept(self) -> Kept:
        return Kept({"largest": torch.stack(self.found, dim=3)})


def largest(maps: Tensor, predicate: slice, filler: slice) -> Tensor:
    """Return the largest attention from the predicate to the filler, and in the other direction; shape (2, heads).

    Args:
        maps: Shape (heads, from, to).
        predicate: Its pieces.
        filler: Its pieces.
    """
    return torch.stack([maps[:, predicate, filler].amax((1, 2)), maps[:, filler, predicate].amax((1, 2))])


def role_rows(store: SumsStore, pairs: Pairs, seed: int, n_draws: int = DRAWS) -> list[dict[str, Any]]:
    """Return the rows of `roles.csv`, as `rows_of_scores` describes them.

    Args:
        store: The sums of `Roles`.
        pairs: The pairs.
        seed: Seed of the draws.
        n_draws: Number of draws.
    """
    index = torch.from_numpy(pairs.sentences), torch.from_numpy(pairs.slots)
    return rows_of_scores(store.by_sentence("largest")[index].numpy(), pairs, seed, n_draws)


def rows_of_scores(values: NDArray[np.float32], pairs: Pairs, seed: int, n_draws: int = DRAWS) -> list[dict[str, Any]]:
    """Return the rows of `roles.csv`: for all roles together and for each frequent one, each head in both directions.

    Columns: `query` is the side that attends; `score` with its interval over sentences; `unlinked`, the mean over
    unlinked pairs that look alike, at the lengths of the links' sentences; `z`, by how many standard deviations of
    resampled links the score differs from their mean; `p_value`, corrected for the number of heads and directions; `n`,
    the number of links; `n_unmatched`, the number of links that are left out because no unlinked pair looks alike.

    Args:
        values: The largest attention between the pieces of each pair, shape (n_pairs, 2, layers, heads).
        pairs: The pairs.
        seed: Seed of the draws.
        n_draws: Number of draws.
    """
    names = sorted({role for role in pairs.roles.tolist() if role})
    rows = []
    for role in (ALL, *(names if len(names) > 1 else ())):
        linked = pairs.roles == role if role != ALL else pairs.roles != ""
        used = _comparable(pairs.stratum, linked, linked | (pairs.roles == ""))
        n = int((linked & used).sum())
        if n >= (1 if role == ALL else MIN_LINKS):
            adjusted = at_one_length(values[used], linked[used], pairs.stratum[used], pairs.lengths[used])
            tested = _Test.of(adjusted, linked[used], pairs.stratum[used], seed, n_draws)
            of_role = _rows(role, values, pairs.sentences, linked & used, tested)
            rows += [{**row, "n_unmatched": int(linked.sum()) - n} for row in of_role]
    return rows


def _comparable(stratum: NDArray[np.int64], linked: NDArray[np.bool_], tested: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which pairs are of a kind that has both links and unlinked pairs."""
    n = int(stratum.max()) + 1
    both = (np.bincount(stratum[linked], minlength=n) > 0) & (np.bincount(stratum[tested & ~linked], minlength=n) > 0)
    return tested & both[stratum]


def at_one_length(
    values: NDArray[np.float32], linked: NDArray[np.bool_], stratum: NDArray[np.int64], lengths: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the attention of pairs with the effect of the lengths of their sentences removed, float64.

    A line through 1 / n is fitted within the kinds of pairs, for each head and direction. The mean over links does not
    change.

    Args:
        values: Shape (n_pairs, ...).
        linked: Whether a pair is a link, shape (n_pairs,).
        stratum: Number of each pair's kind, shape (n_pairs,).
        lengths: Number of tokens of each pair's sentence, shape (n_pairs,).
    """
    uniform = 1 / lengths
    _, kind = np.unique(stratum, return_inverse=True)
    within = uniform - (np.bincount(kind, uniform) / np.bincount(kind))[kind]
    spread = within @ within
    if spread < 1e-12 * len(within):  # all sentences of a kind have the same length
        return values.astype(np.float64)
    slope = np.tensordot(within, values, 1) / spread
    return values - np.multiply.outer(uniform - uniform[linked].mean(), slope)


@dataclass(frozen=True)
class _Test:
    """A score of each head and direction, compared with resampled links; arrays have shape (2, layers, heads)."""

    unlinked: NDArray[np.float64]
    z: NDArray[np.float64]
    p_value: NDArray[np.float64]

    @classmethod
    def of(
        cls, values: NDArray[np.float64], linked: NDArray[np.bool_], stratum: NDArray[np.int64], seed: int, n_draws: int
    ) -> _Test:
        """Compare links with as many pairs of each kind, drawn among all pairs of that kind."""
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
        return cls(_unlinked(flat, linked, stratum).reshape(shape), score.reshape(shape), p_value.reshape(shape))


def _moments(
    flat: NDArray[np.float64], linked: NDArray[np.bool_], stratum: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean and standard deviation of the mean over as many pairs of each kind, drawn without replacement."""
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
    """Return the mean over links of the mean unlinked pair of their kind."""
    n = stratum.max() + 1
    weights = np.bincount(stratum[linked], minlength=n) / np.bincount(stratum[~linked], minlength=n)
    return (np.where(linked, 0.0, weights[stratum]) @ flat) / linked.sum()


def _rows(
    role: str, values: NDArray[np.float32], sentences: NDArray[np.int64], links: NDArray[np.bool_], tested: _Test
) -> list[dict[str, Any]]:
    _, n_layers, n_heads = values.shape[1:]
    n_links = np.bincount(sentences[links])
    rows = []
    for side, layer, head in np.ndindex(2, n_layers, n_heads):
        scores = values[links, side, layer, head].astype(np.float64)
        low, high = mean_interval(np.bincount(sentences[links], scores), n_links)
        rows.append(
            {
                "role": role, "query": QUERIES[side], "layer": layer + 1, "head": head + 1,
                "score": float(scores.mean()), "low": low, "high": high,
                "unlinked": float(tested.unlinked[side, layer, head]), "z": float(tested.z[side, layer, head]),
                "p_value": float(tested.p_value[side, layer, head]), "n": int(links.sum()),
            }
        )  # fmt: skip
    return rows
