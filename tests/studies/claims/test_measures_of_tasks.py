"""Measures of tasks, syntax, masks, pooling and tuned or pretrained models, against tables made by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planted_claims import ablated, pruned, tuned, tuned_runs_of
from probing.results import Table
from probing.runs import Result
from probing.runs.run import Run
from probing.studies.claims import measures as tuned_measures
from probing.studies.claims.measures import heads as measures
from probing.studies.claims.measures import position as pretrained_measures
from probing.studies.claims.measures import registry as order_measures
from probing.studies.claims.measures.heads import least_lead_of_pooling
from probing.studies.claims.measures.registry import MEASURES, ModelRuns, NotMeasurable
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


def senses(rows: list[dict[str, Any]] = SENSES) -> ModelRuns:
    return ModelRuns("m", {"senses": results_of("wic", Path("w"), {}, {}, Table(), Table(rows))})


def test_the_gain_is_that_on_pairs_which_chose_nothing() -> None:
    found = measures.gain_on_senses(senses(), "clip")
    assert (found.value, found.low, found.high) == pytest.approx((0.01, 0.0, 0.02))
    assert found.control is None


def test_the_control_is_the_distance_from_what_was_published() -> None:
    found = measures.gain_on_senses(senses(), "clip", {"m": [0.605, 0.63], "other": [0.1, 0.2]})
    assert found.control == pytest.approx(0.01)
    assert measures.gain_on_senses(senses(), "clip", {"other": [0.1, 0.2]}).control is None


def test_one_transform_leads_over_another_by_the_difference_of_their_gains() -> None:
    found = measures.lead_on_senses(senses(), "whiten", "clip")
    assert (found.value, found.low, found.high) == pytest.approx((0.02, 0.0, 0.04))


def test_thresholds_are_those_of_the_published_way() -> None:
    assert measures.change_of_threshold(senses(), "clip").value == pytest.approx(-0.3)


def labels(*changes: tuple[float, float, float], plain: float = 0.8, clipped: int = 2) -> ModelRuns:
    rows = [
        {"layer": layer, "accuracy": plain + value, "untransformed_accuracy": plain,
         "majority_accuracy": 0.5 + layer / 10, "n_clipped": clipped,
         "above_untransformed_low": low, "above_untransformed_high": high}
        for layer, (value, low, high) in enumerate(changes)
    ]  # fmt: skip
    return ModelRuns("m", {"labels": Run(Path("r"), {}, {}, Table(rows), Table())})


def test_the_change_on_labels_is_that_of_the_layer_with_most_and_above_the_embeddings() -> None:
    found = measures.change_of_accuracy_on_labels(labels((-0.3, -0.4, -0.2), (0.01, -0.01, 0.03), (-0.02, -0.05, 0.01)))
    assert (found.value, found.low, found.high) == pytest.approx((0.02, 0, 0.05))
    assert found.control == pytest.approx(0.8 - 0.7)
    nothing = measures.change_of_accuracy_on_labels(labels((0, 0, 0), (0.01, 0.005, 0.015), plain=0.4))
    assert (nothing.low, nothing.control) == pytest.approx((0.005, -0.2))


def test_where_nothing_was_clipped_or_there_is_no_interval_labels_tell_nothing() -> None:
    with pytest.raises(NotMeasurable, match="no layer has an outlier"):
        measures.change_of_accuracy_on_labels(labels((0, 0, 0), (0, -0.1, 0.1), clipped=0))
    few = {"layer": 1, "accuracy": 0.5, "untransformed_accuracy": 0.5, "majority_accuracy": 0.5, "n_clipped": 1}
    with pytest.raises(NotMeasurable, match="no interval"):
        measures.change_of_accuracy_on_labels(ModelRuns("m", {"labels": Run(Path("r"), {}, {}, Table([few]), Table())}))


def test_without_outliers_there_is_nothing_clipped() -> None:
    rows = [row for row in SENSES if row.get("transform") != "clip"]
    with pytest.raises(NotMeasurable, match="the run has no clip vectors"):
        measures.gain_on_senses(senses(rows), "clip")


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


def similarity(rows: list[dict[str, Any]] = SETS) -> ModelRuns:
    return ModelRuns("m", {"similarity": results_of("sts", Path("s"), {}, {}, Table(), Table(rows))})


def test_the_least_gain_is_over_the_sets_that_are_there_and_the_control_counts_the_others() -> None:
    found = measures.least_gain_on_sets(similarity(), "clip", ["STS12", "STS13", "STS14", "STS-B"])
    assert (found.value, found.low, found.high) == pytest.approx((0.02, 0.01, 0.03))
    assert found.control == 1


def test_what_is_left_of_a_lead_counts_as_a_gain_where_it_is_claimed() -> None:
    clipped = [row("STS12", "clip", 0.55), row("STS13", "clip", 0.52)]
    whitened = [row("STS12", "whiten", 0.9), row("STS13", "whiten", 0.8)]
    runs = similarity([*clipped, *whitened]).runs

    def least(model: str, *claimed: str) -> Any:
        leads = {"m": {"over": "clip", "by": 0.25, "sets": claimed}}
        return measures.least_gain_on_sets(ModelRuns(model, runs), "whiten", ["STS12", "STS13", "STS14"], leads)

    found = least("m", "STS12", "STS13", "STS14")
    assert (found.value, found.low, found.high) == pytest.approx((0.3 - 0.02 - 0.25, 0.01, 0.05))
    assert found.control == 1
    assert least("m", "STS12").value == pytest.approx(0.4 - 0.05 - 0.25)
    assert least("other", "STS12", "STS13").value == pytest.approx(0.3)
    assert least("m", "STS14").value == pytest.approx(0.3)  # which is missing, and counted so


def test_of_a_set_of_several_parts_the_test_part_counts() -> None:
    assert measures.least_gain_on_sets(similarity(), "clip", ["STS-B"]).value == pytest.approx(0.1)
    assert measures.least_gain_on_sets(similarity(SETS[::-1]), "clip", ["STS-B"]).value == pytest.approx(0.1)


def test_static_vectors_lead_by_the_difference() -> None:
    found = measures.least_lead_of_static(similarity(), "clip", ["STS12", "STS13", "STS14"])
    assert (found.value, found.low, found.high) == pytest.approx((-0.05, -0.07, -0.03))
    assert found.control == 1
    other = measures.least_lead_over_static(similarity(), "clip", ["STS12", "STS13"])
    assert (other.value, other.control) == pytest.approx((-0.08, 0))


def test_what_is_missing_is_named() -> None:
    with pytest.raises(NotMeasurable, match="would need one of the sets: STS15, STS16"):
        measures.least_gain_on_sets(similarity(), "clip", ["STS15", "STS16"])
    with pytest.raises(NotMeasurable, match="would need `--static`"):
        measures.least_lead_of_static(similarity(SETS[:4]), "clip", ["STS12"])


def test_sets_that_are_too_small_for_an_interval_are_not_measured() -> None:
    nan = float("nan")
    with pytest.raises(NotMeasurable, match="the run has no interval"):
        measures.least_gain_on_sets(
            similarity([row("STS12", "clip", 0.55, gain_low=nan, gain_high=nan)]), "clip", ["STS12"]
        )


HALF = 0.0098  # 1.96 sd of .005


def fit(accuracies: list[float], untrained: float | None = 0.3, half: float = HALF) -> Run:
    rows: list[dict[str, Any]] = [
        {"layer": layer, "accuracy": one, "accuracy_low": one - half, "accuracy_high": one + half}
        | ({} if untrained is None else {"untrained_accuracy": untrained + layer / 1000})
        for layer, one in enumerate(accuracies)
    ]
    return Run(Path("fit"), {}, {}, Table(rows), Table())


def subject(speech: list[float], relations: list[float], **options: Any) -> ModelRuns:
    return ModelRuns("any", {"parts_of_speech": fit(speech, **options), "relations": fit(relations, **options)})


def expected(accuracies: list[float]) -> float:
    """Return the expected layer by a loop over layers."""
    best, weighted, total = accuracies[0], 0.0, 0.0
    for layer, one in enumerate(accuracies[1:], 1):
        added = max(one - best, 0.0)
        weighted, total, best = weighted + layer * added, total + added, max(best, one)
    return weighted / total


EARLY, LATE = [0.5, 0.8, 0.9, 0.85, 0.9, 0.88, 0.7], [0.4, 0.42, 0.5, 0.7, 0.85, 0.9, 0.8]


@pytest.mark.numeric
def test_the_expected_layer_is_the_mean_layer_of_what_is_added() -> None:
    for one in (EARLY, LATE):
        assert float(measures.expected_layer(np.array(one))) == pytest.approx(expected(one))
    assert float(measures.expected_layer(np.array(EARLY))) == pytest.approx((0.3 * 1 + 0.1 * 2) / 0.4)
    assert measures.expected_layer(np.array([[0.9, 0.8], [0.5, 0.6]])).tolist() == [0.0, 1.0]


@pytest.mark.numeric
def test_the_difference_of_expected_layers_has_the_interval_of_independent_draws() -> None:
    found = measures.layers_from_speech_to_syntax(subject(EARLY, LATE))
    assert found.value == pytest.approx(expected(LATE) - expected(EARLY))
    draws = np.random.default_rng(5)
    drawn = [
        expected(draws.normal(LATE, 0.005).tolist()) - expected(draws.normal(EARLY, 0.005).tolist())
        for _ in range(1500)
    ]
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(drawn, (0.025, 0.975))), abs=0.05)
    assert 0 < found.low < found.value < found.high


@pytest.mark.numeric
def test_tasks_that_are_read_alike_are_not_told_apart() -> None:
    found = measures.layers_from_speech_to_syntax(subject(LATE, LATE))
    assert found.low < 0 == found.value < found.high
    exact = measures.layers_from_speech_to_syntax(subject(LATE, EARLY, half=0.0))
    assert exact.low == exact.value == exact.high < 0


@pytest.mark.numeric
def test_middle_layers_are_the_second_third_of_the_blocks() -> None:
    curve = [0.5, 0.6, 0.7, 0.9, 0.8, 0.75, 0.72]
    found = measures.lead_of_middle_layers(subject(curve, LATE), "parts_of_speech")
    assert (found.value, found.low, found.high) == pytest.approx((0.15, 0.15 - 2 * HALF, 0.15 + 2 * HALF))
    assert found.control == pytest.approx(-0.002)  # layer 4 beside layer 6
    assert measures.lead_of_middle_layers(subject(curve, LATE), "relations").value == pytest.approx(-0.05)
    above_in_embeddings = [0.99, *curve[1:]]
    found = measures.lead_of_middle_layers(subject(above_in_embeddings, LATE), "parts_of_speech")
    assert found.value == pytest.approx(-0.09)


@pytest.mark.numeric
def test_all_layers_and_the_control_are_needed() -> None:
    with pytest.raises(NotMeasurable, match="untrained"):
        measures.lead_of_middle_layers(subject(EARLY, LATE, untrained=None), "relations")
    with pytest.raises(NotMeasurable, match="second third"):
        measures.lead_of_middle_layers(subject([0.5, 0.6], LATE), "parts_of_speech")
    one_layer = Run(Path("fit"), {}, {}, Table(list(fit(EARLY).accuracy)[3:4]), Table())
    with pytest.raises(NotMeasurable, match="all layers"):
        measures.layers_from_speech_to_syntax(ModelRuns("any", {"parts_of_speech": one_layer, "relations": one_layer}))


def answer(layer: int, linear: float, preference: float, condition: str = "model") -> dict[str, Any]:
    return {
        "task": "subject_noun", "condition": condition, "layer": layer, "test": 1 - layer / 100, "first_noun": linear,
        "first_noun_low": linear - 0.02, "first_noun_high": linear + 0.01, "preference": preference,
        "preference_low": preference - 0.03, "preference_high": preference + 0.02,
    }  # fmt: skip


def order_subject(*rows: dict[str, Any]) -> ModelRuns:
    return ModelRuns(
        "any", {"hierarchy": results_of("hierarchy", Path("hierarchy"), {}, {}, Table(list(rows)), Table())}
    )


ROWS = [
    answer(0, 1.0, -1.0), answer(1, 0.8, -0.7), answer(2, 0.4, 0.1), answer(3, 0.1, 0.7), answer(4, 0.2, 0.5),
    answer(0, 1.0, -1.0, "untrained"), answer(1, 1.0, 0.9, "untrained"), answer(3, 1.0, -0.8, "untrained"),
    answer(4, 1.0, -0.9, "untrained"),
]  # fmt: skip


def test_the_first_layer_is_the_first_block_and_not_the_embeddings() -> None:
    found = order_measures.linear_answers_in_first_layer(order_subject(*ROWS), "subject_noun")
    assert (found.value, found.low, found.high) == pytest.approx((0.8, 0.78, 0.81))
    assert found.control == 0.99


def test_the_least_preference_is_that_of_upper_layers_of_the_model_and_its_control() -> None:
    found = order_measures.preference_for_hierarchy(order_subject(*ROWS), "subject_noun", 0.66)
    assert (found.value, found.low, found.high) == pytest.approx((0.5, 0.47, 0.52))
    assert found.control == -0.8  # of layers 3 and 4
    assert order_measures.preference_for_hierarchy(order_subject(*ROWS), "subject_noun", 0.5).value == 0.1


def test_a_task_that_was_not_run_and_a_missing_control_are_not_measurable() -> None:
    with pytest.raises(NotMeasurable, match="main_auxiliary"):
        order_measures.linear_answers_in_first_layer(order_subject(*ROWS), "main_auxiliary")
    with pytest.raises(NotMeasurable, match="untrained"):
        order_measures.preference_for_hierarchy(order_subject(*ROWS[:5]), "subject_noun", 0.66)


GROUPS = [
    {"group": "all", "share": 0.6, "low": 0.5, "high": 0.7},
    {"group": "affirmative", "share": 1.0, "low": 0.63, "high": 1.0},
    {"group": "negated", "share": 0.125, "low": 0.003, "high": 0.53},
]


def change(condition: str, against: str, difference: float) -> dict[str, Any]:
    ends = {"difference_low": difference - 0.1, "difference_high": difference + 0.2}
    return {"condition": condition, "against": against, "difference": difference, **ends}


CHANGES = [
    {"condition": "intact", "loss": 2.0}, change("words_shuffled", "intact", 1.5),
    change("name_replaced", "intact", 0.4), change("noun_replaced", "intact", 0.3),
    change("name_replaced", "noun_replaced", 0.1),
]  # fmt: skip


def mask_subject(**tables: list[dict[str, Any]]) -> ModelRuns:
    made = results_of("cloze", Path("cloze"), {}, {}, **{name: Table(rows) for name, rows in tables.items()})
    return ModelRuns("any", {"minimal_pairs": made, "changed_text": made})


def test_the_share_of_a_group_may_have_that_of_another_as_control() -> None:
    found = order_measures.share_of_pairs(mask_subject(groups=GROUPS), "negated", beside="affirmative")
    assert (found.value, found.low, found.high, found.control) == (0.125, 0.003, 0.53, 1.0)
    assert order_measures.share_of_pairs(mask_subject(groups=GROUPS), "affirmative").control is None


@pytest.mark.parametrize("names", [("agreement",), ("negated", "agreement")])
def test_a_group_that_the_file_does_not_have_is_named(names: tuple[str, ...]) -> None:
    with pytest.raises(NotMeasurable, match="`agreement` in the file that `--cloze` names"):
        order_measures.share_of_pairs(mask_subject(groups=GROUPS), *names)


def test_a_change_is_compared_with_the_text_as_it_is_or_with_another_change() -> None:
    found = order_measures.loss_in_changed_text(mask_subject(changes=CHANGES), "words_shuffled")
    assert (found.value, found.low, found.high) == pytest.approx((1.5, 1.4, 1.7))
    assert found.control is None
    beside = order_measures.loss_in_changed_text(mask_subject(changes=CHANGES), "name_replaced", "noun_replaced")
    assert (beside.value, beside.control) == (0.1, 0.4)


def test_names_need_a_treebank() -> None:
    with pytest.raises(NotMeasurable, match="a treebank as `--corpus`"):
        order_measures.loss_in_changed_text(mask_subject(changes=CHANGES[:2]), "name_replaced", "noun_replaced")


def pool(name: str, pooling: str, value: float, layer: int = 6, **others: Any) -> dict[str, Any]:
    usual = {"set": name, "pooling": pooling, "layer": layer, "transform": "none", "aggregation": "all"}
    return {**usual, "spearman": value, "low": value - 0.02, "high": value + 0.01, **others}


POOLED_ROWS = [
    pool("STS12", "mean", 0.7), pool("STS12", "cls", 0.5), pool("SICK", "mean", 0.65), pool("SICK", "cls", 0.6),
    pool("SICK", "cls", 0.9, layer=3), pool("SICK", "cls", 0.9, transform="whiten"),
    pool("SICK", "cls", 0.9, aggregation="mean"), pool("STS13", "mean", 0.1),
    {"set": "SICK", "pooling": "static", "transform": "none", "aggregation": "all", "spearman": 0.4},
]  # fmt: skip
CHOSEN = [
    pool("STS12", "mean", 0.8, protocol="held_out"), pool("STS12", "cls", 0.6, layer=2, protocol="held_out"),
    pool("SICK", "mean", 0.6, protocol="held_out"), pool("SICK", "cls", 0.7, protocol="held_out"),
    pool("SICK", "cls", 0.1, protocol="published"),
]  # fmt: skip


def pooled_subject(chosen: list[dict[str, Any]] = CHOSEN) -> ModelRuns:
    return ModelRuns("any", {"pooling": results_of("sts", Path("sts"), {}, {}, Table(POOLED_ROWS), Table(chosen))})


def test_the_lead_is_that_of_the_last_layer_and_of_the_set_with_least() -> None:
    found = least_lead_of_pooling(pooled_subject(), "mean", "cls")
    assert (found.value, found.low, found.high) == pytest.approx((0.05, 0.02, 0.08))
    assert found.control == pytest.approx(-0.1)  # at layers chosen on other pairs
    assert least_lead_of_pooling(pooled_subject(CHOSEN[-1:]), "mean", "cls").control is None


def test_both_poolings_are_needed() -> None:
    with pytest.raises(NotMeasurable, match="poolings first_last and mean"):
        least_lead_of_pooling(pooled_subject(), "first_last", "mean")


def of_arm(arm: str, seed: int, layer: int, step: int = 10, **columns: Any) -> dict[str, Any]:
    usual = {
        "loss": 2.0 if arm == "learned" else 3.0, "max_mean_sd": 2.0, "outlier_neuron": 5, "argmax_share": 0.1,
        "argmin_share": 0.1, "position_accuracy": 0.2, "token_accuracy": 0.15, "equivariance": 0.0,
    }  # fmt: skip
    return {"arm": arm, "seed": seed, "step": step, "layer": layer, **usual, **columns}


BOTH = [of_arm(arm, seed, layer) for arm in ("learned", "none") for seed in (0, 1) for layer in (0, 1, 2)]


def of_arms(*rows: dict[str, Any]) -> ModelRuns:
    """Return encoders with these rows in the place of the usual ones."""
    keys = {(one["arm"], one["seed"], one["layer"], one["step"]): one for one in (*BOTH, *rows)}
    return ModelRuns(
        "pretrain-tiny", {"pretraining": results_of("pretrain", Path("p"), {}, {}, Table(keys.values()), Table())}
    )


def of_seed(arm: str, seed: int, **columns: Any) -> list[dict[str, Any]]:
    return [of_arm(arm, seed, layer, **columns) for layer in (0, 1, 2)]


def test_perplexities_are_compared_with_those_published_and_the_farther_counts() -> None:
    one = of_arms(*of_seed("none", 0, loss=math.log(300)), *of_seed("none", 1, loss=math.log(400)),
                  *of_seed("learned", 0, loss=math.log(4)), *of_seed("learned", 1, loss=math.log(4)))  # fmt: skip
    found = pretrained_measures.distance_from_perplexities(one, without=354.0, with_=4.0)
    ends = sorted((1 - 300 / 354, 400 / 354 - 1))
    assert (found.low, found.high) == pytest.approx(tuple(ends))
    assert found.value == pytest.approx(sum(ends) / 2)
    assert pretrained_measures.distance_from_perplexities(one, without=354.0, with_=8.0).value == pytest.approx(0.5)


def test_the_loss_without_positions_is_paired_by_seed() -> None:
    one = of_arms(*of_seed("none", 0, loss=3.5), *of_seed("learned", 1, loss=2.8))
    found = pretrained_measures.loss_without_positions(one)  # 1.5 and .2
    assert (found.value, found.low, found.high) == pytest.approx((0.85, 0.2, 1.5))


def test_equivariance_is_that_of_the_arm_without_positions_above_the_embeddings() -> None:
    one = of_arms(of_arm("none", 1, 2, equivariance=3e-6), of_arm("none", 0, 0, equivariance=1.0),
                  of_arm("learned", 0, 1, equivariance=2.0), of_arm("none", 0, 1, position_accuracy=0.4))  # fmt: skip
    found = pretrained_measures.largest_equivariance(one)
    assert (found.value, found.control) == pytest.approx((3e-6, 0.25))


def test_the_share_is_that_of_the_layer_where_it_is_most_and_the_least_over_seeds() -> None:
    one = of_arms(of_arm("learned", 0, 1, argmax_share=0.9), of_arm("learned", 1, 2, argmin_share=0.6),
                  of_arm("learned", 1, 0, argmax_share=1.0), of_arm("none", 0, 1, argmax_share=1.0))  # fmt: skip
    found = pretrained_measures.share_of_largest(one)
    assert (found.value, found.control) == pytest.approx((0.6, 1.0))


def test_the_farthest_mean_without_positions_is_beside_that_with_them() -> None:
    one = of_arms(of_arm("none", 1, 2, max_mean_sd=4.0), of_arm("none", 1, 0, max_mean_sd=9.0),
                  of_arm("learned", 0, 1, max_mean_sd=7.0), of_arm("learned", 1, 1, max_mean_sd=6.0))  # fmt: skip
    found = pretrained_measures.farthest_without_positions(one)
    assert (found.value, found.control) == (4, 6)


def test_only_the_last_checkpoint_of_each_seed_counts() -> None:
    one = of_arms(*(of_arm("none", 0, layer, step=5, max_mean_sd=9.0) for layer in (1, 2)))
    assert pretrained_measures.farthest_without_positions(one).value == 2
    later = of_arms(*(of_arm("none", 0, layer, step=15, max_mean_sd=3.0) for layer in (1, 2)))
    assert pretrained_measures.farthest_without_positions(later).value == 3


def test_outliers_of_seeds_are_compared_as_sets() -> None:
    def outlier(seed: int, layer: int, neuron: int) -> dict[str, Any]:
        return of_arm("learned", seed, layer, max_mean_sd=6.0, outlier_neuron=neuron)

    same = of_arms(outlier(0, 1, 3), outlier(1, 1, 3))
    assert pretrained_measures.seeds_with_other_outliers(same).value == 0
    other = of_arms(outlier(0, 1, 3), outlier(1, 1, 3), outlier(1, 2, 4))
    found = pretrained_measures.seeds_with_other_outliers(other)
    assert (found.value, found.neurons) == (1, (3, 4))
    third = of_arms(outlier(0, 1, 3), outlier(1, 1, 3), *of_seed("learned", 2), outlier(2, 1, 4))
    assert pretrained_measures.seeds_with_other_outliers(third).value == pytest.approx(2 / 3)
    with pytest.raises(NotMeasurable, match="fewer than two seeds have an outlier"):
        pretrained_measures.seeds_with_other_outliers(of_arms(outlier(0, 1, 3)))


def test_an_arm_that_was_not_trained_is_not_measured() -> None:
    rows = Table(one for one in BOTH if one["arm"] == "learned")
    only = ModelRuns("m", {"pretraining": results_of("pretrain", Path("p"), {}, {}, rows, Table())})
    with pytest.raises(NotMeasurable, match="no arm none"):
        pretrained_measures.farthest_without_positions(only)


def tuned_subject(**runs: Any) -> ModelRuns:
    return ModelRuns("any", runs)


@pytest.mark.parametrize("constant", ["majority", "mean"])
def test_the_gain_is_the_lesser_of_that_by_tuning_and_that_by_pretraining(constant: str) -> None:
    found = tuned_measures.least_gain_by_tuning(tuned_subject(tuned=tuned(0.6, 0.5, 0.45, constant)))
    assert (found.value, found.low, found.high) == pytest.approx((0.1, 0.05, 0.15))  # over the random start
    assert found.control == pytest.approx(0.5)  # shuffled labels give 0.15 of 0.3
    found = tuned_measures.least_gain_by_tuning(tuned_subject(tuned=tuned(0.4, 0.1, 0.2, constant)))
    assert (found.value, found.control) == pytest.approx((0.1, 0))  # over the constant answer
    assert tuned_measures.least_gain_by_tuning(tuned_subject(tuned=tuned(0.2, 0.1, 0.2))).control is None


def test_a_run_of_fewer_starts_says_nothing_of_the_gain() -> None:
    rows = [row for row in tuned(0.6, 0.4, 0.3).differences if row["answer"] != "shuffled"]
    with pytest.raises(NotMeasurable, match="with all starts"):
        tuned_measures.least_gain_by_tuning(
            tuned_subject(tuned=results_of("finetune", Path("x"), {}, {}, differences=Table(rows)))
        )


def changed(*cosines: float) -> Any:
    rows = [
        {"layer": layer, "measure": "cosine", "of": "same", "value": one, "low": one - 0.01, "high": one + 0.01}
        for layer, one in enumerate(cosines, start=1)
    ]
    return results_of("attention", Path("x"), {}, {}, change=Table(rows))


def test_a_lead_of_the_last_layers_is_shared_with_that_of_shuffled_labels() -> None:
    found = tuned_measures.lead_of_change_by_tuning(
        tuned_subject(tuned_change=changed(0.9, 0.8, 0.4), shuffled_change=changed(0.99, 0.98, 0.88)), 1
    )
    assert (found.value, found.low, found.high) == pytest.approx((0.4, 0.38, 0.42))
    assert found.control == pytest.approx(0.25)
    backwards = tuned_subject(tuned_change=changed(0.4, 0.8, 0.9), shuffled_change=changed(0.99, 0.98, 0.88))
    assert tuned_measures.lead_of_change_by_tuning(backwards, 1).control is None


@pytest.mark.parametrize("readout", ["tuned", "tuned_r2"])
def test_a_gain_without_a_head_or_a_layer_is_put_beside_that_of_random_ones(readout: str) -> None:
    runs = tuned_subject(ablated_task=ablated(0.03, readout))
    for found, others in (
        (tuned_measures.gain_for_task(runs), -0.04),
        (tuned_measures.gain_without_layer(runs, 1), -0.1),
    ):
        assert (found.value, found.low, found.high) == pytest.approx((0.03, 0.02, 0.04))
        assert found.control == pytest.approx(0.03 - others)
    with pytest.raises(NotMeasurable, match="a layer 13"):
        tuned_measures.gain_without_layer(runs, 13)
    other = tuned_subject(ablated_task=ablated(0.03, "mlm"))
    with pytest.raises(NotMeasurable, match="more sentences"):
        tuned_measures.gain_for_task(other)


@pytest.mark.parametrize("measure", [tuned_measures.heads_pruned_together, tuned_measures.weights_pruned])
def test_what_can_be_pruned_ends_where_a_loss_begins(measure: Any) -> None:
    found = measure(tuned_subject(pruned_task=pruned(0.5)), 0.01)
    assert (found.value, found.low, found.high, found.control) == pytest.approx((0.5, 0.5, 0.5, 0.1))
    strict = measure(tuned_subject(pruned_task=pruned(0.5)), 0.001)
    assert (strict.value, strict.low, strict.high) == (0.5, 0, 0.5)  # whose interval is wider than that
    lax = measure(tuned_subject(pruned_task=pruned(0.5)), 0.103)
    assert (lax.value, lax.low, lax.high) == (1, 0.5, 1)
    with pytest.raises(NotMeasurable, match="--prune all"):
        measure(tuned_subject(pruned_task=pruned(0.5, "mlm")), 0.01)


def test_a_larger_share_without_a_loss_behind_one_with_it_does_not_count() -> None:
    rows = [dict(row) for row in pruned(0.5).weight_pruning]
    for row in rows:
        if row["order"] == "magnitude" and row["share"] == 0.2:
            row |= {"effect": -0.2, "low": -0.3, "high": -0.1}
    run = results_of("ablate", Path("x"), {}, {}, weight_pruning=Table(rows))
    found = tuned_measures.weights_pruned(tuned_subject(pruned_task=run), 0.01)
    assert (found.value, found.low, found.high) == (0.1, 0.1, 0.1)
    assert found.control == pytest.approx(0.1 - 0.4)


def test_a_head_below_the_last_layer_is_held_against_the_best_of_the_others() -> None:
    found = tuned_measures.lead_of_lower_head(ModelRuns("any", tuned_runs_of(True)), 2)
    assert (found.value, found.low, found.high) == pytest.approx((0.3, 0.2, 0.4))
    assert found.control == pytest.approx(0.3)
    found = tuned_measures.lead_of_lower_head(ModelRuns("any", tuned_runs_of(False)), 2)
    assert (found.value, found.control) == pytest.approx((-0.3, -0.3))


def geometry(*outliers: tuple[int, int, float], **about: Any) -> Result:
    """Return a run with outliers by the profile of the mean: layer, neuron, deviation."""
    usual = {"definition": "mean_profile", "special_tokens": "exclude"}
    rows = [{**usual, "layer": layer, "neuron": k, "value": value, **about} for layer, k, value in outliers]
    none = Table()
    return results_of("geometry", Path("g"), {"special_tokens": "exclude"}, {}, none, Table(rows), none, none, none)


def test_published_outliers_are_those_of_the_paper() -> None:
    subject = ModelRuns("bert", {}, {"minimum": 557})
    assert subject.neuron("minimum") == 557
    assert subject.outliers() == {"minimum": 557}
    with pytest.raises(NotMeasurable, match="names no outlier of bert that is a maximum"):
        subject.neuron("maximum")


def test_another_model_has_the_outlier_of_the_most_layers_above_the_embeddings() -> None:
    run = geometry((0, 1, -30), (0, 1, -31), (1, 2, -6), (2, 2, -6), (1, 3, -29), (1, 4, 7), (2, 5, 8), (3, 4, 6))
    subject = ModelRuns("m", {"geometry": run})
    assert subject.outliers() == {"minimum": 2, "maximum": 4}
    assert subject.outliers(["maximum"]) == {"maximum": 4}


def test_of_outliers_of_as_many_layers_the_farther_one_counts() -> None:
    assert ModelRuns("m", {"geometry": geometry((1, 2, -6), (2, 3, -7))}).neuron("minimum") == 3
    assert ModelRuns("m", {"geometry": geometry((1, 3, -7), (2, 2, -6))}).neuron("minimum") == 3
    assert ModelRuns("m", {"geometry": geometry((1, 3, -6), (2, 2, -6))}).neuron("minimum") == 2


@pytest.mark.parametrize("about", [{"definition": "variance"}, {"special_tokens": "include"}])
def test_other_definitions_and_other_tokens_name_no_outlier(about: dict[str, str]) -> None:
    with pytest.raises(NotMeasurable, match="no neuron's mean is beyond 5 sd below the others' in any layer"):
        ModelRuns("m", {"geometry": geometry((1, 2, -6), **about)}).neuron("minimum")


def test_a_model_with_one_outlier_has_no_other_role() -> None:
    subject = ModelRuns("m", {"geometry": geometry((1, 2, 6))})
    assert subject.outliers() == {"maximum": 2}
    with pytest.raises(NotMeasurable, match="below"):
        subject.outliers(["minimum", "maximum"])
    with pytest.raises(NotMeasurable):
        ModelRuns("m", {"geometry": geometry()}).outliers()


def test_every_measure_has_a_first_line_that_says_what_it_returns() -> None:
    assert len(MEASURES) > 15
    for measure in MEASURES.values():
        assert (measure.function.__doc__ or "").startswith("Return ")
