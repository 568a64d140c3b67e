"""The results of `wic` and `sts` as Python has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from probing.runs.result_folder import ResultFolder
from probing.tables.rows import Table


@dataclass(frozen=True, repr=False)
class WordsInContext(ResultFolder):
    """The results of `wic`.

    Args:
        folder: Folder of the evaluation.
        config: The resolved configuration, without the name.
        results: The content of `results.json`.
        wic: A dict per layer and space, as in `wic.csv`; also as `layers`.
        chosen: A dict per protocol and space, as in `chosen.csv`.
    """

    wic: Table
    chosen: Table

    @property
    def layers(self) -> Table:
        """A dict per layer and space, as in `wic.csv`."""
        return self.wic

    def tables(self) -> list[Any]:
        """Return the results as rich tables."""
        from probing.tables.downstream import wic_tables

        return wic_tables(self.wic, self.chosen)

    def conclusions(self) -> list[str]:
        """Return what the results say, a sentence for each question."""
        from probing.tables.downstream import wic_lines

        return wic_lines(self.chosen)


@dataclass(frozen=True, repr=False)
class SentenceSimilarity(ResultFolder):
    """The results of `sts`.

    Args:
        folder: Folder of the evaluation.
        config: The resolved configuration, without the name.
        results: The content of `results.json`.
        sts: A dict per set, pooling, layer, space and aggregation, as in `sts.csv`; also as `layers`.
        chosen: A dict per protocol, set, pooling, space and aggregation, as in `chosen.csv`.
    """

    sts: Table
    chosen: Table

    @property
    def layers(self) -> Table:
        """A dict per set, pooling, layer, space and aggregation, as in `sts.csv`."""
        return self.sts

    def tables(self) -> list[Any]:
        """Return the results as rich tables."""
        from probing.tables.downstream import sts_tables

        return sts_tables(self.sts, self.chosen)

    def conclusions(self) -> list[str]:
        """Return what the results say, a sentence for each question."""
        from probing.tables.downstream import sts_lines

        return sts_lines(self.chosen)
