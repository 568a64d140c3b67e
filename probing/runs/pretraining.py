"""The results of `pretrain` as Python has them."""

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
