"""Runs the passes in which more and more is disabled, and goes on where a killed run stopped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.disabling.effects import Rows
from probing.disabling.importance import importance
from probing.disabling.pruning import (
    N_RANDOM,
    Curve,
    Head,
    Together,
    Unit,
    all_orders,
    area_rows,
    by_importance,
    counts,
    curve_rows,
    scores,
    units_of,
)
from probing.disabling.store import PassStore
from probing.disabling.units import Kind, UnitType
from probing.readouts.forward import Forward, Intact, Readers
from probing.readouts.readout import Readout
from probing.runtime.terminal import counted


def n_files(n_units: int, share: float) -> int:
    """Return how many files the passes have at most."""
    n_steps = len(counts(n_units, share))
    return 1 + n_steps * (3 + N_RANDOM)


@dataclass(frozen=True)
class Cumulative:
    """What is disabled cumulatively, and how.

    Args:
        readers: The model.
        units: Whether heads or layers are disabled.
        kind: What stands in their place.
        stands: The replacement of the outputs of heads, shape (n_layers, width).
        blocks: The blocks that are changed.
        share: Share of the units that is added at each step.
        seed: Seed of the random orders.
        batch_tokens: Most tokens in a batch, padding included.
        shows_progress: Whether there is a progress bar.
    """

    readers: Readers
    units: UnitType
    kind: Kind
    stands: Tensor
    blocks: Sequence[int]
    share: float
    seed: int
    batch_tokens: int
    shows_progress: bool

    def rows(self, chosen_on: Readout, reported_on: Readout, store: PassStore) -> tuple[Rows, Rows]:
        """Return the rows of `pruning.csv` and of `pruning_areas.csv`.

        Args:
            chosen_on: The readout whose losses decide on the order.
            reported_on: The readout that is reported.
            store: Where passes are stored.
        """
        units = units_of(self.units, self.blocks, self.readers.model.heads.n_heads)
        at = counts(len(units), self.share)

        def estimate(step: int, gone: Sequence[Unit]) -> NDArray[np.float64]:
            if store.unfinished([1 + step]):
                store.put(1 + step, {"importance": torch.from_numpy(self._importance(chosen_on, units, gone))})
            found: NDArray[np.float64] = store.get(1 + step)["importance"].numpy()
            return found

        orders = all_orders(by_importance(units, at, estimate), units, self.seed)
        files = {
            1 + len(at) * (1 + rank) + step: order[:upto]
            for rank, (_, _, order) in enumerate(orders)
            for step, upto in enumerate(at)
        }
        sums = self._sums(files, reported_on, store)
        curves = [
            Curve(name, draw, order, at, np.stack([sums[1 + len(at) * (1 + rank) + step] for step in range(len(at))]))
            for rank, (name, draw, order) in enumerate(orders)
        ]
        layer = max(reported_on.layers(1))
        named = {"units": self.units, "kind": self.kind, "readout": reported_on.name, "layer": layer}
        return curve_rows(curves, reported_on.n, named), area_rows(curves, reported_on.n, named)

    def _importance(self, readout: Readout, units: Sequence[Unit], gone: Sequence[Unit]) -> NDArray[np.float64]:
        """Return the importance of all units while some are disabled."""
        changes = self._together(gone).of_blocks() if gone else None
        model, pad = self.readers.model, self.readers.pad_token_id
        found = importance(model, pad, readout, self.batch_tokens, changes)
        return scores(found.numpy(), readout.n, units)

    def _together(self, gone: Sequence[Unit]) -> Together:
        heads: frozenset[Head] = frozenset(head for unit in gone for head in unit.heads)
        return Together(heads, self.stands, self.readers.model.heads.d_head)

    def _sums(self, files: dict[int, list[Unit]], readout: Readout, store: PassStore) -> dict[int, NDArray[np.float64]]:
        """Return what each pass gives in the last layer, shape (n_items,), by the index of its file.

        A set of units that occurs in several orders, such as the empty set or the set of all, has only one file.
        """
        first: dict[frozenset[str], int] = {}
        file_of = {
            index: first.setdefault(frozenset(unit.name for unit in gone), index) for index, gone in files.items()
        }
        if left := store.unfinished(sorted(first.values())):
            forward = Forward(self.readers, readout.text, self.batch_tokens)
            with counted(f"{self.units} disabled together, {readout.name}", len(first), self.shows_progress) as advance:
                advance(len(first) - len(left))
                for index in left:
                    change = self._together(files[index]) if files[index] else Intact(self.blocks[0] - 1)
                    store.put(index, {"right": forward.read(change, readout)[-1].clone()})
                    advance(1)
        found = {index: store.get(index)["right"].numpy().astype(np.float64) for index in first.values()}
        return {index: found[file] for index, file in file_of.items()}
