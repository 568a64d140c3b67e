"""What the terminal says of the first token of each sentence: the table of `geometry`, and sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from probing.tables.heads import FIRST, SPECIAL

Row = Mapping[str, Any]

# Headings, by the value of the column `first_token`.
TOKENS = {"exclude": "without the first token", "include": "with it", "only": "first tokens alone"}
_FAR, _NORM, _COSINE = "mean_profile", "rms_norm", "mean_cosine"
_NAMES = {_NORM: "norm", _COSINE: "mean cosine"}


def first_token_tables(rows: Sequence[Row]) -> list[Any]:
    """Return as a rich table which neurons have an outlying mean without the first token, with it, and on it alone."""
    from probing.runtime.terminal import plain_table

    if not rows:
        return []
    table = plain_table("The first token of each sentence: neurons with a far mean (sd), norms, and mean cosines")
    table.add_column("layer", justify="right")
    for heading in TOKENS.values():
        table.add_column(heading)
    shown = [(_NORM, "exclude"), (_NORM, "only"), (_COSINE, "exclude"), (_COSINE, "include")]
    for measure, which in shown:
        table.add_column(f"{_NAMES[measure]}, {TOKENS[which].removesuffix(' alone')}", justify="right")
    for layer in _layers(rows):
        here = [row for row in rows if row["layer"] == layer]
        values = {(row["measure"], row["first_token"]): row["value"] for row in here if row["measure"] in _NAMES}
        numbers = (f"{values[one]:.{3 if one[0] == _COSINE else 1}f}" if one in values else "" for one in shown)
        table.add_row(str(layer), *(_named(here, which) for which in TOKENS), *numbers)
    return [table]


def first_token_conclusions(rows: Sequence[Row]) -> list[str]:
    """Return sentences on the outliers that the first token adds, hides, or has alone, if it was measured."""
    if not rows:
        return []
    without, with_it, alone = (_neurons(rows, which) for which in TOKENS)
    sentences = {
        "Neurons with a far mean with the first token and not without it": _less(with_it, without),
        "Neurons with a far mean without the first token, which it hides": _less(without, with_it),
        "Neurons with a far mean on the first token alone, and not on the others": _less(alone, without),
    }
    if not any(sentences.values()):
        return ["The first token has no outlier of its own, and hides none."]
    return [f"{what}: {_list(by_layer)}." for what, by_layer in sentences.items() if by_layer]


def causal_conclusions(is_causal: bool, heads: Sequence[Row]) -> list[str]:
    """Return a sentence on the first token of a causal model, where it is counted among the special tokens.

    Args:
        is_causal: Whether no token attends to a later one.
        heads: Rows of `heads.csv`.
    """
    if (
        not is_causal
        or not any(row.get("to") == SPECIAL for row in heads)
        or any(row.get("to") == FIRST for row in heads)
    ):
        return []
    return [
        "The first token counts as a special one here. With a causal mask uniform attention favours it too: "
        "`--first_token exclude` measures it beside that, and leaves it out of all else."
    ]


def _neurons(rows: Sequence[Row], which: str) -> dict[int, set[int]]:
    """Return the neurons with a far mean in each layer, over some of the tokens."""
    return {layer: {row["neuron"] for row in _far(rows, which) if row["layer"] == layer} for layer in _layers(rows)}


def _less(some: Mapping[int, set[int]], others: Mapping[int, set[int]]) -> dict[int, list[int]]:
    return {layer: own for layer in some if (own := sorted(some[layer] - others[layer]))}


def _list(by_layer: Mapping[int, Sequence[int]]) -> str:
    return "; ".join(f"layer {layer}: {', '.join(map(str, neurons))}" for layer, neurons in by_layer.items())


def _layers(rows: Sequence[Row]) -> list[int]:
    return sorted({row["layer"] for row in rows})


def _far(rows: Sequence[Row], which: str) -> list[Row]:
    return [row for row in rows if row["first_token"] == which and row["measure"] == _FAR]


def _named(rows: Sequence[Row], which: str) -> str:
    return ", ".join(f"{row['neuron']} ({row['value']:+.1f})" for row in _far(rows, which))
