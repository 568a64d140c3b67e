"""Which head carries which dependency relation, beside the best fixed offset and a randomly initialised model.

For a dependent d with the head g in the treebank, an attention head is right as `query=dependent` if d attends to g
most, and as `query=head` if the word that attends to d most is g (both among the other words). For each relation the
best head and query, and the best offset from dependent to head, are chosen on the training sentences and reported on
the test sentences. Clark et al. 2019 choose on the sentences that they report, and clamp offsets to the sentence.

Two nulls are tested. Against the best offset: does the attention head find the relation more often than a fixed
distance does? It may, and know nothing of syntax: a word that is drawn at random is always in the sentence, which an
offset is not, and some words are the syntactic heads of many. Against permuted syntactic heads
(`probing.heads.syntax.relations`): is its lead over the offset larger than if the syntactic heads of a sentence were
given to its dependents at random?
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from probing.comparison.agreement import holm
from probing.corpus import Corpus
from probing.heads.sums import SumsStore
from probing.heads.syntax.arcs import NONE, Arcs, MostAttended, WordRows, arcs_of
from probing.statistics.intervals import accuracy_interval, difference_interval, difference_p_value

DRAWS = 1000


@dataclass(frozen=True)
class Finder:
    """An attention head and an offset that look for the syntactic heads of some words.

    Args:
        arcs: Indices of the arcs, shape (n,).
        found: The word that the attention head finds for each, shape (n,).
        offset: The offset from dependent to head.
    """

    arcs: NDArray[np.int64]
    found: NDArray[np.int64]
    offset: int

    def lead(self, dependents: NDArray[np.int64], heads: NDArray[np.int64]) -> float:
        """Return by how much more often the attention head is right than the offset, given all arcs."""
        own = heads[self.arcs]
        at_offset = own - dependents[self.arcs] == self.offset
        return float((np.count_nonzero(self.found == own) - np.count_nonzero(at_offset)) / len(own))


@dataclass(frozen=True)
class Leads:
    """The leads of finders with permuted syntactic heads.

    Args:
        permuted: Mean lead of each finder over the permutations, shape (n_finders,).
        p_value: Whether its lead is larger with the true ones: one-sided, corrected for the number of finders by the
            largest standardised lead of each permutation, shape (n_finders,).
    """

    permuted: NDArray[np.float64]
    p_value: NDArray[np.float64]


def compare_leads(arcs: Arcs, finders: Sequence[Finder], seed: int, n_draws: int = DRAWS) -> Leads:
    """Compare the leads of finders with those under permuted syntactic heads.

    Args:
        arcs: All arcs of the sentences.
        finders: The finders.
        seed: Seed of the permutations.
        n_draws: Number of permutations.
    """
    arrangements = [arcs.heads, *permuted_heads(arcs, n_draws, np.random.default_rng(seed))]
    leads = np.array([[one.lead(arcs.dependents, heads) for one in finders] for heads in arrangements])
    # With the true arrangement among those that standardise, all are treated alike.
    sd = leads.std(0)
    z = np.where(sd > 0, (leads - leads.mean(0)) / np.where(sd > 0, sd, 1.0), 0.0)
    beyond = (z[1:].max(1)[:, None] >= z[0] - 1e-9).sum(0)
    return Leads(leads[1:].mean(0), (1 + beyond) / (1 + n_draws))


def permuted_heads(arcs: Arcs, n_draws: int, generator: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """Yield the syntactic heads of arcs in random arrangements, each of shape (n_arcs,).

    Args:
        arcs: The arcs of some sentences, in their order.
        n_draws: Number of arrangements.
        generator: The source of randomness.
    """
    sentences = np.unique(arcs.sentences, return_inverse=True)[1]
    for _ in range(n_draws):
        heads, left = arcs.heads.copy(), np.arange(len(arcs))
        # The true arrangement is permitted, so that every sentence has one that is.
        while len(left):
            # Sentences stand in their order, so that sorting by sentence shuffles within sentences alone.
            heads[left] = heads[left[np.argsort(sentences[left] + generator.random(len(left)))]]
            own = np.zeros(sentences[-1] + 1, dtype=bool)
            own[sentences[left[heads[left] == arcs.dependents[left]]]] = True
            left = left[own[sentences[left]]]
        yield heads


# Fewest arcs of a relation in the training and in the test part.
LEAST_ARCS = 100
# Offsets from a dependent to its head; of equally good ones the nearest is chosen, the preceding word first.
OFFSETS = tuple(sign * distance for distance in range(1, 11) for sign in (-1, 1))
Query = Literal["dependent", "head"]
# In the order in which they are kept; of equally good ones the first is chosen.
QUERIES: tuple[Query, ...] = ("dependent", "head")

Row = dict[str, Any]


@dataclass(frozen=True)
class Scored:
    """The arcs of a treebank, and which of them each head gets right.

    Args:
        arcs: The arcs whose words the model has read.
        right: Whether a head is right about an arc, shape (n_arcs, n_layers, heads, 2), the last axis as `QUERIES`.
        found: The word that the head finds for the dependent of an arc, likewise; None if syntactic heads are not to be
            permuted.
    """

    arcs: Arcs
    right: NDArray[np.bool_]
    found: NDArray[np.int16] | None = None

    def where(self, chosen: NDArray[np.bool_]) -> Scored:
        """Return some of the arcs, given whether each is chosen."""
        return Scored(self.arcs.where(chosen), self.right[chosen], None if self.found is None else self.found[chosen])

    def of_sentences(self, chosen: NDArray[np.bool_]) -> Scored:
        """Return the arcs of some sentences, given whether each sentence of the corpus is chosen."""
        return self.where(chosen[self.arcs.sentences])

    def of_layers(self, layers: Sequence[int]) -> Scored:
        """Return the same arcs with the heads of some layers, given by their numbers."""
        here = [layer - 1 for layer in layers]
        return Scored(self.arcs, self.right[:, here], None if self.found is None else self.found[:, here])


def scored(store: SumsStore, corpus: Corpus, option: str = "--corpus") -> Scored:
    """Return which arcs of a treebank each head gets right; without arcs of punctuation.

    Words that the model has not read, because the sentence was cut before them, have no arcs.

    Args:
        store: What `MostAttended` kept of the corpus.
        corpus: The corpus, with the columns of a treebank.
        option: The option that names it, for messages.

    Raises:
        UserError: If the corpus has no dependency relations, or they are malformed.
    """
    arcs, rows_of = arcs_of(corpus, option), WordRows(store.tokens)
    arcs = arcs.where(~arcs.is_punctuation)
    dependents, heads = rows_of.of(arcs.sentences, arcs.dependents), rows_of.of(arcs.sentences, arcs.heads)
    attended = store.by_token(MostAttended.name).numpy()
    read = (dependents >= 0) & (heads >= 0)
    # In a causal model, the first word may consist of the first token alone, which belongs to no word; its arcs are
    # then left out.
    read &= (attended[dependents, 0, 0, 0] != NONE) & (attended[heads, 0, 0, 0] != NONE)
    kept = arcs.where(read)
    found = attended[dependents[read]]
    return Scored(kept, found == kept.heads[:, None, None, None], found)


def relation_rows(
    train: Scored,
    test: Scored,
    untrained: tuple[Scored, Scored] | None = None,
    least: int = LEAST_ARCS,
    seed: int = 0,
    n_draws: int = DRAWS,
) -> list[Row]:
    """Return a row for each relation that has enough arcs in both parts, the most frequent in training first.

    `difference` is the accuracy of the chosen head minus that of the chosen offset, on the same test arcs. Its p-value
    is two-sided and corrected for the number of relations (Holm). Intervals are by sentence. `difference_permuted` is
    the mean difference with permuted syntactic heads, and `p_permuted` says whether the true one is larger.

    Args:
        train: The arcs by which heads and offsets are chosen.
        test: The arcs that accuracies are reported on.
        untrained: The same two for a randomly initialised model, for which a head is chosen in the same way.
        least: Fewest arcs of a relation in each part.
        seed: Seed of the permutations.
        n_draws: Number of permutations.
    """
    rows = []
    for name in _frequent(train, test, least):
        parts = _of_relation(name, train, test)
        others = _of_relation(name, *untrained) if untrained else None
        row = {"relation": name, **_row(parts[0], parts[1], best_head(parts[0].right))}
        rows.append(row | (_untrained(*others) if others else {}))
    return _corrected(_beside_permuted(rows, test, seed, n_draws))


def head_relation_rows(
    train: Scored, test: Scored, least: int = LEAST_ARCS, seed: int = 0, n_draws: int = DRAWS
) -> list[Row]:
    """Return a row for each head, in the order of layers and heads: the relation that it is best at.

    This is the relation for which the head's accuracy on the training sentences exceeds that of the best offset most;
    of equally good relations, it is the most frequent one. Accuracy alone would choose, for most heads, a relation
    between neighbouring words, which is found by any head that attends to nearby words. Accuracies are those on the
    test sentences, and p-values are corrected for the number of heads (Holm; `p_permuted` by the largest of each
    permutation).

    Args:
        train: The arcs by which relations, queries and offsets are chosen.
        test: The arcs that accuracies are reported on.
        least: Fewest arcs of a relation in each part.
        seed: Seed of the permutations.
        n_draws: Number of permutations.
    """
    names = _frequent(train, test, least)
    if not names:
        return []
    parts = [_of_relation(name, train, test) for name in names]
    above = np.stack([own.right.mean(0) - best_offset(own.arcs)[1] for own, _ in parts])
    rows = []
    for layer, head in np.ndindex(*train.right.shape[1:3]):
        # By relation, then query.
        chosen, query = divmod(int(above[:, layer, head].argmax()), len(QUERIES))
        row = _row(*parts[chosen], (layer, head, query))
        rows.append({"layer": row.pop("layer"), "head": row.pop("head"), "relation": names[chosen], **row})
    return _corrected(_beside_permuted(rows, test, seed, n_draws))


def _frequent(train: Scored, test: Scored, least: int) -> list[str]:
    """Return the relations that have enough arcs in both parts, the most frequent in training first."""
    names, counts = np.unique(train.arcs.relations.astype(str), return_counts=True)
    tested = Counter(test.arcs.relations.tolist())
    order = np.argsort(-counts, kind="stable")
    return [str(names[i]) for i in order if min(int(counts[i]), tested[str(names[i])]) >= least]


def _of_relation(name: str, train: Scored, test: Scored) -> tuple[Scored, Scored]:
    return train.where(train.arcs.relations == name), test.where(test.arcs.relations == name)


def _beside_permuted(rows: list[Row], test: Scored, seed: int, n_draws: int) -> list[Row]:
    """Return rows with what the lead over the offset is if the syntactic heads of each sentence are permuted."""
    if test.found is None or not rows:
        return rows
    finders = []
    for row in rows:
        arcs = np.flatnonzero(test.arcs.relations == row["relation"])
        found = test.found[arcs, row["layer"] - 1, row["head"] - 1, QUERIES.index(row["query"])]
        finders.append(Finder(arcs, found.astype(np.int64), row["offset"]))
    leads = compare_leads(test.arcs, finders, seed, n_draws)
    return [
        {**row, "difference_permuted": float(permuted), "p_permuted": float(p)}
        for row, permuted, p in zip(rows, leads.permuted, leads.p_value, strict=True)
    ]


def _corrected(rows: list[Row]) -> list[Row]:
    """Return rows whose p-values are corrected for their number (Holm)."""
    corrected = holm([row["p_value"] for row in rows])
    return [{**row, "p_value": float(p)} for row, p in zip(rows, corrected, strict=True)]


def _row(train: Scored, test: Scored, chosen: tuple[int, int, int]) -> Row:
    """Return how often a head finds the arcs of one relation, beside the best offset.

    Args:
        train: The arcs by which the offset is chosen.
        test: The arcs that accuracies are reported on.
        chosen: Indices of the layer, the head and the query.
    """
    layer, head, query = chosen
    offset, offset_train = best_offset(train.arcs)
    right, at_offset = test.right[:, layer, head, query], test.arcs.offsets == offset
    n, correct, of_offset = by_sentence(test.arcs, np.ones_like(right), right, at_offset)
    return {
        "n_train": len(train.arcs),
        "n_test": len(test.arcs),
        "query": QUERIES[query],
        "layer": layer + 1,
        "head": head + 1,
        "train": float(train.right[:, layer, head, query].mean()),
        **with_interval("test", correct, n),
        "offset": offset,
        "offset_train": offset_train,
        **with_interval("offset_test", of_offset, n),
        **compared(correct, of_offset, n),
    }


def _untrained(train: Scored, test: Scored) -> Row:
    layer, head, query = best_head(train.right)
    right = test.right[:, layer, head, query]
    return with_interval("untrained", *by_sentence(test.arcs, right, np.ones_like(right)))


def best_head(right: NDArray[np.bool_]) -> tuple[int, int, int]:
    """Return the indices of the layer, head and query that are right most often, the first of equally good ones.

    Args:
        right: Whether each is right about an arc, shape (n_arcs, n_layers, heads, 2).
    """
    totals = right.sum(0)
    layer, head, query = np.unravel_index(int(totals.argmax()), totals.shape)
    return int(layer), int(head), int(query)


def best_offset(arcs: Arcs) -> tuple[int, float]:
    """Return the offset from dependent to head that most arcs have, and the share of them that has it."""
    shares = (arcs.offsets[:, None] == np.array(OFFSETS)).mean(0)
    best = int(shares.argmax())
    return OFFSETS[best], float(shares[best])


def by_sentence(arcs: Arcs, *values: NDArray[Any]) -> list[NDArray[np.int64]]:
    """Return the sums over the arcs of each sentence of some counts by arc, for sentences that have any."""
    sentences = np.unique(arcs.sentences, return_inverse=True)[1]
    return [np.bincount(sentences, weights=one).astype(np.int64) for one in values]


def with_interval(name: str, correct: NDArray[np.int64], n: NDArray[np.int64]) -> Row:
    """Return an accuracy and its interval by sentence as cells of a row.

    Args:
        name: Name of the column.
        correct: Number of arcs of each sentence that are predicted rightly, shape (n_sentences,).
        n: Number of arcs of each sentence, shape (n_sentences,).
    """
    low, high = accuracy_interval(correct, n)
    total = int(n.sum())
    return {name: float(correct.sum() / total) if total else float("nan"), f"{name}_low": low, f"{name}_high": high}


def compared(correct: NDArray[np.int64], baseline: NDArray[np.int64], n: NDArray[np.int64]) -> Row:
    """Return the difference of two accuracies on the same arcs, paired by sentence, as cells of a row.

    Args:
        correct: Number of arcs of each sentence that the first gets right, shape (n_sentences,).
        baseline: Number of arcs of each sentence that the second gets right, shape (n_sentences,).
        n: Number of arcs of each sentence, shape (n_sentences,).
    """
    low, high = difference_interval(correct - baseline, n)
    return {
        "difference": float((correct - baseline).sum() / n.sum()),
        "difference_low": low,
        "difference_high": high,
        "p_value": difference_p_value(correct - baseline, n),
    }
