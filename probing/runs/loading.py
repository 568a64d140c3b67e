"""`load_run`, which reads the results of any command from their folder."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from probing.errors import UserError
from probing.runs.checks import check_ranking
from probing.runs.documents import read_json, read_yaml
from probing.runs.evaluations import SentenceSimilarity
from probing.runs.kinds import KINDS, FinishedSweep, Rankings
from probing.runs.reading import kind_of, reading
from probing.runs.result_folder import ResultFolder
from probing.runs.run import Run, layers_of, read_run
from probing.tables.csv_files import read_measured, read_trials
from probing.tables.rows import Table

# The commands whose folders `load_run` reads, as a message names them.
WRITERS = (
    "`fit`, `probe`, `rank`, `compare`, `geometry`, `attention`, `disable`, `pretrain`, "
    "`series`, `hierarchy`, `cloze`, `wic`, `sts`, `reproduce` or `sweep`"
)

_T = TypeVar("_T", bound="ResultFolder")


def load_run(folder: str | Path) -> Any:
    """Read the finished results of any command from their folder.

    Args:
        folder: The folder of a run, a comparison, a sweep, or another command's results; for those of `rank`, the
            folder `rankings` of the run.

    Returns:
        What the command returns as a function: a `Run` for `fit` and `probe`, otherwise a `Rankings`, `Comparison`,
        `Geometry`, `Attention`, `Disabled`, `Pretraining`, `CheckpointSeries`, `Hierarchy`, `Cloze`, `WordsInContext`,
        `SentenceSimilarity`, `Reproduction` or `FinishedSweep`. All have `folder`, `config` and `results`, and every
        CSV file of the folder as a table of that name.

    Raises:
        UserError: If there are no finished results in the folder, or they are damaged.
    """
    folder = Path(folder)
    if folder.name == "rankings" and folder.is_dir() and (folder.parent / "results.json").is_file():
        with reading(folder):
            return read_rankings(folder, read_run(folder.parent))
    kind = kind_of(folder, WRITERS)
    with reading(folder):
        if kind is None:
            return read_run(folder)
        if kind in KINDS:
            return read_folder(KINDS[kind], folder)
    raise UserError(f"`{folder}` holds a {kind}, which this version cannot read; update it.")


def read_folder(kind: type[_T], folder: Path) -> _T:
    """Read results of a kind whose tables are all written."""
    if kind is FinishedSweep:
        config, tables = read_json(folder / "definition.json"), {"sweep": read_trials(folder / "sweep.csv")}
    else:
        config, tables = read_yaml(folder / "config.yaml"), _tables(kind, folder)
    return kind(folder, config, read_json(folder / "results.json"), **tables)


def read_rankings(folder: Path, run: Run) -> Rankings:
    """Read everything that `rank` has added to a run."""
    others = {name: Table() for name in ("evaluation", "erasure", "curves")}
    found = {path.stem: read_measured(path) for path in sorted(folder.glob("*.csv"))}
    rankings = {name: table for name, table in found.items() if name not in others}
    for name, rows in rankings.items():
        ranked = list(dict.fromkeys(row["layer"] for row in rows))
        check_ranking(f"{name}.csv", rows, [layer for layer in layers_of(run) if layer in ranked])
    return Rankings(
        folder, run.config, run.results, rankings, **(others | {n: t for n, t in found.items() if n in others})
    )


def _tables(kind: type[ResultFolder], folder: Path) -> dict[str, Table]:
    own = fields(kind)[len(fields(ResultFolder)) :]
    paths = {one.name: folder / f"{one.name}.csv" for one in own}
    optional = {one.name for one in own if one.default_factory is Table}
    there = {name: path for name, path in paths.items() if name not in optional or path.is_file()}
    empty = ["layer"] if kind is SentenceSimilarity else []  # static vectors have no layer
    return {name: read_measured(path, empty) for name, path in there.items()}
