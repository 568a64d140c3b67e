"""A study: what a command measures, as tables, and what is said and shown of them; and its results in Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, ClassVar

from probing.errors import UserError
from probing.registry import ACTIONS, STUDIES, load
from probing.results import Html, Schema, Table, as_in_terminal, element, listed, read_rows, shown_table
from probing.runs.checks import reading
from probing.runs.folder import read_json, read_yaml
from probing.runtime.processes import launched


class Result:
    """Finished results: every CSV file of the folder is a table of its name, such as `result.geometry`.

    A table that was not asked for is empty.

    Args:
        study: What was studied, which says what the tables mean.
        folder: Folder of the results.
        config: The resolved configuration, without the name.
        results: The content of `results.json`.
        by_name: The tables by their names.
    """

    def __init__(
        self, study: Study, folder: Path, config: dict[str, Any], results: dict[str, Any], by_name: Mapping[str, Table]
    ) -> None:
        self.study, self.folder, self.config, self.results = study, folder, config, results
        self.by_name: dict[str, Table] = {schema.name: Table((), schema) for schema in study.schemas} | dict(by_name)

    def __getattr__(self, name: str) -> Table:
        tables: Mapping[str, Table] = vars(self).get("by_name", {})
        if name in tables:
            return tables[name]
        raise AttributeError(f"{name} is no table of these results; they have {', '.join(tables)}")

    def __fspath__(self) -> str:
        """The folder, so that results stand for it wherever one is asked for."""
        return str(self.folder)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.by_name]

    def tables(self) -> list[Any]:
        """Return the results as rich tables, as the terminal shows them.

        Raises:
            UserError: If the tables are damaged, so that nothing can be said of them.
        """
        with reading(self.folder):
            return self.study.tables(self)

    def answer(self) -> list[str]:
        """Return the sentences that answer the study's question in short, the first ones of `conclusions`.

        Raises:
            UserError: If the tables are damaged, so that nothing can be said of them.
        """
        with reading(self.folder):
            return self.study.answer(self)

    def conclusions(self) -> list[str]:
        """Return what the results say, a sentence for each question.

        Raises:
            UserError: If the tables are damaged, so that nothing can be said of them.
        """
        with reading(self.folder):
            return [*self.study.answer(self), *self.study.conclusions(self)]

    def report(self, output: str | Path | None = None) -> Path:
        """Write the results as one HTML page, as `report` does, and return the file.

        Args:
            output: The file; `report.html` in the folder of the results by default.

        Raises:
            UserError: If it cannot be written.
        """
        write = partial(load(ACTIONS["report"]), [str(self.folder)])
        page: Path = write(output=None if output is None else str(output))
        return page

    def export(self, format: str, path: str | Path | None = None) -> Path:
        """Write the results as files of another program, whole or not at all, and return their folder.

        Args:
            format: `parquet`, `latex` or `csv`: a file for each table; of a run of `fit` also `neuronpedia`, and of one
                of `attention` also `headvis`.
            path: The folder; `exports/FORMAT` in the folder of the results by default. One that was exported earlier is
                replaced.

        Raises:
            UserError: If there is no such format for these results, or the folder cannot be written.
        """
        folder: Path = load(ACTIONS["export"])(self, format, path)
        return folder

    def card(self) -> str:
        """Return a model card: results with intervals, controls, what follows and what does not, how to repeat it.

        Raises:
            UserError: If the results are damaged.
        """
        text: str = load(ACTIONS["card"])(self)
        return text

    def push(
        self, repo_id: str, private: bool = True, revision: str | None = None, token: str | None = None,
        endpoint: str | None = None,
    ) -> str:  # fmt: skip
        """Upload the results with their card to the Hugging Face hub, and return the address of the commit.

        Args:
            repo_id: The repository as `NAME/REPOSITORY`; it is made if it is not there.
            private: Whether a new repository is private.
            revision: The branch, `main` by default.
            token: Access token; the one that is stored on this machine by default.
            endpoint: Address of another hub.

        Raises:
            UserError: If the results cannot be read from their own files alone, or the hub refuses them.
        """
        address: str = load(ACTIONS["push"])(self, repo_id, private, revision, token, endpoint)
        return address

    def __repr__(self) -> str:
        from probing.runtime.terminal import render

        return render(*self.tables()) + str(self.folder)


Terms = Mapping[str, str]


@dataclass(frozen=True)
class SectionPlace:
    """Where a section stands on a page.

    Args:
        anchor: What it is linked by.
        number: Its number among the sections of its study, from 0.
        room: Number of characters that there are for what can be left out.
    """

    anchor: str
    number: int
    room: int


class Study:
    """What a command measures. Subclasses declare its tables, and say what they mean.

    Attributes:
        name: Name of the command.
        kind: What a folder holds, as `results.json` and messages say it, such as "comparison".
        title: What the results are about, as the beginning of a heading.
        function: The command as `module:function`, which `command` imports.
        schemas: Its tables.
        in_several_processes: Whether the command can run in several processes.
        files: The other files of its folder, and what is in them, for the documentation.
        page: The page of the documentation that says what its measures are.
        artifact: Type of the artifact that W&B is given; the name by default.
    """

    name: ClassVar[str] = ""
    kind: ClassVar[str] = ""
    title: ClassVar[str] = ""
    function: ClassVar[str] = ""
    schemas: ClassVar[Sequence[Schema]] = ()
    in_several_processes: ClassVar[bool] = False
    files: ClassVar[Mapping[str, str]] = {}
    page: ClassVar[str] = ""
    artifact: ClassVar[str] = ""

    @property
    def command(self) -> Callable[..., Any]:
        """The function that the command is."""
        function: Callable[..., Any] = load(self.function)
        return function

    def tables(self, result: Result) -> list[Any]:
        """Return the tables of the terminal as rich tables; by default all columns of all tables that have rows."""
        return [shown_table(schema, rows) for schema in self.schemas if (rows := result.by_name[schema.name])]

    def more_tables(self, result: Result) -> list[Any]:
        """Return the tables that the terminal shows only with `--verbose`, if the command has it; none by default."""
        return []

    def answer(self, result: Result) -> list[str]:
        """Return the answer in short, which stands before the tables; none by default."""
        return []

    def conclusions(self, result: Result) -> list[str]:
        """Return what the results say beside the answer, a sentence for each question; none by default."""
        return []

    def about(self, result: Result) -> str:
        """Return the title of a page that shows these results alone, which goes on a sentence."""
        return f"{self.title[0].lower()}{self.title[1:]}: {result.folder.name}"

    def heading(self, result: Result) -> str:
        """Return the heading of the section on a page."""
        return f"{self.title}: {result.folder.name}"

    def section(self, result: Result, place: SectionPlace) -> Html:
        """Return the section of a page: by default the sentences and the tables of the terminal.

        Args:
            result: The results.
            place: Where it stands.
        """
        return section_of(result, place.anchor, *framed(result.tables()))

    def terms(self, result: Result) -> Mapping[str, Terms]:
        """Return the meanings of the headings in its section, by parts of the terms of a page.

        By default these are the columns of the tables that have rows.
        """
        with_rows = [schema for schema in self.schemas if result.by_name[schema.name]]
        return {self.title: {column.words: column.meaning for schema in with_rows for column in schema.columns}}

    def read(self, folder: Path) -> Result:
        """Read results whose tables are all written.

        Raises:
            ValueError: If a file is damaged.
            OSError: If one cannot be read, or a table that is always written is missing.
        """
        tables: dict[str, Table] = {}
        for schema in self.schemas:
            path = folder / f"{schema.name}.csv"
            if not schema.optional or path.is_file():
                tables[schema.name] = read_rows(path, schema)
        return Result(self, folder, read_yaml(folder / "config.yaml"), read_json(folder / "results.json"), tables)


def section_of(result: Result, anchor: str, *content: Html | None) -> Html:
    """Return a section of a page: its heading, what the results say, and what is shown of them.

    Args:
        result: The results.
        anchor: What the section is linked by.
        content: Charts and tables, in their order.
    """
    sentences = (element("p", sentence) for sentence in result.conclusions())
    return element("section", element("h2", result.study.heading(result)), *sentences, *content, id=anchor)


def framed(tables: Iterable[Any]) -> list[Html]:
    """Return tables of the terminal as figures of a page, each with its title as the caption."""
    return [element("figure", element("figcaption", table.title), as_in_terminal(table)) for table in tables]


def folded(tables: Iterable[Any]) -> list[Html]:
    """Return tables of the terminal under their titles, each shown when its title is chosen."""
    return [element("details", element("summary", str(table.title)), as_in_terminal(table)) for table in tables]


# The group of entry points by which another package adds a study.
GROUP = "probing.studies"


@cache
def added_studies() -> dict[str, str]:
    """Return where the studies of other packages are, as `module:name`; none can replace one of this package."""
    places = sorted((entry.name, entry.value) for entry in entry_points(group=GROUP))
    return {name: where for name, where in places if name not in STUDIES}


def study_names() -> list[str]:
    """Return the names of all studies, which are those of their commands."""
    return [*STUDIES, *added_studies()]


def package_studies() -> list[Study]:
    """Return the studies of this package."""
    return [study_of(name) for name in STUDIES]


@cache
def study_of(name: str) -> Study:
    """Return a study.

    Raises:
        UserError: If another package names a study that cannot be imported, or is none.
    """
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
    """Refuse to run where torchrun or srun started several processes.

    Args:
        command: Name of the command.

    Raises:
        UserError: If there are several processes.
    """
    if launched():
        raise UserError(
            f"`{command}` runs in one process, and torchrun or srun started several; start it by itself ({several()} "
            "run in several)."
        )
