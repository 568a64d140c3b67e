"""A run on disk: a folder that is either whole or visibly partial."""

from __future__ import annotations

import csv
import html
import json
import math
import os
import re
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probing.columns import Row, is_end
from probing.errors import RunError, UserError

PARTIAL = ".partial"


@dataclass(frozen=True)
class Run:
    """A finished run.

    Args:
        folder: Where it is.
        config: The resolved configuration, without the name.
        results: Everything measured, as in `results.json`.
        accuracy: A dict per layer, as in `accuracy.csv`.
        neurons: A dict per layer and neuron in ranked order, as in `neurons.csv`.
    """

    folder: Path
    config: dict[str, Any]
    results: dict[str, Any]
    accuracy: list[dict[str, Any]]
    neurons: list[dict[str, Any]]

    @property
    def positions(self) -> list[dict[str, Any]]:
        """A dict per layer and position, as in `positions.csv`; none where the task is no position."""
        path = self.folder / "positions.csv"
        return read_csv(path) if path.exists() else []

    def top(self, layer: int, n: int = 10) -> list[dict[str, Any]]:
        """Return the first `n` neurons of a layer's ranking.

        Raises:
            ValueError: If the run does not have that layer.
        """
        layers = [row["layer"] for row in self.accuracy]
        if layer not in layers:
            raise ValueError(f"layer {layer} is not in {self.folder}, which has {', '.join(map(str, layers))}")
        return [row for row in self.neurons if row["layer"] == layer][:n]

    def __repr__(self) -> str:
        from probing.tables.probes import accuracy_table, neurons_table
        from probing.terminal import render

        last = self.accuracy[-1]["layer"]
        return render(accuracy_table(self.accuracy), neurons_table(self.top(last))) + f"{self.folder}"

    def _repr_html_(self) -> str:
        last = self.accuracy[-1]["layer"]
        return _html_table(self.accuracy) + _html_table(self.top(last)) + f"<p>{html.escape(str(self.folder))}</p>"


def load_run(folder: str | Path) -> Run:
    """Read a finished run.

    Raises:
        UserError: If there is no finished run in the folder.
    """
    folder = Path(folder)
    if not (folder / "results.json").is_file() or folder.name.endswith(PARTIAL):
        partial = folder.with_name(folder.name + PARTIAL)
        hint = f"; {partial} is one that did not finish" if partial.is_dir() else ""
        raise UserError(f"`{folder}` is no finished run: expected a folder that `fit` wrote{hint}.")
    if kind := json.loads((folder / "results.json").read_text()).get("kind"):
        raise UserError(f"`{folder}` holds a {kind}; give the folder of a run that `fit` wrote.")
    return read_run(folder)


def read_run(folder: Path) -> Run:
    """Read a run whose tables are all written, whatever its folder is called."""
    import yaml

    return Run(
        folder,
        yaml.safe_load((folder / "config.yaml").read_text()),
        json.loads((folder / "results.json").read_text()),
        read_csv(folder / "accuracy.csv"),
        read_csv(folder / "neurons.csv"),
    )


class RunFolder:
    """A run being written: `NAME.partial` until `finish` renames it.

    Args:
        runs: The folder of runs.
        name: Explicit name, refused where it exists or would leave the folder of runs.
        default: Start of the name where none is given; the time is added.
        figures: Whether it gets a folder for figures.

    Raises:
        UserError: If the name cannot be used or the folder cannot be made.
    """

    def __init__(self, runs: Path, name: str | None, default: str, figures: bool = True) -> None:
        try:
            runs.mkdir(parents=True, exist_ok=True)
            self.final = self._claim(check_name(runs, name)) if name is not None else self._claim_free(runs, default)
            if figures:
                (self.path / "figures").mkdir()
        except OSError as error:
            raise UserError(f"`--runs {runs}` cannot be written ({error.strerror}); name a folder of yours.") from None

    @property
    def path(self) -> Path:
        """Where the run is being written."""
        return self.final.with_name(self.final.name + PARTIAL)

    @staticmethod
    def _claim(final: Path) -> Path:
        """Make the partial folder, which one process alone can."""
        try:
            final.with_name(final.name + PARTIAL).mkdir()
        except FileExistsError:
            raise _is_partial(final) from None
        return final

    @classmethod
    def _claim_free(cls, runs: Path, default: str) -> Path:
        """Claim the first of the default names that nobody else has, nor is about to have."""
        stem = f"{default}-{time.strftime('%Y%m%d-%H%M%S')}"
        for suffix in ["", *(f"-{i}" for i in range(2, 1000))]:
            if not (runs / (stem + suffix)).exists():
                with suppress(UserError):
                    return cls._claim(runs / (stem + suffix))
        raise UserError(f"`--runs {runs}` holds a thousand runs named {stem}; give one with --name.")

    def finish(self) -> Path:
        """Rename the folder to its final name and return that.

        Raises:
            RunError: If something of that name came up meanwhile.
        """
        return rename_whole(self.path, self.final, "run")

    def discard(self) -> None:
        """Remove what was written: nothing was worth keeping."""
        shutil.rmtree(self.path, ignore_errors=True)


def rename_whole(partial: Path, final: Path, what: str) -> Path:
    """Rename a folder that is whole to its final name and return that.

    Raises:
        RunError: If something of that name came up meanwhile.
    """
    try:
        partial.rename(final)
    except OSError as error:
        raise RunError(
            f"the {what} is whole but stays in {partial}: it could not be renamed to {final.name} ({error.strerror})"
        ) from None
    return final


def check_name(runs: Path, name: str) -> Path:
    """Return the folder of a run of this name.

    Raises:
        UserError: If the name is taken, by a run under way too, or is not a plain one inside the folder of runs.
    """
    final = check_plain(runs, name)
    if os.path.lexists(final):  # a link that leads nowhere, too, is in the way
        raise UserError(f"`--name {name}`: {final} exists and runs are never changed; choose another name.")
    if os.path.lexists(final.with_name(name + PARTIAL)):
        raise _is_partial(final)
    return final


def check_plain(runs: Path, name: str) -> Path:
    """Return the folder of that name among the runs.

    Raises:
        UserError: If the name is not a plain one inside the folder of runs.
    """
    if not re.fullmatch(r"[\w][\w.+=@-]{0,199}", name) or name.endswith(PARTIAL):
        raise UserError(
            f"`--name {name}` is not a plain name inside {runs}: use letters, digits and - _ . + = @, "
            f"beginning with a letter or digit and not ending in {PARTIAL}."
        )
    return runs / name


def _is_partial(final: Path) -> UserError:
    return UserError(
        f"`--name {final.name}`: {final.with_name(final.name + PARTIAL)} is there, of a run that is under way or was "
        "interrupted; remove it or choose another name."
    )


def write_csv(path: Path, rows: Sequence[Row], columns: Sequence[str]) -> None:
    """Write rows in full precision, leaving out columns that no row has; without rows, the columns alone.

    The ends of an interval that there is not are empty cells.
    """
    present = [column for column in columns if any(column in row for row in rows) or not rows]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, present, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: _cell(name, value) for name, value in row.items()} for row in rows)


def read_csv(path: Path) -> list[dict[str, Any]]:
    """Read rows, numbers as numbers; the ends of an interval that there is not are NaN."""
    with path.open(newline="") as file:
        return [{name: _value(name, text) for name, text in row.items()} for row in csv.DictReader(file)]


def _cell(column: str, value: Any) -> Any:
    return "" if is_end(column) and isinstance(value, float) and math.isnan(value) else value


def _value(column: str, text: str) -> int | float | str:
    return math.nan if is_end(column) and text == "" else _number(text)


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _html_table(rows: Sequence[Row]) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in rows[0])
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(_short(value))}</td>" for value in row.values()) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
