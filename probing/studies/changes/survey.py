"""Measures all checkpoints and pairs of them, and asks of each layer whether the task has changed it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from probing.cache.source import ActivationSource
from probing.results.schema import count, without_nan
from probing.runtime.machine import drop_garbage
from probing.runtime.progress import note, stage
from probing.statistics.chance import holm
from probing.statistics.intervals import common_share, times, welch
from probing.studies.changes.measures import Rows, check_members, of_checkpoint, of_pair
from probing.studies.changes.members import SHUFFLED, START, TRUE, Family, Member
from probing.studies.changes.tables import LEVEL, MEASURES, OF_CHECKPOINTS, OF_PAIRS
from probing.studies.series.measures import How, Text

# What was measured of one checkpoint or pair: values by measure and layer.
_Found = dict[tuple[str, int], float]


def survey(
    family: Family, sources: Mapping[str, ActivationSource], start: ActivationSource, text: Text, names: Sequence[str],
    how: How, options: Mapping[str, str],
) -> dict[str, Rows]:  # fmt: skip
    """Return the rows of all tables.

    Args:
        family: The start, and what was tuned from it.
        sources: The checkpoints by name.
        start: The start.
        text: What all of them read.
        names: What is measured.
        how: How probes are trained.
        options: The option that names each checkpoint, by its name.

    Raises:
        UserError: If a checkpoint is of another architecture, or divides the text into other tokens.
    """
    with stage("tokens of the text"):
        check_members(start, sources, options, text)
    alone = [name for name in names if name in OF_CHECKPOINTS]
    values: dict[str, _Found] = {}
    with stage(f"properties of {count(len(sources) + 1, 'checkpoint')}", len(sources) + 1) as advance:
        for called, source in {START: start, **sources}.items():
            note(called)
            values[called] = _by_layer([row for name in alone for row in of_checkpoint(name, source, text, how)])
            drop_garbage()  # the model that was read, before the next one is loaded
            advance(1)
    wanted = [name for name in names if name in OF_PAIRS]
    pairs = [(one.name, START) for one in family.members] + [(a.name, b.name) for a, b in family.apart()]
    all_sources = {START: start, **sources}
    apart: dict[tuple[str, str], _Found] = {}
    with stage(f"distances of {count(len(pairs), 'pair')} of checkpoints", len(pairs)) as advance:
        for a, b in pairs:
            note(f"{a}, {b}")
            apart[a, b] = _by_layer(of_pair(wanted, all_sources[a], all_sources[b], text, how))
            drop_garbage()
            advance(1)
    changes = _changes(family, values, apart)
    return {
        "layer_changes": [without_nan(row) for row in layer_rows(changes, values[START])],
        "checkpoint_changes": [without_nan(row) for row in changes],
    }


def _by_layer(rows: Rows) -> _Found:
    return {(row["measure"], row["layer"]): row["value"] for row in rows}


def _changes(
    family: Family, values: Mapping[str, _Found], apart: Mapping[tuple[str, str], _Found]
) -> list[dict[str, Any]]:
    """Return a row for each checkpoint, what it is compared with, measure and layer, with the change."""

    def row(one: Member, against: str, key: tuple[str, int], change: float) -> dict[str, Any]:
        return {**one.row, "against": against, "measure": key[0], "layer": key[1], "change": change}

    pairs = [(one, START) for one in family.members] + [(a, b.name) for a, b in family.apart()]
    return [
        row(one, against, key, found[key])
        for one, against in pairs
        for found in (apart[one.name, against], _less(values[one.name], values[against]))
        for key in found
    ]


def _less(a: _Found, b: _Found) -> _Found:
    return {key: value - b[key] for key, value in a.items() if key in b}


def layer_rows(changes: Sequence[Mapping[str, Any]], of_start: Mapping[tuple[str, int], float]) -> Rows:
    """Return for each measure and layer how much tuning changes it, beside what shuffled labels and seeds change.

    Seeds are the draws: what the same seed has at several orders of the data is averaged. The p-values are corrected
    for all measures and layers together (Holm 1979).

    Args:
        changes: Rows of `checkpoint_changes`.
        of_start: What was measured of the start, by measure and layer.
    """
    by_key: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for row in changes:
        by_key.setdefault((row["measure"], row["layer"]), []).append(row)
    keys = sorted(by_key, key=lambda key: (list(MEASURES).index(key[0]), key[1]))
    rows = [_layer_row(key, by_key[key], of_start.get(key, math.nan)) for key in keys]
    for row, p in zip(rows, holm([row["p_value"] for row in rows]), strict=True):
        row |= {"p_value": p, "by_task": "" if math.isnan(p) else "yes" if p <= LEVEL else "not shown"}
    return rows


def _layer_row(key: tuple[str, int], here: Sequence[Mapping[str, Any]], of_start: float) -> dict[str, Any]:
    groups = {start: _by_seed(here, start) for start in (TRUE, SHUFFLED)}
    between = [row["change"] for row in here if row["against"] != START]
    is_distance = MEASURES[key[0]].is_distance
    own, shuffled = groups[TRUE], groups[SHUFFLED]
    tuned = welch(own, [0.0, 0.0], is_above=is_distance)
    beyond = _beyond(own, shuffled, is_distance) if shuffled else {}
    return {
        "measure": key[0], "layer": key[1], "start_value": of_start,
        "tuned": tuned.value, "tuned_low": max(tuned.low, 0.0) if is_distance else tuned.low, "tuned_high": tuned.high,
        "shuffled": float(np.mean(shuffled)) if shuffled else math.nan,
        "two_seeds": float(np.mean(np.abs(between))) if between else math.nan,
        "common": common_share(_own_changes(here), between) if is_distance else math.nan,
        "p_value": math.nan, **beyond,
    }  # fmt: skip


def _beyond(own: Sequence[float], shuffled: Sequence[float], is_distance: bool) -> dict[str, float]:
    """Return how what the true labels change is related to what shuffled ones do, and whether that may be chance."""
    found = times(own, shuffled) if is_distance else welch(own, shuffled, is_above=False)
    name = "ratio" if is_distance else "difference"
    return {name: found.value, f"{name}_low": found.low, f"{name}_high": found.high, "p_value": found.p}


def _own_changes(rows: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the change of each checkpoint that was tuned on true labels, from the start."""
    return [row["change"] for row in rows if row["start"] == TRUE and row["against"] == START]


def _by_seed(rows: Sequence[Mapping[str, Any]], start: str) -> list[float]:
    """Return the change from the start of each seed, the mean over its orders."""
    own = [row for row in rows if row["start"] == start and row["against"] == START]
    seeds = dict.fromkeys(row["seed"] for row in own)
    return [float(np.mean([row["change"] for row in own if row["seed"] == seed])) for seed in seeds]
