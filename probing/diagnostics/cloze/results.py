"""Write what `cloze` found into a run's folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from probing.diagnostics.cloze.predictor import Found
from probing.runtime.versions import versions
from probing.tables.cloze import COLUMNS
from probing.tables.columns import without_nan
from probing.tables.csv_files import write_tables

KIND = "predictions at masks"


def write(
    folder: Path, config: Mapping[str, Any], found: Found, fingerprint: str, timings: Mapping[str, float]
) -> list[Path]:
    """Write tables, configuration and summary, and return their paths.

    Args:
        folder: The run's folder.
        config: The resolved configuration as plain values.
        found: What was found.
        fingerprint: Fingerprint of the model.
        timings: Times in seconds.
    """
    paths = [*write_tables(folder, config, found.tables, COLUMNS), folder / "results.json"]
    summary = {
        "kind": KIND,
        "versions": versions(),
        "model": {"name": config["model"], "fingerprint": fingerprint},
        **{name: {"fingerprint": print_} for name, print_ in found.fingerprints.items()},
        "left_out": dict(found.left_out),
        "n_tokens": found.n_tokens,
        "timings": dict(timings),
        **{name: [without_nan(row) for row in rows] for name, rows in found.tables.items()},
    }
    paths[-1].write_text(json.dumps(summary, indent=2), encoding="utf-8")
    return paths
