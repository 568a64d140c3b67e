"""The study `reproduce`: claims of papers, what is measured of each, and the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from probing.results.rows import Html
from probing.runs.study import Result, SectionPlace, Study
from probing.studies.claims import tables as claims
from probing.studies.claims.tables import CLAIMS

# --------------------------------------------------------------------------------------------------------------------
# The study of `reproduce`.
# --------------------------------------------------------------------------------------------------------------------


class Reproduce(Study):
    """What a paper claims, measured on the models at hand."""

    name, kind, title = "reproduce", "reproduction of a paper", "Claims of a paper"
    function = "probing.studies.claims.command:reproduce"
    schemas = (CLAIMS,)
    page = "reproduce.md"
    artifact = "reproduction"
    files: ClassVar[Mapping[str, str]] = {
        "claims.md": "The table as text.",
    }

    def tables(self, made: Result) -> list[Any]:
        """Return the claims."""
        return claims.tables(made.claims)

    def conclusions(self, made: Result) -> list[str]:
        """Return how many claims have each verdict."""
        return claims.conclusions(made.claims, made.results["title"])

    def about(self, made: Result) -> str:
        """Return the title of a page."""
        return f"claims of {made.results['paper']}"

    def section(self, made: Result, place: SectionPlace) -> Html:
        """Return a row for each claim, with the published and the measured value on one axis."""
        from probing.studies.claims.tables import claims_section

        return claims_section(made, place.anchor)


REPRODUCE = Reproduce()
