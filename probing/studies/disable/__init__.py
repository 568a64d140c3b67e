"""The study `disable`: what a model loses without a head or a layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from probing.results.rows import Html
from probing.runs.study import Result, SectionPlace, Study, Terms
from probing.studies.disable import tables
from probing.studies.disable.schema import SCHEMAS
from probing.studies.disable.tables import quantised_sentences, quantised_tables, weight_sentences, weight_tables

# --------------------------------------------------------------------------------------------------------------------
# The study of `disable`.
# --------------------------------------------------------------------------------------------------------------------


class Disable(Study):
    """What a model loses without a head or a layer."""

    name, kind, title = "disable", "disabling of heads and layers", "Without heads and layers"
    function = "probing.studies.disable.command:disable"
    in_several_processes = True
    schemas = SCHEMAS
    page = "disable.md"
    files: ClassVar[Mapping[str, str]] = {
        "figures/": "Effects by layer and head, and pruning curves.",
    }

    def tables(self, made: Result) -> list[Any]:
        """Return the effects."""
        return [*tables.tables(made.by_name), *weight_tables(made.by_name), *quantised_tables(made.by_name)]

    def conclusions(self, made: Result) -> list[str]:
        """Return what the effects say, a sentence for each question."""
        of = made.by_name
        further = [
            line
            for say in (weight_sentences, quantised_sentences)
            for readout in tables.readouts_of(of)
            for line in say(of, readout)
        ]
        return [*tables.tuned_sentences(made.results), *tables.conclusions(of), *further]

    def about(self, made: Result) -> str:
        """Return the title of a page."""
        from probing.page.sources import model_name

        return f"attention heads of {model_name(made.config)}"

    def section(self, made: Result, place: SectionPlace) -> Html:
        """Return maps of heads, the tables of the terminal, and pruning curves."""
        from probing.studies.disable.section import disabling_section

        return disabling_section(made, place.anchor)

    def terms(self, made: Result) -> Mapping[str, Terms]:
        """Return the meanings of the headings."""
        from probing.studies.disable.section import DISABLED, PRUNED, ROUNDED

        further = {"Pruned weights": (PRUNED, "weight_pruning"), "Rounded numbers": (ROUNDED, "quantised")}
        return {self.title: DISABLED} | {title: terms for title, (terms, name) in further.items() if made.by_name[name]}


DISABLE = Disable()
