"""Measures of anisotropy and self-similarity against tables made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from scipy.stats import spearmanr

from probing.results.rows import Table
from probing.studies.claims.measures import layers
from probing.studies.claims.measures.registry import NotMeasurable, Subject
from written import results_of

pytestmark = pytest.mark.numeric

WIDTH = 0.01


def subject(dimensions: list[tuple[int, int, float, float, float]] = [], **values: list[float | None]) -> Subject:  # noqa: B006
    """Return a model with these values of a transform's measure, `TRANSFORM__MEASURE`, from layer 0 on.

    Args:
        dimensions: Layer, neuron, mean, sd and share of the mean cosine.
        values: The values; None where there is no row.
    """
    rows = [
        {"layer": layer, "transform": name.split("__")[0], "measure": name.split("__")[1], "value": value,
         "low": value - WIDTH, "high": value + WIDTH}
        for name, those in values.items()
        for layer, value in enumerate(those)
        if value is not None
    ]  # fmt: skip
    names = ("layer", "neuron", "mean", "sd", "cosine_share")
    none, table = Table(), Table(dict(zip(names, one, strict=True)) for one in dimensions)
    run = results_of("geometry", Path("g"), {"special_tokens": "exclude"}, {}, Table(rows), none, table, none, none)
    return Subject("m", {"geometry": run, "held_out": run}, {"minimum": 0, "maximum": 1})


def test_growth_is_spearmans_correlation_with_the_layer() -> None:
    values: list[float | None] = [0.1, 0.3, 0.2, 0.4, 0.4]
    found = layers.growth(subject(none__mean_cosine=values), "mean_cosine")
    assert found.value == pytest.approx(spearmanr(range(5), values).statistic)
    assert layers.growth(subject(none__mean_cosine=[3, 2, 1]), "mean_cosine").value == pytest.approx(-1)
    with pytest.raises(NotMeasurable, match="fewer than three layers have a mean cosine"):
        layers.growth(subject(none__mean_cosine=[1, 1, 2]), "mean_cosine")


def test_the_least_mean_cosine_has_the_interval_of_its_layer() -> None:
    one = subject(none__mean_cosine=[0.05, 0.1, 0.4, 0.3])
    found = layers.least_mean_cosine(one, first_layer=2)
    assert (found.value, found.low, found.high, found.control) == (0.3, 0.3 - WIDTH, 0.3 + WIDTH, 0.05)
    assert layers.least_mean_cosine(one).value == 0.1
    with pytest.raises(NotMeasurable, match="layers from 4 on"):
        layers.least_mean_cosine(one, first_layer=4)


def test_clipped_states_are_those_of_layers_with_outliers_and_the_control_is_what_others_change() -> None:
    one = subject(
        none__mean_cosine=[0.9, 0.5, 0.6, 0.7], clip__mean_cosine=[0.8, None, 0.2, 0.1],
        clip_random__mean_cosine=[0.1, None, 0.61, 0.68],
    )  # fmt: skip
    found = layers.clipped_mean_cosine(one)
    assert (found.value, found.low, found.high) == (0.2, 0.2 - WIDTH, 0.2 + WIDTH)
    assert found.control == pytest.approx(0.02)
    assert layers.least_clipped_mean_cosine(one).value == 0.1


def test_without_outliers_nothing_is_clipped() -> None:
    one = subject(none__mean_cosine=[0.9, 0.5], clip__mean_cosine=[0.8])
    for measure in (
        layers.clipped_mean_cosine, layers.least_clipped_mean_cosine, layers.share_removed_by_clipping,
        layers.least_removed_by_clipping,
    ):  # fmt: skip
        with pytest.raises(NotMeasurable, match="no layer above the embeddings has an outlier"):
            measure(one)


def test_the_share_removed_is_the_median_over_all_layers_above_the_embeddings() -> None:
    one = subject(
        none__mean_cosine=[0.9, 0.5, 0.5, 0.5], clip__mean_cosine=[0.0, 0.4, 0.1, None],
        clip_random__mean_cosine=[0.0, 0.5, 0.45, None],
    )  # fmt: skip
    found = layers.share_removed_by_clipping(one)  # of .2, .8 and 0
    assert found.value == pytest.approx(0.2)
    assert found.low == pytest.approx(0.2 - WIDTH / 0.5)
    assert found.high == pytest.approx(0.2 + WIDTH / 0.5)
    assert found.control == pytest.approx(0.0)


def test_what_clipping_takes_off_is_0_in_a_layer_without_an_outlier() -> None:
    one = subject(none__mean_cosine=[0.9, 0.7, 0.8], clip__mean_cosine=[None, 0.1, 0.1])
    found = layers.least_removed_by_clipping(one)
    assert found.value == pytest.approx(0.6)
    assert (found.low, found.high) == pytest.approx((0.6 - 2 * WIDTH, 0.6 + 2 * WIDTH))
    less = subject(none__mean_cosine=[0.9, 0.7, 0.8], clip__mean_cosine=[None, 0.1, None])
    assert layers.least_removed_by_clipping(less).value == 0


def test_the_gain_of_self_similarity_is_that_of_clipped_states_over_plain_ones() -> None:
    one = subject(none__self_similarity_adjusted=[0.9, 0.5, 0.4], clip__self_similarity_adjusted=[0.1, 0.7, 0.5])
    found = layers.least_gain_of_self_similarity(one)
    assert found.value == pytest.approx(0.1)
    assert found.low == pytest.approx(0.1 - 2 * WIDTH)
    lost = subject(none__self_similarity_adjusted=[0.9, 0.5, 0.4], clip__self_similarity_adjusted=[0.1, 0.7, 0.3])
    assert layers.least_gain_of_self_similarity(lost).value == pytest.approx(-0.1)


DIMENSIONS = [
    (0, 0, 1.0, 9.0, 0.1), (0, 1, 1.0, 9.0, 0.1), (0, 2, 1.0, 0.1, 0.9),
    (1, 0, -4.0, 1.0, 0.5), (1, 1, 2.0, 1.0, 0.1), (1, 2, 1.0, 3.0, 0.3),
    (2, 0, -4.0, 0.4, 0.1), (2, 1, 5.0, 1.5, 0.2), (2, 2, 0.0, 3.0, 0.3),
]  # fmt: skip


def test_the_rank_in_cosines_is_the_lowest_over_layers_of_the_first_outlier() -> None:
    found = layers.rank_in_cosines(subject(DIMENSIONS))
    assert found.value == 2  # in layer 1 neuron 0 is first, in layer 2 neuron 1 is second
    assert found.neurons == (0, 1)
    assert layers.rank_in_cosines(subject(DIMENSIONS), ["minimum"]).value == 3


def test_variation_is_the_most_over_layers_above_the_embeddings() -> None:
    found = layers.variation_of_outlier(subject(DIMENSIONS))
    assert found.value == pytest.approx(0.5)
    assert found.control == pytest.approx(3.0)
    assert layers.variation_of_outlier(subject(DIMENSIONS), ["minimum"]).value == pytest.approx(0.25)


def test_whitened_cosines_count_by_their_magnitude() -> None:
    found = layers.largest_whitened_mean_cosine(subject(whiten__mean_cosine=[0.9, -0.04, 0.03]))
    assert found.value == 0.04
    assert (found.low, found.high) == pytest.approx((0.03, 0.05))
    near = layers.largest_whitened_mean_cosine(subject(whiten__mean_cosine=[0.9, -0.004]))
    assert (near.low, near.high) == pytest.approx((0, 0.014))
