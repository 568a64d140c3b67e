"""`embeddings`: does the start of a document weigh more in its embedding than the end, and can that be undone?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from probing.results.rows import Html
from probing.runs.study import Result, SectionPlace, Study, Terms
from probing.studies.embeddings import tables

# --------------------------------------------------------------------------------------------------------------------
# The study of `embeddings`.
# --------------------------------------------------------------------------------------------------------------------


class Embeddings(Study):
    """Whether the start of a document weighs more in its embedding than the end."""

    name, kind, title = "embeddings", "position bias of embeddings", "Position bias of embeddings"
    function = "probing.studies.embeddings.command:embeddings"
    in_several_processes = True
    schemas = tables.BIAS, tables.PLACES, tables.SIMILARITY
    page = "embeddings.md"
    files: ClassVar[Mapping[str, str]] = {
        "figures/embeddings": "What an edit changes, and what a sentence weighs, by its place in the document.",
    }

    def tables(self, made: Result) -> list[Any]:
        """Return start, middle and end, and the bias of all vectors."""
        return tables.tables(made.by_name)

    def answer(self, made: Result) -> list[str]:
        """Return whether the start counts more than the end."""
        from probing.page.sources import model_name

        return tables.answer(made.by_name, model_name(made.config))

    def conclusions(self, made: Result) -> list[str]:
        """Return what the bias is held against, and what corrections do to it."""
        return tables.conclusions(made.by_name, made.results)

    def about(self, made: Result) -> str:
        """Return the title of a page."""
        from probing.page.sources import model_name

        return f"position bias of embeddings of {model_name(made.config)}"

    def section(self, made: Result, place: SectionPlace) -> Html:
        """Return the curves over places, and the tables of the terminal."""
        from probing.studies.embeddings.tables import embeddings_section

        return embeddings_section(made, place.anchor)

    def terms(self, made: Result) -> Mapping[str, Terms]:
        """Return the meanings of the headings."""
        return {self.title: tables.terms()}


EMBEDDINGS = Embeddings()
