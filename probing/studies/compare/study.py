"""The study of `compare`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from probing.results.markup import Html
from probing.runs.study import Result, SectionPlace, Study, Terms
from probing.studies.compare.tables import AGREEMENT, TOP_EVERYWHERE, agreement_tables, everywhere_tables


class Compare(Study):
    """Whether the rankings of several runs agree."""

    name, kind, title = "compare", "comparison", "Agreement"
    function = "probing.studies.compare.command:compare"
    schemas = AGREEMENT, TOP_EVERYWHERE
    page = "comparing.md"
    artifact = "comparison"
    files: ClassVar[Mapping[str, str]] = {
        "figures/": "Heat maps of layers by layers, and accuracies.",
    }

    def tables(self, made: Result) -> list[Any]:
        """Return the agreement."""
        return agreement_tables(made.agreement, made.config["top"])

    def more_tables(self, made: Result) -> list[Any]:
        """Return the neurons at the top of all runs."""
        return everywhere_tables(made.top_everywhere)

    def answer(self, made: Result) -> list[str]:
        """Return the verdict on each pair of runs."""
        return list(made.results["verdicts"].values())

    def conclusions(self, made: Result) -> list[str]:
        """Return what is said of neurons at the top of all runs, and what the verdicts hold for."""
        return list(made.results["said"])

    def section(self, made: Result, place: SectionPlace) -> Html:
        """Return the agreement of each pair of runs."""
        from probing.studies.compare.section import agreement_section

        return agreement_section(made, place.anchor)

    def terms(self, made: Result) -> Mapping[str, Terms]:
        """Return the meanings of the headings."""
        from probing.studies.compare.section import TERMS

        return {self.title: TERMS}


COMPARE = Compare()
