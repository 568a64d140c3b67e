"""The numbers of each head of a survey: by measure, as the cells of a map, and in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from probing.page.shown import Survey
from probing.results.cells import in_brackets, interval
from probing.tables.heads import CLASSES, FIRST, LETTERS, SPECIAL, finds_relation, of_heads, of_measure
from probing.tables.wording import two_decimals

Row = Mapping[str, Any]
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
