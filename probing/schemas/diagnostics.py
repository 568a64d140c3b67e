"""Tables of `hierarchy` and `cloze`."""

from __future__ import annotations

from probing.results.schema import Column, Schema
from probing.schemas.common import layer, measured, number, text, whole

_TASK = text("task", "What the probe looks for: main_auxiliary or subject_noun.")
_CONDITION = text("condition", "model for the model itself, or the control.")
_LINEAR = "Share of the sentences in which the two rules differ that is answered as linear order does"
_SHARES = (
    Column("generalisation", float, "Share of the sentences answered rightly in which the two rules differ; low, high: "
           "its 95% interval.", form=".3f", interval=""),
    measured("first_auxiliary", f"{_LINEAR}, by the first auxiliary."),
    measured("first_noun", f"{_LINEAR}, by the first noun."),
    measured("preference", "Share answered rightly minus that answered as linear order does, paired."),
)  # fmt: skip
HIERARCHY = Schema("hierarchy", "a row per task, condition and layer", (
    _TASK, _CONDITION, layer(),
    measured("test", "Share of sentences answered rightly in which both rules give the same answer, as in training."),
    *_SHARES,
    measured("difference", "Of a control: generalisation of the model minus that of the control, paired."),
))  # fmt: skip
DISTRACTORS = Schema("distractors", "the same for each construction that holds the first auxiliary, or noun", (
    _TASK, _CONDITION,
    text("distractor", "The construction: subject_relative, object_relative, compound or possessive."),
    layer(), *_SHARES, whole("n", "Number of sentences."),
))  # fmt: skip

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
