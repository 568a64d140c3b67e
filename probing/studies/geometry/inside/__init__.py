"""The report of `geometry` on a model's inside: over-smoothing, interventions, norms and the residual stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from probing.results import (
    Row,
    Table,
    cells_table,
    count,
    estimated,
    in_brackets,
    interval,
    listed,
    rounded,
    shown_table,
)
from probing.statistics.moments import MEAN_DEVIATIONS
from probing.studies.geometry.tables import NORMS
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

# Most neurons that sentences and figures are about, most rows of the table of terms, and most neurons in its figure.
SHOWN, TERMS_SHOWN, DRAWN = 5, 24, 4

_LOOKS = ((BLUE, "o"), (ORANGE, "s"), (GREEN, "^"), (PURPLE, "D"), ("black", "v"))


MEASURES = {
    "mlm_loss": "Loss on masked words in nats",
    "position_accuracy": "Accuracy of position by a probe of the intact model",
    "position_accuracy_retrained": "Accuracy of position by a retrained probe",
}
WHERE = {"inside": "zeroed inside the model", "after": "clipped after it"}
# Which norms of every block have average gains and biases, and the terms of a mean with the colours of their bars.
PLACES = {"first": "the first norm", "second": "the second norm", "both": "both norms"}
_TERMS = {
    "by_input": ("input", GREY), "by_gain": ("own gain", ORANGE), "by_bias": ("own bias", BLUE),
    "by_others_bias": ("the others' bias", GREEN),
}  # fmt: skip
_LARGEST = {"input": "the input of the norm", "gain": "the neuron's gain", "bias": "the neuron's bias"}

SENTENCES = {
    "most_similar": "The tokens of a sentence become most similar in block {block}: it multiplies their distance by "
    "{ratio:.2f} on average, and reduces it in {falls:.0%} of {sentences}.",
    "one_block": "Block {block} multiplies the distance between the tokens of a sentence by {ratio:.2f} on average, "
    "and reduces it in {falls:.0%} of {sentences}.",
    "theorem": "Theorem 2 {holds} and allows blocks to multiply the distance by {factors}; it would predict that "
    "tokens become alike only below 1. sigma_1 sigma_2 is above 1 in {above}.",
    "effects": "{measure}: {effects}.",
    "inside": "zeroing {neurons} inside the model changes it by {effect}{worse}",
    "after": "clipping the last hidden states changes it by {effect}{worse}",
    "worse": ", more harm than {percentile:.0f}% of random draws",
    "no_term": "No outlier is more than 5 sd from the other neurons after a norm.",
    "terms": "Outliers are more than 5 sd from the other neurons after a norm {times}; the largest term of their mean "
    "is {largest}. The farthest is neuron {neuron} after norm {norm} of block {layer} ({deviations:+.1f} sd): its mean "
    "{mean:+.2f} is {by_input:+.2f} by the input, {by_gain:+.2f} by its gain, {by_bias:+.2f} by its bias and "
    "{by_others_bias:+.2f} by the bias of other neurons. Random neurons are that far {random}.",
    "no_remaining": "Above the embeddings, no outlier is more than 5 sd from the other neurons of its layer.",
    "remaining": "Above the embeddings, {outliers} more than 5 sd from the other neurons of their layer. With the gain "
    "and the bias that other neurons have on average, this many remain: {remaining}.",
    "remaining_in": "{n} in {norms}{random}",
    "remaining_random": "with random neurons instead {n:.1f}",
    "changed": "{measure}: average gains and biases of the outliers change it {effects}.",
    "changed_in": "in {norms} by {effect}",
    "worse_in": "more harm than {percentile:.0f}% of random draws",
    "course": "Neuron {neuron}{in_row}: {on_tokens}.",
    "in_row": "{deviations} sd in the embedding of the first position",
    "within": "on {tokens} it is within 5 sd everywhere (at most {top}, at {site})",
    "beyond": "on {tokens} it is more than 5 sd from the other neurons {sites} (up to {top}){end}",
    "end": ", and is within 5 sd at {site} ({deviations})",
    "random": "{neurons} at most {most:.1f} sd from the others anywhere on the stream.",
    "first_row": "With the outliers' entries in the first row of the position table set to the mean of later rows, "
    "of {outliers} of layers {n} {are} still more than {limit:g} sd from the other neurons{random}.",
    "first_row_random": "; with the entries of random neurons set instead, {low} to {high}",
}


def _are(n: int, noun: str) -> str:
    """Return a number with its noun and verb: `1 outlier is`."""
    return f"{count(n, noun)} {'is' if n == 1 else 'are'}"


# --- outliers along the residual stream ---


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
    stream = Table(path).where(neuron=neuron, tokens=tokens, term="no")
    if not stream:
        return None
    beyond = [i for i, row in enumerate(stream) if abs(row["deviations"]) > MEAN_DEVIATIONS]
    last = beyond[-1] if beyond else len(stream)
    return OutlierCourse(
        len(stream), [stream[i] for i in beyond], last - beyond[0] + 1 if beyond else 0,
        max(stream, key=lambda row: abs(row["deviations"])), stream[last + 1] if last + 1 < len(stream) else None,
    )  # fmt: skip


def path_table(path: Table) -> Any:
    """Return the sites of outliers on the residual stream, on the first token and on words, as a rich table."""
    return cells_table(
        f"Outliers on the residual stream: where they are more than {MEAN_DEVIATIONS:g} sd from others",
        ("neuron", "tokens", "first position", "places", "from", "to", "farthest", "below at"),
        (
            [str(neuron), words, _of_row(path, neuron) if tokens == "first" else "", *_sites(neuron_course)]
            for neuron in followed(path)
            for tokens, words in TOKENS.items()
            if (neuron_course := course(path, neuron, tokens))
        ),
    )


def _sites(of: OutlierCourse) -> list[str]:
    ends = (of.beyond[0], of.beyond[-1], of.end) if of.beyond else (None, None, None)
    first, last, end = (_short(row) if row else "" for row in ends)
    farthest = f"{of.top['deviations']:+.1f} at {_short(of.top)}"
    return [f"{len(of.beyond)} of {of.n_sites}", first, last, farthest, end]


def _short(row: Row) -> str:
    name = _SHORT.get(str(row["site"]), str(row["site"]))
    return f"{row['layer']} {name}" if row["layer"] else name


def path_conclusions(path: Table) -> list[str]:
    """Return a sentence for each outlier that is followed, and a sentence on random neurons."""
    sentences = []
    for neuron in followed(path):
        on_tokens = [
            _course_clause(neuron_course, words)
            for name, words in (("first", "the first token"), ("words", "words"))
            if (neuron_course := course(path, neuron, name))
        ]
        row = _of_row(path, neuron)
        in_row = in_brackets(row and SENTENCES["in_row"].format(deviations=row))
        sentences.append(SENTENCES["course"].format(neuron=neuron, in_row=in_row, on_tokens="; ".join(on_tokens)))
    if random := path.where(kind="random", term="no"):
        neurons = _are(len(random.values("neuron")), "random neuron")
        sentences.append(SENTENCES["random"].format(neurons=neurons, most=max(map(abs, random.column("deviations")))))
    return sentences


def _of_row(path: Table, neuron: int) -> str:
    """Return a neuron's distance from the others in the first token's position embedding; empty without a table."""
    rows = path.where(neuron=neuron, site="position", tokens="first")
    return f"{rows[0]['deviations']:+.1f}" if rows else ""


def _course_clause(of: OutlierCourse, tokens: str) -> str:
    slots = {"tokens": tokens, "top": f"{of.top['deviations']:+.1f}"}
    if not of.beyond:
        return SENTENCES["within"].format(**slots, site=_site(of.top))
    first, last = of.beyond[0], of.beyond[-1]
    sites = f"at {_site(first)}" if of.n_between == 1 else f"from {_site(first)} to {_site(last)}"
    if len(of.beyond) < of.n_between:
        sites = f"at {len(of.beyond)} of the {of.n_between} places {sites}"
    end = SENTENCES["end"].format(site=_site(of.end), deviations=f"{of.end['deviations']:+.1f}") if of.end else ""
    return SENTENCES["beyond"].format(**slots, sites=sites, end=end)


def _site(row: Row) -> str:
    return SITES[row["site"]] + (f" of block {row['layer']}" if row["layer"] and row["site"] != "final_norm" else "")


def first_row_conclusions(rows: Table) -> list[str]:
    """Return a sentence on the number of outliers of layers that remain."""
    intact = {(row["layer"], row["neuron"]) for row in rows.where(kind="intact", outlier="yes")}
    if not intact:
        return []
    remaining = rows.where(lambda row: (row["layer"], row["neuron"]) in intact)
    n = len(remaining.where(kind="outliers", outlier="yes"))
    draws = remaining.where(kind="random").by("draw").values()
    random = [len(of_draw.where(outlier="yes")) for of_draw in draws]
    return [SENTENCES["first_row"].format(
        n=n, outliers=count(len(intact), "outlier"), are="is" if n == 1 else "are", limit=MEAN_DEVIATIONS,
        random=SENTENCES["first_row_random"].format(low=min(random), high=max(random)) if random else "",
    )]  # fmt: skip


def draw_path(figure: Figure, path: Table, model: str) -> None:
    """Draw the distance of outliers along the residual stream, on the first token and on words."""
    neurons = followed(path)
    figure.set_size_inches(9.6, 5.2)
    for axes, (tokens, words) in zip(figure.subplots(2, 1, sharex=True, sharey=True), TOKENS.items(), strict=True):
        group_rows = path.where(tokens=tokens)
        stream = sorted(group_rows.where(term="no").values("step"))
        random = [group_rows.where(step=step, kind="random").column("deviations") for step in stream]
        if all(random) and stream:
            reach = [max(map(abs, values)) for values in random]
            axes.fill_between(stream, [-r for r in reach], reach, color="#d9d9d9", lw=0, label="random neurons")
        for (colour, mark), neuron in zip(_LOOKS, neurons, strict=False):
            rows = group_rows.where(neuron=neuron)
            for term, look in (("no", {"ls": "-", "mfc": colour}), ("yes", {"ls": "", "mfc": "white"})):
                line_rows = rows.where(term=term)
                axes.plot(
                    line_rows.column("step"), line_rows.column("deviations"), marker=mark, ms=4, c=colour, lw=1,
                    label=f"neuron {neuron}" if term == "no" else None, **look,
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


def _name_sites(axes: Axes, path: Table) -> None:
    """Label each site below the axis, and separate blocks by lines."""
    sites = [rows[0] for _, rows in sorted(path.by("step").items())]
    crowded = len(sites) > 60
    shown = [i for i in range(len(sites)) if not crowded or i == 0 or sites[i]["layer"] != sites[i - 1]["layer"]]
    axes.set_xticks([sites[i]["step"] for i in shown], [_short(sites[i]) for i in shown], rotation=90, fontsize=6)
    for before, row in pairwise(sites):
        if before["layer"] != row["layer"]:
            axes.axvline(row["step"] - 0.5, color=GREY, lw=0.4)


# --- over-smoothing ---


def by_block(smoothing: Table) -> dict[int, dict[str, Row]]:
    """Return the rows of `smoothing.csv` by block and measure."""
    return {block: {row["measure"]: row for row in rows} for block, rows in smoothing.by("layer").items()}


def smoothing_table(smoothing: Table) -> Any:
    """Return the terms of each block's bound as a rich table."""

    def cells(block: int, rows: Mapping[str, Row]) -> list[str]:
        value = {name: row["value"] for name, row in rows.items()}
        return [
            str(block), f"{value['distance_ratio']:.3f}", f"{value['sigma_1']:.2f}", f"{value['sigma_2']:.2f}",
            f"{value['sigma_product']:.2f}", f"{value['share_sigma_product_above_1']:.0%}",
            f"{value['gain_1'] * value['gain_2']:.2f}", f"{value['attention_factor']:.1f}",
            f"{value['feed_forward_factor']:.0f}", f"{value['bound_per_matrix']:,.0f}",
            f"{value['bound_published']:,.0f}", f"{value['largest_share_of_bound']:.2%}",
        ]  # fmt: skip

    headings = (
        "block", "measured", "σ1", "σ2", "σ1σ2", "above 1", "gains", "attention", "FFN", "bound", "published",
        "closest",
    )  # fmt: skip
    title = "Change of the distance to equal rows by each block, and its bound by Theorem 2: means over sentences"
    return cells_table(title, headings, (cells(block, rows) for block, rows in by_block(smoothing).items()))


def smoothing_conclusion(smoothing: Table) -> str:
    """Return a sentence on the change of the distance between tokens, and on the implications of the bound."""
    by_measure = smoothing.by("measure")
    ratios, bounds = by_measure["distance_ratio"], by_measure["bound_per_matrix"].column("value")
    least = min(ratios, key=lambda row: row["value"])
    (falls,) = by_measure["share_distance_falls"].where(layer=least["layer"]).column("value")
    is_bounded = all(share == 1 for share in by_measure["share_within_bound_per_matrix"].column("value"))
    above = max(by_measure["share_sigma_product_above_1"].column("value"))
    low, high = (f"{end(bounds):,.0f}" for end in (min, max))
    n = max(by_measure["share_within_bound"].column("n_sentences"))
    similar = SENTENCES["most_similar" if len(ratios) > 1 else "one_block"].format(
        block=least["layer"], ratio=least["value"], falls=falls, sentences=count(n, "sentence")
    )
    theorem = SENTENCES["theorem"].format(
        holds="holds on all of them" if is_bounded else "IS VIOLATED on some of them",
        factors=low if low == high else f"{low} to {high}",
        above=f"up to {above:.0%} of the sentences" if above else "no sentence",
    )
    return f"{similar} {theorem}"


def draw_smoothing(figure: Figure, smoothing: Table, model: str) -> None:
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


# --- neurons that are zeroed inside the model ---


def interventions_tables(rows: Table) -> list[Any]:
    """Return the effects as rich tables, one per measure."""
    return [
        _effects_table(of_measure, f"taking out {_outliers(of_measure)}", "taken out", WHERE, ["large gains"])
        for of_measure in rows.by("measure").values()
    ]


def _effects_table(rows: Table, of: str, heading: str, places: Mapping[str, str], more: Sequence[str] = ()) -> Any:
    """Return the effects of outliers and of random neurons on a measure at each place, and of `more` neurons."""

    def cells(where: str, words: str) -> list[str]:
        of_where = rows.where(where=where)
        (outliers,), effects = of_where.where(kind="outliers"), of_where.where(kind="random").column("effect")
        draws = [f"{min(effects):+.3f} to {max(effects):+.3f}", f"{outliers['percentile']:.0f}%",
                 f"{outliers['p_value']:.2g}"] if effects else ["", "", ""]  # fmt: skip
        effect_cells = _effect(outliers), interval(outliers, "effect", " to ", "+.3f")
        return [words, *effect_cells, *draws, *map(_effect, of_where.where(kind="largest_gain"))]

    headings = (heading, "effect", "95% range", "random others", "worse than", "p", *more)
    return cells_table(f"{_title(rows)}: effect of {of}", headings, (cells(*place) for place in places.items()))


def _effect(row: Row) -> str:
    return rounded(row["effect"], "+.3f")


def _title(rows: Table) -> str:
    return f"{MEASURES[rows[0]['measure']]} (intact: {rows[0]['value']:.3f})"


def _in_lines(title: str) -> str:
    return title.replace(" by ", "\nby ").replace(" (intact", "\n(intact")


def interventions_conclusion(rows: Table) -> str:
    """Return a sentence on the effects of zeroing inside the model and of clipping its output."""
    rows = rows.where(measure=rows[0]["measure"])
    effects = []
    for where in WHERE:
        (row,) = rows.where(where=where, kind="outliers")
        worse = SENTENCES["worse"].format(**row) if "percentile" in row else ""
        effect = estimated(row, "effect", "+.3f")
        effects.append(SENTENCES[where].format(neurons=_outliers(rows), effect=effect, worse=worse))
    return SENTENCES["effects"].format(measure=_title(rows), effects="; ".join(effects))


def draw_interventions(figure: Figure, rows: Table, model: str) -> None:
    """Draw the effects of outliers, inside the model and on its output, with the effects of as many other neurons."""
    measures = rows.by("measure")
    figure.set_size_inches(1.4 + 3.1 * len(measures), 3.2)
    panels = figure.subplots(1, len(measures), squeeze=False)[0]
    for axes, of_measure in zip(panels, measures.values(), strict=True):
        _draw_effects(axes, of_measure, {"inside": "zeroed inside\nthe model", "after": "clipped\nafter it"})
    figure.axes[0].set_ylabel("effect (95% interval)")
    figure.suptitle(f"{model} without {_outliers(rows)}", x=0.01, ha="left", fontsize=10)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right center")


def _draw_effects(axes: Axes, rows: Table, places: Mapping[str, str]) -> None:
    """Draw the effects on a measure at each place, of outliers and of the neurons that they are compared with."""
    looks = (
        ("random", "random others", "x", GREY, 0.0), ("largest_gain", "largest other gains", "D", ORANGE, 0.14),
        ("outliers", "outliers", "o", BLUE, -0.14),
    )  # fmt: skip
    for x, where in enumerate(places):
        for kind, label, mark, colour, shift in looks:
            kind_rows = rows.where(where=where, kind=kind)
            effects = np.array(kind_rows.column("effect"))
            reach = None if kind == "random" else error_bars(kind_rows, effects, "effect")
            axes.errorbar(
                [x + shift] * len(effects), effects, yerr=reach, ls="", marker=mark, ms=5, c=colour, capsize=3,
                label=label if x == 0 else None,
            )  # fmt: skip
    axes.axhline(0, color="black", lw=0.6)
    axes.set_xticks(range(len(places)), list(places.values()))
    axes.set_xlim(-0.5, len(places) - 0.5)
    axes.set_title(_in_lines(_title(rows.where(kind="intact"))), fontsize=9)


def _outliers(rows: Table) -> str:
    """Return the neurons that are taken out, with their noun."""
    neurons = str(rows.where(kind="outliers")[0]["neurons"]).split()
    return f"neuron{'s' * (len(neurons) > 1)} {', '.join(neurons)}"


# --- terms of outliers in the norms ---


def _far(norms: Table, kind: str = "outlier") -> Table:
    return norms.where(lambda row: abs(row["deviations"]) > MEAN_DEVIATIONS, kind=kind)


def norms_table(norms: Table) -> Any:
    """Return the terms of outliers, where they are far from other neurons after a norm, as a rich table."""
    far = sorted(_far(norms), key=lambda row: -abs(row["deviations"]))[:TERMS_SHOWN]
    return shown_table(
        NORMS, sorted(far, key=lambda row: (row["layer"], row["norm"], row["neuron"])),
        "Terms of outliers in the norms of each block: their sum is the mean output",
        ["layer", "norm", "neuron", "mean", "deviations", *_TERMS, "largest"],
    )  # fmt: skip


def terms_conclusion(norms: Table) -> str:
    """Return a sentence on the sources of outliers after norms."""
    far = _far(norms)
    if not far:
        return SENTENCES["no_term"]
    largest = listed([f"{words} in {len(far.where(largest=name))}" for name, words in _LARGEST.items()])
    top = dict(max(far, key=lambda row: abs(row["deviations"])), largest=largest)
    random = count(len(_far(norms, "random")), "time")
    return SENTENCES["terms"].format(**top, times=count(len(far), "time"), random=random)


def draw_terms(figure: Figure, norms: Table, model: str) -> None:
    """Draw the terms of the farthest outliers in each norm."""
    outliers = norms.where(kind="outlier").by("neuron")
    reach = {neuron: max(map(abs, rows.column("deviations"))) for neuron, rows in outliers.items()}
    neurons = sorted(reach, key=lambda neuron: (-reach[neuron], neuron))[:DRAWN]
    figure.set_size_inches(9.2, 0.9 + 1.7 * -(-len(neurons) // 2))
    grid = figure.subplots(-(-len(neurons) // 2), min(2, len(neurons)), squeeze=False, sharex=True).ravel()
    for axes, neuron in zip(grid, neurons, strict=False):
        _draw_neuron(axes, norms.where(neuron=neuron))
        axes.set_title(f"neuron {neuron}", fontsize=9)
    for axes in grid[len(neurons) :]:
        axes.set_visible(False)
    figure.supxlabel("norm: block.number", fontsize=9)
    figure.supylabel("mean output", fontsize=9)
    figure.suptitle(f"{model}: terms of outliers in the norms of each block", x=0.01, ha="left", fontsize=10)
    figure.legend(*grid[0].get_legend_handles_labels(), loc="outside right center")


def _draw_neuron(axes: Axes, rows: Table) -> None:
    x = np.arange(len(rows))
    above, below = np.zeros(len(rows)), np.zeros(len(rows))
    for name, (words, colour) in _TERMS.items():
        values = np.array(rows.column(name))
        axes.bar(x, values, 0.7, np.where(values > 0, above, below), color=colour, ec="black", lw=0.4, label=words)
        above, below = above + np.maximum(values, 0), below + np.minimum(values, 0)
    axes.plot(x, rows.column("mean"), "D", c="white", mec="black", ms=4, label="mean output")
    axes.axhline(0, color="black", lw=0.6)
    labels = [f"{row['layer']}.{row['norm']}" for row in rows]
    step = -(-len(rows) // 14)
    axes.set_xticks(x, [label if i % step == 0 else "" for i, label in enumerate(labels)], fontsize=7)


# --- norms with average gains and biases of the outliers ---


def changes_tables(changes: Table) -> list[Any]:
    """Return the remaining outliers, and the effect on each measure of the output, as rich tables."""
    of = "average gains and biases of the outliers"
    return [_remaining_table(changes), *(_effects_table(rows, of, "in", PLACES) for rows in _by_measure(changes))]


def _by_measure(changes: Table) -> list[Table]:
    by_measure = changes.by("measure")
    return [by_measure[name] for name in MEASURES if name in by_measure]


def _pairs(changes: Table) -> dict[tuple[int, int], Table]:
    """Return the rows on the distance of outliers, by layer and neuron."""
    return changes.where(measure="deviations").by("layer", "neuron")


def _remaining_table(changes: Table) -> Any:
    def cells(pair: tuple[int, int], rows: Table) -> list[str]:
        (intact,) = rows.where(kind="intact")
        p = rows.where(lambda row: "p_value" in row, where="both", kind="outliers").column("p_value")
        return [
            *map(str, pair), f"{intact['value']:+.1f}", *(_distance(rows.where(where=where)) for where in PLACES),
            f"{p[0]:.2g}" if p else "",
        ]  # fmt: skip

    title = "Outliers in sd with average gains and biases (in brackets: with those of random neurons averaged instead)"
    headings = ["layer", "neuron", "intact", *PLACES.values(), "p"]
    return cells_table(title, headings, (cells(*pair) for pair in _pairs(changes).items()))


def _distance(rows: Table) -> str:
    """Return the distance of an outlier, and in brackets the range of distances with random neurons changed."""
    (outlier,), random = rows.where(kind="outliers"), rows.where(kind="random").column("value")
    return f"{outlier['value']:+.1f}{in_brackets(f'{min(random):+.1f} to {max(random):+.1f}' if random else '')}"


def changes_conclusions(changes: Table) -> list[str]:
    """Return a sentence on the remaining outliers, and one for each measure of the model's output."""
    sentences = [_remaining_sentence(changes.where(measure="deviations"))]
    for rows in _by_measure(changes):
        effects = []
        for where, norms in PLACES.items():
            (row,) = rows.where(where=where, kind="outliers")
            among = SENTENCES["worse_in"].format(**row) if "percentile" in row else ""
            brackets = in_brackets(interval(row, "effect", " to ", "+.3f"), among)
            effects.append(SENTENCES["changed_in"].format(norms=norms, effect=f"{_effect(row)}{brackets}"))
        sentences.append(SENTENCES["changed"].format(measure=_title(rows), effects=listed(effects)))
    return sentences


def _remaining_sentence(distances: Table) -> str:
    before = len(distances.where(kind="intact", outlier="yes"))
    if not before:
        return SENTENCES["no_remaining"]
    remaining = []
    for where, norms in PLACES.items():
        rows = distances.where(where=where)
        draws, beyond = rows.where(kind="random").values("draw"), rows.where(outlier="yes")
        random = len(beyond.where(kind="random")) / len(draws) if draws else None
        remaining.append(SENTENCES["remaining_in"].format(
            n=len(beyond.where(kind="outliers")), norms=norms,
            random=in_brackets("" if random is None else SENTENCES["remaining_random"].format(n=random)),
        ))  # fmt: skip
    return SENTENCES["remaining"].format(outliers=_are(before, "outlier"), remaining=listed(remaining))


def draw_changes(figure: Figure, changes: Table, model: str) -> None:
    """Draw the remaining distances of outliers and the effects on the model's output, with random neurons."""
    measures, pairs = _by_measure(changes), _pairs(changes)
    figure.set_size_inches(1.8 + 2.9 * (1 + len(measures)), 3.3)
    distance_axes, *panels = figure.subplots(1, 1 + len(measures), squeeze=False)[0]
    kinds = {
        "random": ("random neurons (mean of draws)", {"c": GREY, "ls": ":", "lw": 0.8}),
        "outliers": ("outliers", {"c": BLUE, "marker": "o", "ms": 3}),
    }
    for i, rows in enumerate(pairs.values()):
        by_kind = rows.by("kind")
        for kind, (words, look) in kinds.items():
            if kind in by_kind:
                lines = [by_kind["intact"], *(by_kind[kind].where(where=where) for where in PLACES)]
                values = [np.mean(np.abs(of_place.column("value"))) for of_place in lines]
                distance_axes.plot(range(len(lines)), values, **look, label=words if i == 0 else None)
    distance_axes.axhline(MEAN_DEVIATIONS, color=PURPLE, lw=0.8, ls="--", label="5 sd")
    distance_axes.set_xticks(range(1 + len(PLACES)), ["intact", *PLACES])
    distance_axes.set_ylim(0, None)
    distance_axes.set_ylabel("sd from the other neurons")
    distance_axes.set_title("distance of each outlier", fontsize=9)
    for axes, rows in zip(panels, measures, strict=True):
        _draw_effects(axes, rows, {where: where for where in PLACES})
        axes.set_ylabel("effect (95% interval)")
    figure.suptitle(f"{model}: average gains and biases of outliers", x=0.01, ha="left", fontsize=10)
    figure.legend(*distance_axes.get_legend_handles_labels(), loc="outside lower center", ncols=3)


# --- all of these ---

_INSIDE = ("smoothing", "interventions", "norms", "norm_changes", "path", "first_row")


def _tables(rows_by_table: Mapping[str, Sequence[Row]]) -> list[Table]:
    return [Table(rows_by_table.get(name, ())) for name in _INSIDE]


def inside_tables(rows_by_table: Mapping[str, Sequence[Row]]) -> list[Any]:
    """Return the tables of the measurements, smoothing first; the first row has only a sentence."""
    smoothing, interventions, norms, norm_changes, path, _ = _tables(rows_by_table)
    return [
        *([smoothing_table(smoothing)] if smoothing else []), *interventions_tables(interventions),
        *([norms_table(norms)] if norms else []), *(changes_tables(norm_changes) if norm_changes else []),
        *([path_table(path)] if path else []),
    ]  # fmt: skip


def inside_conclusions(rows_by_table: Mapping[str, Sequence[Row]]) -> list[str]:
    """Return the conclusions, a sentence for each requested measurement."""
    smoothing, interventions, norms, norm_changes, path, first_row = _tables(rows_by_table)
    return [
        *([smoothing_conclusion(smoothing)] if smoothing else []),
        *([interventions_conclusion(interventions)] if interventions else []),
        *([terms_conclusion(norms)] if norms else []), *(changes_conclusions(norm_changes) if norm_changes else []),
        *path_conclusions(path), *first_row_conclusions(first_row),
    ]  # fmt: skip


def write_inside_figures(
    folder: Path, rows_by_table: Mapping[str, Sequence[Row]], model: str, formats: Sequence[str] = USUAL
) -> list[Path]:
    """Draw the figures of the tables that have rows, each in some formats, and return the paths of the files."""
    smoothing, interventions, norms, norm_changes, path, _ = _tables(rows_by_table)
    drawings = {
        "smoothing_bound": (partial(draw_smoothing, smoothing=smoothing, model=model), smoothing),
        "interventions": (partial(draw_interventions, rows=interventions, model=model), interventions),
        "norms": (partial(draw_terms, norms=norms, model=model), norms),
        "norm_changes": (partial(draw_changes, changes=norm_changes, model=model), norm_changes),
        "path": (partial(draw_path, path=path, model=model), path),
    }  # fmt: skip
    return write_drawings(folder, {name: draw for name, (draw, rows) in drawings.items() if rows}, formats)
