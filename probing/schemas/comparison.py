"""Tables of `compare`, `sweep` and `reproduce`."""

from __future__ import annotations

from probing.results.schema import Column, Schema, Type, layer_number
from probing.schemas.common import layer, number, text, value, whole
from probing.schemas.probes import ACCURACY, NUMBERS

AGREEMENT = Schema("agreement", "a row per pair of runs, pair of layers and statistic", (
    text("model_a", "The first run."), whole("layer_a", "Its layer."),
    text("model_b", "The second run."), whole("layer_b", "Its layer."),
    text("matching", "How neurons are paired: index or correlation."),
    text("statistic", "What is measured of the two rankings."),
    value("Its value"),
    number("p_value", "Share of the null's draws that agree at least as much, corrected for the pairs of layers."),
    number("p_uncorrected", "The same without the correction."),
    Column("chance", float, "Mean agreement by chance; chance_low, chance_high: 95% of it.", form=".3f",
           interval="chance"),
    text("null", "What chance is."),
    whole("n_neurons", "Number of neurons."),
    whole("n_no_signal", "Number of neurons with the flag no-signal in either run."),
))  # fmt: skip

_OF_A_RUN: dict[str, Type] = {"neuron": int, "rank": int, "layer": layer_number}


def _of_a_run(name: str) -> Type | None:
    """Return the type of a column that begins with the name of a run: `bert neuron`."""
    run, _, of = name.rpartition(" ")
    return _OF_A_RUN.get(of) if run else None


TOP_EVERYWHERE = Schema("top_everywhere", "a row per neuron that is among the first of every run", (
    layer("Its layer in the first run."),
    whole("neuron", "Index of the neuron in the first run."),
    whole("rank", "Its rank in the first run."),
    text("no_signal", "Runs in which the neuron has the flag no-signal.", may_be_empty=True),
    number("p_value", "Largest share, over the runs, of the rankings under shuffled labels that have it at the top."),
), further=_of_a_run)  # fmt: skip


def _option(name: str) -> Type | None:
    """Return the type of an option that a sweep varies, or of the agreement with runs that differ in it."""
    return float if name.endswith(("_spearman", "_overlap")) else str


SWEEP = Schema("sweep", "a row per trial and layer: the options that vary, and the columns of accuracy.csv", (
    text("trial", "Name of the trial."),
    *{column.name: column for column in (*ACCURACY.columns, *NUMBERS.columns)}.values(),
), further=_option)  # fmt: skip

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
