"""The rankings that `rank` made of a run, as Python has them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from probing.results.csv_files import read_measured
from probing.results.rows import Table
from probing.runs.checks import check_ranking
from probing.runs.result import Result
from probing.runs.run import Run, layers_of
from probing.runs.study import Study
from probing.schemas.probes import CURVES, ERASURE, EVALUATION, RANKING


class Rank(Study):
    """Rankings of a finished run by other methods, and what probes read from their first neurons."""

    name, kind, title = "rank", "rankings", "Rankings"
    function = "probing.commands.rank:rank"
    schemas = RANKING, EVALUATION, ERASURE, CURVES
    page = "rankings.md"
    files: ClassVar[Mapping[str, str]] = {
        "curves_LL.png, .pdf": "Accuracy with, and without, the first k neurons of each ranking."
    }

    def tables(self, made: Result) -> list[Any]:
        """Return the rankings side by side, and what was measured of them."""
        from probing.tables.rankings import curves_tables, erasure_tables, evaluation_tables, rankings_tables

        return [
            *rankings_tables(vars(made)["rankings"]),
            *evaluation_tables(made.evaluation),
            *erasure_tables(made.erasure),
            *curves_tables(made.curves),
        ]

    def conclusions(self, made: Result) -> list[str]:
        """Return how many neurons of each ranking are enough."""
        from probing.tables.rankings import curves_lines

        return curves_lines(made.curves)


RANK = Rank()


class Rankings(Result):
    """The rankings that `rank` made of a run, and what it measured of them.

    Args:
        run: The run.
        folder: Folder of the rankings, `rankings` in the run's folder.
        rankings: For each method, a dict per layer and neuron in ranked order, as in `METHOD.csv`.
        others: The tables `evaluation`, `erasure` and `curves`, where they were asked for.
    """

    def __init__(self, run: Run, folder: Path, rankings: Mapping[str, Table], others: Mapping[str, Table]) -> None:
        super().__init__(RANK, folder, run.config, run.results, others)
        self.rankings = dict(rankings)


def read_rankings(folder: Path, run: Run) -> Rankings:
    """Read everything that `rank` has added to a run.

    Raises:
        ValueError: If a ranking does not rank every neuron of its layers.
    """
    others = {schema.name: schema for schema in (EVALUATION, ERASURE, CURVES)}
    found = {path.stem: read_measured(path, others.get(path.stem, RANKING)) for path in sorted(folder.glob("*.csv"))}
    rankings = {name: table for name, table in found.items() if name not in others}
    for name, rows in rankings.items():
        ranked = list(dict.fromkeys(row["layer"] for row in rows))
        check_ranking(f"{name}.csv", rows, [layer for layer in layers_of(run) if layer in ranked])
    return Rankings(run, folder, rankings, {name: table for name, table in found.items() if name in others})
