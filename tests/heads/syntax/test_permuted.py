"""Syntactic heads permuted among the dependents of a sentence, and leads that they explain."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from numpy.typing import NDArray

from probing.heads.syntax import Arcs, Finder, Scored, compare_leads, permuted_heads, relation_rows
from probing.tables.heads import beats_offset, finds_relation

pytestmark = pytest.mark.numeric


def arcs_of_heads(*sentences: list[int]) -> Arcs:
    """Return arcs from the heads of the words of each sentence, -1 for a root."""
    found = [(s, d, g) for s, heads in enumerate(sentences) for d, g in enumerate(heads) if g >= 0]
    sentence, dependent, head = np.array(found).T
    return Arcs(sentence, dependent, head, np.full(len(found), "x", dtype=object))


def test_every_permitted_arrangement_is_as_likely_and_no_other_occurs() -> None:
    """Against the arrangements by definition; the second sentence has a single one, the third two."""
    arcs = arcs_of_heads([1, 2, -1, 2, 1], [-1, 0, 1], [-1, 0, 0, 1])
    drawn = list(permuted_heads(arcs, 4000, np.random.default_rng(0)))
    for sentence in range(3):
        own = arcs.sentences == sentence
        dependents, heads = arcs.dependents[own], arcs.heads[own].tolist()
        permitted = {one for one in permutations(heads) if all(np.array(one) != dependents)}
        counts = Counter(tuple(of[own].tolist()) for of in drawn)
        assert set(counts) == permitted
        shares = np.array(list(counts.values())) / 4000
        # Within five binomial standard errors.
        chance = 1 / len(permitted)
        assert np.abs(shares - chance).max() <= 5 * (chance * (1 - chance) / 4000) ** 0.5


def test_draws_are_independent() -> None:
    """An arrangement says nothing on the next one: p-values would be too small more often than they say."""
    arcs = arcs_of_heads(*[[1, 2, 3, 4, 5, 6, 7, -1]] * 300)
    drawn = np.array(list(permuted_heads(arcs, 40, np.random.default_rng(0))))
    again = (drawn[1:] == drawn[:-1]).mean()
    assert abs(again - (drawn[20:] == drawn[:20]).mean()) < 0.005
    assert abs((drawn[0] == arcs.heads).mean() - again) < 0.02


def random_trees(generator: np.random.Generator, n: int, length: int = 8) -> Arcs:
    """Return sentences in which a word among the first three heads most of the others."""
    sentences = []
    for _ in range(n):
        chief = int(generator.integers(3))
        heads = [chief if generator.random() < 0.6 else int(generator.integers(length)) for _ in range(length)]
        sentences.append([-1 if head == word else head for word, head in enumerate(heads)])
    return arcs_of_heads(*sentences)


def chief_of(arcs: Arcs) -> NDArray[np.int64]:
    """Return for each arc the word of its sentence that heads most."""
    return np.array([Counter(arcs.heads[arcs.sentences == s].tolist()).most_common(1)[0][0] for s in arcs.sentences])


def scored_by(arcs: Arcs, *found: NDArray[np.int64]) -> Scored:
    """Return what attention heads that find some words are right about."""
    words = np.repeat(np.stack(found, axis=1)[:, None, :, None], 2, axis=3).astype(np.int16)
    return Scored(arcs, words == arcs.heads[:, None, None, None], words)


def test_attention_to_the_word_that_heads_most_beats_offsets_but_not_permuted_heads() -> None:
    """The planted head knows which word depends on which in a quarter of the arcs."""
    generator = np.random.default_rng(1)
    for planted in (False, True):
        parts = []
        for n in (60, 60):
            arcs = random_trees(generator, n)
            found = chief_of(arcs)
            if planted:
                found = np.where(generator.random(len(arcs)) < 0.25, arcs.heads, found)
            parts.append(scored_by(arcs, found, np.full_like(found, 7)))
        train, test = parts
        (row,) = relation_rows(train, test, n_draws=99)
        assert beats_offset(row)
        assert finds_relation(row) == planted
        if planted:
            assert row["p_permuted"] == 0.01
            assert row["difference_permuted"] < row["difference"] - 0.03


def test_true_heads_that_are_permuted_themselves_are_seldom_significant() -> None:
    """One draw of a permutation is like any other; of 100 tests at .05, more than 11 have a chance of .004."""
    generator = np.random.default_rng(2)
    alarms = 0
    for seed in range(100):
        arcs = random_trees(generator, 12)
        given = next(permuted_heads(arcs, 1, generator))
        arcs = Arcs(arcs.sentences, arcs.dependents, given, arcs.relations)
        every = np.arange(len(arcs))
        finders = [Finder(every, chief_of(arcs), 1), Finder(every, generator.integers(8, size=len(arcs)), -1)]
        alarms += bool((compare_leads(arcs, finders, seed, 39).p_value <= 0.05).any())
    assert alarms <= 11
