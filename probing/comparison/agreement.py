"""Agreement of two scorings of the same neurons, each number beside its value under chance.

**Chance** permutes one scoring among the neurons at random. P-values are one-sided: the share of permutations,
including the true order, that agree at least as much. The question is whether two rankings agree more than unrelated
ones would; opposed rankings do not agree. This assumes that the neurons of a layer are exchangeable; if many of them
carry the same information, agreement by chance varies more than under permutation, and p-values are too small. Where
neurons were matched by their activations, even unrelated rankings agree a little. If such rankings are given
(`unrelated`) and their mean agreement is above that of the permutations, the mean, the upper end and the values behind
the p-value are raised by the difference; the lower end stays. Chance is never lowered, so p-values only grow.

**The interval** of a value is not the interval of chance. The sampling unit is the sentence: the neurons of a layer are
not a sample of a larger set, and a bootstrap of neurons would count duplicates as agreement. The interval is therefore
computed from scorings on resampled sentences (`probing.statistics.bootstrap.resampled_means`), and is NaN if none are
given. Resampling adds sampling noise a second time, which lowers every agreement. So only the deviations of the
resampled values from their mean are used, and they are added to the value. The interval covers the mean agreement of
runs on as many sentences (in trials 88 to 99 times of 100); more sentences would raise that agreement.

**Dead neurons** score exactly 0. A neuron that is dead in both runs says nothing about either ranking, yet at the
bottom of both it would look like agreement. Spearman and Kendall use the neurons that are live in both. Overlap and
rank-biased overlap ask which neurons were chosen, so they use those that are live in either, and a dead neuron is in no
top k, whatever its index. Chance permutes the scores among the same neurons that are compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from probing.comparison.nulls import (
    CHOICE,
    STATISTICS,
    Settings,
    Statistic,
    chance,
    compared,
    label_chance,
    paired_similarities,
    similarities,
)
from probing.statistics.bootstrap import percentiles
from probing.statistics.rank_similarity import Array

# With p = .98 the first 50 neurons have 85% of the weight (Webber et al., equation 21): between the top 10 and the
# whole ranking, and about where taking neurons away begins to cost the built-in model its accuracy.
PERSISTENCE = 0.98
TOP = 10
PERMUTATIONS = 1999


@dataclass(frozen=True)
class Agreement:
    """One statistic of two scorings; NaN where it is undefined or was not measured.

    Args:
        statistic: Name of the statistic.
        value: In 0..1 for overlap and rank-biased overlap, in -1..1 for Spearman and Kendall.
        low: Lower end of the value's interval over resampled sentences.
        high: Upper end of that interval.
        chance: Mean of the statistic under chance.
        chance_low: Lower end of the interval that holds 95 of 100 values under chance.
        chance_high: Upper end of that interval.
        p_value: One-sided p-value, not corrected for multiple tests.
        n_neurons: Number of neurons compared.
        null: The statistic under shuffled labels of the first task, and of the second, shape (2, n_draws); None if no
            rankings under such labels were given.
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
    """Return the statistics of two scorings, in the order of `STATISTICS`.

    Where either scoring is constant it ranks nothing, and every statistic is NaN.

    Args:
        scores_a: Scores of the first side, higher is better, 0 is dead, shape (n,).
        scores_b: Scores of the same neurons in the same order, or of those they were matched with, shape (n,).
        k: Size of the top.
        persistence: p of rank-biased overlap; the higher it is, the more of the ranking counts.
        groups: The neuron of the other model that each neuron was matched with, shape (n,). Needed if several neurons
            have the same partner: they then have the same score in every permutation too.
        draws: Scores of each side on resampled sentences, both of shape (n_draws, n). Row i is compared with row i, so
            runs on the same corpus should use the same sentences in each row.
        unrelated: Pairs of scorings that were obtained in the same way and are unrelated, both of a pair of the same
            length.
        shuffled: Scores of the same neurons under shuffled labels of the first task, and of the second, both of shape
            (n_draws, n). They then define chance, and nothing is permuted.
        permutations: Number of permutations. The smallest p-value is 1 / (1 + permutations); see `permutations_for`.
        seed: Seed of the permutations. Comparisons of equally many neurons share them, so that 49 pairs of layers cost
            little more than one.

    Raises:
        ValueError: If the shapes do not fit, a score is not finite, there are fewer than two neurons, k is not in
            1..n, the persistence not between 0 and 1, or the neurons of a group differ in their score.
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
    if shuffled is not None:
        if (shapes := {x.shape for x in shuffled}) != {(len(shuffled[0]), len(a))}:
            raise ValueError(f"shuffled: expected both of shape (n_draws, {len(a)}), found {sorted(shapes)}")
        return [_against_shuffled(name, a, b, ends[name], shuffled, settings) for name in STATISTICS]
    return [_one(name, a, b, group, ends[name], unrelated, settings) for name in STATISTICS]


def permutations_for(n_tests: int) -> int:
    """Return a number of permutations whose smallest p-value stays below .025 after `holm` corrects for `n_tests`."""
    return max(PERMUTATIONS, 40 * n_tests)


def holm(p_values: Sequence[float] | Array) -> Array:
    """Return p-values corrected for multiple tests (Holm 1979), under any dependence between the tests.

    Correct each statistic by itself over the pairs of layers: the statistics are four views of one question and none
    is selected for being the best, but pairs of layers are selected.

    Args:
        p_values: Shape (n,). NaN stands for no test and stays NaN.
    """
    p = np.asarray(p_values, dtype=np.float64)
    tested = np.flatnonzero(~np.isnan(p))
    order = tested[np.argsort(p[tested], kind="stable")]
    corrected = np.full(p.shape, np.nan)
    corrected[order] = np.maximum.accumulate(np.arange(len(order), 0, -1) * p[order]).clip(max=1)
    return corrected


def _one(
    name: Statistic,
    a: Array,
    b: Array,
    group: NDArray[np.int64],
    ends: tuple[float, float],
    unrelated: Sequence[tuple[Array, Array]],
    settings: Settings,
) -> Agreement:
    kept, nan = compared(name, a, b), float("nan")
    value = _value(name, a, b, settings)
    if np.isnan(value):
        return Agreement(name, nan, nan, nan, nan, nan, nan, nan, int(kept.sum()))
    rotated = [_value(name, *pair, settings) for pair in unrelated]
    by_chance = chance(name, value, a[kept], b[kept], group[kept], rotated, settings)
    return Agreement(name, value, *ends, *by_chance, int(kept.sum()))


def _against_shuffled(
    name: Statistic, a: Array, b: Array, ends: tuple[float, float], shuffled: tuple[Array, Array], settings: Settings
) -> Agreement:
    kept, value, nan = compared(name, a, b), _value(name, a, b, settings), float("nan")
    null = np.stack([
        similarities(name, b, shuffled[0], settings), similarities(name, a, shuffled[1], settings)
    ])  # fmt: skip
    if np.isnan(value):
        return Agreement(name, nan, nan, nan, nan, nan, nan, nan, int(kept.sum()), null)
    return Agreement(name, value, *ends, *label_chance(value, null), int(kept.sum()), null)


def _value(name: Statistic, a: Array, b: Array, settings: Settings) -> float:
    return float(similarities(name, a, b[None], settings)[0])


def _intervals(
    a: Array, b: Array, draws: tuple[Array, Array], settings: Settings
) -> dict[Statistic, tuple[float, float]]:
    """Return each statistic's interval: the spread of its resampled values, laid around its value."""
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
