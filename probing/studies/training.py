"""The studies of `pretrain` and `series`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from probing.results.markup import Html
from probing.runs.result import Result
from probing.runs.study import SectionPlace, Study, Terms
from probing.schemas.training import ARMS, EMERGENCE, LOSSES, SERIES_OUTLIERS
from probing.schemas.training import SERIES as SERIES_SCHEMA
from probing.tables import pretraining, series


class Pretrain(Study):
    """Encoders that differ only in what tells them positions."""

    name, kind = "pretrain", "pretraining with and without positions"
    title = "Encoders with and without positions"
    function = "probing.commands.pretrain:pretrain"
    in_several_processes = True
    schemas = ARMS, LOSSES
    page = "pretraining.md"
    files: ClassVar[Mapping[str, str]] = {
        "checkpoints/ARM-seedN/stepNNNN/": "Each checkpoint, an ordinary model folder.",
        "figures/": "Losses, farthest means and positions.",
    }

    def tables(self, made: Result) -> list[Any]:
        """Return the last checkpoints."""
        return pretraining.tables(made.by_name)

    def conclusions(self, made: Result) -> list[str]:
        """Return what the experiment says of each arm, and the verdict."""
        return pretraining.conclusions(made.by_name, made.results["growth"])

    def about(self, made: Result) -> str:
        """Return the title of a page."""
        return "encoders with and without positions"

    def section(self, made: Result, place: SectionPlace) -> Html:
        """Return the losses, and outliers and positions by layer after the last step."""
        from probing.page.sections.pretraining import pretraining_section

        return pretraining_section(made, place.anchor)

    def terms(self, made: Result) -> Mapping[str, Terms]:
        """Return the meanings of the headings."""
        from probing.page.sections import terms

        return {self.title: terms.PRETRAINING}


class Series(Study):
    """The measures of several commands over the checkpoints of one training."""

    name, kind, title = "series", "series of checkpoints", "Checkpoints"
    function = "probing.commands.series:series"
    schemas = SERIES_SCHEMA, SERIES_OUTLIERS, EMERGENCE
    page = "series.md"
    files: ClassVar[Mapping[str, str]] = {
        "figures/series": "Each measure over the steps.",
    }

    def tables(self, made: Result) -> list[Any]:
        """Return the series."""
        return series.tables(made.by_name)

    def conclusions(self, made: Result) -> list[str]:
        """Return when each quantity came, and in which order."""
        return series.conclusions(made.by_name)

    def about(self, made: Result) -> str:
        """Return the title of a page."""
        first = made.results["checkpoints"][0]
        return f"checkpoints of {series.series_name(first['model'], first['revision'])}"

    def section(self, made: Result, place: SectionPlace) -> Html:
        """Return what came first, and the measures over the steps."""
        from probing.page.sections.series import series_section

        return series_section(made, place.anchor)

    def terms(self, made: Result) -> Mapping[str, Terms]:
        """Return the meanings of the headings."""
        from probing.page.sections import terms

        return {self.title: terms.SERIES}


PRETRAIN, SERIES = Pretrain(), Series()
