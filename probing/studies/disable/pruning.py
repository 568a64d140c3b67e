"""Disables heads or layers cumulatively until none is left: in the order of importance, its reverse, and at random."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.disabling.probed_task import Kind, PassStore, UnitType
from probing.disabling.subject import Rows, tested
from probing.readouts.forward import Forward, Intact, Padded, Readers, Readout
from probing.readouts.later_blocks import Change as OfOutputs
from probing.readouts.later_blocks import LaterBlocks
from probing.readouts.names import measure_of
from probing.runtime.progress import counted
from probing.statistics.chance import percentile_of, rank_p
from probing.studies.disable.importance import importance

# Number of random orders.
N_RANDOM = 20
IMPORTANCE, REVERSE, RANDOM = "importance", "reverse", "random"

Head = tuple[int, int]
Counts = NDArray[np.float64]


@dataclass(frozen=True)
class Unit:
    """What is disabled at a time: heads of one block.

    Args:
        name: Its name in tables.
        heads: The block and the number of each head, from 1.
    """

    name: str
    heads: tuple[Head, ...]


def units_of(units: UnitType, blocks: Sequence[int], n_heads: int) -> list[Unit]:
    """Return all heads of some blocks, or these blocks."""
    if units == "layers":
        return [Unit(str(block), tuple((block, head) for head in range(1, n_heads + 1))) for block in blocks]
    return [Unit(f"{block}-{head}", ((block, head),)) for block in blocks for head in range(1, n_heads + 1)]


@dataclass(frozen=True, eq=False)
class Together:
    """Several heads are disabled together.

    Args:
        heads: The block and the number of each head; there is one at least.
        stands: What stands in the place of the heads' outputs, shape (n_layers, width).
        d_head: Width of a head's output.
    """

    heads: frozenset[Head]
    stands: Tensor
    d_head: int

    @property
    def layer(self) -> int:
        """The layer below the first block that is changed."""
        return min(block for block, _ in self.heads) - 1

    def of_blocks(self) -> dict[int, OfOutputs]:
        """Return for each changed block the function that changes the input of its output projection."""
        return {block: self._of_block(block) for block in sorted({block for block, _ in self.heads})}

    def _of_block(self, block: int) -> OfOutputs:
        stands, width = self.stands[block - 1], self.stands.shape[1]
        gone = torch.zeros(width, dtype=torch.bool, device=stands.device)
        for head in (head for of, head in self.heads if of == block):
            gone[(head - 1) * self.d_head : head * self.d_head] = True

        def change(outputs: Tensor) -> Tensor:
            kept = torch.where(gone, stands.to(outputs.dtype), outputs[..., :width])
            return torch.cat([kept, outputs[..., width:]], dim=-1)

        return change

    def later(
        self, model: LaterBlocks, batch: Padded, beside: Any, states: Tensor, layers: Sequence[int]
    ) -> dict[int, Tensor]:
        """Return later hidden states while they are disabled."""
        return model.run(batch.inputs, self.layer + 1, states, beside, layers, changes=self.of_blocks())


def counts(n_units: int, share: float) -> list[int]:
    """Return how many units are disabled at each step, from 0 to all of them.

    Args:
        n_units: Number of units.
        share: Share of the units that is added at each step; at least one unit is added.
    """
    step = max(1, round(share * n_units))
    return [*range(0, n_units, step), n_units]


def scores(gradients: NDArray[np.float32], n: NDArray[np.int64], units: Sequence[Unit]) -> NDArray[np.float64]:
    """Return the importance of units: the mean over items of the absolute gradient of a factor of its output.

    The importance of a head is divided by the Euclidean norm of the importances of all heads of the layer (Michel et
    al. 2019, section 4.1). A layer has one factor for all of its heads; its gradient is the sum of their gradients.

    Args:
        gradients: Of each item's loss, shape (n_items, n_layers, heads).
        n: Number of examples of each item, shape (n_items,); items without any do not count.
        units: The units.
    """
    there = gradients[n > 0].astype(np.float64)
    norms = np.linalg.norm(np.abs(there).mean(0), axis=1)
    found = []
    for unit in units:
        block = unit.heads[0][0] - 1
        own = np.abs(there[:, block, [head - 1 for _, head in unit.heads]].sum(1)).mean()
        is_head = len(unit.heads) == 1
        found.append(own / norms[block] if is_head and norms[block] else own)
    return np.array(found)


def by_importance(
    units: Sequence[Unit], at: Sequence[int], estimate: Callable[[int, Sequence[Unit]], NDArray[np.float64]]
) -> list[Unit]:
    """Return the units in the order in which they are disabled, the least important first, estimated at each step.

    Args:
        units: The units.
        at: How many are disabled at each step.
        estimate: Takes the number of a step and what is disabled by then, and returns the importance of all units.
    """
    order: list[Unit] = []
    for step, upto in enumerate(at[1:]):
        importance = estimate(step, order)
        left = [i for i, unit in enumerate(units) if unit not in order]
        left.sort(key=lambda i: (importance[i], i))
        order += [units[i] for i in left[: upto - len(order)]]
    return order


def all_orders(importance: Sequence[Unit], units: Sequence[Unit], seed: int) -> list[tuple[str, int, list[Unit]]]:
    """Return the order by importance, its reverse and random ones, each with its name and the number of its draw."""
    found = [(IMPORTANCE, 0, list(importance)), (REVERSE, 0, list(importance)[::-1])]
    for draw in range(1, N_RANDOM + 1):
        order = np.random.default_rng([seed, draw]).permutation(len(units))
        found.append((RANDOM, draw, [units[i] for i in order]))
    return found


@dataclass(frozen=True)
class Curve:
    """What a readout gives as more and more is disabled.

    Args:
        order: The order's name.
        draw: Number of the random order, from 1; 0 for others.
        units: The units in this order.
        at: How many are disabled at each step.
        sums: The measure's sum over the examples of each item at each step, shape (n_steps, n_items).
    """

    order: str
    draw: int
    units: Sequence[Unit]
    at: Sequence[int]
    sums: Counts

    def area(self) -> Counts:
        """Return the area under the curve over the share that is disabled, of each item, shape (n_items,)."""
        share = np.array(self.at) / self.at[-1]
        return np.asarray((np.diff(share)[:, None] * (self.sums[1:] + self.sums[:-1]) / 2).sum(0))


def curve_rows(curves: Sequence[Curve], n: NDArray[np.int64], named: Mapping[str, Any]) -> Rows:
    """Return the rows of `pruning.csv`: `effect` is what changes from the intact model, paired by item.

    Args:
        curves: A curve for each order.
        n: Number of examples of each item, shape (n_items,).
        named: Columns that all rows have: `units`, `kind`, `readout`, `layer`.
    """
    is_share = measure_of(str(named["readout"])).is_share
    rows = []
    for curve in curves:
        for step, upto in enumerate(curve.at):
            added = curve.units[curve.at[step - 1] if step else 0 : upto]
            told = tested(curve.sums[step], curve.sums[0], n, is_share)
            rows.append({
                **named, "order": curve.order, "draw": curve.draw, "n_disabled": upto, "share": upto / curve.at[-1],
                "value": float(curve.sums[step].sum() / n.sum()),
                **{name: told[name] for name in ("effect", "low", "high", "n")},
                "disabled": " ".join(unit.name for unit in added),
            })  # fmt: skip
    return rows


def area_rows(curves: Sequence[Curve], n: NDArray[np.int64], named: Mapping[str, Any]) -> Rows:
    """Return the rows of `pruning_areas.csv`: the area under the curve of an order, beside that of random orders.

    `effect` is the difference from the mean of the random orders, paired by item. `percentile` is the percentage of
    random orders that keep less, and `p_value` is one-sided, by rank: the share of orders, among the random ones and
    the order itself, that keep at least as much (for the reverse order, at most as much).

    Args:
        curves: A curve for each order.
        n: Number of examples of each item, shape (n_items,).
        named: Columns that all rows have.
    """
    sign = measure_of(str(named["readout"])).sign
    drawn = np.stack([curve.area() for curve in curves if curve.order == RANDOM])
    random = sign * drawn.sum(1) / n.sum()
    rows = []
    for curve in curves:
        if curve.order == RANDOM:
            continue
        own = curve.area()
        area = sign * own.sum() / n.sum()
        away = 1 if curve.order == IMPORTANCE else -1
        told = tested(own, drawn.mean(0), n, is_share=False)
        rows.append({
            **named, "order": curve.order, "area": float(sign * area), "random_area": float(sign * random.mean()),
            "effect": told["effect"], "low": told["low"], "high": told["high"],
            "percentile": percentile_of(area, random), "p_value": rank_p(away * area, away * random),
            "n": told["n"],
        })  # fmt: skip
    return rows


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
    """

    readers: Readers
    units: UnitType
    kind: Kind
    stands: Tensor
    blocks: Sequence[int]
    share: float
    seed: int
    batch_tokens: int

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
            what = f"{self.units} disabled together, {readout.name}"
            with counted(what, len(first), len(first) - len(left)) as advance:
                for index in left:
                    change = self._together(files[index]) if files[index] else Intact(self.blocks[0] - 1)
                    store.put(index, {"right": forward.read(change, readout)[-1].clone()})
                    advance(1)
        found = {index: store.get(index)["right"].numpy().astype(np.float64) for index in first.values()}
        return {index: found[file] for index, file in file_of.items()}
