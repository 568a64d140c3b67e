"""What `fit` prints: the answer first, then what to distrust; layer by layer, one line each."""

from __future__ import annotations

from typing import Any

import pytest

from probing.runtime.terminal import render
from probing.tables.columns import UNINFORMATIVE
from probing.tables.conclusions import held_against, held_against_by_layer, leading, why_leading
from probing.tables.probes import accuracies, answer, distrust, layers_table


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
    ranked = [{"layer": i, "contribution": 0.0} for i in range(len(rows))]
    assert answer(rows, ranked, "position", {}, {"probe": {}})[0] == accuracies(rows)


@pytest.mark.parametrize(
    ("changes", "first", "why"),
    [
        # The highest accuracy, unless a floor rises with it; the strongest floor counts, and in each layer its own.
        ([{}, {"accuracy": 0.8}, {}], 1, "by 0.700 (the majority class, 0.100)."),
        ([{}, {"accuracy": 0.8, "token_accuracy": 0.75}, {"token_accuracy": 0.2}], 0, "(the majority class, 0.100)."),
        ([{"token_accuracy": 0.45}] * 2 + [{"token_accuracy": 0.2, "shuffled_accuracy": 0.3}], 2, "(labels shuffled"),
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
    ranked = [{"layer": i, "contribution": 0.0} for i in range(len(rows))]
    assert f"Layer {first}: no neuron contributes" in " ".join(answer(rows, ranked, "position", {}, {"probe": {}}))


def test_without_controls_numbers_are_held_against_a_constant_answer_and_one_layer_leads_silently() -> None:
    rows = [{"layer": i, "r2": r2, "flag": ""} for i, r2 in enumerate([0.1, 0.4, 0.2])]
    assert why_leading(rows).endswith(
        "whose R² is furthest above its strongest floor, by 0.400 (a constant answer, 0.000)."
    )
    assert why_leading(rows[:1]) == ""


@pytest.mark.parametrize(("low", "high", "is_said"), [(-0.4, -0.2, True), (-0.1, 0.1, False), (0.1, 0.2, False)])
def test_a_randomly_initialised_model_that_is_read_better_is_explained(low: float, high: float, is_said: bool) -> None:
    beside = {"untrained_accuracy": 0.9, "above_untrained_low": low, "above_untrained_high": high}
    said = held_against(layer(0, 0.5, **beside, above_majority_low=0.1, above_majority_high=0.2), "position")
    end = "the randomly initialised model (0.900), a ceiling, not a floor: it passes position on as it comes in."
    assert said.endswith(end) is is_said
    assert ("ceiling" in said) is is_said
    assert "ceiling" not in held_against(layer(0, 0.5), "position")


def test_the_ceiling_is_the_last_of_the_controls_that_are_not_beaten() -> None:
    low = {"low": -0.4, "high": -0.2}
    beside = {f"above_{name}_{end}": value for name in ("untrained", "token") for end, value in low.items()}
    said = held_against(layer(0, 0.5, untrained_accuracy=0.9, token_accuracy=0.8, **beside), "position")
    assert "below the token alone (0.800) and the randomly initialised model (0.900), a ceiling" in said


def test_each_layer_has_one_line_with_its_first_neurons_and_the_first_one_without_a_flag() -> None:
    accuracy = [layer(0, 0.9), layer(1, 0.1, flag=UNINFORMATIVE), layer(2, 0.5)]
    ranked = [*neurons(0, ["offset", "", ""]), *neurons(1, ["", "", ""]), *neurons(2, ["offset", "offset", "offset"])]
    lines = [line.split() for line in render(layers_table(accuracy, ranked)).splitlines()]
    assert ["0", "0.900", "0.850-0.950", "0.100", "10", "11", "12", "11"] in lines
    assert ["1", "0.100", "0.050-0.150", "0.100", "not", "to", "be", "read"] in lines
    assert ["2", "0.500", "0.450-0.550", "0.100", "10", "11", "12"] in lines


def test_layers_whose_rankings_are_not_to_be_read_are_named_once() -> None:
    accuracy = [layer(0, 0.9), layer(1, 0.1, flag=UNINFORMATIVE), layer(2, 0.1, flag=UNINFORMATIVE)]
    over = {"intervals_over": {"unit": "sentence", "n": 100}, "n_sentences": {"test": 100}}
    results = {"layers": [{"layer": i, "converged": i != 2} for i in range(3)], **over}
    said = distrust(accuracy, [], [], "position", results, {"test_corpus": None})
    assert said[0].startswith("Do not read the rankings of layers 1 and 2:") or "layers 1-2" in said[0]
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
    assert held_against_by_layer(rows, "position") == (
        "In every layer it is above the majority class; below the randomly initialised model, a ceiling, not a floor: "
        "it passes position on as it comes in. It is above the token alone in layer 1, not told apart from it in layer "
        "0 and below it in layer 2."
    )
    few = [{"layer": i, "accuracy": 0.6, "majority_accuracy": 0.1} for i in range(2)]
    assert held_against_by_layer(few, "position") == "In layer 1, compare it with the majority class (0.100)."


def test_layers_that_are_led_by_a_mean_are_named_with_what_ranks_otherwise() -> None:
    accuracy = [layer(i, 0.9) for i in range(3)]
    over = {"intervals_over": {"unit": "sentence", "n": 100}, "n_sentences": {"test": 100}, "layers": []}
    ranked = [*neurons(0, ["offset", ""]), *neurons(1, ["", "offset"]), *neurons(2, ["offset no-signal", ""])]
    said = " ".join(distrust(accuracy, ranked, [], "position", over, {"test_corpus": None}))
    assert "In layers 0 and 2 the first neuron contributes mostly by its mean" in said
    by_centred = {"test_corpus": None, "sort": "centred"}  # shows other neurons first, and is what would be advised
    assert "by its mean" not in " ".join(distrust(accuracy, ranked, [], "position", over, by_centred))
    others = [*neurons(0, ["", "offset"]), *neurons(1, [""]), *neurons(2, [""])]
    assert "by its mean" not in " ".join(distrust(accuracy, others, [], "position", over, {"test_corpus": None}))
