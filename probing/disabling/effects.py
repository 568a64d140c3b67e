"""Rows of the tables of `disable`: effects paired by sentence, and the unit whose disabling helps most."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probing.comparison.agreement import holm
from probing.disabling.units import Job
from probing.readouts.names import Measure, measure_of
from probing.statistics.chance import percentile_of, rank_p
from probing.statistics.intervals import ENDS, difference_interval, difference_p_value, mean_interval, mean_p_value

Rows = list[dict[str, Any]]
# Rounding gives smaller sums of differences.
_ROUNDING = 1e-9
# A gain of more than this many standard errors, one-sided 5%, is clear.
CLEAR = 1.645
Counts = NDArray[np.float64]


@dataclass(frozen=True)
class Measured:
    """What one pass gave in one layer.

    Args:
        job: What was disabled.
        readout: What was read.
        layer: The layer that was read.
        right: Sum of the measure over the examples of each item, such as a sentence, shape (n_items,): for a share, the
            number of those that are right.
        intact: The same while nothing is disabled.
        n: Number of examples of each item, shape (n_items,).
    """

    job: Job
    readout: str
    layer: int
    right: Counts
    intact: Counts
    n: NDArray[np.int64]

    @property
    def group(self) -> tuple[str, bool, str]:
        """What is tested together: heads or layers, by the kind of replacement and the readout."""
        return self.readout, self.job.head is None, str(self.job.kind)

    @property
    def measure(self) -> Measure:
        """What is measured."""
        return measure_of(self.readout)

    def effect(self, items: NDArray[np.bool_] | slice = slice(None)) -> float:
        """Return the measure minus that of the intact model, over some items."""
        return float((self.right - self.intact)[items].sum() / self.n[items].sum())

    def gain(self, items: NDArray[np.bool_] | slice = slice(None)) -> float:
        """Return the effect over some items, with the sign chosen so that a positive value is an improvement."""
        return self.measure.sign * self.effect(items)

    def tested(self, items: NDArray[np.bool_] | slice = slice(None)) -> dict[str, Any]:
        """Return the effect with its 95% interval and its p-value, paired by item, over some of them."""
        return tested(self.right[items], self.intact[items], self.n[items], self.measure.is_share)


def tested(right: Counts, intact: Counts, n: NDArray[np.int64], is_share: bool) -> dict[str, Any]:
    """Return a difference with its 95% interval and its p-value, paired by item.

    Args:
        right: Sum of the measure over the examples of each item, shape (n_items,).
        intact: The same of what it is compared with.
        n: Number of examples of each item, shape (n_items,).
        is_share: Whether the measure is a share of examples that are right.
    """
    difference = right - intact
    interval, p_value = (difference_interval, difference_p_value) if is_share else (mean_interval, mean_p_value)
    low, high = interval(difference, n)
    return {
        "effect": float(difference.sum() / n.sum()), "low": low, "high": high, "p_value": p_value(difference, n),
        "n": int((n > 0).sum()),
    }  # fmt: skip


def effect_rows(measured: Sequence[Measured]) -> Rows:
    """Return the rows of `disabled.csv`.

    `effect` is the measure, such as the share of examples that are predicted rightly, minus that of the intact model,
    paired by item. `percentile` is the percentage of the other heads that cost less when disabled, measured in the same
    layer and by the same kind of replacement. p-values are two-sided and corrected (Holm) for the number of heads, or
    layers, and of layers that are read, for each kind and readout.
    """
    rows: Rows = []
    for one in measured:
        total = one.n.sum()
        rows.append({
            "unit": one.job.unit, "kind": one.job.kind, "readout": one.readout, "layer": one.layer,
            "intact": float(one.intact.sum() / total), "value": float(one.right.sum() / total), **one.tested(),
        })  # fmt: skip
    for members in _grouped(measured):
        corrected = holm([rows[i]["p_value"] for i in members])
        for i, p_value in zip(members, corrected, strict=True):
            rows[i]["p_value"] = float(p_value)
            rows[i]["percentile"] = _percentile(measured, rows, i, members)
    return rows


def _grouped(measured: Sequence[Measured]) -> Iterator[list[int]]:
    groups: dict[Any, list[int]] = {}
    for i, one in enumerate(measured):
        groups.setdefault(one.group, []).append(i)
    yield from groups.values()


def _percentile(measured: Sequence[Measured], rows: Rows, i: int, members: Sequence[int]) -> float:
    """Return the percentage of the other heads that cost less; NaN for layers and where there is no other head."""
    others = [rows[j]["effect"] for j in members if j != i and measured[j].layer == measured[i].layer]
    if measured[i].job.head is None:
        return float("nan")
    harm = -measured[i].measure.sign
    return percentile_of(harm * rows[i]["effect"], harm * np.array(others))


def better_without_rows(measured: Sequence[Measured], seed: int) -> Rows:
    """Return the rows of `better_without.csv`: the unit whose disabling helps most on one half, tested on the other.

    There is a row for heads and for layers, for each kind, readout and layer that is read. p-values are two-sided and
    corrected for the number of rows (Holm).

    Args:
        measured: What the passes gave.
        seed: Seed of the division of the sentences.
    """
    groups: dict[Any, list[Measured]] = {}
    for one in measured:
        groups.setdefault((*one.group, one.layer), []).append(one)
    rows: Rows = []
    for (readout, is_layer, kind, layer), members in groups.items():
        order = np.random.default_rng(seed).permutation(len(members[0].n))
        chosen_on = order < len(order) // 2
        if not all(members[0].n[half].sum() for half in (chosen_on, ~chosen_on)):
            continue
        best = max(members, key=lambda one: one.gain(chosen_on))
        rows.append({
            "units": "layers" if is_layer else "heads", "kind": kind, "readout": readout, "layer": layer,
            "unit": best.job.unit, "effect_chosen_on": best.effect(chosen_on), **best.tested(~chosen_on),
        })  # fmt: skip
    for row, p_value in zip(rows, holm([row["p_value"] for row in rows]), strict=True):
        row["p_value"] = float(p_value)
    return rows


# Number of draws of the signs of differences.
N_SIGNS = 2000


def raising_rows(measured: Sequence[Measured], seed: int) -> Rows:
    """Return the rows of `raising.csv`: without how many units a measure gets better, beside what chance gives.

    There is a row for heads and for layers, for each kind and readout, in the highest layer that is read. Chance: if no
    unit changed anything but by chance, the sign of an item's differences could as well be the other one. All units of
    an item get the same sign, so that units that go together stay so. What is counted is a clear gain: a sum of
    differences of more than `CLEAR` times the root of the sum of their squares, which signs do not change. `p_value` is
    one-sided, by rank, and corrected for the rows of a readout (Holm).

    Args:
        measured: What the passes gave.
        seed: Seed of the signs.
    """
    last: dict[str, int] = {}
    for one in measured:
        last[one.readout] = max(one.layer, last.get(one.readout, 0))
    groups: dict[Any, list[Measured]] = {}
    for one in measured:
        if one.layer == last[one.readout]:
            groups.setdefault(one.group, []).append(one)
    rows: Rows = []
    for (readout, is_layer, kind), members in groups.items():
        gains = np.stack([one.measure.sign * (one.right - one.intact) for one in members])
        signs = np.random.default_rng(seed).choice((-1.0, 1.0), size=(N_SIGNS, gains.shape[1]))
        least = CLEAR * np.sqrt((gains**2).sum(1)) + _ROUNDING
        drawn = (signs @ gains.T > least).sum(1)
        clear, better = (int((gains.sum(1) > limit).sum()) for limit in (least, _ROUNDING))
        low, high = np.quantile(drawn, ENDS, method="inverted_cdf")
        rows.append({
            "units": "layers" if is_layer else "heads", "kind": kind, "readout": readout, "layer": last[readout],
            "n_units": len(members), "n_better": better, "n_clear": clear,
            "n_chance_low": int(low), "n_chance_high": int(high), "p_value": rank_p(clear, drawn.astype(np.float64)),
        })  # fmt: skip
    for readout in last:
        own = [row for row in rows if row["readout"] == readout]
        for row, p_value in zip(own, holm([row["p_value"] for row in own]), strict=True):
            row["p_value"] = float(p_value)
    return rows


def measured_of(
    results: Mapping[Job, NDArray[Any]], layers: Mapping[int, Sequence[int]], n: NDArray[np.int64], readout: str
) -> list[Measured]:
    """Return what the passes gave, a member for each layer that is read.

    Args:
        results: Sums by job, shape (n_layers, n_items); also of each block while it is intact.
        layers: The layers that are read when a block is changed, by block.
        n: Number of examples of each item, shape (n_items,).
        readout: What was read.
    """
    intact = {job.block: found for job, found in results.items() if job.kind is None}
    return [
        Measured(job, readout, layer, found[i].astype(np.float64), intact[job.block][i].astype(np.float64), n)
        for job, found in results.items()
        if job.kind is not None
        for i, layer in enumerate(layers[job.block])
    ]
