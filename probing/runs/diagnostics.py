"""The results of `hierarchy` and `cloze` as Python has them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from probing.runs.result_folder import ResultFolder
from probing.tables.rows import Table


@dataclass(frozen=True, repr=False)
class Hierarchy(ResultFolder):
    """What `hierarchy` found.

    Args:
        folder: Folder of the results.
        config: The resolved configuration, without the name.
        results: The content of `results.json`.
        hierarchy: A dict per task, condition and layer, as in `hierarchy.csv`.
        distractors: The same for each construction that holds the first auxiliary, or noun, as in `distractors.csv`.
    """

    hierarchy: Table
    distractors: Table

    def tables(self) -> list[Any]:
        """Return the shares as rich tables."""
        from probing.tables.hierarchy import tables

        return tables(vars(self))

    def conclusions(self) -> list[str]:
        """Return which layers go by which rule."""
        from probing.tables.hierarchy import conclusions

        return conclusions(vars(self))


@dataclass(frozen=True, repr=False)
class Cloze(ResultFolder):
    """What `cloze` found; tables that were not measured are empty.

    Args:
        folder: Folder of the results.
        config: The resolved configuration, without the name.
        results: The content of `results.json`.
        cloze: A dict per pair of words, as in `cloze.csv`.
        groups: A dict per group of pairs, as in `groups.csv`.
        changes: A dict per change of the text, as in `changes.csv`.
    """

    cloze: Table = field(default_factory=Table)
    groups: Table = field(default_factory=Table)
    changes: Table = field(default_factory=Table)

    def tables(self) -> list[Any]:
        """Return shares and losses as rich tables."""
        from probing.tables.cloze import tables

        return tables(vars(self))

    def conclusions(self) -> list[str]:
        """Return what was found, a sentence for each group and each change."""
        from probing.tables.cloze import conclusions

        return conclusions(vars(self))
