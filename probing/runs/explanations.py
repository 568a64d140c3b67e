"""Which neurons make a probe's prediction of each token, shown on the text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import groupby
from typing import Any

from probing.errors import UserError
from probing.results.rows import Table, element, joined
from probing.results.schema import Row
from probing.runs.predictions import Probes, explanations, of_arrays, of_texts
from probing.runtime.plain_tables import plain_table
from probing.runtime.terminal import render
from probing.tables.schema import EXPLANATIONS

# Most examples of a layer that are shown; the rows have all.
SHOWN = 200


class Explanation(Table):
    """Rows as of `EXPLANATIONS`; a notebook shows the tokens with what is predicted of each, a terminal a table.

    Args:
        rows: The rows, those of an example and layer after one another.
        texts: The texts where examples are whole ones; empty otherwise.
    """

    def __init__(self, rows: Sequence[Row], texts: Sequence[str] = ()) -> None:
        super().__init__(rows, EXPLANATIONS)
        self.texts = texts

    def examples(self) -> list[list[Row]]:
        """Return the rows of each example and layer, layer by layer."""
        ordered = sorted(self, key=lambda row: row["layer"])  # stable: examples stay in order
        return [list(rows) for _, rows in groupby(ordered, _example)]

    def _name(self, row: Row) -> str:
        """Return what an example is called: its characters, or the index of a row of arrays."""
        if "row" in row:
            return f"row {row['row']}"
        return str(row.get("token") or (self.texts[row["sentence"]] if self.texts else "(special)"))

    def __repr__(self) -> str:
        parts = []
        for layer, examples in groupby(self.examples(), lambda rows: rows[0]["layer"]):
            listed = list(examples)
            table = plain_table(f"Layer {layer}: what is predicted, and the neurons that contribute most to it")
            for heading, justify in (
                ("", "left"),
                ("predicted", "left"),
                ("probability", "right"),
                ("neurons", "left"),
            ):
                table.add_column(heading, justify=justify)
            for rows in listed[:SHOWN]:
                table.add_row(self._name(rows[0]), _predicted(rows[0]), _probability(rows[0]), _neurons(rows))
            if len(listed) > SHOWN:
                table.caption = f"the first {SHOWN} of {len(listed)}"
            parts.append(table)
        return render(*parts)

    def _repr_html_(self) -> str:
        parts = []
        for layer, of_layer in groupby(self.examples(), lambda rows: rows[0]["layer"]):
            parts.append(element("p", element("b", f"Layer {layer}")))
            listed = list(of_layer)[:SHOWN]
            for _, examples in groupby(listed, lambda rows: rows[0].get("sentence")):
                parts.append(element("p", *(self._marked(rows) for rows in examples), style="line-height:2.6"))
        return joined(*parts)

    def _marked(self, rows: Sequence[Row]) -> Any:
        """Return an example with what is predicted of it, as dark as that is probable; its neurons show on pointing."""
        first = rows[0]
        shade = 0.45 * first.get("probability", 0)
        about = f"{_predicted(first)} {_probability(first)}: {_neurons(rows)}"
        ruby = element(
            "ruby", self._name(first), element("rt", _predicted(first)), title=about,
            style=f"background:rgb(31 119 180 / {shade:.2f});ruby-position:under;padding:0 .15em",
        )  # fmt: skip
        return joined(ruby, " ")


def _example(row: Row) -> tuple[Any, ...]:
    return tuple(row.get(name) for name in ("layer", "sentence", "position", "row"))


def _predicted(row: Row) -> str:
    return f"{row['predicted']:.4g}" if isinstance(row["predicted"], float) else str(row["predicted"])


def _probability(row: Row) -> str:
    return f"{row['probability']:.3f}" if "probability" in row else ""


def _neurons(rows: Sequence[Row]) -> str:
    return ", ".join(f"{row['neuron']} ({row['contribution']:+.2f})" for row in rows)


def explained(probes: Probes, given: Any, are_arrays: bool, n: int) -> Explanation:
    """Return which neurons contribute most to what is predicted of texts or arrays.

    Args:
        probes: The probes.
        given: Texts, or arrays, as `Run.predict` takes them.
        are_arrays: Whether these are arrays.
        n: Number of neurons of each example.

    Raises:
        UserError: If there are no such texts or arrays, or `n` is out of range.
    """
    width = next(iter(probes.weight.values())).shape[1]
    if n not in range(1, width + 1):
        raise UserError(f"`n={n}` is not allowed; use a whole number from 1 to {width}, the number of neurons.")
    reader = partial(explanations, n=n)
    rows = of_arrays(probes, given, reader) if are_arrays else of_texts(probes, given, reader)
    are_whole = bool(rows) and "row" not in rows[0] and "position" not in rows[0]
    texts = ([given] if isinstance(given, str) else given) if are_whole else ()
    return Explanation(rows, [text if isinstance(text, str) else " ".join(text) for text in texts])
