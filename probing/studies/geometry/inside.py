"""Tables and sentences of `geometry` on a model's inside: over-smoothing, norms and the residual stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from probing.results import Row, Table, cells_table, count, in_brackets, interval, listed, shown_table
from probing.runs import Terms
from probing.statistics import MEAN_DEVIATIONS
from probing.studies.geometry.tables import NORMS
from probing.tables.figures import BLUE, GREEN, GREY, ORANGE, Chart, Line, Panel, linear
from probing.tables.outlier_effects import MEASURES, effect_text, effects_table, title_of

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


# Which norms of every block have average gains and biases, and the terms of a mean with the colours of their bars.
PLACES = {"first": "the first norm", "second": "the second norm", "both": "both norms"}
TERMS = {
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
    first, last, end = (short_site(row) if row else "" for row in ends)
    farthest = f"{of.top['deviations']:+.1f} at {short_site(of.top)}"
    return [f"{len(of.beyond)} of {of.n_sites}", first, last, farthest, end]


def short_site(row: Row) -> str:
    """Return the short name of a site, with its block."""
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


def smoothing_chart(smoothing: Table) -> Chart:
    """Return each block's change of the distance, the limit by the theorem, and the deviations in its denominator."""
    of = smoothing.by("measure")
    bounds = {
        "bound": "with gains and slope", "bound_published": "as published",
        "bound_per_matrix": "with each matrix's own norm",
    }  # fmt: skip

    def band(low: int, high: int) -> Line:
        ends = zip(of[f"sigma_product_q{low}"], of[f"sigma_product_q{high}"], strict=True)
        rows = [{"layer": first["layer"], "low": first["value"], "high": last["value"]} for first, last in ends]
        return Line.band(rows, "low", "high", f"{low}% to {high}% of sentences")

    return Chart("smoothing_bound", "do blocks make the tokens of a sentence alike?", [
        Panel([Line.of(of["distance_ratio"], "value", "measured", "")], "what happens",
              "distance to equal rows, after / before", from_zero=True),
        Panel([Line.of(of[name], "value", words) for name, words in bounds.items()], "what the theorem allows",
              "upper bound of after / before (log scale)", is_logarithmic=True),
        Panel([band(5, 95), band(25, 75), Line.of(of["sigma_product_q50"], "value", "median")],
              "least sd of tokens entering LayerNorms", "σ₁ σ₂", from_zero=True),
    ], x=linear("layer", "block"), reference=1)  # fmt: skip


# --- terms of outliers in the norms ---


def _far(norms: Table, kind: str = "outlier") -> Table:
    return norms.where(lambda row: abs(row["deviations"]) > MEAN_DEVIATIONS, kind=kind)


def norms_table(norms: Table) -> Any:
    """Return the terms of outliers, where they are far from other neurons after a norm, as a rich table."""
    far = sorted(_far(norms), key=lambda row: -abs(row["deviations"]))[:TERMS_SHOWN]
    return shown_table(
        NORMS, sorted(far, key=lambda row: (row["layer"], row["norm"], row["neuron"])),
        "Terms of outliers in the norms of each block: their sum is the mean output",
        ["layer", "norm", "neuron", "mean", "deviations", *TERMS, "largest"],
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


# --- norms with average gains and biases of the outliers ---


def changes_tables(changes: Table) -> list[Any]:
    """Return the remaining outliers, and the effect on each measure of the output, as rich tables."""
    of = "average gains and biases of the outliers"
    return [_remaining_table(changes), *(effects_table(rows, of, "in", PLACES) for rows in output_measures(changes))]


def output_measures(changes: Table) -> list[Table]:
    """Return the rows of each measure of the output, in the order of `MEASURES`."""
    by_measure = changes.by("measure")
    return [by_measure[name] for name in MEASURES if name in by_measure]


def outlier_pairs(changes: Table) -> dict[tuple[int, int], Table]:
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
    return cells_table(title, headings, (cells(*pair) for pair in outlier_pairs(changes).items()))


def _distance(rows: Table) -> str:
    """Return the distance of an outlier, and in brackets the range of distances with random neurons changed."""
    (outlier,), random = rows.where(kind="outliers"), rows.where(kind="random").column("value")
    return f"{outlier['value']:+.1f}{in_brackets(f'{min(random):+.1f} to {max(random):+.1f}' if random else '')}"


def changes_conclusions(changes: Table) -> list[str]:
    """Return a sentence on the remaining outliers, and one for each measure of the model's output."""
    sentences = [_remaining_sentence(changes.where(measure="deviations"))]
    for rows in output_measures(changes):
        effects = []
        for where, norms in PLACES.items():
            (row,) = rows.where(where=where, kind="outliers")
            among = SENTENCES["worse_in"].format(**row) if "percentile" in row else ""
            brackets = in_brackets(interval(row, "effect", " to ", "+.3f"), among)
            effects.append(SENTENCES["changed_in"].format(norms=norms, effect=f"{effect_text(row)}{brackets}"))
        sentences.append(SENTENCES["changed"].format(measure=title_of(rows), effects=listed(effects)))
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


# --- all of these ---

_INSIDE = ("smoothing", "norms", "norm_changes", "path", "first_row")


def _tables(rows_by_table: Mapping[str, Sequence[Row]]) -> list[Table]:
    return [Table(rows_by_table.get(name, ())) for name in _INSIDE]


def inside_tables(rows_by_table: Mapping[str, Sequence[Row]]) -> list[Any]:
    """Return the tables of the measurements, smoothing first; the first row has only a sentence."""
    smoothing, norms, norm_changes, path, _ = _tables(rows_by_table)
    return [
        *([smoothing_table(smoothing)] if smoothing else []),
        *([norms_table(norms)] if norms else []), *(changes_tables(norm_changes) if norm_changes else []),
        *([path_table(path)] if path else []),
    ]  # fmt: skip


def inside_conclusions(rows_by_table: Mapping[str, Sequence[Row]]) -> list[str]:
    """Return the conclusions, a sentence for each requested measurement."""
    smoothing, norms, norm_changes, path, first_row = _tables(rows_by_table)
    return [
        *([smoothing_conclusion(smoothing)] if smoothing else []),
        *([terms_conclusion(norms)] if norms else []), *(changes_conclusions(norm_changes) if norm_changes else []),
        *path_conclusions(path), *first_row_conclusions(first_row),
    ]  # fmt: skip


# Meanings of the headings on a page.
INSIDE_TERMS: Terms = {
    **NORMS.terms(["layer"]),
    "measured": "Distance of a sentence to equal rows after the block, divided by the distance before it.",
    "σ1": "Least standard deviation, over neurons, among the tokens that enter the block's first LayerNorm.",
    "σ2": "The same for the second LayerNorm.",
    "σ1σ2": "Product of σ1 and σ2.",
    "above 1": "Share of the sentences in which that product is above 1, in which case small weights would make "
    "tokens more similar.",
    "gains": "Product of the largest gains of the two LayerNorms.",
    "attention": "Largest factor by which the attention of the block can multiply the distance.",
    "FFN": "Largest factor by which its feed-forward layer can multiply the distance.",
    "bound": "Largest factor by which the block can multiply the distance: attention x FFN x gains / σ1σ2.",
    "published": "The bound as published, with one singular value for all matrices and without gains.",
    "closest": "Largest share of the bound that the distance of any sentence reaches.",
    "effect": "Change of the measure in the title of the table.",
    "95% range": "Interval of the effect over sentences.",
    "random others": "Range of the effects of as many other neurons, drawn at random.",
    "worse than": "Share of these draws that do less harm than the outliers.",
    "p": "Probability that random other neurons do as much harm; of distances, that they reduce them as much with both "
    "norms changed.",
    **NORMS.terms(["norm", "mean", "deviations", "by_input", "by_gain", "by_bias", "by_others_bias", "largest"]),
    "intact": "The distance in standard deviations in the unchanged model.",
    "the first norm": "The distance, or the effect, with average gains and biases in the first norm of every block; "
    "in brackets the range with the gains and biases of random neurons averaged instead.",
    "the second norm": "The same with the second norm of every block.",
    "both norms": "The same with both.",
    "in": "In which norms of every block the outliers have the gain and the bias of other neurons.",
    "tokens": "Whether the mean is over the first tokens of sentences, or over words.",
    "first position": "Distance of the neuron from the others in the position embedding of the first token.",
    "places": "Number of places on the residual stream at which the neuron is more than 5 standard deviations from the "
    "mean of all neurons.",
    "from": "First of these places, with the number of its block.",
    "to": "Last of them.",
    "farthest": "Largest distance anywhere on the stream, and where.",
    "below at": "The place after the last one, where the neuron is within 5 standard deviations again.",
}
