"""The table and the sentences of `disable --prune weights`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from probing.readouts.names import measure_of
from probing.studies.disable.schema import MAGNITUDE, MEAN, RANDOM
from probing.studies.disable.tables import named, points, readouts_of

Row = Mapping[str, Any]
Tables = Mapping[str, Sequence[Row]]


def by_order(made: Tables, readout: str) -> dict[str, list[Row]]:
    """Return the rows of a readout by their order, each by share: those of random draws one draw after the other."""
    found: dict[str, list[Row]] = {}
    for row in made.get("weight_pruning", ()):
        if row["readout"] == readout:
            found.setdefault(row["order"], []).append(row)
    return found


def weight_tables(made: Tables) -> list[Any]:
    """Return a table for each readout as a rich one: what is left at each share, by magnitude and at random."""
    return [_table(rows) for readout in readouts_of(made) if (rows := by_order(made, readout))]


def _table(rows: Mapping[str, Sequence[Row]]) -> Any:
    from probing.runtime.terminal import plain_table

    first, random = rows[MAGNITUDE][0], {row["share"]: row for row in rows[MEAN]}
    n_draws = len({row["draw"] for row in rows[RANDOM]})
    title = (
        f"{named(first['readout'], first['layer'])} with the smallest weights, or random ones (mean of {n_draws} "
        f"draws), pruned, and its change in {measure_of(first['readout']).unit}"
    )
    table = plain_table(title[0].upper() + title[1:])
    for heading in ("pruned", "smallest", "change", "random", "change"):
        table.add_column(heading, justify="right")
    for row in rows[MAGNITUDE]:
        both = [row, random.get(row["share"], first)]
        told = [cell for one in both for cell in (f"{one['value']:.3f}", points(one) if one["share"] else "")]
        table.add_row(f"{row['share']:.0%}", *told)
    return table


def weight_sentences(made: Tables, readout: str) -> list[str]:
    """Return from which share on pruned weights cost something, by magnitude and at random."""
    rows = by_order(made, readout)
    if not rows:
        return []
    first, sign = rows[MAGNITUDE][0], measure_of(readout).sign
    told = [_from(rows[order], sign) for order in (MAGNITUDE, MEAN)]
    what = "the " + named(readout, first["layer"])
    return [
        f"With the smallest weights of each matrix pruned, {what} is worse than the whole model's {told[0]} "
        f"({first['n_weights']:,} weights); with random ones, {told[1]} (corrected p below .05)."
    ]


def _from(rows: Sequence[Row], sign: int) -> str:
    """Return the lowest share from which on every share costs something, as a phrase."""
    worst = None
    for row in reversed(rows):
        if not (sign * row["effect"] < 0 and row["p_value"] < 0.05):
            break
        worst = row
    return "at no share" if worst is None else f"from {worst['share']:.0%} on"
