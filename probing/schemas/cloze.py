"""Tables of `cloze`."""

from __future__ import annotations

from probing.results.schema import Column, Schema
from probing.schemas.common import measured, number, text, whole

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
    measured("clear_share", "Share of pairs whose good word is more probable by more than .01.", "by more than .01"),
    measured("difference", "Mean difference of log probabilities, in nats.", "log p, good - bad", "+.3f"),
), optional=True)  # fmt: skip
CHANGES = Schema("changes", "a row per change of the text and what it is compared with", (
    text("condition", "What was changed in the text around the masked words.", "text", labels=CHANGED),
    text("against", "The text that it is compared with.", "beside", labels=CHANGED),
    Column("loss", float, "Mean cross-entropy of the masked tokens, in nats; low, high: its 95% interval.", form=".3f",
           interval=""),
    number("baseline", "The loss of the same tokens in the text that it is compared with.", "loss there"),
    measured("difference", "Rise of the loss, paired by sentence.", form="+.3f"),
    whole("n_sentences", "Number of sentences.", "sentences"), whole("n", "Number of their masked tokens.", "tokens"),
), optional=True)  # fmt: skip
