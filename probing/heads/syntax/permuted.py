"""Syntactic heads permuted among the dependents of a sentence: what an attention head finds without their links.

Some words are the syntactic heads of many others, and an attention head that prefers such words finds many arcs without
knowing which word depends on which. Permuted arcs keep this: every word has as many dependents as before, in the same
sentence, and every dependent keeps its relation; only which of the syntactic heads is its own is lost. Positions are
lost with it, so that an attention head that knows nothing but offsets finds more of the true arcs than of permuted
ones. What is compared is therefore its lead over the best offset: how many more arcs it finds than that offset does.

A permutation that would make a word its own head is not permitted. The heads of each sentence are shuffled until the
arrangement is, so that all permitted arrangements are equally likely and draws are independent. The true one is one
more draw if syntactic heads are given to the dependents of a sentence at random.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from probing.heads.syntax.arcs import Arcs

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
