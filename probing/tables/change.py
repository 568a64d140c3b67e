"""Table and sentences about what changes between two checkpoints, for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from probing.results.schema import in_brackets, interval

Row = Mapping[str, Any]
SAME = "same"
# Columns of the table: heading, measure, and what is compared.
_COLUMNS = (
    ("maps", "cosine", SAME), ("other heads", "cosine", "other heads"),
    ("other sentences", "cosine", "other sentences"), ("Jensen-Shannon", "jensen_shannon", SAME),
    ("as published", "cosine_as_published", SAME), ("hidden states", "hidden_states", SAME),
    ("other tokens", "hidden_states", "other tokens"),
)  # fmt: skip


def of_layers(rows: Sequence[Row], measure: str, of: str = SAME) -> list[Row]:
    """Return the rows of `change.csv` about whole layers, of one measure and one comparison."""
    return [row for row in _of(rows, measure, of) if row.get("head") is None and row.get("layer") is not None]


def of_heads(rows: Sequence[Row], measure: str, of: str = SAME) -> list[Row]:
    """Return the rows of `change.csv` about heads, of one measure and one comparison."""
    return [row for row in _of(rows, measure, of) if row.get("head") is not None]


def change_table(rows: Sequence[Row]) -> Any:
    """Return what changes in each layer as a rich table; None if nothing was compared."""
    from probing.runtime.terminal import plain_table

    found = {heading: of_layers(rows, *which) for heading, *which in _COLUMNS}
    there = {heading: {row["layer"]: row["value"] for row in here} for heading, here in found.items() if here}
    if not there:
        return None
    table = plain_table("Cosines between the two checkpoints (Jensen-Shannon divergence in nats), mean over heads")
    for heading in ("layer", *there):
        table.add_column(heading, justify="right")
    for layer in sorted({layer for values in there.values() for layer in values}):
        cells = (_number(values[layer]) if layer in values else "" for values in there.values())
        table.add_row(str(layer), *cells)
    return table


def change_conclusions(rows: Sequence[Row]) -> list[str]:
    """Return what changes, and beside which baseline, in a sentence for each measure."""
    return [*_maps(rows), *_published(rows), *_states(rows), *_parameters(rows)]


def _maps(rows: Sequence[Row]) -> list[str]:
    layers = of_layers(rows, "cosine")
    if not layers:
        return []
    if all(row["value"] == 1 for row in of_heads(rows, "cosine")):
        return ["The two checkpoints have the same attention maps in all layers that are reported: each cosine is 1."]
    least, head = (min(some, key=lambda row: row["value"]) for some in (layers, of_heads(rows, "cosine")))
    others = _beside(
        rows, least, {"other heads": "two heads of this layer", "other sentences": "two sentences of equal length"}
    )
    lines = [
        f"Between the two checkpoints, the attention maps of layer {least['layer']} change most, to a mean cosine of "
        f"{_told(least, others)}; of all heads, {head['layer']}-{head['head']} changes most, to {_told(head)}."
    ]
    if unchanged := [str(row["layer"]) for row in layers if row["value"] == 1]:
        name = "layer" if len(unchanged) == 1 else "layers"
        lines.append(f"The attention maps of {name} {', '.join(unchanged)} are the same: their cosine is 1.")
    return lines


def _published(rows: Sequence[Row]) -> list[str]:
    layers = of_layers(rows, "cosine_as_published")
    if not layers:
        return []
    (padding,) = _of(rows, "padding_as_published", SAME)
    if all(row["value"] == 1 for row in layers):
        return [
            f"As published, in maps of which {padding['value']:.1%} of the rows are padding, each cosine is 1, too."
        ]
    least = min(layers, key=lambda row: row["value"])
    others = _beside(rows, least, {"other heads": "two heads of this layer"})
    return [
        f"As published, in maps of which {padding['value']:.1%} of the rows are padding, those of layer "
        f"{least['layer']} change most, to a mean cosine of {_told(least, others)}."
    ]


def _states(rows: Sequence[Row]) -> list[str]:
    layers = of_layers(rows, "hidden_states")
    if not layers:
        return []
    if all(row["value"] == 1 for row in layers):
        return ["Hidden states have a cosine of 1 in all layers that are reported."]
    least = min(layers, key=lambda row: row["value"])
    others = _beside(rows, least, {"other tokens": "a token and the next one"})
    return [f"Hidden states change most in layer {least['layer']}, to a mean cosine of {_told(least, others)}."]


def _parameters(rows: Sequence[Row]) -> list[str]:
    matrices = [row for row in rows if row["measure"] == "parameters"]
    if not matrices:
        return []
    least = min(matrices, key=lambda row: row["value"])
    if least["value"] == 1:
        return [f"All {len(matrices)} matrices of parameters have a cosine of 1."]
    n = sum(row["value"] < 1 for row in matrices)
    return [
        f"{n} of {len(matrices)} matrices of parameters {'has' if n == 1 else 'have'} a cosine below 1; the lowest is "
        f"{_number(least['value'])}, of {least['of']}."
    ]


def _of(rows: Sequence[Row], measure: str, of: str) -> list[Row]:
    return [row for row in rows if (row["measure"], row["of"]) == (measure, of)]


def _beside(rows: Sequence[Row], changed: Row, baselines: Mapping[str, str]) -> list[str]:
    """Return the values of the same measure for the baselines that are compared in this layer."""
    parts = []
    for of, words in baselines.items():
        for row in of_layers(rows, changed["measure"], of):
            if row["layer"] == changed["layer"] and row["n"]:
                between = interval(row, between=" to ")
                parts.append(f"{words}: {_number(row['value'])}{f', {between}' if between else ''}")
    return parts


def _told(row: Row, beside: Sequence[str] = ()) -> str:
    return f"{_number(row['value'])}{in_brackets(interval(row, between=' to '), *beside)}"


def _number(value: float) -> str:
    """Return a number with three decimals; a number just below 1 is not rounded to 1."""
    return "above 0.9995" if 0.9995 <= value < 1 else f"{round(value, 3) + 0.0:.3f}"
