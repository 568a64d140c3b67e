"""The study `sweep`: the trials of a W&B sweep file, trained together where possible."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from probing.results.rows import read_trials
from probing.runs.folder import read_json
from probing.runs.study import Result, Study
from probing.studies.sweep import tables as schemas
from probing.studies.sweep.tables import best_table

# --------------------------------------------------------------------------------------------------------------------
# The study of `sweep`.
# --------------------------------------------------------------------------------------------------------------------


class SweepStudy(Study):
    """Many runs of `fit`. Its trials, in `folder / "trials"`, are runs of their own."""

    name, kind, title = "sweep", "sweep", "Sweep"
    function = "probing.studies.sweep.command:sweep"
    schemas = (schemas.SWEEP,)
    page = "sweeps.md"
    files: ClassVar[Mapping[str, str]] = {
        "trials/": "A run of `fit` for each trial.",
        "definition.json, sweep.yaml": "What decides which trials there are.",
        "figures/sweep": "Accuracy by layer and option.",
    }

    def tables(self, made: Result) -> list[Any]:
        """Return the best rows."""
        metric = made.config["sweep"].get("metric") or {}
        varied = [name for name in made.results["best"] if name not in ("trial", "metric")]
        return [best_table(made.sweep, varied, metric.get("name"), metric.get("goal", "minimize"))]

    def conclusions(self, made: Result) -> list[str]:
        """Return which trial is best, and how rankings depend on each option."""
        return list(made.results["said"])

    def read(self, folder: Path) -> Result:
        """Read a sweep, whose configuration is what decides which trials there are."""
        rows = read_trials(folder / "sweep.csv", schemas.SWEEP)
        config, results = read_json(folder / "definition.json"), read_json(folder / "results.json")
        return Result(self, folder, config, results, {"sweep": rows})


SWEEP = SweepStudy()
