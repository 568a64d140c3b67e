"""Measures of anisotropy, outliers, norms, similar tokens and positions, against tables made by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import linregress, rankdata, spearmanr

from planted_claims import with_interval
from probing.results import Table
from probing.runs import Result
from probing.runs.run import Run
from probing.studies.claims import measures as layers
from probing.studies.claims.measures import position as measures
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
from probing.studies.claims.measures.registry import ModelRuns, NotMeasurable
from written import results_of

pytestmark = pytest.mark.numeric

WIDTH = 0.01


def subject(dimensions: list[tuple[int, int, float, float, float]] = [], **values: list[float | None]) -> ModelRuns:  # noqa: B006
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
    return ModelRuns("m", {"geometry": run, "held_out": run}, {"minimum": 0, "maximum": 1})


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


def extremes_subject(geometry: Result, **published: int) -> ModelRuns:
    return ModelRuns("m", {"geometry": geometry}, published)


def test_a_share_is_the_mean_over_the_layers_above_the_embeddings() -> None:
    shares = [[0.0, 1.0, 0.0], [0.9, 0.1, 0.0], [0.7, 0.0, 0.3]]
    found = extreme_share(extremes_subject(run([[0.0] * 3] * 3, shares), minimum=0), "minimum")
    assert found.value == pytest.approx(0.8)
    assert found.control == pytest.approx(0.15)
    assert found.neurons == (0,)
    # Wilson's interval (1927): the shares p with (p_hat - p)^2 = z^2 p (1 - p) / n.
    for end in (found.low, found.high):
        assert abs(0.8 - end) == pytest.approx(1.959964 * math.sqrt(end * (1 - end) / 400))
    assert found.low < 0.8 < found.high


def test_tokens_that_have_the_outlier_are_counted_in_the_layer_where_they_are_fewest() -> None:
    geometry = run([[0.0] * 3] * 3)
    for row, share in zip(geometry.dimensions, (0.1, 0.9, 0.9, 0.95, 0.0, 0.0, 0.8, 0.2, 0.3), strict=True):
        row["beyond_share"] = share
    found = least_share_beyond(extremes_subject(geometry, minimum=0), "minimum")
    assert (found.value, found.control, (found.low, found.high)) == (0.8, 0.3, _wilson(0.8, 400))
    with pytest.raises(NotMeasurable, match="has no neuron 9"):
        least_share_beyond(extremes_subject(geometry, minimum=9), "minimum")


def test_shares_on_three_texts_are_compared_with_the_first() -> None:
    texts = [[[0.0] * 3, [share, 0.3, 0.0], [share, 0.3, 0.0]] for share in (0.5, 0.45, 0.6)]
    runs = [run([[0.0] * 3] * 3, shares) for shares in texts]
    three = dict(zip(("geometry", "elsewhere", "third"), runs, strict=True))
    found = change_over_texts(ModelRuns("m", three, {"minimum": 0}))
    first, third = (_wilson(share, 400) for share in (0.5, 0.6))
    assert found.value == pytest.approx(0.1)
    assert (found.low, found.high) == pytest.approx((max(0.0, third[0] - first[1]), third[1] - first[0]))
    assert (found.control, found.neurons) == (0, (0,))
    other = {**three, "third": run([[0.0] * 3] * 3, [[0.0] * 3, [0.2, 0.3, 0.0], [0.2, 0.3, 0.0]])}
    assert change_over_texts(ModelRuns("m", other, {"minimum": 0})).control == 1


@pytest.mark.parametrize(("share", "n"), [(0.0, 10), (1.0, 10), (0.5, 7)])
def test_the_interval_of_a_share_stays_within_0_and_1(share: float, n: int) -> None:
    low, high = _wilson(share, n)
    assert 0 <= low <= share <= high <= 1
    assert low < high


def test_the_least_deviation_is_that_of_the_layer_where_an_outlier_is_nearest() -> None:
    means = [[0.0, 0.1, -0.1, 0.2], [-5.0, 0.1, -0.1, 0.2], [-3.0, 0.1, -0.1, 2.0]]
    found = least_deviation(extremes_subject(run(means, sd=0.5), minimum=0))
    z = [(np.array(those) - np.mean(those)) / np.std(those) for those in means]
    assert found.value == pytest.approx(-max(z[1][0], z[2][0]))
    layer = 1 + int(np.argmax([z[1][0], z[2][0]]))
    assert found.high - found.value == pytest.approx(1.959964 * 0.5 / math.sqrt(400) / np.std(means[layer]))
    assert found.control == pytest.approx(np.abs(z[layer][1:]).max())


def test_a_deviation_on_the_other_side_is_negative() -> None:
    means = [[0.0] * 5, [4.0, 0.0, 0.1, -0.1, 0.0]]
    assert least_deviation(extremes_subject(run(means), maximum=0)).value > 1.9
    assert least_deviation(extremes_subject(run(means), minimum=0)).value < -1.9


def test_a_neuron_that_the_model_does_not_have_is_not_measured() -> None:
    with pytest.raises(NotMeasurable, match="has no neuron 557"):
        least_deviation(extremes_subject(run([[0.0] * 5] * 2), minimum=557))
    with pytest.raises(NotMeasurable, match="has no neuron 557"):
        extreme_share(extremes_subject(run([[0.0] * 5] * 2, [[0.0] * 5] * 2), minimum=557), "minimum")


def test_layers_are_those_in_which_a_neuron_stands_out() -> None:
    plain = [0.01 * (-1) ** k for k in range(60)]
    means = [plain] + [
        [9.0 if k == 3 and layer < 4 else value for k, value in enumerate(plain)] for layer in range(1, 6)
    ]
    one = ModelRuns("m", {"geometry": run(means)})
    assert layers_of_outliers(one, {"m": {3: "1-3"}}).value == 1
    assert layers_of_outliers(one, {"m": {3: "1-4"}}).value == pytest.approx(3 / 4)
    assert layers_of_outliers(one, {"m": {3: "2-3", 5: "1"}}).value == 0
    with pytest.raises(NotMeasurable, match="no layers of outliers of m are published"):
        layers_of_outliers(one, {"bert-large": {3: "1-3"}})


def test_outliers_of_some_layers_are_neither_in_all_layers_nor_in_the_embeddings_alone() -> None:
    plain = [0.01 * (-1) ** k for k in range(90)]
    where = {3: {1, 2}, 7: {0, 4}, 11: {1, 2, 3, 4}, 20: {0}}
    means = [[9.0 if layer in where.get(k, ()) else value for k, value in enumerate(plain)] for layer in range(5)]
    found = outliers_of_some_layers(extremes_subject(run(means)))
    assert (found.value, found.low, found.high, found.control, found.neurons) == (2, 2, 2, 1, (3, 7))
    none = outliers_of_some_layers(extremes_subject(run([plain] * 5)))
    assert (none.value, none.control, none.neurons) == (0, 0, ())


@pytest.mark.parametrize(
    ("text", "layers"), [("all", [1, 2, 3]), ("2", [2]), (2, [2]), ("2-9", [2, 3]), ("5-9", []), ("1-2", [1, 2])]
)
def test_layers_end_with_the_model(text: Any, layers: list[int]) -> None:
    assert list(layers_of(text, 3)) == layers


def test_sentences_are_counted_by_the_tokens_that_are_sampled_of_each() -> None:
    assert n_sentences(run([[0.0]], n=17)) == 17


D_MODEL = 10


def position(row: int, neuron: int, deviations: float, rank: int = 5, first_row: int = 0) -> dict[str, Any]:
    real = {"position": row - first_row} if row >= first_row else {}
    here = {"parameter": "position", "row": row, "neuron": neuron, "deviations": deviations, "rank": rank, **real}
    return {**here, "n_outliers": 10 * row}


def token(neuron: int, deviations: float) -> dict[str, Any]:
    return {"parameter": "mean_token", "neuron": neuron, "deviations": deviations, "rank": 5}


def norms(parameter: str, first: list[int], second: list[int]) -> list[dict[str, Any]]:
    """Return the ranks of neuron 7 in the norm of the embeddings, and in the first and the second of each block."""
    here = {"parameter": parameter, "neuron": 7, "deviations": 0.0}
    rows = [{**here, "layer": 0, "rank": 9}]
    for layer, ranks in enumerate(zip(first, second, strict=True), start=1):
        rows += [{**here, "rank": ranks[0]}, {**here, "layer": layer, "rank": ranks[1]}]
    return rows


def parameters_subject(
    parameters: list[dict[str, Any]], stream: dict[str, Table] | None = None, n_layers: int = 0, **published: int
) -> ModelRuns:
    layers = range(n_layers + 1) if n_layers else [None]
    none, width = Table(), Table({"neuron": k, "layer": layer} for layer in layers for k in range(D_MODEL))
    run = results_of(
        "geometry", Path("g"), {"special_tokens": "exclude"}, {}, none, none, width, Table(parameters), none
    )
    other = results_of("geometry", Path("s"), {}, {}, none, none, none, none, none, **(stream or {}))
    return ModelRuns("m", {"geometry": run, "stream": other}, published or {"minimum": 7, "maximum": 8})


def test_outliers_of_the_first_position_are_counted_and_the_control_is_the_rank_of_the_own_one() -> None:
    path = Table({"neuron": k, "kind": kind} for k, kind in ((7, "both"), (7, "both"), (3, "first_row"), (4, "layers")))
    found = measures.outliers_of_first_position(
        parameters_subject([position(0, 7, -9, rank=10)], {"path": path}), "minimum"
    )
    assert (found.value, found.control) == (2, 1)
    other = measures.outliers_of_first_position(
        parameters_subject([position(0, 7, -9, rank=9)], {"path": path}), "minimum"
    )
    assert other.control == 2
    high = measures.outliers_of_first_position(
        parameters_subject([position(0, 8, 9, rank=3)], {"path": path}), "maximum"
    )
    assert high.control == 3


def test_other_rows_are_those_of_other_positions_and_that_of_tokens() -> None:
    rows = [position(0, 7, -12), position(1, 7, 0.1), position(2, 7, 6), position(3, 7, -6), token(7, -5.5)]
    found = measures.other_rows_with_outlier(parameters_subject([*rows, position(1, 8, 9)]), "minimum")
    assert (found.value, found.control) == (3, 12)
    none = measures.other_rows_with_outlier(parameters_subject([*rows[:2], token(7, 1.0)]), "minimum")
    assert none.value == 0
    segments = [{"parameter": "segment", "row": row, "neuron": 7, "deviations": z} for row, z in enumerate((6, -2))]
    assert (
        measures.other_rows_with_outlier(parameters_subject([*rows[:2], token(7, 1.0), *segments]), "minimum").value
        == 1
    )


def test_rows_that_no_position_uses_are_not_counted() -> None:
    rows = [position(row, 7, -9, first_row=2) for row in range(5)]
    assert (
        measures.other_rows_with_outlier(parameters_subject([*rows, token(7, 0)]), "minimum").value == 2
    )  # rows 3 and 4


def test_of_several_rows_the_one_with_the_farthest_outliers_counts() -> None:
    rows = [position(3, 7, -6), position(3, 8, 2), position(5, 7, -9), position(5, 8, 7), position(4, 7, -50)]
    roles: Any = ["minimum", "maximum"]
    found = measures.deviation_in_rows(parameters_subject(rows), roles, [3, 5])
    assert (found.value, found.control) == (7, 50)
    assert measures.deviation_in_rows(parameters_subject(rows), roles, [3]).value == 2
    with pytest.raises(NotMeasurable, match="no row 9"):
        measures.deviation_in_rows(parameters_subject(rows), roles, [9])


def test_a_share_of_rows_is_of_those_from_one_on() -> None:
    rows = [position(row, 8, 1, rank=1 if row in (0, 3, 4) else 2) for row in range(6)]
    assert measures.share_of_rows(parameters_subject(rows), "maximum", 3).value == pytest.approx(2 / 3)
    lowest = [position(row, 7, 1, rank=D_MODEL) for row in range(4)]
    assert measures.share_of_rows(parameters_subject(lowest), "minimum", 0).value == 1


def test_ranks_are_those_of_the_norm_and_the_layers_that_are_asked_for() -> None:
    one = parameters_subject(norms("gain", [1, 3, 9], [9, 9, 1]))
    ranks: Any = measures.ranks_in_norms
    assert ranks(one, "minimum", 1, "gain", {"1-10": 6}).value == pytest.approx(2 / 3)
    assert ranks(one, "minimum", 1, "gain", {"1-10": 6, "1": 1}).value == pytest.approx(3 / 4)
    assert ranks(one, "minimum", 2, "gain", {"3-9": 1}).value == 1
    assert ranks(one, "minimum", 2, "gain", {"all": 8}).value == pytest.approx(1 / 3)
    with pytest.raises(NotMeasurable, match="two norms with a bias"):
        ranks(one, "minimum", 1, "bias", {"all": 2})
    with pytest.raises(NotMeasurable, match="neuron 8 is no outlier"):
        ranks(one, "maximum", 1, "gain", {"all": 2})


def test_norms_that_all_blocks_share_have_their_ranks_in_every_layer() -> None:
    ranks: Any = measures.ranks_in_norms
    shared = parameters_subject(norms("gain", [3], [9]), n_layers=4)
    assert ranks(shared, "minimum", 1, "gain", {"1-10": 6, "1-3": 1}).value == pytest.approx(4 / 7)
    assert ranks(shared, "minimum", 2, "gain", {"2-10": 9}).value == 1
    with pytest.raises(NotMeasurable, match="none of its layers up to 1"):
        ranks(parameters_subject(norms("gain", [3], [9]), n_layers=1), "minimum", 2, "gain", {"2-10": 7})


def test_blocks_with_one_norm_have_no_first_one() -> None:
    rows = [row for row in norms("gain", [1, 3], [9, 9]) if "layer" in row]
    with pytest.raises(NotMeasurable, match="two norms with a gain"):
        measures.ranks_in_norms(parameters_subject(rows), "minimum", 1, "gain", {"all": 2})


def changes(*values: tuple[int, str, str, float]) -> Table:
    """Return changes of norms of neuron 7, an outlier of layers 1 and 2 of three: layer, kind, norm, deviation."""
    about = {"measure": "deviations", "neuron": 7}
    intact = [{**about, "layer": k, "kind": "intact", "value": -9.0, "outlier": "yes"} for k in (1, 2)]
    below = {**about, "layer": 3, "kind": "intact", "value": -4.0, "outlier": "no"}
    names = ("layer", "kind", "where", "value")
    changed = [{**about, **dict(zip(names, one, strict=True))} for one in values]
    return Table([*intact, below, {"measure": "mlm_loss", "kind": "intact", "value": 1.0}, *changed])


def test_what_is_left_with_ordinary_norms_is_the_most_over_the_layers_of_the_outlier() -> None:
    table = changes(
        (1, "outliers", "both", -2.0), (2, "outliers", "both", -4.0), (3, "outliers", "both", -20.0),
        (1, "outliers", "first", -30.0), (1, "random", "both", -8.0), (2, "random", "both", -7.0),
        (3, "random", "both", -1.0),
    )  # fmt: skip
    found = measures.deviation_with_ordinary_norms(parameters_subject([], {"norm_changes": table}), "minimum")
    assert (found.value, found.control) == (4, 7)
    with pytest.raises(NotMeasurable, match="could not be changed"):
        measures.deviation_with_ordinary_norms(parameters_subject([]), "minimum")


def test_what_is_left_without_the_first_row_is_the_most_over_the_layers_of_the_outlier() -> None:
    def row(layer: int, kind: str, value: float, neuron: int = 7) -> dict[str, Any]:
        outlier = "yes" if abs(value) > 5 else "no"
        return {"layer": layer, "neuron": neuron, "kind": kind, "value": value, "outlier": outlier}

    rows = [row(0, "intact", -9), row(0, "outliers", -9), row(1, "intact", -8), row(2, "intact", -7)]
    rows += [row(3, "intact", -4), row(3, "outliers", -12), row(1, "intact", 9, 8), row(1, "outliers", 9, 8)]
    rows += [row(1, "outliers", -3), row(2, "outliers", 2), row(1, "random", -8), row(2, "random", -6.5)]
    found = measures.deviation_without_first_row(parameters_subject([], {"first_row": Table(rows)}), "minimum")
    assert (found.value, found.control, found.neurons) == (3, 6.5, (7,))
    with pytest.raises(NotMeasurable, match="outlier of no layer"):
        measures.deviation_without_first_row(parameters_subject([], {"first_row": Table(rows)}, minimum=9), "minimum")
    with pytest.raises(NotMeasurable, match="no table of positions"):
        measures.deviation_without_first_row(parameters_subject([]), "minimum")


def test_models_without_a_table_are_not_measured() -> None:
    for measure in (measures.outliers_of_first_position, measures.other_rows_with_outlier):
        with pytest.raises(NotMeasurable, match="no table of positions"):
            measure(parameters_subject([token(7, 1)]), "minimum")
    with pytest.raises(NotMeasurable, match="neuron 7 is no outlier"):
        measures.other_rows_with_outlier(parameters_subject([position(0, 3, 1)]), "minimum")


def alike_subject(**tables: list[dict[str, Any]]) -> ModelRuns:
    empty = {name: Table() for name in ("geometry", "outliers", "dimensions", "parameters", "explained")}
    made = {**empty, **{name: Table(rows) for name, rows in tables.items()}}
    return ModelRuns("any", {"geometry": results_of("geometry", Path("geometry"), {}, {}, **made)})


def similarity(transform: str, **of_layers: float) -> list[dict[str, Any]]:
    return [
        {"layer": int(layer[1:]), "transform": transform, "measure": "token_similarity", **with_interval(value)}
        for layer, value in of_layers.items()
    ]


def test_the_last_layer_has_its_similarity_and_the_growth_as_control() -> None:
    one = alike_subject(geometry=similarity("none", L0=0.1, L1=0.5, L3=0.95, L2=0.3))
    found = layers.last_token_similarity(one)
    assert (found.value, found.low, found.high) == pytest.approx((0.95, 0.948, 0.952))
    assert found.control == pytest.approx(spearmanr(range(4), [0.1, 0.5, 0.3, 0.95]).statistic)


def test_growth_is_also_that_of_clipped_states_where_there_are_any() -> None:
    rows = [*similarity("none", L0=0.1, L1=0.2, L2=0.5, L3=0.6), *similarity("clip", L1=0.05, L2=0.01)]
    found = layers.growth_of_token_similarity(alike_subject(geometry=rows))
    assert found.value == pytest.approx(1)
    assert found.control == pytest.approx(spearmanr(range(4), [0.1, 0.05, 0.01, 0.6]).statistic)
    falls = layers.growth_of_token_similarity(alike_subject(geometry=similarity("none", L0=0.5, L1=0.3, L2=0.1)))
    assert (falls.value, falls.control) == pytest.approx((-1, -1))
    with pytest.raises(NotMeasurable, match="three layers"):
        layers.growth_of_token_similarity(alike_subject(geometry=similarity("none", L0=0.5, L1=0.3)))


def test_the_share_within_a_bound_is_the_least_over_blocks_and_its_control_how_near_sentences_come() -> None:
    shares = [
        {"layer": layer, "measure": f"share_within_{bound}", **with_interval(share)}
        for bound, values in (("bound", (1.0, 0.9, 1.0)), ("bound_published", (0.5, 0.5, 0.5)))
        for layer, share in enumerate(values, start=1)
    ]
    of_sentences = [
        {"layer": 1, "distance_before": 2.0, "distance_after": 3.0, "bound": 6.0},
        {"layer": 2, "distance_before": 2.0, "distance_after": 3.0, "bound": 5.0},
        {"layer": 2, "distance_before": 0.0, "distance_after": 0.0, "bound": 5.0},  # a single token
    ]
    found = layers.least_share_within_bound(alike_subject(smoothing=shares, smoothing_sentences=of_sentences), "bound")
    assert (found.value, found.low, found.high) == pytest.approx((0.9, 0.898, 0.902))
    assert found.control == pytest.approx(3 / 2 / 5)
    with pytest.raises(NotMeasurable, match="post-LN"):
        layers.least_share_within_bound(alike_subject(), "bound")


def test_the_reach_of_attention_is_the_largest_of_all_blocks_and_sentences() -> None:
    rows = [{"layer": i % 3, "attention_reach": reach} for i, reach in enumerate([0.3, 1.00000004, 0.8, math.nan])]
    assert layers.largest_reach_of_attention(alike_subject(smoothing_sentences=rows)).value == 1
    rows[0]["attention_reach"] = 1.01
    assert layers.largest_reach_of_attention(alike_subject(smoothing_sentences=rows)).value == 1.01
    with pytest.raises(NotMeasurable, match="post-LN"):
        layers.largest_reach_of_attention(alike_subject())
    with pytest.raises(NotMeasurable, match="later version"):
        layers.largest_reach_of_attention(alike_subject(smoothing_sentences=[*rows, {"layer": 1}]))


def sentences(n: int, noise: float, by_length: float) -> list[dict[str, Any]]:
    """Return terms of sentences: in a sentence of a given length, a larger product leaves less of the distance.

    Args:
        n: Number of sentences.
        noise: Standard deviation of what is left, beside both.
        by_length: How much more is left in shorter sentences, which also have larger products.
    """
    rng = np.random.default_rng(0)
    rows = []
    for i in range(n):
        length, own = int(rng.integers(5, 40)), rng.normal()
        left = -own - by_length * length / 10 + noise * rng.normal()
        terms = {"sigma_1": math.exp((own - length / 10) / 10), "sigma_2": 1.0}
        distances = {"distance_before": 2.0, "distance_after": 2 * math.exp(left / 10)}
        rows.append({"sentence": i, "layer": 3, "n_tokens": length, **terms, **distances})
        rows.append({"sentence": i, "layer": 2, "n_tokens": length, "sigma_1": float(i), "sigma_2": 1.0,
                     "distance_before": 1.0, "distance_after": float(i + 1)})  # fmt: skip
    return rows


def test_norms_and_smoothing_is_the_correlation_in_the_last_block() -> None:
    rows = [row for row in sentences(300, 0.5, 0.0) if row["layer"] == 3]
    found = layers.norms_and_smoothing(alike_subject(smoothing_sentences=sentences(300, 0.5, 0.0)))
    product, left, length = (
        [row[name] for row in rows] for name in ("sigma_1", "distance_after", "n_tokens")
    )  # sigma_2 and the distance before are the same for all
    assert found.value == pytest.approx(spearmanr(product, left).statistic)
    assert found.high < 0
    ranks = [rankdata(one) for one in (product, left, length)]
    residuals = [one - linregress(ranks[2], one).slope * ranks[2] for one in ranks[:2]]
    assert found.control == pytest.approx(np.corrcoef(*residuals)[0, 1])


def test_what_length_does_to_both_is_no_control_of_it() -> None:
    """Longer sentences have smaller products and less is left of them: more smoothing, with smaller products."""
    found = layers.norms_and_smoothing(alike_subject(smoothing_sentences=sentences(300, 0.1, 3.0)))
    assert found.low > 0
    assert found.control is not None
    assert found.control < -0.5


def test_the_interval_covers_the_correlation_of_many_sentences_and_null_ones_cover_0() -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(200):
        rows = [
            {"layer": 1, "n_tokens": 9, "sigma_1": a, "sigma_2": 1.0, "distance_before": 1.0, "distance_after": b}
            for a, b in rng.uniform(0.1, 1, (40, 2))
        ]
        found = layers.norms_and_smoothing(alike_subject(smoothing_sentences=rows))
        assert found.control == pytest.approx(found.value)  # all sentences are equally long
        covered += found.low <= 0 <= found.high
    assert covered >= 180  # 95% of 200, less three standard errors


def test_few_sentences_tell_nothing() -> None:
    with pytest.raises(NotMeasurable, match="at least 20 sentences"):
        layers.norms_and_smoothing(alike_subject(smoothing_sentences=sentences(19, 0.5, 0.0)))
    with pytest.raises(NotMeasurable, match="post-LN"):
        layers.norms_and_smoothing(alike_subject())


def positions_subject(
    accuracies: list[float] | None = None, neurons: list[dict[str, Any]] | None = None, explained: Any = (),
    **published: int,
) -> ModelRuns:  # fmt: skip
    accuracy = [
        {"layer": layer, "accuracy": value, "accuracy_low": value - 0.01, "accuracy_high": value + 0.02,
         "permuted_positions_accuracy": 0.1 * layer}
        for layer, value in enumerate(accuracies or [])
    ]  # fmt: skip
    none = Table()
    geometry = results_of(
        "geometry", Path("g"), {"special_tokens": "exclude"}, {}, none, none, none, none, Table(explained)
    )
    run = Run(Path("r"), {}, {}, Table(accuracy), Table(neurons or []))
    return ModelRuns("m", {"positions": run, "geometry": geometry}, published or {"minimum": 7})


def test_the_least_accuracy_is_beside_the_largest_of_permuted_positions() -> None:
    found = measures.least_accuracy(positions_subject([0.2, 0.99, 0.9, 0.95, 0.3]), "1-3")
    assert (found.value, found.low, found.high) == (0.9, 0.9 - 0.01, 0.9 + 0.02)
    assert found.control == pytest.approx(0.3)
    with pytest.raises(NotMeasurable, match="no layers 5-6"):
        measures.least_accuracy(positions_subject([0.2, 0.99]), "5-6")


def test_without_that_control_there_is_none() -> None:
    one = positions_subject([0.2, 0.99])
    for row in one.run("positions").accuracy:
        del row["permuted_positions_accuracy"]
    assert measures.least_accuracy(one, "1-3").control is None


def test_the_distance_from_a_curve_is_the_most_over_layers_and_0_within_the_interval() -> None:
    found = measures.distance_from_curve(positions_subject([0.2, 0.9, 0.8]), {"m": [0.9, 0.7]})
    assert found.value == pytest.approx(0.1)
    assert (found.low, found.high) == pytest.approx((0.09, 0.12))
    near = measures.distance_from_curve(positions_subject([0.2, 0.9]), {"m": [0.91]})
    assert (near.value, near.low, near.high) == pytest.approx((0.01, 0, 0.02))
    with pytest.raises(NotMeasurable, match="has 2 layers, and 1 are published"):
        measures.distance_from_curve(positions_subject([0.2, 0.9, 0.8]), {"m": [0.9]})
    with pytest.raises(NotMeasurable, match="no accuracies of m are published"):
        measures.distance_from_curve(positions_subject([0.2, 0.9]), {"bert": [0.9]})


def test_what_is_lost_is_lost_between_the_lower_layers_and_the_last() -> None:
    found = measures.accuracy_lost(positions_subject([0.1, 0.99, 0.9, 0.95, 0.4]), "1-3")
    assert found.value == pytest.approx(0.5)
    assert (found.low, found.high) == pytest.approx((0.5 - 0.03, 0.5 + 0.03))
    with pytest.raises(NotMeasurable, match="no further layers"):
        measures.accuracy_lost(positions_subject([0.1, 0.99]), "1-3")


def test_a_lead_is_the_least_over_the_layers_of_both_models() -> None:
    own, other = positions_subject([0.1, 0.9, 0.8, 0.7]), positions_subject([0.2, 0.5, 0.75, 0.1])
    both = ModelRuns("m", own.runs, {}, others={"bert": other.runs, "roberta": own.runs})
    found = measures.least_lead_in_accuracy(both, "bert", "1-2")
    assert (found.value, found.low, found.high) == pytest.approx((0.05, 0.02, 0.08))
    assert measures.least_lead_in_accuracy(both, "roberta", "all").value == 0
    with pytest.raises(NotMeasurable, match="the same run of bert"):
        measures.least_lead_in_accuracy(own, "bert", "1-2")
    shorter = ModelRuns("m", own.runs, {}, others={"bert": positions_subject([0.2, 0.5]).runs})
    with pytest.raises(NotMeasurable, match="do not both have the layers 1-2"):
        measures.least_lead_in_accuracy(shorter, "bert", "1-2")


def ranked(layer: int, neuron: int, rank: int, **columns: Any) -> dict[str, Any]:
    usual = {"ratio": 1.0, "contribution_centred": 1.0, "eta_squared_z": 9.0, "removed": ""}
    return {"layer": layer, "neuron": neuron, "rank": rank, **usual, **columns}


def test_ratio_and_rank_are_the_least_over_layers_above_the_embeddings() -> None:
    rows = [
        ranked(0, 7, 400, ratio=0.1), ranked(1, 7, 1, ratio=8.0, rank_low=1, rank_high=2),
        ranked(2, 7, 3, ratio=5.0, rank_low=2, rank_high=6), ranked(2, 8, 1, ratio=9.0, rank_low=1, rank_high=1),
    ]  # fmt: skip
    one = positions_subject(neurons=rows)
    assert measures.least_ratio(one).value == 5
    found = measures.lowest_rank(one)
    assert (found.value, found.low, found.high, found.neurons) == (3, 2, 6, (7,))
    with pytest.raises(NotMeasurable, match="no layer above the embeddings with this neuron"):
        measures.least_ratio(positions_subject(neurons=rows, minimum=9))


def test_of_several_outliers_the_last_counts() -> None:
    rows = [ranked(1, 7, 1), ranked(1, 8, 2), ranked(1, 9, 3)]
    assert measures.lowest_rank(positions_subject(neurons=rows, minimum=7, maximum=8)).value == 2
    assert measures.lowest_rank(positions_subject(neurons=rows, minimum=7, maximum=8), ["minimum"]).value == 1


def explained(layer: int, neuron: int, position: float, frequency: float) -> list[dict[str, Any]]:
    about = {"layer": layer, "neuron": neuron, "special_tokens": "exclude"}
    return [
        {**about, "source": "position", "partial": position}, {**about, "source": "frequency", "partial": frequency},
        {**about, "special_tokens": "include", "source": "position", "partial": 1 - position},
    ]  # fmt: skip


def evidence(**columns: Any) -> float:
    """Return the share of evidence of a neuron for which all is there but for these columns."""
    usual = {"contribution_centred": 3.0, "cross_entropy_without": 0.1, "cross_entropy_without_low": 0.05}
    partial = {"position": columns.pop("position", 0.4), "frequency": columns.pop("frequency", 0.1)}
    rows = [ranked(1, 7, 2, **{**usual, **columns}), ranked(1, 8, 1)]
    return measures.evidence_beside_rank(positions_subject(neurons=rows, explained=explained(1, 7, **partial))).value


def test_each_kind_of_evidence_counts_a_quarter() -> None:
    assert evidence() == 1
    assert evidence(contribution_centred=0.5) == 0.75
    assert evidence(eta_squared_z=3.9) == 0.75
    assert evidence(cross_entropy_without_low=-0.01) == 0.75
    assert evidence(position=0.1, frequency=0.4) == 0.75
    assert evidence(eta_squared_z=0.0, contribution_centred=0.0, position=0.0, cross_entropy_without_low=-1.0) == 0


def test_layers_count_where_all_four_are_measured() -> None:
    whole = {"contribution_centred": 3.0, "cross_entropy_without": 0.1, "cross_entropy_without_low": 0.05}
    rows = [ranked(1, 7, 2, **whole), ranked(1, 8, 1), ranked(2, 7, 9, eta_squared_z=0.0), ranked(2, 8, 1)]
    found = measures.evidence_beside_rank(positions_subject(neurons=rows, explained=explained(1, 7, 0.4, 0.1)))
    assert (found.value, found.control) == (1, 2)
    with pytest.raises(NotMeasurable, match="not among the first ranks"):
        measures.evidence_beside_rank(positions_subject(neurons=rows[2:], explained=explained(2, 7, 0.4, 0.1)))
    with pytest.raises(NotMeasurable, match="not among the first ranks"):
        measures.evidence_beside_rank(positions_subject(neurons=rows))


def removed(layer: int, rank: int, lost: float, kind: str) -> dict[str, Any]:
    ends = {"cross_entropy_without_low": lost - 0.001, "cross_entropy_without_high": lost + 0.001}
    return ranked(layer, rank, rank, removed=kind, cross_entropy_without=lost, **ends)


def test_the_loss_without_the_first_neuron_is_beside_the_most_that_a_matched_one_costs_more() -> None:
    rows = [
        removed(0, 1, 0.001, "top"), removed(1, 1, 0.03, "top"), removed(1, 9, 0.01, "matched"),
        removed(2, 1, 0.02, "top"), removed(2, 2, 0.5, "top"), removed(2, 9, 0.015, "matched, negligible"),
        ranked(2, 10, 10, cross_entropy_without="", removed="matched, unresolved"),
    ]  # fmt: skip
    found = measures.loss_without_first(positions_subject(neurons=rows))
    assert (found.value, found.low, found.high) == (0.02, 0.02 - 0.001, 0.02 + 0.001)
    assert found.control == pytest.approx(-0.005)
    more = measures.loss_without_first(positions_subject(neurons=[*rows, removed(1, 11, 0.05, "matched")]))
    assert more.control == pytest.approx(0.02)
    with pytest.raises(NotMeasurable, match="--evidence all"):
        measures.loss_without_first(positions_subject(neurons=[ranked(1, 1, 1)]))
