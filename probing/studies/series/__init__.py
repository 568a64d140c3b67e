"""The study `series`: the measures of `fit`, `geometry` and `attention` over the checkpoints of one training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from probing.results.rows import Html
from probing.runs.study import Result, SectionPlace, Study, Terms
from probing.studies.series import tables

# --------------------------------------------------------------------------------------------------------------------
# The study of `series`.
# --------------------------------------------------------------------------------------------------------------------


class Series(Study):
    """The measures of several commands over the checkpoints of one training."""

    name, kind, title = "series", "series of checkpoints", "Checkpoints"
    function = "probing.studies.series.command:series"
    schemas = tables.SERIES, tables.SERIES_OUTLIERS, tables.EMERGENCE
    page = "series.md"
    files: ClassVar[Mapping[str, str]] = {
        "figures/series": "Each measure over the steps.",
    }

    def tables(self, made: Result) -> list[Any]:
        """Return the series."""
        return tables.tables(made.by_name)

    def conclusions(self, made: Result) -> list[str]:
        """Return when each quantity came, and in which order."""
        return tables.conclusions(made.by_name)

    def about(self, made: Result) -> str:
        """Return the title of a page."""
        first = made.results["checkpoints"][0]
        return f"checkpoints of {tables.series_name(first['model'], first['revision'])}"

    def section(self, made: Result, place: SectionPlace) -> Html:
        """Return what came first, and the measures over the steps."""
        from probing.studies.series.section import series_section

        return series_section(made, place.anchor)

    def terms(self, made: Result) -> Mapping[str, Terms]:
        """Return the meanings of the headings."""
        from probing.studies.series.section import SERIES_TERMS

        return {self.title: SERIES_TERMS}


SERIES = Series()
