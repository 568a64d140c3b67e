"""The studies `wic` and `sts`: what hidden states achieve without training, by cosine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from probing.results.rows import Html
from probing.runs.study import Result, SectionPlace, Study, Terms
from probing.studies.similarity import tables as schemas
from probing.studies.similarity.tables import sts_lines, sts_tables, wic_lines, wic_tables

# --------------------------------------------------------------------------------------------------------------------
# The studies of `wic` and `sts`.
# --------------------------------------------------------------------------------------------------------------------


class WordsInContext(Study):
    """Whether the cosine of a word's vectors tells its senses apart."""

    name, kind, title = "wic", "word-in-context evaluation", "Word senses"
    function = "probing.studies.similarity.commands:wic"
    in_several_processes = True
    schemas = schemas.WIC, schemas.WIC_CHOSEN
    page = "similarity.md"
    files: ClassVar[Mapping[str, str]] = {
        "figures/wic": "Accuracy by layer and space.",
    }

    def tables(self, made: Result) -> list[Any]:
        """Return accuracies by layer and space."""
        return wic_tables(made.wic, made.chosen)

    def conclusions(self, made: Result) -> list[str]:
        """Return what the results say, a sentence for each question."""
        return wic_lines(made.chosen)

    def section(self, made: Result, place: SectionPlace) -> Html:
        """Return the accuracy by layer, and the tables of the terminal."""
        from probing.studies.similarity.tables import senses_section

        return senses_section(made, place.anchor)

    def terms(self, made: Result) -> Mapping[str, Terms]:
        """Return the meanings of the headings."""
        from probing.studies.similarity.tables import EVALUATIONS

        return {"Words and sentences": EVALUATIONS}


class SentenceSimilarity(Study):
    """Whether the cosine of two sentences' vectors correlates with human scores."""

    name, kind, title = "sts", "similarity evaluation", "Similar sentences"
    function = "probing.studies.similarity.commands:sts"
    in_several_processes = True
    schemas = schemas.STS, schemas.STS_CHOSEN
    page = "similarity.md"
    files: ClassVar[Mapping[str, str]] = {
        "figures/sts_POOLING": "Correlation by layer and space, a panel for each set.",
    }

    def tables(self, made: Result) -> list[Any]:
        """Return correlations by layer and space."""
        return sts_tables(made.sts, made.chosen)

    def conclusions(self, made: Result) -> list[str]:
        """Return what the results say, a sentence for each question."""
        return sts_lines(made.chosen)

    def section(self, made: Result, place: SectionPlace) -> Html:
        """Return the correlation by layer, a chart for each set, and the tables of the terminal."""
        from probing.studies.similarity.tables import similarity_section

        return similarity_section(made, place.anchor)

    def terms(self, made: Result) -> Mapping[str, Terms]:
        """Return the meanings of the headings."""
        from probing.studies.similarity.tables import EVALUATIONS

        return {"Words and sentences": EVALUATIONS}


WIC, STS = WordsInContext(), SentenceSimilarity()
