"""Parts of a survey on position heads: which heads they are, and whether they read a run's top-ranked neurons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probing.comparison.agreement import random_bases
from probing.errors import UserError, as_clause
from probing.heads.position.contrast import SampledWords, sample_requests
from probing.heads.position.offsets import AT_OFFSETS, OFFSETS, ToldOffsets
from probing.heads.position.position_heads import Block
from probing.heads.rows import Rows, Sentences
from probing.heads.subject import STATES, Part, Reading, Subject
from probing.heads.sums import SumsStore

Stores = Mapping[str, SumsStore]
POSITION_HEADS = "position_heads"
# A head is a position head if it gives more than this to one offset (Clark et al. 2019), or attends there most of all
# in this share of the queries (Voita et al. 2019).
MOST_MASS, MOST_HITS = 0.5, 0.9
# Number of heads whose neurons are reported even if they are not position heads: those with the most attention to the
# word at their offset.
CLEAREST = 3
# Random bases: with 20, a value above all of them has p = .048.
BASES = 20

_TRAIN, _TEST, _TOLD = "position train", "position test", "position told"


def joined(rows: Rows, more: Rows) -> Rows:
    """Return rows, extended by the columns that other rows have for the same heads."""
    columns = {(row["layer"], row["head"]): row for row in more}
    return [{**row, **columns.get((row["layer"], row["head"]), {})} for row in rows]


def _lacks_run(subject: Subject) -> str | None:
    if subject.asked.run is None:
        return "a run of `fit` on position to compare with, given as --run RUN"
    return _lacks_sides(subject)


def _lacks_sides(subject: Subject) -> str | None:
    n_train, n_test = int(subject.is_train.sum()), int(subject.tested[1].sum())
    if not n_train or not n_test:
        return f"sentences to choose offsets by and others to report on, and there are {n_train:,} and {n_test:,}"
    return None


def _lacks_neurons(subject: Subject) -> str | None:
    if lack := _lacks_run(subject):
        return lack
    assert subject.asked.run is not None
    if not {layer - 1 for layer in subject.layers} & set(subject.asked.run.layers):
        entering = ", ".join(str(layer - 1) for layer in subject.layers)
        return (
            f"a ranking of the neurons that enter a block, layers {entering}, and `--run {subject.asked.run.name}` has "
            f"layers {', '.join(map(str, subject.asked.run.layers))}"
        )
    try:
        subject.query_keys  # noqa: B018
    except UserError as error:
        return f"positions that heads read from the hidden states that enter a block, and {as_clause(error)}"
    return None


# --- which heads are position heads, and do they follow the positions that they are told? ---


def _offset_readings(subject: Subject) -> list[Reading]:
    train, test = sample_requests(subject)
    return [Reading(_TRAIN, train, [AT_OFFSETS]), Reading(_TEST, test, [AT_OFFSETS])]


def _head_readings(subject: Subject) -> list[Reading]:
    *_, test = sample_requests(subject)
    told = Reading(_TOLD, replace(test, permuted_tokens_seed=subject.seed), [ToldOffsets(subject.seed)])
    return [*_offset_readings(subject), told]


def _head_tables(subject: Subject, stores: Stores) -> dict[str, Rows]:
    names = (f"{_TEST}/{AT_OFFSETS.name}", f"{_TOLD}/{ToldOffsets.name}")
    sums = {name: values for one in names if one in stores for name, values in stores[one].all_by_sentence().items()}
    chosen = chosen_offsets(stores)
    sentences = Sentences(len(sums["n"]), subject.seed)
    rows = head_rows({name: values.numpy() for name, values in sums.items()}, chosen, sentences)
    return {POSITION_HEADS: [row for row in rows if row["layer"] in subject.layers]}


def chosen_offsets(stores: Stores) -> NDArray[np.int64]:
    """Return for each head the index of the offset with the most attention in training sentences, (layers, heads)."""
    sums = stores[f"{_TRAIN}/{AT_OFFSETS.name}"].all_by_sentence()
    mass, n = (sums[name].sum(0).numpy() for name in ("mass", "n"))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.nan_to_num(mass / n, nan=-1).argmax(2)


def head_rows(sums: Mapping[str, NDArray[np.float64]], chosen: NDArray[np.int64], sentences: Sentences) -> Rows:
    """Return a row for each head, with its attention to its offset.

    Args:
        sums: By name, the sums of each sentence that is reported on, shape (n_sentences, layers, heads, offsets), and
            as `n` the number of queries, shape (n_sentences, layers, 1, offsets).
        chosen: Index of each head's offset, shape (layers, heads).
        sentences: Draws of the sentences.
    """
    rows: dict[tuple[int, int], dict[str, Any]] = {}
    for at in np.unique(chosen).tolist():
        layers, heads = np.nonzero(chosen == at)
        counts = sums["n"][:, 0, 0, at]
        means = {
            name: sentences.means(values[:, layers, heads, at], counts) for name, values in sums.items() if name != "n"
        }
        for i, (layer, head) in enumerate(zip(layers.tolist(), heads.tolist(), strict=True)):
            row: dict[str, Any] = {"layer": layer + 1, "head": head + 1, "offset": OFFSETS[at]}
            for name, found in means.items():
                one = found.row(i)
                row |= {name: one["value"], f"{name}_low": one["low"], f"{name}_high": one["high"], "n": one["n"]}
            is_one = row["mass"] > MOST_MASS or row["hit"] >= MOST_HITS
            rows[layer, head] = {**row, "position_head": "yes" if is_one else "no"}
    return [rows[at] for at in sorted(rows)]


# --- which neurons do they read? ---


def _neuron_readings(subject: Subject) -> list[Reading]:
    train, test = sample_requests(subject)
    return [Reading(_TRAIN, train, [AT_OFFSETS], states=True), Reading(_TEST, test, [AT_OFFSETS], states=True)]


def _neuron_tables(subject: Subject, stores: Stores) -> dict[str, Rows]:
    run = subject.asked.run
    assert run is not None
    test_sums = stores[f"{_TEST}/{AT_OFFSETS.name}"].all_by_sentence()
    sentences = Sentences(len(test_sums["n"]), subject.seed)
    chosen = chosen_offsets(stores)
    of_heads = head_rows({name: values.numpy() for name, values in test_sums.items()}, chosen, sentences)
    examined = _examined([row for row in of_heads if row["layer"] in subject.layers], run.layers)
    train, test = (SampledWords.of(stores[f"{name}/{STATES}"], subject.heads.is_causal) for name in (_TRAIN, _TEST))
    tables: dict[str, Rows] = {POSITION_HEADS: [], "position_neurons": [], "position_removal": []}
    bases = random_bases(run.weight.shape[2], BASES, subject.seed)
    for layer in subject.layers:
        block = Block.of(layer, subject.query_keys[layer - 1], (train, test), run, bases, subject.seed)
        for at in np.unique(chosen[layer - 1]).tolist():
            heads = np.flatnonzero(chosen[layer - 1] == at).tolist()
            here = block.at(OFFSETS[at])
            pairs = zip(here.contrasts(heads, sentences), here.agreements(heads), strict=True)
            for head, (contrast, agreement) in zip(heads, pairs, strict=True):
                named = {"layer": layer, "head": head + 1, "offset": OFFSETS[at]}
                tables[POSITION_HEADS].append({**named, **contrast, **agreement})
                if (layer, head + 1) in examined:
                    tables["position_neurons"] += [{**named, **row} for row in here.neurons(head)]
                    tables["position_removal"] += [{**named, **row} for row in here.removals(head)]
    return {name: sorted(rows, key=lambda row: (row["layer"], row["head"])) for name, rows in tables.items()}


def _examined(rows: Rows, ranked_layers: Any) -> set[tuple[int, int]]:
    """Return the heads whose neurons are reported: position heads and the clearest heads, in blocks with a ranking."""
    ranked = [row for row in rows if row["layer"] - 1 in ranked_layers]
    clearest = sorted(ranked, key=lambda row: -np.nan_to_num(row["word_mass"], nan=-1))[:CLEAREST]
    found = [*clearest, *(row for row in ranked if row["position_head"] == "yes")]
    return {(row["layer"], row["head"]) for row in found}


POSITION_PARTS = (
    Part(POSITION_HEADS, _lacks_run, lambda subject: [], _head_tables, _head_readings, by_name_only=True),
    Part("position_neurons", _lacks_neurons, lambda subject: [], _neuron_tables, _neuron_readings, by_name_only=True),
)
# The first of these parts without a run: it measures how much heads attend to a fixed offset, but not whether they
# follow permuted positions.
OFFSET_HEADS = Part(POSITION_HEADS, _lacks_sides, lambda subject: [], _head_tables, _offset_readings)
