"""Classes and selectors of rows about attention heads, and sentences of `geometry` on the first token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from probing.results import ALL_LAYERS, Row, Table, by_layer_table

Tables = Mapping[str, Sequence[Row]]

# Short headings of the classes.
CLASSES = {
    "vertical": "vertical",
    "diagonal": "diagonal",
    "vertical and diagonal": "both",
    "block": "block",
    "heterogeneous": "heterogeneous",
}
# Letter of each class in maps of heads, and its shade: 0 is white, 1 the darkest.
LETTERS = {
    "vertical": ("V", 0.9), "diagonal": ("D", 0.65), "vertical and diagonal": ("B", 0.45), "block": ("P", 0.25),
    "heterogeneous": ("h", 0.05),
}  # fmt: skip
SPECIAL, FIRST = "special tokens", "first token"


def rows_of(by_name: Tables, name: str) -> Table:
    """Return the rows of a table; none if it was not measured."""
    return Table(by_name.get(name, ()))


def of_heads(by_name: Tables, factor: float = 1.0) -> Table:
    """Return the row of each head in `attention_classes.csv`."""
    return rows_of(by_name, "attention_classes").where(lambda row: "head" in row, factor=factor)


def of_all_maps(by_name: Tables, factor: float = 1.0) -> dict[str, Row]:
    """Return the row of each class over all maps."""
    rows = rows_of(by_name, "attention_classes").where(layer=ALL_LAYERS, factor=factor)
    return {row["class"]: row for row in rows}


def of_measure(rows: Sequence[Row], measure: str, to: str = "") -> Table:
    """Return the rows of a measure and, where it has one, a type of tokens."""
    return Table(rows).where(lambda row: row.get("to", "") == to, measure=measure)


def name_of(row: Row) -> str:
    """Return the name of a head, such as 3-9: the ninth head of layer 3."""
    return f"{row['layer']}-{row['head']}"


def beats_offset(row: Row) -> bool:
    """Return whether a head finds a relation more often than the best fixed offset (corrected p below .05)."""
    return bool(row["difference"] > 0 and row["p_value"] < 0.05)


def finds_relation(row: Row) -> bool:
    """Return whether a head beats the best fixed offset by more than with permuted syntactic heads."""
    return beats_offset(row) and bool(row["p_permuted"] < 0.05)


# --------------------------------------------------------------------------------------------------------------------
# The first token of each sentence: a table and sentences of `geometry`.
# --------------------------------------------------------------------------------------------------------------------

SENTENCES = {
    "no_first_outliers": "The first token adds no outlier and hides none.",
    "with_first": "Neurons with a far mean with the first token and not without it: {neurons}.",
    "without_first": "Neurons with a far mean without the first token, which it hides: {neurons}.",
    "first_alone": "Neurons with a far mean on the first token alone, and not on the others: {neurons}.",
}
# Headings, by the value of the column `first_token`.
TOKENS = {"exclude": "without the first token", "include": "with it", "only": "first tokens alone"}
_FAR, _NORM, _COSINE = "mean_profile", "rms_norm", "mean_cosine"


def first_token_tables(all_rows: Sequence[Row]) -> list[Any]:
    """Return a rich table of neurons with an outlying mean without the first token, with it, and on it alone."""
    if not all_rows:
        return []
    title = "The first token of each sentence: neurons with a far mean (sd), norms, and mean cosines"
    return [by_layer_table(title, Table(all_rows), {
        **{heading: partial(_shown, which, _FAR, "{neuron} ({value:+.1f})") for which, heading in TOKENS.items()},
        **{f"norm, {TOKENS[which].removesuffix(' alone')}": partial(_shown, which, _NORM, "{value:.1f}")
           for which in ("exclude", "only")},
        **{f"mean cosine, {TOKENS[which]}": partial(_shown, which, _COSINE, "{value:.3f}")
           for which in ("exclude", "include")},
    })]  # fmt: skip


def _shown(which: str, measure: str, form: str, rows: Table) -> str:
    return ", ".join(form.format(**row) for row in rows.where(first_token=which, measure=measure))


def first_token_conclusions(rows: Sequence[Row]) -> list[str]:
    """Return sentences on the outliers that the first token adds, hides, or has alone."""
    if not rows:
        return []
    without, with_it, alone = (_neurons(Table(rows), which) for which in TOKENS)
    of_sentences = {
        "with_first": _less(with_it, without),
        "without_first": _less(without, with_it),
        "first_alone": _less(alone, without),
    }
    lines = [SENTENCES[name].format(neurons=_list(by_layer)) for name, by_layer in of_sentences.items() if by_layer]
    return lines or [SENTENCES["no_first_outliers"]]


def _neurons(rows: Table, which: str) -> dict[int, set[int]]:
    far = rows.where(first_token=which, measure=_FAR)
    return {layer: set(far.where(layer=layer).column("neuron")) for layer in sorted(rows.values("layer"))}


def _less(some: Mapping[int, set[int]], others: Mapping[int, set[int]]) -> dict[int, list[int]]:
    return {layer: remaining for layer in some if (remaining := sorted(some[layer] - others[layer]))}


def _list(by_layer: Mapping[int, Sequence[int]]) -> str:
    return "; ".join(f"layer {layer}: {', '.join(map(str, neurons))}" for layer, neurons in by_layer.items())
