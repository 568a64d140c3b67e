"""Figures of `attention`: readable in greyscale, whole layer numbers, units on every axis."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from probing.heads.examples import examples_of, read_examples, write_examples
from probing.heads.measures import Rows
from probing.heads.survey import HeadSurvey
from probing.results import curve_points, estimate_cells, two_decimals, without_nan
from probing.runs import Result
from probing.runs.call import Measurements
from probing.studies.attention.tables import SAME, heads_of_changes, layers_of_changes
from probing.tables.figures import (
    GREY,
    Drawings,
    draw_cells,
)
from probing.tables.heads import CLASSES, LETTERS, SPECIAL, finds_relation, name_of, of_all_maps, of_heads, of_measure
from probing.text.tokens import count_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from probing.heads.examples import ExampleMaps


Row = Mapping[str, Any]


def drawings(result: Result, models: Sequence[str]) -> Drawings:
    """Return what draws the maps of heads, of the tables that have rows, and the example of each class.

    `models` are the names of the model and, if there is one, of the model it is compared with, for the titles.
    """
    tables, model, examples = result.by_name, models[0], read_examples(result.folder)
    of_rows: dict[str, tuple[Callable[..., None], Sequence[Row]]] = {
        "classes": (class_map, of_heads(tables)),
        "entropy": (entropy_map, of_measure(tables["heads"], "entropy")),
        "change": (partial(change_map, other=models[-1]), tables["change"]),
        "relations": (relation_map, tables["head_relations"]),
    }
    drawn: dict[str, Callable[[Figure], None]] = {
        name: partial(draw, rows=rows, model=model) for name, (draw, rows) in of_rows.items() if rows
    }
    if examples and examples.classes:
        drawn["examples"] = partial(class_examples, examples=examples, model=model)
    return drawn


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


def change_map(figure: Figure, rows: Sequence[Row], model: str, other: str) -> None:
    """Draw the cosine of each head's maps in two checkpoints; the shade is relative to two heads of the layer."""
    others = {row["layer"]: 1 - row["value"] for row in layers_of_changes(rows, "cosine", "other heads")}

    def shade(row: Row) -> float:
        return min((1 - row["value"]) / (others.get(row["layer"]) or 1.0), 1.0)

    def text(row: Row) -> str:
        return "1" if row["value"] == 1 else f"{min(row['value'], 0.994):.2f}"[1:]

    axes = _map(figure, heads_of_changes(rows, "cosine"), shade, text)
    axes.set_title(
        f"{model} and {other}: cosine of each head's attention maps\n"
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
    """Return the tables, results and examples of a run; `lacking` has the requirements of other parts."""
    examples = examples_of(survey, stores)
    heads, tokens = survey.heads, survey.tokens
    origin = {name: survey.entry(stores).header[name] for name in ("model", "revision", "versions")}
    counts = count_words(tokens, survey.request.corpus)
    words = counts.as_json() if counts else {}
    types = {"special tokens": survey.special, **survey.types}
    against = survey.against and survey.against.request
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
        **({"against": {"model": against.source.name, "key": against.key()}} if against else {}),
        "n_sentences": int((survey.lengths > 0).sum()),
        "n_tokens": int(survey.is_included.sum()),
        "token_types": {
            name: {"n_tokens": int(of.sum()), "share": float(of[survey.is_included].mean())}
            for name, of in types.items()
            if of.any()
        },
        "classes": {name: without_nan(row) for name, row in of_all_maps(tables).items()},
    }
    return Measurements(
        tables,
        results,
        _curves(tables),
        write=lambda folder: [write_examples(folder, examples)] if examples else [],
    )


def _curves(tables: Mapping[str, Rows]) -> list[dict[str, Any]]:
    """Return a row per layer with a column for each measure and its confidence interval, for W&B's curves."""
    changes = layers_of_changes(tables.get("change", ())).where(of=SAME)

    def cells(row: Row) -> Row:
        to = row.get("to", "")
        if row["measure"] == "column_max" or to not in ("", SPECIAL):
            return {}
        name = f"change_{row['measure']}" if "of" in row else f"{row['measure']} {to}".strip().replace(" ", "_")
        return estimate_cells(name, row["value"], (row["low"], row["high"]))

    points = curve_points([*tables.get("attention_layers", ()), *changes], cells)
    return sorted(points, key=lambda point: point["layer"])
