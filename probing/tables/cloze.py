"""Tables and sentences of `cloze`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from probing.results.cells import ends, in_brackets, interval

Row = Mapping[str, Any]

# Stands for all groups in the column of groups.
EVERY = "all"
# What a change is compared with: the text as it is.
INTACT = "intact"
# Universal part of speech of the words that are replaced, by the name of the change.
REPLACED = {"name_replaced": "PROPN", "noun_replaced": "NOUN"}

WORDS = {
    INTACT: "as it is",
    "words_shuffled": "words shuffled",
    "pairs_shuffled": "pairs shuffled",
    "name_replaced": "a name replaced",
    "noun_replaced": "a noun replaced",
}


def tables(made: Mapping[str, Sequence[Row]]) -> list[Any]:
    """Return the shares by group and the losses as rich tables; those that were not measured are left out."""
    found = []
    if made["groups"]:
        table = _table("At the mask, the good word beside the bad one", "group", "pairs", "good likelier", "95% range",
                       "by more than .01", "log p, good - bad", "95% range")  # fmt: skip
        for row in made["groups"]:
            table.add_row(
                row["group"], str(row["n"]), f"{row['share']:.3f}", interval(row), f"{row['clear_share']:.3f}",
                f"{row['difference']:+.3f}", interval(row, "difference", " to ", "+.3f"),
            )  # fmt: skip
        found.append(table)
    if made["changes"]:
        table = _table("Loss of masked words in nats", "text", "sentences", "tokens", "loss", "beside", "loss there",
                       "difference", "95% range")  # fmt: skip
        for row in made["changes"]:
            beside = ("", "", "", "") if "against" not in row else (
                WORDS[row["against"]], f"{row['baseline']:.3f}", f"{row['difference']:+.3f}",
                interval(row, "difference", " to ", "+.3f"),
            )  # fmt: skip
            counted = str(row["n_sentences"]), str(row["n"])
            table.add_row(WORDS[row["condition"]], *counted, f"{row['loss']:.3f}", *beside)
        found.append(table)
    return found


def conclusions(made: Mapping[str, Sequence[Row]]) -> list[str]:
    """Return what was found: a sentence for each group, and for each change of the text."""
    lines = [_of_group(row) for row in made["groups"] if row["group"] != EVERY or len(made["groups"]) > 2]
    return lines + [_of_change(row) for row in made["changes"] if "against" in row]


def _of_group(row: Row) -> str:
    name = "All pairs" if row["group"] == EVERY else row["group"].capitalize()
    found = ends(row)
    verdict = "not told from a coin"
    if found and found[0] > 0.5:
        verdict = "more often than a coin would"
    elif found and found[1] < 0.5:
        verdict = "more seldom than a coin would"
    return (
        f"{name}: the good word is the likelier one in {row['n_right']} of {row['n']} pairs "
        f"({row['share']:.1%}{_within(row)}), {verdict}."
    )


def _within(row: Row) -> str:
    return f"; {interval(row, '', ' to ', '.1f', 100)}" if ends(row) else ""


def _of_change(row: Row) -> str:
    between = in_brackets(interval(row, "difference", " to ", "+.3f"))
    found = ends(row, "difference")
    verdict = "" if found and (found[0] > 0 or found[1] < 0) else ", a difference that these sentences do not resolve"
    n = f"{row['n_sentences']:,} sentences"
    if row["against"] == INTACT:
        begin = f"With {WORDS[row['condition']]}, the loss of masked words goes from {row['baseline']:.3f} to"
        return f"{begin} {row['loss']:.3f} nats, by {row['difference']:+.3f}{between} over {n}{verdict}."
    begin = f"{WORDS[row['condition']].capitalize()} costs {row['difference']:+.3f} nats{between} beside"
    return f"{begin} {WORDS[row['against']]}, over {n}{verdict}."


def _table(title: str, *headings: str) -> Any:
    from probing.runtime.terminal import plain_table

    table = plain_table(title, collapse_padding=True)
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("group", "text", "beside") else "right")
    return table
