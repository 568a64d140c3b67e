"""Decomposition of hidden states into mean + position + context + rest: an unbalanced two-way analysis of variance.

Song & Zhong (2023), equation 1, take the mean over sentences of equal length as the position part, and the mean over
positions as the context part. If sentences differ in length, these means mix the two: only long sentences have late
positions. Here both are fitted jointly by least squares, and the total sum of squares is

    total = position + context + shared + rest,

where `position` is the addition of positions to the sentences, `context` that of the sentences to the positions, and
`shared` is explained by either (it may be negative, and is 0 if all sentences have the same positions: both definitions
then agree). Means of few tokens vary by chance. The part that position explains by chance is known exactly: the mean
over all orders of the tokens within each sentence, tr(A^+ B) with B the sum of the sentences' A, each times the
sentence's variance. It is subtracted as in the adjusted R^2. Intervals come from the jackknife over groups of
sentences, since a bootstrap would add the noise of the means a second time.

Every token i of position t(i) and sentence c(i) is modelled as h = mean + p[t] + s[c] + rest. With sentences centred,
the normal equations of p are A p = b, with A = diag(n) - sum over sentences of 1_c 1_c' / m_c, where 1_c marks the
positions of sentence c and m_c is their number. A depends only on the positions, and sentences with the same positions
are counted together, so that its size is the number of positions however many sentences there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import stdtrit
from torch import Tensor

from probing.statistics import ENDS, MIN_SENTENCES, NO_INTERVAL

Array = NDArray[np.float64]

# Parts into which sentences are drawn at random; the jackknife leaves each out in turn.
GROUPS = 20

# Most positions: matrices of this size are inverted for each group.
MOST_POSITIONS = 1024

# Eigenvalues below this share of the largest are 0: A has one for every set of positions that no sentence joins.
_NULL = 1e-9


@dataclass(frozen=True)
class PositionSolution:
    """The normal equations of the positions, solved for some of the sentences.

    Args:
        n: Number of tokens at each position, shape (n_positions,).
        gram: The matrix A, shape (n_positions, n_positions); `inverse` is its pseudoinverse.
        rank: Rank of A: the degrees of freedom of the position part.
        noise: Contribution of each sentence to the sum of squares of the position part, per unit of its variance, if
            its tokens are in random order; shape (n_sentences of the design,), 0 for excluded sentences.
        noise_alone: The same for the position means, with the variance within a sentence divided by its number of
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
    """The sentence and the position of each token, shape (n_tokens,).

    Sentences must ascend, and positions must be distinct within a sentence.

    Attributes:
        values: The occurring positions, ascending, shape (n_positions,); `index` is each token's index among them.
        of_token: Index of each token's sentence among the sentences with tokens, shape (n_tokens,).
        sizes: Number of tokens of each sentence, shape (n_sentences,).
        groups: Group of each sentence, shape (n_sentences,).
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
        """The distinct sets of positions, shape (n_patterns, n_positions), and the index of each sentence's set."""
        starts = np.concatenate([[0], np.cumsum(self.sizes)])
        pattern_numbers: dict[bytes, int] = {}
        of_sentence = np.empty(self.n_sentences, dtype=np.int64)
        for c in range(self.n_sentences):
            positions = self.index[starts[c] : starts[c + 1]].tobytes()
            of_sentence[c] = pattern_numbers.setdefault(positions, len(pattern_numbers))
        patterns = np.zeros((len(pattern_numbers), self.n_positions), dtype=bool)
        for positions, u in pattern_numbers.items():
            patterns[u, np.frombuffer(positions, dtype=np.int64)] = True
        return patterns, of_sentence

    def solve(self, groups: Sequence[int]) -> PositionSolution:
        """Return the solved normal equations of the sentences of some groups."""
        patterns, of_sentence = self._patterns
        in_groups = np.isin(self.groups, groups)
        counts = np.bincount(of_sentence[in_groups], minlength=len(patterns)).astype(np.float64)
        marks, sizes = patterns.astype(np.float64), patterns.sum(1)
        n = counts @ marks
        gram = np.diag(n) - marks.T @ (marks * (counts / sizes)[:, None])
        eigenvalues, vectors = np.linalg.eigh(gram)
        live = eigenvalues > _NULL * max(float(eigenvalues[-1]), 1.0)
        inverse = (vectors[:, live] / eigenvalues[live]) @ vectors[:, live].T
        per_pattern = marks @ inverse.diagonal() - np.einsum("ut,ut->u", marks @ inverse, marks) / sizes
        alone = marks @ np.divide(1.0, n, out=np.zeros_like(n), where=n > 0)
        return PositionSolution(
            n, gram, inverse, int(live.sum()), int(in_groups.sum()), np.where(in_groups, per_pattern[of_sentence], 0.0),
            np.where(in_groups, alone[of_sentence], 0.0),
        )  # fmt: skip

    @cached_property
    def whole(self) -> PositionSolution:
        """The solution of all sentences."""
        return self.solve(range(self.n_groups))

    @cached_property
    def without(self) -> list[PositionSolution]:
        """The solutions without each group."""
        return [self.solve([h for h in range(self.n_groups) if h != g]) for g in range(self.n_groups)]

    def parts(self, n_parts: int) -> list[list[int]]:
        """Divide the groups into parts of about the same size."""
        return [list(range(part, self.n_groups, n_parts)) for part in range(n_parts)]


# Parts whose shares add up to 1, and the two definitions that do not hold the other part fixed.
PARTS = ("position", "context", "shared", "rest")

ALONE = ("position_alone", "context_alone")

# Tokens that are added at a time, a few more where a sentence is longer.
BLOCK = 4096


@dataclass(frozen=True)
class VarianceShares:
    """Shares of variance by part, of each neuron of a layer, shape (d_model,), or of all together, shape ().

    `chance` is the share of the part by chance; `excess` is without chance, and for `rest` with all of the others'
    chance.
    """

    observed: Mapping[str, Array]
    chance: Mapping[str, Array]
    excess: Mapping[str, Array]


class TwoWaySums:
    """Sums over the tokens of a layer, which suffice for all statistics and do not grow with the corpus.

    `with_covariance` also accumulates the covariances of context and rest.
    """

    def __init__(self, design: Design, d_model: int, with_covariance: bool = False) -> None:
        self.design, self.n_added = design, 0
        shape = (design.n_groups, design.n_positions, d_model)
        self._by_position = torch.zeros(design.n_groups * design.n_positions, d_model, dtype=torch.float64)
        self._means_by_position = torch.zeros_like(self._by_position)
        self._shape = shape
        self.origin: Tensor | None = None
        # Of each group: the sum of the tokens, of their squares, and of the squares between sentences.
        self._total, self._squares, self._between = (torch.zeros(shape[0], d_model, dtype=torch.float64) for _ in "abc")
        solutions = [design.whole, *design.without]
        more = np.maximum(design.sizes - 1, 1)
        self._weights = torch.from_numpy(
            np.stack([s.noise / more for s in solutions] + [s.noise_alone / design.sizes for s in solutions])
        )
        self._noise = torch.zeros(len(self._weights), d_model, dtype=torch.float64)
        self.second: Tensor | None = None
        self.between_second: Tensor | None = None
        if with_covariance:
            self.second, self.between_second = (torch.zeros(d_model, d_model, dtype=torch.float64) for _ in "ab")

    def update(self, hidden_states: Tensor) -> None:
        """Add the next tokens in the order of the design, whole sentences; shape (n, d_model), n may be 0.

        Raises:
            ValueError: If the tokens end within a sentence, or there are more than in the design.
        """
        first, stop = self.n_added, self.n_added + len(hidden_states)
        of_token = self.design.of_token
        if stop > len(of_token) or (0 < stop < len(of_token) and of_token[stop - 1] == of_token[stop]):
            raise ValueError(f"tokens {first} to {stop} are not whole sentences of the {len(of_token)} of the design")
        while first < stop:
            end = min(first + BLOCK, stop)
            while end < stop and of_token[end - 1] == of_token[end]:
                end += 1
            self._add(first, hidden_states[first - self.n_added : end - self.n_added])
            first = end
        self.n_added = stop

    def _add(self, first: int, hidden_states: Tensor) -> None:
        if self.origin is None:
            self.origin = hidden_states[0].double()  # so that a neuron that does not vary is 0
        design, stop = self.design, first + len(hidden_states)
        states = hidden_states.double() - self.origin
        lowest, highest = int(design.of_token[first]), int(design.of_token[stop - 1]) + 1
        of_token = torch.from_numpy(design.of_token[first:stop] - lowest)
        sizes = torch.from_numpy(design.sizes[lowest:highest]).double()[:, None]
        groups = torch.from_numpy(design.groups[lowest:highest])
        places = groups[of_token] * design.n_positions + torch.from_numpy(design.index[first:stop])
        zeros = torch.zeros(highest - lowest, states.shape[1], dtype=torch.float64)
        sums = zeros.index_add(0, of_token, states)
        means = sums / sizes
        self._by_position.index_add_(0, places, states)
        self._means_by_position.index_add_(0, places, means[of_token])
        between = sums * means
        within = zeros.index_add(0, of_token, (states - means[of_token]).square_())
        self._total.index_add_(0, groups, sums)
        self._between.index_add_(0, groups, between)
        self._squares.index_add_(0, groups, between + within)
        self._noise += self._weights[:, lowest:highest] @ within
        if self.second is not None and self.between_second is not None:
            self.second += states.T @ states
            self.between_second += means.T @ sums

    @property
    def by_position(self) -> Array:
        """Sums of the tokens at each position of each group, shape (n_groups, n_positions, d_model)."""
        return self._by_position.view(self._shape).numpy()

    @property
    def means_by_position(self) -> Array:
        """Sums of the means of these tokens' sentences, of the same shape."""
        return self._means_by_position.view(self._shape).numpy()

    @property
    def variance(self) -> Array:
        """Variance of each neuron over all tokens, shape (d_model,)."""
        n = self.design.whole.n.sum()
        total, squares = self._total.sum(0).numpy(), self._squares.sum(0).numpy()
        return np.maximum(squares / n - np.square(total / n), 0)

    def position_part(self, solution: PositionSolution, groups: list[int] | None = None) -> Array:
        """Return p, the position part, of zero mean over the tokens, shape (n_positions, d_model).

        `solution` must be of the same `groups`; all groups by default.
        """
        of_groups = slice(None) if groups is None else groups
        right = (self.by_position[of_groups] - self.means_by_position[of_groups]).sum(0)
        part = solution.inverse @ right
        return np.asarray(part - solution.n @ part / solution.n.sum())

    def eta_squared(self, groups: list[int], solution: PositionSolution) -> Array:
        """Return the share of each neuron's variance between positions of some groups, (d_model,), 0 if constant."""
        total, squares = self._total[groups].sum(0).numpy(), self._squares[groups].sum(0).numpy()
        of_mean = total**2 / solution.n.sum()
        inverse_counts = np.divide(1.0, solution.n, out=np.zeros_like(solution.n), where=solution.n > 0)
        between, varied = inverse_counts @ self.by_position[groups].sum(0) ** 2 - of_mean, squares - of_mean
        return np.divide(between, varied, out=np.zeros_like(varied), where=varied > 0)

    def shares(self, standardised: bool = False, by_neuron: bool = False) -> list[VarianceShares]:
        """Return the shares of variance of all sentences, and without each group (not if `by_neuron`).

        If `standardised`, every varying neuron counts equally, as if it had variance 1.
        """
        design = self.design
        by_position, means = self.by_position.sum(0), self.means_by_position.sum(0)
        solutions = [design.whole] if by_neuron else [design.whole, *design.without]
        all_shares = []
        for r, solution in enumerate(solutions):
            out = [] if r == 0 else [r - 1]
            total, squares, between = (
                (group_sums.sum(0) - group_sums[out].sum(0)).numpy()
                for group_sums in (self._total, self._squares, self._between)
            )
            all_shares.append(_variance_shares(
                solution, by_position - self.by_position[out].sum(0), means - self.means_by_position[out].sum(0), total,
                squares, between, self._noise[r].numpy(), self._noise[len(self._noise) // 2 + r].numpy(), standardised,
                by_neuron,
            ))  # fmt: skip
        return all_shares

    def covariances(self) -> tuple[Array, Array]:
        """Return the sums of squares and products, (d_model, d_model), of context (minus its noise) and rest.

        The noise of the context part is that of means of independent tokens: the covariance of the rest times the
        degrees of freedom.
        """
        assert self.second is not None
        assert self.between_second is not None
        solution, part = self.design.whole, self.position_part(self.design.whole)
        n, means = solution.n.sum(), self.means_by_position.sum(0)
        right = self.by_position.sum(0) - means
        total = self._total.sum(0).numpy()
        rest = self.second.numpy() - self.between_second.numpy() - right.T @ part
        # Sums over sentences of m times (mean - position part of the sentence), squared.
        along = np.diag(solution.n) - solution.gram
        cross = means.T @ part
        context = self.between_second.numpy() - cross - cross.T + part.T @ along @ part
        # The mean of the tokens is that of the contexts, since the position part has none.
        context -= np.outer(total, total) / n
        degrees = solution.n_sentences - 1
        degrees_of_rest = n - solution.n_sentences - solution.rank
        return context - degrees * rest / max(degrees_of_rest, 1), rest


def _variance_shares(
    solution: PositionSolution, by_position: Array, means: Array, total: Array, squares: Array, between: Array,
    noise: Array, noise_alone: Array, standardised: bool, by_neuron: bool,
) -> VarianceShares:  # fmt: skip
    """Return the shares of variance of the sentences of a solution, from sums over their tokens.

    Args:
        solution: The solved normal equations of the positions.
        by_position: Sum of the tokens at each position, shape (n_positions, d_model); `means` that of the means of
            these tokens' sentences.
        total: Sum of the tokens, shape (d_model,); `squares` is that of their squares, and `between` that of the
            squares between sentences.
        noise: Sum of squares of `position` by chance, shape (d_model,); `noise_alone` is the part of that of
            `position_alone` that is due to the variance within sentences.
        standardised: Whether every varying neuron counts equally.
        by_neuron: Whether the shares are of each neuron.
    """

    def over(part: Array) -> Array:
        """Return a share of the total: of each neuron, as a mean over neurons, or of their sum."""
        if together:
            return np.asarray(part.sum() / whole.sum()) if whole.sum() > 0 else np.asarray(np.nan)
        live = whole > 0
        each = np.divide(part, whole, out=np.full_like(part, np.nan), where=live)
        return each if by_neuron else np.asarray(each[live].mean() if live.any() else np.nan)

    together = not (standardised or by_neuron)
    n, n_sentences = solution.n.sum(), solution.n_sentences
    of_mean = total**2 / max(n, 1)
    inverse_counts = np.divide(1.0, solution.n, out=np.zeros_like(solution.n), where=solution.n > 0)
    right = by_position - means
    # Sums of squares about the mean: of all tokens, between sentences, between positions, and what positions add.
    whole, context_alone = squares - of_mean, between - of_mean
    position_alone = inverse_counts @ by_position**2 - of_mean
    position = np.einsum("td,td->d", right, solution.inverse @ right)
    position_alone_chance = inverse_counts @ means**2 - of_mean + noise_alone
    within = whole - context_alone
    rest = np.maximum(within - position, 0)
    context, shared = context_alone + position - position_alone, position_alone - position
    degrees_of_rest = n - n_sentences - solution.rank
    context_noise = (n_sentences - 1) * rest / degrees_of_rest if degrees_of_rest > 0 else np.zeros_like(rest)
    # Of each part what was observed, what is by chance, and the excess.
    parts = {
        "position": (position, noise, _adjusted(position, noise, within, together)),
        "context": (context, context_noise, context - context_noise),
        "shared": (shared, noise_alone - noise, shared - (noise_alone - noise)),
        "position_alone": (
            position_alone, position_alone_chance, _adjusted(position_alone, position_alone_chance, whole, together)
        ),
        "context_alone": (context_alone, context_noise, context_alone - context_noise),
    }  # fmt: skip
    observed, chance, excess = ({name: over(of[i]) for name, of in parts.items()} for i in range(3))
    observed["rest"] = over(rest)
    excess["rest"] = 1 - excess["position"] - excess["context"] - excess["shared"]
    chance["rest"] = observed["rest"] - excess["rest"]
    return VarianceShares(observed, chance, excess)


def _adjusted(squares: Array, chance: Array, within: Array, together: bool) -> Array:
    """Return sums of squares minus chance, as in the adjusted R^2: (R^2 - E) / (1 - E) of the variance.

    With `together`, the sums over all neurons are adjusted, and the correction is spread over neurons.
    """
    if together:
        unexplained = within.sum() - chance.sum()
        factor = within.sum() / unexplained if unexplained > 0 else np.nan
        return np.asarray((squares - chance) * factor)
    unexplained = within - chance
    return (squares - chance) * np.divide(within, unexplained, out=np.full_like(within, np.nan), where=unexplained > 0)


def jackknife_interval(values: Array, n_sentences: int) -> tuple[float, float]:
    """Return the 95% confidence interval of a statistic by the delete-a-group jackknife (Kott 2001), with Student's t.

    `values` has the statistic of all sentences, and without each group, shape (1 + n_groups,). There is no interval
    below `MIN_SENTENCES` sentences.
    """
    without = np.asarray(values[1:], dtype=np.float64)
    if n_sentences < MIN_SENTENCES or not np.isfinite(values).all():
        return NO_INTERVAL
    k = len(without)
    error = np.sqrt((k - 1) / k * np.square(without - without.mean()).sum())
    t = float(stdtrit(k - 1, ENDS[1]))
    return float(values[0] - t * error), float(values[0] + t * error)
