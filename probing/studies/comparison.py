"""The studies of `compare` and `sweep`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from probing.results.csv_files import read_trials
from probing.results.markup import Html
from probing.runs.documents import read_json
from probing.runs.result import Result
from probing.runs.study import SectionPlace, Study, Terms
from probing.schemas import comparison as schemas
from probing.tables.agreement import agreement_tables
from probing.tables.sweeps import best_table


class Compare(Study):
    """Whether the rankings of several runs agree."""

    name, kind, title = "compare", "comparison", "Agreement"
    function = "probing.commands.compare:compare"
    schemas = schemas.AGREEMENT, schemas.TOP_EVERYWHERE
    page = "comparing.md"
    files: ClassVar[Mapping[str, str]] = {
        "figures/": "Heat maps of layers by layers, and accuracies.",
    }

    def tables(self, made: Result) -> list[Any]:
        """Return the agreement."""
        return agreement_tables(made.agreement)

    def conclusions(self, made: Result) -> list[str]:
        """Return what is said of neurons at the top of all runs."""
        return list(made.results["said"])

    def section(self, made: Result, place: SectionPlace) -> Html:
        """Return the agreement of each pair of runs."""
        from probing.page.sections.comparison import agreement_section

        return agreement_section(made, place.anchor)

    def terms(self, made: Result) -> Mapping[str, Terms]:
        """Return the meanings of the headings."""
        from probing.page.sections.terms import AGREEMENT as AGREEMENT_TERMS

        return {self.title: AGREEMENT_TERMS}


class Sweep(Study):
    """Many runs of `fit`. Its trials, in `folder / "trials"`, are runs of their own."""

    name, kind, title = "sweep", "sweep", "Sweep"
    function = "probing.commands.sweep:sweep"
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


COMPARE, SWEEP = Compare(), Sweep()
