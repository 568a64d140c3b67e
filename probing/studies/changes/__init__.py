"""What tuning changes in a model, layer by layer, and whether the task does it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from probing.results.rows import Html
from probing.runs.study import Result, SectionPlace, Study, Terms
from probing.studies.changes import tables

# --------------------------------------------------------------------------------------------------------------------
# The study of `changes`.
# --------------------------------------------------------------------------------------------------------------------


class Changes(Study):
    """What tuning changes in a model, layer by layer."""

    name, kind, title = "changes", "changes by tuning", "What tuning changed"
    function = "probing.studies.changes.command:changes"
    schemas = tables.LAYERS, tables.CHECKPOINTS
    page = "tuning-changes.md"
    files: ClassVar[Mapping[str, str]] = {"figures/changes": "Each measure by layer, a point for each checkpoint."}

    def tables(self, made: Result) -> list[Any]:
        """Return the changes of attention maps and hidden states by layer."""
        return tables.tables(made.by_name)

    def more_tables(self, made: Result) -> list[Any]:
        """Return the changes by all other measures."""
        return tables.more_tables(made.by_name)

    def answer(self, made: Result) -> list[str]:
        """Return which layers the task has changed."""
        return tables.answer(made.by_name, made.results["start"]["name"])

    def conclusions(self, made: Result) -> list[str]:
        """Return for each measure where most is changed, and what cannot be told."""
        return tables.conclusions(made.by_name, made.results)

    def about(self, made: Result) -> str:
        """Return the title of a page."""
        return f"what tuning changed in {made.results['start']['name']}"

    def section(self, made: Result, place: SectionPlace) -> Html:
        """Return the sentences, the changes by layer, and the tables of the terminal."""
        from probing.studies.changes.results import changes_section

        return changes_section(made, place.anchor)

    def terms(self, made: Result) -> Mapping[str, Terms]:
        """Return the meanings of the headings."""
        return {self.title: tables.TERMS}


CHANGES = Changes()
