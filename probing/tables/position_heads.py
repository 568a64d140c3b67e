"""Tables and sentences of `attention` on position heads."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from probing.results import Row, Table, cells_table, count, estimated, two_decimals
from probing.tables.heads import Tables, name_of, rows_of

# The ranking by the use of neurons by the head.
USE = "use"
# Sentences are about the largest measured number of ablated neurons up to this number.
_MOST = 10

SENTENCES = {
    "no_heads": "None of {heads} is a position head; head {head} attends most to a fixed offset, {offset:+d}: {mass} "
    "of all keys, {word_mass} of word keys.",
    "heads": "Position heads ({n} of {heads}): {several}.",
    "head": "{head} at offset {offset:+d} with {mass} of its attention, and {word_mass} of its attention to words",
    "permuted": "With words permuted, {n} of {heads} attend more to the offset in the permuted order than in the "
    "original order: {several}.",
    "head_permuted": "{head} {told:.3f} compared with {told_true:.3f}",
    "contrast": "Contrast of the word at the offset, in logits: {several}.",
    "head_contrast": "{head} {contrast}, of which {position_part} from positions alone{bias}",
    "bias": " and {bias_part} from the bias of relative positions",
    "ranking": "Rank correlation of the use of neurons by a head with the contributions in the run: {several}.",
    "head_ranking": "{head} Spearman {spearman} (other heads {spearman_heads}, random bases {spearman_bases}), partial "
    "{partial} (other heads {partial_heads}, p {partial_heads_p:.2g}; random bases {partial_bases}, p "
    "{partial_bases_p:.2g})",
    "ablated": "The {k} neurons {first}, replaced by their mean in the queries and keys of the head alone, lower the "
    "contrast more than matched neurons of about the same standard deviation (p below .05) in {n} of {heads}: "
    "{several}.",
    "head_ablated": "{head} from {contrast:.2f} to {contrast_held:.2f} (matched neurons: {contrast_matched:.2f}, p "
    "{contrast_matched_p:.2g})",
}

# Rankings whose first neurons a sentence is about, and short names of rankings in the table.
_FIRST = {"contribution": "ranked first by the probe", USE: "most used by the head"}
_NAMES = {"contribution_centred": "centred", "eta_squared": "eta"}
_COLUMNS = {
    "mass": "all keys", "word_mass": "words", "hit": "most", "told": "permuted", "told_true": "original",
    "contrast": "contrast", "position_part": "positions", "spearman": "Spearman", "partial": "partial",
}  # fmt: skip


def position_heads(by_name: Tables) -> list[Row]:
    """Return the rows of position heads, the clearest first."""
    return _clearest_first(rows_of(by_name, "position_heads").where(position_head="yes"))


def examined_heads(by_name: Tables) -> list[Row]:
    """Return the rows of the heads whose neurons are reported, the clearest first."""
    names = {name_of(row) for row in rows_of(by_name, "position_removal")}
    return _clearest_first(rows_of(by_name, "position_heads").where(lambda row: name_of(row) in names))


def _clearest_first(rows: Table) -> list[Row]:
    return sorted(rows, key=lambda row: -row.get("word_mass", 0.0))


def tables(by_name: Tables) -> list[Any]:
    """Return the non-empty tables of the terminal as rich tables."""
    return [table for table in (_heads_table(by_name), _ablation_table(_ablated(by_name))) if table is not None]


def conclusions(by_name: Tables) -> list[str]:
    """Return the conclusions from the tables, a sentence for each question."""
    head_rows = rows_of(by_name, "position_heads").where(lambda row: "mass" in row)
    heads, examined = position_heads(by_name), examined_heads(by_name)
    return [
        *_which_heads(head_rows, heads), *_permuted(heads), *_contrast(examined), *_ranking(examined),
        *_ablation(_ablated(by_name)),
    ]  # fmt: skip


def _heads_table(by_name: Tables) -> Any:
    heads = {name_of(row): row for row in (*position_heads(by_name), *examined_heads(by_name))}
    rows = [row for row in heads.values() if "mass" in row]
    if not rows:
        return None
    columns = [name for name in _COLUMNS if any(name in row for row in rows)]
    body = []
    for row in sorted(rows, key=lambda row: -row["word_mass"]):
        star = " *" if row["position_head"] == "yes" else ""
        cells = ("" if math.isnan(row.get(name, math.nan)) else f"{row[name]:.2f}" for name in columns)
        body.append([f"{name_of(row)}{star}", f"{row['offset']:+d}", *cells])
    title = "Heads that attend to a fixed offset most (position heads are marked *)"
    return cells_table(title, ["head", "offset", *(_COLUMNS[name] for name in columns)], body)


def _ablation_table(rows: Table) -> Any:
    if not rows:
        return None
    body = []
    for row in rows:
        columns = [f"{name}{of}" for name in ("contrast", "word_mass")
                   for of in ("", "_held", "_random", "_matched", "_matched_p")]  # fmt: skip
        ranking = _NAMES.get(row["ranking"], row["ranking"])
        body.append([name_of(row), ranking, *(f"{row[column]:.2f}" for column in columns)])
    headings = ("ablated", "random", "matched", "p")
    title = f"First {rows[0]['k']} neurons of a ranking replaced by their mean in the queries and keys of one head"
    return cells_table(title, ["head", "ranking", "contrast", *headings, "words", *headings], body)


def _ablated(by_name: Tables) -> Table:
    rows = rows_of(by_name, "position_removal")
    sizes = sorted(rows.values("k"))
    return rows.where(k=max((k for k in sizes if k <= _MOST), default=sizes[0])) if sizes else rows


def _heads(rows: Sequence[Row]) -> str:
    return count(len(rows), "head")


def _which_heads(head_rows: Table, heads: Sequence[Row]) -> Iterator[str]:
    def phrase(name: str, row: Row, **more: Any) -> str:
        shares = {share: estimated(row, share) for share in ("mass", "word_mass")}
        return SENTENCES[name].format(head=name_of(row), offset=row["offset"], **shares, **more)

    if heads:
        several = "; ".join(phrase("head", row) for row in heads[:5])
        yield SENTENCES["heads"].format(n=len(heads), heads=_heads(head_rows), several=several)
    elif head_rows:
        yield phrase("no_heads", max(head_rows, key=lambda row: row["word_mass"]), heads=_heads(head_rows))


def _permuted(heads: Sequence[Row]) -> Iterator[str]:
    if rows := [row for row in heads if "told" in row]:
        yield SENTENCES["permuted"].format(
            n=sum(row["told"] > row["told_true"] for row in rows), heads=count(len(rows), "position head"),
            several=_several("head_permuted", rows),
        )  # fmt: skip


def _several(name: str, rows: Sequence[Row]) -> str:
    return "; ".join(SENTENCES[name].format_map({**row, "head": name_of(row)}) for row in rows[:5])


def _contrast(examined: Sequence[Row]) -> Iterator[str]:
    parts = []
    for row in [row for row in examined if "contrast" in row][:5]:
        logits = {
            name: estimated(row, name, ".2f") for name in ("contrast", "position_part", "bias_part") if name in row
        }
        bias = SENTENCES["bias"].format(**logits) if row.get("bias_part") else ""
        parts.append(SENTENCES["head_contrast"].format(head=name_of(row), bias=bias, **logits))
    if parts:
        yield SENTENCES["contrast"].format(several="; ".join(parts))


def _ranking(examined: Sequence[Row]) -> Iterator[str]:
    correlations = [f"{of}{end}" for of in ("spearman", "partial") for end in ("", "_heads", "_bases")]
    rows = [row for row in examined if not math.isnan(row.get("partial", math.nan))][:5]
    shown = [
        {**row, **{name: two_decimals(row[name]) for name in correlations}}
        for row in rows
        if row.keys() >= {*correlations}
    ]
    if shown:
        yield SENTENCES["ranking"].format(several=_several("head_ranking", shown))


def _ablation(ablated: Table) -> Iterator[str]:
    for ranking, first in _FIRST.items():
        if rows := ablated.where(ranking=ranking):
            yield SENTENCES["ablated"].format(
                k=rows[0]["k"], first=first, n=sum(row["contrast_matched_p"] < 0.05 for row in rows),
                heads=_heads(rows), several=_several("head_ablated", rows),
            )  # fmt: skip
