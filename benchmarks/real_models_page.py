"""Tables and figures of pretrained models of several kinds, from finished runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.harness import write_csv
from benchmarks.real_models import READ, Read, first_neurons
from benchmarks.two_models_page import draw_figures, shown, skipped, special_tokens
from probing.tables import controls_of, figures
from probing.tables.figures import BLUE, GREEN, GREY, ORANGE, PURPLE, error_bars, name_layers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = Mapping[str, Any]
Runs = Mapping[str, Any]

# Lines can be told apart by their marks alone.
LOOKS: Mapping[str, dict[str, Any]] = {
    "rxn-bert": {"color": BLUE, "marker": "o"},
    "rxn-bert-tuned": {"color": PURPLE, "marker": "D", "mfc": "white"},
    "rxn-albert": {"color": ORANGE, "marker": "s"},
    "smollm2": {"color": GREEN, "marker": "^"},
    "minilm": {"color": GREY, "marker": "x"},
}
OF_NEURONS = ({"color": BLUE, "marker": "o"}, {"color": ORANGE, "marker": "s"})
# Models of the first figure, from left to right.
BESIDE = ("rxn-bert", "minilm")


def write_all(folder: Path, runs: Runs, context: Mapping[str, str]) -> Path:
    """Write the tables and figures of what was run, and a page with all of them; return the page's path.

    Args:
        folder: The folder.
        runs: Finished runs by name, such as `fit-rxn-bert` and `compare`.
        context: Machine, versions and date.
    """
    tables = {name: rows for name, make in _TABLES.items() if (rows := list(make(runs)))}
    costs = [json.loads(path.read_text(encoding="utf-8")) for path in sorted((folder / "costs").glob("*.json"))]
    if costs:
        tables["costs"] = costs
    for name, rows in tables.items():
        write_csv(folder / f"{name}.csv", _columns(rows), rows)
    figures = {name: (partial(draw, runs=runs), needed) for name, (draw, needed) in _FIGURES.items()}
    drawn = draw_figures(folder, "real_models", figures, [read.name for read in READ], runs)
    lines = ["# Real models", ""]
    lines += [f"![{path.stem.replace('_', ' ')}](figures/{path.name})\n" for path in drawn]
    for name, rows in tables.items():
        columns = _columns(rows)
        lines += [f"## {name.replace('_', ' ').capitalize()}", "", f"| {' | '.join(columns)} |"]
        lines += ["|---" * len(columns) + "|"]
        lines += [f"| {' | '.join(shown(row.get(column, '')) for column in columns)} |" for row in rows] + [""]
    page = folder / "README.md"
    said = "; ".join(f"{key} {value}" for key, value in context.items())
    page.write_text("\n".join([*lines, f"*{said}.*"]) + "\n", encoding="utf-8")
    return page


def _columns(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(key for row in rows for key in row))


def _of(part: str, runs: Runs) -> Iterator[tuple[Read, Any]]:
    """Yield the models that have a run of a part, each with that run."""
    yield from ((read, runs[name]) for read in READ if (name := f"{part}-{read.name}") in runs)


# --- tables ---


def _layers(runs: Runs) -> Iterator[Row]:
    """Yield a row for each layer of each model: accuracy with controls, the first neuron, cosines."""
    for read, run in _of("fit", runs):
        geometry = runs.get(f"geometry-{read.name}")
        for row in run.accuracy:
            (first,) = run.top(row["layer"], 1)
            yield {
                "model": read.name, "layer": row["layer"], "accuracy": row["accuracy"],
                "accuracy_low": row["accuracy_low"], "accuracy_high": row["accuracy_high"],
                **{name: row[f"{name}_accuracy"] for name in controls_of(run.accuracy)},
                "majority": row["majority_accuracy"], "first": first["neuron"], "ratio": first["ratio"],
                "share": first["share"], "centred": first["contribution_centred"] / first["contribution"],
                "eta_squared": first["eta_squared"], "without": first.get("cross_entropy_without", ""),
                "flag": first["flag"] or "", **_cosines_of(geometry, row["layer"]),
            }  # fmt: skip


def _cosines_of(geometry: Any, layer: int) -> Row:
    """Return the mean cosine of a layer, as it is and clipped, and the neuron with the largest share in it."""
    if geometry is None:
        return {}
    found = {
        {"none": "cosine", "clip": "clipped", "clip_random": "others_clipped"}[row["transform"]]: row["value"]
        for row in geometry.geometry
        if row["measure"] == "mean_cosine" and row["layer"] == layer
        and row["transform"] in ("none", "clip", "clip_random")
    }  # fmt: skip
    largest = max((row for row in geometry.dimensions if row["layer"] == layer), key=lambda row: row["cosine_share"])
    return {**found, "largest": largest["neuron"], "largest_share": largest["cosine_share"]}


def _neurons(runs: Runs) -> Iterator[Row]:
    """Yield the neurons that rank first in the most layers of each model, in every layer."""
    for read, run in _of("fit", runs):
        geometry = runs.get(f"geometry-{read.name}")
        for neuron in first_neurons(run):
            for row in sorted((row for row in run.neurons if row["neuron"] == neuron), key=lambda row: row["layer"]):
                yield {
                    "model": read.name, "neuron": neuron,
                    **{name: row.get(name, "") for name in (
                        "layer", "rank", "ratio", "share", "eta_squared", "flag", "cross_entropy_without",
                        "cross_entropy_without_low", "cross_entropy_without_high")},
                    **_of_dimension(geometry, row["layer"], neuron),
                }  # fmt: skip


def _of_dimension(geometry: Any, layer: int, neuron: int) -> Row:
    if geometry is None:
        return {}
    here = [row for row in geometry.dimensions if row["layer"] == layer]
    own = next(row for row in here if row["neuron"] == neuron)
    others = np.array([row["mean"] for row in here if row["neuron"] != neuron])
    beside = {"in_sd": (own["mean"] - others.mean()) / others.std(), "cosine_share": own["cosine_share"]}
    gains = [
        row for row in geometry.parameters
        if row["neuron"] == neuron and row["parameter"] == "gain" and row.get("layer") == layer
    ]  # fmt: skip
    return {**beside, **({"gain_rank": " ".join(str(row["rank"]) for row in gains)} if gains else {})}


def _changed(runs: Runs) -> Iterator[Row]:
    """Yield what the model loses when a neuron is set to its mean, beside random and matched ones."""
    wanted = ("changed_layer", "readout", "layer", "intact", "effect", "low", "high", "random_lowest",
              "random_highest", "random_p", "matched_lowest", "matched_highest", "matched_p")  # fmt: skip
    for name, run in runs.items():
        if name.startswith("neurons-"):
            model, _, neuron = name.removeprefix("neurons-").rpartition("-")
            last = max(row["layer"] for row in run.neuron_interventions if "layer" in row)
            for row in run.neuron_interventions:
                if row["readout"] == "mlm" or (row["readout"] == "position" and row["layer"] == last):
                    yield {"model": model, "neuron": neuron, **{key: row.get(key, "") for key in wanted}}


def _outliers(runs: Runs) -> Iterator[Row]:
    """Yield what the loss of masked words is with outliers zeroed inside the model, or clipped after it."""
    for read, run in _of("interventions", runs):
        for row in run.interventions:
            if row["measure"] == "mlm_loss" and row["kind"] != "random":
                yield {"model": read.name, **row}


def _position_heads(runs: Runs) -> Iterator[Row]:
    for read, run in _of("attention", runs):
        for row in run.position_heads:
            if row["position_head"] == "yes":
                yield {"model": read.name, **{key: row.get(key, "") for key in (
                    "layer", "head", "offset", "mass", "word_mass", "hit", "told", "told_true")}}  # fmt: skip


def _tuning(runs: Runs) -> Iterator[Row]:
    for read, run in _of("change", runs):
        for row in run.change:
            if not row.get("head") and row["measure"] in ("cosine", "jensen_shannon", "hidden_states"):
                yield {"model": read.name, **{key: row.get(key, "") for key in (
                    "measure", "of", "layer", "value", "low", "high")}}  # fmt: skip


def _first_token(runs: Runs) -> Iterator[Row]:
    for read, run in _of("first_token", runs):
        for row in run.first_token:
            if row["measure"] in ("rms_norm", "mean_cosine", "farthest_mean"):
                yield {"model": read.name, **row}


def _attended(runs: Runs) -> Iterator[Row]:
    """Yield what special tokens get of attention in each block, and what is lost without the block."""
    for read, run in _of("attention", runs):
        lost = {int(row["unit"]): row for row in skipped(runs.get(f"ablate-{read.name}"))}
        for row in special_tokens(run):
            layer = int(row["layer"])
            beside = {"skipped": lost[layer]["effect"], "skipped_low": lost[layer]["low"],
                      "skipped_high": lost[layer]["high"]} if layer in lost else {}  # fmt: skip
            yield {"model": read.name, "layer": layer, "special": row["value"], **beside}


def _compared(runs: Runs) -> Iterator[Row]:
    """Yield what rankings of the same layer of two models have in common."""
    for row in runs["compare"].agreement if "compare" in runs else ():
        if row["layer_a"] == row["layer_b"]:
            yield row


_TABLES: Mapping[str, Callable[[Runs], Iterator[Row]]] = {
    "layers": _layers, "neurons": _neurons, "changed": _changed, "outliers": _outliers,
    "position_heads": _position_heads, "attended": _attended, "tuning": _tuning, "first_token": _first_token,
    "compared": _compared,
}  # fmt: skip

# --- figures ---


def _finding(figure: Figure, runs: Runs) -> None:
    """Draw accuracy by layer, and below it what the first neurons contribute beside all others, of two models."""
    figure.set_size_inches(7.6, 5.2)
    panels = figure.subplots(2, 2, sharey="row")
    for (above, below), name in zip(panels.T, BESIDE, strict=True):
        if (run := runs.get(f"fit-{name}")) is None:
            continue
        read = next(read for read in READ if read.name == name)
        above.set_title(f"{name} ({read.text.replace('english', 'English')})")
        layers = [row["layer"] for row in run.accuracy]
        _bars(above, run.accuracy, "accuracy", {"color": BLUE, "marker": "o", "label": "probe (95% interval)"})
        controls = controls_of(run.accuracy).items()
        for (control, words), (color, dashes, mark) in zip(controls, figures.LOOKS[1:], strict=False):
            values = [row[f"{control}_accuracy"] for row in run.accuracy]
            above.plot(layers, values, label=words, color=color, ls=dashes, marker=mark, ms=4)
        _contributions(below, run, layers)
        name_layers(above, layers)
        name_layers(below, layers)
        above.set_xlabel("")
        above.set_ylim(0, 1.03)
        below.legend(fontsize=8, loc="upper left", ncols=2, columnspacing=1)
        above.label_outer()
    # Room for the legends above the lines.
    panels[1, 0].set_ylim(0, 1.35 * panels[1, 0].dataLim.union([axes.dataLim for axes in panels[1]]).ymax)
    panels[0, 0].set_ylabel("test accuracy of position")
    panels[1, 0].set_ylabel("contribution\n(1 = mean neuron of the layer)")
    handles, labels = panels[0, 0].get_legend_handles_labels()
    handles, labels = handles[-1:] + handles[:-1], labels[-1:] + labels[:-1]
    figure.legend(handles, labels, loc="outside upper center", ncols=4, fontsize=8)


def _contributions(axes: Axes, run: Any, layers: Sequence[int]) -> None:
    """Draw the contributions of the neurons that are first in most layers, beside others and random directions."""
    chosen = first_neurons(run)
    by_layer = {
        layer: {row["neuron"]: row["ratio"] for row in run.neurons if row["layer"] == layer} for layer in layers
    }
    others = [[value for neuron, value in by_layer[layer].items() if neuron not in chosen] for layer in layers]
    axes.fill_between(layers, [min(one) for one in others], [max(one) for one in others], color=GREY, alpha=0.2, lw=0,
                      label="all other neurons")  # fmt: skip
    first = [run.top(layer, 1)[0] for layer in layers]
    if "direction_lowest" in first[0]:
        means = [row["contribution"] / row["ratio"] for row in first]
        ends = [
            [row[f"direction_{end}"] / mean for row, mean in zip(first, means, strict=True)]
            for end in ("lowest", "highest")
        ]
        axes.fill_between(layers, *ends, color=PURPLE, alpha=0.4, lw=0, label="largest random direction")
    flagged = {(row["layer"], row["neuron"]) for row in run.neurons if "offset" in (row["flag"] or "")}
    for neuron, look in zip(chosen, OF_NEURONS, strict=False):
        values = [by_layer[layer][neuron] for layer in layers]
        axes.plot(layers, values, ms=4.5, label=f"neuron {neuron}", **look)
        hollow = [(layer, value) for layer, value in zip(layers, values, strict=True) if (layer, neuron) in flagged]
        if hollow:
            hollow_look = {**look, "ls": "", "ms": 4.5, "mfc": "white", "zorder": 3}
            axes.plot(*zip(*hollow, strict=True), **hollow_look, label="flagged offset there")


def _by_depth(figure: Figure, runs: Runs) -> None:
    """Draw accuracy and mean cosine of all models by relative depth."""
    figure.set_size_inches(7.6, 3.6)
    left, right = figure.subplots(1, 2)
    for read, run in _of("fit", runs):
        _line(left, run.accuracy, "accuracy", read.name)
    for read, run in _of("geometry", runs):
        rows = [row for row in run.geometry if (row["transform"], row["measure"]) == ("none", "mean_cosine")]
        _line(right, sorted((row for row in rows if "low" in row), key=lambda row: row["layer"]), "", read.name)
    for axes, words in ((left, "test accuracy of position"), (right, "mean cosine of two tokens")):
        axes.set_xlabel("relative depth (0 = embeddings)")
        axes.set_ylabel(words)
        axes.set_ylim(0, 1.03)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)


def _line(axes: Axes, rows: Sequence[Row], column: str, model: str) -> None:
    """Draw a line over relative depth with its intervals."""
    last = max(row["layer"] for row in rows)
    at, values = [row["layer"] / last for row in rows], np.array([row[column or "value"] for row in rows])
    look = {"ls": "-", "ms": 3.5, "lw": 1.2, "capsize": 1.5, **LOOKS[model]}
    axes.errorbar(at, values, yerr=error_bars(rows, values, column), label=model, **look)


def _bars(axes: Axes, rows: Sequence[Row], column: str, look: Mapping[str, Any]) -> None:
    values = np.array([row[column or "value"] for row in rows])
    reach = error_bars(rows, values, column)
    axes.errorbar([row["layer"] for row in rows], values, yerr=reach, ms=4, capsize=2, **look)


def _tuned(figure: Figure, runs: Runs) -> None:
    """Draw how alike heads and hidden states are before and after tuning, by layer."""
    figure.set_size_inches(7.6, 3.2)
    left, right = figure.subplots(1, 2)
    for _, run in _of("change", runs):
        for axes, measure, title in (
            (left, "cosine", "maps of heads"), (right, "hidden_states", "hidden states")
        ):  # fmt: skip
            of = list(dict.fromkeys(row["of"] for row in run.change if row["measure"] == measure))
            for one, look in zip(of, ({"color": BLUE, "marker": "o"}, {"color": GREY, "marker": "x", "ls": "--"},
                                      {"color": GREY, "marker": "+", "ls": ":"}), strict=False):  # fmt: skip
                rows = [
                    row for row in run.change
                    if (row["measure"], row["of"]) == (measure, one) and not row.get("head")
                ]  # fmt: skip
                rows.sort(key=lambda row: row["layer"])
                _bars(axes, rows, "", {**look, "label": one})
            axes.set_title(title)
            name_layers(axes, [row["layer"] for row in rows], what="layer")
            axes.set_ylim(0, 1.03)
            axes.set_ylabel("cosine before and after tuning")
        left.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=3)
        right.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=3)


def _first(figure: Figure, runs: Runs) -> None:
    """Draw the norm of first tokens and of the others, and cosines with and without them, by layer."""
    figure.set_size_inches(7.6, 3.2)
    left, right = figure.subplots(1, 2)
    looks = {
        "only": {"color": ORANGE, "marker": "s", "label": "first tokens"},
        "exclude": {"color": BLUE, "marker": "o", "label": "without them"},
        "include": {"color": GREY, "marker": "x", "ls": "--", "label": "all tokens"},
    }
    for _, run in _of("first_token", runs):
        for axes, measure in ((left, "rms_norm"), (right, "mean_cosine")):
            for which, look in looks.items():
                rows = [row for row in run.first_token if (row["first_token"], row["measure"]) == (which, measure)]
                if rows := sorted((row for row in rows if row["layer"] != "all"), key=lambda row: row["layer"]):
                    axes.plot([row["layer"] for row in rows], [row["value"] for row in rows], ms=3, **look)
            name_layers(axes, [row["layer"] for row in rows], most=8)
        left.set_yscale("log")
    left.set_ylabel("norm of hidden states (root mean square)")
    right.set_ylabel("mean cosine of two tokens")
    right.set_ylim(0, 1.03)
    left.legend(fontsize=8)


_FIGURES: Mapping[str, tuple[Callable[[Figure, Runs], None], Sequence[str]]] = {
    "finding": (_finding, ("fit",)),
    "by_depth": (_by_depth, ("fit", "geometry")),
    "tuned": (_tuned, ("change",)),
    "first_token": (_first, ("first_token",)),
}
