"""Sources of a page: finished runs, a comparison of them, and the results of other commands."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probing.errors import UserError
from probing.models.layers import site_in_names, site_of
from probing.results.rows import Html, element, joined, pairs
from probing.results.schema import Row
from probing.runs.checks import read_tensor, reading
from probing.runs.loading import load_run
from probing.runs.run import Run, load_fit
from probing.runs.study import Result
from probing.runtime.files import read_text
from probing.tables.columns import Score, score_of
from probing.tables.conclusions import leading
from probing.tasks import short_name, task_in_words

# Columns that a ranked table must have for a page to be made of it.
NEEDED = {
    "layer", "rank", "neuron", "contribution", "ratio", "share", "contribution_centred", "eta_squared",
    "eta_squared_z", "mean", "sd", "flag",
}  # fmt: skip
# Columns and entries that a run's other tables must have.
NEEDED_ACCURACY = {"layer", "accuracy", "accuracy_low", "accuracy_high", "cross_entropy", "optimality_gap"}
NEEDED_R2 = {"layer", "r2", "r2_low", "r2_high", "relative_gradient"}
NEEDED_RESULTS = {"versions", "cache", "classes", "n_sentences", "timings", "layers"}
# Stands for the class where numbers are predicted.
ALL = "all"


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
        return task_in_words(self.run.config)

    @property
    def layers(self) -> list[int]:
        """Layer numbers, ascending."""
        return [row["layer"] for row in self.run.accuracy]

    @property
    def leading(self) -> int:
        """The layer whose neurons are shown first."""
        return int(leading(self.run.accuracy)["layer"])

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
class Sources:
    """Everything that a page is made from.

    Args:
        subjects: The runs.
        agreement: The comparison of the runs, None if none was given.
        shown: The results of other commands than `fit` and `compare`, in the order of the page.
    """

    subjects: Sequence[Subject]
    agreement: Result | None = None
    shown: Sequence[Result] = ()


def read_sources(folders: Sequence[str | Path]) -> Sources:
    """Read the folders that a page is made from, and the runs that a comparison among them compared.

    Raises:
        UserError: If one holds no finished run, is damaged, or is given twice, or there is more than one comparison.
    """
    paths = [Path(folder) for folder in folders]
    for path in paths:
        if sum(path.resolve() == other.resolve() for other in paths) > 1:
            raise UserError(f"`{path}` is given twice; each run is shown once.")
    made = [load_run(path) for path in paths]
    runs = [one for one in made if isinstance(one, Run)]
    # What compares runs of `finetune` has no agreement of rankings.
    agreements = [one for one in made if one.study.name == "compare" and "compared" not in one.results]
    if len(agreements) > 1:
        named = ", ".join(str(one.folder) for one in agreements)
        raise UserError(f"`report` shows one comparison, and {len(agreements)} are given: {named}.")
    names: dict[str, Run] = {}
    for agreement in agreements:
        with reading(agreement.folder):
            compared = _compared(agreement)
        names = {label: _find(agreement.folder, folder, runs) for label, folder in compared.items()}
    others = [run for run in runs if not any(run is found for found in names.values())]
    labelled = names | dict(zip(labels(others, taken=list(names)), others, strict=True))
    subjects = [_subject(label, run) for label, run in labelled.items()]
    shown = [one for one in made if not isinstance(one, Run) and one not in agreements]
    return Sources(subjects, agreements[0] if agreements else None, shown)


def _compared(agreement: Result) -> Mapping[str, str]:
    """Return the folder of each run that was compared, by its name.

    Raises:
        ValueError: If the comparison is damaged.
    """
    compared = agreement.results["runs"]
    if not isinstance(compared, dict) or not all(isinstance(one, str) and "\0" not in one for one in compared.values()):
        raise ValueError("results.json names no runs")
    if not agreement.agreement or not {"model_a", "layer_a", "statistic", "value"} <= set(agreement.agreement[0]):
        raise ValueError("agreement.csv holds no agreement")
    return compared


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
    """Return the name of the model of a run, with the site of its neurons if that is not the residual stream."""
    model = str(config["model"])
    name = (Path(model).name or model) + site_in_names(site_of(config))
    return f"{name} (randomly initialised)" if config.get("random_weights") else name


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
        if os.path.isfile(path / "results.json"):  # unlike Path, it accepts a name that is too long
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


# --------------------------------------------------------------------------------------------------------------------
# How to repeat a run: the command, the configuration, versions and fingerprints.
# --------------------------------------------------------------------------------------------------------------------

# Options on where results are written and how they are shown; they do not change the results.
BESIDE_THE_POINT = ("runs", "cache", "quiet", "verbose", "wandb")


def command_line(config: Mapping[str, Any], defaults: Mapping[str, Any]) -> str:
    """Return the command that repeats a run of this configuration.

    Args:
        config: The resolved configuration.
        defaults: Defaults of the options of `fit`; a mapping for a group of options.
    """
    words = [
        word
        for name, value in config.items()
        if name not in BESIDE_THE_POINT
        for word in option_words(name, value, defaults.get(name))
    ]
    return shlex.join(["python", "-m", "probing", "fit", *words])


def run_block(subject: Subject, defaults: Mapping[str, Any]) -> Html:
    """Return the section on how to repeat a run."""
    results = subject.run.results
    said, command = None, command_line(subject.run.config, defaults)
    if subject.run.is_of_arrays:
        command = "probing.probe(X, y, ...)"
        said = element("p", "This run was made from arrays, which have to be given again.")
    elif "-" in (subject.run.config["corpus"], subject.run.config.get("test_corpus")):
        said = element("p", "This run read standard input, so the text has to be given again.")
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    times = ", ".join(f"{name.removesuffix('_s')} {seconds:.1f} s" for name, seconds in results["timings"].items())
    return element(
        "section",
        element("h3", subject.label),
        element("pre", element("code", command), tabindex="0"),
        said,
        _configuration(subject.run.folder),
        pairs([("Versions", versions), ("Time", times), *_columns(results["cache"]), *_fingerprints(results["cache"])]),
    )  # fmt: skip


def folder_block(heading: str, made: Result) -> Html:
    """Return the section on how to repeat the run of another command than `fit`."""
    import yaml

    if (made.folder / "config.yaml").exists():
        return element("section", element("h3", heading), _configuration(made.folder))
    # Rankings are made with the configuration of their run, and a sweep by its file.
    return element("section", element("h3", heading), _folded(yaml.safe_dump(made.config, sort_keys=False)))


def option_words(name: str, value: Any, default: Any = None) -> list[str]:
    """Return the words by which an option is typed, or a group of options; none for its default."""
    if isinstance(value, Mapping):
        known = default if isinstance(default, Mapping) else {}
        return [word for key, inner in value.items() for word in option_words(f"{name}.{key}", inner, known.get(key))]
    if value == default or value is None:
        return []
    if isinstance(value, bool | list):
        return [f"--{name}", json.dumps(value)]
    return [f"--{name}", str(value)]


def _configuration(folder: Path) -> Html:
    with reading(folder):
        text = read_text(folder / "config.yaml", folder)
    return _folded(text)


def _folded(text: str) -> Html:
    name = joined("The configuration, ", element("code", "config.yaml"), ", for ", element("code", "--config"))
    return element("details", element("summary", name), element("pre", element("code", text), tabindex="0"))


def _columns(cache: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return which columns of the corpora were read, where they have some."""
    lines = dict.fromkeys(f"{one['corpus']}: {one['read']}" for one in cache.values() if "read" in one)
    return [("Read", line) for line in lines]


def _fingerprints(cache: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, Html]]:
    """Return the fingerprints of the model and the corpus, and those of the test side where they differ."""
    sides = {side: dict(cached["key"]) for side, cached in cache.items()}
    if sides.get("test") == sides.get("train"):
        sides.pop("test")
    return [
        (f"Fingerprint: {name}" + (f", {side}" if len(sides) > 1 else ""), element("code", str(value)))
        for side, key in sides.items()
        for name, value in key.items()
        if value is not None
    ]
