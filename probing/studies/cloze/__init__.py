"""The study `cloze`: what a model predicts at a mask, between two words and in text that was changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from probing.runs.study import Result, Study, Terms
from probing.studies.cloze import tables

# --------------------------------------------------------------------------------------------------------------------
# The study of `cloze`.
# --------------------------------------------------------------------------------------------------------------------


class Cloze(Study):
    """What a model predicts at masks, and what it loses in changed text."""

    name, kind, title = "cloze", "predictions at masks", "At the mask"
    function = "probing.studies.cloze.command:cloze"
    schemas = tables.CLOZE, tables.GROUPS, tables.CHANGES
    page = "cloze.md"
    files: ClassVar[Mapping[str, str]] = {
        "figures/": "Shares by group, and losses.",
    }

    def tables(self, made: Result) -> list[Any]:
        """Return shares and losses."""
        return tables.tables(made.by_name)

    def conclusions(self, made: Result) -> list[str]:
        """Return what was found, a sentence for each group and each change."""
        return tables.conclusions(made.by_name)

    def about(self, made: Result) -> str:
        """Return the title of a page."""
        from probing.page.sources import model_name

        return f"predictions of {model_name(made.config)} at masks"

    def terms(self, made: Result) -> Mapping[str, Terms]:
        """Return the meanings of the headings."""
        return {self.title: tables.terms()}


CLOZE = Cloze()
