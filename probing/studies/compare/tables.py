"""Tables of `compare`, and their sentences: two runs layer by layer, and the neurons at the top of all runs."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from probing.models.layers import what_is_a_neuron
from probing.results.schema import (
    Column,
    Row,
    Schema,
    Type,
    count,
    ends,
    layer_number,
    layers_named,
    number,
    text,
    two_decimals,
    whole,
)
from probing.runtime.terminal import plain_table
from probing.tables.columns import UNINFORMATIVE
from probing.tables.evidence_sentences import ALPHA, SAME, say
from probing.tables.schema import layer_column, value

# What the column `null` of `agreement.csv` holds, in words.
NULLS = {
    "shuffled_labels": "rankings under shuffled labels",
    "random_bases": "random bases of the second run",
    "permutation": "permuted rankings",
}


def agreement_tables(rows: Sequence[Row], top: int) -> list[Any]:
    """Return a table per pair of runs with their layers at the same relative depth; the last one has the legend.

    Args:
        rows: Rows of `agreement.csv`.
        top: Number of first neurons whose overlap is measured.
    """
    tables = [_agreement_table(of_pair) for of_pair in _by_pair(rows).values()]
    nulls = dict.fromkeys(NULLS[row["null"]] for row in rows if row["statistic"] == "spearman")
    if tables:
        legend = [
            say("note_of_overlap", top=top),
            say("note_of_chance", null=" or ".join(nulls)),
            say("note_of_match"),
        ]
        tables[-1].caption, tables[-1].caption_justify = "\n".join(legend), "left"
    return tables


def _by_pair(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row["model_a"], row["model_b"]), []).append(row)
    return found


def same_depth(rows: Sequence[Row]) -> list[tuple[int, int]]:
    """Return the layers of a pair of runs that are at the same relative depth."""
    return list(dict.fromkeys((row["layer_a"], row["layer_b"]) for row in rows if row["same_depth"] == "yes"))


def unpaired_lines(rows: Sequence[Row]) -> list[str]:
    """Name the layers of each run that have no layer of the same relative depth in another run.

    Args:
        rows: Rows of `agreement.csv`.
    """
    lines = []
    for (a, b), of_pair in _by_pair(rows).items():
        pairs = same_depth(of_pair)
        for side, label, other in ((0, a, b), (1, b, a)):
            layers = {row[f"layer_{'ab'[side]}"] for row in of_pair} - {layers[side] for layers in pairs}
            if layers:
                lines.append(say("unpaired", label=label, layers=layers_named(sorted(layers)), other=other))
    return lines


def verdicts(rows: Sequence[Row], accuracy_of_run: Mapping[str, Sequence[Row]], top: int) -> dict[str, str]:
    """Return a sentence for each pair of runs on whether they rank the same neurons first.

    Args:
        rows: Rows of `agreement.csv`.
        accuracy_of_run: The rows of `accuracy.csv` of each run, by its name in the tables.
        top: Number of first neurons whose overlap was measured.
    """
    unread = {
        (label, row["layer"])
        for label, of_run in accuracy_of_run.items()
        for row in of_run
        if UNINFORMATIVE in row.get("flag", "")
    }
    return {f"{a}, {b}": _verdict(a, b, of_pair, unread, top) for (a, b), of_pair in _by_pair(rows).items()}


def _verdict(a: str, b: str, rows: Sequence[Row], unread: Collection[tuple[str, int]], top: int) -> str:
    read = [(i, j) for i, j in same_depth(rows) if (a, i) not in unread and (b, j) not in unread]
    found = {(row["layer_a"], row["layer_b"], row["statistic"]): row for row in rows}
    overlaps, spearmans = ([found[i, j, of] for i, j in read if (i, j, of) in found] for of in ("overlap", "spearman"))
    if not overlaps:
        return say("no_verdict", a=a, b=b)
    beyond = [[row.get("p_value", math.nan) <= ALPHA for row in of] for of in (overlaps, spearmans)]
    k = min(top, *(row["n_neurons"] for row in overlaps))
    is_same = all(map(all, beyond)) and all(row["value"] >= SAME for row in overlaps)
    name = "same_neurons" if is_same else "partly_same" if any(map(any, beyond)) else "no_more_than_chance"
    numbers = say(
        "agreement",
        shared=_span([k * row["value"] for row in overlaps], "{:.0f}"),
        top=k,
        chance=_span([k * end for row in overlaps for end in ends(row, "chance") or ()], "{:.0f}"),
        n_overlap=sum(beyond[0]),
        pairs=count(len(read), "pair"),
        values=_span([row["value"] for row in spearmans], "{:.2f}"),
        n_spearman=sum(beyond[1]),
    )
    return say(name, a=a, b=b, numbers=numbers)


def _span(values: Sequence[float], form: str) -> str:
    """Return the lowest and the highest of some numbers, or one if they look the same; NaN are left out."""
    known = [value + 0.0 for value in values if math.isfinite(value)]
    low, high = (form.format(end(known, default=math.nan)) for end in (min, max))
    return low if low == high else f"{low} to {high}"


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


def everywhere_tables(rows: Sequence[Row]) -> list[Any]:
    """Return a table of the neurons at the top of every run with all their columns, if there are any.

    Args:
        rows: Rows of `top_everywhere.csv`.
    """
    if not rows:
        return []
    table = plain_table("Neurons at the top of every run; layer, neuron and rank without a name are of the first run")
    for name in rows[0]:
        table.add_column(name.replace("_", " "), justify="left" if TOP_EVERYWHERE.type_of(name) is str else "right")
    for row in rows:
        table.add_row(*(f"{cell:.2g}" if isinstance(cell, float) else str(cell) for cell in row.values()))
    return [table]


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
    found = {(row["layer_a"], row["layer_b"], row["statistic"]): row for row in rows}
    table = plain_table(f"{rows[0]['model_a']} (a) and {rows[0]['model_b']} (b), matched by {rows[0]['matching']}")
    for heading in ("layers", "top overlap", "by chance", "Spearman", "95% range", "by chance", "p", "match", "CKA"):
        table.add_column(heading, justify="right")
    for layers in same_depth(rows):
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
    text("same_depth", "Whether the two layers are of the same relative depth: yes or no."),
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
