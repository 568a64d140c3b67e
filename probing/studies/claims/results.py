"""What `reproduce` writes: the table of claims, also as Markdown, and a summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from probing.runs.call import Measured
from probing.studies.claims import tables as claims
from probing.studies.claims.claim import Paper


def measured(rows: Sequence[Mapping[str, Any]], paper: Paper, used: Mapping[str, Any]) -> Measured:
    """Return what is written of the claims.

    Args:
        rows: The table of claims.
        paper: The paper.
        used: Of each model, the folders of the runs that were read, by their names.
    """

    def write(folder: Path) -> list[Path]:
        path = folder / "claims.md"
        path.write_text(claims.markdown(rows, paper.title), encoding="utf-8")
        return [path]

    results = {"paper": paper.name, "title": paper.title, "runs": dict(used)}
    return Measured({"claims": rows}, results, write=write)
