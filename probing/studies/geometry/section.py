"""The geometry of a model's layers, and the measurements inside the model where there are some."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from probing.page.lines import Line, line_chart
from probing.results.rows import Html, as_in_terminal, element, table
from probing.results.schema import Row, ends, in_brackets, interval
from probing.runs.study import Result
from probing.statistics.sample_size import label, size_lines
from probing.studies.geometry.extremes import tables as extremes
from probing.studies.geometry.inside.report import inside_conclusions, inside_tables
from probing.studies.geometry.neurons import tables as neuron_interventions
from probing.studies.geometry.position.tables import position_conclusions, position_tables
from probing.studies.geometry.tables import MORE_TEXT
from probing.tables.first_token import first_token_conclusions, first_token_tables


def geometry_section(geometry: Result, anchor: str) -> Html:
    """Return the measures of each layer, its outlier dimensions, and the measurements inside the model."""
    transforms = list(dict.fromkeys(row["transform"] for row in geometry.geometry))
    cosines = [row for row in geometry.geometry if row["measure"] == "mean_cosine"]
    return element(
        "section",
        element("h2", geometry.study.heading(geometry)),
        _cosines(cosines) if cosines else None,
        *(element("p", sentence) for sentence in size_lines(geometry.geometry, MORE_TEXT)),
        *(_measures(geometry, transform) for transform in transforms),
        _outliers(geometry) if geometry.outliers else None,
        *_first_token(geometry),
        *_position(geometry),
        *_extremes(geometry),
        *_inside(geometry),
        id=anchor,
    )


def _first_token(geometry: Result) -> list[Html]:
    """Return the terminal's results on the first token of each sentence, where it is left out of all others."""
    if not geometry.first_token:
        return []
    told = "The measures above are those of all tokens but the first one of each sentence."
    return _as_told("The first token", first_token_tables(geometry.first_token), [
        told, *first_token_conclusions(geometry.first_token)
    ])  # fmt: skip


def _position(geometry: Result) -> list[Html]:
    """Return the terminal's results on the position part, where it was measured."""
    tables = position_tables(geometry.by_name)
    return _as_told("Position", tables, position_conclusions(geometry.by_name)) if tables else []


def _extremes(geometry: Result) -> list[Html]:
    """Return the terminal's results on large values and attention sinks."""
    tables = extremes.tables(geometry.by_name)
    return (
        _as_told("Massive activations and attention sinks", tables, extremes.conclusions(geometry.by_name))
        if tables
        else []
    )


def _inside(geometry: Result) -> list[Html]:
    """Return the terminal's results on what was measured by running the model itself."""
    measured = (
        geometry.smoothing, geometry.interventions, geometry.norms, geometry.norm_changes, geometry.path,
        geometry.first_row,
    )  # fmt: skip
    neurons = geometry.neuron_interventions
    tables = [*inside_tables(*measured), *neuron_interventions.tables(neurons)]
    lines = [*inside_conclusions(*measured), *neuron_interventions.conclusions(neurons)]
    return _as_told("Inside the model", tables, lines) if tables else []


def _as_told(heading: str, tables: Sequence[Any], lines: Sequence[str]) -> list[Html]:
    """Return sentences and tables of the terminal under a heading."""
    shown = [element("figure", element("figcaption", t.title), as_in_terminal(t)) for t in tables]
    return [element("h3", heading), *(element("p", sentence) for sentence in lines), *shown]


def _cosines(rows: Sequence[Row]) -> Html:
    """Return the mean cosine of tokens by layer, before and after each transform."""
    lines = []
    for transform in dict.fromkeys(row["transform"] for row in rows):
        here = sorted((row for row in rows if row["transform"] == transform), key=lambda row: row["layer"])
        layers, values = [row["layer"] for row in here], [row["value"] for row in here]
        lines.append(Line(label(str(transform), here), layers, values, [ends(row) for row in here]))
    title = "Mean cosine of the hidden states of two tokens, by layer and transform (values below 0 are drawn at 0)"
    return element("figure", element("figcaption", title), line_chart(lines, title))


def _measures(geometry: Result, transform: str) -> Html:
    rows = [row for row in geometry.geometry if row["transform"] == transform]
    measures = list(dict.fromkeys(row["measure"] for row in rows))
    found = {(row["layer"], row["measure"]): row for row in rows}
    body = [
        [layer, *(_value(found.get((layer, measure))) for measure in measures)]
        for layer in sorted({row["layer"] for row in rows})
    ]
    name = "without a transform" if transform == "none" else f"after {label(transform, rows)}"
    head = ["layer", *(str(measure).replace("_", " ") for measure in measures)]
    return element("details", element("summary", f"Measures of each layer, {name}"), table(head, body))


def _outliers(geometry: Result) -> Html:
    head = list(geometry.outliers[0])
    body = [[_cell(row[name]) for name in head] for row in geometry.outliers]
    summary = element("summary", f"Outlier dimensions: {len(body)} rows")
    return element("details", summary, table([name.replace("_", " ") for name in head], body))


def _value(row: Row | None) -> str:
    if row is None:
        return ""
    return f"{row['value']:.3g}{in_brackets(interval(row, between=' to ', form='.3g'))}"


def _cell(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
