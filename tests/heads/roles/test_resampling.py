"""Links are held against resampled placements: chance gives uniform p-values, and a planted head is found."""

from __future__ import annotations

import numpy as np

from probing.heads.roles.resampling import Resampled, at_one_length


def test_what_lengths_explain_is_that_of_least_squares_with_a_mean_for_each_kind() -> None:
    generator = np.random.default_rng(7)
    stratum, lengths = generator.integers(0, 6, 80) * 3, generator.integers(5, 15, 80)
    linked = generator.random(80) < 0.3
    values = (generator.random((80, 2, 3)) + 4 / lengths[:, None, None] + stratum[:, None, None]).astype(np.float32)
    found = at_one_length(values, linked, stratum, lengths)
    kinds = sorted(set(stratum.tolist()))
    design = np.array([[1 / n, *(float(k == kind) for kind in kinds)] for k, n in zip(stratum, lengths, strict=True)])
    slope = np.linalg.lstsq(design, values.reshape(80, -1).astype(np.float64))[0][0].reshape(2, 3)
    centre = np.mean([1 / n for n, link in zip(lengths, linked, strict=True) if link])
    expected = [value - slope * (1 / n - centre) for value, n in zip(values.astype(np.float64), lengths, strict=True)]
    np.testing.assert_allclose(found, expected, atol=1e-10)
    np.testing.assert_allclose(found[linked].mean(0), values[linked].astype(np.float64).mean(0))
    np.testing.assert_array_equal(at_one_length(values, linked, stratum, np.full(80, 9)), values)


def test_links_at_random_have_small_p_values_as_seldom_as_they_say_and_a_planted_head_is_found() -> None:
    generator, smallest = np.random.default_rng(0), []
    for _ in range(200):
        stratum, linked = generator.integers(0, 4, 120), generator.random(120) < 0.3
        values = generator.standard_normal((120, 2, 2, 3)) + stratum[:, None, None, None]
        smallest.append(Resampled.of(values, linked, stratum, 0, 39).p_value.min())
    # Five per cent within four binomial standard errors at n = 200.
    assert np.mean(np.array(smallest) <= 0.05) < 0.05 + 4 * (0.05 * 0.95 / 200) ** 0.5
    values[linked, 1, 0, 2] += 1.5
    found = Resampled.of(values, linked, stratum, 0, 39)
    assert found.p_value[1, 0, 2] == found.p_value.min() == 1 / 40
    assert found.n_linked == linked.sum()
