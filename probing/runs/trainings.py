"""The results of `pretrain` and `series` as Python has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from probing.runs.result_folder import ResultFolder
from probing.tables.rows import Table


@dataclass(frozen=True, repr=False)
class Pretraining(ResultFolder):
    """A finished experiment of `pretrain`; its checkpoints are in `folder / "checkpoints"`.

    Args:
        folder: Folder of the run.
        config: The resolved configuration, without the name.
        results: The content of `results.json`.
        arms: A dict per arm, seed, checkpoint and layer, as in `arms.csv`.
        losses: A dict per arm, seed and step, as in `losses.csv`.
    """

    arms: Table
    losses: Table

    def tables(self) -> list[Any]:
        """Return the last checkpoints as a rich table."""
        from probing.tables.pretraining import tables

        return tables(vars(self))

    def conclusions(self) -> list[str]:
        """Return what the experiment says of each arm, and the verdict."""
        from probing.tables.pretraining import conclusions

        return conclusions(vars(self), self.results["growth"])


@dataclass(frozen=True, repr=False)
class CheckpointSeries(ResultFolder):
    """What `series` found.

    Args:
        folder: Folder of the results.
        config: The resolved configuration, without the name.
        results: The content of `results.json`.
        series: A dict per checkpoint, layer and measure, as in `series.csv`.
        series_outliers: A dict per checkpoint, layer and neuron that is an outlier, as in `series_outliers.csv`.
        emergence: A dict per quantity and layer, for outliers also neuron, as in `emergence.csv`.
    """

    series: Table
    series_outliers: Table
    emergence: Table

    def tables(self) -> list[Any]:
        """Return the series as rich tables."""
        from probing.tables.series import tables

        return tables(vars(self))

    def conclusions(self) -> list[str]:
        """Return when each quantity came, and in which order."""
        from probing.tables.series import conclusions

        return conclusions(vars(self))
