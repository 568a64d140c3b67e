"""The agreement of the rankings of runs on a page, pair by pair, and what its headings mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from probing.page.terms import Terms
from probing.results.rows import Html, element, table
from probing.results.schema import Row, ends, interval, shortened, two_decimals
from probing.runs.study import Result
from probing.studies.compare.tables import same_depth

TERMS: Terms = {
    "layers": "A layer of the first run and a layer of the second, at the same relative depth.",
    "top overlap": "Share of the first neurons of one ranking that are, or are matched to, first neurons of the other. "
    "In the map: overlap of the top.",
    "by chance": "The range in which the number to its left lies in 95 of 100 cases if the rankings have nothing in "
    "common: one of them is permuted, or computed in a random basis of the same space.",
    "Spearman": "Spearman's correlation of the two rankings over all neurons: 1 for the same order, 0 for "
    "unrelated orders.",
    "95% range": "Interval of Spearman's correlation over bootstrap samples of test sentences.",
    "p": "Probability that chance gives a correlation at least as high, corrected for the number of pairs of layers "
    "(Holm).",
    "match": "Correlation of matched neurons on sentences that were not used for the matching.",
    "CKA": "Linear centred kernel alignment: how alike the two layers are as a whole, whatever their neurons; 1 where "
    "one is a rotation of the other.",
    "layer, neuron, rank": "Layer, neuron and rank in the first run of a neuron that is at the top of every run; "
    "with the name of a run, those of its match in that run.",
}

CELL_WIDTH, CELL_HEIGHT = 34, 24
LEFT, BOTTOM = 46, 38
# Width of a letter of a name, of which so many are shown at most.
LETTER, LONGEST = 6.4, 24
# From this shade on, numbers are written in the colour of the page's background.
STRONG = 0.6


def heat_map(
    values: Mapping[tuple[int, int], float], titles: Mapping[tuple[int, int], str], names: tuple[str, str], title: str
) -> Html:
    """Return a grid of cells, the first run's layers upwards, shaded from 0 to 1.

    Args:
        values: Values by a layer of the first run and a layer of the second.
        titles: Text shown for each cell.
        names: Names of the two runs.
        title: Title of the map.
    """
    down, across = (sorted({layers[side] for layers in values}) for side in (0, 1))
    # Beside few cells the names of the axes are longer than these, and the map gets room for them.
    upwards, along = (f"layer of {shortened(name, LONGEST)}" for name in names)
    top = max(0.0, LETTER * len(upwards) - CELL_HEIGHT * len(down))
    foot = top + CELL_HEIGHT * len(down)
    long = max(CELL_WIDTH * len(across), LETTER * len(along))
    width, height = LEFT + long + 4, foot + BOTTOM + 4
    cells = [
        _cell(values[layers], titles[layers], across.index(layers[1]), foot - CELL_HEIGHT * (1 + down.index(layers[0])))
        for layers in sorted(values)
    ]
    rows = _labels(down, [(LEFT - 7, foot - (i + 0.5) * CELL_HEIGHT + 4) for i in range(len(down))], "end")
    columns = _labels(across, [(LEFT + (j + 0.5) * CELL_WIDTH, foot + 15) for j in range(len(across))], "middle")
    svg = element(
        "svg", element("title", f"{title}, layers of {names[0]} by layers of {names[1]}"), *cells, *rows, *columns,
        element("text", along, x=LEFT + long / 2, y=height - 4, text_anchor="middle"),
        element("text", upwards, transform=f"translate(12 {foot / 2:g}) rotate(-90)", text_anchor="middle"),
        viewBox=f"0 0 {width:g} {height:g}", role="img", class_="chart heat", style=f"width:{width:g}px",
    )  # fmt: skip
    return element("figure", element("figcaption", title), svg, class_="heat-map")


def _cell(value: float, title: str, column: int, y: float) -> Html:
    x = LEFT + column * CELL_WIDTH
    shade = min(max(value, 0.0), 1.0)
    text, look = two_decimals(value).replace("0.", ".", 1), "on-strong" if shade > STRONG else None
    width, height = CELL_WIDTH - 1, CELL_HEIGHT - 1
    return element(
        "g",
        element("title", title),
        element("rect", x=x, y=y, width=width, height=height, fill_opacity=f"{shade:.2f}", class_="cell"),
        element("text", text, x=x + width / 2, y=y + 16, text_anchor="middle", class_=look),
    )


def _labels(layers: Sequence[int], points: Sequence[tuple[float, float]], anchor: str) -> list[Html]:
    return [
        element("text", layer, x=point[0], y=point[1], text_anchor=anchor)
        for layer, point in zip(layers, points, strict=True)
    ]


# Statistics that are drawn, and their names.
MAPS = {"spearman": "Spearman of the rankings", "overlap": "overlap of the top", "cka": "linear CKA"}


def agreement_section(made: Result, anchor: str) -> Html:
    """Return the section on the agreement of rankings, pair by pair."""
    found = dict.fromkeys((row["model_a"], row["model_b"]) for row in made.agreement)
    parts = [_pair([row for row in made.agreement if (row["model_a"], row["model_b"]) == pair]) for pair in found]
    return element(
        "section",
        element("h2", "Agreement of the rankings"),
        element(
            "p",
            "Each cell compares two layers; pointing at it shows the range by chance and the interval over bootstrap "
            "samples of test sentences. Match is the correlation of matched neurons on sentences that were not used "
            "for the matching.",
        ),
        *parts,
        _everywhere(made),
        id=anchor,
    )


def _pair(rows: Sequence[Row]) -> Html:
    names = rows[0]["model_a"], rows[0]["model_b"]
    drawn = []
    for statistic, title in MAPS.items():
        here = {(row["layer_a"], row["layer_b"]): row for row in rows if row["statistic"] == statistic}
        if here:
            titles = {layers: _said(row) for layers, row in here.items()}
            drawn.append(heat_map({layers: row["value"] for layers, row in here.items()}, titles, names, title))
    return element(
        "section",
        element("h3", f"{names[0]} and {names[1]}, neurons matched by {rows[0]['matching']}"),
        element("div", *drawn, class_="heat-maps"),
        element("details", element("summary", "Layers of the same relative depth, as numbers"), _aligned(rows)),
    )


def _said(row: Row) -> str:
    """Return a cell's numbers in words."""
    parts = [f"layers {row['layer_a']} and {row['layer_b']}: {row['value']:.3f}"]
    for of, words in (("", "95% range"), ("chance", "by chance")):
        if said := interval(row, of, " to "):
            parts.append(f"{words} {said}")
    if _has(row, "p_value"):
        parts.append(f"p = {row['p_value']:.2g}")
    return ", ".join(parts)


def _aligned(rows: Sequence[Row]) -> Html:
    found = {(row["layer_a"], row["layer_b"], row["statistic"]): row for row in rows}
    body = []
    for layers in same_depth(rows):
        overlap, spearman, match, cka = (
            found.get((*layers, name), {}) for name in ("overlap", "spearman", "correlation", "cka")
        )
        p_value = f"{spearman['p_value']:.1g}" if _has(spearman, "p_value") else ""
        cells = [_two(overlap), _range(overlap, "chance"), _two(spearman), _range(spearman, "")]
        cells += [_range(spearman, "chance"), p_value, _two(match), _two(cka)]
        body.append([f"{layers[0]}, {layers[1]}", *cells])
    head = ["layers", "top overlap", "by chance", "Spearman", "95% range", "by chance", "p", "match", "CKA"]
    return table(head, body)


def _everywhere(made: Result) -> Html:
    top = made.config.get("top", 10)
    if not made.top_everywhere:
        return element("p", f"No neuron is, together with its matches, among the first {top} of every run.")
    head = list(made.top_everywhere[0])
    body = [[row.get(name, "") for name in head] for row in made.top_everywhere]
    said = f"{len(body)} neurons and their matches are among the first {top} of every run at the same relative depth"
    if len(body) == 1:
        said = f"One neuron and its matches are among the first {top} of every run at the same relative depth"
    return element("details", element("summary", said), table(head, body))


def _has(row: Row, column: str) -> bool:
    return isinstance(row.get(column), int | float)


def _two(row: Row) -> str:
    return two_decimals(row["value"]) if _has(row, "value") else ""


def _range(row: Row, of: str) -> str:
    return " to ".join(two_decimals(end) for end in ends(row, of) or ())
