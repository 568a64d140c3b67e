"""The study `compare`: whether the rankings of several runs agree."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from probing.results.rows import Html, read_measured
from probing.results.schema import listed
from probing.runs.folder import read_json, read_yaml
from probing.runs.study import Result, SectionPlace, Study, Terms
from probing.studies.compare import tables as compare_tables
from probing.studies.compare.tables import (
    AGREEMENT,
    OPTIONS,
    RECIPES,
    TOP_EVERYWHERE,
    TUNINGS,
    agreement_tables,
    everywhere_tables,
)

# --------------------------------------------------------------------------------------------------------------------
# The study of `compare`: of rankings, or of the scores of runs of `finetune`.
# --------------------------------------------------------------------------------------------------------------------

# What a comparison of runs of `finetune` is about.
_RECIPES = "Recipes of tuning"


class Compare(Study):
    """Whether the rankings of several runs agree; of runs of `finetune`, which recipe is better."""

    name, kind, title = "compare", "comparison", "Agreement"
    function = "probing.studies.compare.command:compare"
    schemas = AGREEMENT, TOP_EVERYWHERE, RECIPES, OPTIONS
    page = "comparing.md"
    artifact = "comparison"
    files: ClassVar[Mapping[str, str]] = {
        "figures/": "Heat maps of layers by layers, and accuracies; of runs of `finetune`, `recipes`, the differences.",
    }

    def read(self, folder: Path) -> Result:
        """Read a comparison, whose tables are those of rankings, or those of recipes."""
        results = read_json(folder / "results.json")
        schemas = (RECIPES, OPTIONS) if results.get("compared") == TUNINGS else (AGREEMENT, TOP_EVERYWHERE)
        tables = {schema.name: read_measured(folder / f"{schema.name}.csv", schema) for schema in schemas}
        return Result(self, folder, read_yaml(folder / "config.yaml"), results, tables)

    def is_of_recipes(self, made: Result) -> bool:
        """Return whether runs of `finetune` were compared."""
        return bool(made.results.get("compared") == TUNINGS)

    def tables(self, made: Result) -> list[Any]:
        """Return the agreement; of recipes, their scores and options."""
        if self.is_of_recipes(made):
            return compare_tables.recipe_tables(made.recipes, made.options)
        return agreement_tables(made.agreement, made.config["top"])

    def more_tables(self, made: Result) -> list[Any]:
        """Return the neurons at the top of all runs."""
        return everywhere_tables(made.top_everywhere)

    def answer(self, made: Result) -> list[str]:
        """Return the verdict on each pair of runs."""
        if self.is_of_recipes(made):
            return compare_tables.answer(made.recipes, made.results)
        return list(made.results["verdicts"].values())

    def conclusions(self, made: Result) -> list[str]:
        """Return what is said of neurons at the top of all runs, and what the verdicts hold for."""
        if self.is_of_recipes(made):
            return compare_tables.conclusions(made.recipes, made.options, made.results)
        return list(made.results["said"])

    def about(self, made: Result) -> str:
        """Return the title of a page that shows these results alone."""
        if self.is_of_recipes(made):
            return f"recipes of tuning: {listed(list(made.results['runs']))}"
        return super().about(made)

    def heading(self, made: Result) -> str:
        """Return the heading of the section on a page."""
        return f"{_RECIPES}: {made.folder.name}" if self.is_of_recipes(made) else super().heading(made)

    def section(self, made: Result, place: SectionPlace) -> Html:
        """Return the agreement of each pair of runs; of recipes, what the terminal shows."""
        if self.is_of_recipes(made):
            return super().section(made, place)
        from probing.studies.compare.tables import agreement_section

        return agreement_section(made, place.anchor)

    def terms(self, made: Result) -> Mapping[str, Terms]:
        """Return the meanings of the headings."""
        if self.is_of_recipes(made):
            return {_RECIPES: compare_tables.RECIPE_TERMS}
        from probing.studies.compare.tables import TERMS

        return {self.title: TERMS}


COMPARE = Compare()
