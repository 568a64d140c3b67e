"""The table of `reproduce`."""

from __future__ import annotations

from probing.results.schema import Column, Schema
from probing.schemas.common import number, text, whole

CLAIMS = Schema("claims", "a row per claim and model", (
    whole("id", "Number of the claim."),
    text("claim", "What is claimed."),
    text("where", "Where in the paper.", may_be_empty=True),
    text("published", "What the paper reports."),
    text("model", "The model."),
    Column("measured", float, "What was measured; low, high: its 95% interval.", form=".3f", interval=""),
    number("control", "The same of the control."),
    text("verdict", "confirmed, not confirmed, unclear, not testable here or analogue."),
    text("command", "Command that repeats the measurement."),
    text("met", "Of an analogue: whether it meets the criterion, yes, no or unclear."),
    text("measure", "Name of the measure."),
    text("criterion", "Range in which the claim holds."),
    text("control_criterion", "Range of the control in which it holds."),
    text("neurons", "Neurons that it is about."),
    text("lacking", "What is lacking where it cannot be tested."),
    number("published_value", "Published value, where it is on the scale of what is measured."),
))  # fmt: skip
