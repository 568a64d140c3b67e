"""The tables and the sentences of `disable --quantise`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from probing.readouts.names import measure_of
from probing.results.schema import count
from probing.studies.disable.schema import ACTIVATIONS, NOTHING, OUTLIERS, RANDOM, RANDOM_MEAN, TENSOR
from probing.studies.disable.tables import named, points, readouts_of

Row = Mapping[str, Any]
Tables = Mapping[str, Sequence[Row]]

_KEPT = {NOTHING: "", OUTLIERS: "outliers", RANDOM_MEAN: "random"}


def quantised_tables(made: Tables) -> list[Any]:
    """Return a table for each readout as a rich one."""
    by_readout = {readout: _of(made, readout) for readout in readouts_of(made)}
    return [_table(rows) for rows in by_readout.values() if rows]


def _of(made: Tables, readout: str) -> list[Row]:
    """Return the rows of a readout but for single draws, by bits."""
    rows = [row for row in made.get("quantised", ()) if row["readout"] == readout and row["kept"] != RANDOM]
    bits = list(dict.fromkeys(row["bits"] for row in rows))
    return sorted(rows, key=lambda row: bits.index(row["bits"]))


def _table(rows: Sequence[Row]) -> Any:
    from probing.runtime.terminal import plain_table

    first = rows[0]
    title = f"{named(first['readout'], first['layer'])} with numbers rounded, and its change in "
    table = plain_table(title[0].upper() + title[1:] + measure_of(first["readout"]).unit)
    for heading in ("bits", "rounded", "scale", "kept in full", "value", "change"):
        table.add_column(heading, justify="right")
    for row in rows:
        cells = (row["rounded"], row["scale"], _KEPT[row["kept"]], f"{row['value']:.3f}", points(row))
        table.add_row(str(row["bits"]), *cells)
    return table


def quantised_sentences(made: Tables, readout: str) -> list[str]:
    """Return for each number of bits what rounded hidden states cost, and whether the outliers are why."""
    found = {
        (row["bits"], row["rounded"], row["scale"], row["kept"]): row for row in _of(made, readout)
    }  # fmt: skip
    said = []
    for bits in dict.fromkeys(key[0] for key in found):
        own = found[bits, ACTIVATIONS, TENSOR, NOTHING]
        verb = "changes" if own["p_value"] < 0.05 else "is not shown to change"
        start = f"With hidden states rounded to {bits} bits by one scale a layer, {named(readout, own['layer'])} {verb}"
        start = f"{start}: {points(own)}"
        kept = found.get((bits, ACTIVATIONS, TENSOR, OUTLIERS))
        if kept is None:
            said.append(f"{start}; no layer has an outlier that could be kept in full.")
            continue
        random = found[bits, ACTIVATIONS, TENSOR, RANDOM_MEAN]
        said.append(
            f"{start}; with the {count(kept['n_kept'], 'outlier')} of all blocks kept in full: {points(kept)}; with as "
            f"many random neurons: {points(random)} (p by rank {kept['rank_p']:.2g})."
        )
    return said
