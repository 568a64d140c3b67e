"""Readouts of a model as weights are pruned and heads or layers are ablated cumulatively; importance by gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from probing.activations.store import WorkStore, batches
from probing.interventions import measure_of
from probing.interventions.forward import (
    Forward,
    Intact,
    LaterBlocks,
    Loss,
    OutputChange,
    Padded,
    Readers,
    Readout,
    padded,
)
from probing.interventions.probed_task import Kind, UnitType, run_unfinished
from probing.interventions.subject import Rows, tested
from probing.models.examination import run, vectors_received, with_vectors
from probing.runtime.progress import counted
from probing.statistics import mean_interval, widened
from probing.statistics.chance import holm, percentile_of, rank_p
from probing.studies.ablate.tables import MAGNITUDE, MEAN
from probing.studies.ablate.tables import RANDOM as RANDOM_UNITS

# Shares of the weights that are pruned, in percent; number of random draws.
PERCENT = tuple(range(0, 100, 10))
N_DRAWS = 10
N_FILES = 1 + len(PERCENT) * (1 + N_DRAWS)


def matrices(model: LaterBlocks, blocks: Sequence[int]) -> list[nn.Parameter]:
    """Return the weight matrices of attention and feed-forward layers of some blocks, without duplicates.

    Norms, biases and embeddings (also of relative positions) are excluded. If blocks share their weights, the matrices
    of all blocks are returned.
    """
    weights: dict[nn.Parameter, None] = {}
    for block in block_modules(model, blocks):
        for module in block.modules():
            weight = getattr(module, "weight", None)
            if isinstance(weight, nn.Parameter) and weight.ndim == 2 and not isinstance(module, nn.Embedding):
                weights[weight] = None
    return list(weights)


def _are_shared(model: LaterBlocks) -> bool:
    return len(set(model.anatomy.blocks or ())) < model.anatomy.n_layers


def block_modules(model: LaterBlocks, blocks: Sequence[int]) -> list[nn.Module]:
    """Return the modules of some blocks; all modules if blocks share their weights."""
    every = model.anatomy.blocks or ()
    return list(dict.fromkeys(every if _are_shared(model) else [every[block - 1] for block in blocks]))


def first_block(model: LaterBlocks, blocks: Sequence[int]) -> int:
    """Return the first block that changes if the weights of some blocks change."""
    return 1 if _are_shared(model) else min(blocks)


def smallest(matrix: Tensor, n: int, generator: np.random.Generator | None) -> NDArray[np.int64]:
    """Return the indices of n weights of a matrix to prune: the smallest magnitudes, or random with a generator.

    With a generator in the same state, a larger n adds weights to the same draw.
    """
    order = matrix.detach().abs().cpu().numpy().ravel() if generator is None else generator.random(matrix.numel())
    return np.argpartition(order, n - 1)[:n] if n else np.zeros(0, dtype=np.int64)


@contextmanager
def pruned(weights: Sequence[nn.Parameter], percent: int, draw: int, seed: int) -> Iterator[int]:
    """Set a share of the weights of every matrix to 0, and restore them; yield their number.

    Copies of the model that share the weights change, too. `draw` is the number of the random draw, from 1; 0 prunes
    the smallest magnitudes.
    """
    before, n_pruned = [weight.detach().clone() for weight in weights], 0
    try:
        for i, weight in enumerate(weights):
            generator = np.random.default_rng([seed, draw, i]) if draw else None
            gone = smallest(weight, round(percent / 100 * weight.numel()), generator)
            keep = torch.ones(weight.numel(), dtype=torch.bool)
            keep[torch.from_numpy(gone)] = False
            weight.data.mul_(keep.view(weight.shape).to(weight.device))
            n_pruned += len(gone)
        yield n_pruned
    finally:
        for weight, original in zip(weights, before, strict=True):
            weight.data.copy_(original)


@dataclass(frozen=True)
class Pass:
    """A pass over the text with pruned weights; `draw` is 0 for magnitude."""

    percent: int
    draw: int


@dataclass(frozen=True)
class WeightPruning:
    """A model whose weights are pruned."""

    readers: Readers
    blocks: Sequence[int]
    seed: int
    batch_tokens: int

    @cached_property
    def weights(self) -> list[nn.Parameter]:
        """The matrices."""
        return matrices(self.readers.model, self.blocks)

    def rows(self, readout: Readout, store: WorkStore) -> Rows:
        """Return the rows of `weight_pruning.csv`, running the passes that are not stored."""
        passes = [Pass(percent, draw) for draw in range(N_DRAWS + 1) for percent in PERCENT if percent or not draw]
        files = {
            1 + weight_pass.draw * len(PERCENT) + PERCENT.index(weight_pass.percent): weight_pass
            for weight_pass in passes
        }
        forward = Forward(self.readers, readout.text, self.batch_tokens)
        whole = Intact(first_block(self.readers.model, self.blocks) - 1)

        def read(file_pass: Pass) -> Tensor:
            with pruned(self.weights, file_pass.percent, file_pass.draw, self.seed):
                return forward.read(whole, readout)[-1].clone()

        outputs = run_unfinished(files, store, read, f"pruned weights, {readout.name}")
        n_weights = sum(weight.numel() for weight in self.weights)
        named = {"readout": readout.name, "layer": max(readout.layers(1)), "n_weights": n_weights}
        return weight_rows(
            {weight_pass: sums.astype(np.float64) for weight_pass, sums in outputs.items()}, readout.n, named
        )


def weight_rows(
    item_sums: Mapping[Pass, NDArray[np.float64]], n: NDArray[np.int64], named: Mapping[str, Any]
) -> Rows:  # fmt: skip
    """Return the rows of `weight_pruning.csv`: by magnitude, for each random draw, and for the mean of the draws.

    `effect` is the difference from the whole model, paired by item; for the mean, its confidence interval is over items
    and draws. p-values are two-sided, over items, and corrected (Holm) for the shares of an order. Each item of a pass
    has a sum over its n examples, shape (n_items,).
    """
    is_share, whole = measure_of(str(named["readout"])).is_share, item_sums[Pass(0, 0)]
    draws = sorted({weight_pass.draw for weight_pass in item_sums if weight_pass.draw})

    def row(order: str, draw: int, percent: int, sums: NDArray[np.float64]) -> dict[str, Any]:
        return {
            **named, "order": order, "draw": draw, "share": percent / 100, "value": float(sums.sum() / n.sum()),
            **tested(sums, whole, n, is_share),
        }  # fmt: skip

    by_magnitude = [row(MAGNITUDE, 0, percent, item_sums[Pass(percent, 0)]) for percent in PERCENT]
    by_magnitude[0] |= {"low": 0.0, "high": 0.0, "p_value": 1.0}  # nothing is compared
    of_draws = [
        [row(RANDOM_UNITS, draw, percent, item_sums[Pass(percent, draw)]) for percent in PERCENT[1:]] for draw in draws
    ]
    means = []
    for i, percent in enumerate(PERCENT[1:]):
        mean_row = row(MEAN, 0, percent, np.mean([item_sums[Pass(percent, draw)] for draw in draws], axis=0))
        effects = [of_draw[i]["effect"] for of_draw in of_draws]
        mean_row["low"], mean_row["high"] = widened(mean_row["effect"], (mean_row["low"], mean_row["high"]), effects)
        means.append(mean_row)
    for rows in (by_magnitude[1:], means, *of_draws):
        for order_row, p_value in zip(rows, holm([order_row["p_value"] for order_row in rows]), strict=True):
            order_row["p_value"] = float(p_value)
    return [*by_magnitude, *means, *(random_row for rows in of_draws for random_row in rows)]


# --------------------------------------------------------------------------------------------------------------------
# Importance of heads by gradients (Michel et al. 2019, section 4.1), for the loss of a readout.
# --------------------------------------------------------------------------------------------------------------------


def head_gradients(
    model: LaterBlocks, inputs: Mapping[str, Tensor], loss: Loss, changes: Mapping[int, OutputChange] | None = None
) -> Tensor:
    """Return the gradient of each sentence's loss by a factor of 1 on each head's output, (n_layers, batch, heads).

    Each sentence and head has a separate factor, so that gradients of different sentences are not summed. For `changes`
    see `LaterBlocks.run`.
    """
    heads, device = model.heads, inputs["input_ids"].device
    assert heads.projections is not None  # checked by `LaterBlocks.of`
    assert model.anatomy.blocks is not None  # likewise
    dtype = next(model.encoder.parameters()).dtype
    factors = [
        torch.ones(len(inputs["input_ids"]), heads.n_heads, dtype=dtype, device=device, requires_grad=True)
        for _ in range(heads.n_layers)
    ]
    number = 0  # of the block that is running
    done: set[int] = set()

    def begin(module: nn.Module, args: Any) -> None:
        nonlocal number
        number += 1

    def project(module: nn.Module, args: Any, kwargs: Any) -> Any:
        if number in done or module is not projections[number - 1]:
            return None
        done.add(number)
        whole: Any = vectors_received(args, kwargs)
        of_heads = whole[..., : model.width].unflatten(-1, (heads.n_heads, heads.d_head))
        scaled = of_heads * factors[number - 1][:, None, :, None]
        head_vectors = torch.cat([scaled.flatten(-2), whole[..., model.width :]], dim=-1)
        return with_vectors(
            args, kwargs, changes[number](head_vectors) if changes and number in changes else head_vectors
        )

    projections = [model.encoder.get_submodule(name) for name in heads.projections]
    with ExitStack() as hooks, torch.inference_mode(False), torch.enable_grad():
        for block in dict.fromkeys(model.anatomy.blocks):
            hooks.callback(block.register_forward_pre_hook(begin).remove)
        for projection in dict.fromkeys(projections):
            hooks.callback(projection.register_forward_pre_hook(project, with_kwargs=True).remove)
        states = run(model.encoder, inputs).last
        return torch.stack(torch.autograd.grad(loss(states).sum(), factors))


def importance(
    model: LaterBlocks, pad_token_id: int, readout: Readout, batch_tokens: int,
    changes: Mapping[int, OutputChange] | None = None,
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
IMPORTANCE, REVERSE, RANDOM = "importance", "reverse", "random"

Head = tuple[int, int]
Counts = NDArray[np.float64]


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


@dataclass(frozen=True, eq=False)
class Together:
    """The joint ablation of at least one head; `stands` are the replacements, shape (n_layers, width)."""

    heads: frozenset[Head]
    stands: Tensor
    d_head: int

    @property
    def layer(self) -> int:
        """The layer below the first changed block."""
        return min(block for block, _ in self.heads) - 1

    def of_blocks(self) -> dict[int, OutputChange]:
        """Return, for each changed block, the function that changes the input of its output projection."""
        return {block: self._of_block(block) for block in sorted({block for block, _ in self.heads})}

    def _of_block(self, block: int) -> OutputChange:
        stands, width = self.stands[block - 1], self.stands.shape[1]
        gone = torch.zeros(width, dtype=torch.bool, device=stands.device)
        for head in (head for of, head in self.heads if of == block):
            gone[(head - 1) * self.d_head : head * self.d_head] = True

        def change(outputs: Tensor) -> Tensor:
            head_outputs = torch.where(gone, stands.to(outputs.dtype), outputs[..., :width])
            return torch.cat([head_outputs, outputs[..., width:]], dim=-1)

        return change

    def later(
        self, model: LaterBlocks, batch: Padded, beside: Any, states: Tensor, layers: Sequence[int]
    ) -> dict[int, Tensor]:
        """Return later hidden states under the ablation."""
        return model.run(batch.inputs, self.layer + 1, states, beside, layers, changes=self.of_blocks())


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
    sums: Counts

    def area(self) -> Counts:
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
            test = tested(curve.sums[step], curve.sums[0], n, is_share)
            rows.append({
                **named, "order": curve.order, "draw": curve.draw, "n_ablated": upto, "share": upto / curve.at[-1],
                "value": float(curve.sums[step].sum() / n.sum()),
                **{name: test[name] for name in ("effect", "low", "high", "n")},
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
    kind: Kind
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
        files = {
            1 + len(at) * (1 + rank) + step: order[:upto]
            for rank, (_, _, order) in enumerate(orders)
            for step, upto in enumerate(at)
        }
        sums = self._sums(files, reported_on, store)
        curves = [
            PruningCurve(
                name, draw, order, at, np.stack([sums[1 + len(at) * (1 + rank) + step] for step in range(len(at))])
            )
            for rank, (name, draw, order) in enumerate(orders)
        ]
        layer = max(reported_on.layers(1))
        named = {"units": self.units, "kind": self.kind, "readout": reported_on.name, "layer": layer}
        return curve_rows(curves, reported_on.n, named), area_rows(curves, reported_on.n, named)

    def _importance(self, readout: Readout, units: Sequence[Unit], gone: Sequence[Unit]) -> NDArray[np.float64]:
        changes = self._together(gone).of_blocks() if gone else None
        model, pad = self.readers.model, self.readers.pad_token_id
        gradients = importance(model, pad, readout, self.batch_tokens, changes)
        return scores(gradients.numpy(), readout.n, units)

    def _together(self, gone: Sequence[Unit]) -> Together:
        heads: frozenset[Head] = frozenset(head for unit in gone for head in unit.heads)
        return Together(heads, self.stands, self.readers.model.heads.d_head)

    def _sums(self, files: dict[int, list[Unit]], readout: Readout, store: WorkStore) -> dict[int, NDArray[np.float64]]:
        """Return the result of each pass in the last layer, shape (n_items,), by the index of its file.

        A set of units that occurs in several orders, such as the empty set or the set of all, has only one file.
        """
        first: dict[frozenset[str], int] = {}
        file_of = {
            index: first.setdefault(frozenset(unit.name for unit in gone), index) for index, gone in files.items()
        }
        if unfinished := store.unfinished(sorted(first.values())):
            forward = Forward(self.readers, readout.text, self.batch_tokens)
            what = f"{self.units} ablated together, {readout.name}"
            with counted(what, len(first), len(first) - len(unfinished)) as advance:
                for index in unfinished:
                    change = self._together(files[index]) if files[index] else Intact(self.blocks[0] - 1)
                    store.put(index, {"right": forward.read(change, readout)[-1].clone()})
                    advance(1)
        sums = {index: store.get(index)["right"].numpy().astype(np.float64) for index in first.values()}
        return {index: sums[file] for index, file in file_of.items()}
