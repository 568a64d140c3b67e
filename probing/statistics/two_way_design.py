"""The design of an unbalanced two-way analysis of variance over positions and sentences, which all layers share.

Every token i of position t(i) and sentence c(i) is modelled as h = mean + p[t] + s[c] + rest, by least squares. With
sentences centred, the normal equations of p are A p = b, with A = diag(n) - sum over sentences of 1_c 1_c' / m_c, where
1_c marks the positions of sentence c and m_c is their number. A depends on the positions alone, and sentences with the
same positions are counted together, so that its size is the number of positions however many sentences there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Parts into which sentences are drawn at random; the jackknife leaves each out in turn.
GROUPS = 20
# Most positions: matrices of this size are inverted for each group.
MOST_POSITIONS = 1024
# Eigenvalues below this share of the largest are 0: A has one for every set of positions that no sentence joins.
_NULL = 1e-9


@dataclass(frozen=True)
class Solution:
    """The normal equations of the positions, solved for some of the sentences.

    Args:
        n: Number of tokens at each position, shape (n_positions,).
        gram: The matrix A, shape (n_positions, n_positions).
        inverse: Its pseudoinverse, of the same shape.
        rank: Its rank: the degrees of freedom of the position part.
        n_sentences: Number of sentences.
        noise: What each sentence adds to the sum of squares of the position part, per unit of the variance within the
            sentence, if its tokens are in random order; shape (n_sentences of the design,), 0 for sentences that are
            left out.
        noise_alone: The same of the position means, where the variance within a sentence is divided by its number of
            tokens.
    """

    n: Array
    gram: Array
    inverse: Array
    rank: int
    n_sentences: int
    noise: Array
    noise_alone: Array


class Design:
    """Which token is at which position of which sentence.

    Args:
        sentences: Sentence of each token, ascending, shape (n_tokens,).
        positions: Position of each token; no two tokens of a sentence have the same; shape (n_tokens,).
        seed: Seed of the draw of groups.

    Attributes:
        values: The positions that there are, ascending, shape (n_positions,).
        index: Index of each token's position among these, shape (n_tokens,).
        of_token: Index of each token's sentence among those that have tokens, shape (n_tokens,).
        sizes: Number of tokens of each sentence, shape (n_sentences,).
        groups: Group of each sentence, shape (n_sentences,).
        n_groups: Number of groups.
    """

    def __init__(self, sentences: NDArray[np.int32], positions: NDArray[np.int32], seed: int = 0) -> None:
        self.values, index = np.unique(positions, return_inverse=True)
        self.index = index.reshape(-1).astype(np.int64)
        _, of_token = np.unique(sentences, return_inverse=True)
        self.of_token = of_token.reshape(-1).astype(np.int64)
        self.sizes = np.bincount(self.of_token)
        n = len(self.sizes)
        self.n_groups = min(GROUPS, n)
        self.groups = np.random.default_rng([seed, 11]).permutation(np.arange(n) % max(self.n_groups, 1))

    @property
    def n_positions(self) -> int:
        """Number of positions."""
        return len(self.values)

    @property
    def n_sentences(self) -> int:
        """Number of sentences."""
        return len(self.sizes)

    @cached_property
    def _patterns(self) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """The sets of positions that sentences have, shape (n_patterns, n_positions), and that of each sentence."""
        starts = np.concatenate([[0], np.cumsum(self.sizes)])
        found: dict[bytes, int] = {}
        of_sentence = np.empty(self.n_sentences, dtype=np.int64)
        for c in range(self.n_sentences):
            here = self.index[starts[c] : starts[c + 1]].tobytes()
            of_sentence[c] = found.setdefault(here, len(found))
        patterns = np.zeros((len(found), self.n_positions), dtype=bool)
        for here, u in found.items():
            patterns[u, np.frombuffer(here, dtype=np.int64)] = True
        return patterns, of_sentence

    def solve(self, groups: Sequence[int]) -> Solution:
        """Return the solved normal equations of the sentences of some groups."""
        patterns, of_sentence = self._patterns
        kept = np.isin(self.groups, groups)
        counts = np.bincount(of_sentence[kept], minlength=len(patterns)).astype(np.float64)
        marks, sizes = patterns.astype(np.float64), patterns.sum(1)
        n = counts @ marks
        gram = np.diag(n) - marks.T @ (marks * (counts / sizes)[:, None])
        eigenvalues, vectors = np.linalg.eigh(gram)
        live = eigenvalues > _NULL * max(float(eigenvalues[-1]), 1.0)
        inverse = (vectors[:, live] / eigenvalues[live]) @ vectors[:, live].T
        per_pattern = marks @ inverse.diagonal() - np.einsum("ut,ut->u", marks @ inverse, marks) / sizes
        alone = marks @ np.divide(1.0, n, out=np.zeros_like(n), where=n > 0)
        return Solution(
            n, gram, inverse, int(live.sum()), int(kept.sum()), np.where(kept, per_pattern[of_sentence], 0.0),
            np.where(kept, alone[of_sentence], 0.0),
        )  # fmt: skip

    @cached_property
    def whole(self) -> Solution:
        """The solution of all sentences."""
        return self.solve(range(self.n_groups))

    @cached_property
    def without(self) -> list[Solution]:
        """The solutions without each group."""
        return [self.solve([h for h in range(self.n_groups) if h != g]) for g in range(self.n_groups)]

    def parts(self, n_parts: int) -> list[list[int]]:
        """Divide the groups into parts of about the same size."""
        return [list(range(part, self.n_groups, n_parts)) for part in range(n_parts)]
