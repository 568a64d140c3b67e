"""The study `hierarchy`: do probes that were trained where two rules agree generalise by linear order?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from probing.results.rows import Html
from probing.runs.study import Result, SectionPlace, Study, Terms
from probing.studies.hierarchy import tables

# --------------------------------------------------------------------------------------------------------------------
# The study of `hierarchy`.
# --------------------------------------------------------------------------------------------------------------------


class Hierarchy(Study):
    """Whether probes generalise by linear order or by hierarchy."""

    name, kind, title = "hierarchy", "linear order or hierarchy", "Linear order or hierarchy"
    function = "probing.studies.hierarchy.command:hierarchy"
    in_several_processes = True
    schemas = tables.HIERARCHY, tables.DISTRACTORS
    page = "hierarchy.md"
    files: ClassVar[Mapping[str, str]] = {
        "figures/hierarchy": "The shares by layer, a panel for each task.",
    }

    def tables(self, made: Result) -> list[Any]:
        """Return the shares, a table for each task."""
        return tables.tables(made.by_name)

    def conclusions(self, made: Result) -> list[str]:
        """Return which layers go by which rule."""
        return tables.conclusions(made.by_name)

    def about(self, made: Result) -> str:
        """Return the title of a page."""
        from probing.page.sources import model_name

        return f"linear order or hierarchy in {model_name(made.config)}"

    def section(self, made: Result, place: SectionPlace) -> Html:
        """Return the shares by layer, and the tables of the terminal."""
        from probing.studies.hierarchy.tables import hierarchy_section

        return hierarchy_section(made, place.anchor)

    def terms(self, made: Result) -> Mapping[str, Terms]:
        """Return the meanings of the headings."""
        return {self.title: tables.terms()}


HIERARCHY = Hierarchy()
