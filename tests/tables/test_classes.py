"""What is shown and said of classes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from probing.runtime.terminal import render
from probing.statistics.intervals import MIN_SENTENCES
from probing.tables.probes import are_unequal, classes_table, confusion_shares, worst_class


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
        "Layer 3: macro F1 is 0.512; of the classes that the test part has 10 times or more, INTJ is read worst (F1 "
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
