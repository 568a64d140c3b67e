"""Tables, figures and a page of two models beside each other, from finished runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import read_csv, write_csv
from probing.tables import controls_of
from probing.tables.figures import BLUE, GREY, LOOKS, ORANGE, drawing
from probing.tables.heads import SPECIAL, of_measure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = Mapping[str, Any]
Runs = Mapping[str, Any]

COLOURS, MARKS = (BLUE, ORANGE), ("o", "s")
WIDE = {"accuracy": 7.6, "others": 7.6, "anisotropy": 5.6}


def write_all(folder: Path, models: Sequence[str], runs: Runs, n_sentences: int, context: Mapping[str, str]) -> Path:
    """Write the tables and figures of what was run, and a page with all of them; return the page's path.

    Args:
        folder: The folder.
        models: Short names of both models.
        runs: Finished runs by name, such as `fit-minilm` and `compare`.
        n_sentences: Number of sentences that were read.
        context: Machine, versions and date.
    """
    tables = {name: rows for name, rows in _tables(models, runs).items() if rows}
    if (costs := folder / "costs.csv").exists():
        tables["costs"] = [{key: value for key, value in row.items() if value} for row in read_csv(costs)]
    for name, rows in tables.items():
        if name != "costs":
            write_csv(folder / f"{name}.csv", list(dict.fromkeys(key for row in rows for key in row)), rows)
    figures = {name: (partial(draw, models=models, runs=runs), needed) for name, (draw, needed) in _FIGURES.items()}
    drawn = draw_figures(folder, "two_models", figures, models, runs)
    page = folder / "README.md"
    page.write_text(_page(models, tables, drawn, n_sentences, context), encoding="utf-8")
    return page


def draw_figures(
    folder: Path, prefix: str, figures: Mapping[str, tuple[Callable[[Figure], None], Sequence[str]]],
    models: Sequence[str], runs: Runs,
) -> list[Path]:  # fmt: skip
    """Draw each figure of which a run is there as FOLDER/figures/PREFIX_NAME.png, and return the paths.

    Args:
        folder: The folder.
        prefix: The beginning of the names of the files.
        figures: By name, what draws a figure, and the commands of whose runs it shows some.
        models: Short names of the models.
        runs: Finished runs by name, such as `fit-minilm`.
    """
    drawn = []
    for name, (draw, needed) in figures.items():
        if any(f"{part}-{model}" in runs for part in needed for model in models):
            path = folder / "figures" / f"{prefix}_{name}.png"
            path.parent.mkdir(exist_ok=True)
            with drawing(path, ["png"]) as figure:
                draw(figure)
            drawn.append(path)
    return drawn


# --- tables ---


def _tables(models: Sequence[str], runs: Runs) -> dict[str, list[Row]]:
    return {
        "by_depth": [row for model in models for row in _by_depth(model, runs)],
        "agreement": _agreement(runs.get("compare")),
        "wic": [
            {"model": model, **_cells(row, "transform", "layer", "accuracy", "accuracy_low", "accuracy_high", "gain",
                                      "gain_low", "gain_high", "n_pairs")}
            for model in models if f"wic-{model}" in runs
            for row in runs[f"wic-{model}"].chosen if row["protocol"] == "held_out"
        ],
        "sts": [
            {"model": model, **_cells(row, "set", "pooling", "transform", "layer", "spearman", "low", "high", "gain",
                                      "gain_low", "gain_high", "n_pairs")}
            for model in models if f"sts-{model}" in runs
            for row in runs[f"sts-{model}"].chosen if row["protocol"] == "held_out" and row["aggregation"] == "all"
        ],
    }  # fmt: skip


def _cells(row: Row, *names: str) -> dict[str, Any]:
    return {name: row[name] for name in names if name in row}


def depth_of(model: str, runs: Runs) -> Callable[[int], float]:
    """Return the function that gives the relative depth of a layer of a model, 0 for embeddings and 1 for the last."""
    n_blocks = max(
        int(row["layer"])
        for part, table in (("fit", "accuracy"), ("geometry", "geometry"), ("attention", "attention_layers"))
        if f"{part}-{model}" in runs
        for row in getattr(runs[f"{part}-{model}"], table) if str(row["layer"]).isdigit()
    )  # fmt: skip
    return lambda layer: int(layer) / n_blocks


def _by_depth(model: str, runs: Runs) -> list[Row]:
    """Return a row for each layer of a model with what was measured there."""
    if not any(f"{part}-{model}" in runs for part in ("fit", "geometry", "attention")):
        return []
    depth, found = depth_of(model, runs), dict[int, dict[str, Any]]()

    def put(layer: Any, **values: Any) -> None:
        row = found.setdefault(int(layer), {"model": model, "layer": int(layer), "depth": round(depth(layer), 4)})
        row.update(values)

    if (fit := runs.get(f"fit-{model}")) is not None:
        for row in fit.accuracy:
            put(row["layer"], **_cells(
                row, "accuracy", "accuracy_low", "accuracy_high", "cross_entropy", "prior_cross_entropy",
                *(f"{name}_accuracy" for name in controls_of(fit.accuracy)),
            ))  # fmt: skip
            (first,) = fit.top(row["layer"], 1)
            put(row["layer"], top_neuron=first["neuron"], top_share=first["share"], top_flag=first["flag"])
    for transform, column in (("none", "cosine"), ("clip", "cosine_clipped")):
        for row in cosines(runs.get(f"geometry-{model}"), transform):
            put(row["layer"], **{column: row["value"], f"{column}_low": row["low"], f"{column}_high": row["high"]})
    for row in special_tokens(runs.get(f"attention-{model}")):
        put(row["layer"], special=row["value"], special_low=row["low"], special_high=row["high"])
    for row in skipped(runs.get(f"ablate-{model}")):
        put(row["unit"], skipped=row["effect"], skipped_low=row["low"], skipped_high=row["high"])
    return [found[layer] for layer in sorted(found)]


def cosines(run: Any, transform: str) -> list[Row]:
    """Return the rows of the mean cosine of one token of each sentence, or of all tokens where they are transformed."""
    if run is None:
        return []
    rows = [row for row in run.geometry if (row["transform"], row["measure"]) == (transform, "mean_cosine")]
    return sorted((row for row in rows if "low" in row), key=lambda row: int(row["layer"]))


def special_tokens(run: Any) -> list[Row]:
    """Return the rows of the attention that special tokens get, as means over the heads of each block."""
    rows = [] if run is None else of_measure(run.attention_layers, "mass", SPECIAL)
    return sorted(rows, key=lambda row: int(row["layer"]))


def skipped(run: Any) -> list[Row]:
    """Return the rows of what the probe of the last layer loses where a block is skipped."""
    rows = [] if run is None else [row for row in run.ablated if (row["kind"], row["readout"]) == ("skip", "position")]
    if not rows:
        return []
    last = max(int(row["layer"]) for row in rows)
    return sorted((row for row in rows if int(row["layer"]) == last), key=lambda row: int(row["unit"]))


def _agreement(run: Any) -> list[Row]:
    """Return, for layers at the same relative depth, how far rankings agree, beside chance."""
    if run is None:
        return []
    wanted = [row for row in run.agreement if row["same_depth"] == "yes"]
    return [
        _cells(row, "model_a", "layer_a", "model_b", "layer_b", "statistic", "value", "low", "high", "chance",
               "chance_low", "chance_high", "p_value")
        for row in wanted
    ]  # fmt: skip


# --- figures ---


def _accuracy(figure: Figure, models: Sequence[str], runs: Runs) -> None:
    """Draw accuracy by relative depth with its controls, a panel for each model."""
    figure.set_size_inches(WIDE["accuracy"], 3.4)
    for axes, model, colour, mark in zip(figure.subplots(1, 2, sharey=True), models, COLOURS, MARKS, strict=True):
        axes.set_title(model)
        if (run := runs.get(f"fit-{model}")) is not None:
            depth = depth_of(model, runs)
            ends, label = ("accuracy_low", "accuracy_high"), f"probe, {model}"
            _line(axes, depth, run.accuracy, "accuracy", *ends, colour, mark, label)
            controls = controls_of(run.accuracy).items()
            for (name, words), (color, dashes, control_mark) in zip(controls, LOOKS[1:], strict=False):
                at = [depth(row["layer"]) for row in run.accuracy]
                values = [row[f"{name}_accuracy"] for row in run.accuracy]
                axes.plot(at, values, label=words, color=color, ls=dashes, marker=control_mark, ms=4)
        axes.set_xlabel("relative depth (0 = embeddings)")
        axes.set_ylim(0, 1.03)
    figure.axes[0].set_ylabel("test accuracy of position")
    handles = {
        label: handle for axes in figure.axes for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4)


def _anisotropy(figure: Figure, models: Sequence[str], runs: Runs) -> None:
    """Draw the mean cosine by relative depth, as it is and with outliers clipped."""
    figure.set_size_inches(WIDE["anisotropy"], 3.2)
    axes = figure.subplots()
    for model, colour, mark in zip(models, COLOURS, MARKS, strict=True):
        if (run := runs.get(f"geometry-{model}")) is not None:
            depth = depth_of(model, runs)
            for transform, style, words in (("none", "-", "as it is"), ("clip", "--", "outliers clipped")):
                label = f"{model}, {words}"
                _line(axes, depth, cosines(run, transform), "value", "low", "high", colour, mark, label, style)
    axes.set_xlabel("relative depth (0 = embeddings)")
    axes.set_ylabel("mean cosine of two tokens")
    axes.axhline(0, color=GREY, lw=0.8)
    axes.legend(fontsize=8)


def _others(figure: Figure, models: Sequence[str], runs: Runs) -> None:
    """Draw what special tokens get of attention, and what is lost without a block, by relative depth."""
    figure.set_size_inches(WIDE["others"], 3.2)
    panels = (
        ("attention", special_tokens, "value", "layer", "attention to special tokens"),
        ("ablate", skipped, "effect", "unit", "accuracy of the last layer's probe,\nblock skipped less intact"),
    )
    for axes, (part, rows_of, column, of, words) in zip(figure.subplots(1, 2), panels, strict=True):
        for model, colour, mark in zip(models, COLOURS, MARKS, strict=True):
            if rows := rows_of(runs.get(f"{part}-{model}")):
                _line(axes, depth_of(model, runs), rows, column, "low", "high", colour, mark, model, of=of)
        axes.set_xlabel("relative depth of the block")
        axes.set_ylabel(words)
        axes.axhline(0, color=GREY, lw=0.8)
        if axes.has_data() and axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=8)


def _line(
    axes: Axes, depth: Callable[[int], float], rows: Sequence[Row], column: str, low: str, high: str, colour: str,
    mark: str, label: str, style: Any = "-", of: str = "layer",
) -> None:  # fmt: skip
    at, values = [depth(row[of]) for row in rows], [row[column] for row in rows]
    reach = [[max(0.0, v - row.get(low, v)) for v, row in zip(values, rows, strict=True)],
             [max(0.0, row.get(high, v) - v) for v, row in zip(values, rows, strict=True)]]  # fmt: skip
    axes.errorbar(at, values, yerr=reach, color=colour, marker=mark, ms=4, capsize=2, ls=style, lw=1.2, label=label)


_FIGURES: dict[str, tuple[Callable[[Any, Sequence[str], Runs], None], Sequence[str]]] = {
    "accuracy": (_accuracy, ("fit",)),
    "anisotropy": (_anisotropy, ("geometry",)),
    "others": (_others, ("attention", "ablate")),
}


# --- page ---


def _page(
    models: Sequence[str], tables: Mapping[str, Sequence[Row]], drawn: Sequence[Path], n_sentences: int,
    context: Mapping[str, str],
) -> str:  # fmt: skip
    lines = [f"# {' and '.join(models)}", "", f"The first {n_sentences} sentences of the built-in corpus.", ""]
    lines += [f"![{path.stem.replace('_', ' ')}](figures/{path.name})\n" for path in drawn]
    for name, rows in tables.items():
        columns = list(dict.fromkeys(key for row in rows for key in row))
        lines += [
            f"## {name.replace('_', ' ').capitalize()}",
            "",
            f"| {' | '.join(columns)} |",
            "|---" * len(columns) + "|",
        ]
        lines += [f"| {' | '.join(shown(row.get(column, '')) for column in columns)} |" for row in rows] + [""]
    return "\n".join([*lines, f"*{'; '.join(f'{key} {value}' for key, value in context.items())}.*"]) + "\n"


def shown(value: Any) -> str:
    """Return a cell of a page's table: numbers in three digits."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return str(value)
    return f"{number:g}" if number.is_integer() else f"{number:.0f}" if abs(number) >= 100 else f"{number:.3g}"
