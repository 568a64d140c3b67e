"""The results of any command as Python has them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probing.results.rows import Table
from probing.runs.reading import reading

if TYPE_CHECKING:
    from probing.runs.study import Study


class Result:
    """Finished results: every CSV file of the folder is a table of its name, such as `made.geometry`.

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

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.by_name]

    def tables(self) -> list[Any]:
        """Return the results as rich tables, as the terminal shows them.

        Raises:
            UserError: If the tables are damaged, so that nothing can be said of them.
        """
        with reading(self.folder):
            return self.study.tables(self)

    def conclusions(self) -> list[str]:
        """Return what the results say, a sentence for each question.

        Raises:
            UserError: If the tables are damaged, so that nothing can be said of them.
        """
        with reading(self.folder):
            return self.study.conclusions(self)

    def report(self, output: str | Path | None = None) -> Path:
        """Write the results as one HTML page, as `report` does, and return the file.

        Args:
            output: The file; `report.html` in the folder of the results by default.

        Raises:
            UserError: If it cannot be written.
        """
        write = partial(import_module("probing.commands.report").report, [str(self.folder)])  # the page stands above
        made: Path = write(output=None if output is None else str(output))
        return made

    def __repr__(self) -> str:
        from probing.runtime.terminal import render

        return render(*self.tables()) + str(self.folder)
