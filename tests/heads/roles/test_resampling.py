"""Links are held against drawn placements: chance gives uniform p-values, and a planted head is found."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from math import comb, prod

import numpy as np
import pytest

from probing.heads.roles import Placements, Resampled, at_one_length, draw, slope_of

pytestmark = pytest.mark.numeric


def placements(stratum: np.ndarray, linked: np.ndarray, log_ways: np.ndarray) -> Placements:
    """Return placements of one pair each."""
    return Placements(np.arange(len(linked))[:, None], stratum, linked, np.full(len(linked), 9), log_ways, 0)


def test_what_lengths_explain_is_that_of_least_squares_with_a_mean_for_each_kind() -> None:
    generator = np.random.default_rng(7)
    stratum, lengths = generator.integers(0, 6, 80) * 3, generator.integers(5, 15, 80)
    made = placements(stratum, generator.random(80) < 0.3, np.zeros(80))
    values = generator.random((80, 2, 3)) + 4 / lengths[:, None, None] + stratum[:, None, None]
    found = at_one_length(values, replace(made, lengths=lengths))
    kinds = sorted(set(stratum.tolist()))
    design = np.array([[1 / n, *(float(k == kind) for kind in kinds)] for k, n in zip(stratum, lengths, strict=True)])
    slope = np.linalg.lstsq(design, values.reshape(80, -1))[0][0].reshape(2, 3)
    centre = np.mean([1 / n for n, link in zip(lengths, made.linked, strict=True) if link])
    expected = [value - slope * (1 / n - centre) for value, n in zip(values, lengths, strict=True)]
    np.testing.assert_allclose(found, expected, atol=1e-10)
    np.testing.assert_allclose(found[made.linked].mean(0), values[made.linked].mean(0))
    np.testing.assert_array_equal(at_one_length(values, made), values)


@pytest.mark.parametrize("m", [1, 2, 4])
def test_choices_are_drawn_with_the_product_of_their_odds(m: int) -> None:
    log_odds = np.array([0.0, -1.0, 0.5, 2.0, -3.0])
    drawn = draw(log_odds, m, 40_000, np.random.default_rng(0))
    assert set(drawn.sum(1).tolist()) == {m}
    choices = list(combinations(range(5), m))
    weights = np.array([prod(np.exp(log_odds[list(choice)])) for choice in choices])
    seen = np.array([(drawn.nonzero()[1].reshape(-1, m) == choice).all(1).mean() for choice in choices])
    # Within five binomial standard errors.
    chance = weights / weights.sum()
    assert (np.abs(seen - chance) < 5 * np.sqrt(chance / 40_000) + 1e-9).all()
    # Odds of any size: only their ratios count.
    np.testing.assert_array_equal(draw(log_odds + 600, m, 99, np.random.default_rng(1)),
                                  draw(log_odds - 600, m, 99, np.random.default_rng(1)))  # fmt: skip


def test_the_slope_is_that_of_the_greatest_likelihood_over_all_choices() -> None:
    generator = np.random.default_rng(2)
    stratum, ways = np.repeat([3, 5, 9], 8), generator.random(24) * 3
    linked = np.tile([True, True, False, False, False, True, False, False], 3)

    def likelihood(slope: float) -> float:
        found = 0.0
        for kind in (3, 5, 9):
            own, is_link = slope * ways[stratum == kind], linked[stratum == kind]
            found += own[is_link].sum() - np.log(sum(np.exp(own[list(c)].sum()) for c in combinations(range(8), 3)))
        return found

    assert comb(8, 3) == 56
    slopes = np.linspace(-8, 8, 321)
    best = slopes[np.argmax([likelihood(slope) for slope in slopes])]
    assert slope_of(placements(stratum, linked, ways)) == pytest.approx(best, abs=0.03)
    assert slope_of(placements(stratum, linked, np.zeros(24))) == 0


def of_links(generator: np.random.Generator, slope: float) -> tuple[np.ndarray, Placements]:
    """Return values that grow with the number of ways, and links that are made with odds `ways` ** slope."""
    stratum, ways = generator.integers(0, 4, 160), generator.random(160) * 3
    linked = generator.random(160) < 1 / (1 + 2 * np.exp(-slope * (ways - 1.5)))
    values = generator.standard_normal((160, 2, 2, 3)) - (ways + stratum)[:, None, None, None]
    return values.astype(np.float32), placements(stratum, linked, ways)


@pytest.mark.slow
@pytest.mark.parametrize("slope", [-1.5, 0.0, 1.0])
def test_links_that_depend_on_the_ways_alone_are_seldom_significant_and_a_planted_head_is(slope: float) -> None:
    generator, smallest, equal_odds = np.random.default_rng(0), [], []
    for _ in range(100):
        values, made = of_links(generator, slope)
        smallest.append(Resampled.of(values, made, 0, 39).p_value.min())
        blind = placements(made.stratum, made.linked, np.zeros(160))
        equal_odds.append(Resampled.of(values, blind, 0, 39).p_value.min())
    # Five per cent within four binomial standard errors at n = 100.
    assert np.mean(np.array(smallest) <= 0.05) < 0.05 + 4 * (0.05 * 0.95 / 100) ** 0.5
    if slope < 0:
        assert np.mean(np.array(equal_odds) <= 0.05) > 0.9
    values[made.linked, 1, 0, 2] += 1.5
    found = Resampled.of(values, made, 0, 39)
    assert found.p_value[1, 0, 2] == found.p_value.min() == 1 / 40


def test_unlinked_is_the_mean_by_kind_and_odds() -> None:
    stratum = np.array([0, 0, 0, 1, 1])
    linked = np.array([True, False, False, False, True])
    ways = np.log([2.0, 3.0, 9.0, 7.0, 7.0])
    values = np.arange(10, dtype=np.float32).reshape(5, 2, 1, 1)
    made = placements(stratum, linked, ways)
    slope = slope_of(made)
    odds = np.array([3.0, 9.0]) ** slope
    of_first = (odds @ values[1:3, :, 0, 0]) / odds.sum()
    np.testing.assert_allclose(
        Resampled.of(values, made, 0, 9).unlinked[:, 0, 0], (of_first + values[3, :, 0, 0]) / 2, rtol=1e-12
    )
