"""Where outliers sit in parameters, against tables made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from probing.results.rows import Table
from probing.studies.claims.measures import position as measures
from probing.studies.claims.measures.registry import NotMeasurable, Subject
from written import results_of

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


def subject(
    parameters: list[dict[str, Any]], stream: dict[str, Table] | None = None, n_layers: int = 0, **published: int
) -> Subject:
    layers = range(n_layers + 1) if n_layers else [None]
    none, width = Table(), Table({"neuron": k, "layer": layer} for layer in layers for k in range(D_MODEL))
    run = results_of(
        "geometry", Path("g"), {"special_tokens": "exclude"}, {}, none, none, width, Table(parameters), none
    )
    other = results_of("geometry", Path("s"), {}, {}, none, none, none, none, none, **(stream or {}))
    return Subject("m", {"geometry": run, "stream": other}, published or {"minimum": 7, "maximum": 8})


def test_outliers_of_the_first_position_are_counted_and_the_control_is_the_rank_of_the_own_one() -> None:
    path = Table({"neuron": k, "kind": kind} for k, kind in ((7, "both"), (7, "both"), (3, "first_row"), (4, "layers")))
    found = measures.outliers_of_first_position(subject([position(0, 7, -9, rank=10)], {"path": path}), "minimum")
    assert (found.value, found.control) == (2, 1)
    other = measures.outliers_of_first_position(subject([position(0, 7, -9, rank=9)], {"path": path}), "minimum")
    assert other.control == 2
    high = measures.outliers_of_first_position(subject([position(0, 8, 9, rank=3)], {"path": path}), "maximum")
    assert high.control == 3


def test_other_rows_are_those_of_other_positions_and_that_of_tokens() -> None:
    rows = [position(0, 7, -12), position(1, 7, 0.1), position(2, 7, 6), position(3, 7, -6), token(7, -5.5)]
    found = measures.other_rows_with_outlier(subject([*rows, position(1, 8, 9)]), "minimum")
    assert (found.value, found.control) == (3, 12)
    none = measures.other_rows_with_outlier(subject([*rows[:2], token(7, 1.0)]), "minimum")
    assert none.value == 0
    segments = [{"parameter": "segment", "row": row, "neuron": 7, "deviations": z} for row, z in enumerate((6, -2))]
    assert measures.other_rows_with_outlier(subject([*rows[:2], token(7, 1.0), *segments]), "minimum").value == 1


def test_rows_that_no_position_uses_are_not_counted() -> None:
    rows = [position(row, 7, -9, first_row=2) for row in range(5)]
    assert measures.other_rows_with_outlier(subject([*rows, token(7, 0)]), "minimum").value == 2  # rows 3 and 4


def test_of_several_rows_the_one_with_the_farthest_outliers_counts() -> None:
    rows = [position(3, 7, -6), position(3, 8, 2), position(5, 7, -9), position(5, 8, 7), position(4, 7, -50)]
    roles: Any = ["minimum", "maximum"]
    found = measures.deviation_in_rows(subject(rows), roles, [3, 5])
    assert (found.value, found.control) == (7, 50)
    assert measures.deviation_in_rows(subject(rows), roles, [3]).value == 2
    with pytest.raises(NotMeasurable, match="no row 9"):
        measures.deviation_in_rows(subject(rows), roles, [9])


def test_a_share_of_rows_is_of_those_from_one_on() -> None:
    rows = [position(row, 8, 1, rank=1 if row in (0, 3, 4) else 2) for row in range(6)]
    assert measures.share_of_rows(subject(rows), "maximum", 3).value == pytest.approx(2 / 3)
    lowest = [position(row, 7, 1, rank=D_MODEL) for row in range(4)]
    assert measures.share_of_rows(subject(lowest), "minimum", 0).value == 1


def test_ranks_are_those_of_the_norm_and_the_layers_that_are_asked_for() -> None:
    one = subject(norms("gain", [1, 3, 9], [9, 9, 1]))
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
    shared = subject(norms("gain", [3], [9]), n_layers=4)
    assert ranks(shared, "minimum", 1, "gain", {"1-10": 6, "1-3": 1}).value == pytest.approx(4 / 7)
    assert ranks(shared, "minimum", 2, "gain", {"2-10": 9}).value == 1
    with pytest.raises(NotMeasurable, match="none of its layers up to 1"):
        ranks(subject(norms("gain", [3], [9]), n_layers=1), "minimum", 2, "gain", {"2-10": 7})


def test_blocks_with_one_norm_have_no_first_one() -> None:
    rows = [row for row in norms("gain", [1, 3], [9, 9]) if "layer" in row]
    with pytest.raises(NotMeasurable, match="two norms with a gain"):
        measures.ranks_in_norms(subject(rows), "minimum", 1, "gain", {"all": 2})


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
    found = measures.deviation_with_ordinary_norms(subject([], {"norm_changes": table}), "minimum")
    assert (found.value, found.control) == (4, 7)
    with pytest.raises(NotMeasurable, match="could not be changed"):
        measures.deviation_with_ordinary_norms(subject([]), "minimum")


def test_what_is_left_without_the_first_row_is_the_most_over_the_layers_of_the_outlier() -> None:
    def row(layer: int, kind: str, value: float, neuron: int = 7) -> dict[str, Any]:
        outlier = "yes" if abs(value) > 5 else "no"
        return {"layer": layer, "neuron": neuron, "kind": kind, "value": value, "outlier": outlier}

    rows = [row(0, "intact", -9), row(0, "outliers", -9), row(1, "intact", -8), row(2, "intact", -7)]
    rows += [row(3, "intact", -4), row(3, "outliers", -12), row(1, "intact", 9, 8), row(1, "outliers", 9, 8)]
    rows += [row(1, "outliers", -3), row(2, "outliers", 2), row(1, "random", -8), row(2, "random", -6.5)]
    found = measures.deviation_without_first_row(subject([], {"first_row": Table(rows)}), "minimum")
    assert (found.value, found.control, found.neurons) == (3, 6.5, (7,))
    with pytest.raises(NotMeasurable, match="outlier of no layer"):
        measures.deviation_without_first_row(subject([], {"first_row": Table(rows)}, minimum=9), "minimum")
    with pytest.raises(NotMeasurable, match="no table of positions"):
        measures.deviation_without_first_row(subject([]), "minimum")


def test_models_without_a_table_are_not_measured() -> None:
    for measure in (measures.outliers_of_first_position, measures.other_rows_with_outlier):
        with pytest.raises(NotMeasurable, match="no table of positions"):
            measure(subject([token(7, 1)]), "minimum")
    with pytest.raises(NotMeasurable, match="neuron 7 is no outlier"):
        measures.other_rows_with_outlier(subject([position(0, 3, 1)]), "minimum")
