"""Measures of word senses and of similarity against tables made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from probing.results.rows import Table
from probing.runs.run import Run
from probing.studies.claims.measures import heads
from probing.studies.claims.measures.registry import NotMeasurable, Subject
from written import results_of

WIDTH = 0.01


def gain(value: float) -> dict[str, float]:
    return {"gain": value, "gain_low": value - WIDTH, "gain_high": value + WIDTH}


SENSES = [
    {"protocol": "held_out", "transform": "none", "accuracy": 0.57, "threshold": 0.853},
    {"protocol": "held_out", "transform": "clip", "accuracy": 0.58, "threshold": 0.8, **gain(0.01)},
    {"protocol": "held_out", "transform": "whiten", "accuracy": 0.6, "threshold": 0.8, **gain(0.03)},
    {"protocol": "published", "transform": "none", "accuracy": 0.60, "threshold": 0.9},
    {"protocol": "published", "transform": "clip", "accuracy": 0.62, "threshold": 0.6},
    {"protocol": "constant_true", "accuracy": 0.5},
]


def senses(rows: list[dict[str, Any]] = SENSES) -> Subject:
    return Subject("m", {"senses": results_of("wic", Path("w"), {}, {}, Table(), Table(rows))})


def test_the_gain_is_that_on_pairs_which_chose_nothing() -> None:
    found = heads.gain_on_senses(senses(), "clip")
    assert (found.value, found.low, found.high) == pytest.approx((0.01, 0.0, 0.02))
    assert found.control is None


def test_the_control_is_the_distance_from_what_was_published() -> None:
    found = heads.gain_on_senses(senses(), "clip", {"m": [0.605, 0.63], "other": [0.1, 0.2]})
    assert found.control == pytest.approx(0.01)
    assert heads.gain_on_senses(senses(), "clip", {"other": [0.1, 0.2]}).control is None


def test_one_transform_leads_over_another_by_the_difference_of_their_gains() -> None:
    found = heads.lead_on_senses(senses(), "whiten", "clip")
    assert (found.value, found.low, found.high) == pytest.approx((0.02, 0.0, 0.04))


def test_thresholds_are_those_of_the_published_way() -> None:
    assert heads.change_of_threshold(senses(), "clip").value == pytest.approx(-0.3)


def labels(*changes: tuple[float, float, float], plain: float = 0.8, clipped: int = 2) -> Subject:
    rows = [
        {"layer": layer, "accuracy": plain + value, "untransformed_accuracy": plain,
         "majority_accuracy": 0.5 + layer / 10, "n_clipped": clipped,
         "above_untransformed_low": low, "above_untransformed_high": high}
        for layer, (value, low, high) in enumerate(changes)
    ]  # fmt: skip
    return Subject("m", {"labels": Run(Path("r"), {}, {}, Table(rows), Table())})


def test_the_change_on_labels_is_that_of_the_layer_with_most_and_above_the_embeddings() -> None:
    found = heads.change_of_accuracy_on_labels(labels((-0.3, -0.4, -0.2), (0.01, -0.01, 0.03), (-0.02, -0.05, 0.01)))
    assert (found.value, found.low, found.high) == pytest.approx((0.02, 0, 0.05))
    assert found.control == pytest.approx(0.8 - 0.7)
    nothing = heads.change_of_accuracy_on_labels(labels((0, 0, 0), (0.01, 0.005, 0.015), plain=0.4))
    assert (nothing.low, nothing.control) == pytest.approx((0.005, -0.2))


def test_where_nothing_was_clipped_or_there_is_no_interval_labels_tell_nothing() -> None:
    with pytest.raises(NotMeasurable, match="no layer has an outlier"):
        heads.change_of_accuracy_on_labels(labels((0, 0, 0), (0, -0.1, 0.1), clipped=0))
    few = {"layer": 1, "accuracy": 0.5, "untransformed_accuracy": 0.5, "majority_accuracy": 0.5, "n_clipped": 1}
    with pytest.raises(NotMeasurable, match="no interval"):
        heads.change_of_accuracy_on_labels(Subject("m", {"labels": Run(Path("r"), {}, {}, Table([few]), Table())}))


def test_without_outliers_there_is_nothing_clipped() -> None:
    rows = [row for row in SENSES if row.get("transform") != "clip"]
    with pytest.raises(NotMeasurable, match="the run has no clip vectors"):
        heads.gain_on_senses(senses(rows), "clip")


def row(name: str, transform: str, value: float, pooling: str = "mean", **other: Any) -> dict[str, Any]:
    ends = {"low": value - WIDTH, "high": value + WIDTH}
    about = {"protocol": "held_out", "aggregation": "all", "set": name, "pooling": pooling, "transform": transform}
    return {**about, "spearman": value, **ends, **gain(value - 0.5), **other}


SETS = [
    row("STS12", "clip", 0.55), row("STS13", "clip", 0.52),
    row("STS-B dev", "clip", 0.1), row("STS-B test", "clip", 0.6),
    row("STS14", "clip", 0.1, protocol="published"), row("STS14", "clip", 0.1, aggregation="mean"),
    row("STS14", "clip", 0.1, pooling="cls"), row("STS12", "whiten", 0.3),
    row("STS12", "none", 0.5, pooling="static"), row("STS13", "none", 0.6, pooling="static"),
]  # fmt: skip


def similarity(rows: list[dict[str, Any]] = SETS) -> Subject:
    return Subject("m", {"similarity": results_of("sts", Path("s"), {}, {}, Table(), Table(rows))})


def test_the_least_gain_is_over_the_sets_that_are_there_and_the_control_counts_the_others() -> None:
    found = heads.least_gain_on_sets(similarity(), "clip", ["STS12", "STS13", "STS14", "STS-B"])
    assert (found.value, found.low, found.high) == pytest.approx((0.02, 0.01, 0.03))
    assert found.control == 1


def test_what_is_left_of_a_lead_counts_as_a_gain_where_it_is_claimed() -> None:
    clipped = [row("STS12", "clip", 0.55), row("STS13", "clip", 0.52)]
    whitened = [row("STS12", "whiten", 0.9), row("STS13", "whiten", 0.8)]
    runs = similarity([*clipped, *whitened]).runs

    def least(model: str, *claimed: str) -> Any:
        leads = {"m": {"over": "clip", "by": 0.25, "sets": claimed}}
        return heads.least_gain_on_sets(Subject(model, runs), "whiten", ["STS12", "STS13", "STS14"], leads)

    found = least("m", "STS12", "STS13", "STS14")
    assert (found.value, found.low, found.high) == pytest.approx((0.3 - 0.02 - 0.25, 0.01, 0.05))
    assert found.control == 1
    assert least("m", "STS12").value == pytest.approx(0.4 - 0.05 - 0.25)
    assert least("other", "STS12", "STS13").value == pytest.approx(0.3)
    assert least("m", "STS14").value == pytest.approx(0.3)  # which is missing, and counted so


def test_of_a_set_of_several_parts_the_test_part_counts() -> None:
    assert heads.least_gain_on_sets(similarity(), "clip", ["STS-B"]).value == pytest.approx(0.1)
    assert heads.least_gain_on_sets(similarity(SETS[::-1]), "clip", ["STS-B"]).value == pytest.approx(0.1)


def test_static_vectors_lead_by_the_difference() -> None:
    found = heads.least_lead_of_static(similarity(), "clip", ["STS12", "STS13", "STS14"])
    assert (found.value, found.low, found.high) == pytest.approx((-0.05, -0.07, -0.03))
    assert found.control == 1
    other = heads.least_lead_over_static(similarity(), "clip", ["STS12", "STS13"])
    assert (other.value, other.control) == pytest.approx((-0.08, 0))


def test_what_is_missing_is_named() -> None:
    with pytest.raises(NotMeasurable, match="would need one of the sets: STS15, STS16"):
        heads.least_gain_on_sets(similarity(), "clip", ["STS15", "STS16"])
    with pytest.raises(NotMeasurable, match="would need `--static`"):
        heads.least_lead_of_static(similarity(SETS[:4]), "clip", ["STS12"])


def test_sets_that_are_too_small_for_an_interval_are_not_measured() -> None:
    nan = float("nan")
    with pytest.raises(NotMeasurable, match="the run has no interval"):
        heads.least_gain_on_sets(
            similarity([row("STS12", "clip", 0.55, gain_low=nan, gain_high=nan)]), "clip", ["STS12"]
        )
