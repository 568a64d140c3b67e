"""Table and sentences about changes between two checkpoints, for the terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from probing.results import in_brackets, interval

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
    """Return the changes in each layer as a rich table; None without comparisons."""
    from probing.runtime.terminal import plain_table

    by_heading = {heading: of_layers(rows, *which) for heading, *which in _COLUMNS}
    values_of = {
        heading: {row["layer"]: row["value"] for row in rows_of} for heading, rows_of in by_heading.items() if rows_of
    }
    if not values_of:
        return None
    table = plain_table("Cosines between the two checkpoints (Jensen-Shannon divergence in nats), mean over heads")
    for heading in ("layer", *values_of):
        table.add_column(heading, justify="right")
    for layer in sorted({layer for values in values_of.values() for layer in values}):
        cells = (_number(values[layer]) if layer in values else "" for values in values_of.values())
        table.add_row(str(layer), *cells)
    return table


def change_conclusions(rows: Sequence[Row]) -> list[str]:
    """Return a sentence for each measure on its changes and their baseline."""
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
        f"{_value_text(least, others)}; of all heads, {head['layer']}-{head['head']} changes most, to "
        f"{_value_text(head)}."
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
        f"{least['layer']} change most, to a mean cosine of {_value_text(least, others)}."
    ]


def _states(rows: Sequence[Row]) -> list[str]:
    layers = of_layers(rows, "hidden_states")
    if not layers:
        return []
    if all(row["value"] == 1 for row in layers):
        return ["Hidden states have a cosine of 1 in all layers that are reported."]
    least = min(layers, key=lambda row: row["value"])
    others = _beside(rows, least, {"other tokens": "a token and the next one"})
    return [f"Hidden states change most in layer {least['layer']}, to a mean cosine of {_value_text(least, others)}."]


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
    parts = []
    for of, words in baselines.items():
        for row in of_layers(rows, changed["measure"], of):
            if row["layer"] == changed["layer"] and row["n"]:
                between = interval(row, between=" to ")
                parts.append(f"{words}: {_number(row['value'])}{f', {between}' if between else ''}")
    return parts


def _value_text(row: Row, beside: Sequence[str] = ()) -> str:
    return f"{_number(row['value'])}{in_brackets(interval(row, between=' to '), *beside)}"


def _number(value: float) -> str:
    """Return a number with three decimals; a number just below 1 is not rounded to 1."""
    return "above 0.9995" if 0.9995 <= value < 1 else f"{round(value, 3) + 0.0:.3f}"


# --------------------------------------------------------------------------------------------------------------------
# The table and the sentences of the fusion of layers, for the terminal.
# --------------------------------------------------------------------------------------------------------------------

# The fusions in the order of the tables, with their headings; the mean of the layers has nothing to learn.
FUSIONS = {"equal": "mean", "concat": "concat", "max": "max", "gate": "gate"}
_BASELINES = {"last layer": "last layer", "best layer": "best layer", "equal": "mean"}


def fusion_tables(rows: Sequence[Row]) -> list[Any]:
    """Return the accuracies of layers and fusions and their differences as rich tables; none without rows."""
    from probing.runtime.terminal import plain_table

    if not rows:
        return []
    accuracies = plain_table("Fusion of layers: accuracy of linear probes on test sentences")
    accuracies.add_column("task")
    for heading in ("last layer", "best layer", *FUSIONS.values()):
        accuracies.add_column(heading, justify="right")
    differences = plain_table("Differences of accuracies in points, with 95% intervals")
    differences.add_column("task")
    differences.add_column("fusion")
    for heading in _BASELINES.values():
        differences.add_column(f"from the {heading}", justify="right")
    for task in _tasks(rows):
        accuracy_rows = _accuracies(rows, task)
        last, best = _last(accuracy_rows), _best(accuracy_rows)
        cells = [f"{last['value']:.3f}", f"{best['value']:.3f} (layer {best['layer']})"]
        accuracies.add_row(task, *cells, *(f"{accuracy_rows[name, None]['value']:.3f}" for name in FUSIONS))
        for name in ("concat", "max", "gate"):
            of = _differences(rows, task, name)
            differences.add_row(task, name, *(_points(of[against]) for against in _BASELINES))
    return [accuracies, differences]


def fusion_lines(rows: Sequence[Row]) -> list[str]:
    """Return a sentence for each task, a sentence on the similarity of tokens, and the limits of both."""
    if not rows:
        return []
    return [
        *(line for task in _tasks(rows) for line in (_compared(rows, task), *_unfinished(rows, task))),
        *_cosines(rows),
        _limits(rows),
    ]


def _tasks(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row["task"] for row in rows if row["measure"] == "accuracy"))


def _accuracies(rows: Sequence[Row], task: str) -> dict[tuple[str, int | None], Row]:
    task_rows = [row for row in rows if (row.get("task"), row["measure"]) == (task, "accuracy")]
    return {(row["fusion"], row.get("layer")): row for row in task_rows}


def _last(accuracy_rows: Mapping[tuple[str, int | None], Row]) -> Row:
    return max((row for row in accuracy_rows.values() if row["fusion"] == "layer"), key=lambda row: row["layer"])


def _best(accuracy_rows: Mapping[tuple[str, int | None], Row]) -> Row:
    return next(row for row in accuracy_rows.values() if row.get("chosen") == "yes")


def _differences(rows: Sequence[Row], task: str, fusion: str) -> dict[str, Row]:
    of = [row for row in rows if (row.get("task"), row["fusion"], row["measure"]) == (task, fusion, "difference")]
    return {row["against"]: row for row in of}


def _compared(rows: Sequence[Row], task: str) -> str:
    """Compare fusions with the best layer, since any other layer too may exceed the last layer."""
    best = _best(_accuracies(rows, task))
    between = interval(best, between=" to ", form=".1f", times=100)
    parts = []
    for name in ("concat", "max", "gate"):
        row = _differences(rows, task, name)["best layer"]
        around = in_brackets(interval(row, between=" to ", form="+.1f", times=100), _p_value(row))
        parts.append(f"{100 * row['value']:+.1f}{around} with {name}")
    return (
        f"Fusion for {task}: layer {best['layer']}, the best on validation sentences, is right about "
        f"{best['value']:.1%} of {best['n']:,} test examples{in_brackets(between)}; fusion changes that, in points, by "
        f"{', '.join(parts)}."
    )


def _points(row: Row) -> str:
    return f"{100 * row['value']:+.1f}{in_brackets(interval(row, between=' to ', form='+.1f', times=100))}"


def _p_value(row: Row) -> str:
    p = row["p_value"]
    return "" if math.isnan(p) else "p below .001" if p < 0.001 else f"p {p:.3f}"


def _unfinished(rows: Sequence[Row], task: str) -> list[str]:
    names = [name for (name, _), row in _accuracies(rows, task).items() if row.get("converged") == "no"]
    if not names:
        return []
    return [
        f"Training of {' and '.join(names)} for {task} did not end at a minimum, so that more training might give "
        "another accuracy."
    ]


def _cosines(rows: Sequence[Row]) -> list[str]:
    cosine_rows = [row for row in rows if row["measure"] == "cosine"]
    last = max((row for row in cosine_rows if row["fusion"] == "layer"), key=lambda row: row["layer"])
    parts = [f"{_similarity(last)} in layer {last['layer']}"]
    for name, words in {"equal": "the mean of the layers", "max": "max"}.items():
        parts += [f"{_similarity(row)} in {words}" for row in cosine_rows if row["fusion"] == name]
    for name in ("concat", "gate"):
        parts += [f"{_similarity(row)} in {name} for {row['task']}" for row in cosine_rows if row["fusion"] == name]
    return [f"The mean cosine of two tokens of a sentence is {', '.join(parts)}."]


def _similarity(row: Row) -> str:
    return f"{row['value']:.3f}{in_brackets(interval(row, between=' to '))}"


def _limits(rows: Sequence[Row]) -> str:
    n = sum(row["measure"] == "difference" and not math.isnan(row["p_value"]) for row in rows)
    corrected = f"P-values are corrected for {n} comparisons. " if n else ""
    untrained = "The model was not trained with these fusions, so that this says nothing about pretraining with them."
    return corrected + untrained
