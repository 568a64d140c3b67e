"""How well each class is read: its table, what is confused, and a sentence on the class that is read worst."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from probing.results.schema import Row, ends, shown_table
from probing.statistics.intervals import MIN_SENTENCES
from probing.tables.evidence_sentences import say
from probing.tables.schema import CLASS_SCORES

Rows = Sequence[Row]
# Classes are unequal where a constant answer is off by less than this share of what it is with equal ones, in nats.
EQUAL = 0.9
# Of a class with fewer test tokens a sentence would say more than is known.
FEW = 10
# Most classes in the table of a terminal.
MOST = 20
# Columns of the table of classes; an asterisk shows the interval.
SHOWN = "class", "n_test_tokens", "recall*", "precision*", "f1"


def are_unequal(row: Row) -> bool:
    """Whether the classes of a run are of so unequal sizes that accuracy says little, given a row of `accuracy.csv`."""
    if "macro_f1" not in row or "prior_cross_entropy" not in row:
        return False
    return bool(row["prior_cross_entropy"] < EQUAL * math.log(row["n_classes"]))


def classes_table(rows: Rows, most: int = MOST) -> Any:
    """Return the classes of one layer as a rich table, those with most test tokens first.

    Args:
        rows: Rows of `class_scores.csv` of one layer.
        most: Most classes to show.
    """
    shown = sorted(rows, key=lambda row: -row["n_test_tokens"])[:most]
    which = f", of {len(rows)} the {most} with most test tokens" * (len(rows) > most)
    title = f"Layer {rows[0]['layer']}: recall and precision of each class{which}"
    table = shown_table(CLASS_SCORES, shown, title, SHOWN, {CLASS_SCORES["confused_with"].words: _taken_for})
    if any(ends(row, name) is None for row in shown for name in ("recall", "precision")):
        table.caption, table.caption_justify = say("note_of_classes", least=MIN_SENTENCES), "left"
    return table


def _taken_for(row: Row) -> str:
    return f"{row['confused_with']} ({row['n_confused']})" if row["n_confused"] else ""


def worst_class(row: Row, scores: Rows) -> str:
    """Return a sentence on the class with the lowest F1 among those with `FEW` test tokens, and what it is taken for.

    It is empty where classes are numbers, or nothing is wrong.

    Args:
        row: The layer's row of `accuracy.csv`.
        scores: Its rows of `class_scores.csv`.
    """
    there = [one for one in scores if one["n_test_tokens"] >= FEW]
    if "macro_f1" not in row or "within_one" in row or row["accuracy"] == 1 or len(there) < 2:
        return ""
    worst = min(there, key=lambda one: (one["f1"], -one["n_test_tokens"]))
    taken = say("taken_for", other=worst["confused_with"], n=worst["n_confused"]) if worst["n_confused"] else ""
    return say(
        "worst_class", layer=row["layer"], macro=row["macro_f1"], few=FEW, label=worst["class"], f1=worst["f1"], 
        right=round(worst["recall"] * worst["n_test_tokens"]), n=f"{worst['n_test_tokens']:,}",
        taken=taken,
    )  # fmt: skip


def confusion_shares(scores: Rows, confusions: Rows) -> list[list[float]]:
    """Return the share of each class's test tokens that are taken for each class; NaN without any.

    Args:
        scores: Rows of `class_scores.csv` of one layer.
        confusions: Rows of `confusions.csv` of that layer.

    Returns:
        Shape (n_classes, n_classes): the class, and what it is taken for.
    """
    index, counts = {row["class"]: i for i, row in enumerate(scores)}, [[0] * len(scores) for _ in scores]
    for row in confusions:
        counts[index[row["class"]]][index[row["predicted"]]] = row["n_test_tokens"]
    totals = [sum(row) for row in counts]
    return [[n / total if total else math.nan for n in row] for row, total in zip(counts, totals, strict=True)]
