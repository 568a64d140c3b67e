"""The study `geometry`: outlier dimensions, anisotropy, over-smoothing and their sources."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from probing.results.rows import Html, Table
from probing.runs.study import Result, SectionPlace, Study, Terms
from probing.studies.geometry import tables
from probing.studies.geometry.extremes import tables as extremes
from probing.studies.geometry.neurons import tables as neuron_interventions
from probing.studies.geometry.position.tables import position_conclusions, position_tables
from probing.studies.geometry.schema import SCHEMAS
from probing.tables.heads import first_token_conclusions, first_token_tables

# --------------------------------------------------------------------------------------------------------------------
# The study of `geometry`.
# --------------------------------------------------------------------------------------------------------------------

# The tables of what is measured inside the model.
_INSIDE = ("smoothing", "interventions", "norms", "norm_changes", "path", "first_row")


class Geometry(Study):
    """Outlier dimensions, anisotropy, the similarity of tokens, and what the model does with its neurons."""

    name, kind, title = "geometry", "geometry", "Geometry"
    function = "probing.studies.geometry.command:geometry"
    in_several_processes = True
    schemas = SCHEMAS
    page = "geometry.md"
    files: ClassVar[Mapping[str, str]] = {
        "transforms/KIND.safetensors": "The fitted transforms.",
        "figures/": "Mean cosine, outliers and similarity by layer, position, and what was measured inside the model.",
    }

    def tables(self, made: Result) -> list[Any]:
        """Return the measurements."""
        from probing.studies.geometry.inside.report import inside_tables

        own = [*tables.tables(made), *first_token_tables(made.first_token)]
        own += extremes.tables(made.by_name)
        own += position_tables(made.by_name)
        return [*own, *inside_tables(*_inside(made)), *neuron_interventions.tables(made.neuron_interventions)]

    def conclusions(self, made: Result) -> list[str]:
        """Return what the measurements say, a sentence for each question."""
        from probing.studies.geometry.inside.report import inside_conclusions

        clipped = {int(layer): neurons for layer, neurons in made.results["clipped"].items()}
        lines = [*tables.conclusions(made, clipped), *first_token_conclusions(made.first_token)]
        lines += extremes.conclusions(made.by_name)
        lines += position_conclusions(made.by_name)
        lines += inside_conclusions(*_inside(made))
        return [*lines, *neuron_interventions.conclusions(made.neuron_interventions)]

    def section(self, made: Result, place: SectionPlace) -> Html:
        """Return the measures of each layer, its outliers, and the measurements inside the model."""
        from probing.studies.geometry.section import geometry_section

        return geometry_section(made, place.anchor)

    def terms(self, made: Result) -> Mapping[str, Terms]:
        """Return the meanings of the headings."""
        from probing.studies.geometry import section
        from probing.studies.geometry.section import EXTREMES, POSITION

        changed = {"Changed neurons": section.CHANGED_NEURONS} if made.neuron_interventions else {}
        if made.massive:
            changed["Massive activations and attention sinks"] = EXTREMES
        if made.position_split:
            changed["Position"] = POSITION
        return {self.title: section.GEOMETRY, **changed}


def _inside(made: Result) -> list[Table]:
    return [made.by_name[name] for name in _INSIDE]


GEOMETRY = Geometry()
