"""What `reproduce` writes: the table of claims as CSV and as Markdown, the configuration and a summary."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from probing.results.rows import write_csv
from probing.runtime.installation import versions
from probing.studies.claims import tables as claims
from probing.studies.claims.claim import Paper
from probing.studies.claims.tables import CLAIMS

KIND = "reproduction of a paper"


def write(
    folder: Path, config: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], paper: Paper, used: Mapping[str, Any],
    timings: Mapping[str, float],
) -> list[Path]:  # fmt: skip
    """Write the files, and return them.

    Args:
        folder: The folder.
        config: The resolved configuration.
        rows: The table of claims.
        paper: The paper.
        used: Of each model, the folders of the runs that were read, by their names.
        timings: Seconds of each stage.
    """
    import yaml

    write_csv(folder / "claims.csv", rows, CLAIMS)
    (folder / "claims.md").write_text(claims.markdown(rows, paper.title), encoding="utf-8")
    (folder / "config.yaml").write_text(yaml.safe_dump(dict(config), sort_keys=False), encoding="utf-8")
    summary = {
        "kind": KIND, "paper": paper.name, "title": paper.title, "versions": versions(), "runs": dict(used),
        "timings": dict(timings),
    }  # fmt: skip
    (folder / "results.json").write_text(json.dumps(summary, indent=2), encoding="utf-8")
    return [folder / name for name in ("claims.csv", "claims.md", "config.yaml", "results.json")]
