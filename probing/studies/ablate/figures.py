"""Figures of `ablate` and its section of a page: maps of heads, effects of layers, pruning curves."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from probing.activations import ActivationStore
from probing.data.labelling import origin
from probing.interventions import POSITION, measure_of
from probing.page.charts import HEAD, HeadMeasure, Place, head_map
from probing.results import Html, element, in_brackets, interval, table
from probing.runs import Result, Terms, framed, section_of
from probing.runs.call import Measured
from probing.runs.loading import Tuned
from probing.studies.ablate.survey import AblationResults
from probing.studies.ablate.tables import (
    MAGNITUDE,
    MEAN,
    PLACES,
    RANDOM,
    Row,
    at_last_layer,
    by_order,
    is_head,
    kinds_of,
    named,
    readouts_of,
)
from probing.tables.figures import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    USUAL,
    error_bars,
    joined,
    name_layers,
    side_by_side,
    write_drawings,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ABLATED: Terms = {
    "head": HEAD,
    "layer": "The heads of a layer are ablated together.",
    **{kind: f"With {place} in its place." for kind, place in PLACES.items() if kind != "skip"},
    "skip": "With the whole block skipped.",
    "*": "The p-value is below .05 after correction for the number of heads or layers (Holm).",
    "without": "The head or the layer that is ablated.",
    "kind": "What stands in its place.",
    "probe as it was": "Effect on the probe that was trained on the whole model.",
    "trained again": "Effect on a probe that is trained on what the changed model gives.",
}

# Of the table of `--prune weights`.
PRUNED: Terms = {
    "pruned": "Share of the weights of each matrix that is 0.",
    "smallest": "The measure without the weights of the smallest magnitude.",
    "random": "The measure without weights drawn at random, as a mean over draws.",
    "change": "Difference from the whole model.",
    "*": ABLATED["*"].replace("heads or layers", "shares"),
}

# Of the table of `--quantise`.
ROUNDED: Terms = {
    "bits": "Number of bits that numbers are rounded to.",
    "rounded": "The weight matrices of blocks, the hidden states that enter them (activations), or both.",
    "scale": "tensor: a whole matrix, or layer, has one scale; channel: each unit, or neuron, has its own.",
    "kept in full": "Neurons of hidden states that are not rounded: outliers, or as many random ones (mean of draws).",
    "value": "The measure of the rounded model.",
    "change": "Difference from the model as it is.",
    "*": ABLATED["*"].replace("heads or layers", "rows"),
}


def ablation_section(result: Result, anchor: str) -> Html:
    """Return the conclusions, a map of heads for each kind of replacement and readout, and the numbers."""
    of = result.by_name
    return section_of(
        result,
        anchor,
        *(head_map_figure for readout in readouts_of(of) for head_map_figure in _maps(at_last_layer(of, readout))),
        *framed(result.tables()),
        *_curves(result.pruning),
    )


def _maps(rows: Sequence[Row]) -> Iterator[Html]:
    heads = [row for row in rows if is_head(row)]
    for kind in kinds_of(heads):
        row_of = {_place(row): row for row in heads if row["kind"] == kind}
        measure = measure_of(heads[0]["readout"])
        title = f"{named(heads[0]['readout'], heads[0]['layer'])} without the head ({kind}), in {measure.unit}"
        title = title[0].upper() + title[1:]
        caption = element("figcaption", f"{title}; darker where more is lost")
        # No head links to sentences, so that the survey's number is not used.
        yield element("figure", caption, head_map(_measure(row_of), sorted(row_of), 0, title, links=False))


def _place(row: Row) -> Place:
    layer, head = map(int, row["unit"].split("-"))
    return layer, head


def _measure(rows: dict[Place, Row]) -> HeadMeasure:
    measure = measure_of(next(iter(rows.values()))["readout"])

    def harm(row: Row) -> float:
        return float(-measure.sign * row["effect"])

    most = max(max(map(harm, rows.values())), 1e-12)

    def text(row: Row) -> str:
        return f"{measure.times * row['effect']:+.{measure.digits}f}"

    def value_text(row: Row) -> str:
        between = interval(row, between=" to ", form=f"+.{measure.digits}f", times=measure.times)
        return f"{text(row)} {measure.unit}{in_brackets(between)}"

    return HeadMeasure("effect", "", rows, text, lambda row: harm(row) / most, value_text)


def _curves(rows: Sequence[Row]) -> Iterator[Html]:
    """Yield a table for each readout: the measure at each step, by importance, in reverse and in random orders."""
    for readout, units in dict.fromkeys((row["readout"], row["units"]) for row in rows):
        curve_rows = [row for row in rows if (row["readout"], row["units"]) == (readout, units)]
        body: list[list[Any]] = []
        for n in sorted({row["n_ablated"] for row in curve_rows}):
            step = [row for row in curve_rows if row["n_ablated"] == n]
            by_order = {row["order"]: row["value"] for row in step if row["order"] != "random"}
            drawn = [row["value"] for row in step if row["order"] == "random"]
            between = f"{sum(drawn) / len(drawn):.3f} ({min(drawn):.3f} to {max(drawn):.3f})"
            body.append([n, f"{by_order['importance']:.3f}", f"{by_order['reverse']:.3f}", between])
        head = [f"{units} ablated", "least important first", "most important first", "random orders: mean (range)"]
        what = named(readout, curve_rows[0]["layer"])
        caption = f"{what[0].upper()}{what[1:]} as more and more {units} are ablated ({curve_rows[0]['kind']})"
        yield element("figure", element("figcaption", caption), table(head, body))


_LOOKS = {
    "uniform": {"color": BLUE, "ls": "-", "marker": "o"},
    "zero": {"color": ORANGE, "ls": "--", "marker": "s"},
    "mean": {"color": GREEN, "ls": "-.", "marker": "^"},
    "resample": {"color": PURPLE, "ls": ":", "marker": "D"},
    "skip": {"color": GREY, "ls": "-", "marker": "x"},
}

_ORDERS: dict[str, dict[str, Any]] = {
    "importance": {"color": BLUE, "ls": "-", "marker": "o"},
    "reverse": {"color": ORANGE, "ls": "--", "marker": "s"},
}


def write_figures(
    folder: Path, tables: Mapping[str, Sequence[Row]], model: str, formats: Sequence[str] = USUAL
) -> list[Path]:
    """Draw a run's figures, each in some formats, and return the paths of the files."""
    drawings: dict[str, Callable[[Figure], None]] = {}
    for readout in readouts_of(tables):
        rows, end = at_last_layer(tables, readout), file_name(readout)
        heads, layers = ([row for row in rows if is_head(row) is of_heads] for of_heads in (True, False))
        for kind in kinds_of(heads):
            kind_rows = [row for row in heads if row["kind"] == kind]
            drawings[f"heads_{kind}{end}"] = partial(draw_head_map, rows=kind_rows, what=f"{model}, {kind}")
        if layers:
            drawings[f"layers{end}"] = partial(effects_of_layers, rows=layers, model=model)
        for units in dict.fromkeys(row["units"] for row in tables.get("pruning", ()) if row["readout"] == readout):
            curves = [row for row in tables["pruning"] if (row["readout"], row["units"]) == (readout, units)]
            drawings[f"pruning_{units}{end}"] = partial(pruning_curves, rows=curves, model=model)
        if weights := by_order(tables, readout):
            drawings[f"pruning_weights{end}"] = partial(weight_curves, rows=weights, model=model)
    return write_drawings(folder, drawings, formats)


def file_name(readout: str) -> str:
    """Return the end of the name of a figure; empty for positions, the first readout."""
    return "" if readout == POSITION else "_" + re.sub(r"[^A-Za-z0-9.-]+", "_", readout)


def draw_head_map(figure: Figure, rows: Sequence[Row], what: str) -> None:
    """Draw the effect of ablating each head, a cell for each head, darker for a greater loss."""
    readout, layer = rows[0]["readout"], rows[0]["layer"]
    measure = measure_of(readout)
    places = [tuple(map(int, row["unit"].split("-"))) for row in rows]
    layers, heads = (sorted({place[i] for place in places}) for i in (0, 1))
    figure.set_size_inches(max(5.0, 1.2 + 0.44 * len(heads)), 1.1 + 0.3 * len(layers))
    axes = figure.add_subplot()
    values = np.zeros((len(layers), len(heads)))
    for row, (layer, head) in zip(rows, places, strict=True):
        values[layers.index(layer), heads.index(head)] = measure.times * row["effect"]
    harm = -measure.sign * values
    most = max(float(harm.max()), 1e-9)
    for (i, j), value in np.ndenumerate(values):
        strong = harm[i, j] > 0.55 * most
        text = f"{value:+.{measure.digits}f}"
        axes.text(j, i, text, ha="center", va="center", fontsize=7, color="white" if strong else "black")
    axes.imshow(harm, cmap="Greys", vmin=0, vmax=1.1 * most, origin="lower", aspect="auto")
    axes.set_xticks(range(len(heads)), [str(head) for head in heads])
    axes.set_yticks(range(len(layers)), [str(layer) for layer in layers])
    axes.set_xlabel("head")
    axes.set_ylabel("layer")
    axes.set_title(f"{what}: {named(readout, layer)} without the head, {measure.unit}", fontsize=9)


def effects_of_layers(figure: Figure, rows: Sequence[Row], model: str) -> None:
    """Draw the effect of ablating all heads of a layer, or of skipping its block, by layer."""
    figure.set_size_inches(6.8, 3.1)
    readout, layer = rows[0]["readout"], rows[0]["layer"]
    measure = measure_of(readout)
    axes = figure.add_subplot()
    kinds, layers = kinds_of(rows), sorted({int(row["unit"]) for row in rows})
    for kind, shift in zip(kinds, side_by_side(len(kinds), layers), strict=True):
        kind_rows = [row for row in rows if row["kind"] == kind]
        values = np.array([measure.times * row["effect"] for row in kind_rows])
        reach, at = error_bars(kind_rows, values, times=measure.times), [int(row["unit"]) for row in kind_rows]
        look = joined(_LOOKS[kind], layers)
        axes.errorbar(np.add(at, shift), values, yerr=reach, ms=4, capsize=2, label=kind, **look)
    axes.axhline(0, color=GREY, lw=0.8)
    name_layers(axes, layers, what="layer whose heads are ablated, or whose block is skipped")
    axes.set_ylabel("points of accuracy" if measure.is_share else measure.unit)
    axes.set_title(f"{model}: {named(readout, layer)} without a layer, 95% intervals")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right center")


def pruning_curves(figure: Figure, rows: Sequence[Row], model: str) -> None:
    """Draw the measure over the ablated share: by importance, its reverse, and the band of random orders."""
    figure.set_size_inches(6.8, 3.1)
    axes = figure.add_subplot()
    share = [100 * row["share"] for row in rows if row["order"] == "importance"]
    drawn = np.array([row["value"] for row in rows if row["order"] == "random"]).reshape(-1, len(share))
    axes.fill_between(share, drawn.min(0), drawn.max(0), color=GREY, alpha=0.25, lw=0, label="random orders")
    axes.plot(share, drawn.mean(0), color=GREY, ls="-", label="their mean")
    for order, label in (("importance", "least important first"), ("reverse", "most important first")):
        values = [row["value"] for row in rows if row["order"] == order]
        axes.plot(share, values, label=label, ms=4, **_ORDERS[order])
    first = rows[0]
    axes.set_xlabel(f"{first['units']} ablated, %")
    axes.set_ylabel(measure_of(first["readout"]).noun)
    axes.set_title(f"{model}: {named(first['readout'], first['layer'])}, {first['units']} ablated ({first['kind']})")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right center")


def weight_curves(figure: Figure, rows: Mapping[str, Sequence[Row]], model: str) -> None:
    """Draw the measure over the share of pruned weights: the smallest, and random ones with the band of draws."""
    figure.set_size_inches(6.8, 3.1)
    axes = figure.add_subplot()
    first, share = rows[MAGNITUDE][0], [100 * row["share"] for row in rows[MEAN]]
    drawn = np.array([row["value"] for row in rows[RANDOM]]).reshape(-1, len(share))
    axes.fill_between(share, drawn.min(0), drawn.max(0), color=GREY, alpha=0.25, lw=0, label="random draws")
    looks = {MAGNITUDE: _ORDERS["importance"], MEAN: {"color": GREY, "ls": "--", "marker": "s"}}
    for order, label in ((MAGNITUDE, "smallest weights"), (MEAN, "random: mean")):
        values = np.array([row["effect"] for row in rows[order]])
        at, reach = [100 * row["share"] for row in rows[order]], error_bars(rows[order], values)
        axes.errorbar(at, first["value"] + values, yerr=reach, ms=4, capsize=2, label=label, **looks[order])
    axes.axhline(first["value"], color="black", lw=0.8, ls=":", label="whole model")
    axes.set_xlabel("weights of each matrix pruned, %")
    axes.set_ylabel(measure_of(first["readout"]).noun)
    axes.set_title(f"{model}: {named(first['readout'], first['layer'])}, weights pruned, 95% intervals of the change")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right center")


def study_output(
    ablation: AblationResults, stores: Sequence[ActivationStore], model_name: str, tuned: Tuned | None = None
) -> Measured:
    """Return the tables, results and figures of a run; `tuned` is the tuned model whose head was read."""
    tokens = ablation.text.tokens
    results = {
        "cache": {side: origin(store) for side, store in (("train", stores[0]), ("test", stores[-1]))},
        "model": {"n_layers": stores[-1].plan.n_layers, "n_heads": ablation.n_heads},
        "n_sentences": tokens.n_sentences,
        "n_tokens": tokens.n_tokens,
        **_read(ablation),
    }
    if tuned is not None:
        n_tested = tuned.results["n_examples"]["test"]
        results["tuned"] = {
            "run": str(tuned.folder), "checkpoint": tuned.checkpoint.name, "score": tuned.score, "n_tested": n_tested,
        }  # fmt: skip
    return Measured(
        ablation.tables,
        results,
        _logged_rows(ablation.ablated),
        draw=lambda folder, formats: write_figures(folder, ablation.tables, model_name, formats),
    )


def _logged_rows(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows for W&B: by layer, the effect of its ablation on the last layer, a column for each kind."""
    by_layer: dict[int, dict[str, Any]] = {}
    for readout in readouts_of({"ablated": rows}):
        of = "" if readout == POSITION else f"{readout}_"
        for row in at_last_layer({"ablated": rows}, readout):
            if not is_head(row):
                point = by_layer.setdefault(int(row["unit"]), {"layer": int(row["unit"])})
                kind = f"{of}{row['kind']}"
                point |= {f"{kind}_effect": row["effect"], f"{kind}_low": row["low"], f"{kind}_high": row["high"]}
    return list(by_layer.values())


def _read(results: AblationResults) -> dict[str, Any]:
    by_name = {
        name: {"n_examples": results.n_examples[name], "intact": {str(layer): value for layer, value in intact.items()}}
        for name, intact in results.intact.items()
    }
    return {"readouts": by_name}
