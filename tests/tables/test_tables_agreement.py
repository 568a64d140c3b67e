"""Sentences on neurons that are at the top of every run."""

from __future__ import annotations

import pytest

from probing.studies.compare.tables import everywhere_sentence, unread_lines

CHANCE = {"chance_mean": 37.578947, "chance_low": 30.0, "chance_high": 45.55, "chance_p_value": 0.05}


def common(p_value: float = 0.05, no_signal: str = "") -> dict[str, object]:
    return {"layer": 0, "neuron": 1, "p_value": p_value, "no_signal": no_signal}


@pytest.mark.parametrize(
    ("n", "start"),
    [
        (1, "1 neuron and its match are among the first 10 of every run at the same relative depth"),
        (2, "2 neurons and their matches are among the first 10 of every run at the same relative depth"),
    ],
)
def test_without_shuffled_labels_only_the_number_is_said(n: int, start: str) -> None:
    assert everywhere_sentence([common()] * n, {}, 10) == f"{start}."


def test_layers_whose_ranking_is_not_to_be_read_are_named_and_give_no_evidence() -> None:
    rows = [{"layer": 3, "flag": "uninformative"}, {"layer": 4, "flag": ""}, {"layer": 5, "flag": "uninformative"}]
    lines = unread_lines({"a": rows, "b": rows[1:2]})
    assert len(lines) == 1
    assert lines[0].startswith("a: do not read what is said of layers 3, 5, where the probe is not shown")
    said = everywhere_sentence([common()], CHANCE, 10, is_evidence=False)
    assert said.endswith("p = 0.05).")


def test_what_shuffled_labels_give_is_rounded_for_a_reader() -> None:
    said = everywhere_sentence([common(), common(0.3), common(0.05, "a")], CHANCE, 10)
    assert "; with shuffled labels, 37.6 are on average (30 to 45.5; p = 0.05)." in said
    assert said.endswith("1 of them has a signal and is there in at most 5% of the draws of shuffled labels.")
