"""Measures of all checkpoints and pairs, and tests of whether the task has changed a layer."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probing.activations.source import ActivationSource
from probing.activations.store import ActivationStore, CacheEntry
from probing.errors import UserError
from probing.heads.accumulation import accumulate
from probing.heads.change import (
    COSINE,
    SAME,
    check_padding,
    map_change,
    map_rows,
    published_change,
    published_rows,
    row_cosines,
)
from probing.heads.parts import PARTS
from probing.heads.parts import measure as measure_heads
from probing.heads.survey import HeadSurvey, SurveyedCheckpoint, check_comparable
from probing.results import Table, count, estimate_cells, without_nan
from probing.runs.call import Measurements
from probing.runs.loading import CHECKPOINTS, Tuned, checkpoint_name, load_run
from probing.runs.places import texts_of
from probing.runtime import drop_garbage
from probing.runtime.progress import note, stage
from probing.runtime.terminal import silence
from probing.statistics import common_share, times, welch
from probing.statistics.chance import correct_p_values
from probing.studies.checkpoints.survey import MEASURES as CHECKPOINT_MEASURES
from probing.studies.checkpoints.survey import CheckpointConfig, Document, blocks_of, cached_document
from probing.studies.tuning_effect import (
    LEVEL,
    MAPS,
    MEASURES,
    OF_CHECKPOINTS,
    OF_PAIRS,
    OUTLIERS,
    POSITION,
    PUBLISHED,
    SHUFFLED,
    SPECIAL_MASS,
    START,
    STATES,
    TRUE,
)
from probing.tables.heads import SPECIAL, of_measure
from probing.text import Corpus, load_corpus

# Rows in one product.
_ROWS = 4096

_TINY = torch.finfo(torch.float64).tiny


@dataclass(frozen=True)
class StateDistances:
    """Distances of a layer's hidden states in two checkpoints, 0 for equal checkpoints.

    Args:
        cosine: 1 minus the mean cosine of the same token's hidden states.
        rotated: The same after the best rotation (or reflection) of a checkpoint, estimated on a half of the sentences
            and measured on the other, and vice versa; above `cosine` only by the cost of this split.
        cka: 1 minus linear CKA (Kornblith et al. 2019).
    """

    cosine: float
    rotated: float
    cka: float


def state_distances(a: ActivationStore, b: ActivationStore, layers: Sequence[int]) -> dict[int, StateDistances]:
    """Return the distances of each layer of two checkpoints' hidden states, which must have the same tokens."""
    distances = {}
    for layer in layers:
        sums = _DistanceSums(a.plan.d_model)
        for rows in _pairs(a, b, layer):
            sums.add(*rows)
        if sums.is_equal:
            distances[layer] = StateDistances(0.0, 0.0, 0.0)
            continue
        rotations = sums.rotations()
        turned = sum(
            float(row_cosines(first, second @ rotations[half]).sum()) for first, second, half in _pairs(a, b, layer)
        )
        distances[layer] = StateDistances(1 - sums.cosines / sums.n, 1 - turned / sums.n, 1 - sums.cka())
    return distances


def _pairs(a: ActivationStore, b: ActivationStore, layer: int) -> Iterator[tuple[Tensor, Tensor, int]]:
    """Yield the states of the same tokens in both entries, float64, and the half of their sentences, 0 or 1."""
    for shard in a.plan.shards:
        first, second = (store.read(layer, shard.index).double() for store in (a, b))
        halves = torch.from_numpy(a.tokens.sentences[shard.rows(a.tokens)] % 2)
        for half in (0, 1):
            in_half = halves == half
            for pieces in zip(first[in_half].split(_ROWS), second[in_half].split(_ROWS), strict=True):
                yield *pieces, half


class _DistanceSums:
    def __init__(self, d_model: int) -> None:
        self.n, self.cosines, self.is_equal = 0, 0.0, True
        shape = d_model, d_model
        self.products = torch.zeros(3, *shape, dtype=torch.float64)  # of a with b, of a with itself, of b with itself
        self.means = torch.zeros(2, d_model, dtype=torch.float64)
        self.turns = torch.zeros(2, *shape, dtype=torch.float64)  # of directions, for each half

    def add(self, a: Tensor, b: Tensor, half: int) -> None:
        self.n += len(a)
        self.is_equal &= torch.equal(a, b)
        self.cosines += float(row_cosines(a, b).sum())
        for product, (x, y) in zip(self.products, ((a, b), (a, a), (b, b)), strict=True):
            product.addmm_(x.T, y)
        for mean, x in zip(self.means, (a, b), strict=True):
            mean += x.sum(0)
        first, second = (x / x.norm(dim=1, keepdim=True).clamp_min(_TINY) for x in (a, b))
        self.turns[half].addmm_(second.T, first)

    def rotations(self) -> list[Tensor]:
        """Return the rotations of `b` onto `a` for the sentences of each half: the best rotation of the other half.

        The sum of cosines of `a` and `b R` is trace(R' S), S the sum of outer products of directions, and is highest
        for R = U V' of the singular value decomposition of S (Schoenemann 1966).
        """
        rotations = []
        for turn in self.turns.flip(0):
            u, _, v = torch.linalg.svd(turn)
            rotations.append(u @ v)
        return rotations

    def cka(self) -> float:
        """Return |C_ab|^2 / (|C_aa| |C_bb|), Frobenius norms of covariances; NaN where a layer is constant."""
        pairs = ((0, 1), (0, 0), (1, 1))
        cross, *norms = (
            float((product - torch.outer(self.means[i], self.means[j]) / self.n).square().sum())
            for product, (i, j) in zip(self.products, pairs, strict=True)
        )
        return cross / (norms[0] * norms[1]) ** 0.5 if norms[0] * norms[1] > 0 else float("nan")


Rows = list[dict[str, Any]]


def of_checkpoint(name: str, source: ActivationSource, config: CheckpointConfig) -> Rows:
    """Return a property of a checkpoint: rows with `measure`, `layer` and `value`.

    The name is `position`, `outliers` or `special`.
    """
    measure, read = _OF_CHECKPOINT[name]
    source = replace(source, say=silence)  # what is said of the labels of positions has no remedy here
    make = CHECKPOINT_MEASURES.get(measure, _of_special)
    return read(cached_document(measure, source, config, partial(make, source, config))[0])


def _of_special(source: ActivationSource, config: CheckpointConfig) -> tuple[Document, CacheEntry]:
    """Measure the share of the attention of each block that goes to special tokens."""
    head_inputs = HeadSurvey.of(source.request(config.corpora[0]), blocks_of(source), config.seed)
    parts = [part for part in PARTS if part.name == "tokens"]
    tables, stores = measure_heads(head_inputs, parts, source.cache, source.trainer, source.say)
    rows = of_measure(tables["attention_layers"], "mass", SPECIAL)
    return {"rows": _values("special_mass", rows)}, head_inputs.entry(stores)


def _values(measure: str, rows: Sequence[Mapping[str, Any]], sign: int = 1) -> Rows:
    """Return rows with the values as a measure; with a negative sign, 1 minus these."""
    return [
        {"measure": measure, "layer": int(row["layer"]), "value": float(row["value"] if sign > 0 else 1 - row["value"])}
        for row in rows
    ]


def _accuracies(document: Document) -> Rows:
    return _values("position_accuracy", Table(document["rows"]).where(measure="accuracy"))


def _geometry(document: Document) -> Rows:
    farthest = [
        {"layer": layer, "value": float(np.abs(values).max())} for layer, values in document["deviations"].items()
    ]
    cosines = Table(document["rows"]).where(measure="mean_cosine")
    return [*_values("mean_cosine", cosines), *_values("outlier_deviation", farthest)]


_OF_CHECKPOINT: Mapping[str, tuple[str, Callable[[Document], Rows]]] = {
    POSITION: ("fit", _accuracies),
    OUTLIERS: ("geometry", _geometry),
    SPECIAL_MASS: (SPECIAL_MASS, lambda document: document["rows"]),
}


def of_pair(names: Sequence[str], a: ActivationSource, b: ActivationSource, config: CheckpointConfig) -> Rows:
    """Return distances of two checkpoints with the same tokens: rows with `measure`, `layer` and `value`.

    Names are some of `maps`, `published` and `states`.
    """
    rows: Rows = []
    for name in names:
        make, against = partial(_OF_PAIR[name], a, b, config.corpora[0]), b.request(config.corpora[0])
        rows += cached_document(f"change-{name}", a, config, make, against=against.key())[0]["rows"]
    return rows


def _of_states(a: ActivationSource, b: ActivationSource, corpus: Corpus) -> tuple[Document, CacheEntry]:
    first, second = (source.read([corpus])[0] for source in (a, b))
    rows: Rows = [
        {"measure": f"states_{name}", "layer": layer, "value": value}
        for layer, distances in state_distances(first, second, a.layers).items()
        for name, value in vars(distances).items()
    ]
    return {"rows": rows}, first


def _of_maps(a: ActivationSource, b: ActivationSource, corpus: Corpus) -> tuple[Document, CacheEntry]:
    measure = map_change(SurveyedCheckpoint(b.request(corpus)), alone=True)
    store = accumulate(a.request(corpus), [measure], a.cache, a.trainer, a.say)["change"]
    rows = Table(map_rows(store, blocks_of(a))).where(of=SAME, head=None)
    cosines, divergences = (rows.where(measure=name) for name in ("cosine", "jensen_shannon"))
    return {"rows": _values("maps_cosine", cosines, -1) + _values("maps_jensen_shannon", divergences)}, store


def _of_published(a: ActivationSource, b: ActivationSource, corpus: Corpus) -> tuple[Document, CacheEntry]:
    checkpoint, against = (SurveyedCheckpoint(source.request(corpus)) for source in (a, b))
    check_padding(checkpoint)
    measure = published_change(checkpoint, against)
    store = accumulate(checkpoint.request, [measure], a.cache, a.trainer, a.say)["change_as_published"]
    rows = Table(published_rows(store, blocks_of(a))).where(measure=COSINE, head=None, of=SAME)
    return {"rows": _values("maps_as_published", rows, -1)}, store


_PairMeasure = Callable[[ActivationSource, ActivationSource, Corpus], tuple[Document, CacheEntry]]
_OF_PAIR: Mapping[str, _PairMeasure] = {
    MAPS: _of_maps, PUBLISHED: _of_published, STATES: _of_states,
}  # fmt: skip


def check_members(
    start: ActivationSource, others: Mapping[str, ActivationSource], options: Mapping[str, str], corpus: Corpus
) -> None:  # fmt: skip
    """Refuse checkpoints of another architecture or tokenisation; `options` names the option of each, for messages."""
    heads = HeadSurvey.of(start.request(corpus), [], 0).heads
    for name, other in others.items():
        check_comparable(start.request(corpus), heads, SurveyedCheckpoint(other.request(corpus)), options[name])
        drop_garbage()


@dataclass(frozen=True)
class Member:
    """Checkpoint that was tuned from the start, on the true labels (`pretrained`) or on shuffled labels (`shuffled`).

    Two checkpoints that differ only in the seed have the same order; `order` is the seed of the order of the data.
    """

    name: str
    model: str
    start: str
    seed: int
    order: int

    @property
    def row(self) -> dict[str, Any]:
        """Columns that identify the checkpoint of a row."""
        return {"checkpoint": self.name, "start": self.start, "seed": self.seed, "order_seed": self.order}


@dataclass(frozen=True)
class TuningFamily:
    """Start, its revision on the hub, the checkpoints tuned from it, and the run of `finetune`, if any."""

    start: str
    revision: str | None
    members: Sequence[Member]
    run: Any = None

    def of(self, start: str) -> list[Member]:
        """Return the members tuned on true or on shuffled labels."""
        return [member for member in self.members if member.start == start]

    def apart(self) -> Iterator[tuple[Member, Member]]:
        """Yield the pairs of members tuned on true labels that differ only in the seed."""
        true_members = self.of(TRUE)
        yield from ((a, b) for a, b in combinations(true_members, 2) if a.order == b.order)


def of_run(folder: str) -> TuningFamily:
    """Return the checkpoints that a run of `finetune` tuned from trained weights.

    Raises:
        UserError: If it is another run, tuned nothing from trained weights on true labels, or lacks a checkpoint.
    """
    run = load_run(folder)
    flag_text = f"--run {folder}"
    if run.study.name != "finetune":
        raise UserError(f"`{flag_text}`: expected a run of `finetune`, found one of `{run.study.name}`; give another.")
    rows = run.tunings.where(start=(TRUE, SHUFFLED))
    if not any(row["start"] == TRUE for row in rows):
        raise UserError(
            f"`{flag_text}`: nothing in it was tuned from the pretrained model, whose change is measured; repeat "
            "`finetune` with --starts pretrained,shuffled."
        )
    names = {checkpoint_name(row): row for row in rows}
    folders = {name: run.folder / CHECKPOINTS / name for name in names}
    if missing := next((path for path in folders.values() if not path.is_dir()), None):
        raise UserError(f"`{flag_text}`: its checkpoint {missing} is not there any more; repeat `finetune`.")
    members = [
        Member(name, str(folders[name]), row["start"], row["seed"], row["order_seed"]) for name, row in names.items()
    ]
    return TuningFamily(run.config["model"], run.config["revision"], members, run)


def of_names(start: str, tuned: Sequence[str], shuffled: Sequence[str]) -> TuningFamily:
    """Return checkpoints that a user names, each with another seed; raise UserError for a repeated name."""
    groups = {TRUE: tuned, SHUFFLED: shuffled}
    models = [start, *(name for names in groups.values() for name in names)]
    places = [os.path.realpath(name) if os.path.isdir(name) else name for name in models]
    if twice := next((name for i, name in enumerate(models) if places[i] in places[:i]), None):
        raise UserError(f"{twice} is named twice among --start, --tuned and --shuffled; name each model once.")
    ends = [Path(name).name for name in models]
    # A folder whose name another has, or that stands for the start in tables, goes by its path.
    called = {
        name: end if ends.count(end) == 1 and end != START else place
        for name, end, place in zip(models, ends, places, strict=True)
    }
    members = [
        Member(called[name], name, group, i, 0) for group, names in groups.items() for i, name in enumerate(names)
    ]
    return TuningFamily(start, None, members)


# What was measured of one checkpoint or pair: values by measure and layer.
_LayerValues = dict[tuple[str, int], float]


def survey(
    family: TuningFamily, sources: Mapping[str, ActivationSource], start: ActivationSource,
    config: CheckpointConfig, names: Sequence[str], options: Mapping[str, str],
) -> Measurements:  # fmt: skip
    """Measure all checkpoints and pairs; `options` has the option that names each checkpoint, for messages.

    Raises:
        UserError: If a checkpoint has another architecture, or tokenises the text differently.
    """
    with stage("tokens of the text"):
        check_members(start, sources, options, config.corpora[0])
    alone, all_sources = [name for name in names if name in OF_CHECKPOINTS], {START: start, **sources}
    values: dict[str, _LayerValues] = {}
    with stage(f"properties of {count(len(sources) + 1, 'checkpoint')}", len(sources) + 1) as advance:
        for called, source in all_sources.items():
            note(called)
            values[called] = _by_layer([row for name in alone for row in of_checkpoint(name, source, config)])
            drop_garbage()  # the model that was read, before the next one is loaded
            advance(1)
    pair_names = [name for name in names if name in OF_PAIRS]
    pairs = [(member.name, START) for member in family.members] + [(a.name, b.name) for a, b in family.apart()]
    apart: dict[tuple[str, str], _LayerValues] = {}
    with stage(f"distances of {count(len(pairs), 'pair')} of checkpoints", len(pairs)) as advance:
        for a, b in pairs:
            note(f"{a}, {b}")
            apart[a, b] = _by_layer(of_pair(pair_names, all_sources[a], all_sources[b], config))
            drop_garbage()
            advance(1)
    changes = _changes(family, values, apart)
    tables = {
        "layer_changes": [without_nan(row) for row in layer_rows(changes, values[START])],
        "checkpoint_changes": [without_nan(row) for row in changes],
    }
    corpus = config.corpora[0]
    results = {
        "start": {"name": start.model.name, "fingerprint": start.model.fingerprint()},
        "checkpoints": {name: {"fingerprint": source.model.fingerprint()} for name, source in sources.items()},
        "n_seeds": {group: len({member.seed for member in family.of(group)}) for group in (TRUE, SHUFFLED)},
        "corpus": {"name": corpus.name, "fingerprint": corpus.fingerprint, "n_sentences": len(corpus.sentences)},
    }
    return Measurements(tables, results)


def _by_layer(rows: Rows) -> _LayerValues:
    return {(row["measure"], row["layer"]): row["value"] for row in rows}


def _changes(
    family: TuningFamily, values: Mapping[str, _LayerValues], apart: Mapping[tuple[str, str], _LayerValues]
) -> list[dict[str, Any]]:
    pairs = [(tuned, START) for tuned in family.members] + [(a, b.name) for a, b in family.apart()]
    rows = []
    for tuned, against in pairs:
        of_tuned, of_other = values[tuned.name], values[against]
        properties = {key: value - of_other[key] for key, value in of_tuned.items() if key in of_other}
        for (measure, layer), change in [*apart[tuned.name, against].items(), *properties.items()]:
            rows.append({**tuned.row, "against": against, "measure": measure, "layer": layer, "change": change})
    return rows


def layer_rows(changes: Sequence[Mapping[str, Any]], of_start: Mapping[tuple[str, int], float]) -> Rows:
    """Return for each measure and layer the change by tuning, and that by shuffled labels and between seeds.

    Seeds are the draws: values of the same seed at several orders of the data are averaged. The p-values are corrected
    for all measures and layers together (Holm 1979).
    """
    by_key = Table(changes).by("measure", "layer")
    keys = sorted(by_key, key=lambda key: (list(MEASURES).index(key[0]), key[1]))
    rows = [_layer_row(key, by_key[key], of_start.get(key, math.nan)) for key in keys]
    correct_p_values(rows)
    for row in rows:
        row["by_task"] = "" if math.isnan(row["p_value"]) else "yes" if row["p_value"] <= LEVEL else "not shown"
    return rows


def _layer_row(key: tuple[str, int], rows: Table, of_start: float) -> dict[str, Any]:
    measure, layer = key
    true_changes, shuffled = (_by_seed(rows, start) for start in (TRUE, SHUFFLED))
    between = rows.where(lambda row: row["against"] != START).column("change")
    from_start = rows.where(start=TRUE, against=START).column("change")
    is_distance = MEASURES[measure].is_distance
    tuned = welch(true_changes, [0.0, 0.0], is_above=is_distance)
    row = {
        "measure": measure, "layer": layer, "start_value": of_start,
        "tuned": tuned.value, "tuned_low": max(tuned.low, 0.0) if is_distance else tuned.low, "tuned_high": tuned.high,
        "shuffled": float(np.mean(shuffled)) if shuffled else math.nan,
        "two_seeds": float(np.mean(np.abs(between))) if between else math.nan,
        "common": common_share(from_start, between) if is_distance else math.nan,
        "p_value": math.nan,
    }  # fmt: skip
    if shuffled:
        test = times(true_changes, shuffled) if is_distance else welch(true_changes, shuffled, is_above=False)
        row |= estimate_cells("ratio" if is_distance else "difference", test.value, (test.low, test.high))
        row["p_value"] = test.p
    return row


def _by_seed(rows: Table, start: str) -> list[float]:
    """Return the change from the start of each seed, averaged over its orders."""
    by_seed = rows.where(start=start, against=START).by("seed")
    return [float(np.mean(of_seed.column("change"))) for of_seed in by_seed.values()]


def text_of(corpus: Any, family: TuningFamily, most: int, seed: int, say: Callable[[str], None]) -> Corpus:
    """Return the given text, the run's text, or the built-in text; at most `most` sentences of it, or all if 0.

    A run that was tuned on pairs needs a text (UserError).
    """
    if corpus is not None or family.run is None:
        text = load_corpus("builtin" if corpus is None else corpus)
    elif "corpus" not in family.run.results["corpora"]:
        raise UserError(
            f"`--run {family.run.folder}`: it was tuned on pairs, and single sentences are read here; give a text as "
            "--corpus."
        )
    else:
        tuned = Tuned(family.run, Path(family.members[0].model), f"--run {family.run.folder}")
        text = texts_of(tuned).corpora[0]
    if most and len(text.sentences) > most:
        drawn = np.random.default_rng(seed).choice(len(text.sentences), most, replace=False)
        say(f"{most} of {len(text.sentences):,} sentences are read (--sentences)")
        text = text.subset(sorted(drawn.tolist()))
    return replace(text, n_repeated=0, relabelled={}, n_without_text=0)
