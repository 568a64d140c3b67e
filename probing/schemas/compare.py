"""Tables of `compare`."""

from __future__ import annotations

from probing.results.schema import Column, Schema, Type, layer_number
from probing.schemas.common import layer, number, text, value, whole

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
