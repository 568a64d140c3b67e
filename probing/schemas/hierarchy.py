"""Tables of `hierarchy`."""

from __future__ import annotations

from probing.results.schema import Column, Schema
from probing.schemas.common import layer, measured, text, whole

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
