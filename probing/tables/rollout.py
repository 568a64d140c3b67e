"""The table and the sentence of attention rollout, for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from probing.results.schema import in_brackets, interval

Row = Mapping[str, Any]

# Headings of the shares of a vector, in the order of the table, and their names in a sentence.
_SHARES = {
    "self": ("itself", "the word's own token"),
    "special_tokens": ("special tokens", "special tokens"),
    "previous": ("previous", "the previous token"),
    "next": ("next", "the next token"),
    "others": ("others", "all other tokens"),
}


def rollout_table(rows: Sequence[Row]) -> Any:
    """Return what the vectors of words are composed of after each layer, as a rich table; None without rows."""
    from probing.runtime.terminal import plain_table

    found = {(row["layer"], row["measure"]): row for row in _of_words(rows)}
    if not found:
        return None
    table = plain_table("Rollout: which tokens the vectors of words are composed of (under uniform attention)")
    for heading in ("layer", *(heading for heading, _ in _SHARES.values())):
        table.add_column(heading, justify="right")
    for layer in dict.fromkeys(layer for layer, _ in found):
        cells = [found[layer, name] for name in _SHARES]
        table.add_row(str(layer), *(f"{row['value']:.3f} ({row['uniform']:.3f})" for row in cells))
    return table


def rollout_lines(rows: Sequence[Row]) -> list[str]:
    """Return a sentence on the last layer."""
    of_words = _of_words(rows)
    if not of_words:
        return []
    layer = of_words[-1]["layer"]
    last = {row["measure"]: row for row in of_words if row["layer"] == layer}
    parts = []
    for name in sorted(_SHARES, key=lambda name: -last[name]["value"]):
        between = interval(last[name], between=" to ", form=".1f", times=100)
        uniform = f"uniform attention: {last[name]['uniform']:.1%}"
        parts.append(f"{_SHARES[name][1]} {last[name]['value']:.1%}{in_brackets(between, uniform)}")
    return [
        "Rollout, which takes every block to keep half of each vector, finds in the vectors of words after block "
        f"{layer}: {', '.join(parts)}."
    ]


def _of_words(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["query"] == "words"]
