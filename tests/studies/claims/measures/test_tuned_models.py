"""What is measured of tuned models, against values planted in the tables of their runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planted_claims import disabled, pruned, tuned, tuned_runs_of
from probing.results.rows import Table
from probing.studies.claims.measures import layers as measures
from probing.studies.claims.measures.registry import NotMeasurable, Subject
from written import results_of


def subject(**runs: Any) -> Subject:
    return Subject("any", runs)


@pytest.mark.parametrize("constant", ["majority", "mean"])
def test_the_gain_is_the_lesser_of_that_by_tuning_and_that_by_pretraining(constant: str) -> None:
    found = measures.least_gain_by_tuning(subject(tuned=tuned(0.6, 0.5, 0.45, constant)))
    assert (found.value, found.low, found.high) == pytest.approx((0.1, 0.05, 0.15))  # over the random start
    assert found.control == pytest.approx(0.5)  # shuffled labels give 0.15 of 0.3
    found = measures.least_gain_by_tuning(subject(tuned=tuned(0.4, 0.1, 0.2, constant)))
    assert (found.value, found.control) == pytest.approx((0.1, 0))  # over the constant answer
    assert measures.least_gain_by_tuning(subject(tuned=tuned(0.2, 0.1, 0.2))).control is None


def test_a_run_of_fewer_starts_says_nothing_of_the_gain() -> None:
    rows = [row for row in tuned(0.6, 0.4, 0.3).differences if row["answer"] != "shuffled"]
    with pytest.raises(NotMeasurable, match="with all starts"):
        measures.least_gain_by_tuning(subject(tuned=results_of("finetune", Path("x"), {}, {}, differences=Table(rows))))


def changed(*cosines: float) -> Any:
    rows = [
        {"layer": layer, "measure": "cosine", "of": "same", "value": one, "low": one - 0.01, "high": one + 0.01}
        for layer, one in enumerate(cosines, start=1)
    ]
    return results_of("attention", Path("x"), {}, {}, change=Table(rows))


def test_a_lead_of_the_last_layers_is_shared_with_that_of_shuffled_labels() -> None:
    found = measures.lead_of_change_by_tuning(
        subject(tuned_change=changed(0.9, 0.8, 0.4), shuffled_change=changed(0.99, 0.98, 0.88)), 1
    )
    assert (found.value, found.low, found.high) == pytest.approx((0.4, 0.38, 0.42))
    assert found.control == pytest.approx(0.25)
    backwards = subject(tuned_change=changed(0.4, 0.8, 0.9), shuffled_change=changed(0.99, 0.98, 0.88))
    assert measures.lead_of_change_by_tuning(backwards, 1).control is None


@pytest.mark.parametrize("readout", ["tuned", "tuned_r2"])
def test_a_gain_without_a_head_or_a_layer_is_put_beside_that_of_random_ones(readout: str) -> None:
    runs = subject(disabled_task=disabled(0.03, readout))
    for found, others in ((measures.gain_for_task(runs), -0.04), (measures.gain_without_layer(runs, 1), -0.1)):
        assert (found.value, found.low, found.high) == pytest.approx((0.03, 0.02, 0.04))
        assert found.control == pytest.approx(0.03 - others)
    with pytest.raises(NotMeasurable, match="a layer 13"):
        measures.gain_without_layer(runs, 13)
    other = subject(disabled_task=disabled(0.03, "mlm"))
    with pytest.raises(NotMeasurable, match="more sentences"):
        measures.gain_for_task(other)


@pytest.mark.parametrize("measure", [measures.heads_pruned_together, measures.weights_pruned])
def test_what_can_be_pruned_ends_where_a_loss_begins(measure: Any) -> None:
    found = measure(subject(pruned_task=pruned(0.5)), 0.01)
    assert (found.value, found.low, found.high, found.control) == pytest.approx((0.5, 0.5, 0.5, 0.1))
    strict = measure(subject(pruned_task=pruned(0.5)), 0.001)
    assert (strict.value, strict.low, strict.high) == (0.5, 0, 0.5)  # whose interval is wider than that
    lax = measure(subject(pruned_task=pruned(0.5)), 0.103)
    assert (lax.value, lax.low, lax.high) == (1, 0.5, 1)
    with pytest.raises(NotMeasurable, match="--prune all"):
        measure(subject(pruned_task=pruned(0.5, "mlm")), 0.01)


def test_a_larger_share_without_a_loss_behind_one_with_it_does_not_count() -> None:
    rows = [dict(row) for row in pruned(0.5).weight_pruning]
    for row in rows:
        if row["order"] == "magnitude" and row["share"] == 0.2:
            row |= {"effect": -0.2, "low": -0.3, "high": -0.1}
    run = results_of("disable", Path("x"), {}, {}, weight_pruning=Table(rows))
    found = measures.weights_pruned(subject(pruned_task=run), 0.01)
    assert (found.value, found.low, found.high) == (0.1, 0.1, 0.1)
    assert found.control == pytest.approx(0.1 - 0.4)


def test_a_head_below_the_last_layer_is_held_against_the_best_of_the_others() -> None:
    found = measures.lead_of_lower_head(Subject("any", tuned_runs_of(True)), 2)
    assert (found.value, found.low, found.high) == pytest.approx((0.3, 0.2, 0.4))
    assert found.control == pytest.approx(0.3)
    found = measures.lead_of_lower_head(Subject("any", tuned_runs_of(False)), 2)
    assert (found.value, found.control) == pytest.approx((-0.3, -0.3))
