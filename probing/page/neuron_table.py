"""The ranked table of a run: its columns, its first rows as HTML, and all rows as numbers for the script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from probing.page.packing import pack_floats, pack_integers
from probing.page.sources import Subject
from probing.results.markup import Html, element
from probing.results.schema import Row
from probing.tables.columns import BELOW_RESOLUTION, FAR, NEGLIGIBLE
from probing.tables.columns import FALSE_DISCOVERIES as RATE

# Number of rows that the page has without its script.
FIRST = 10
# Columns of ablation effects, of classes and of numbers.
WITHOUT = ("cross_entropy_without", "r2_without")
# Text of a cell where an ablation effect is neither different from 0 nor negligible.
UNRESOLVED = "unresolved"


@dataclass(frozen=True)
class Column:
    """A column of the table.

    Args:
        key: Name of the column in the run's own table.
        label: Heading of the column.
        help: Meaning of the column, in plain sentences for the list of terms.
        digits: Number of digits after the decimal point.
        percent: Whether it is a share, shown in per cent.
        signed: Whether positive values are shown with a plus.
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
        if self.key in WITHOUT and BELOW_RESOLUTION in row["removed"]:
            return UNRESOLVED
        if self.key in WITHOUT and NEGLIGIBLE in row["removed"]:
            return NEGLIGIBLE
        star = "*" if self.key == "contribution_centred" and is_far(row) else ""
        return star + format(value, f"{'+' * self.signed}.{self.digits}{'%' if self.percent else 'f'}")


def is_far(row: Row) -> bool:
    """Return whether a neuron's mean is so far from 0 that its centred contribution is unreliable."""
    return bool(row["flag"] != "dead" and abs(row["mean"]) > FAR * row["sd"])


COLUMNS = (
    Column("layer", "layer", "0 is the embedding output, and layer k the output of block k; units of an MLP and "
           "outputs of heads of layer k are inside block k."),
    Column("rank", "rank", "Rank of the neuron in its layer, by contribution; 1 contributes most."),
    Column("rank_low", "range", "Best and worst rank over this probe and those trained on bootstrap samples of "
           "the training sentences. It shows how stable the rank is and is not a confidence interval."),
    Column("neuron", "neuron", "What a neuron is stands above the table; press its number to see its contribution to "
           "each class."),
    Column("head", "head", "Attention head that the neuron belongs to, counted from 1."),
    Column("contribution", "contribution", "Mean over the test tokens of |weight × activation| for the true class, in "
           "logit units, weights centred over classes; of a probe of numbers, for its prediction, in their unit. A "
           "high contribution does not show that the model uses the neuron.", 4),
    Column("ratio", "× mean", "Contribution in multiples of the mean of the layer's neurons.", 1),
    Column("share", "share", "Contribution as a share of the sum over the layer's neurons.", 1, percent=True),
    Column("contribution_centred", "centred", "Contribution after subtracting the neuron's mean over training tokens: "
           "what is left once the neuron cannot stand in for the intercept that the probe lacks. * marks unreliable "
           "values.", 4),
    Column("contribution_companion", "with intercept", "Centred contribution to a probe that has an intercept, for "
           "neurons whose centred contribution is marked unreliable by *.", 4),
    Column("control_task_share", "in control tasks", "Share of the neuron in the contributions to probes of random "
           "labels of word types, the mean over several draws. A neuron with as large a share there tells words apart "
           "rather than classes.", 1, percent=True),
    Column("correlation", "correlation", "Correlation of the neuron with the number over training tokens.", 3,
           signed=True),
    Column("eta_squared", "eta²", "Eta squared: the share of the neuron's variance over training tokens that is "
           "between classes rather than within them, minus the share that is expected by chance. It is 0 for a neuron "
           "that tells nothing about the class by itself. Of numbers, the squared correlation, minus that by chance.",
           3),
    Column("eta_squared_z", "z", "By how many standard deviations the labels explain more of the neuron than by "
           "chance."),
    Column("eta_squared_q", "q", "Lowest false discovery rate over the neurons of the layer at which this one counts "
           f"as having a signal. Above {RATE:g} the flag says no-signal.", 3),
    Column("given_eta_squared", "eta² given", "The same among training tokens with the same value of what `--given` "
           "names: the share of the variance that is left within these.", 3),
    Column("given_q", "q given", "Lowest false discovery rate at which the neuron counts as having a signal with that "
           f"value held fixed. Above {RATE:g} the flag says confound, if it has a signal otherwise.", 3),
    Column("unique", "unique", "Estimate, without retraining, of what the probe loses without the neuron, from its "
           "weights and from how well the other neurons can stand in for it. It is good for the order of neurons, and "
           "several times too large as a number of nats.", 4),
    Column("cross_entropy_without", "without it", "Ablation effect: by how many nats a probe that is retrained without "
           "the neuron predicts the test tokens worse. Little is lost where other neurons carry the same "
           "information.", 4, signed=True),
    Column("r2_without", "R² lost", "Ablation effect: by how much the R² of the test tokens falls for a probe that "
           "is solved again without the neuron. Little is lost where other neurons carry the same information.", 4,
           signed=True),
)  # fmt: skip
# Further columns that the script needs to show the picked neuron.
BESIDE = ("rank_high", *(f"{name}_{end}" for name in WITHOUT for end in ("low", "high")), "mean", "sd")
TEXTS = ("flag", "removed")
_INTEGERS = ("neuron", "head", "rank_low", "rank_high")
_KNOWN_BY_INDEX = ("layer", "rank")


def shown_columns(subject: Subject) -> list[Column]:
    """Return the columns that a run has, except empty ones."""
    rows = subject.run.neurons
    return [column for column in COLUMNS if any(row.get(column.key, "") != "" for row in rows)]


def first_rows(subject: Subject, caption: str) -> Html:
    """Return the last layer's first neurons as a table, which the script extends."""
    columns = shown_columns(subject)
    head = [element("th", column.label, scope="col", title=column.help, data_key=column.key) for column in columns]
    head.append(element("th", "flag", scope="col", class_="words", title="a warning about the rank", data_key="flag"))
    body = [_row(row, columns) for row in subject.ranked[subject.layers[-1]][:FIRST]]
    return element(
        "table", element("caption", caption), element("thead", element("tr", *head)), element("tbody", *body),
        class_="neurons",
    )  # fmt: skip


def _row(row: Row, columns: Sequence[Column]) -> Html:
    cells = [element("td", column.show(row)) for column in columns]
    return element("tr", *cells, element("td", row["flag"], class_="words"))


def packed_rows(subject: Subject) -> dict[str, Any]:
    """Return the whole table for the script: rows in ranked order, layer by layer; columns as packed numbers."""
    rows = [row for table in subject.ranked.values() for row in table]
    columns = shown_columns(subject)
    numbers = [key for key in (*(column.key for column in columns), *BESIDE) if key in rows[0]]
    packed: dict[str, Any] = {}
    for key in numbers:
        values = [row[key] if row[key] != "" else float("nan") for row in rows]
        if key in _INTEGERS:
            packed[key] = pack_integers(values)
        elif key not in _KNOWN_BY_INDEX:
            packed[key] = pack_floats(values)
    for key in TEXTS:
        if key in rows[0]:
            names = sorted({row[key] for row in rows})
            packed[key] = {"names": names, "codes": pack_integers([names.index(row[key]) for row in rows])}
    return {"columns": [asdict(column) for column in columns], "rows": packed}
