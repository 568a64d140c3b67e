"""What a page is made from: finished runs, a comparison of them, geometry, and what layers are worth to other tasks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probing.errors import UserError, as_clause
from probing.runs.folder import PARTIAL
from probing.runs.run import Row, Run, load_run
from probing.tables.csv_files import read_csv

# What a ranked table must have for a page to be made of it.
NEEDED = {
    "layer", "rank", "neuron", "contribution", "ratio", "share", "contribution_centred", "eta_squared",
    "eta_squared_z", "mean", "sd", "flag",
}  # fmt: skip
# And what its other tables must have.
NEEDED_ACCURACY = {"layer", "accuracy", "accuracy_low", "accuracy_high", "cross_entropy", "optimality_gap"}
NEEDED_RESULTS = {"versions", "cache", "classes", "n_sentences", "timings", "layers"}
# Which command wrote a run of some kind, of those that wrote no probes.
_COMMANDS = {"geometry": "geometry", "word-in-context evaluation": "wic", "similarity evaluation": "sts"}


@dataclass(frozen=True)
class Subject:
    """A finished run as a page shows it.

    Args:
        label: Its name on the page, different for each.
        run: The run.
        by_class: Mean contribution to each class's logit over the tokens of that class, shape (n_layers, n_classes,
            d_model).
    """

    label: str
    run: Run
    by_class: NDArray[np.float32]

    @property
    def task(self) -> str:
        """What its probes predict, in words."""
        return str(self.run.config["task"]).replace("_", " ")

    @property
    def layers(self) -> list[int]:
        """Layer numbers, ascending."""
        return [row["layer"] for row in self.run.accuracy]

    @property
    def classes(self) -> list[int | str]:
        """Labels of the classes."""
        return list(self.run.results["classes"])

    @property
    def d_model(self) -> int:
        """Neurons of a layer."""
        return int(self.by_class.shape[2])

    @cached_property
    def ranked(self) -> dict[int, list[Row]]:
        """Each layer's ranked table."""
        tables: dict[int, list[Row]] = {layer: [] for layer in self.layers}
        for row in self.run.neurons:
            tables[row["layer"]].append(row)
        return tables


@dataclass(frozen=True)
class Agreement:
    """What a finished comparison found.

    Args:
        folder: Where it is.
        config: Its configuration.
        rows: As in `agreement.csv`.
        everywhere: As in `top_everywhere.csv`.
    """

    folder: Path
    config: dict[str, Any]
    rows: list[dict[str, Any]]
    everywhere: list[dict[str, Any]]


@dataclass(frozen=True)
class Geometry:
    """The geometry of a model's layers.

    Args:
        folder: Where it is.
        rows: As in `geometry.csv`.
        outliers: As in `outliers.csv`; empty where there is none.
        smoothing: As in `smoothing.csv`; empty where it was not measured.
        interventions: As in `interventions.csv`; empty where there were none.
    """

    folder: Path
    rows: list[dict[str, Any]]
    outliers: list[dict[str, Any]]
    smoothing: list[dict[str, Any]]
    interventions: list[dict[str, Any]]

    @property
    def title(self) -> str:
        """What it is called on the page."""
        return f"Geometry: {self.folder.name}"


@dataclass(frozen=True)
class Evaluation:
    """What cosines of a model's hidden states are worth to a task.

    Args:
        folder: Where it is.
        command: That measured it, `wic` or `sts`.
        rows: As in `wic.csv` or `sts.csv`.
        chosen: As in `chosen.csv`.
    """

    folder: Path
    command: str
    rows: list[dict[str, Any]]
    chosen: list[dict[str, Any]]

    @property
    def title(self) -> str:
        """What it is called on the page."""
        return f"{'Word senses' if self.command == 'wic' else 'Similar sentences'}: {self.folder.name}"


@dataclass(frozen=True)
class Sources:
    """All that a page is made from.

    Args:
        subjects: The runs.
        agreement: What was found between them, where a comparison was given.
        geometry: Where it was measured.
        evaluations: By `wic` and `sts`.
    """

    subjects: Sequence[Subject]
    agreement: Agreement | None = None
    geometry: Sequence[Geometry] = ()
    evaluations: Sequence[Evaluation] = ()


def read_sources(folders: Sequence[str | Path]) -> Sources:
    """Read the folders that a page is to be made from, with the runs that a comparison among them compared.

    Raises:
        UserError: If one holds no finished run, is damaged, or is given twice, or there is more than one comparison.
    """
    runs: list[Run] = []
    agreements: list[tuple[Agreement, Mapping[str, str]]] = []
    geometry: list[Geometry] = []
    evaluations: list[Evaluation] = []
    paths = [Path(folder) for folder in folders]
    for path in paths:
        if sum(path.resolve() == other.resolve() for other in paths) > 1:
            raise UserError(f"`{path}` is given twice; each run is shown once.")
        kind = _kind(path)
        with reading(path):
            if kind == "comparison":
                agreements.append(_read_agreement(path))
            elif kind == "geometry":
                geometry.append(_read_geometry(path))
            elif kind in _COMMANDS:
                evaluations.append(_read_evaluation(path, _COMMANDS[kind]))
            else:
                runs.append(load_run(path))
    if len(agreements) > 1:
        raise UserError(f"`report` shows one comparison, and {len(agreements)} are given: {_names(agreements)}.")
    names: dict[str, Run] = {}
    for agreement, compared in agreements:
        names = {label: _find(agreement.folder, folder, runs) for label, folder in compared.items()}
    others = [run for run in runs if not any(run is found for found in names.values())]
    if not names and not others:
        raise UserError(f"`{paths[0]}` is by `{_COMMANDS[_kind(paths[0])]}`; give a run that `fit` wrote too.")
    labelled = names | dict(zip(labels(others, taken=list(names)), others, strict=True))
    subjects = [_subject(label, run) for label, run in labelled.items()]
    return Sources(subjects, agreements[0][0] if agreements else None, geometry, evaluations)


def source_of(run: Run) -> Sources:
    """Return a single run as what a page is made from.

    Raises:
        UserError: If the run is damaged.
    """
    (label,) = labels([run])
    return Sources([_subject(label, run)])


def labels(runs: Sequence[Run], taken: Sequence[str] = ()) -> list[str]:
    """Name each run by its model; where that is not enough, also by its task, else by its folder or its whole path."""
    models = [_model(run) for run in runs]
    with_tasks = [f"{name} {run.config['task']}" for name, run in zip(models, runs, strict=True)]
    for names in (models, with_tasks, [run.folder.name for run in runs]):
        if len({*names, *taken}) == len(names) + len(taken):
            return names
    return [str(run.folder) for run in runs]


def _model(run: Run) -> str:
    model = str(run.config["model"])
    name = Path(model).name or model
    return f"{name} (untrained)" if run.config.get("random_weights") else name


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Say of what goes wrong while a folder is read, or while its tables are put on a page, that it is damaged.

    Raises:
        UserError: If something does.
    """
    from safetensors import SafetensorError
    from yaml import YAMLError

    try:
        yield
    except KeyError as error:
        raise UserError(f"`{folder}` is damaged (there is no {error} in it); repeat the run.") from error
    except OSError as error:
        what = f"{Path(error.filename).name}: " if error.filename else ""
        raise UserError(f"`{folder}` is damaged ({what}{as_clause(error)}); repeat the run.") from error
    except (ValueError, TypeError, AttributeError, LookupError, StopIteration, YAMLError, SafetensorError) as error:
        raise UserError(f"`{folder}` is damaged ({as_clause(error)}); repeat the run.") from error


def _kind(folder: Path) -> str:
    if not (folder / "results.json").is_file() or folder.name.endswith(PARTIAL):
        return "run"  # of which `load_run` says what is wrong
    with reading(folder):
        return str(json.loads((folder / "results.json").read_text()).get("kind", "run"))


def _read_agreement(folder: Path) -> tuple[Agreement, Mapping[str, str]]:
    import yaml

    compared = json.loads((folder / "results.json").read_text())["runs"]
    config = yaml.safe_load((folder / "config.yaml").read_text())
    rows, everywhere = read_csv(folder / "agreement.csv"), read_csv(folder / "top_everywhere.csv")
    if not rows or not {"model_a", "layer_a", "statistic", "value"} <= set(rows[0]):
        raise ValueError("agreement.csv holds no agreement")
    return Agreement(folder, config, rows, everywhere), compared


def _read_geometry(folder: Path) -> Geometry:
    rows = read_csv(folder / "geometry.csv")
    if not rows or not {"layer", "transform", "measure", "value"} <= set(rows[0]):
        raise ValueError("geometry.csv holds no measures")
    how = {"outliers": read_csv, "smoothing": _measured, "interventions": _measured}
    others = [(folder / f"{name}.csv", read) for name, read in how.items()]
    return Geometry(folder, rows, *(read(path) if path.is_file() else [] for path, read in others))


def _read_evaluation(folder: Path, command: str) -> Evaluation:
    tables = []
    for name in (command, "chosen"):
        tables.append(_measured(folder / f"{name}.csv"))
        if not tables[-1]:
            raise ValueError(f"{name}.csv holds no measures")
    return Evaluation(folder, command, *tables)


def _measured(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a table as the command had them: what was not measured is absent, names are text."""
    # Of some rows the place is empty, which is no number left out: static vectors have no layer.
    places = ("layer", "where")
    rows = [{name: value for name, value in row.items() if value != "" or name in places} for row in read_csv(path)]
    return [{**row, "set": str(row["set"])} if "set" in row else row for row in rows]


def _find(comparison: Path, folder: str, given: Sequence[Run]) -> Run:
    """Return a run that was compared: among those given, where it was then, or beside the comparison.

    Raises:
        UserError: If it is nowhere.
    """
    name = Path(folder).name
    known = {run.folder.resolve(): run for run in given}
    same = known.get(Path(folder).resolve()) or next((run for run in given if run.folder.name == name), None)
    if same is not None:
        return same
    for place in (Path(folder), comparison.parent / name):
        if (place / "results.json").is_file():
            with reading(place):
                return load_run(place)
    raise UserError(f"`{comparison}` compares {folder}, which is not there any more; give its folder too.")


def _subject(label: str, run: Run) -> Subject:
    from safetensors.numpy import load_file

    with reading(run.folder):
        by_class = load_file(run.folder / "contributions.safetensors")["contribution"]
        n_layers, n_classes, d_model = by_class.shape
        for name, needed, rows in (
            ("neurons.csv", NEEDED, run.neurons),
            ("accuracy.csv", NEEDED_ACCURACY, run.accuracy),
            ("results.json", NEEDED_RESULTS, [run.results]),
        ):
            if missing := needed - set(rows[0] if rows else {}):
                raise ValueError(f"{name} has no {min(missing)}")
        subject = Subject(label, run, by_class)
        if len(subject.classes) != n_classes or any(len(table) != d_model for table in subject.ranked.values()):
            raise ValueError("neurons.csv and contributions.safetensors are not of one run")
        if len(subject.layers) != n_layers:
            raise ValueError("accuracy.csv and contributions.safetensors are not of one run")
    return subject


def _names(agreements: Sequence[tuple[Agreement, Mapping[str, str]]]) -> str:
    return ", ".join(str(agreement.folder) for agreement, _ in agreements)
