"""Features beside other units of the same hidden states: the table of the terminal and of the page, and sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from probing.results.schema import Row
from probing.results.shown import interval, listed
from probing.runtime.plain_tables import plain_table
from probing.tables.evidence_sentences import say

FEATURES = "features"
_MARKS = {"better": "", "unresolved": "°", "worse": "−"}
_SENTENCES = {"better": "better_with", "unresolved": "unresolved_with", "worse": "worse_with"}


def bases_table(rows: Sequence[Row]) -> Any:
    """Return the accuracies of one layer as a rich table, a row per number of units."""
    names = list(dict.fromkeys(row["basis"] for row in rows))
    table = plain_table(f"Layer {rows[0]['layer']}: accuracy of the first k units of each basis")
    for heading in ("k", FEATURES, "95% range", *names[1:]):
        table.add_column(heading, justify="right", no_wrap=heading == "k")
    cells = {(row["basis"], row["k"]): row for row in rows}
    for k in dict.fromkeys(row["k"] for row in rows):
        own = cells[FEATURES, k]
        others = [cells[name, k] for name in names[1:]]
        shown = [f"{row['accuracy']:.3f}{_MARKS[row['features']]}" for row in others]
        table.add_row(str(k), f"{own['accuracy']:.3f}", interval(own, "accuracy"), *shown)
    first = {name: next(row for row in rows if row["basis"] == name) for name in names}
    drawn = first["random features"]
    table.caption = "; ".join([
        say("note_of_bases", majority=drawn["majority_accuracy"], n=drawn["n_draws"]),
        say("note_of_activity", features=first[FEATURES]["n_active"], n_features=first[FEATURES]["n_units"],
            random=drawn["n_active"]),
    ])  # fmt: skip
    table.caption_justify = "left"
    return table


def bases_lines(rows: Sequence[Row], task: str) -> list[str]:
    """Return what may be concluded: of each basis where features are better, and plainly where nowhere.

    Args:
        rows: The rows of `bases.csv`.
        task: The task in words.
    """
    lines = []
    for layer in dict.fromkeys(row["layer"] for row in rows):
        own = [row for row in rows if row["layer"] == layer and row["basis"] != FEATURES]
        names, never = list(dict.fromkeys(row["basis"] for row in own)), []
        for name in names:
            of = [row for row in own if row["basis"] == name]
            parts = [_part(verdict, [row for row in of if row["features"] == verdict]) for verdict in _MARKS]
            lines.append(say("beside_basis", layer=layer, basis=name, parts="; ".join(filter(None, parts))))
            never += [name] * all(row["features"] != "better" for row in of)
        if never:
            lines.append(say("no_better_than", layer=layer, task=task, others=f"as many {listed(never)}"))
    return lines


def _part(verdict: str, rows: Sequence[Row]) -> str:
    """Return with which numbers of units a verdict holds; nothing where it holds with none."""
    if not rows:
        return ""
    most = max(abs(row["difference"]) for row in rows)
    return say(_SENTENCES[verdict], counts=listed([str(row["k"]) for row in rows]), most=most)
