"""Figures of `attention`: readable in greyscale, whole layer numbers, units on every axis."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probing.activations import Request
from probing.heads.examples import examples_of, write_examples
from probing.heads.measures import Rows
from probing.heads.survey import HeadSurvey
from probing.results import NamedLayer, Table, two_decimals, without_nan
from probing.runs.call import Measurements
from probing.studies.attention.tables import FUSIONS, examined_heads, heads_of_changes, layers_of_changes
from probing.tables.figures import (
    GREY,
    USUAL,
    Chart,
    Line,
    Panel,
    by_name,
    draw_cells,
    write_charts,
    write_drawings,
)
from probing.tables.heads import CLASSES, LETTERS, finds_relation, name_of, of_all_maps, of_heads, of_measure
from probing.text.tokens import count_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from probing.heads.examples import ExampleMaps


BY_NEURON, BY_FUSION = by_name("neuron", "neuron, by use"), by_name("layer or fusion", "layer, or fusion of layers")


def fusions_chart(rows: Sequence[Mapping[str, Any]]) -> Chart:
    """Return a panel for each task from rows of `fusion.csv`: the layers from the left, joined, then the fusions."""
    panels = []
    for task, task_rows in Table(rows).where(measure="accuracy").by("task").items():
        single = task_rows.where(fusion="layer")
        fused = [row for fusion in FUSIONS for row in task_rows.where(fusion=fusion)]
        names = [str(row["layer"]) for row in single] + [FUSIONS[row["fusion"]] for row in fused]
        rows_by_name = zip([*single, *fused], names, strict=True)
        placed = [row | {"place": NamedLayer(i, name)} for i, (row, name) in enumerate(rows_by_name)]
        panels.append(Panel([
            Line.of(placed[: len(single)], "value", "layer", "", x="place"),
            replace(Line.of(placed[len(single) :], "value", "fusion of layers", "", x="place"), kind="marks"),
        ], task))  # fmt: skip
    title = "linear probes of layers and of fused layers, 95% intervals"
    return Chart("fusion", title, panels, "accuracy (test sentences)", (0, 1), x=BY_FUSION)


Row = Mapping[str, Any]
# Heads whose neurons are drawn, and neurons of each.
CLEAREST, NEURONS = 3, 12


def write_figures(
    folder: Path,
    tables: Mapping[str, Sequence[Row]],
    models: Sequence[str],
    formats: Sequence[str] = USUAL,
    examples: ExampleMaps | None = None,
) -> list[Path]:
    """Draw a run's figures, each in some formats, and return the paths of the files.

    `models` are the names of the model and, if there is one, of the model it is compared with, for the titles.
    """
    changes, model = tables.get("change", ()), models[0]
    drawings: dict[str, Callable[[Figure], None]] = {}
    if classes := of_heads(tables):
        drawings["classes"] = lambda figure: class_map(figure, classes, model)
    if entropies := of_measure(tables.get("heads", ()), "entropy"):
        drawings["entropy"] = lambda figure: entropy_map(figure, entropies, model)
    if changes:
        drawings["change"] = lambda figure: change_map(figure, changes, models)
    if examples and examples.classes:
        drawings["examples"] = lambda figure: class_examples(figure, examples, model)
    if relations := tables.get("head_relations"):
        drawings["relations"] = lambda figure: relation_map(figure, relations, model)
    charts = []
    if clearest := examined_heads(tables)[:CLEAREST]:
        charts.append(neuron_shares(clearest, tables["position_neurons"]))
    if fused := tables.get("fusion", ()):
        charts.append(fusions_chart(fused))
    return write_drawings(folder, drawings, formats) + write_charts(folder, charts, model, formats)


def class_map(figure: Figure, rows: Sequence[Row], model: str) -> None:
    """Draw the class of most maps of each head, as a letter and a shade, and the share of these maps."""
    axes = _map(figure, rows, lambda row: LETTERS[row["class"]][1], _letter)
    classes = [name for name in CLASSES if any(row["class"] == name for row in rows)]
    legend = ", ".join(f"{LETTERS[name][0]} {name}" for name in classes)
    axes.set_title(f"{model}: class of most maps of each head, % of its maps\n{legend}", fontsize=9)


def entropy_map(figure: Figure, rows: Sequence[Row], model: str) -> None:
    """Draw the mean entropy of each head."""
    axes = _map(figure, rows, lambda row: row["value"], lambda row: f"{row['value']:.2f}"[int(row["value"] < 0.995) :])
    axes.set_title(f"{model}: entropy of attention (0: one token, 1: uniform)", fontsize=9)


def change_map(figure: Figure, rows: Sequence[Row], models: Sequence[str]) -> None:
    """Draw the cosine of each head's maps in two checkpoints; the shade is relative to two heads of the layer."""
    others = {row["layer"]: 1 - row["value"] for row in layers_of_changes(rows, "cosine", "other heads")}

    def shade(row: Row) -> float:
        return min((1 - row["value"]) / (others.get(row["layer"]) or 1.0), 1.0)

    def text(row: Row) -> str:
        return "1" if row["value"] == 1 else f"{min(row['value'], 0.994):.2f}"[1:]

    axes = _map(figure, heads_of_changes(rows, "cosine"), shade, text)
    axes.set_title(
        f"{' and '.join(models)}: cosine of each head's attention maps\n"
        "(white: no change, black: as unlike as two heads of the layer)", fontsize=9,
    )  # fmt: skip


def class_examples(figure: Figure, examples: ExampleMaps, model: str) -> None:
    """Draw for each class a map of the head that has this class most often, with the tokens along both sides."""
    names = [name for name in CLASSES if name in examples.classes]
    columns = min(2, len(names))
    rows = -(-len(names) // columns)
    figure.set_size_inches(0.7 + 3.4 * columns, 0.5 + 3.3 * rows)
    panels = figure.subplots(rows, columns, squeeze=False).flat
    for name, axes in zip(names, panels, strict=False):  # what is left of the panels stays empty
        of, weights = examples.map_of(name)
        class_example = examples.classes[name]
        image = axes.imshow(weights, cmap="Greys", vmin=0, vmax=1, aspect="equal")
        marks = range(len(of.tokens))
        # A token may have a dollar sign, which is no formula.
        axes.set_xticks(marks, of.tokens, rotation=90, fontsize=8, parse_math=False)
        axes.set_yticks(marks, of.tokens, fontsize=8, parse_math=False)
        axes.set_title(
            f"{name}\nhead {class_example.layer}-{class_example.head}, {class_example.share:.0%} of its maps",
            fontsize=9,
        )
    for axes in panels:
        axes.set_visible(False)
    figure.supylabel("from", fontsize=9)
    figure.supxlabel("to", fontsize=9)
    figure.colorbar(image, ax=figure.axes, shrink=0.5, label="attention")
    figure.suptitle(f"{model}: an attention map of each class", x=0.01, ha="left", fontsize=10)


def relation_map(figure: Figure, rows: Sequence[Row], model: str) -> None:
    """Draw the dependency relation that each head is best at, with its accuracy; shaded if the head predicts it."""
    texts = [f"{row['relation']}\n{two_decimals(row['test']).replace('0.', '.', 1)}" for row in rows]
    by_head = {name_of(row): text for row, text in zip(rows, texts, strict=True)}
    wide = 0.2 + 0.062 * max(len(line) for text in texts for line in text.split("\n"))
    axes = _map(
        figure, rows, lambda row: row["test"] if finds_relation(row) else 0.0, lambda row: by_head[name_of(row)],
        (wide, 0.42),
    )  # fmt: skip
    for row, text in zip(rows, axes.texts, strict=True):
        if not finds_relation(row):
            text.set_color(GREY)
    n = sum(map(finds_relation, rows))
    axes.set_title(
        f"{model}: best dependency relation of each head, accuracy on test sentences\n"
        f"shaded: better than the best offset, by more than with permuted syntactic heads ({n} of {len(rows)})",
        fontsize=9,
    )


def neuron_shares(heads: Sequence[Row], neurons: Sequence[Row]) -> Chart:
    """Return the neurons that heads use most, with their shares of the contrast between positions."""
    panels = []
    for head in heads:
        head_neurons = [row for row in neurons if name_of(row) == name_of(head)][:NEURONS]
        names = [NamedLayer(i, str(row["neuron"])) for i, row in enumerate(head_neurons)]
        shares = {
            label: [100 * row[name] / (row["position_part"] or math.inf) for row in head_neurons]
            for name, label in (("by_query", "query"), ("by_key", "key"))
        }
        lines = [Line(label, names, values, kind="bars") for label, values in shares.items()]
        panels.append(Panel(lines, f"head {name_of(head)}, offset {head['offset']:+d}"))
    title = "shares of neurons in the contrast of heads"
    return Chart("position_neurons", title, panels, "% of the contrast between positions", x=BY_NEURON, reference=0)


def _letter(row: Row) -> str:
    return f"{LETTERS[row['class']][0]} {100 * row['share']:.0f}"


def _map(
    figure: Figure,
    rows: Sequence[Row],
    shade: Callable[[Row], float],
    text: Callable[[Row], str],
    size: tuple[float, float] = (0.44, 0.3),
) -> Axes:
    return draw_cells(figure, {(row["layer"], row["head"]): (text(row), shade(row)) for row in rows}, size)


# --------------------------------------------------------------------------------------------------------------------
# Write what a survey of heads found into a run's folder.
# --------------------------------------------------------------------------------------------------------------------


def study_output(
    tables: Mapping[str, Rows], survey: HeadSurvey, stores: Mapping[str, Any], parts: Sequence[str],
    lacking: Mapping[str, str],
) -> Measurements:  # fmt: skip
    """Return the tables, results, figures and examples of a run; `lacking` has the requirements of other parts."""
    examples = examples_of(survey, stores)
    heads, tokens = survey.heads, survey.tokens
    origin = {name: survey.entry(stores).header[name] for name in ("model", "revision", "versions")}
    counts = count_words(tokens, survey.request.corpus)
    words = counts.as_json() if counts else {}
    types = {"special tokens": survey.special, **survey.types}
    results = {
        "cache": {
            **origin,
            "corpus": survey.request.corpus.name,
            "key": survey.request.key(),
            "n_truncated": tokens.n_truncated,
            **words,
            **survey.request.corpus.as_read,
        },
        "parts": list(parts),
        "left_out": dict(lacking),
        "model": {"n_layers": heads.n_layers, "n_heads": heads.n_heads, "is_causal": heads.is_causal},
        "unit": survey.request.corpus.unit,
        **({"against": _origin(survey.against.request)} if survey.against else {}),
        "n_sentences": int((survey.lengths > 0).sum()),
        "n_tokens": int(survey.is_included.sum()),
        "token_types": {
            name: {"n_tokens": int(of.sum()), "share": float(of[survey.is_included].mean())}
            for name, of in types.items()
            if of.any()
        },
        "classes": {name: without_nan(row) for name, row in of_all_maps(tables).items()},
    }
    against = survey.against
    models = [request.source.short_name for request in (survey.request, *([against.request] if against else []))]
    return Measurements(
        tables,
        results,
        _curves(tables),
        draw=lambda folder, formats: write_figures(folder, tables, models, formats, examples),
        write=lambda folder: [write_examples(folder, examples)] if examples else [],
    )


def _curves(tables: Mapping[str, Rows]) -> list[dict[str, Any]]:
    """Return a row per layer with a column for each measure and its confidence interval, for W&B's curves."""
    by_layer: dict[int, dict[str, Any]] = {}
    for row in tables.get("attention_layers", ()):
        name = f"{row['measure']} {row.get('to', '')}".strip().replace(" ", "_")
        point = by_layer.setdefault(row["layer"], {"layer": row["layer"]})
        if row["measure"] != "column_max" and row.get("to", "") in ("", "special tokens"):
            point |= {name: row["value"], f"{name}_low": row["low"], f"{name}_high": row["high"]}
    for row in tables.get("change", ()):
        if row["of"] == "same" and row["layer"] is not None and row["head"] is None:
            name, point = f"change_{row['measure']}", by_layer.setdefault(row["layer"], {"layer": row["layer"]})
            point |= {name: row["value"], f"{name}_low": row["low"], f"{name}_high": row["high"]}
    return [by_layer[layer] for layer in sorted(by_layer)]


def _origin(request: Request) -> dict[str, Any]:
    return {"model": request.source.name, "key": request.key()}
