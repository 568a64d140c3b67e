"""Tables and sentences of `cloze`."""

from __future__ import annotations

from collections.abc import Iterator

from probing.results import (
    Column,
    Schema,
    Table,
    View,
    count,
    estimate,
    estimated,
    number,
    sign_of_interval,
    text,
    whole,
)

# What a change is compared with: the text as it is.
INTACT = "intact"
CHANGED = {
    INTACT: "unchanged",
    "words_shuffled": "words shuffled",
    "pairs_shuffled": "pairs shuffled",
    "name_replaced": "a name replaced",
    "noun_replaced": "a noun replaced",
}
_GROUP = text("group", "What the pairs are about; all is every pair.")
CLOZE = Schema("cloze", "a row per pair of words", (
    whole("line", "Line of the file, from 1."), _GROUP,
    text("text", "The text with its mask."),
    text("good", "The word that fits the text."), text("bad", "The word that does not fit."),
    number("good_log_probability", "Log probability of the good word at the mask, in nats."),
    number("bad_log_probability", "Log probability of the bad word, in nats."),
    number("difference", "Log probability of the good word minus that of the bad word.", form="+.3f"),
), optional=True)  # fmt: skip
GROUPS = Schema("groups", "a row for all pairs and for each group", (
    _GROUP,
    whole("n", "Number of pairs whose words are single pieces of the vocabulary.", "pairs"),
    whole("n_right", "Number of pairs whose good word has the higher probability."),
    Column("share", float, "Share of pairs whose good word has the higher probability at the mask; low, high: "
           "its exact binomial 95% interval.", "good more probable", ".3f", ""),
    estimate("clear_share", "Share of pairs whose good word is more probable by more than .01.", "by more than .01"),
    estimate("difference", "Mean difference of log probabilities, in nats.", "log p, good - bad", "+.3f"),
), optional=True)  # fmt: skip
CHANGES = Schema("changes", "a row per change of the text and what it is compared with", (
    text("condition", "What was changed in the text around the masked words.", "text", labels=CHANGED),
    text("against", "The text that it is compared with.", "compared with", labels=CHANGED),
    Column("loss", float, "Mean cross-entropy of the masked tokens, in nats; low, high: its 95% interval.", form=".3f",
           interval=""),
    number("baseline", "The loss of the same tokens in the text that it is compared with.", "baseline loss"),
    estimate("difference", "Increase of the loss, paired by sentence.", form="+.3f"),
    whole("n_sentences", "Number of sentences.", "sentences"), whole("n", "Number of their masked tokens.", "tokens"),
), optional=True)  # fmt: skip


# Stands for all groups in the column of groups.
EVERY = "all"
# Universal part of speech of the words that are replaced, by the name of the change.
REPLACED = {"name_replaced": "PROPN", "noun_replaced": "NOUN"}

VIEWS = (
    View(GROUPS, ("group", "n", "share*", "clear_share", "difference*"),
         "Probability of the good word at the mask, compared with the bad word"),
    View(CHANGES, ("condition", "n_sentences", "n", "loss", "against", "baseline", "difference*"),
         "Loss of masked words in nats"),
)  # fmt: skip

SENTENCES = {
    "group": "{group}: the good word is more probable in {n_right} of {pairs}, {share}: {verdict}.",
    "change": "With {change}, the loss of masked words changes from {baseline:.3f} to {loss:.3f} nats over "
    "{sentences}: difference {difference}, {verdict}.",
    "control": "With {change}, compared with {control}, the loss of masked words differs by {difference} nats over "
    "{sentences}: {verdict}.",
}
_CHANCE = {1: "above chance", -1: "below chance", 0: "not distinguished from chance"}
_DIFFERENCE = {1: "an increase", -1: "a decrease", 0: "not distinguished from 0"}


def conclusions(groups: Table, changes: Table) -> Iterator[str]:
    """Yield a sentence for each group, and for each change of the text."""
    for row in groups.where(lambda row: row["group"] != EVERY or len(groups) > 2):
        yield SENTENCES["group"].format(
            group="All pairs" if row["group"] == EVERY else row["group"].capitalize(), n_right=row["n_right"],
            pairs=count(row["n"], "pair"), share=estimated(row, "share", ".1%", ""),
            verdict=_CHANCE[sign_of_interval(row, than=0.5)],
        )  # fmt: skip
    for row in changes.where(lambda row: "against" in row):
        sentence = SENTENCES["change" if row["against"] == INTACT else "control"]
        yield sentence.format(
            change=CHANGED[row["condition"]], control=CHANGED[row["against"]], baseline=row["baseline"],
            loss=row["loss"], difference=estimated(row, "difference", "+.3f"),
            sentences=count(row["n_sentences"], "sentence"), verdict=_DIFFERENCE[sign_of_interval(row, "difference")],
        )  # fmt: skip
