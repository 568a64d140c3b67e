"""Columns, tables and sentences of `attention` on position heads, for files and the terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from probing.results import in_brackets, interval
from probing.tables.heads import name_of

Row = Mapping[str, Any]
Tables = Mapping[str, Sequence[Row]]


def _with_ends(*names: str) -> tuple[str, ...]:
    return tuple(f"{name}{end}" for name in names for end in ("", "_low", "_high"))


def _with_nulls(name: str, kinds: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{name}_{kind}{p}" for kind in kinds for p in ("", "_p"))


_HEAD = ("layer", "head", "offset")
# The ranking by what the head itself reads.
USE = "use"
# Sentences are about the largest number of held neurons that was measured and is not above this one.
_TOLD = 10


def position_heads(by_name: Tables) -> list[Row]:
    """Return the rows of position heads, the clearest first."""
    rows = [row for row in by_name.get("position_heads", ()) if row.get("position_head") == "yes"]
    return sorted(rows, key=lambda row: -row["word_mass"])


def examined_heads(by_name: Tables) -> list[Row]:
    """Return the rows of the heads whose neurons are reported, the clearest first."""
    names = {name_of(row) for row in by_name.get("position_removal", ())}
    rows = [row for row in by_name.get("position_heads", ()) if name_of(row) in names]
    return sorted(rows, key=lambda row: -row.get("word_mass", 0.0))


def tables(by_name: Tables) -> list[Any]:
    """Return the non-empty tables of the terminal as rich tables."""
    optional_tables = (_heads_table(by_name), _removal_table(by_name))
    return [table for table in optional_tables if table is not None]


def conclusions(by_name: Tables) -> list[str]:
    """Return the conclusions from the tables, a sentence for each question."""
    return [
        *_which_heads(by_name),
        *_permuted_positions(by_name),
        *_contrast(by_name),
        *_ranking(by_name),
        *_removal(by_name),
    ]


def _table(title: str, *headings: str) -> Any:
    from probing.runtime.terminal import plain_table

    table = plain_table(title)
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def _heads_table(by_name: Tables) -> Any:
    heads = {name_of(row): row for row in (*position_heads(by_name), *examined_heads(by_name))}
    rows = [row for row in heads.values() if "mass" in row]
    if not rows:
        return None
    columns = {
        "mass": "all keys", "word_mass": "words", "hit": "most", "told": "told", "told_true": "true",
        "contrast": "contrast", "position_part": "positions", "spearman": "Spearman", "partial": "partial",
    }  # fmt: skip
    present = {name: heading for name, heading in columns.items() if any(name in row for row in rows)}
    title = "Heads that attend to a fixed offset most (position heads are marked *)"
    table = _table(title, "head", "offset", *present.values())
    for row in sorted(rows, key=lambda row: -row["word_mass"]):
        star = " *" if row["position_head"] == "yes" else ""
        cells = ("" if math.isnan(row.get(name, math.nan)) else f"{row[name]:.2f}" for name in present)
        table.add_row(f"{name_of(row)}{star}", f"{row['offset']:+d}", *cells)
    return table


def _removal_table(by_name: Tables) -> Any:
    rows = _about(by_name)
    if not rows:
        return None
    headings = ("held", "random", "matched", "p")
    title = f"The first {rows[0]['k']} neurons of a ranking held at their mean in one head's queries and keys"
    table = _table(title, "head", "ranking", "contrast", *headings, "words", *headings)
    for row in rows:
        cells = [name_of(row), _NAMES.get(row["ranking"], row["ranking"])]
        for name in ("contrast", "word_mass"):
            columns = (name, f"{name}_held", f"{name}_random", f"{name}_matched", f"{name}_matched_p")
            cells += [f"{row[column]:.2f}" for column in columns]
        table.add_row(*cells)
    return table


_NAMES = {
    "contribution": "contribution", "contribution_centred": "centred", "eta_squared": "eta", USE: "use",
}  # fmt: skip


def _about(by_name: Tables) -> list[Row]:
    rows = by_name.get("position_removal", ())
    sizes = sorted({row["k"] for row in rows})
    if not sizes:
        return []
    size = max((k for k in sizes if k <= _TOLD), default=sizes[0])
    return [row for row in rows if row["k"] == size]


def _which_heads(by_name: Tables) -> list[str]:
    rows = [row for row in by_name.get("position_heads", ()) if "mass" in row]
    if not rows:
        return []
    heads = position_heads(by_name)
    if not heads:
        best = max(rows, key=lambda row: row["word_mass"])
        return [
            f"None of {len(rows)} heads is a position head; {name_of(best)} attends most to a fixed offset, "
            f"{best['offset']:+d}: {_value(best, 'mass')} of all keys, {_value(best, 'word_mass')} of word keys."
        ]
    several = "; ".join(
        f"{name_of(row)} at offset {row['offset']:+d} with {_value(row, 'mass')} of its attention, and "
        f"{_value(row, 'word_mass')} of that to words"
        for row in heads[:5]
    )
    return [f"Position heads are {len(heads)} of {len(rows)} heads: {several}."]


def _permuted_positions(by_name: Tables) -> list[str]:
    rows = [row for row in position_heads(by_name) if "told" in row]
    if not rows:
        return []
    several = "; ".join(
        f"{name_of(row)} gives {row['told']:.3f} to the told offset and {row['told_true']:.3f} to the true one"
        for row in rows[:5]
    )
    n = sum(row["told"] > row["told_true"] for row in rows)
    return [f"Told permuted positions, {n} of {len(rows)} position heads follow what they are told: {several}."]


def _contrast(by_name: Tables) -> list[str]:
    rows = [row for row in examined_heads(by_name) if "contrast" in row][:5]
    if not rows:
        return []
    several = "; ".join(
        f"{name_of(row)} {_value(row, 'contrast', '.2f')}, of which {_value(row, 'position_part', '.2f')} between "
        "positions alone"
        + (f" and {_value(row, 'bias_part', '.2f')} by the bias of relative positions" if row.get("bias_part") else "")
        for row in rows
    )
    return [f"Contrast of the word at the offset, in logits: {several}."]


def _ranking(by_name: Tables) -> list[str]:
    rows = [row for row in examined_heads(by_name) if not math.isnan(row.get("partial", math.nan))][:5]
    if not rows:
        return []
    several = "; ".join(
        f"{name_of(row)} Spearman {row['spearman']:.2f} (other heads {row['spearman_heads']:.2f}, random bases "
        f"{row['spearman_bases']:.2f}), partial {row['partial']:.2f} (other heads {row['partial_heads']:.2f}, p "
        f"{row['partial_heads_p']:.2g}; random bases {row['partial_bases']:.2f}, p {row['partial_bases_p']:.2g})"
        for row in rows
        if {"spearman_heads", "partial_heads", "spearman_bases", "partial_bases"} <= row.keys()
    )
    return [f"Rank correlation of what a head uses with the probe's contributions: {several}."] if several else []


def _removal(by_name: Tables) -> list[str]:
    rows = _about(by_name)
    lines = []
    for ranking in ("contribution", USE):
        part = [row for row in rows if row["ranking"] == ranking]
        if not part:
            continue
        n = sum(row["contrast_matched_p"] < 0.05 for row in part)
        several = "; ".join(
            f"{name_of(row)} from {row['contrast']:.2f} to {row['contrast_held']:.2f} (matched neurons: "
            f"{row['contrast_matched']:.2f}, p {row['contrast_matched_p']:.2g})"
            for row in part[:5]
        )
        first = "that the probe ranks first" if ranking == "contribution" else "that the head uses most"
        lines.append(
            f"The {part[0]['k']} neurons {first}, held at their mean in the head's queries and keys alone, lower the "
            f"contrast more than neurons of about the same sd (p below .05) in {n} of {len(part)} heads: {several}."
        )
    return lines


def _value(row: Row, name: str, form: str = ".3f") -> str:
    return f"{row[name]:{form}}{in_brackets(interval(row, name, ' to ', form))}"
