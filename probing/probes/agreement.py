"""Agreement of two scorings of the same neurons, with its value under chance.

**Chance** permutes the scores of the second side among the neurons. P-values are one-sided: the share of permutations,
the true order included, that agree at least as much; opposed rankings do not agree. This assumes exchangeable neurons.
If many neurons carry the same information, agreement by chance varies more than under permutation, and p-values are too
small. Unrelated rankings agree a little if neurons were matched by their activations. If such rankings are given
(`unrelated`) and agree more in the mean than permutations do, the mean, the upper end and the values behind the p-value
are raised by the difference; the lower end stays. Chance is never lowered, so p-values only grow.

**The confidence interval** of a value is not the interval of chance. The sampling unit is the sentence: the neurons of
a layer are not a sample, and a bootstrap of neurons would count duplicates as agreement. The interval uses scorings on
resampled sentences (`probing.statistics.chance.resampled_means`) and is NaN without them. Resampling adds sampling
noise a second time, which lowers every agreement, so only the deviations of the resampled values from their mean are
added to the value. The interval covers the mean agreement of runs on as many sentences (in 88 to 99 of 100 trials);
more sentences would raise that agreement.

**Dead neurons** score exactly 0. A neuron that is dead in both runs carries no information about either ranking, but
would count as agreement at the bottom. Spearman and Kendall use the neurons that are live in both runs. Overlap and
rank-biased overlap use those that are live in either run, and a dead neuron is in no top k. Chance permutes the scores
among the compared neurons.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import hypergeom, ortho_group, rankdata
from torch import Tensor

from probing.data.examples import Examples, n_spans, read
from probing.probes.solvers import centre_over_classes
from probing.statistics import ENDS, Array, kendall, neuron_ranks, rank_biased_overlap, spearman, top_overlap
from probing.statistics.chance import percentiles

Statistic = Literal["overlap", "rbo", "spearman", "kendall"]

STATISTICS: tuple[Statistic, ...] = ("overlap", "rbo", "spearman", "kendall")

# These statistics ask which neurons were chosen; the others ask for the order of all neurons.
CHOICE: tuple[Statistic, ...] = ("overlap", "rbo")

# Equal values may differ by rounding, because they are summed in another order.
ROUNDING = 1e-12


class Settings(NamedTuple):
    """Arguments of a statistic and of its null, apart from the scores; see `probing.probes.agreement.agreement`."""

    k: int
    persistence: float
    permutations: int
    seed: int


class Chance(NamedTuple):
    """A statistic under chance: mean, 95% interval of the null, and one-sided p-value (true ranking included)."""

    mean: float
    low: float
    high: float
    p_value: float


def compared(name: Statistic, a: Array, b: Array) -> NDArray[np.bool_]:
    """Return a mask of the compared neurons: live in both scorings, or for `CHOICE` live in either."""
    return (a != 0) | (b != 0) if name in CHOICE else (a != 0) & (b != 0)


def similarities(name: Statistic, a: Array, others: Array, settings: Settings) -> Array:
    """Return a statistic of a scoring, (n,), with each of `others`, (n_others, n); NaN if a scoring is constant."""
    values = np.full(len(others), np.nan)
    live = others != 0
    # Nearly always the same neurons are dead in all of them, so that all are compared at once.
    alike = [np.arange(len(others))] if (live == live[0]).all() else [np.array([i]) for i in range(len(others))]
    for rows in alike:
        mask = compared(name, a, others[rows[0]])
        if mask.any() and np.ptp(a):
            values[rows] = _compare(name, _ranked(name, a[mask]), _ranked(name, others[rows][:, mask]), settings)
    values[np.ptp(others, axis=1) == 0] = np.nan
    return values


def paired_similarities(name: Statistic, ones: Array, others: Array, settings: Settings) -> Array:
    """Return a statistic of each row of `ones` with the same row of `others`, both (n_draws, n); see `similarities`."""
    mask = compared(name, ones, others)
    # Nearly always the same neurons are dead in all rows, which are then ranked at once.
    if not mask.any() or (mask != mask[0]).any():
        rows = zip(ones, others, strict=True)
        return np.array([similarities(name, row, other[None], settings)[0] for row, other in rows])
    ranked = (_ranked(name, side[:, mask[0]]) for side in (ones, others))
    values = np.array([_compare(name, row, other[None], settings)[0] for row, other in zip(*ranked, strict=True)])
    values[(np.ptp(ones, axis=1) == 0) | (np.ptp(others, axis=1) == 0)] = np.nan
    return values


def chance(
    name: Statistic,
    value: float,
    a: Array,
    b: Array,
    group: NDArray[Any],
    rotated: Sequence[float],
    settings: Settings,
) -> Chance:
    """Return the null of two scorings, each of shape (n,), of the compared neurons.

    `group`, shape (n,), marks neurons that share a score of `b` in every permutation. `rotated` has values of the
    statistic for unrelated rankings, such as scorings in random bases. If their mean exceeds the mean of the
    permutations, chance is raised to it, except for the lower end.
    """
    shared = len(np.unique(group)) < len(group)
    if name == "overlap" and not shared:
        return _exact_overlap(value, a, b, rotated, settings.k)
    null = _permuted_blocks(name, a, b, group, settings) if shared else _permuted(name, a, b, settings)
    (low, high), moved = percentiles(null), excess(rotated, float(null.mean()))
    p_value = (1 + (null + moved >= value - ROUNDING).sum()) / (1 + len(null))
    return Chance(float(null.mean()) + moved, low, high + moved, float(p_value))


def excess(rotated: Sequence[float], permuted_mean: float) -> float:
    """Return by how much the mean of `rotated` exceeds the mean of the permutations; 0 if it does not."""
    return max(float(np.mean(rotated)) - permuted_mean, 0.0) if len(rotated) else 0.0


def _ranked(name: Statistic, scores: Array) -> NDArray[Any]:
    """Return the ranks, shape (..., n): distinct ranks for `CHOICE`, else ties share their mean rank."""
    return neuron_ranks(scores) if name in CHOICE else rankdata(scores, axis=-1)


def _compare(name: Statistic, x: NDArray[Any], y: NDArray[Any], settings: Settings) -> Array:
    """Return a statistic of a ranking, shape (n,), against others, shape (..., n)."""
    if name == "overlap":
        return top_overlap(x, y, settings.k)
    if name == "rbo":
        return rank_biased_overlap(x, y, settings.persistence)
    return spearman(x, y) if name == "spearman" else kendall(x, y)


def _exact_overlap(value: float, a: Array, b: Array, rotated: Sequence[float], k: int) -> Chance:
    """Return the null over all permutations in closed form: the mean is k / n if no neuron is dead."""
    tops = [min(k, int((scores != 0).sum())) for scores in (a, b)]
    overlap = hypergeom(len(a), *tops)
    mean = tops[0] * tops[1] / len(a) / k
    moved = excess(rotated, mean)
    low, high = overlap.ppf(ENDS) / k
    p_value = overlap.sf(math.ceil((value - moved) * k - ROUNDING) - 1)
    return Chance(mean + moved, float(low), float(high + moved), float(p_value))


def _permuted(name: Statistic, a: Array, b: Array, settings: Settings) -> Array:
    """Return a statistic under permutation, shape (permutations,).

    It depends only on the multiset of ranks, so pairs of layers share the cached result.
    """
    x, y = np.sort(_ranked(name, a)), np.sort(_ranked(name, b))
    return _permuted_ranks(name, x.dtype.str, x.tobytes(), y.tobytes(), settings)


@lru_cache(maxsize=256)
def _permuted_ranks(name: Statistic, dtype: str, x: bytes, y: bytes, settings: Settings) -> Array:
    ranks = np.frombuffer(y, dtype=dtype)
    rows = np.broadcast_to(ranks, (settings.permutations, len(ranks)))
    permuted = np.random.default_rng(settings.seed).permuted(rows, axis=1)
    return _compare(name, np.frombuffer(x, dtype=dtype), permuted, settings)


def _permuted_blocks(name: Statistic, a: Array, b: Array, group: NDArray[Any], settings: Settings) -> Array:
    """Return a statistic under permutation, shape (permutations,), if the neurons of a group share a score."""
    _, first, block = np.unique(group, return_index=True, return_inverse=True)
    permuted = _blocks_ranked(name in CHOICE, b[first].tobytes(), block.tobytes(), settings.permutations, settings.seed)
    return _compare(name, _ranked(name, a), permuted, settings)


# Two statistics in turn use the same ranks, and ranking costs as much as comparing.
@lru_cache(maxsize=1)
def _blocks_ranked(choice: bool, scores: bytes, block: bytes, permutations: int, seed: int) -> NDArray[Any]:
    of_blocks: NDArray[Any] = np.frombuffer(scores)
    if not choice:  # small integers rank three times as fast
        of_blocks = rankdata(of_blocks, method="dense").astype(np.min_scalar_type(len(of_blocks)))
    rows = np.broadcast_to(of_blocks, (permutations, len(of_blocks)))
    permuted = np.random.default_rng(seed).permuted(rows, axis=1)[:, np.frombuffer(block, dtype=np.intp)]
    return neuron_ranks(permuted) if choice else rankdata(permuted, axis=-1)


# With so many bases the standard error of the mean is a third of the spread of a single ranking.
BASES = 10


@dataclass(frozen=True)
class RotationNull:
    """Random bases and the contributions of their neurons, shape (n_bases, n_layers, d_model).

    `bases` has shape (n_bases, d_model, d_model); each column has a new neuron's weights on the old neurons.
    """

    bases: Tensor
    scores: NDArray[np.float64]


def random_bases(d_model: int, n: int, seed: int) -> Tensor:
    """Draw uniformly distributed (Haar) rotations that preserve the mean over neurons, shape (n, d_model, d_model).

    Raises:
        ValueError: If there are fewer than three neurons, which leave nothing to rotate.
    """
    if d_model < 3:
        raise ValueError(f"expected three neurons or more, found {d_model}")
    # A reflection that exchanges the first axis and the direction in which all neurons are equal.
    axis = np.full(d_model, d_model**-0.5)
    axis[0] -= 1
    reflection = np.eye(d_model) - 2 * np.outer(axis, axis) / (axis @ axis)
    turned = ortho_group.rvs(d_model - 1, size=n, random_state=np.random.default_rng(seed)).reshape(n, d_model - 1, -1)
    bases = np.zeros((n, d_model, d_model))
    bases[:, 0, 0], bases[:, 1:, 1:] = 1, turned
    return torch.from_numpy(reflection @ bases @ reflection).float()


def rotation_null(weight: Tensor, test: Examples, layers: Sequence[int], seed: int, n: int = BASES) -> RotationNull:
    """Rank the neurons of random bases by their mean contribution; the probes are rotated with the activations.

    A rotated probe gives the same logits. It would be optimal in the new basis if all neurons had the same sd, because
    the penalty scales each neuron by its sd. The cost is 2 n_bases n_tokens d_model^2 FLOP per layer and one pass over
    the test tokens. `weight` has shape (n_layers, n_classes, d_model); of pairs of spans, the basis of both spans is
    the same, and contributions are summed over them.
    """
    n_layers, n_classes, width = weight.shape
    d_model = width // n_spans(test.store)
    bases = random_bases(d_model, n, seed)
    turned = centre_over_classes(weight.float()).reshape(n_layers, -1, d_model)[None] @ bases[:, None]
    turned = turned.reshape(n, n_layers, n_classes, width)
    sums = torch.zeros(n, len(layers), d_model, dtype=torch.float64)
    n_tokens = 0
    for batch in read(test, layers):
        n_tokens += len(batch.labels)
        for i, states in enumerate(batch.hidden_states):
            for basis, rows, total in zip(bases, turned[:, i], sums[:, i], strict=True):
                images = states.reshape(-1, d_model) @ basis
                total += (rows[batch.labels].reshape(-1, d_model) * images).abs().sum(0)
    return RotationNull(bases, (sums / n_tokens).numpy())


def label_chance(value: float, null: Array) -> Chance:
    """Return chance under shuffled labels, for the side with the largest p-value; for ties, the largest mean.

    `null` has the agreement under shuffled labels of each task, shape (n_sides, n_draws). A draw with an empty ranking
    is NaN: it agrees as much as the true rankings in the p-value, is 0 in the interval, and is omitted from the mean.
    """
    p_values = (1 + (~(null < value - ROUNDING)).sum(1)) / (1 + null.shape[1])
    means = [float(np.mean(side[~np.isnan(side)])) if (~np.isnan(side)).any() else 0.0 for side in null]
    side = max(range(len(null)), key=lambda i: (p_values[i], means[i]))
    low, high = np.quantile(np.nan_to_num(null[side]), ENDS)
    return Chance(means[side], float(low), float(high), float(p_values[side]))


def max_p_values(values: Array, null: Array) -> Array:
    """Return p-values corrected for multiple tests by the maximum over pairs of layers, shape (n_pairs,).

    The family-wise error rate is controlled. The draws of a pair of layers and its true value are standardised
    together, so that they stay exchangeable. The larger p-value of the two sides is returned. `values` has the
    agreement of the true rankings, shape (n_pairs,), where NaN gives NaN; `null` the agreement under shuffled labels of
    the first and of the second task, shape (2, n_draws, n_pairs).
    """
    tested = ~np.isnan(values)
    corrected = np.full(values.shape, np.nan)
    if tested.any():
        corrected[tested] = np.maximum(*(_max_p(values[tested], side[:, tested]) for side in null))
    return corrected


def _max_p(values: Array, null: Array) -> Array:
    """Return p-values corrected against the draws of a side, shape (n_pairs,)."""
    both = np.concatenate([values[None], null])
    spread = np.nanstd(both, axis=0)
    standardised = (both - np.nanmean(both, axis=0)) / np.where(spread > ROUNDING, spread, np.inf)
    # An empty draw counts as one that agrees as much as the true rankings, in all pairs.
    largest = np.where(np.isnan(standardised[1:]), np.inf, standardised[1:]).max(axis=1)
    return np.asarray((1 + (largest[:, None] >= standardised[0] - ROUNDING).sum(0)) / len(both))


# With p = .98 the first 50 neurons have 85% of the weight (Webber et al., equation 21): between the top 10 and the
# whole ranking, and about where taking neurons away begins to cost the built-in model its accuracy.
PERSISTENCE = 0.98

TOP = 10

PERMUTATIONS = 1999


@dataclass(frozen=True)
class Agreement:
    """A statistic of two scorings; NaN if it is undefined or was not measured.

    Args:
        value: In 0..1 for overlap and rank-biased overlap, in -1..1 for Spearman and Kendall.
        low: Lower end of the 95% confidence interval of the value, over resampled sentences.
        chance: Mean of the statistic under chance; 95% of its values are between `chance_low` and `chance_high`.
        p_value: One-sided p-value, not corrected for multiple tests.
        n_neurons: Number of compared neurons.
        null: The statistic under shuffled labels of the first and of the second task, shape (2, n_draws), if given.
    """

    statistic: Statistic
    value: float
    low: float
    high: float
    chance: float
    chance_low: float
    chance_high: float
    p_value: float
    n_neurons: int
    null: Array | None = field(default=None, compare=False, repr=False)


def agreement(
    scores_a: Array,
    scores_b: Array,
    *,
    k: int = TOP,
    persistence: float = PERSISTENCE,
    groups: NDArray[np.int64] | None = None,
    draws: tuple[Array, Array] | None = None,
    unrelated: Sequence[tuple[Array, Array]] = (),
    shuffled: tuple[Array, Array] | None = None,
    permutations: int = PERMUTATIONS,
    seed: int = 0,
) -> list[Agreement]:
    """Return the statistics of two scorings, in the order of `STATISTICS`; all are NaN if either scoring is constant.

    Args:
        scores_a: Scores of the first side, higher is better, 0 is dead, shape (n,).
        scores_b: Scores of the same neurons in the same order, or of the neurons matched with them, shape (n,).
        k: Size of the top.
        persistence: p of rank-biased overlap; the higher it is, the more of the ranking counts.
        groups: Index of the matched neuron of the other model, shape (n,); required if several neurons share a partner,
            which then share a score in every permutation.
        draws: Scores of each side on resampled sentences, both of shape (n_draws, n). Rows are paired, so runs on the
            same corpus should resample the same sentences in each row.
        unrelated: Pairs of unrelated scorings obtained in the same way, both of a pair of the same length.
        shuffled: Scores under shuffled labels of the first and of the second task, both of shape (n_draws, n), which
            then define chance instead of permutations.
        permutations: Number of permutations. The smallest p-value is 1 / (1 + permutations); see `permutations_for`.
        seed: Seed of the permutations, which comparisons of equally many neurons share.

    Raises:
        ValueError: If shapes differ, a score is not finite, `k` or `persistence` is out of range, there are fewer than
            two neurons, or the neurons of a group differ in score.
    """
    a, b = np.asarray(scores_a, dtype=np.float64), np.asarray(scores_b, dtype=np.float64)
    _check_scores(a, b)
    if not 1 <= k <= len(a):
        raise ValueError(f"k: expected 1 to {len(a)}, the number of neurons, found {k}")
    if not 0 < persistence < 1:
        raise ValueError(f"persistence: expected a number between 0 and 1, found {persistence}")
    group = np.arange(len(a)) if groups is None else _check_groups(groups, b)
    settings = Settings(k, persistence, permutations, seed)
    ends = dict.fromkeys(STATISTICS, (np.nan, np.nan)) if draws is None else _intervals(a, b, draws, settings)
    if shuffled is not None and (shapes := {x.shape for x in shuffled}) != {(len(shuffled[0]), len(a))}:
        raise ValueError(f"shuffled: expected both of shape (n_draws, {len(a)}), found {sorted(shapes)}")
    return [_statistic_agreement(name, a, b, group, ends[name], unrelated, shuffled, settings) for name in STATISTICS]


def permutations_for(n_tests: int) -> int:
    """Return a number of permutations whose smallest p-value stays below .025 after `holm` corrects for `n_tests`."""
    return max(PERMUTATIONS, 40 * n_tests)


def _statistic_agreement(
    name: Statistic,
    a: Array,
    b: Array,
    group: NDArray[np.int64],
    ends: tuple[float, float],
    unrelated: Sequence[tuple[Array, Array]],
    shuffled: tuple[Array, Array] | None,
    settings: Settings,
) -> Agreement:
    mask, value, null, nan = compared(name, a, b), _value(name, a, b, settings), None, math.nan
    if shuffled is not None:
        null = np.stack([
            similarities(name, b, shuffled[0], settings), similarities(name, a, shuffled[1], settings)
        ])  # fmt: skip
    if np.isnan(value):
        return Agreement(name, nan, nan, nan, nan, nan, nan, nan, int(mask.sum()), null)
    if null is None:
        rotated = [_value(name, *pair, settings) for pair in unrelated]
        by_chance = chance(name, value, a[mask], b[mask], group[mask], rotated, settings)
    else:
        by_chance = label_chance(value, null)
    return Agreement(name, value, *ends, *by_chance, int(mask.sum()), null)


def _value(name: Statistic, a: Array, b: Array, settings: Settings) -> float:
    return float(similarities(name, a, b[None], settings)[0])


def _intervals(
    a: Array, b: Array, draws: tuple[Array, Array], settings: Settings
) -> dict[Statistic, tuple[float, float]]:
    """Return the confidence interval of each statistic: the spread of its resampled values around its value."""
    shapes = [x.shape for x in draws]
    if shapes[0] != shapes[1] or shapes[0][1:] != a.shape or len(draws[0]) < 2:
        raise ValueError(f"draws: expected both of shape (n_draws, {len(a)}), two or more, found {shapes}")
    ends = {}
    for name in STATISTICS:
        value, redrawn = _value(name, a, b, settings), paired_similarities(name, *draws, settings)
        low, high = percentiles(redrawn - redrawn.mean())
        # Where nearly all draws have one value, their quantiles lie on one side of the mean.
        spread = np.array([np.minimum(low, 0), np.maximum(high, 0)])
        low, high = (value + spread).clip(min(0 if name in CHOICE else -1, value), max(1, value))
        ends[name] = (float(low), float(high))
    return ends


def _check_scores(a: Array, b: Array) -> None:
    if a.ndim != 1 or a.shape != b.shape:
        raise ValueError(f"scores of the same neurons have one shape (n,), found {a.shape} and {b.shape}")
    if len(a) < 2:
        raise ValueError(f"a ranking needs two neurons, found {len(a)}")
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise ValueError("scores must be finite, found NaN or infinity")


def _check_groups(groups: NDArray[np.int64], b: Array) -> NDArray[np.int64]:
    if groups.shape != b.shape:
        raise ValueError(f"groups: expected shape {b.shape}, found {groups.shape}")
    _, first, block = np.unique(groups, return_index=True, return_inverse=True)
    if (b[first][block] != b).any():
        raise ValueError("groups: neurons matched with the same neuron must have its score")
    return groups
