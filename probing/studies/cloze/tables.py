"""Tables and sentences of `cloze`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from probing.results import Column, Row, Schema, ends, estimate, in_brackets, interval, number, shown_table, text, whole

# What a change is compared with: the text as it is.
INTACT = "intact"
CHANGED = {
    INTACT: "as it is",
    "words_shuffled": "words shuffled",
    "pairs_shuffled": "pairs shuffled",
    "name_replaced": "a name replaced",
    "noun_replaced": "a noun replaced",
}
_GROUP = text("group", "What the pairs are about; all is every pair.")
CLOZE = Schema("cloze", "a row per pair of words", (
    whole("line", "Line of the file, from 1."), _GROUP,
    text("text", "The text with its mask."),
    text("good", "The word that suits it."), text("bad", "The word that does not."),
    number("good_log_probability", "Log probability of the good word at the mask, in nats."),
    number("bad_log_probability", "The same of the bad word."),
    number("difference", "The first minus the second.", form="+.3f"),
), optional=True)  # fmt: skip
GROUPS = Schema("groups", "a row for all pairs and for each group", (
    _GROUP,
    whole("n", "Number of pairs whose words are single pieces of the vocabulary.", "pairs"),
    whole("n_right", "Number of pairs whose good word has the higher probability."),
    Column("share", float, "Share of pairs whose good word has the higher probability at the mask; low, high: "
           "its exact binomial 95% interval.", "good likelier", ".3f", ""),
    estimate("clear_share", "Share of pairs whose good word is more probable by more than .01.", "by more than .01"),
    estimate("difference", "Mean difference of log probabilities, in nats.", "log p, good - bad", "+.3f"),
), optional=True)  # fmt: skip
CHANGES = Schema("changes", "a row per change of the text and what it is compared with", (
    text("condition", "What was changed in the text around the masked words.", "text", labels=CHANGED),
    text("against", "The text that it is compared with.", "beside", labels=CHANGED),
    Column("loss", float, "Mean cross-entropy of the masked tokens, in nats; low, high: its 95% interval.", form=".3f",
           interval=""),
    number("baseline", "The loss of the same tokens in the text that it is compared with.", "loss there"),
    estimate("difference", "Rise of the loss, paired by sentence.", form="+.3f"),
    whole("n_sentences", "Number of sentences.", "sentences"), whole("n", "Number of their masked tokens.", "tokens"),
), optional=True)  # fmt: skip


# Stands for all groups in the column of groups.
EVERY = "all"
# Universal part of speech of the words that are replaced, by the name of the change.
REPLACED = {"name_replaced": "PROPN", "noun_replaced": "NOUN"}


_OF_GROUPS = ("group", "n", "share*", "clear_share", "difference*")
_OF_CHANGES = ("condition", "n_sentences", "n", "loss", "against", "baseline", "difference*")


def tables(by_name: Mapping[str, Sequence[Row]]) -> list[Any]:
    """Return the shares by group and the losses as rich tables, if measured."""
    shown = (
        (GROUPS, "At the mask, the good word beside the bad one", _OF_GROUPS),
        (CHANGES, "Loss of masked words in nats", _OF_CHANGES),
    )
    return [shown_table(of, by_name[of.name], title, names) for of, title, names in shown if by_name[of.name]]


def terms() -> dict[str, str]:
    """Return the meanings of all headings."""
    return GROUPS.terms(_OF_GROUPS) | CHANGES.terms(_OF_CHANGES)


def conclusions(by_name: Mapping[str, Sequence[Row]]) -> list[str]:
    """Return the conclusions: a sentence for each group, and for each change of the text."""
    lines = [_of_group(row) for row in by_name["groups"] if row["group"] != EVERY or len(by_name["groups"]) > 2]
    return lines + [_of_change(row) for row in by_name["changes"] if "against" in row]


def _of_group(row: Row) -> str:
    name = "All pairs" if row["group"] == EVERY else row["group"].capitalize()
    group_row = ends(row)
    verdict = "not told from a coin"
    if group_row and group_row[0] > 0.5:
        verdict = "more often than a coin would"
    elif group_row and group_row[1] < 0.5:
        verdict = "more seldom than a coin would"
    return (
        f"{name}: the good word is the likelier one in {row['n_right']} of {row['n']} pairs "
        f"({row['share']:.1%}{_within(row)}), {verdict}."
    )


def _within(row: Row) -> str:
    return f"; {interval(row, '', ' to ', '.1f', 100)}" if ends(row) else ""


def _of_change(row: Row) -> str:
    between = in_brackets(interval(row, "difference", " to ", "+.3f"))
    change_row = ends(row, "difference")
    verdict = (
        ""
        if change_row and (change_row[0] > 0 or change_row[1] < 0)
        else ", a difference that these sentences do not resolve"
    )
    n = f"{row['n_sentences']:,} sentences"
    if row["against"] == INTACT:
        begin = f"With {CHANGED[row['condition']]}, the loss of masked words goes from {row['baseline']:.3f} to"
        return f"{begin} {row['loss']:.3f} nats, by {row['difference']:+.3f}{between} over {n}{verdict}."
    begin = f"{CHANGED[row['condition']].capitalize()} costs {row['difference']:+.3f} nats{between} beside"
    return f"{begin} {CHANGED[row['against']]}, over {n}{verdict}."
