"""Figures of a run for papers: readable in greyscale, with units on every axis."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from probing.results import Table, ends, two_decimals
from probing.tables import (
    R2,
    SPANS_IN_ORDER,
    UNINFORMATIVE,
    controls_of,
    neuron_name,
    score_of,
    score_of_neurons,
    smallest,
    with_intercept,
)
from probing.tables.conclusions import beside_directions
from probing.tables.figures import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SIDE_BY_SIDE,
    USUAL,
    Chart,
    Drawings,
    Line,
    Panel,
    by_count,
    chart_drawings,
    error_bars,
    panels,
    share_axis,
    write_drawings,
)
from probing.tables.probes import confusion_shares

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BY_UNITS = by_count("k", "number of units, the first by the training part")
BY_RANK = by_count("rank", "rank")


def bases_chart(bases: Sequence[Mapping[str, Any]], task: str) -> Chart:
    """Return the accuracy by the number of units, a line for each basis, with intervals; a panel for each layer."""
    of_layers = []
    for layer, rows in sorted(Table(bases).by("layer").items()):
        of_basis = {name: sorted(of, key=lambda row: row["k"]) for name, of in rows.by("basis").items()}
        lines = [Line.of(of, "accuracy", name, x="k") for name, of in of_basis.items()]
        counts = sorted(rows.values("k"))
        lines.append(Line("majority class", counts, [rows[0]["majority_accuracy"]] * len(counts)))
        of_layers.append(Panel(lines, f"layer {layer}"))
    title = f"linear probes of {task} on k units"
    return Chart("bases", title, of_layers, "test accuracy (95% interval)", (0, 1), x=BY_UNITS)


def contributions_chart(by_layer: Mapping[int, Sequence[Row]], n_rotations: int) -> Chart:
    """Return the sorted contributions of each layer's neurons over the range of directions."""
    of_layers = []
    for layer, rows in by_layer.items():
        live = beside_directions(rows)
        above = [row for row in live if row["above_directions"] == "yes"]
        band = f"directions of {n_rotations} rotations (range)"
        of_layers.append(Panel([
            replace(Line.of(live, "contribution", "neurons", x="rank"), kind="curve"),
            Line.band(live, "direction_lowest", "direction_highest", band, "rank"),
            replace(Line.of(above, "contribution", "above the largest direction (p ≤ .05)", x="rank"), kind="marks"),
        ], f"layer {layer}: {len(above)} above"))  # fmt: skip
    y = f"contribution ({score_of_neurons(next(iter(by_layer.values()))[0]).axis})"
    title = "contributions of neurons and of random directions"
    return Chart("directions", title, of_layers, y, from_zero=True, x=BY_RANK)


Row = Mapping[str, Any]

# Most classes that are named on an axis of a matrix: words, and numbers.
LABELLED, NUMBERED = 24, 10

TOP = 15  # neurons in the bar chart
# Most cells of a map of layers by layers that have numbers, and most columns of maps that are beside each other.
NUMBERED_CELLS, MOST_BESIDE = 200, 9


def write_figures(
    folder: Path,
    tables: Mapping[str, Sequence[Row]],
    task: str,
    model: str,
    formats: Sequence[str] = USUAL,
) -> list[Path]:
    """Draw a run's figures in each format and return the paths of the files; `tables` has the run's tables by name."""
    charts = chart_drawings(run_charts(tables, task), model)
    return write_drawings(folder, {**charts, **run_drawings(tables, task, model)}, formats)


def run_charts(tables: Mapping[str, Sequence[Row]], task: str) -> list[Chart]:
    """Return the charts of a run from its tables by name."""
    charts = [accuracy_chart(tables["accuracy"], task)]
    if bases := tables.get("bases"):
        charts.append(bases_chart(bases, task))
    if basis := tables.get("basis"):
        charts.append(contributions_chart(Table(tables["neurons"]).by("layer"), basis[0]["n_rotations"]))
    return charts


def run_drawings(tables: Mapping[str, Sequence[Row]], task: str, model: str) -> Drawings:
    """Return what draws the other figures of a run, by name."""
    by_layer = Table(tables["neurons"]).by("layer")
    drawings: dict[str, Callable[[Figure], None]] = {
        "top_neurons": partial(top_neurons, by_layer=by_layer, model=model),
        "neuron_map": partial(neuron_map, by_layer=by_layer, model=model),
    }
    if positions := tables.get("positions"):
        drawings["positions"] = partial(accuracy_by_position, positions=positions, task=task, model=model)
    if scores := tables.get("class_scores"):
        drawings["confusions"] = partial(
            confusion_matrices, scores=scores, confusions=tables["confusions"], task=task, model=model
        )
    return drawings


def accuracy_chart(rows: Sequence[Row], task: str) -> Chart:
    """Return the chart of the accuracy by layer with its interval, and of each control."""
    score = score_of(rows[0])
    probe = "probe (95% interval)" if any(ends(row, score.name) for row in rows) else "probe"
    controls = controls_of(rows).items()
    lines = [
        Line.of(rows, score.name, probe), *(Line.of(rows, f"{name}_{score.name}", words) for name, words in controls)
    ]  # fmt: skip
    # A probe of numbers may be worse than the constant answer, whose R² is 0.
    limits = None if score is R2 and any(value < 0 for line in lines for value in line.values) else (0, 1)
    return Chart("accuracy", f"linear probe of {task}", [Panel(lines)], f"test {score.words}", limits, from_zero=True)


def majority_lines(accuracy_of_run: Mapping[str, Sequence[Row]]) -> list[Line]:
    """Return the accuracy of the majority class by layer, once if it is the same for all runs; none of numbers."""
    what = "majority class"
    known = {f"{what} of {label}": rows for label, rows in accuracy_of_run.items() if "majority_accuracy" in rows[0]}
    if len({rows[0]["majority_accuracy"] for rows in known.values()}) == 1:
        known = {what: max(known.values(), key=len)}
    return [Line.of(rows, "majority_accuracy", name) for name, rows in known.items()]


def accuracy_by_position(figure: Figure, positions: Sequence[Row], task: str, model: str) -> None:
    """Draw accuracy by position, a line for each layer that darkens with depth; intervals for a single layer only."""
    import matplotlib

    figure.set_size_inches(6.4, 3.4)
    axes = figure.add_subplot()
    by_layer = sorted(Table(positions).by("layer").items())
    colours = matplotlib.colormaps["viridis_r"](np.linspace(0.12, 1, len(by_layer)))
    for (layer, layer_rows), colour in zip(by_layer, colours, strict=True):
        x, y = [row["position"] for row in layer_rows], np.array([row["accuracy"] for row in layer_rows])
        axes.plot(x, y, color=colour, lw=1.3, marker=".", ms=3, label=f"layer {layer}")
        if len(by_layer) == 1 and (reach := error_bars(layer_rows, y, "accuracy")) is not None:
            axes.fill_between(x, y - reach[0], y + reach[1], color=colour, alpha=0.2, lw=0, label="95% interval")
    share_axis((row["accuracy"] for row in positions), axes)
    axes.set_xlabel(task.replace("_", " "))
    axes.set_ylabel("test accuracy")
    axes.set_title(f"{model}: linear probe of {task}, accuracy of each class")
    figure.legend(loc="outside right center")


def top_neurons(figure: Figure, by_layer: Mapping[int, Sequence[Row]], model: str) -> None:
    """Draw the first neurons of each layer: the contribution as a bar, its centred part over it.

    If the centred part is unreliable, a mark shows the centred contribution to a probe with an intercept.
    """
    score = score_of_neurons(next(iter(by_layer.values()))[0])
    grid = panels(figure, len(by_layer), (2.5, 3.0), (0, 0.6))
    for axes, (layer, table) in zip(grid, by_layer.items(), strict=True):
        top = table[:TOP]
        y = np.arange(len(top))
        axes.barh(y, [n["contribution"] for n in top], color="#9fc0de", label="|weight x activation|")
        axes.barh(
            y, [n["contribution_centred"] for n in top], height=0.35, color=BLUE, label="without the neuron's mean"
        )
        diamonds = [(value, i) for i, n in enumerate(top) if (value := with_intercept(n)) is not None]
        if diamonds:
            axes.plot(*zip(*diamonds, strict=True), "D", ms=3.5, mfc="white", mec="black", label="with an intercept")
        axes.set_yticks(y, [f"{neuron_name(n)}{_marks(n['flag'])}" for n in top], fontsize=7)
        axes.invert_yaxis()
        axes.set_title(f"layer {layer}" + f" ({UNINFORMATIVE})" * (UNINFORMATIVE in top[0]["flag"]))
        axes.set_xlabel(f"contribution ({score.axis})")
    grid[0].set_ylabel("neuron (* offset, ° no-signal)")
    figure.suptitle(f"{model}: neurons that contribute most to {score.contribution}", x=0.01, ha="left", fontsize=10)
    # The mark may be in some layers only.
    named = {label: handle for axes in grid for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    labels = sorted(named, key="with an intercept".__eq__)  # the mark stands last
    figure.legend([named[label] for label in labels], labels, loc="outside lower center", ncols=2)


def neuron_map(figure: Figure, by_layer: Mapping[int, Sequence[Row]], model: str) -> None:
    """Draw the contribution of every neuron in every layer, in multiples of the layer's mean."""
    from matplotlib.colors import LogNorm

    ratio = np.array([[n["ratio"] for n in sorted(table, key=lambda n: n["neuron"])] for table in by_layer.values()])
    figure.set_size_inches(7.0, 1.4 + 0.28 * len(by_layer))
    # The map is about 5.5 inches wide: with at least a pixel per neuron none is omitted.
    figure.set_dpi(max(figure.get_dpi(), ratio.shape[1] / 5))
    axes = figure.add_subplot()
    # The colours darken with size and read the same in greyscale; the scale spans a decade on either side of the mean.
    image = axes.imshow(
        np.clip(ratio, 0.1, None), aspect="auto", cmap="magma_r", norm=LogNorm(0.1, 10), interpolation="none"
    )
    axes.set_yticks(range(len(by_layer)), [str(layer) for layer in by_layer])
    axes.set_ylabel("layer")
    axes.set_xlabel("neuron" + SPANS_IN_ORDER * any("span" in row for table in by_layer.values() for row in table[:1]))
    axes.set_title(f"{model}: contribution of each neuron")
    bar = figure.colorbar(image, ax=axes, extend="max")
    bar.set_label("x layer mean")
    bar.set_ticks([0.1, 1, 10], labels=["0.1", "1", "10"])


def confusion_matrices(figure: Figure, scores: Sequence[Row], confusions: Sequence[Row], task: str, model: str) -> None:
    """Draw for each layer the share of each class's test tokens predicted as each class."""
    by_layer, confused = Table(scores).by("layer"), Table(confusions).by("layer")
    classes = next(iter(by_layer.values())).column("class")
    every = -(-len(classes) // (LABELLED if isinstance(classes[0], str) else NUMBERED))
    named = range(0, len(classes), every), [str(label) for label in classes[::every]]
    side = 4.2 if len(by_layer) == 1 else 2.2
    grid = panels(figure, len(by_layer), (side, side), (0.9, 0.7), sharex=True, sharey=True)
    for axes, (layer, layer_scores) in zip(grid, by_layer.items(), strict=True):
        shares = confusion_shares(layer_scores, confused.get(layer, ()))
        image = axes.imshow(shares, cmap="Greys", vmin=0, vmax=1, interpolation="none")
        axes.set_title(f"layer {layer}")
        axes.tick_params(labelsize=7)
        # Each panel, since those above an empty place of the last row need labels, for which all rows have room.
        axes.tick_params("x", rotation=90, labelbottom=True)
        axes.set_xlabel("taken for")
    grid[0].set_xticks(*named)
    grid[0].set_yticks(*named)
    for axes in grid[::SIDE_BY_SIDE]:
        axes.set_ylabel("class")
    figure.suptitle(f"{model}: what the probe of {task} takes each class for", x=0.01, ha="left", fontsize=10)
    bar = figure.colorbar(image, ax=figure.axes, aspect=30)
    bar.set_label("share of the class's test tokens")


def _marks(flag: str) -> str:
    return ("*" if "offset" in flag else "") + ("°" if "no-signal" in flag else "")


def agreement_drawings(agreement: Table) -> Drawings:
    """Return what draws a heat map for each pair of runs, by name."""
    pairs = list(agreement.by("model_a", "model_b").values())
    names = ["agreement"] if len(pairs) == 1 else [f"agreement_{number}" for number in range(1, len(pairs) + 1)]
    return {name: partial(layers_by_layers, rows=rows) for name, rows in zip(names, pairs, strict=True)}


def layers_by_layers(figure: Figure, rows: Sequence[Row]) -> None:
    """Draw the agreement of each layer of one run with each layer of another, a panel for each of three statistics."""
    panels = {"spearman": "Spearman of the rankings", "overlap": "overlap of the top", "cka": "linear CKA"}
    layers_a, layers_b = (sorted({row[f"layer_{side}"] for row in rows}) for side in "ab")
    n_cells = len(layers_a) * len(layers_b)
    is_stacked = len(layers_b) > MOST_BESIDE and n_cells <= NUMBERED_CELLS
    # Beside each other, the numbers of many layers would have no room on paper.
    down, across, high = (3, 1, 0.22) if is_stacked else (1, 3, 0.36)
    figure.set_size_inches(2 + across * max(1.9, 0.42 * len(layers_b)), down * (1 + max(1.2, high * len(layers_a))))
    grid = figure.subplots(down, across)
    for axes, (statistic, title) in zip(grid, panels.items(), strict=True):
        values = np.full((len(layers_a), len(layers_b)), np.nan)
        for row in rows:
            if row["statistic"] == statistic:
                values[layers_a.index(row["layer_a"]), layers_b.index(row["layer_b"])] = row["value"]
        image = axes.imshow(values, cmap="Greys", vmin=0, vmax=1, origin="lower", aspect="auto", interpolation="none")
        for (i, j), value in np.ndenumerate(values):
            if np.isfinite(value) and n_cells <= NUMBERED_CELLS:
                shown = two_decimals(value).replace("0.", ".", 1)
                axes.text(j, i, shown, ha="center", va="center", fontsize=6, color="white" if value > 0.6 else "black")
        axes.set_xticks(range(len(layers_b)), [str(layer) for layer in layers_b])
        axes.set_yticks(range(len(layers_a)), [str(layer) for layer in layers_a])
        axes.set_xlabel(f"layer of {rows[0]['model_b']}")
        axes.set_title(title)
        if is_stacked or axes is grid[0]:
            axes.set_ylabel(f"layer of {rows[0]['model_a']}")
    bar = figure.colorbar(image, ax=figure.axes, extend="min", aspect=30)
    bar.set_label("agreement (below 0: white)")


def how_many_neurons(figure: Figure, rows: Sequence[Row], majority: float, task: str, model: str) -> None:
    """Draw accuracy against the number of neurons: with these alone on the left, without them on the right."""
    from matplotlib.ticker import FixedLocator, NullLocator

    figure.set_size_inches(8.6, 3.3)
    rankings = list(dict.fromkeys(row["ranking"] for row in rows if row["ranking"] != "random"))
    looks = [("o", BLUE), ("s", ORANGE), ("^", GREEN), ("D", PURPLE), ("v", "#000000")]
    all_neurons = max((row for row in rows if row["kind"] == "only"), key=lambda row: row["k"])
    panels = {"only": "with k neurons alone", "without": "without k neurons"}
    for axes, (kind, title) in zip(figure.subplots(1, 2, sharey=True), panels.items(), strict=True):
        kind_rows = Table(row for row in rows if row["kind"] == kind)
        by_size = sorted(kind_rows.where(**{"from": "random"}).by("k").items())
        drawn = {k: of_size.column("accuracy") for k, of_size in by_size}
        low, high = ([end(values) for values in drawn.values()] for end in (min, max))
        axes.fill_between(list(drawn), low, high, color="#c8c8c8", lw=0.8, label="k random neurons\n(range of draws)")
        for i, ranking in enumerate(rankings):
            mark, colour = looks[i % len(looks)]
            for end, line, fill in (("top", "-", colour), ("bottom", "--", "white")):
                of_end = sorted(kind_rows.where(**{"ranking": ranking, "from": end}), key=lambda row: row["k"])
                axes.plot(
                    [row["k"] for row in of_end], [row["accuracy"] for row in of_end], line, marker=mark, ms=4,
                    c=colour, mfc=fill, label=f"{'first' if end == 'top' else 'last'} k by {ranking}",
                )  # fmt: skip
            if kind == "only":
                fewest = smallest(kind_rows.where(ranking=ranking))
                axes.plot(
                    fewest["k"], fewest["accuracy"], "*", ms=11, mfc="white", mec=colour, ls="", zorder=5,
                    label=f"fewest within 1 point: {fewest['k']}" + (f",\nby {ranking}" if len(rankings) > 1 else ""),
                )  # fmt: skip
        axes.axhline(all_neurons["accuracy"], color="black", lw=0.8, label=f"all {all_neurons['k']} neurons")
        axes.axhline(majority, color=GREY, lw=0.8, ls=":", label="majority")
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(FixedLocator(sorted({*drawn, *([all_neurons["k"]] if kind == "only" else [])})))
        axes.xaxis.set_major_formatter(lambda k, _: f"{k:.0f}")
        axes.xaxis.set_minor_locator(NullLocator())
        axes.tick_params(axis="x", labelsize=8)
        axes.set_title(title)
        axes.set_xlabel("number of neurons k")
    share_axis([majority, *(row["accuracy"] for row in rows)], figure.axes[0])
    figure.axes[0].set_ylabel("test accuracy")
    title = f"{model}, layer {rows[0]['layer']}: linear probes of {task}, retrained on the chosen neurons"
    figure.suptitle(title, x=0.01, ha="left", fontsize=10)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right center")
