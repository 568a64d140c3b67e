"""The ranked table of a run: the columns that are shown, its first rows as HTML, all rows as numbers for the script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from probing.columns import BELOW_RESOLUTION, Row
from probing.companion import FAR
from probing.page.markup import Html, element
from probing.page.packing import pack_floats, pack_integers
from probing.page.sources import Subject
from probing.ranking import FALSE_DISCOVERIES as RATE

# Rows that are there without a script.
FIRST = 10


@dataclass(frozen=True)
class Column:
    """A column of the table.

    Args:
        key: Of the run's own table.
        label: Heading.
        help: What it says.
        digits: Behind the point.
        percent: Whether it is a share shown in per cent.
        signed: Whether a plus is shown.
    """

    key: str
    label: str
    help: str
    digits: int = 0
    percent: bool = False
    signed: bool = False

    def show(self, row: Row) -> str:
        """Return a row's value as text."""
        if self.key == "rank_low":
            return f"{row['rank_low']}–{row['rank_high']}"
        value = row.get(self.key)
        if value is None or value == "":
            return ""
        if self.key == "cross_entropy_without" and BELOW_RESOLUTION in row["removed"]:
            return "unresolved"
        star = "*" if self.key == "contribution_centred" and is_far(row) else ""
        return star + format(value, f"{'+' * self.signed}.{self.digits}{'%' if self.percent else 'f'}")


def is_far(row: Row) -> bool:
    """Return whether a neuron's mean is so far from 0 that its centred contribution is unreliable."""
    return bool(row["flag"] != "dead" and abs(row["mean"]) > FAR * row["sd"])


COLUMNS = (
    Column("layer", "layer", "0 is the embedding output"),
    Column("rank", "rank", "by contribution, within the layer"),
    Column("rank_low", "range", "best and worst rank over probes trained on redrawn sentences: its stability"),
    Column("neuron", "neuron", "coordinate of the hidden state; press to see what it contributes to each class"),
    Column("contribution", "contribution", "mean of |weight x activation| for the true class, in logit units", 4),
    Column("ratio", "× mean", "contribution in multiples of the layer's mean", 1),
    Column("share", "share", "of the sum over the layer's neurons", 1, percent=True),
    Column("contribution_centred", "centred", "contribution without the neuron's mean; * where that is unreliable", 4),
    Column("contribution_companion", "companion", "the same of a probe with an intercept, where * stands", 4),
    Column("eta_squared", "eta²", "share of the neuron's variance that goes with the class, less what chance gives", 3),
    Column("eta_squared_z", "z", "that difference in standard deviations of chance"),
    Column("eta_squared_q", "q", f"false discoveries among neurons that stand out as far; no-signal above {RATE:g}", 3),
    Column("unique", "unique", "estimate of what a probe loses without the neuron: a rank, not a size", 4),
    Column("cross_entropy_without", "without it", "nats lost by a probe retrained without the neuron", 4, signed=True),
)  # fmt: skip
# What else the script needs of a row, to show the neuron that was picked.
BESIDE = ("rank_high", "cross_entropy_without_low", "cross_entropy_without_high", "mean", "sd")
TEXTS = ("flag", "removed")
_INTEGERS = ("neuron", "rank_low", "rank_high")
_KNOWN_BY_PLACE = ("layer", "rank")


def shown_columns(subject: Subject) -> list[Column]:
    """Return the columns that a run has, but for those that are empty."""
    rows = subject.run.neurons
    return [column for column in COLUMNS if any(row.get(column.key, "") != "" for row in rows)]


def first_rows(subject: Subject, caption: str) -> Html:
    """Return the last layer's first neurons as a table, which the script extends."""
    columns = shown_columns(subject)
    head = [element("th", column.label, scope="col", title=column.help, data_key=column.key) for column in columns]
    head.append(
        element(
            "th", "flag", scope="col", class_="words", title="what to know before believing the rank", data_key="flag"
        )
    )
    body = [_row(row, columns) for row in subject.ranked[subject.layers[-1]][:FIRST]]
    return element(
        "table", element("caption", caption), element("thead", element("tr", *head)), element("tbody", *body),
        class_="neurons",
    )  # fmt: skip


def _row(row: Row, columns: Sequence[Column]) -> Html:
    cells = [element("td", column.show(row)) for column in columns]
    return element("tr", *cells, element("td", row["flag"], class_="words"))


def packed_rows(subject: Subject) -> dict[str, Any]:
    """Return the whole table for the script: rows layer by layer in ranked order, columns as packed numbers."""
    rows = [row for table in subject.ranked.values() for row in table]
    columns = shown_columns(subject)
    numbers = [key for key in (*(column.key for column in columns), *BESIDE) if key in rows[0]]
    packed: dict[str, Any] = {}
    for key in numbers:
        values = [row[key] if row[key] != "" else float("nan") for row in rows]
        if key in _INTEGERS:
            packed[key] = pack_integers(values)
        elif key not in _KNOWN_BY_PLACE:
            packed[key] = pack_floats(values)
    for key in TEXTS:
        if key in rows[0]:
            names = sorted({row[key] for row in rows})
            packed[key] = {"names": names, "codes": pack_integers([names.index(row[key]) for row in rows])}
    return {"columns": [asdict(column) for column in columns], "rows": packed}
