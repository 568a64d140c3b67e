"""Shares and deviations of outliers against tables made by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probing.results.rows import Table
from probing.runs.study import Result
from probing.studies.claims.measures.position import (
    _wilson,
    change_over_texts,
    extreme_share,
    layers_of,
    layers_of_outliers,
    least_deviation,
    least_share_beyond,
    n_sentences,
    outliers_of_some_layers,
)
from probing.studies.claims.measures.registry import NotMeasurable, Subject
from written import results_of

pytestmark = pytest.mark.numeric


def run(means: list[list[float]], shares: list[list[float]] | None = None, n: int = 400, sd: float = 1.0) -> Result:
    """Return a run with these means, and shares of tokens with the minimum, of each layer and neuron."""
    rows = [
        {
            "layer": layer, "neuron": k, "mean": mean, "sd": sd, "cosine_share": 0.0, "argmax_share": 0.0,
            "argmin_share": shares[layer][k] if shares else 0.0,
        }
        for layer, those in enumerate(means)
        for k, mean in enumerate(those)
    ]  # fmt: skip
    one = {"layer": 0, "transform": "none", "measure": "mean_cosine_one_per_sentence", "value": 0.1, "n_tokens": n}
    none = Table()
    return results_of(
        "geometry", Path("g"), {"special_tokens": "exclude"}, {}, Table([one]), none, Table(rows), none, none
    )


def subject(geometry: Result, **published: int) -> Subject:
    return Subject("m", {"geometry": geometry}, published)


def test_a_share_is_the_mean_over_the_layers_above_the_embeddings() -> None:
    shares = [[0.0, 1.0, 0.0], [0.9, 0.1, 0.0], [0.7, 0.0, 0.3]]
    found = extreme_share(subject(run([[0.0] * 3] * 3, shares), minimum=0), "minimum")
    assert found.value == pytest.approx(0.8)
    assert found.control == pytest.approx(0.15)
    assert found.neurons == (0,)
    # Wilson's interval (1927): the shares p with (p_hat - p)^2 = z^2 p (1 - p) / n.
    for end in (found.low, found.high):
        assert abs(0.8 - end) == pytest.approx(1.959964 * math.sqrt(end * (1 - end) / 400))
    assert found.low < 0.8 < found.high


def test_tokens_that_have_the_outlier_are_counted_in_the_layer_where_they_are_fewest() -> None:
    geometry = run([[0.0] * 3] * 3)
    with pytest.raises(NotMeasurable, match="of an earlier version"):
        least_share_beyond(subject(geometry, minimum=0), "minimum")
    for row, share in zip(geometry.dimensions, (0.1, 0.9, 0.9, 0.95, 0.0, 0.0, 0.8, 0.2, 0.3), strict=True):
        row["beyond_share"] = share
    found = least_share_beyond(subject(geometry, minimum=0), "minimum")
    assert (found.value, found.control, (found.low, found.high)) == (0.8, 0.3, _wilson(0.8, 400))
    with pytest.raises(NotMeasurable, match="has no neuron 9"):
        least_share_beyond(subject(geometry, minimum=9), "minimum")


def test_shares_on_three_texts_are_compared_with_the_first() -> None:
    texts = [[[0.0] * 3, [share, 0.3, 0.0], [share, 0.3, 0.0]] for share in (0.5, 0.45, 0.6)]
    runs = [run([[0.0] * 3] * 3, shares) for shares in texts]
    three = dict(zip(("geometry", "elsewhere", "third"), runs, strict=True))
    found = change_over_texts(Subject("m", three, {"minimum": 0}))
    first, third = (_wilson(share, 400) for share in (0.5, 0.6))
    assert found.value == pytest.approx(0.1)
    assert (found.low, found.high) == pytest.approx((max(0.0, third[0] - first[1]), third[1] - first[0]))
    assert (found.control, found.neurons) == (0, (0,))
    other = {**three, "third": run([[0.0] * 3] * 3, [[0.0] * 3, [0.2, 0.3, 0.0], [0.2, 0.3, 0.0]])}
    assert change_over_texts(Subject("m", other, {"minimum": 0})).control == 1


@pytest.mark.parametrize(("share", "n"), [(0.0, 10), (1.0, 10), (0.5, 7)])
def test_the_interval_of_a_share_stays_within_0_and_1(share: float, n: int) -> None:
    low, high = _wilson(share, n)
    assert 0 <= low <= share <= high <= 1
    assert low < high


def test_the_least_deviation_is_that_of_the_layer_where_an_outlier_is_nearest() -> None:
    means = [[0.0, 0.1, -0.1, 0.2], [-5.0, 0.1, -0.1, 0.2], [-3.0, 0.1, -0.1, 2.0]]
    found = least_deviation(subject(run(means, sd=0.5), minimum=0))
    z = [(np.array(those) - np.mean(those)) / np.std(those) for those in means]
    assert found.value == pytest.approx(-max(z[1][0], z[2][0]))
    layer = 1 + int(np.argmax([z[1][0], z[2][0]]))
    assert found.high - found.value == pytest.approx(1.959964 * 0.5 / math.sqrt(400) / np.std(means[layer]))
    assert found.control == pytest.approx(np.abs(z[layer][1:]).max())


def test_a_deviation_on_the_other_side_is_negative() -> None:
    means = [[0.0] * 5, [4.0, 0.0, 0.1, -0.1, 0.0]]
    assert least_deviation(subject(run(means), maximum=0)).value > 1.9
    assert least_deviation(subject(run(means), minimum=0)).value < -1.9


def test_a_neuron_that_the_model_does_not_have_is_not_measured() -> None:
    with pytest.raises(NotMeasurable, match="has no neuron 557"):
        least_deviation(subject(run([[0.0] * 5] * 2), minimum=557))
    with pytest.raises(NotMeasurable, match="has no neuron 557"):
        extreme_share(subject(run([[0.0] * 5] * 2, [[0.0] * 5] * 2), minimum=557), "minimum")


def test_layers_are_those_in_which_a_neuron_stands_out() -> None:
    plain = [0.01 * (-1) ** k for k in range(60)]
    means = [plain] + [
        [9.0 if k == 3 and layer < 4 else value for k, value in enumerate(plain)] for layer in range(1, 6)
    ]
    one = Subject("m", {"geometry": run(means)})
    assert layers_of_outliers(one, {"m": {3: "1-3"}}).value == 1
    assert layers_of_outliers(one, {"m": {3: "1-4"}}).value == pytest.approx(3 / 4)
    assert layers_of_outliers(one, {"m": {3: "2-3", 5: "1"}}).value == 0
    with pytest.raises(NotMeasurable, match="no layers of outliers of m are published"):
        layers_of_outliers(one, {"bert-large": {3: "1-3"}})


def test_outliers_of_some_layers_are_neither_in_all_layers_nor_in_the_embeddings_alone() -> None:
    plain = [0.01 * (-1) ** k for k in range(90)]
    where = {3: {1, 2}, 7: {0, 4}, 11: {1, 2, 3, 4}, 20: {0}}
    means = [[9.0 if layer in where.get(k, ()) else value for k, value in enumerate(plain)] for layer in range(5)]
    found = outliers_of_some_layers(subject(run(means)))
    assert (found.value, found.low, found.high, found.control, found.neurons) == (2, 2, 2, 1, (3, 7))
    none = outliers_of_some_layers(subject(run([plain] * 5)))
    assert (none.value, none.control, none.neurons) == (0, 0, ())


@pytest.mark.parametrize(
    ("text", "layers"), [("all", [1, 2, 3]), ("2", [2]), (2, [2]), ("2-9", [2, 3]), ("5-9", []), ("1-2", [1, 2])]
)
def test_layers_end_with_the_model(text: Any, layers: list[int]) -> None:
    assert list(layers_of(text, 3)) == layers


def test_sentences_are_counted_by_the_tokens_that_are_sampled_of_each() -> None:
    assert n_sentences(run([[0.0]], n=17)) == 17
