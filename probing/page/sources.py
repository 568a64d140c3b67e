"""Sources of a page: finished runs, a comparison of them, and the results of other commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probing.errors import UserError
from probing.heads.examples.example_maps import Examples, read_examples
from probing.models.site_names import is_inside_blocks, site_of
from probing.page.shown import Shown
from probing.runs.checks import read_tensor
from probing.runs.diagnostics import Cloze, Hierarchy
from probing.runs.documents import read_json, read_yaml
from probing.runs.kinds import KINDS, Attention, Disabled, Reproduction
from probing.runs.loading import read_folder
from probing.runs.reading import kind_of, reading
from probing.runs.result_folder import ResultFolder
from probing.runs.run import Row, Run, load_fit
from probing.runs.trainings import CheckpointSeries, Pretraining
from probing.tables.columns import Score, score_of
from probing.tables.csv_files import read_csv, read_measured
from probing.tasks import short_name

# Columns that a ranked table must have for a page to be made of it.
NEEDED = {
    "layer", "rank", "neuron", "contribution", "ratio", "share", "contribution_centred", "eta_squared",
    "eta_squared_z", "mean", "sd", "flag",
}  # fmt: skip
# Columns and entries that a run's other tables must have.
NEEDED_ACCURACY = {"layer", "accuracy", "accuracy_low", "accuracy_high", "cross_entropy", "optimality_gap"}
NEEDED_R2 = {"layer", "r2", "r2_low", "r2_high", "relative_gradient"}
NEEDED_RESULTS = {"versions", "cache", "classes", "n_sentences", "timings", "layers"}
# The kind of the results of `attention`.
SURVEY = "survey of attention heads"
# Results that have a section of their own, and what they are about, as the beginning of its heading.
SHOWN: dict[type[ResultFolder], str] = {
    Disabled: "Without heads and layers",
    Pretraining: "Encoders with and without positions",
    CheckpointSeries: "Checkpoints",
    Hierarchy: "Linear order or hierarchy",
    Cloze: "At the mask",
    Reproduction: "Claims of a paper",
}
# Stands for the class where numbers are predicted.
ALL = "all"
# The command that writes results of each kind, for those without probes.
_COMMANDS = {"geometry": "geometry", "word-in-context evaluation": "wic", "similarity evaluation": "sts"}


@dataclass(frozen=True)
class Subject:
    """A finished run as a page shows it.

    Args:
        label: Name of the run on the page, different for each run.
        run: The run.
        by_class: Mean contribution to each class's logit over the tokens of that class, shape (n_layers, n_classes,
            d_model).
    """

    label: str
    run: Run
    by_class: NDArray[np.float32]

    @property
    def task(self) -> str:
        """The name of the task that the probes predict, in words."""
        return short_name(self.run.config).replace("_", " ")

    @property
    def layers(self) -> list[int]:
        """Layer numbers, ascending."""
        return [row["layer"] for row in self.run.accuracy]

    @property
    def classes(self) -> list[int | str]:
        """Labels of the classes; where numbers are predicted, one word that stands for all of them."""
        return list(self.run.results["classes"]) or [ALL]

    @property
    def score(self) -> Score:
        """How the probes are scored."""
        return score_of(self.run.accuracy[0])

    @property
    def d_model(self) -> int:
        """Number of neurons of a layer."""
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
    """The results of a finished comparison.

    Args:
        folder: Folder of the comparison.
        config: Configuration of the comparison.
        rows: Rows of `agreement.csv`.
        everywhere: Rows of `top_everywhere.csv`.
    """

    folder: Path
    config: dict[str, Any]
    rows: list[dict[str, Any]]
    everywhere: list[dict[str, Any]]


@dataclass(frozen=True)
class Geometry:
    """The geometry of a model's layers.

    Args:
        folder: Folder of the measurement.
        rows: Rows of `geometry.csv`.
        outliers: Rows of `outliers.csv`; empty if there are none.
        first_token: Rows of `first_token.csv`; empty unless the first token was left out.
        smoothing: Rows of `smoothing.csv`; empty if it was not measured.
        interventions: Rows of `interventions.csv`; empty if there were none.
        norms: Rows of `norms.csv`; empty if it was not measured.
        norm_changes: Rows of `norm_changes.csv`; empty if it was not measured.
        path: Rows of `path.csv`; empty if it was not measured.
        first_row: Rows of `first_row.csv`; empty if it was not measured.
        neuron_interventions: Rows of `neuron_interventions.csv`; empty if no neurons were named.
    """

    folder: Path
    rows: list[dict[str, Any]]
    outliers: list[dict[str, Any]]
    smoothing: list[dict[str, Any]]
    interventions: list[dict[str, Any]]
    first_token: list[dict[str, Any]] = field(default_factory=list)
    norms: list[dict[str, Any]] = field(default_factory=list)
    norm_changes: list[dict[str, Any]] = field(default_factory=list)
    path: list[dict[str, Any]] = field(default_factory=list)
    first_row: list[dict[str, Any]] = field(default_factory=list)
    neuron_interventions: list[dict[str, Any]] = field(default_factory=list)

    @property
    def title(self) -> str:
        """The heading of the section on the page."""
        return f"Geometry: {self.folder.name}"


@dataclass(frozen=True)
class Evaluation:
    """An evaluation of the cosines of a model's hidden states by `wic` or `sts`.

    Args:
        folder: Folder of the evaluation.
        command: Command that made it, `wic` or `sts`.
        rows: Rows of `wic.csv` or `sts.csv`.
        chosen: Rows of `chosen.csv`.
    """

    folder: Path
    command: str
    rows: list[dict[str, Any]]
    chosen: list[dict[str, Any]]

    @property
    def title(self) -> str:
        """The heading of the section on the page."""
        return f"{'Word senses' if self.command == 'wic' else 'Similar sentences'}: {self.folder.name}"


@dataclass(frozen=True)
class Survey(Shown[Attention]):
    """What the heads of a model do.

    Args:
        made: The results of `attention`.
        about: What they are about, as the beginning of a heading.
        examples: A few sentences with the maps of all heads; None if the run has none.
    """

    examples: Examples | None


@dataclass(frozen=True)
class Sources:
    """Everything that a page is made from.

    Args:
        subjects: The runs.
        agreement: The comparison of the runs, None if none was given.
        geometry: Results of `geometry`.
        evaluations: Results of `wic` and `sts`.
        surveys: Results of `attention`.
        shown: Results of the commands whose kinds are in `SHOWN`, such as `disable`.
    """

    subjects: Sequence[Subject]
    agreement: Agreement | None = None
    geometry: Sequence[Geometry] = ()
    evaluations: Sequence[Evaluation] = ()
    surveys: Sequence[Survey] = ()
    shown: Sequence[Shown[ResultFolder]] = ()


def read_sources(folders: Sequence[str | Path]) -> Sources:
    """Read the folders that a page is made from, and the runs that a comparison among them compared.

    Raises:
        UserError: If one holds no finished run, is damaged, or is given twice, or there is more than one comparison.
    """
    runs: list[Run] = []
    agreements: list[tuple[Agreement, Mapping[str, str]]] = []
    geometry: list[Geometry] = []
    evaluations: list[Evaluation] = []
    surveys: list[Survey] = []
    shown: list[Shown[ResultFolder]] = []
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
            elif kind == SURVEY:
                surveys.append(Survey(read_folder(Attention, path), "Attention heads", read_examples(path)))
            elif (of := KINDS.get(kind)) in SHOWN:
                shown.append(Shown(read_folder(of, path), SHOWN[of]))
            elif kind in _COMMANDS:
                evaluations.append(_read_evaluation(path, _COMMANDS[kind]))
            else:
                runs.append(load_fit(path))
    if len(agreements) > 1:
        raise UserError(f"`report` shows one comparison, and {len(agreements)} are given: {_names(agreements)}.")
    names: dict[str, Run] = {}
    for agreement, compared in agreements:
        names = {label: _find(agreement.folder, folder, runs) for label, folder in compared.items()}
    others = [run for run in runs if not any(run is found for found in names.values())]
    labelled = names | dict(zip(labels(others, taken=list(names)), others, strict=True))
    subjects = [_subject(label, run) for label, run in labelled.items()]
    return Sources(subjects, agreements[0][0] if agreements else None, geometry, evaluations, surveys, shown)


def source_of(run: Run) -> Sources:
    """Return the sources of a page on a single run.

    Raises:
        UserError: If the run is damaged.
    """
    (label,) = labels([run])
    return Sources([_subject(label, run)])


def labels(runs: Sequence[Run], taken: Sequence[str] = ()) -> list[str]:
    """Name each run by its model, with its task if names are equal, or else by its folder or its whole path."""
    models = [model_name(run.config) for run in runs]
    with_tasks = [f"{name} {short_name(run.config)}" for name, run in zip(models, runs, strict=True)]
    for names in (models, with_tasks, [run.folder.name for run in runs]):
        if len({*names, *taken}) == len(names) + len(taken):
            return names
    return [str(run.folder) for run in runs]


def model_name(config: Mapping[str, Any]) -> str:
    """Return the name of the model of a run, with the site of its neurons if they are inside blocks."""
    model = str(config["model"])
    name = Path(model).name or model
    if is_inside_blocks(site := site_of(config)):
        name += f" {site}"
    return f"{name} (randomly initialised)" if config.get("random_weights") else name


def _kind(folder: Path) -> str:
    return kind_of(folder, "`fit`") or "run"


def _read_agreement(folder: Path) -> tuple[Agreement, Mapping[str, str]]:
    compared, config = read_json(folder / "results.json")["runs"], read_yaml(folder / "config.yaml")
    if not isinstance(compared, dict) or not all(isinstance(one, str) and "\0" not in one for one in compared.values()):
        raise ValueError("results.json names no runs")
    rows, everywhere = read_csv(folder / "agreement.csv"), read_csv(folder / "top_everywhere.csv")
    if not rows or not {"model_a", "layer_a", "statistic", "value"} <= set(rows[0]):
        raise ValueError("agreement.csv holds no agreement")
    return Agreement(folder, config, rows, everywhere), compared


def _read_geometry(folder: Path) -> Geometry:
    rows = read_csv(folder / "geometry.csv")
    if not rows or not {"layer", "transform", "measure", "value"} <= set(rows[0]):
        raise ValueError("geometry.csv holds no measures")
    found = {
        name: (read_csv if name == "outliers" else read_measured)(path) if path.is_file() else []
        for name in (
            "outliers", "first_token", "smoothing", "interventions", "norms", "norm_changes", "path",
            "first_row", "neuron_interventions",
        )
        for path in [folder / f"{name}.csv"]
    }  # fmt: skip
    return Geometry(folder, rows, **found)


def _read_evaluation(folder: Path, command: str) -> Evaluation:
    tables = []
    for name in (command, "chosen"):
        tables.append(read_measured(folder / f"{name}.csv", ["layer"]))
        if not tables[-1]:
            raise ValueError(f"{name}.csv holds no measures")
    return Evaluation(folder, command, *tables)


def _find(comparison: Path, folder: str, given: Sequence[Run]) -> Run:
    """Return a compared run: among those given, at its recorded path, or next to the comparison.

    Raises:
        UserError: If it is not found.
    """
    name = Path(folder).name
    known = {run.folder.resolve(): run for run in given}
    same = known.get(Path(folder).resolve()) or next((run for run in given if run.folder.name == name), None)
    if same is not None:
        return same
    for path in (Path(folder), comparison.parent / name):
        if (path / "results.json").is_file():
            with reading(path):
                return load_fit(path)
    raise UserError(f"`{comparison}` compares {folder}, which no longer exists there; give its folder as well.")


def _subject(label: str, run: Run) -> Subject:
    with reading(run.folder):
        by_class = read_tensor(run.folder / "contributions.safetensors", "contribution").numpy()
        for name, needed, rows in (
            ("neurons.csv", NEEDED, run.neurons),
            ("accuracy.csv", NEEDED_R2 if "numbers" in run.results else NEEDED_ACCURACY, run.accuracy),
            ("results.json", NEEDED_RESULTS, [run.results]),
        ):
            if missing := needed - set(rows[0] if rows else {}):
                raise ValueError(f"{name} has no {min(missing)}")
    return Subject(label, run, by_class)


def _names(agreements: Sequence[tuple[Agreement, Mapping[str, str]]]) -> str:
    return ", ".join(str(agreement.folder) for agreement, _ in agreements)
