"""Tables of `compare`, and their sentences: two runs layer by layer, and the neurons at the top of all runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from probing.models.layers import what_is_a_neuron
from probing.results.schema import Column, Row, Schema, Type, layer_number, number, text, whole
from probing.results.shown import ends, two_decimals
from probing.runtime.plain_tables import plain_table
from probing.tables.columns import UNINFORMATIVE
from probing.tables.evidence_sentences import ALPHA, say
from probing.tables.schema import layer_column, value


def agreement_tables(rows: Sequence[Row]) -> list[Any]:
    """Return a table per pair of runs with their layers at the same relative depth."""
    pairs = list(dict.fromkeys((row["model_a"], row["model_b"]) for row in rows))
    return [_agreement_table([row for row in rows if (row["model_a"], row["model_b"]) == pair]) for pair in pairs]


def sites_lines(site_of_run: Mapping[str, str]) -> list[str]:
    """Say what a neuron is in the compared runs: in one line, or in one for each run where sites differ.

    Args:
        site_of_run: The site of each run, by its name in the tables.
    """
    sites = set(site_of_run.values())
    if len(sites) == 1:
        return [what_is_a_neuron(sites.pop())]
    return [f"{label}: {what_is_a_neuron(site)}" for label, site in site_of_run.items()]


def unread_lines(accuracy_of_run: Mapping[str, Sequence[Row]]) -> list[str]:
    """Name the layers whose rankings are not to be read, because their probe is not shown to be better than a constant.

    Args:
        accuracy_of_run: The rows of `accuracy.csv` of each run, by its name in the tables.
    """
    lines = []
    for label, rows in accuracy_of_run.items():
        layers = [str(row["layer"]) for row in rows if UNINFORMATIVE in row.get("flag", "")]
        if layers:
            which = f"layer{'s' * (len(layers) > 1)} {', '.join(layers)}"
            lines.append(say("unread_run", label=label, layers=which))
    return lines


def everywhere_sentence(rows: Sequence[Row], summary: Row, top: int, is_evidence: bool = True) -> str:
    """Say how many neurons are at the top of every run, compared with how many are there with shuffled labels.

    Args:
        rows: Rows of `top_everywhere.csv`.
        summary: The entry `top_everywhere` of `results.json`.
        top: Number of first neurons that count as the top.
        is_evidence: Whether the rankings of all runs are to be read; otherwise nothing is said of signals.
    """
    n = len(rows)
    subject = "1 neuron and its match are" if n == 1 else f"{n} neurons and their matches are"
    if "chance_p_value" not in summary:
        return say("everywhere", subject=subject, top=top)
    mean, low, high = (f"{summary[f'chance_{name}']:.1f}".removesuffix(".0") for name in ("mean", "low", "high"))
    p = summary["chance_p_value"]
    said = say("everywhere_by_chance", subject=subject, top=top, mean=mean, low=low, high=high, p=p)
    beyond = [row for row in rows if row["p_value"] <= ALPHA and not row["no_signal"]]
    if not n or not is_evidence:
        return said
    verb = "has a signal and is" if len(beyond) == 1 else "have a signal and are"
    return f"{said} {say('everywhere_beyond', n=len(beyond) or 'None', verb=verb, share=ALPHA)}"


def _agreement_table(rows: Sequence[Row]) -> Any:
    from probing.models.layers import aligned

    layers_a, layers_b = (sorted({row[f"layer_{side}"] for row in rows}) for side in "ab")
    found = {(row["layer_a"], row["layer_b"], row["statistic"]): row for row in rows}
    table = plain_table(f"{rows[0]['model_a']} (a) and {rows[0]['model_b']} (b), matched by {rows[0]['matching']}")
    for heading in ("layers", "top overlap", "by chance", "Spearman", "95% range", "by chance", "p", "match", "CKA"):
        table.add_column(heading, justify="right")
    for i, j in aligned(layers_a, layers_b):
        layers = layers_a[i], layers_b[j]
        overlap, spearman, match, cka = (
            found.get((*layers, name), {}) for name in ("overlap", "spearman", "correlation", "cka")
        )
        table.add_row(
            f"{layers[0]}, {layers[1]}",
            _two(overlap, "value"),
            _range(overlap, "chance"),
            _two(spearman, "value"),
            _range(spearman, ""),
            _range(spearman, "chance"),
            f"{spearman['p_value']:.1g}" if "p_value" in spearman else "",
            _two(match, "value"),
            _two(cka, "value"),
        )
    return table


def _two(row: Row, column: str) -> str:
    return two_decimals(row[column]) if column in row else ""


def _range(row: Row, of: str) -> str:
    return " to ".join(two_decimals(end) for end in ends(row, of) or ())


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
    layer_column("Its layer in the first run."),
    whole("neuron", "Index of the neuron in the first run."),
    whole("rank", "Its rank in the first run."),
    text("no_signal", "Runs in which the neuron has the flag no-signal.", may_be_empty=True),
    number("p_value", "Largest share, over the runs, of the rankings under shuffled labels that have it at the top."),
), further=_of_a_run)  # fmt: skip
