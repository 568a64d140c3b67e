"""What is printed of runs: the answer, what to distrust, classes, columns, agreement and what a model loses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from probing.results import Schema, Table, estimate, interval, number, shown
from probing.runtime.terminal import render
from probing.statistics import MIN_SENTENCES
from probing.studies.ablate.tables import SCHEMAS as ABLATE_SCHEMAS
from probing.studies.ablate.tables import conclusions
from probing.studies.compare.tables import (
    agreement_tables,
    everywhere_sentence,
    neurons_tables,
    other_depths_lines,
    unread_layers,
    unread_lines,
    verdicts,
)
from probing.tables import UNINFORMATIVE, layer_flag
from probing.tables.conclusions import compare_layers_with_controls, compare_with_controls, leading, why_leading
from probing.tables.probes import (
    accuracies,
    are_unequal,
    caveats,
    classes_table,
    confusion_shares,
    layers_table,
    run_sentences,
    worst_class,
)


def layer(number: int, accuracy: float, **more: Any) -> dict[str, Any]:
    """Return a row of `accuracy.csv`."""
    ends = {"accuracy_low": accuracy - 0.05, "accuracy_high": accuracy + 0.05}
    return {"layer": number, "accuracy": accuracy, **ends, "majority_accuracy": 0.1, "flag": "", **more}


def neurons(number: int, flags: list[str]) -> list[dict[str, Any]]:
    """Return the rows of `neurons.csv` of a layer with neurons 10, 11, ... in ranked order."""
    row = {"layer": number, "contribution": 1.0}
    return [{**row, "rank": rank, "neuron": 9 + rank, "flag": flag} for rank, flag in enumerate(flags, start=1)]


@pytest.mark.parametrize(
    ("scores", "said"),
    [
        ([0.5], "In layer 0 the probe reaches an accuracy of 0.500 (0.450 to 0.550)."),
        ([0.9, 0.5], "in layer 1; it is highest in layer 0."),
        ([0.5, 0.9], "in layer 1, the highest."),
        ([0.5, 0.9, 0.4], "0.900 (0.850 to 0.950) in layer 1, the highest, and 0.400"),
    ],
)
def test_the_answer_begins_with_how_well_the_task_is_read(scores: list[float], said: str) -> None:
    rows = [layer(i, score) for i, score in enumerate(scores)]
    assert said in accuracies(rows)
    ranked = [{"layer": i, "contribution": 0.0, "rank": 1, "flag": ""} for i in range(len(rows))]
    assert answer_of(rows, ranked)[0] == accuracies(rows)


@pytest.mark.parametrize(
    ("changes", "first", "why"),
    [
        # The highest accuracy, unless a floor rises with it; the strongest floor counts, and in each layer its own.
        ([{}, {"accuracy": 0.8}, {}], 1, "by 0.700 (the majority class, 0.100)."),
        ([{}, {"accuracy": 0.8, "token_accuracy": 0.75}, {"token_accuracy": 0.2}], 0, "(the majority class, 0.100)."),
        ([{"token_accuracy": 0.45}] * 2 + [{"token_accuracy": 0.2, "shuffled_accuracy": 0.3}], 2, "(shuffled labels"),
        # Equal to three digits: the last one.
        ([{"accuracy": 0.5004}, {}, {}], 2, "by 0.400"),
        # What is not to be read comes last, and leads where nothing else is there.
        ([{}, {}, {"accuracy": 0.9, "flag": UNINFORMATIVE}], 1, "0.100), of the layers whose ranking may be read."),
        ([{"flag": UNINFORMATIVE}, {"flag": UNINFORMATIVE, "accuracy": 0.6}], 1, "layer 1"),
        # A model without training is a ceiling of positions, and a floor of other labels.
        ([{"untrained_accuracy": 0.1, "within_one": 1}, {"accuracy": 0.6, "untrained_accuracy": 0.9, "within_one": 1}],
         1, "by 0.500 (the majority class"),
        ([{"untrained_accuracy": 0.2}, {"accuracy": 0.6, "untrained_accuracy": 0.55}], 0, "initialised model, 0.2"),
        # The probe of states as they are is another way of reading, and no floor.
        ([{"untransformed_accuracy": 0.2}, {"accuracy": 0.6, "untransformed_accuracy": 0.59}], 1, "the majority class"),
    ],
)  # fmt: skip
def test_the_layer_that_is_furthest_above_its_strongest_floor_leads(
    changes: list[dict[str, Any]], first: int, why: str
) -> None:
    names = {name for change in changes for name in change if name.endswith("_accuracy")}
    rows = [layer(i, 0.5, **dict.fromkeys(names, 0.0)) | change for i, change in enumerate(changes)]
    assert leading(rows)["layer"] == first
    assert f"Neurons are those of layer {first}, " in why_leading(rows)
    assert why in why_leading(rows)
    ranked = [{"layer": i, "contribution": 0.0, "rank": 1, "flag": ""} for i in range(len(rows))]
    assert f"Layer {first}: no neuron contributes" in " ".join(answer_of(rows, ranked))


def test_without_controls_numbers_are_held_against_a_constant_answer_and_one_layer_leads_silently() -> None:
    rows = [{"layer": i, "r2": r2, "flag": ""} for i, r2 in enumerate([0.1, 0.4, 0.2])]
    assert why_leading(rows).endswith(
        "whose R² is furthest above its strongest floor, by 0.400 (a constant answer, 0.000)."
    )
    assert why_leading(rows[:1]) == ""


@pytest.mark.parametrize(("low", "high", "is_said"), [(-0.4, -0.2, True), (-0.1, 0.1, False), (0.1, 0.2, False)])
def test_a_randomly_initialised_model_that_is_read_better_is_explained(low: float, high: float, is_said: bool) -> None:
    beside = {"untrained_accuracy": 0.9, "above_untrained_low": low, "above_untrained_high": high}
    said = compare_with_controls(layer(0, 0.5, **beside, above_majority_low=0.1, above_majority_high=0.2), "position")
    end = "the randomly initialised model (0.900), which is an upper bound, not a baseline: untrained layers preserve "
    end += "position."
    assert said.endswith(end) is is_said
    assert ("upper bound" in said) is is_said
    assert "upper bound" not in compare_with_controls(layer(0, 0.5), "position")


def test_the_ceiling_is_the_last_of_the_controls_that_are_not_beaten() -> None:
    low = {"low": -0.4, "high": -0.2}
    beside = {f"above_{name}_{end}": value for name in ("untrained", "token") for end, value in low.items()}
    said = compare_with_controls(layer(0, 0.5, untrained_accuracy=0.9, token_accuracy=0.8, **beside), "position")
    assert "below the token alone (0.800) and the randomly initialised model (0.900), which is an upper bound" in said


def test_each_layer_has_one_line_with_its_first_neurons_and_the_first_one_without_a_flag() -> None:
    accuracy = [layer(0, 0.9), layer(1, 0.1, flag=UNINFORMATIVE), layer(2, 0.5)]
    ranked = [*neurons(0, ["offset", "", ""]), *neurons(1, ["", "", ""]), *neurons(2, ["offset", "offset", "offset"])]
    lines = [line.split() for line in render(layers_table(accuracy, ranked)).splitlines()]
    assert ["0", "0.900", "0.850-0.950", "0.100", "10", "11", "12", "11"] in lines
    assert ["1", "0.100", "0.050-0.150", "0.100", "not", "to", "be", "read"] in lines
    assert ["2", "0.500", "0.450-0.550", "0.100", "10", "11", "12"] in lines


def answer_of(accuracy: Sequence[dict[str, Any]], ranked: Sequence[dict[str, Any]]) -> list[str]:
    over = {"intervals_over": {"unit": "sentence", "n": 100}, "n_sentences": {"test": 100}, "layers": []}
    config: dict[str, Any] = {"probe": {}, "test_corpus": None}
    return run_sentences(accuracy, ranked, [], "position", over, config).answer


def test_layers_whose_rankings_are_not_to_be_read_are_named_once() -> None:
    accuracy = [layer(0, 0.9), layer(1, 0.1, flag=UNINFORMATIVE), layer(2, 0.1, flag=UNINFORMATIVE)]
    over = {"intervals_over": {"unit": "sentence", "n": 100}, "n_sentences": {"test": 100}}
    results = {"layers": [{"layer": i, "converged": i != 2} for i in range(3)], **over}
    said = caveats(accuracy, [], "position", results, {"test_corpus": None})
    assert said[0].startswith("Do not read the ranking of layers 1 and 2:")
    assert "layer 2" in said[1]


def test_every_layer_is_held_against_each_control() -> None:
    """The layers that beat a control are named, and not only the last one."""

    def beside(token: float, untrained: float) -> dict[str, float]:
        apart = {"majority": 0.3, "token": token, "untrained": untrained}
        scores = {f"{name}_accuracy": 0.5 for name in ("token", "untrained")}
        ends = {
            f"above_{name}_{end}": value + by
            for name, value in apart.items()
            for end, by in (("low", -0.05), ("high", 0.05))
        }
        return {**scores, **ends}

    rows = [layer(i, 0.6, **beside(*apart)) for i, apart in enumerate([(0.0, -0.2), (0.2, -0.2), (-0.2, -0.2)])]
    assert compare_layers_with_controls(rows, "position") == (
        "In every layer the probe is above the majority class; below the randomly initialised model, which is an "
        "upper bound, not a baseline: untrained layers preserve position. The probe is above the token alone in layer "
        "1, not distinguished from it in layer 0 and below it in layer 2."
    )
    few = [{"layer": i, "accuracy": 0.6, "majority_accuracy": 0.1} for i in range(2)]
    assert compare_layers_with_controls(few, "position") == "In layer 1, compare it with the majority class (0.100)."


def test_layers_that_are_led_by_a_mean_are_named_with_what_ranks_otherwise() -> None:
    accuracy = [layer(i, 0.9) for i in range(3)]
    over = {"intervals_over": {"unit": "sentence", "n": 100}, "n_sentences": {"test": 100}, "layers": []}
    ranked = [*neurons(0, ["offset", ""]), *neurons(1, ["", "offset"]), *neurons(2, ["offset no-signal", ""])]
    said = " ".join(caveats(accuracy, ranked, "position", over, {"test_corpus": None}))
    assert "In layers 0 and 2 the first neuron contributes mostly by its mean" in said
    by_centred = {"test_corpus": None, "sort": "centred"}  # shows other neurons first, and is what would be advised
    assert "by its mean" not in " ".join(caveats(accuracy, ranked, "position", over, by_centred))
    others = [*neurons(0, ["", "offset"]), *neurons(1, [""]), *neurons(2, [""])]
    assert "by its mean" not in " ".join(caveats(accuracy, others, "position", over, {"test_corpus": None}))


def scores(label: str, n: int, right: int, n_predicted: int, other: str = "", n_other: int = 0) -> dict[str, Any]:
    """Return a row of `class_scores.csv`."""
    return {
        "layer": 3, "class": label, "n_train_tokens": 9 * n, "n_test_tokens": n, "n_predicted": n_predicted,
        "recall": right / n if n else math.nan, "recall_low": 0.1, "recall_high": 0.9,
        "precision": right / n_predicted if n_predicted else math.nan, "precision_low": 0.2, "precision_high": 0.8,
        "f1": 2 * right / (n + n_predicted) if n + n_predicted else math.nan,
        "confused_with": other, "n_confused": n_other,
    }  # fmt: skip


ROWS = [
    scores("ADJ", 40, 30, 36, "NOUN", 7),
    scores("NOUN", 100, 90, 110, "ADJ", 4),
    scores("INTJ", 12, 3, 5, "NOUN", 6),
    scores("SYM", 4, 0, 0, "NOUN", 4),
    scores("X", 0, 0, 0),
]
OF_LAYER = {"layer": 3, "accuracy": 0.8, "macro_f1": 0.5123}


def test_the_class_with_the_lowest_f1_is_named_if_it_has_ten_tokens() -> None:
    assert worst_class(OF_LAYER, ROWS) == (
        "Layer 3: macro F1 is 0.512; of the classes that the test part has 10 times or more, INTJ is decoded worst (F1 "
        "0.353, 3 of 12 right, 6 taken for NOUN)."
    )


@pytest.mark.parametrize(
    ("row", "rows"),
    [
        ({**OF_LAYER, "within_one": 0.9}, ROWS),  # numbers have positions.csv
        ({**OF_LAYER, "accuracy": 1}, ROWS),
        (OF_LAYER, ROWS[3:]),
        (OF_LAYER, []),
        ({"layer": 3, "accuracy": 0.8}, ROWS),  # of a run before there was a macro F1
    ],
)
def test_nothing_is_said_of_numbers_of_few_tokens_and_where_all_is_right(row: Any, rows: Any) -> None:
    assert worst_class(row, rows) == ""


def test_the_table_begins_with_the_largest_class_and_says_what_is_left_out_and_missing() -> None:
    lines = [line.split() for line in render(classes_table(ROWS)).splitlines()]
    assert ["NOUN", "100", "0.900", "0.100-0.900", "0.818", "0.200-0.800", "0.857", "ADJ", "(4)"] in lines
    order = [line[0] for line in lines if line and line[0] in {row["class"] for row in ROWS}]
    assert order == ["NOUN", "ADJ", "INTJ", "SYM", "X"]
    assert "95% range:" not in render(classes_table(ROWS))
    few = [{**row, "recall_low": math.nan, "recall_high": math.nan} for row in ROWS]
    assert f"fewer than {MIN_SENTENCES} sentences" in " ".join(render(classes_table(few)).split())
    first = render(classes_table(ROWS, 2))
    assert "of 5 the 2 with most test tokens" in " ".join(first.split())
    assert "SYM" not in first


def test_shares_are_those_of_the_counts() -> None:
    generator = np.random.default_rng(0)
    counts = generator.integers(0, 5, (4, 4)) * generator.integers(0, 2, (4, 4))
    counts[2] = 0
    labels = ["a", "b", "c", "d"]
    pairs = [
        {"class": labels[i], "predicted": labels[j], "n_test_tokens": int(n)}
        for (i, j), n in np.ndenumerate(counts)
        if n
    ]
    found = np.array(confusion_shares([{"class": label} for label in labels], pairs))
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(found, counts / counts.sum(1, keepdims=True))
    assert np.isnan(found[2]).all()


def test_classes_are_unequal_where_a_constant_answer_is_good() -> None:
    def row(*shares: float) -> dict[str, float]:
        return {"macro_f1": 0.5, "prior_cross_entropy": -sum(p * math.log(p) for p in shares), "n_classes": len(shares)}

    assert are_unequal(row(0.967, 0.033))
    assert are_unequal(row(0.8, 0.1, 0.05, 0.05))
    assert not are_unequal(row(0.6, 0.4))
    assert not are_unequal(row(*[1 / 128] * 128))
    assert not are_unequal({"prior_cross_entropy": 0.1, "n_classes": 2})


@pytest.mark.parametrize(("low", "flag"), [(0.01, ""), (0.0, UNINFORMATIVE), (-0.01, UNINFORMATIVE)])
def test_a_probe_is_informative_where_the_whole_interval_is_above_a_constant_answer(low: float, flag: str) -> None:
    assert layer_flag({"information": 0.5, "information_low": low}) == flag
    assert layer_flag({"r2": 0.5, "r2_low": low}) == flag


def test_without_an_interval_nothing_is_called_informative() -> None:
    assert layer_flag({"information": 0.5, "information_low": math.nan}) == UNINFORMATIVE
    assert layer_flag({"r2": 0.5, "r2_low": math.nan}) == UNINFORMATIVE


@pytest.mark.parametrize(
    ("value", "form", "text"),
    [
        (2e-5, ".4f", "2e-05"), (-2e-5, ".4f", "-2e-05"), (0.0003, ".3f", "0.0003"), (0.00004, "+.4f", "+4e-05"),
        (0.00006, ".4f", "0.0001"), (0.0, ".4f", "0.0000"), (-0.0, ".3f", "0.000"), (0.02, ".1f", "0.02"),
        (0.3, ".0f", "0.3"), (12.0, ".4f", "12.0000"), (0.0003, ".1%", "0.03%"), (-4e-5, "+.1%", "-0.004%"),
        (0.004, ".0%", "0.4%"), (0.0, ".1%", "0.0%"),
    ],
)  # fmt: skip
def test_what_is_not_0_never_looks_like_0(value: float, form: str, text: str) -> None:
    assert shown(value, form) == text


@pytest.mark.parametrize(("value", "text"), [(4e-12, "4e-12"), (0.0, "0.000"), (-0.0, "0.000"), (0.0312, "0.031")])
def test_a_cell_that_is_not_0_never_looks_like_0(value: float, text: str) -> None:
    assert number("p_value", "Its p-value.").show({"p_value": value}) == text


def test_an_interval_in_percent_stays_in_percent() -> None:
    mass = estimate("mass", "Attention.", form=".1%")
    row = {"mass": 0.0123, "mass_low": 0.0003, "mass_high": 0.03}
    table = Table([row], Schema("t", "", [mass]))
    assert "0.03\\%--3.0\\%" in table.to_latex(["mass*"])


def test_an_interval_that_leaves_out_0_is_seen_to_do_so() -> None:
    row = {"x_low": 2e-5, "x_high": 0.0036}
    assert interval(row, "x", " to ", ".4f") == "2e-05 to 0.0036"
    assert interval(row, "x", " to ", ".4f", times=-1) == "-0.0036 to -2e-05"
    assert interval({"x_low": math.nan, "x_high": math.nan}, "x") == ""


CHANCE = {"n_layers": 4, "chance_mean": 37.578947, "chance_low": 30.0, "chance_high": 45.55, "chance_p_value": 0.05}


def common(p_value: float = 0.05, no_signal: str = "", neuron: int = 1) -> dict[str, object]:
    return {"layer": 0, "neuron": neuron, "p_value": p_value, "no_signal": no_signal}


@pytest.mark.parametrize(
    ("neurons", "start", "distinct"),
    [((1,), "1 neuron and its match are", ""), ((1, 2), "2 neurons and their matches are", ""),
     ((1, 2, 1), "3 neurons and their matches are", " (2 distinct neurons of the first run)")],
)  # fmt: skip
def test_without_shuffled_labels_the_number_stands_beside_that_of_unrelated_rankings(
    neurons: tuple[int, ...], start: str, distinct: str
) -> None:
    said = everywhere_sentence([common(neuron=neuron) for neuron in neurons], {"n_layers": 2, "chance_mean": 0.5}, 10)
    assert said == (
        f"{start} among the first 10 of every run at the same relative depth, summed over 2 layers{distinct}; for "
        "unrelated rankings, 0.5 are on average (no test, since layers share neurons)."
    )
    assert everywhere_sentence([], {"n_layers": 0, "chance_mean": 0.0}, 10) == ""


def test_layers_whose_ranking_is_not_to_be_read_are_named() -> None:
    rows = [{"layer": 3, "flag": "uninformative"}, {"layer": 4, "flag": ""}, {"layer": 5, "flag": "uninformative"}]
    lines = unread_lines({"a": rows, "b": rows[1:2]})
    assert len(lines) == 1
    assert lines[0].startswith("a: ignore layers 3 and 5, where the probe is not shown")


def test_what_shuffled_labels_give_is_rounded_for_a_reader() -> None:
    said = everywhere_sentence([common(), common(0.3), common(0.05, "a")], CHANCE, 10)
    assert "; with shuffled labels, 37.6 are on average (30 to 45.5; p = 0.05)." in said
    assert said.endswith("1 of them has a signal and is there in at most 5% of the draws of shuffled labels.")


def rows_of(pair: tuple[str, str], elsewhere: float = 0.2) -> list[dict[str, object]]:
    """Return rows of three layers by three, of which those of the same depth agree in layers 1 and 2.

    `elsewhere` is the p-value of the overlap of layers of other depths.
    """
    return [
        {"model_a": pair[0], "model_b": pair[1], "matching": "index", "statistic": statistic, "layer_a": i,
         "layer_b": j, "value": 0.5 + 0.1 * i if i == j else 0.9, "chance_low": 0.0,
         "p_value": elsewhere if i != j and statistic == "overlap" else 0.01 if i == j != 0 else 0.2,
         "chance_high": 0.2, "n_neurons": 60, "null": "shuffled_labels", "same_depth": "yes" if i == j else "no"}
        for i in range(3) for j in range(3) for statistic in ("overlap", "spearman")
    ]  # fmt: skip


def test_the_verdict_is_on_layers_of_the_same_depth() -> None:
    found = verdicts([*rows_of(("a", "b")), *rows_of(("a", "c"))], {}, 10)
    assert list(found) == ["a, b", "a, c"]
    assert found["a, b"] == (
        "a and b rank neurons alike only in part: in 3 pairs of layers of the same relative depth, 5 to 7 of the first "
        "10 neurons are in common (0 to 2 by chance in one pair taken alone; above chance in 2 of 3, corrected for 9 "
        "pairs of layers), and Spearman's correlation of the rankings is 0.50 to 0.70 (above chance in 2 of 3, "
        "corrected)."
    )


def test_layers_that_are_left_out_are_named_in_the_verdict_and_marked_in_the_table() -> None:
    rows = Table(rows_of(("a", "b")))
    unread = {"b": [{"layer": 2, "flag": "uninformative"}]}
    (verdict,) = verdicts(rows, unread, 10).values()
    assert "in 2 pairs of layers of the same relative depth (left out as uninformative: 2 with 2), 5 to 6 of" in verdict
    (table,) = agreement_tables(rows, 10, unread_layers(unread))
    assert [*table.columns[0].cells] == ["0, 0", "1, 1", "2, 2°"]
    assert table.caption.endswith("° uninformative: no evidence, and left out of the sentences")


def test_agreement_at_other_depths_is_said_with_its_number_of_pairs() -> None:
    assert other_depths_lines(rows_of(("a", "b")), {}, 10) == []
    assert other_depths_lines(rows_of(("a", "b"), 0.04), {"b": [2]}, 10) == [
        "Of the 4 pairs of layers of other relative depths, a and b have more of the first neurons in common than by "
        "chance in 4 (9 of 10), and a higher Spearman's correlation in 0 (p ≤ 0.05, corrected for 9 pairs of layers)."
    ]


def test_matches_that_correlate_no_more_than_by_chance_are_marked() -> None:
    row = {"model_a": "a", "layer_a": 0, "rank_a": 1, "neuron_a": 3, "contribution_a": 0.5, "model_b": "b",
           "layer_b": 0, "neuron_b": 4, "rank_b": 9, "contribution_b": 0.1, "chance": 0.3}  # fmt: skip
    (table,) = neurons_tables(Table([{**row, "correlation": r} for r in (0.2, 0.3, 0.4)]), {"a, b": 0})
    assert [*table.columns[6].cells] == ["0.20°", "0.30°", "0.40"]
    assert table.caption == "° correlates no more than by chance: 2 of 3 matches"


def test_the_legend_stands_once_under_the_last_table() -> None:
    first, last = agreement_tables(Table([*rows_of(("a", "b")), *rows_of(("a", "c"))]), 10)
    assert first.caption is None
    explained = {part.split(": ")[0] for line in last.caption.splitlines() for part in line.split("; ")}
    assert {column.header for column in last.columns} - explained == {"layers", "Spearman", "95% range"}
    assert "95% of what rankings under shuffled labels give in one pair of layers" in last.caption


def ablate_tables(**rows: list[dict[str, Any]]) -> dict[str, Table]:
    return {schema.name: Table(rows.get(schema.name, ()), schema) for schema in ABLATE_SCHEMAS}


@pytest.mark.parametrize(
    ("effect", "told", "extreme"),
    [(-0.02, "Position accuracy of layer 6 falls most without layer 1 (zeros): from 0.400 to 0.380, a change of -2.0 ",
      "largest loss"),
     (0.02, "Without a layer (zeros), position accuracy of layer 6 never falls: the least favourable, layer 1, takes "
      "it from 0.400 to 0.420, a change of +2.0 ", "smallest gain")],
)  # fmt: skip
def test_a_gain_is_not_called_a_loss(effect: float, told: str, extreme: str) -> None:
    rows: list[dict[str, Any]] = [
        {"unit": unit, "kind": "zero", "readout": readout, "layer": 6, "intact": 0.4, "value": 0.4 + of, "effect": of,
         "low": of - 0.01, "high": of + 0.01, "percentile": None, "p_value": 0.001, "n": 100}
        for readout in ("position", "position_retrained") for unit, of in (("1", effect), ("2", effect + 0.01))
    ]  # fmt: skip
    first, again, *_ = conclusions(ablate_tables(ablated=rows), {})
    assert first.startswith(told)
    assert f"its {extreme} is without layer 1: {100 * effect:+.1f} points" in again


@pytest.mark.parametrize(
    ("effect", "told"),
    [(0.25, "Loss of masked words rises most without layer 1 (zeros): from 2.000 to 2.250, a change of "
      "+0.250 nats (+0.150 to +0.350); it is lower without 0 of 2 layers and higher without 2"),
     (-0.25, "Without a layer (zeros), loss of masked words never rises: the least favourable, layer 2, takes it from "
      "2.000 to 1.875, a change of -0.125 nats (")],
)  # fmt: skip
def test_a_loss_that_rises_is_a_change_for_the_worse(effect: float, told: str) -> None:
    rows: list[dict[str, Any]] = [
        {"unit": unit, "kind": "zero", "readout": "mlm", "layer": 6, "intact": 2.0, "value": 2 + of, "effect": of,
         "low": of - 0.1, "high": of + 0.1, "percentile": None, "p_value": 0.001, "n": 100}
        for unit, of in (("1", effect), ("2", effect / 2))
    ]  # fmt: skip
    better = [{"units": "layers", **row, "n": 50} for row in rows[:1]]
    first, second, *_ = conclusions(ablate_tables(ablated=rows, better_without=better), {})
    assert first.startswith(told)
    begin = "No ablated layer significantly improves loss of masked words (" if effect > 0 else (
        "Loss of masked words improves without layer 1 (zero) by -0.250 nats (-0.350 to -0.150) ("
    )  # fmt: skip
    assert second.startswith(f"{begin}selected on one half of the sentences, measured on the other")
    few = [row | {"low": math.nan, "high": math.nan, "p_value": math.nan, "n": 18} for row in better]
    _, second, *_ = conclusions(ablate_tables(ablated=rows, better_without=few), {})
    assert second.endswith(f"some layer is not tested: half of the sentences are fewer than {MIN_SENTENCES}.")
