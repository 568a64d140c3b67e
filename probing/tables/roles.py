"""What the terminal says of heads and semantic roles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from probing.results.schema import in_brackets, interval

Row = Mapping[str, Any]


def role_lines(made: Sequence[Row]) -> list[str]:
    """Return a sentence on the heads that attend along role links, and on how many links are compared."""
    rows = [row for row in made if row["role"] == "all"]
    if not rows:
        return []
    best = max(rows, key=lambda row: row["z"])
    heads = {_name_of(row) for row in rows if row["p_value"] < 0.05}
    several = f"{len(heads)} of {len({_name_of(row) for row in rows})} heads"
    return [
        f"Role links: {several} attend along {best['n']:,} links more than to pairs of other sentences that look alike"
        ", the links of each predicate resampled together (p below .05, corrected for the choice of a head), above all "
        f"{_name_of(best)} from the {best['query']}: {best['score']:.3f}"
        f"{in_brackets(interval(best, between=' to '))}, unlinked pairs "
        f"{best['unlinked']:.3f}, p {best['p_value']:.2g}.{_unmatched(best)}"
    ]


def _unmatched(row: Row) -> str:
    """Return how many links were not compared; empty if none, or if an earlier version did not count them."""
    n = int(row.get("n_unmatched", 0))
    several = "A further link has" if n == 1 else f"A further {n:,} links have"
    alike = "no unlinked pairs that look alike, together with the other links of their predicate"
    return f" {several} {alike}, and cannot be compared." if n else ""


def _name_of(row: Row) -> str:
    return f"{row['layer']}-{row['head']}"
