"""Sentences on neurons that are at the top of every run."""

from __future__ import annotations

import pytest

from probing.studies.compare.tables import agreement_tables, everywhere_sentence, unread_lines, verdicts

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


def rows_of(pair: tuple[str, str]) -> list[dict[str, object]]:
    """Return rows of three layers by three, of which those of the same depth agree in layers 1 and 2."""
    return [
        {"model_a": pair[0], "model_b": pair[1], "matching": "index", "statistic": statistic, "layer_a": i,
         "layer_b": j, "value": 0.5 + 0.1 * i if i == j else 0.99, "p_value": 0.01 if i else 0.2, "chance_low": 0.0,
         "chance_high": 0.2, "n_neurons": 60, "null": "shuffled_labels", "same_depth": "yes" if i == j else "no"}
        for i in range(3) for j in range(3) for statistic in ("overlap", "spearman")
    ]  # fmt: skip


def test_the_verdict_is_on_layers_of_the_same_depth() -> None:
    found = verdicts([*rows_of(("a", "b")), *rows_of(("a", "c"))], {}, 10)
    assert list(found) == ["a, b", "a, c"]
    assert found["a, b"] == (
        "a and b rank neurons alike only in part: in layers of the same relative depth, 5 to 7 of the first 10 neurons "
        "are in common (0 to 2 by chance; above it in 2 of 3 pairs of layers), and Spearman's correlation of the "
        "rankings is 0.50 to 0.70 (above chance in 2)."
    )


def test_the_legend_stands_once_under_the_last_table() -> None:
    first, last = agreement_tables([*rows_of(("a", "b")), *rows_of(("a", "c"))], 10)
    assert first.caption is None
    explained = {part.split(": ")[0] for line in last.caption.splitlines() for part in line.split("; ")}
    assert {column.header for column in last.columns} - explained == {"layers", "Spearman", "95% range"}
    assert "95% of what rankings under shuffled labels give" in last.caption
