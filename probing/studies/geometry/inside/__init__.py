"""The report of `geometry` on a model's inside: over-smoothing, interventions, norms and the residual stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from probing.results import in_brackets, interval
from probing.statistics.moments import MEAN_DEVIATIONS
from probing.studies.geometry.inside.changed_norms import first_row_conclusions
from probing.studies.geometry.inside.smoothing_bound import (
    changes_conclusions,
    changes_tables,
    draw_changes,
    draw_terms,
    norms_table,
    terms_conclusion,
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
    write_drawings,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = Mapping[str, Any]

# Words for the sites of the embeddings, and of blocks.
SITES = {
    "word": "the word embedding", "position": "the position embedding", "type": "the type embedding",
    "sum": "the sum of the embeddings", "norm": "the norm of the embeddings", "embeddings": "the embeddings",
    "attention": "the attention output", "sum_attention": "the sum after attention", "norm_1": "the first norm",
    "feed_forward": "the FFN output", "sum_feed_forward": "the sum after the FFN", "norm_2": "the second norm",
    "final_norm": "the final norm",
}  # fmt: skip

_SHORT = {
    "sum_attention": "sum 1", "sum_feed_forward": "sum 2", "feed_forward": "FFN", "norm_1": "norm 1",
    "norm_2": "norm 2", "final_norm": "final norm",
}  # fmt: skip

TOKENS = {"first": "first token", "words": "words"}

# Most neurons that sentences and figures are about.
SHOWN = 5

_LOOKS = ((BLUE, "o"), (ORANGE, "s"), (GREEN, "^"), (PURPLE, "D"), ("black", "v"))


def followed(path: Sequence[Row]) -> list[int]:
    """Return the outliers to show: outliers of the first position first, then by their largest distance anywhere."""
    reach: dict[int, tuple[bool, float]] = {}
    for row in path:
        if row["kind"] != "random":
            before = reach.get(row["neuron"], (False, 0.0))[1]
            reach[row["neuron"]] = row["kind"] != "layers", max(before, abs(row["deviations"]))
    return sorted(reach, key=lambda neuron: (not reach[neuron][0], -reach[neuron][1], neuron))[:SHOWN]


@dataclass(frozen=True)
class OutlierCourse:
    """The sites on the residual stream where a neuron is more than 5 sd from the others, on one kind of tokens.

    Args:
        n_sites: Number of sites on the stream.
        beyond: The sites where the neuron is so far from the others, in order.
        n_between: Number of sites from the first to the last of `beyond`.
        top: The site with the largest distance.
        end: The site after the last of `beyond`; None if there is none.
    """

    n_sites: int
    beyond: list[Row]
    n_between: int
    top: Row
    end: Row | None


def course(path: Sequence[Row], neuron: int, tokens: str) -> OutlierCourse | None:
    """Return the course of a neuron; None if there are no such tokens."""
    stream = [row for row in path if (row["neuron"], row["tokens"], row["term"]) == (neuron, tokens, "no")]
    if not stream:
        return None
    beyond = [i for i, row in enumerate(stream) if abs(row["deviations"]) > MEAN_DEVIATIONS]
    last = beyond[-1] if beyond else len(stream)
    return OutlierCourse(
        len(stream), [stream[i] for i in beyond], last - beyond[0] + 1 if beyond else 0,
        max(stream, key=lambda row: abs(row["deviations"])), stream[last + 1] if last + 1 < len(stream) else None,
    )  # fmt: skip


def path_table(path: Sequence[Row]) -> Any:
    """Return the sites of outliers on the residual stream, on the first token and on words, as a rich table."""
    from probing.runtime.terminal import plain_table

    table = plain_table(f"Outliers on the residual stream: where they are more than {MEAN_DEVIATIONS:g} sd from others")
    for heading in ("neuron", "tokens", "first position", "places", "from", "to", "farthest", "below at"):
        table.add_column(heading, justify="right")
    for neuron in followed(path):
        for tokens, words in TOKENS.items():
            if neuron_course := course(path, neuron, tokens):
                ends = (
                    (neuron_course.beyond[0], neuron_course.beyond[-1], neuron_course.end)
                    if neuron_course.beyond
                    else (None, None, None)
                )
                first, last, end = (_short(row) if row else "" for row in ends)
                farthest = f"{neuron_course.top['deviations']:+.1f} at {_short(neuron_course.top)}"
                places = f"{len(neuron_course.beyond)} of {neuron_course.n_sites}"
                row = _of_row(path, neuron) if tokens == "first" else ""
                table.add_row(str(neuron), words, row, places, first, last, farthest, end)
    return table


def _steps(path: Sequence[Row]) -> list[list[Row]]:
    steps: dict[int, list[Row]] = {}
    for row in path:
        steps.setdefault(row["step"], []).append(row)
    return [steps[step] for step in sorted(steps)]


def _short(row: Row) -> str:
    name = _SHORT.get(str(row["site"]), str(row["site"]))
    return f"{row['layer']} {name}" if row["layer"] else name


def path_conclusions(path: Sequence[Row]) -> list[str]:
    """Return a sentence for each outlier that is followed, and a sentence on random neurons."""
    sentences = []
    groups = {"the first token": "first", "words": "words"}
    for neuron in followed(path):
        parts = [
            f"on {words} {_course_clause(neuron_course)}"
            for words, name in groups.items()
            if (neuron_course := course(path, neuron, name))
        ]
        row = _of_row(path, neuron)
        start = f"Neuron {neuron}{in_brackets(row and f'{row} sd in the embedding of the first position')}"
        sentences.append(f"{start}: {'; '.join(parts)}.")
    random = [abs(row["deviations"]) for row in path if row["kind"] == "random" and row["term"] == "no"]
    if random:
        n = len({row["neuron"] for row in path if row["kind"] == "random"})
        sentences.append(f"{n} random neurons are at most {max(random):.1f} sd from the others anywhere on the stream.")
    return sentences


def _of_row(path: Sequence[Row], neuron: int) -> str:
    """Return a neuron's distance from the others in the first token's position embedding; empty without a table."""
    at = (neuron, "position", "first")
    deviations = [row["deviations"] for row in path if (row["neuron"], row["site"], row["tokens"]) == at]
    return f"{deviations[0]:+.1f}" if deviations else ""


def _course_clause(neuron_course: OutlierCourse) -> str:
    top = neuron_course.top["deviations"]
    if not neuron_course.beyond:
        return f"it is nowhere beyond 5 sd (at most {top:+.1f}, at {_site(neuron_course.top)})"
    first, last = neuron_course.beyond[0], neuron_course.beyond[-1]
    where = f"at {_site(first)}" if neuron_course.n_between == 1 else f"from {_site(first)} to {_site(last)}"
    if len(neuron_course.beyond) < neuron_course.n_between:
        where = f"at {len(neuron_course.beyond)} of the {neuron_course.n_between} places {where}"
    clause = f"it is beyond 5 sd {where} (up to {top:+.1f})"
    if neuron_course.end is not None:
        clause += f" and falls below at {_site(neuron_course.end)} ({neuron_course.end['deviations']:+.1f})"
    return clause


def _site(row: Row) -> str:
    return SITES[row["site"]] + (f" of block {row['layer']}" if row["layer"] and row["site"] != "final_norm" else "")


def draw_path(figure: Figure, path: Sequence[Row], model: str) -> None:
    """Draw the distance of outliers along the residual stream, on the first token and on words."""
    neurons = followed(path)
    figure.set_size_inches(9.6, 5.2)
    for axes, (tokens, words) in zip(figure.subplots(2, 1, sharex=True, sharey=True), TOKENS.items(), strict=True):
        group_rows = [row for row in path if row["tokens"] == tokens]
        stream = sorted({row["step"] for row in group_rows if row["term"] == "no"})
        random = [[abs(r["deviations"]) for r in group_rows if (r["step"], r["kind"]) == (k, "random")] for k in stream]
        if all(random) and stream:
            reach = [max(values) for values in random]
            axes.fill_between(stream, [-r for r in reach], reach, color="#d9d9d9", lw=0, label="random neurons")
        for (colour, mark), neuron in zip(_LOOKS, neurons, strict=False):
            rows = [row for row in group_rows if row["neuron"] == neuron]
            for term, look in (("no", {"ls": "-", "mfc": colour}), ("yes", {"ls": "", "mfc": "white"})):
                line_rows = [row for row in rows if row["term"] == term]
                axes.plot(
                    [row["step"] for row in line_rows], [row["deviations"] for row in line_rows], marker=mark, ms=4,
                    c=colour, lw=1, label=f"neuron {neuron}" if term == "no" else None, **look,
                )  # fmt: skip
        for limit in (-MEAN_DEVIATIONS, MEAN_DEVIATIONS):
            axes.axhline(limit, color="black", lw=0.7, ls="--")
        axes.axhline(0, color=GREY, lw=0.5)
        axes.set_ylabel("sd of all neurons")
        axes.set_title(words, fontsize=9)
        _name_sites(axes, path)
    figure.axes[0].tick_params(labelbottom=False)
    figure.suptitle(
        f"{model}: outliers along the residual stream (open: a term that is added)", x=0.01, ha="left", fontsize=10
    )
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right center")


def _name_sites(axes: Axes, path: Sequence[Row]) -> None:
    """Label each site below the axis, and separate blocks by lines."""
    sites = [rows[0] for rows in _steps(path)]
    crowded = len(sites) > 60
    shown = [i for i in range(len(sites)) if not crowded or i == 0 or sites[i]["layer"] != sites[i - 1]["layer"]]
    axes.set_xticks([sites[i]["step"] for i in shown], [_short(sites[i]) for i in shown], rotation=90, fontsize=6)
    for before, row in pairwise(sites):
        if before["layer"] != row["layer"]:
            axes.axvline(row["step"] - 0.5, color=GREY, lw=0.4)


Drawing = Callable[["Figure", Sequence[Row], str], None]

MEASURES = {
    "mlm_loss": "loss on masked words in nats",
    "position_accuracy": "accuracy of position by a probe of the intact model",
    "position_accuracy_retrained": "accuracy of position by a retrained probe",
}

WHERE = {"inside": "zeroed inside the model", "after": "clipped after it"}


def by_block(smoothing: Sequence[Row]) -> dict[int, dict[str, Row]]:
    """Return the rows of `smoothing.csv` by block and measure."""
    by_measure: dict[int, dict[str, Row]] = {}
    for row in smoothing:
        by_measure.setdefault(row["layer"], {})[row["measure"]] = row
    return by_measure


def smoothing_table(smoothing: Sequence[Row]) -> Any:
    """Return the terms of each block's bound as a rich table."""
    table = _table(
        "Change of the distance to equal rows by each block, and its bound by Theorem 2: means over sentences",
        "block", "measured", "σ1", "σ2", "σ1σ2", "above 1", "gains", "attention", "FFN", "bound", "published",
        "closest",
    )  # fmt: skip
    for layer, row in by_block(smoothing).items():
        value = {name: measure_row["value"] for name, measure_row in row.items()}
        table.add_row(
            str(layer),
            f"{value['distance_ratio']:.3f}",
            f"{value['sigma_1']:.2f}",
            f"{value['sigma_2']:.2f}",
            f"{value['sigma_product']:.2f}",
            f"{value['share_sigma_product_above_1']:.0%}",
            f"{value['gain_1'] * value['gain_2']:.2f}",
            f"{value['attention_factor']:.1f}",
            f"{value['feed_forward_factor']:.0f}",
            f"{value['bound_per_matrix']:,.0f}",
            f"{value['bound_published']:,.0f}",
            f"{value['largest_share_of_bound']:.2%}",
        )
    return table


def smoothing_conclusion(smoothing: Sequence[Row]) -> str:
    """Return a sentence on the change of the distance between tokens, and on the implications of the bound."""
    blocks = by_block(smoothing)
    n = max(row["share_within_bound"]["n_sentences"] for row in blocks.values())
    is_bounded = all(row["share_within_bound_per_matrix"]["value"] == 1 for row in blocks.values())
    above = max(row["share_sigma_product_above_1"]["value"] for row in blocks.values())
    low, high = (end(row["bound_per_matrix"]["value"] for row in blocks.values()) for end in (min, max))
    least = min(blocks, key=lambda layer: blocks[layer]["distance_ratio"]["value"])
    ratio, falls = (blocks[least][name]["value"] for name in ("distance_ratio", "share_distance_falls"))
    return (
        f"Tokens of a sentence become most similar in block {least}: it reduces their distance to {ratio:.2f} of what "
        f"entered it, on average, and reduces it at all in {falls:.0%} of {n} sentences. Theorem 2 "
        f"{'holds on all' if is_bounded else 'IS VIOLATED on some'} of them and allows blocks to multiply the distance "
        f"by {low:,.0f} to {high:,.0f}; only below 1 would it predict that tokens become alike. "
        f"sigma_1 sigma_2 is above 1 in {f'up to {above:.0%} of sentences' if above else 'no sentence'}."
    )


def draw_smoothing(figure: Figure, smoothing: Sequence[Row], model: str) -> None:
    """Draw each block's change of the distance, the limit by the theorem, and the deviations in its denominator."""
    blocks = by_block(smoothing)
    layers = sorted(blocks)
    figure.set_size_inches(10.2, 3.5)
    ratio_axes, bound_axes, deviation_axes = figure.subplots(1, 3)
    ratio_rows = [blocks[k]["distance_ratio"] for k in layers]
    ends = [[abs(row["value"] - row[end]) for row in ratio_rows] for end in ("low", "high")]
    ratio_axes.errorbar(
        layers, [row["value"] for row in ratio_rows], yerr=ends, c=BLUE, marker="o", ms=4, capsize=2,
        label="measured (mean, 95% interval)", **joined({"ls": "-"}, layers),
    )  # fmt: skip
    ratio_axes.set_ylim(0, None)
    ratio_axes.set_ylabel("distance to equal rows,\nafter / before")
    ratio_axes.set_title("what happens")
    looks: dict[str, tuple[str, dict[str, Any]]] = {
        "bound": ("with gains and slope", {"color": PURPLE, "ls": "-.", "marker": "v"}),
        "bound_published": ("as published", {"color": GREY, "ls": ":", "marker": "x"}),
        "bound_per_matrix": ("with each matrix's own norm", {"color": ORANGE, "ls": "--", "marker": "s"}),
    }
    for name, (label, look) in looks.items():
        bound_axes.plot(layers, [blocks[k][name]["value"] for k in layers], ms=4, label=label, **joined(look, layers))
    bound_axes.set_yscale("log")
    bound_axes.set_ylim(0.5, None)
    bound_axes.set_ylabel("upper bound of after / before\n(log scale)")
    bound_axes.set_title("what the theorem allows")
    at = {q: [blocks[k][f"sigma_product_q{q}"]["value"] for k in layers] for q in (5, 25, 50, 75, 95)}
    deviation_axes.vlines(layers, at[5], at[95], color=GREY, lw=1.2, label="5% to 95% of sentences")
    deviation_axes.vlines(layers, at[25], at[75], color=BLUE, lw=7, label="25% to 75%")
    deviation_axes.plot(layers, at[50], "_", color="black", ms=9, label="median")
    deviation_axes.set_ylim(0, max(1.05, 1.05 * max(at[95])))
    deviation_axes.set_ylabel("σ₁ σ₂")
    deviation_axes.set_title("least sd of tokens entering LayerNorms")
    for axes in (ratio_axes, bound_axes, deviation_axes):
        axes.axhline(1, color="black", lw=0.6)
        name_layers(axes, layers, most=9, what="block")
        axes.legend(loc="upper left", bbox_to_anchor=(-0.1, -0.2), fontsize=8)
    figure.suptitle(f"{model}: do blocks make the tokens of a sentence alike?", x=0.01, ha="left", fontsize=10)


def interventions_tables(rows: Sequence[Row]) -> list[Any]:
    """Return the effects as rich tables, one per measure."""
    return [
        _effects_table([row for row in rows if row["measure"] == m]) for m in dict.fromkeys(r["measure"] for r in rows)
    ]


def _effects_table(rows: Sequence[Row]) -> Any:
    neurons = next(row["neurons"] for row in rows if row["kind"] == "outliers")
    table = _table(
        f"{_title(rows[0])}: effect of taking out {_named(neurons)}", "taken out", "effect", "95% range",
        "random others", "worse than", "p", "large gains",
    )  # fmt: skip
    for where, words in WHERE.items():
        outliers, random, largest = (
            [row for row in rows if (row["where"], row["kind"]) == (where, kind)]
            for kind in ("outliers", "random", "largest_gain")
        )
        low, high = (end((row["effect"] for row in random), default=None) for end in (min, max))
        table.add_row(
            words,
            f"{outliers[0]['effect']:+.3f}",
            interval(outliers[0], "effect", " to ", "+.3f"),
            f"{low:+.3f} to {high:+.3f}" if random else "",
            f"{outliers[0]['percentile']:.0f}%" if random else "",
            f"{outliers[0]['p_value']:.2g}" if random else "",
            f"{largest[0]['effect']:+.3f}" if largest else "",
        )
    return table


def _title(intact: Row) -> str:
    words = MEASURES[intact["measure"]]
    return f"{words[0].upper()}{words[1:]} (intact: {intact['value']:.3f})"


def interventions_conclusion(rows: Sequence[Row]) -> str:
    """Return a sentence on the effects of zeroing inside the model and of clipping its output."""
    measure = rows[0]["measure"]
    inside, after = (
        next(r for r in rows if (r["measure"], r["where"], r["kind"]) == (measure, where, "outliers"))
        for where in WHERE
    )
    parts = [
        f"{what} changes it by {row['effect']:+.3f}{in_brackets(interval(row, 'effect', ' to ', '+.3f'))}"
        + (f", a worse effect than {row['percentile']:.0f}% of random draws" if "percentile" in row else "")
        for what, row in (
            (f"zeroing {_named(inside['neurons'])} inside the model", inside),
            ("clipping its last hidden states", after),
        )
    ]
    return f"{_title(rows[0])}; {'; '.join(parts)}."


def draw_interventions(figure: Figure, rows: Sequence[Row], model: str) -> None:
    """Draw the effects of outliers, inside the model and on its output, with the effects of as many other neurons."""
    measures = list(dict.fromkeys(row["measure"] for row in rows))
    figure.set_size_inches(1.4 + 3.1 * len(measures), 3.2)
    for axes, measure in zip(figure.subplots(1, len(measures), squeeze=False)[0], measures, strict=True):
        for x, where in enumerate(WHERE):
            panel_rows = [row for row in rows if (row["measure"], row["where"]) == (measure, where)]
            looks = (("random", "x", GREY, 0.0), ("largest_gain", "D", ORANGE, 0.14), ("outliers", "o", BLUE, -0.14))
            for kind, mark, colour, shift in looks:
                kind_rows = [row for row in panel_rows if row["kind"] == kind]
                effects = [row["effect"] for row in kind_rows]
                label = {"random": "random others", "largest_gain": "largest other gains", "outliers": "outliers"}[kind]
                reach = error_bars(kind_rows, np.array(effects), "effect")
                axes.errorbar(
                    [x + shift] * len(kind_rows), effects, yerr=None if kind == "random" else reach, ls="", marker=mark,
                    ms=5, c=colour, capsize=3, label=label if x == 0 else None,
                )  # fmt: skip
        intact = next(row for row in rows if (row["measure"], row["kind"]) == (measure, "intact"))
        axes.axhline(0, color="black", lw=0.6)
        axes.set_xticks(range(len(WHERE)), ["zeroed inside\nthe model", "clipped\nafter it"])
        axes.set_xlim(-0.5, len(WHERE) - 0.5)
        axes.set_title(_title(intact).replace(" by ", "\nby ").replace(" (intact", "\n(intact"), fontsize=9)
    figure.axes[0].set_ylabel("effect (95% interval)")
    neurons = next(row["neurons"] for row in rows if row["kind"] == "outliers")
    figure.suptitle(f"{model} without {_named(neurons)}", x=0.01, ha="left", fontsize=10)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right center")


def _named(neurons: Any) -> str:
    """Return a name for neurons, given as `interventions.csv` lists them."""
    listed = str(neurons).split()
    return f"neuron {listed[0]}" if len(listed) == 1 else f"neurons {', '.join(listed)}"


def inside_tables(
    smoothing: Sequence[Row],
    interventions: Sequence[Row],
    norms: Sequence[Row] = (),
    norm_changes: Sequence[Row] = (),
    path: Sequence[Row] = (),
    first_row: Sequence[Row] = (),
) -> list[Any]:
    """Return the tables of the measurements, smoothing first; the first row has only a sentence."""
    return [
        *([smoothing_table(smoothing)] if smoothing else []), *interventions_tables(interventions),
        *([norms_table(norms)] if norms else []), *(changes_tables(norm_changes) if norm_changes else []),
        *([path_table(path)] if path else []),
    ]  # fmt: skip


def inside_conclusions(
    smoothing: Sequence[Row],
    interventions: Sequence[Row],
    norms: Sequence[Row] = (),
    norm_changes: Sequence[Row] = (),
    path: Sequence[Row] = (),
    first_row: Sequence[Row] = (),
) -> list[str]:
    """Return the conclusions, a sentence for each requested measurement."""
    conclusion_rows = [
        (smoothing_conclusion, smoothing),
        (interventions_conclusion, interventions),
        (terms_conclusion, norms),
    ]
    sentences = [conclude(rows) for conclude, rows in conclusion_rows if rows]
    sentences += changes_conclusions(norm_changes) if norm_changes else []
    return sentences + (path_conclusions(path) if path else []) + first_row_conclusions(first_row)


def write_inside_figures(
    folder: Path, tables: Mapping[str, Sequence[Row]], model: str, formats: Sequence[str] = USUAL
) -> list[Path]:
    """Draw the figures of the tables that have rows, each in some formats, and return the paths of the files."""
    drawings: dict[str, tuple[Drawing, str]] = {
        "smoothing_bound": (draw_smoothing, "smoothing"), "interventions": (draw_interventions, "interventions"),
        "norms": (draw_terms, "norms"), "norm_changes": (draw_changes, "norm_changes"), "path": (draw_path, "path"),
    }  # fmt: skip
    draw_by_name = {
        name: partial(_draw, draw, rows, model)
        for name, (draw, table) in drawings.items()
        if (rows := tables.get(table))
    }
    return write_drawings(folder, draw_by_name, formats)


def _draw(draw: Drawing, rows: Sequence[Row], model: str, figure: Figure) -> None:
    draw(figure, rows, model)


def _table(title: str, *headings: str) -> Any:
    from probing.runtime.terminal import plain_table

    table = plain_table(title)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table
