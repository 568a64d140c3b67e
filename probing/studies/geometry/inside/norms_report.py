"""The report of `geometry --norms`: terms of outliers in norms, and what average parameters leave of outliers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from probing.figures.style import BLUE, GREEN, GREY, ORANGE, PURPLE, error_bars
from probing.results.schema import in_brackets, interval, listed
from probing.statistics.moments import MEAN_DEVIATIONS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


Row = Mapping[str, Any]

PLACES = {"first": "the first norm", "second": "the second norm", "both": "both norms"}
MEASURES = {
    "mlm_loss": "Loss on masked words in nats",
    "position_accuracy": "Accuracy of position by a probe of the intact model",
    "position_accuracy_retrained": "Accuracy of position by a retrained probe",
}
# Most rows of the table of terms, and most neurons of the figures.
SHOWN, DRAWN = 24, 4
_TERMS = {
    "by_input": ("input", GREY), "by_gain": ("own gain", ORANGE), "by_bias": ("own bias", BLUE),
    "by_others_bias": ("the others' bias", GREEN),
}  # fmt: skip


# --- terms ---


def _far(norms: Sequence[Row], kind: str = "outlier") -> list[Row]:
    return [row for row in norms if row["kind"] == kind and abs(row["deviations"]) > MEAN_DEVIATIONS]


def norms_table(norms: Sequence[Row]) -> Any:
    """Return the terms of outliers, where they are far from other neurons behind a norm, as a rich table."""
    far = sorted(_far(norms), key=lambda row: -abs(row["deviations"]))[:SHOWN]
    table = _table(
        "Terms of outliers in the norms of each block: their sum is the mean output", "block", "norm", "neuron",
        "mean", "sd", "input", "own gain", "own bias", "others' bias", "largest",
    )  # fmt: skip
    for row in sorted(far, key=lambda row: (row["layer"], row["norm"], row["neuron"])):
        terms = [f"{row[name]:+.2f}" for name in _TERMS]
        start = [str(row[name]) for name in ("layer", "norm", "neuron")]
        table.add_row(*start, f"{row['mean']:+.2f}", f"{row['deviations']:+.1f}", *terms, row["largest"])
    return table


def terms_conclusion(norms: Sequence[Row]) -> str:
    """Return a sentence on what outliers behind norms come from."""
    far, n_random = _far(norms), len(_far(norms, "random"))
    if not far:
        return "No outlier is more than 5 sd from the other neurons behind a norm."
    counts = {name: [row for row in far if row["largest"] == name] for name in ("input", "gain", "bias")}
    words = {"input": "what enters the norm", "gain": "its own gain", "bias": "its own bias"}
    shares = listed([f"{words[name]} in {len(rows)}" for name, rows in counts.items()])
    top = max(far, key=lambda row: abs(row["deviations"]))
    return (
        f"Behind norms, outliers are more than 5 sd from the other neurons {len(far)} times; the largest term of their "
        f"mean is {shares}. The farthest is neuron {top['neuron']} behind norm {top['norm']} of block {top['layer']} "
        f"({top['deviations']:+.1f} sd): its mean {top['mean']:+.2f} is {top['by_input']:+.2f} by the input, "
        f"{top['by_gain']:+.2f} by its gain, {top['by_bias']:+.2f} by its bias and {top['by_others_bias']:+.2f} by the "
        f"bias that others have. Random neurons are as far {n_random} times."
    )


def draw_terms(figure: Figure, norms: Sequence[Row], model: str) -> None:
    """Draw the terms of the farthest outliers in each norm."""
    reach: dict[int, float] = {}
    for row in norms:
        if row["kind"] == "outlier":
            reach[row["neuron"]] = max(reach.get(row["neuron"], 0.0), abs(row["deviations"]))
    neurons = sorted(reach, key=lambda neuron: (-reach[neuron], neuron))[:DRAWN]
    figure.set_size_inches(9.2, 0.9 + 1.7 * -(-len(neurons) // 2))
    grid = figure.subplots(-(-len(neurons) // 2), min(2, len(neurons)), squeeze=False, sharex=True).ravel()
    for axes, neuron in zip(grid, neurons, strict=False):
        _draw_neuron(axes, [row for row in norms if row["neuron"] == neuron])
        axes.set_title(f"neuron {neuron}", fontsize=9)
    for axes in grid[len(neurons) :]:
        axes.set_visible(False)
    figure.supxlabel("norm: block.number", fontsize=9)
    figure.supylabel("mean output", fontsize=9)
    figure.suptitle(f"{model}: terms of outliers in the norms of each block", x=0.01, ha="left", fontsize=10)
    figure.legend(*grid[0].get_legend_handles_labels(), loc="outside right center")


def _draw_neuron(axes: Axes, rows: Sequence[Row]) -> None:
    x = np.arange(len(rows))
    above, below = np.zeros(len(rows)), np.zeros(len(rows))
    for name, (words, colour) in _TERMS.items():
        values = np.array([row[name] for row in rows])
        axes.bar(x, values, 0.7, np.where(values > 0, above, below), color=colour, ec="black", lw=0.4, label=words)
        above, below = above + np.maximum(values, 0), below + np.minimum(values, 0)
    axes.plot(x, [row["mean"] for row in rows], "D", c="white", mec="black", ms=4, label="mean output")
    axes.axhline(0, color="black", lw=0.6)
    labels = [f"{row['layer']}.{row['norm']}" for row in rows]
    step = -(-len(rows) // 14)
    axes.set_xticks(x, [label if i % step == 0 else "" for i, label in enumerate(labels)], fontsize=7)


# --- changes ---


def changes_tables(changes: Sequence[Row]) -> list[Any]:
    """Return what is left of outliers, and of each measure of the output, as rich tables."""
    return [_left_table(changes), *(_effects_table(rows) for rows in _by_measure(changes).values())]


def _by_measure(changes: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the rows of each measure of the model's output."""
    return {name: rows for name in MEASURES if (rows := [row for row in changes if row["measure"] == name])}


def _pairs(changes: Sequence[Row]) -> dict[tuple[int, int], list[Row]]:
    """Return the rows on the distance of outliers, by layer and neuron."""
    found: dict[tuple[int, int], list[Row]] = {}
    for row in changes:
        if row["measure"] == "deviations":
            found.setdefault((row["layer"], row["neuron"]), []).append(row)
    return found


def _of(rows: Sequence[Row], where: str, kind: str) -> list[Row]:
    return [row for row in rows if (row["where"], row["kind"]) == (where, kind)]


def _left_table(changes: Sequence[Row]) -> Any:
    table = _table(
        "Outliers in sd where their gains and biases are ordinary (with those of random neurons instead)",
        "layer", "neuron", "intact", *PLACES.values(), "p",
    )  # fmt: skip
    for (layer, neuron), rows in _pairs(changes).items():
        cells = []
        for where in PLACES:
            (left,), random = _of(rows, where, "outliers"), [row["value"] for row in _of(rows, where, "random")]
            others = f"{min(random):+.1f} to {max(random):+.1f}" if random else ""
            cells.append(f"{left['value']:+.1f}{in_brackets(others)}")
        p = [row["p_value"] for row in _of(rows, "both", "outliers") if "p_value" in row]
        (intact,) = _of(rows, "", "intact")
        table.add_row(str(layer), str(neuron), f"{intact['value']:+.1f}", *cells, f"{p[0]:.2g}" if p else "")
    return table


def _effects_table(rows: Sequence[Row]) -> Any:
    table = _table(
        f"{_title(rows)}: effect of ordinary gains and biases of the outliers", "in", "effect", "95% range",
        "random others", "worse than", "p",
    )  # fmt: skip
    for where, words in PLACES.items():
        (row,), random = _of(rows, where, "outliers"), [one["effect"] for one in _of(rows, where, "random")]
        table.add_row(
            words, f"{row['effect']:+.3f}", interval(row, "effect", " to ", "+.3f"),
            *((f"{min(random):+.3f} to {max(random):+.3f}", f"{row['percentile']:.0f}%", f"{row['p_value']:.2g}")
              if random else ("", "", "")),
        )  # fmt: skip
    return table


def _title(rows: Sequence[Row]) -> str:
    return f"{MEASURES[rows[0]['measure']]} (intact: {rows[0]['value']:.3f})"


def changes_conclusions(changes: Sequence[Row]) -> list[str]:
    """Return a sentence on what is left of the outliers, and one for each measure of the model's output."""
    pairs, sentences = _pairs(changes), []
    n_before = sum(_of(rows, "", "intact")[0]["outlier"] == "yes" for rows in pairs.values())
    left = []
    for where, words in PLACES.items():
        n = sum(_of(rows, where, "outliers")[0]["outlier"] == "yes" for rows in pairs.values())
        random = [sum(row["outlier"] == "yes" for row in _of(rows, where, "random")) for rows in pairs.values()]
        draws = len(_of(next(iter(pairs.values())), where, "random"))
        beside = f"with random neurons instead {sum(random) / draws:.1f}" if draws else ""
        left.append(f"in {words} {n}{in_brackets(beside)}")
    sentences.append(
        f"Above the embeddings, {n_before} outliers are more than 5 sd from the other neurons of their layer. With the "
        f"gain and the bias that others have on average, this many are left: {listed(left)}."
    )
    for rows in _by_measure(changes).values():
        parts = []
        for where, words in PLACES.items():
            (row,) = _of(rows, where, "outliers")
            among = f"worse than {row['percentile']:.0f}% of random draws" if "percentile" in row else ""
            said = in_brackets(interval(row, "effect", " to ", "+.3f"), among)
            parts.append(f"in {words} by {row['effect']:+.3f}{said}")
        sentences.append(f"{_title(rows)}: ordinary gains and biases of the outliers change it {listed(parts)}.")
    return sentences


def draw_changes(figure: Figure, changes: Sequence[Row], model: str) -> None:
    """Draw what is left of outliers, and the effects on the model's output, among those of random neurons."""
    measures, pairs = _by_measure(changes), _pairs(changes)
    figure.set_size_inches(1.8 + 2.9 * (1 + len(measures)), 3.3)
    left, *panels = figure.subplots(1, 1 + len(measures), squeeze=False)[0]
    places = ["", *PLACES]
    for i, rows in enumerate(pairs.values()):
        lines = {
            "random": [np.mean([abs(r["value"]) for r in _of(rows, w, "random" if w else "intact")]) for w in places],
            "outliers": [abs(_of(rows, w, "outliers" if w else "intact")[0]["value"]) for w in places],
        } if _of(rows, "first", "random") else {
            "outliers": [abs(_of(rows, w, "outliers" if w else "intact")[0]["value"]) for w in places]
        }  # fmt: skip
        for kind, values in lines.items():
            look = {"c": GREY, "ls": ":", "lw": 0.8} if kind == "random" else {"c": BLUE, "marker": "o", "ms": 3}
            words = {"random": "random neurons (mean of draws)", "outliers": "outliers"}[kind]
            left.plot(range(len(places)), values, **look, label=words if i == 0 else None)
    left.axhline(MEAN_DEVIATIONS, color=PURPLE, lw=0.8, ls="--", label="5 sd")
    left.set_xticks(range(len(places)), ["intact", *PLACES])
    left.set_ylim(0, None)
    left.set_ylabel("sd from the other neurons")
    left.set_title("distance of each outlier", fontsize=9)
    for axes, rows in zip(panels, measures.values(), strict=True):
        _draw_effects(axes, rows)
    figure.suptitle(f"{model}: gains and biases of outliers set to those of others", x=0.01, ha="left", fontsize=10)
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3)


def _draw_effects(axes: Axes, rows: Sequence[Row]) -> None:
    for x, where in enumerate(PLACES):
        random, outliers = (_of(rows, where, kind) for kind in ("random", "outliers"))
        axes.plot([x] * len(random), [row["effect"] for row in random], "x", c=GREY, ms=5)
        effects = [row["effect"] for row in outliers]
        reach = error_bars(outliers, np.array(effects), "effect")
        axes.errorbar([x - 0.14], effects, yerr=reach, ls="", marker="o", ms=5, c=BLUE, capsize=3)
    axes.axhline(0, color="black", lw=0.6)
    axes.set_xticks(range(len(PLACES)), list(PLACES))
    axes.set_xlim(-0.5, len(PLACES) - 0.5)
    axes.set_ylabel("effect (95% interval)")
    axes.set_title(_title(rows).replace(" by ", "\nby ").replace(" (intact", "\n(intact"), fontsize=9)


def _table(title: str, *headings: str) -> Any:
    from probing.runtime.terminal import plain_table

    table = plain_table(title)
    for heading in headings:
        table.add_column(heading, justify="right")
    return table
