"""The study of `compare`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from probing.results.markup import Html
from probing.runs.result import Result
from probing.runs.study import SectionPlace, Study, Terms
from probing.schemas.compare import AGREEMENT, TOP_EVERYWHERE
from probing.tables.agreement import agreement_tables


class Compare(Study):
    """Whether the rankings of several runs agree."""

    name, kind, title = "compare", "comparison", "Agreement"
    function = "probing.commands.compare:compare"
    schemas = AGREEMENT, TOP_EVERYWHERE
    page = "comparing.md"
    files: ClassVar[Mapping[str, str]] = {
        "figures/": "Heat maps of layers by layers, and accuracies.",
    }

    def tables(self, made: Result) -> list[Any]:
        """Return the agreement."""
        return agreement_tables(made.agreement)

    def conclusions(self, made: Result) -> list[str]:
        """Return what is said of neurons at the top of all runs."""
        return list(made.results["said"])

    def section(self, made: Result, place: SectionPlace) -> Html:
        """Return the agreement of each pair of runs."""
        from probing.page.sections.comparison import agreement_section

        return agreement_section(made, place.anchor)

    def terms(self, made: Result) -> Mapping[str, Terms]:
        """Return the meanings of the headings."""
        from probing.page.sections.terms import AGREEMENT as AGREEMENT_TERMS

        return {self.title: AGREEMENT_TERMS}


COMPARE = Compare()
