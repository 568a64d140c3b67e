"""Tokens in their context on which the first neurons of a run are highest and lowest, on a page."""

from __future__ import annotations

from collections.abc import Sequence

from probing.page.sources import Subject
from probing.results.markup import Child, Html, element, joined
from probing.results.markup import table as html_table
from probing.results.schema import Row
from probing.tables.schema import CONTEXTS

ENDS = "highest", "lowest"


def contexts_block(subject: Subject) -> Html | None:
    """Return what the first neurons of each layer are highest and lowest on; nothing for a run without text.

    Args:
        subject: The run.
    """
    contexts = subject.run.contexts
    if not contexts:
        return None
    parts = []
    for layer in subject.layers:
        of_neurons: dict[int, dict[str, list[Row]]] = {}
        for row in contexts:
            if row["layer"] == layer:
                of_neurons.setdefault(row["neuron"], {end: [] for end in ENDS})[row["end"]].append(row)
        rows: list[list[Child]] = [
            [neuron, *(_tokens(ends[end]) for end in ENDS)] for neuron, ends in of_neurons.items()
        ]
        listed = html_table(["neuron", *(f"{end} on" for end in ENDS)], rows)
        parts.append(element("details", element("summary", f"Layer {layer}"), listed))
    about = "Test tokens on which the first neurons are highest and lowest, with their class and the activation."
    return element("details", element("summary", about), *parts, class_="contexts")


def _tokens(rows: Sequence[Row]) -> Html:
    return joined(*(_token(row) for row in sorted(rows, key=lambda row: row["place"])))


def _token(row: Row) -> Html:
    label = str(row["class"]) if "class" in row else CONTEXTS["number"].show(row)
    about = f" {label}, {CONTEXTS['activation'].show(row)}"
    return element(
        "p", row["before"], element("mark", row["token"] or "(special)"), row["after"], element("small", about)
    )
