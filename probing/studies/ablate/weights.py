"""Readouts of a model as numbers are rounded, weights are pruned, and heads or layers are ablated cumulatively."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.activations.store import WorkStore, batches
from probing.interventions import ACTIVATIONS, NOTHING, OUTLIERS, RANDOM, measure_of
from probing.interventions.forward import Change, Forward, LaterBlocks, Loss, ReadableText, Readers, Readout, padded
from probing.interventions.heads import Head, UnitType, joint_change, replaced_heads
from probing.interventions.parameters import (
    PrunedShare,
    Rounding,
    RoundingRange,
    first_block,
    matrices,
    pruned,
    rounding_change,
    roundings,
)
from probing.interventions.passes import Rows, Sums, run_last_layer, tested, valued, with_draws
from probing.statistics import mean_interval
from probing.statistics.chance import correct_p_values, percentile_of, rank_p
from probing.studies.ablate.tables import MAGNITUDE, MEAN

# Shares of the weights that are pruned, in percent; number of random draws.
PERCENT = tuple(range(0, 100, 10))
N_DRAWS = 10
N_FILES = 1 + len(PERCENT) * (1 + N_DRAWS)


def pruned_weights(
    readers: Readers, blocks: Sequence[int], seed: int, batch_tokens: int, readout: Readout, store: WorkStore
) -> Rows:
    """Return the rows of `weight_pruning.csv` for a readout, running the passes that are not stored."""
    shares = [PrunedShare(percent, draw) for draw in range(N_DRAWS + 1) for percent in PERCENT if percent or not draw]
    files = {1 + share.draw * len(PERCENT) + PERCENT.index(share.percent): share for share in shares}
    weights, layer = matrices(readers.model, blocks), first_block(readers.model, blocks) - 1

    def change(share: PrunedShare) -> Change:
        return Change(layer, parameters=partial(pruned, weights, share.percent, share.draw, seed))

    passes = Forward(readers, readout.text, batch_tokens)
    item_sums = run_last_layer(passes, change, readout, files, store, f"pruned weights, {readout.name}")
    n_weights = sum(weight.numel() for weight in weights)
    return weight_rows(
        item_sums, readout.n, {"readout": readout.name, "layer": max(readout.layers(1)), "n_weights": n_weights}
    )


def weight_rows(item_sums: Mapping[PrunedShare, Sums], n: NDArray[np.int64], named: Mapping[str, Any]) -> Rows:
    """Return the rows of `weight_pruning.csv`: by magnitude, for each random draw, and for the mean of the draws.

    `effect` is the difference from the whole model, paired by item; for the mean, its confidence interval is over items
    and draws. p-values are two-sided, over items, and corrected (Holm) for the shares of an order. Each item of a pass
    has a sum over its n examples, shape (n_items,).
    """
    is_share, whole = measure_of(str(named["readout"])).is_share, item_sums[PrunedShare(0, 0)]

    def row(percent: int, order: str, draw: int, sums: Sums) -> dict[str, Any]:
        about = {**named, "order": order, "draw": draw, "share": percent / 100}
        return about | valued(sums, whole, n, is_share)

    by_magnitude = [row(percent, MAGNITUDE, 0, item_sums[PrunedShare(percent, 0)]) for percent in PERCENT]
    by_magnitude[0] |= {"low": 0.0, "high": 0.0, "p_value": 1.0}  # nothing is compared
    means, by_share = list[Any](), list[Any]()
    for percent in PERCENT[1:]:
        drawn = [sums for share, sums in item_sums.items() if share.percent == percent and share.draw]
        mean, draws = with_draws(
            lambda draw, sums, percent=percent: row(percent, RANDOM if draw else MEAN, draw, sums),  # type: ignore[misc]
            drawn,
        )
        means.append(mean)
        by_share.append(draws)
    of_draws = [list(draw_rows) for draw_rows in zip(*by_share, strict=True)]
    for rows in (by_magnitude[1:], means, *of_draws):
        correct_p_values(rows)
    return [*by_magnitude, *means, *(draw_row for rows in of_draws for draw_row in rows)]


def rounded_numbers(
    readers: Readers, train: ReadableText, blocks: Sequence[int], bits: Sequence[int], seed: int, batch_tokens: int,
    readout: Readout, store: WorkStore,
) -> Rows:  # fmt: skip
    """Return the rows of `quantised.csv` for a readout, running the passes that are not stored.

    `train` are the sentences whose hidden states define the ranges and the outliers.
    """
    ranges = {block: RoundingRange.of(train.states(block - 1)) for block in blocks}
    n_unrounded = sum(len(states_range.outliers) for states_range in ranges.values())
    files = {
        i: rounding
        for i, rounding in enumerate(roundings(bits), start=1)
        if n_unrounded or rounding.unrounded == NOTHING
    }
    passes, change = Forward(readers, readout.text, batch_tokens), rounding_change(readers.model, ranges, seed)
    item_sums = run_last_layer(passes, change, readout, files, store, f"rounded to few bits, {readout.name}")
    return quantised_rows(item_sums, readout.n, {"readout": readout.name, "layer": max(readout.layers(1))}, n_unrounded)


def quantised_rows(
    item_sums: Mapping[Rounding, Sums], n: NDArray[np.int64], named: Mapping[str, Any], n_unrounded: int
) -> Rows:
    """Return the rows of `quantised.csv`: each rounding, and for each number of bits the mean of the random draws.

    `effect` is the difference from the original model, paired by item; for the mean, its confidence interval is over
    items and draws. p-values are two-sided, over items, and corrected (Holm) for all rows but single draws. `rank_p` of
    unrounded outliers is by rank among the draws: the share of these, and of the tested one, that lose no more.

    Args:
        item_sums: Sums of each pass over the examples of each item, shape (n_items,).
        n: Number of examples of each item, shape (n_items,).
        named: Columns of all rows: `readout`, `layer`.
        n_unrounded: Number of unrounded outliers, over all blocks.
    """
    measure, whole = measure_of(str(named["readout"])), item_sums[Rounding(0)]

    def row(rounding: Rounding, draw: int, sums: Sums) -> dict[str, Any]:
        unrounded = MEAN if rounding.unrounded == RANDOM and not draw else rounding.unrounded
        about = {
            **named, "bits": rounding.bits, "rounded": rounding.rounded, "scale": rounding.scale, "kept": unrounded,
            "draw": draw, "n_kept": 0 if unrounded == NOTHING else n_unrounded,
        }  # fmt: skip
        return about | valued(sums, whole, n, measure.is_share)

    main = [
        row(rounding, 0, sums) for rounding, sums in item_sums.items() if rounding.bits and rounding.unrounded != RANDOM
    ]
    means, draws = list[Any](), list[Any]()
    for bits in dict.fromkeys(rounding.bits for rounding in item_sums if rounding.unrounded == RANDOM):
        drawn = {of: sums for of, sums in item_sums.items() if (of.bits, of.unrounded) == (bits, RANDOM)}
        mean, rows = with_draws(partial(row, next(iter(drawn))), list(drawn.values()))
        tried = {"bits": bits, "rounded": ACTIVATIONS, "kept": OUTLIERS}
        outlier_row = next(of for of in main if tried.items() <= of.items())
        sign = measure.sign
        outlier_row["rank_p"] = rank_p(sign * outlier_row["effect"], [sign * of["effect"] for of in rows])
        means.append(mean)
        draws += rows
    correct_p_values([*main, *means])
    return [*main, *means, *draws]


# --------------------------------------------------------------------------------------------------------------------
# Importance of heads by gradients (Michel et al. 2019, section 4.1), for the loss of a readout.
# --------------------------------------------------------------------------------------------------------------------


def head_gradients(
    model: LaterBlocks,
    inputs: Mapping[str, Tensor],
    loss: Loss,
    changes: Mapping[int, Callable[..., Tensor]] | None = None,
) -> Tensor:
    """Return the gradient of each sentence's loss by a factor of 1 on each head's output, (n_layers, batch, heads).

    Each sentence and head has a separate factor, so that gradients of different sentences are not summed. For `changes`
    see `LaterBlocks.run`.
    """
    heads, device = model.heads, inputs["input_ids"].device
    dtype = next(model.encoder.parameters()).dtype
    factors = [
        torch.ones(len(inputs["input_ids"]), heads.n_heads, dtype=dtype, device=device, requires_grad=True)
        for _ in range(heads.n_layers)
    ]

    def scaled(outputs: Tensor, block: int) -> Tensor:
        of_heads = outputs[..., : model.width].unflatten(-1, (heads.n_heads, heads.d_head))
        scaled_heads = (of_heads * factors[block - 1][:, None, :, None]).flatten(-2)
        vectors = torch.cat([scaled_heads, outputs[..., model.width :]], dim=-1)
        return changes[block](vectors) if changes and block in changes else vectors

    of_blocks = {block: partial(scaled, block=block) for block in range(1, heads.n_layers + 1)}
    with torch.inference_mode(False), torch.enable_grad():
        states = model.run_whole(inputs, of_blocks)
        return torch.stack(torch.autograd.grad(loss(states).sum(), factors))


def importance(
    model: LaterBlocks, pad_token_id: int, readout: Readout, batch_tokens: int,
    changes: Mapping[int, Callable[..., Tensor]] | None = None,
) -> Tensor:  # fmt: skip
    """Return the gradient dL/dfactor of each item's loss, with its sign, shape (n_items, n_layers, heads), float32.

    For the factors and `changes` see `head_gradients`.
    """
    device = next(model.encoder.parameters()).device
    total = torch.zeros(len(readout.n), model.heads.n_layers, model.heads.n_heads)
    tokens, (sentences, items) = readout.text.tokens, readout.occurrences
    for some in batches(tokens.lengths[sentences], batch_tokens, model.anatomy.padding_is_neutral):
        batch = padded(tokens, sentences[some], pad_token_id, device)
        gradients = head_gradients(model, batch.inputs, readout.loss(batch, some), changes)
        total.index_add_(0, torch.from_numpy(items[some]), gradients.float().cpu().transpose(0, 1))
    return total


def importance_rows(
    importances: NDArray[np.float32], n_examples: NDArray[np.int64], blocks: Sequence[int], layer: int, readout: str
) -> list[dict[str, Any]]:
    """Return the rows of `importance.csv`: the mean over items with its 95% confidence interval, and normalised.

    `normalised` is the mean divided by the Euclidean norm of the means of all heads of the layer, as in Michel et al.
    2019. `importances` are absolute gradients of items, shape (n_items, n_layers, heads); items without examples do not
    count. `layer` is the layer of the loss.
    """
    counts = (n_examples > 0).astype(np.int64)
    means = importances.astype(np.float64)[counts > 0].mean(0)
    norms = np.linalg.norm(means, axis=1)
    rows = []
    for block in blocks:
        for head in range(importances.shape[2]):
            sums = importances[:, block - 1, head].astype(np.float64) * counts
            low, high = mean_interval(sums, counts)
            mean, norm = float(means[block - 1, head]), float(norms[block - 1])
            rows.append({
                "unit": f"{block}-{head + 1}", "readout": readout, "layer": layer, "importance": mean, "low": low,
                "high": high, "normalised": mean / norm if norm else 0.0, "n": int(counts.sum()),
            })  # fmt: skip
    return rows


# --------------------------------------------------------------------------------------------------------------------
# Ablates heads or layers cumulatively until none is left: in the order of importance, its reverse, and at random.
# --------------------------------------------------------------------------------------------------------------------

# Number of random orders.
N_RANDOM = 20
IMPORTANCE, REVERSE = "importance", "reverse"


@dataclass(frozen=True)
class Unit:
    """A unit of ablation: heads of one block, as pairs of block and head, from 1."""

    name: str
    heads: tuple[Head, ...]


def units_of(units: UnitType, blocks: Sequence[int], n_heads: int) -> list[Unit]:
    """Return all heads of some blocks, or these blocks."""
    if units == "layers":
        return [Unit(str(block), tuple((block, head) for head in range(1, n_heads + 1))) for block in blocks]
    return [Unit(f"{block}-{head}", ((block, head),)) for block in blocks for head in range(1, n_heads + 1)]


def counts(n_units: int, share: float) -> list[int]:
    """Return the number of ablated units at each step, from 0 to all; each step adds at least one."""
    step = max(1, round(share * n_units))
    return [*range(0, n_units, step), n_units]


def scores(gradients: NDArray[np.float32], n: NDArray[np.int64], units: Sequence[Unit]) -> NDArray[np.float64]:
    """Return the importance of units: the mean over items of the absolute gradient of a factor of its output.

    The importance of a head is divided by the Euclidean norm of the importances of all heads of the layer (Michel et
    al. 2019, section 4.1). A layer has one factor for all of its heads; its gradient is the sum of their gradients.
    `gradients` has shape (n_items, n_layers, heads); items without examples (n of 0) do not count.
    """
    nonempty = gradients[n > 0].astype(np.float64)
    norms = np.linalg.norm(np.abs(nonempty).mean(0), axis=1)
    unit_scores = []
    for unit in units:
        block = unit.heads[0][0] - 1
        strength = np.abs(nonempty[:, block, [head - 1 for _, head in unit.heads]].sum(1)).mean()
        is_head = len(unit.heads) == 1
        unit_scores.append(strength / norms[block] if is_head and norms[block] else strength)
    return np.array(unit_scores)


def by_importance(
    units: Sequence[Unit], at: Sequence[int], estimate: Callable[[int, Sequence[Unit]], NDArray[np.float64]]
) -> list[Unit]:
    """Return the units in the order of ablation, the least important first, estimated at each step.

    `at` is the number of ablated units at each step. `estimate` returns the importance of all units, given the number
    of a step and the units ablated so far.
    """
    order: list[Unit] = []
    for step, upto in enumerate(at[1:]):
        importance = estimate(step, order)
        remaining = [i for i, unit in enumerate(units) if unit not in order]
        remaining.sort(key=lambda i: (importance[i], i))
        order += [units[i] for i in remaining[: upto - len(order)]]
    return order


def all_orders(importance: Sequence[Unit], units: Sequence[Unit], seed: int) -> list[tuple[str, int, list[Unit]]]:
    """Return the order by importance, its reverse and random orders, each with name and number of the draw."""
    orders = [(IMPORTANCE, 0, list(importance)), (REVERSE, 0, list(importance)[::-1])]
    for draw in range(1, N_RANDOM + 1):
        order = np.random.default_rng([seed, draw]).permutation(len(units))
        orders.append((RANDOM, draw, [units[i] for i in order]))
    return orders


@dataclass(frozen=True)
class PruningCurve:
    """A readout under cumulative ablation in one order.

    Args:
        draw: Number of the random order, from 1; 0 for others.
        at: Number of ablated units at each step.
        sums: The measure's sum over the examples of each item at each step, shape (n_steps, n_items).
    """

    order: str
    draw: int
    units: Sequence[Unit]
    at: Sequence[int]
    sums: Sums

    def area(self) -> Sums:
        """Return the area under the curve over the ablated share, of each item, shape (n_items,)."""
        share = np.array(self.at) / self.at[-1]
        return np.asarray((np.diff(share)[:, None] * (self.sums[1:] + self.sums[:-1]) / 2).sum(0))


def curve_rows(curves: Sequence[PruningCurve], n: NDArray[np.int64], named: Mapping[str, Any]) -> Rows:
    """Return the rows of `pruning.csv`: `effect` is the difference from the intact model, paired by item."""
    is_share = measure_of(str(named["readout"])).is_share
    rows = []
    for curve in curves:
        for step, upto in enumerate(curve.at):
            added = curve.units[curve.at[step - 1] if step else 0 : upto]
            test = valued(curve.sums[step], curve.sums[0], n, is_share)
            rows.append({
                **named, "order": curve.order, "draw": curve.draw, "n_ablated": upto, "share": upto / curve.at[-1],
                **{name: test[name] for name in ("value", "effect", "low", "high", "n")},
                "ablated": " ".join(unit.name for unit in added),
            })  # fmt: skip
    return rows


def area_rows(curves: Sequence[PruningCurve], n: NDArray[np.int64], named: Mapping[str, Any]) -> Rows:
    """Return the rows of `pruning_areas.csv`: the area under the curve of an order, and under random orders.

    `effect` is the difference from the mean of the random orders, paired by item. `percentile` is the percentage of
    random orders that preserve less, and `p_value` is one-sided, by rank: the share of orders, among the random ones
    and the order itself, that preserve at least as much (for the reverse order, at most as much).
    """
    sign = measure_of(str(named["readout"])).sign
    drawn = np.stack([curve.area() for curve in curves if curve.order == RANDOM])
    random = sign * drawn.sum(1) / n.sum()
    rows = []
    for curve in curves:
        if curve.order == RANDOM:
            continue
        ordered = curve.area()
        area = sign * ordered.sum() / n.sum()
        away = 1 if curve.order == IMPORTANCE else -1
        test = tested(ordered, drawn.mean(0), n, is_share=False)
        rows.append({
            **named, "order": curve.order, "area": float(sign * area), "random_area": float(sign * random.mean()),
            "effect": test["effect"], "low": test["low"], "high": test["high"],
            "percentile": percentile_of(area, random), "p_value": rank_p(away * area, away * random),
            "n": test["n"],
        })  # fmt: skip
    return rows


def n_files(n_units: int, share: float) -> int:
    """Return the maximum number of files of the passes."""
    n_steps = len(counts(n_units, share))
    return 1 + n_steps * (3 + N_RANDOM)


@dataclass(frozen=True)
class Cumulative:
    """Settings of cumulative ablation.

    Args:
        stands: The replacement of the outputs of heads, shape (n_layers, width).
        share: Share of the units added at each step.
    """

    readers: Readers
    units: UnitType
    kind: str
    stands: Tensor
    blocks: Sequence[int]
    share: float
    seed: int
    batch_tokens: int

    def rows(self, chosen_on: Readout, reported_on: Readout, store: WorkStore) -> tuple[Rows, Rows]:
        """Return the rows of `pruning.csv` and `pruning_areas.csv`; the losses of `chosen_on` decide on the order."""
        units = units_of(self.units, self.blocks, self.readers.model.heads.n_heads)
        at = counts(len(units), self.share)

        def estimate(step: int, gone: Sequence[Unit]) -> NDArray[np.float64]:
            if store.unfinished([1 + step]):
                store.put(1 + step, {"importance": torch.from_numpy(self._importance(chosen_on, units, gone))})
            unit_scores: NDArray[np.float64] = store.get(1 + step)["importance"].numpy()
            return unit_scores

        orders = all_orders(by_importance(units, at, estimate), units, self.seed)
        gone = [[_heads(order[:upto]) for upto in at] for _, _, order in orders]
        # A set of units that occurs in several orders, such as the empty set or the set of all, has only one file.
        first: dict[frozenset[Head], int] = {}
        for index, heads in enumerate((heads for of_order in gone for heads in of_order), start=1 + len(at)):
            first.setdefault(heads, index)
        passes = Forward(self.readers, reported_on.text, self.batch_tokens)
        d_head, below = self.readers.model.heads.d_head, self.blocks[0] - 1
        change = partial(joint_change, stands=self.stands, d_head=d_head, below=below)
        files = {index: heads for heads, index in first.items()}
        what = f"{self.units} ablated together, {reported_on.name}"
        sums = run_last_layer(passes, change, reported_on, files, store, what)
        curves = [
            PruningCurve(name, draw, order, at, np.stack([sums[heads] for heads in of_order]))
            for (name, draw, order), of_order in zip(orders, gone, strict=True)
        ]
        layer = max(reported_on.layers(1))
        named = {"units": self.units, "kind": self.kind, "readout": reported_on.name, "layer": layer}
        return curve_rows(curves, reported_on.n, named), area_rows(curves, reported_on.n, named)

    def _importance(self, readout: Readout, units: Sequence[Unit], gone: Sequence[Unit]) -> NDArray[np.float64]:
        model, pad = self.readers.model, self.readers.pad_token_id
        changes = replaced_heads(_heads(gone), self.stands, model.heads.d_head)
        gradients = importance(model, pad, readout, self.batch_tokens, changes)
        return scores(gradients.numpy(), readout.n, units)


def _heads(units: Sequence[Unit]) -> frozenset[Head]:
    return frozenset(head for unit in units for head in unit.heads)
