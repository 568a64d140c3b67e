"""What is lost with changed outliers, beside random neurons: columns, tables and figures of several commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from probing.results import Column, Row, Table, cells_table, estimate, interval, number, rounded, text, whole
from probing.tables.figures import BLUE, GREY, ORANGE, error_bars
from probing.tables.schema import value

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The rank of outliers among drawn sets.
RANKED = (
    number("percentile", "Percentage of the draws of random neurons that do less harm.", form=".0f"),
    number("p_value", "Share of these draws, and of what is tested, that do at least as much harm."),
)

N_TOKENS = whole("n_tokens", "Number of tokens that were measured.")

SPECIAL_TOKENS = text("special_tokens", "Whether special tokens are included: exclude or include.", may_be_empty=True)


def changed(where: str, kinds: str) -> tuple[Column, ...]:
    """Return the columns of the neurons that are changed, and of the measure; `where` and `kinds` name the values."""
    return (
        text("where", f"Where neurons are changed: {where}.", may_be_empty=True),
        text("kind", f"{kinds}."),
        whole("draw", "Number of the random draw."),
        text("neurons", "The neurons."),
        value("The measure"),
        estimate("effect", "Its difference from the intact model.", form="+.3f"),
    )


MEASURES = {
    "mlm_loss": "Loss on masked words in nats",
    "position_accuracy": "Accuracy of position by a probe of the intact model",
    "position_accuracy_retrained": "Accuracy of position by a retrained probe",
}


def effects_table(rows: Table, of: str, heading: str, places: Mapping[str, str], more: Sequence[str] = ()) -> Any:
    """Return the effects of outliers and of random neurons on a measure at each place, and of `more` neurons."""

    def cells(where: str, words: str) -> list[str]:
        of_where = rows.where(where=where)
        (outliers,), effects = of_where.where(kind="outliers"), of_where.where(kind="random").column("effect")
        draws = [f"{min(effects):+.3f} to {max(effects):+.3f}", f"{outliers['percentile']:.0f}%",
                 f"{outliers['p_value']:.2g}"] if effects else ["", "", ""]  # fmt: skip
        effect_cells = effect_text(outliers), interval(outliers, "effect", " to ", "+.3f")
        return [words, *effect_cells, *draws, *map(effect_text, of_where.where(kind="largest_gain"))]

    headings = (heading, "effect", "95% range", "random others", "worse than", "p", *more)
    return cells_table(f"{title_of(rows)}: effect of {of}", headings, (cells(*place) for place in places.items()))


def effect_text(row: Row) -> str:
    """Return an effect with its sign."""
    return rounded(row["effect"], "+.3f")


def title_of(rows: Table) -> str:
    """Return the measure of the rows, with that of the intact model."""
    return f"{MEASURES[rows[0]['measure']]} (intact: {rows[0]['value']:.3f})"


def _in_lines(title: str) -> str:
    return title.replace(" by ", "\nby ").replace(" (intact", "\n(intact")


def draw_effects(axes: Axes, rows: Table, places: Mapping[str, str]) -> None:
    """Draw the effects on a measure at each place, of outliers and of the neurons that they are compared with."""
    looks = (
        ("random", "random others", "x", GREY, 0.0), ("largest_gain", "largest other gains", "D", ORANGE, 0.14),
        ("outliers", "outliers", "o", BLUE, -0.14),
    )  # fmt: skip
    for x, where in enumerate(places):
        for kind, label, mark, colour, shift in looks:
            kind_rows = rows.where(where=where, kind=kind)
            effects = kind_rows.column("effect")
            reach = None if kind == "random" else error_bars(kind_rows, effects, "effect")
            axes.errorbar(
                [x + shift] * len(effects), effects, yerr=reach, ls="", marker=mark, ms=5, c=colour, capsize=3,
                label=label if x == 0 else None,
            )  # fmt: skip
    axes.axhline(0, color="black", lw=0.6)
    axes.set_xticks(range(len(places)), list(places.values()))
    axes.set_xlim(-0.5, len(places) - 0.5)
    axes.set_title(_in_lines(title_of(rows.where(kind="intact"))), fontsize=9)


def changed_outliers(rows: Table) -> str:
    """Return the neurons that are taken out, with their noun."""
    neurons = str(rows.where(kind="outliers")[0]["neurons"]).split()
    return f"neuron{'s' * (len(neurons) > 1)} {', '.join(neurons)}"
