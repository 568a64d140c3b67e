"""Measures of encoders that were trained with and without positions against tables made by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from probing.results.rows import Table
from probing.studies.claims.measures import position as measures
from probing.studies.claims.measures.registry import NotMeasurable, Subject
from written import results_of


def row(arm: str, seed: int, layer: int, step: int = 10, **columns: Any) -> dict[str, Any]:
    usual = {
        "loss": 2.0 if arm == "learned" else 3.0, "max_mean_sd": 2.0, "outlier_neuron": 5, "argmax_share": 0.1,
        "argmin_share": 0.1, "position_accuracy": 0.2, "token_accuracy": 0.15, "equivariance": 0.0,
    }  # fmt: skip
    return {"arm": arm, "seed": seed, "step": step, "layer": layer, **usual, **columns}


BOTH = [row(arm, seed, layer) for arm in ("learned", "none") for seed in (0, 1) for layer in (0, 1, 2)]


def subject(*rows: dict[str, Any]) -> Subject:
    """Return encoders with these rows in the place of the usual ones."""
    keys = {(one["arm"], one["seed"], one["layer"], one["step"]): one for one in (*BOTH, *rows)}
    return Subject(
        "pretrain-tiny", {"pretraining": results_of("pretrain", Path("p"), {}, {}, Table(keys.values()), Table())}
    )


def of_seed(arm: str, seed: int, **columns: Any) -> list[dict[str, Any]]:
    return [row(arm, seed, layer, **columns) for layer in (0, 1, 2)]


def test_perplexities_are_compared_with_those_published_and_the_farther_counts() -> None:
    one = subject(*of_seed("none", 0, loss=math.log(300)), *of_seed("none", 1, loss=math.log(400)),
                  *of_seed("learned", 0, loss=math.log(4)), *of_seed("learned", 1, loss=math.log(4)))  # fmt: skip
    found = measures.distance_from_perplexities(one, without=354.0, with_=4.0)
    ends = sorted((1 - 300 / 354, 400 / 354 - 1))
    assert (found.low, found.high) == pytest.approx(tuple(ends))
    assert found.value == pytest.approx(sum(ends) / 2)
    assert measures.distance_from_perplexities(one, without=354.0, with_=8.0).value == pytest.approx(0.5)


def test_the_loss_without_positions_is_paired_by_seed() -> None:
    one = subject(*of_seed("none", 0, loss=3.5), *of_seed("learned", 1, loss=2.8))
    found = measures.loss_without_positions(one)  # 1.5 and .2
    assert (found.value, found.low, found.high) == pytest.approx((0.85, 0.2, 1.5))


def test_equivariance_is_that_of_the_arm_without_positions_above_the_embeddings() -> None:
    one = subject(row("none", 1, 2, equivariance=3e-6), row("none", 0, 0, equivariance=1.0),
                  row("learned", 0, 1, equivariance=2.0), row("none", 0, 1, position_accuracy=0.4))  # fmt: skip
    found = measures.largest_equivariance(one)
    assert (found.value, found.control) == pytest.approx((3e-6, 0.25))


def test_the_share_is_that_of_the_layer_where_it_is_most_and_the_least_over_seeds() -> None:
    one = subject(row("learned", 0, 1, argmax_share=0.9), row("learned", 1, 2, argmin_share=0.6),
                  row("learned", 1, 0, argmax_share=1.0), row("none", 0, 1, argmax_share=1.0))  # fmt: skip
    found = measures.share_of_largest(one)
    assert (found.value, found.control) == pytest.approx((0.6, 1.0))


def test_the_farthest_mean_without_positions_is_beside_that_with_them() -> None:
    one = subject(row("none", 1, 2, max_mean_sd=4.0), row("none", 1, 0, max_mean_sd=9.0),
                  row("learned", 0, 1, max_mean_sd=7.0), row("learned", 1, 1, max_mean_sd=6.0))  # fmt: skip
    found = measures.farthest_without_positions(one)
    assert (found.value, found.control) == (4, 6)


def test_only_the_last_checkpoint_of_each_seed_counts() -> None:
    one = subject(*(row("none", 0, layer, step=5, max_mean_sd=9.0) for layer in (1, 2)))
    assert measures.farthest_without_positions(one).value == 2
    later = subject(*(row("none", 0, layer, step=15, max_mean_sd=3.0) for layer in (1, 2)))
    assert measures.farthest_without_positions(later).value == 3


def test_outliers_of_seeds_are_compared_as_sets() -> None:
    def outlier(seed: int, layer: int, neuron: int) -> dict[str, Any]:
        return row("learned", seed, layer, max_mean_sd=6.0, outlier_neuron=neuron)

    same = subject(outlier(0, 1, 3), outlier(1, 1, 3))
    assert measures.seeds_with_other_outliers(same).value == 0
    other = subject(outlier(0, 1, 3), outlier(1, 1, 3), outlier(1, 2, 4))
    found = measures.seeds_with_other_outliers(other)
    assert (found.value, found.neurons) == (1, (3, 4))
    third = subject(outlier(0, 1, 3), outlier(1, 1, 3), *of_seed("learned", 2), outlier(2, 1, 4))
    assert measures.seeds_with_other_outliers(third).value == pytest.approx(2 / 3)
    with pytest.raises(NotMeasurable, match="fewer than two seeds have an outlier"):
        measures.seeds_with_other_outliers(subject(outlier(0, 1, 3)))


def test_an_arm_that_was_not_trained_is_not_measured() -> None:
    rows = Table(one for one in BOTH if one["arm"] == "learned")
    only = Subject("m", {"pretraining": results_of("pretrain", Path("p"), {}, {}, rows, Table())})
    with pytest.raises(NotMeasurable, match="no arm none"):
        measures.farthest_without_positions(only)
