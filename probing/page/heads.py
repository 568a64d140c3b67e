"""The numbers of each head of a survey: by measure, in words, and as the shaded cells of a map."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from probing.heads.example_maps import Examples
from probing.results.rows import Child, Html, element
from probing.results.schema import in_brackets, interval, two_decimals
from probing.runs.study import Result
from probing.tables.heads import CLASSES, FIRST, LETTERS, SPECIAL, finds_relation, of_heads, of_measure


@dataclass(frozen=True)
class Survey:
    """What the heads of a model do.

    Args:
        made: The results of `attention`.
        examples: A few sentences with the maps of all heads; None if the run has none.
    """

    made: Result
    examples: Examples | None


Row = Mapping[str, Any]
# What a head is, among the terms of a page.
HEAD = "One of the parallel attentions of a block; 3-9 is the ninth head of layer 3, both counted from 1."
Place = tuple[int, int]  # layer and head


@dataclass(frozen=True)
class HeadMeasure:
    """What is measured of each head.

    Args:
        label: Its name.
        help: What it is and how it is shaded, in a sentence.
        rows: The row of each head that has one, by layer and head.
        text: Returns the text of a cell.
        shade: Returns the shade of a cell, from 0 to 1.
        told: Returns what was measured, with its interval.
        cells: By heading, what returns the cells of a table.
    """

    label: str
    help: str
    rows: Mapping[Place, Row]
    text: Callable[[Row], str]
    shade: Callable[[Row], float]
    told: Callable[[Row], str]
    cells: Mapping[str, Callable[[Row], str]] = field(default_factory=dict)


def head_measures(survey: Survey) -> list[HeadMeasure]:
    """Return the measures that a survey has, in the order in which a page offers them."""
    made = survey.made.by_name
    found = [_classes(of_heads(made))]
    found += [_share(name, about, of_measure(made["heads"], *which)) for name, about, which in _SHARES]
    found.append(_relations(made["head_relations"]))
    return [one for one in found if one.rows]


def places(measures: Sequence[HeadMeasure]) -> list[Place]:
    """Return the layer and head of all heads that something was measured of, in order."""
    return sorted({place for measure in measures for place in measure.rows})


def told(measures: Sequence[HeadMeasure], place: Place) -> dict[str, str]:
    """Return all that was measured of a head, by the name of the measure."""
    return {measure.label: measure.told(measure.rows[place]) for measure in measures if place in measure.rows}


def short(value: float) -> str:
    """Return a share with two decimals and without its zero, such as .47."""
    return two_decimals(value).replace("0.", ".", 1)


# Name, meaning, and the measure with the type of tokens that has it in `heads.csv`.
_SHARES = (
    (
        "entropy",
        "Entropy of a query's attention, 1 for uniform attention and 0 for attention to one token",
        ("entropy",),
    ),
    ("special tokens", "Share of the attention that goes to special tokens", ("mass", SPECIAL)),
    (
        "special tokens by norm",
        "Share of special tokens where weights are multiplied by the norms of what is read",
        ("norm_mass", SPECIAL),
    ),
    ("first token", "Share of the attention of later tokens that goes to the first one", ("mass", FIRST)),
    ("previous token", "Mean attention to the previous token", ("previous",)),
    ("next token", "Mean attention to the next token", ("next",)),
    ("token itself", "Mean attention to the token itself", ("self",)),
)


def _by_place(rows: Sequence[Row]) -> dict[Place, Row]:
    return {(row["layer"], row["head"]): row for row in rows}


def _classes(rows: Sequence[Row]) -> HeadMeasure:
    there = [name for name in CLASSES if any(row["class"] == name for row in rows)]
    legend = ", ".join(f"{LETTERS[name][0]} {name}" for name in there)
    return HeadMeasure(
        "class",
        f"Class of most maps of the head, and how many per cent of its maps have it: {legend}",
        _by_place(rows),
        lambda row: f"{LETTERS[row['class']][0]} {100 * row['share']:.0f}",
        lambda row: LETTERS[row["class"]][1],
        lambda row: (
            f"{row['class']}, {row['share']:.0%} of its maps"
            + in_brackets(interval(row, between=" to ", form=".0f", times=100))
        ),
        {"class": lambda row: str(row["class"]), "of its maps": lambda row: f"{row['share']:.1%}"},
    )


def _share(name: str, about: str, rows: Sequence[Row]) -> HeadMeasure:
    return HeadMeasure(
        name,
        about,
        _by_place(rows),
        lambda row: short(row["value"]),
        lambda row: float(row["value"]),
        lambda row: f"{row['value']:.3f}{in_brackets(interval(row, between=' to '))}",
        {name: lambda row: f"{row['value']:.3f}"},
    )


def _relations(rows: Sequence[Row]) -> HeadMeasure:
    return HeadMeasure(
        "best relation",
        "Dependency relation that the head is best at, with its accuracy on test sentences; shaded where the head is "
        "more often right than the best fixed offset, by more than with permuted syntactic heads (corrected p below "
        ".05)",
        _by_place(rows),
        lambda row: f"{row['relation']}\n{short(row['test'])}",
        lambda row: float(row["test"]) if finds_relation(row) else 0.0,
        lambda row: (
            f"{row['relation']}, {row['test']:.3f}{in_brackets(interval(row, 'test', ' to '))}; "
            f"offset {row['offset']:+d}: {row['offset_test']:.3f}; p {row['p_value']:.2g}"
        ),
        {
            "best at": lambda row: str(row["relation"]),
            "accuracy": lambda row: f"{row['test']:.3f}",
            "95% range": lambda row: interval(row, "test", "–"),
            "best offset": lambda row: f"{row['offset']:+d}",
            "its accuracy": lambda row: f"{row['offset_test']:.3f}",
            "p": lambda row: f"{row['p_value']:.2g}",
        },
    )


# From this shade on, numbers are written in the colour of the page's background.
STRONG = 0.66


def head_map(measure: HeadMeasure, places: Sequence[Place], number: int, label: str, links: bool) -> Html:
    """Return the map of one measure; the page's script puts others in its place.

    Args:
        measure: The measure.
        places: Layer and head of all heads, in order.
        number: Index of the survey on the page.
        label: Name of the table for readers who do not see its caption.
        links: Whether each cell links to the head's example sentences.
    """
    heads = sorted({head for _, head in places})
    rows = []
    for layer in sorted({layer for layer, _ in places}):
        cells = [_cell(measure, (layer, head), number, links) if (layer, head) in places else element("td")
                 for head in heads]  # fmt: skip
        rows.append(element("tr", element("th", layer, scope="row"), *cells))
    names: list[Child] = ["layer", f"head {heads[0]}", *heads[1:]]
    head = element("thead", element("tr", *(element("th", name, scope="col") for name in names)))
    table = element("table", head, element("tbody", *rows), class_="heads-map", aria_label=label)
    return element("div", table, class_="scroll")


def head_id(number: int, place: Place) -> str:
    """Return the identifier of the example sentences of a head."""
    return f"head-{number}-{place[0]}-{place[1]}"


def cell_of(measure: HeadMeasure, place: Place) -> tuple[str, float]:
    """Return the text and the shade of a head's cell."""
    row = measure.rows.get(place)
    return ("", 0.0) if row is None else (measure.text(row), round(min(max(measure.shade(row), 0.0), 1.0), 3))


def _cell(measure: HeadMeasure, place: Place, number: int, links: bool) -> Html:
    text, shade = cell_of(measure, place)
    inside = element("a", text, href=f"#{head_id(number, place)}") if links else element("span", text)
    return element("td", inside, style=f"--shade:{shade:g}", class_="on-strong" if shade > STRONG else None)
