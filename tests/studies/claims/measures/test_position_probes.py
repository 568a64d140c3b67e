"""Measures of position probes against tables made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from probing.results.rows import Table
from probing.runs.run import Run
from probing.studies.claims.measures import position as measures
from probing.studies.claims.measures.registry import NotMeasurable, Subject
from written import results_of


def subject(
    accuracies: list[float] | None = None, neurons: list[dict[str, Any]] | None = None, explained: Any = (),
    **published: int,
) -> Subject:  # fmt: skip
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
    return Subject("m", {"positions": run, "geometry": geometry}, published or {"minimum": 7})


def test_the_least_accuracy_is_beside_the_largest_of_permuted_positions() -> None:
    found = measures.least_accuracy(subject([0.2, 0.99, 0.9, 0.95, 0.3]), "1-3")
    assert (found.value, found.low, found.high) == (0.9, 0.9 - 0.01, 0.9 + 0.02)
    assert found.control == pytest.approx(0.3)
    with pytest.raises(NotMeasurable, match="no layers 5-6"):
        measures.least_accuracy(subject([0.2, 0.99]), "5-6")


def test_without_that_control_there_is_none() -> None:
    one = subject([0.2, 0.99])
    for row in one.run("positions").accuracy:
        del row["permuted_positions_accuracy"]
    assert measures.least_accuracy(one, "1-3").control is None


def test_the_distance_from_a_curve_is_the_most_over_layers_and_0_within_the_interval() -> None:
    found = measures.distance_from_curve(subject([0.2, 0.9, 0.8]), {"m": [0.9, 0.7]})
    assert found.value == pytest.approx(0.1)
    assert (found.low, found.high) == pytest.approx((0.09, 0.12))
    near = measures.distance_from_curve(subject([0.2, 0.9]), {"m": [0.91]})
    assert (near.value, near.low, near.high) == pytest.approx((0.01, 0, 0.02))
    with pytest.raises(NotMeasurable, match="has 2 layers, and 1 are published"):
        measures.distance_from_curve(subject([0.2, 0.9, 0.8]), {"m": [0.9]})
    with pytest.raises(NotMeasurable, match="no accuracies of m are published"):
        measures.distance_from_curve(subject([0.2, 0.9]), {"bert": [0.9]})


def test_what_is_lost_is_lost_between_the_lower_layers_and_the_last() -> None:
    found = measures.accuracy_lost(subject([0.1, 0.99, 0.9, 0.95, 0.4]), "1-3")
    assert found.value == pytest.approx(0.5)
    assert (found.low, found.high) == pytest.approx((0.5 - 0.03, 0.5 + 0.03))
    with pytest.raises(NotMeasurable, match="no further layers"):
        measures.accuracy_lost(subject([0.1, 0.99]), "1-3")


def test_a_lead_is_the_least_over_the_layers_of_both_models() -> None:
    own, other = subject([0.1, 0.9, 0.8, 0.7]), subject([0.2, 0.5, 0.75, 0.1])
    both = Subject("m", own.runs, {}, others={"bert": other.runs, "roberta": own.runs})
    found = measures.least_lead_in_accuracy(both, "bert", "1-2")
    assert (found.value, found.low, found.high) == pytest.approx((0.05, 0.02, 0.08))
    assert measures.least_lead_in_accuracy(both, "roberta", "all").value == 0
    with pytest.raises(NotMeasurable, match="the same run of bert"):
        measures.least_lead_in_accuracy(own, "bert", "1-2")
    shorter = Subject("m", own.runs, {}, others={"bert": subject([0.2, 0.5]).runs})
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
    one = subject(neurons=rows)
    assert measures.least_ratio(one).value == 5
    found = measures.lowest_rank(one)
    assert (found.value, found.low, found.high, found.neurons) == (3, 2, 6, (7,))
    with pytest.raises(NotMeasurable, match="no layer above the embeddings with this neuron"):
        measures.least_ratio(subject(neurons=rows, minimum=9))


def test_of_several_outliers_the_last_counts() -> None:
    rows = [ranked(1, 7, 1), ranked(1, 8, 2), ranked(1, 9, 3)]
    assert measures.lowest_rank(subject(neurons=rows, minimum=7, maximum=8)).value == 2
    assert measures.lowest_rank(subject(neurons=rows, minimum=7, maximum=8), ["minimum"]).value == 1


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
    return measures.evidence_beside_rank(subject(neurons=rows, explained=explained(1, 7, **partial))).value


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
    found = measures.evidence_beside_rank(subject(neurons=rows, explained=explained(1, 7, 0.4, 0.1)))
    assert (found.value, found.control) == (1, 2)
    with pytest.raises(NotMeasurable, match="not among the first ranks"):
        measures.evidence_beside_rank(subject(neurons=rows[2:], explained=explained(2, 7, 0.4, 0.1)))
    with pytest.raises(NotMeasurable, match="not among the first ranks"):
        measures.evidence_beside_rank(subject(neurons=rows))


def removed(layer: int, rank: int, lost: float, kind: str) -> dict[str, Any]:
    ends = {"cross_entropy_without_low": lost - 0.001, "cross_entropy_without_high": lost + 0.001}
    return ranked(layer, rank, rank, removed=kind, cross_entropy_without=lost, **ends)


def test_the_loss_without_the_first_neuron_is_beside_the_most_that_a_matched_one_costs_more() -> None:
    rows = [
        removed(0, 1, 0.001, "top"), removed(1, 1, 0.03, "top"), removed(1, 9, 0.01, "matched"),
        removed(2, 1, 0.02, "top"), removed(2, 2, 0.5, "top"), removed(2, 9, 0.015, "matched, negligible"),
        ranked(2, 10, 10, cross_entropy_without="", removed="matched, unresolved"),
    ]  # fmt: skip
    found = measures.loss_without_first(subject(neurons=rows))
    assert (found.value, found.low, found.high) == (0.02, 0.02 - 0.001, 0.02 + 0.001)
    assert found.control == pytest.approx(-0.005)
    more = measures.loss_without_first(subject(neurons=[*rows, removed(1, 11, 0.05, "matched")]))
    assert more.control == pytest.approx(0.02)
    with pytest.raises(NotMeasurable, match="--evidence all"):
        measures.loss_without_first(subject(neurons=[ranked(1, 1, 1)]))
