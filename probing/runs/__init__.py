"""Studies: the measurements, tables, sentences and page sections of commands, and their results in Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, ClassVar

from probing.errors import UserError, did_you_mean, flag, in_python, spelled
from probing.models import site_in_names, site_of
from probing.registry import ACTIONS, STUDIES, load
from probing.results import (
    Html,
    Schema,
    Table,
    View,
    as_in_terminal,
    check_columns,
    count,
    element,
    listed,
    read_rows,
)
from probing.runs.folder import read_json, read_yaml, reading
from probing.runtime.processes import launched
from probing.tables.figures import Chart, Drawings, Figures, chart_drawings, with_title


class Result:
    """Finished results of a command: each CSV file of the folder is a table attribute, such as `result.geometry`.

    A table that was not requested is empty. Methods raise `UserError` if the tables are damaged.

    Args:
        study: The study, which defines the meaning of the tables.
        folder: Folder of the results.
        config: The resolved configuration, without the name; with the model that the results name, if a command takes
            none.
        results: The content of `results.json`.
        by_name: The tables by their names.
    """

    # What a prompt lists besides the tables.
    METHODS: ClassVar[Sequence[str]] = ("answer", "conclusions", "plot", "report", "export", "card", "push")

    def __init__(
        self, study: Study, folder: Path, config: dict[str, Any], results: dict[str, Any], by_name: Mapping[str, Table]
    ) -> None:
        named = results.get("model", results.get("start"))
        read = {"model": named["name"]} if isinstance(named, Mapping) and "model" not in config else {}
        self.study, self.folder, self.config, self.results = study, folder, {**config, **read}, results
        self.by_name: dict[str, Table] = {schema.name: Table((), schema) for schema in study.schemas} | dict(by_name)

    def __getattr__(self, name: str) -> Table:
        tables: Mapping[str, Table] = vars(self).get("by_name", {})
        if name in tables:
            return tables[name]
        raise AttributeError(f"{name} is no table of these results; they have {', '.join(tables)}")

    def __fspath__(self) -> str:
        """Return the folder, so that results are accepted wherever a path is expected."""
        return str(self.folder)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.by_name]

    def tables(self) -> list[Any]:
        """Return the results as rich tables, as the terminal shows them."""
        with reading(self.folder):
            return self.study.tables(self)

    def answer(self) -> list[str]:
        """Return the sentences that answer the study's question in short, the first sentences of `conclusions`."""
        with reading(self.folder):
            return self.study.answer(self)

    def conclusions(self) -> list[str]:
        """Return the conclusions from the results, a sentence for each question."""
        with reading(self.folder):
            return [*self.study.answer(self), *self.study.conclusions(self)]

    @spelled(in_python)
    def report(self, output: str | Path | None = None) -> Path:
        """Write the results as an HTML page, by default `report.html` in their folder, and return its path."""
        page: Path = load(ACTIONS["report"])([str(self.folder)], output=None if output is None else str(output))
        return page

    @spelled(in_python)
    def plot(self, name: str = "", title: str | None = None) -> Figures:
        """Return the figures of the results, drawn with matplotlib, which a notebook shows.

        Args:
            name: Name of a figure, as its file is called; all of them by default.
            title: Title of the figure in place of its own; empty for none.

        Raises:
            UserError: If the results have no such figure.
        """
        return Figures(self.drawings(name, title))

    def drawings(self, name: str = "", title: str | None = None) -> Drawings:
        """Return what draws each figure, or the figure of a name, by name; errors as `plot`."""
        with reading(self.folder):
            drawings = self.study.all_drawings(self)
        if name and name not in drawings:
            known = f"expected one of {', '.join(drawings)}" if drawings else "its tables can draw none"
            near = did_you_mean(name, drawings)
            raise UserError(f"`{self.folder}` has no figure `{name}`{near}; {known}.")
        drawings = {name: drawings[name]} if name else drawings
        if title and len(drawings) > 1:
            raise UserError(f"{flag('title')}: there are {len(drawings)} figures ({listed([*drawings])}); name one.")
        return drawings if title is None else {key: with_title(draw, title) for key, draw in drawings.items()}

    @spelled(in_python)
    def export(self, format: str, path: str | Path | None = None, **how: Any) -> Path:
        """Write the results in the format of another program, all files or none, and return their folder.

        Args:
            format: `parquet`, `latex` or `csv`: a file for each table; `figures`: the figures as PDF; also
                `neuronpedia` for a run of `fit`, and `headvis` for a run of `attention`.
            path: The folder; `exports/FORMAT` in the folder of the results by default. An earlier export is replaced.
            how: Further arguments of `probing.export`, such as `title` and `model_name` of figures.

        Raises:
            UserError: If these results have no such format, or the folder cannot be written.
        """
        folder: Path = load(ACTIONS["export"])([self], format, path, **how)
        return folder

    def card(self) -> str:
        """Return a model card: results with intervals, controls, valid and invalid conclusions, and how to repeat."""
        text: str = load(ACTIONS["card"])(self)
        return text

    @spelled(in_python)
    def push(
        self, repo_id: str, private: bool = True, revision: str | None = None, token: str | None = None,
        endpoint: str | None = None,
    ) -> str:  # fmt: skip
        """Upload the results with their card to the Hugging Face hub, and return the address of the commit.

        Args:
            repo_id: The repository as `NAME/REPOSITORY`, which is created if it does not exist.
            private: Whether a new repository is private.
            revision: The branch, `main` by default.
            token: Access token; the token stored on this machine by default.
            endpoint: Address of another hub.

        Raises:
            UserError: If the results cannot be read from their files alone, or the hub refuses the upload.
        """
        address: str = load(ACTIONS["push"])(self, repo_id, private, revision, token, endpoint)
        return address

    def __repr__(self) -> str:
        from probing.runtime.terminal import render

        return f"{render(*self.tables())}{self._offers()}\n{self.folder}"

    def _offers(self) -> str:
        """Return the tables that have rows, and what can be called, for prompts and notebooks."""
        tables = (f".{name}" for name, rows in self.by_name.items() if rows or (self.folder / f"{name}.csv").exists())
        return f"Tables: {', '.join(tables)}\nMethods: {', '.join(f'.{name}()' for name in self.METHODS)}"


Terms = Mapping[str, str]


@dataclass(frozen=True)
class SectionPlace:
    """Place of a section: link target, index within its study, number of characters for optional content."""

    anchor: str
    number: int
    room: int


class Study:
    """Measurements of a command. Subclasses declare its tables, and explain them.

    Attributes:
        name: Name of the command.
        kind: Kind of the results, as `results.json` and messages name it, such as "comparison".
        title: Subject of the results, as the beginning of a heading.
        function: The command as `module:function`, which `command` imports.
        schemas: Its tables.
        variants: Schemas that only the documentation lists, such as those of the same files for another kind of task.
        views: The tables that the terminal and the page show; all of its tables by default.
        in_several_processes: Whether the command can run in several processes.
        files: The other files of its folder, with descriptions for the documentation.
        page: The page of the documentation that explains its measures, with the anchor of its section.
        artifact: Type of the W&B artifact; the name by default.
    """

    name: ClassVar[str] = ""
    kind: ClassVar[str] = ""
    title: ClassVar[str] = ""
    function: ClassVar[str] = ""
    schemas: ClassVar[Sequence[Schema]] = ()
    variants: ClassVar[Sequence[Schema]] = ()
    views: ClassVar[Sequence[View]] = ()
    in_several_processes: ClassVar[bool] = False
    files: ClassVar[Mapping[str, str]] = {}
    page: ClassVar[str] = ""
    artifact: ClassVar[str] = ""

    @property
    def command(self) -> Callable[..., Any]:
        """The function of the command."""
        function: Callable[..., Any] = load(self.function)
        return function

    def tables(self, result: Result) -> list[Any]:
        """Return the tables of the terminal as rich tables: by default its views of the tables that have rows."""
        views = self.views or [View(schema) for schema in self.schemas]
        return [table for view in views for table in view.tables(result.by_name[view.schema.name])]

    def charts(self, result: Result) -> list[Chart]:
        """Return the line charts, which are written as figures and shown on the page; none by default."""
        return []

    def drawings(self, result: Result) -> Drawings:
        """Return what draws the figures of the tables that are no line charts, by name; none by default."""
        return {}

    def all_drawings(self, result: Result) -> Drawings:
        """Return what draws each figure: the charts that have values, and what is no line chart."""
        charts = chart_drawings(self.charts(result), self.figure_prefix(result))
        return {**charts, **self.drawings(result)}

    def maps(self, result: Result) -> Iterable[Html]:
        """Return the maps of the page, which are no line charts; none by default."""
        return []

    def more_tables(self, result: Result) -> list[Any]:
        """Return the tables that the page folds, and the terminal shows with `--verbose`; none by default."""
        return []

    def printed(self, result: Result) -> Mapping[str, Sequence[Any]]:
        """Return rich tables that `export latex` writes in place of the rows of the tables of these names."""
        return {}

    def answer(self, result: Result) -> list[str]:
        """Return the short answer, which precedes the tables; none by default."""
        return []

    def conclusions(self, result: Result) -> list[str]:
        """Return the conclusions that follow the answer, a sentence for each question; none by default."""
        return []

    def figure_prefix(self, result: Result) -> str:
        """Return what is measured, which begins the titles of charts: by default the model; empty without one."""
        return model_name(result.config) if result.config.get("model") else ""

    def about(self, result: Result) -> str:
        """Return the page title (lower case; used mid-sentence)."""
        of = f" in {name}" if (name := self.figure_prefix(result)) else f": {result.folder.name}"
        return f"{self.title[0].lower()}{self.title[1:]}{of}"

    def command_line(self, config: Mapping[str, Any]) -> str:
        """Return the command that repeats the measurements, given their configuration."""
        return f"python -m probing {self.name} --config config.yaml"

    def heading(self, result: Result) -> str:
        """Return the heading of the section on a page."""
        return f"{self.title}: {result.folder.name}"

    def section(self, result: Result, place: SectionPlace) -> Html:
        """Return the section of a page: by default sentences, maps, charts, tables and, folded, more."""
        charts = load(ACTIONS["charts_html"])(self.charts(result))
        return section_of(
            result, place.anchor, *self.maps(result), *charts, *framed(result.tables()),
            *folded(self.more_tables(result)),
        )  # fmt: skip

    def terms(self, result: Result) -> Mapping[str, Terms]:
        """Return the meanings of the headings by part of the terms; by default those of its views with rows."""
        views = self.views or [View(schema) for schema in self.schemas]
        shown = [view for view in views if result.by_name[view.schema.name]]
        return {self.title: {heading: meaning for view in shown for heading, meaning in view.terms().items()}}

    def read(self, folder: Path) -> Result:
        """Read results whose tables are all written.

        Raises:
            ValueError: If a file is damaged.
            OSError: If a file cannot be read, or a table that is always written is missing.
        """
        tables: dict[str, Table] = {}
        for schema in self.schemas:
            path = folder / f"{schema.name}.csv"
            if not schema.optional or path.is_file():
                tables[schema.name] = rows = read_rows(path, schema)
                if rows:
                    check_columns(rows, schema, finite=False)
        return Result(self, folder, read_yaml(folder / "config.yaml"), read_json(folder / "results.json"), tables)


# Key of a configuration for the name of the model that replaces its own in figures and pages.
MODEL_NAME = "model_name"


def split_names(names: str | Sequence[str] | None) -> list[str]:
    """Return names that are given as a list, or as text with commas between them."""
    return [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names or ())


def with_names(
    results: Sequence[Result], model_name: str | Sequence[str] | None, label_name: str | None
) -> list[Result]:
    """Return results whose figures and pages have other names, of the model of each and of what probes predict.

    Raises:
        UserError: If there are not as many names as results, or some of these have no model, or no probes.
    """
    names = split_names(model_name)
    if names and len(names) != len(results):
        raise UserError(
            f"`--model_name`: {count(len(names), 'name')} for {count(len(results), 'folder')}; give one for each "
            "(`compare --model_name` names the runs of a comparison)."
        )
    if names and (unnamed := [result.folder for result in results if not result.config.get("model")]):
        raise UserError(f"`--model_name`: `{unnamed[0]}` is of no single model; leave it out.")
    if label_name and (unlabelled := [result.folder for result in results if result.study.name != "fit"]):
        raise UserError(f"`--label_name`: `{unlabelled[0]}` is no run of `fit`, whose figures name what is predicted.")
    named = [copy(result) for result in results]
    for i, result in enumerate(named):
        changed = {MODEL_NAME: names[i]} if names else {}
        result.config = {**result.config, **changed, **({"label_name": label_name} if label_name else {})}
    return named


def model_name(config: Mapping[str, Any]) -> str:
    """Return the model of a run, with the site of its neurons if that is not the residual stream."""
    if given := config.get(MODEL_NAME):
        return str(given)
    model = str(config["model"])
    name = (Path(model).name or model) + site_in_names(site_of(config))
    return f"{name} (randomly initialised)" if config.get("random_weights") else name


def section_of(result: Result, anchor: str, *content: Html | None) -> Html:
    """Return a section of a page: heading, conclusions, then `content` (charts and tables), linked by `anchor`."""
    sentences = (element("p", sentence) for sentence in result.conclusions())
    return element("section", element("h2", result.study.heading(result)), *sentences, *content, id=anchor)


def framed(tables: Iterable[Any]) -> list[Html]:
    """Return tables of the terminal as figures of a page, with their titles as captions."""
    return [element("figure", element("figcaption", table.title), as_in_terminal(table)) for table in tables]


def folded(tables: Iterable[Any]) -> list[Html]:
    """Return tables of the terminal under their titles, each shown when its title is clicked."""
    return [element("details", element("summary", str(table.title)), as_in_terminal(table)) for table in tables]


# The group of entry points by which another package adds a study.
GROUP = "probing.studies"


@cache
def added_studies() -> dict[str, str]:
    """Return the studies of other packages as `module:name`, by name; a study of this package cannot be replaced."""
    places = sorted((entry.name, entry.value) for entry in entry_points(group=GROUP))
    return {name: where for name, where in places if name not in STUDIES}


def study_names() -> list[str]:
    """Return the names of all studies, which are the names of their commands."""
    return [*STUDIES, *added_studies()]


def package_studies() -> list[Study]:
    """Return the studies of this package."""
    return [study_of(name) for name in STUDIES]


@cache
def study_of(name: str) -> Study:
    """Return a study by its name; refuse another package's study that cannot be imported, or is no `probing.Study`."""
    where = STUDIES.get(name) or added_studies()[name]
    try:
        study = load(where)
    except (ImportError, AttributeError) as error:
        raise UserError(
            f"the study {name} ({where}) cannot be imported ({error}); update or remove its package."
        ) from None
    if not isinstance(study, Study):
        raise UserError(f"the study {name} ({where}) is a {type(study).__name__}: expected a probing.Study.")
    return study


def study_of_kind(kind: str) -> Study | None:
    """Return the study whose results are of this kind, as `results.json` names it; None if there is none."""
    return next((study for study in map(study_of, study_names()) if study.kind == kind), None)


def several() -> str:
    """Return the commands that can run in several processes, as messages name them."""
    return listed(["`extract`", *(f"`{name}`" for name in study_names() if study_of(name).in_several_processes)])


def refuse_several(command: str) -> None:
    """Raise `UserError` if torchrun or srun started several processes for this command."""
    if launched():
        raise UserError(
            f"`{command}` runs in one process, and torchrun or srun started several; start it by itself ({several()} "
            "run in several)."
        )
