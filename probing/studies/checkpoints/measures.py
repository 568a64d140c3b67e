"""Measures of `fit`, `geometry` and `attention` in each layer of a checkpoint, and their cache."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from glob import escape
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch

from probing.activations import NotWritable, job_lock
from probing.activations.source import ActivationSource
from probing.activations.store import (
    CacheEntry,
    DamagedCache,
    WorkPlan,
    WorkStore,
    fingerprint,
    remove_unused,
)
from probing.cli.options import ProbeOptions
from probing.data.labelling import read_sides
from probing.data.module import control_sides
from probing.errors import UserError
from probing.heads.parts import PARTS
from probing.heads.parts import measure as measure_heads
from probing.heads.position import OFFSET_HEADS, POSITION_HEADS
from probing.heads.survey import HeadSurvey
from probing.models import load_encoder, load_tokenizer
from probing.probes.transforms import Fitting
from probing.results import Table
from probing.runs.results import ClassResults, EvidenceConfig, measure
from probing.runtime import Stopwatch
from probing.runtime.files import parse_json, read_text
from probing.runtime.terminal import silence
from probing.statistics.moments import deviations_of
from probing.studies.geometry.survey import GeometryPlan, check_tokens, survey
from probing.tables.heads import SPECIAL, of_measure
from probing.text import Corpus, Split
from probing.text.tasks import load_task

# What a command measured of one checkpoint, as JSON has it.
Document = dict[str, Any]
# The only file of an entry.
_ONLY = 0
# Increased whenever the meaning of what is kept changes.
FORMAT = 1


@dataclass(frozen=True)
class CheckpointConfig:
    """What every checkpoint of a series reads, and how it is measured.

    Args:
        corpora: The corpus and any test corpus.
        splits: The sides of their sentences.
        probe: How probes are trained.
        seed: Seed of every random draw.
    """

    corpora: Sequence[Corpus]
    splits: Sequence[Sequence[Split]]
    probe: ProbeOptions
    seed: int


def cached_document(
    name: str, source: ActivationSource, config: CheckpointConfig, make: Callable[[], tuple[Document, CacheEntry]],
    **more: Any,
) -> tuple[Document, bool]:  # fmt: skip
    """Return what a measure found of a checkpoint, from the cache if it is there, and whether it was there.

    The key of its entry has all that changes the result, which includes `more` and no names of checkpoints. `make`
    returns the result and the cache entry that is its origin.

    Raises:
        UserError: If the cache cannot be written.
    """
    key = {
        **source.request(config.corpora[0]).key(),
        "checkpoints": name,
        "checkpoints_format": FORMAT,
        "layers": list(source.layers),
        "test_corpus": config.corpora[1].fingerprint if len(config.corpora) > 1 else None,
        "seed": config.seed,
        **({"probe": asdict(config.probe)} if name == "fit" else {}),
        **more,
    }
    folder = source.cache / f"checkpoints-{name}-{fingerprint(key)[:16]}"
    with job_lock(source.cache, folder.name, source.say):
        if (stored := _read(folder)) is not None:
            return stored, True
        document, origin = make()
        batch_tokens = origin.plan.batch_tokens
        plan = WorkPlan.of_whole_text(key, f"{name} of checkpoints", 1, origin.tokens, batch_tokens)
        store = WorkStore.opened(folder, lambda: (plan, origin.tokens), origin.description)
        written = json.dumps(document)
        store.put(_ONLY, {"document": torch.tensor(list(written.encode()), dtype=torch.uint8)})
        # Converted to JSON and back, so that a number is the same whether it was measured now or read from the cache.
        return json.loads(written), False


@contextmanager
def without_new_entries(sources: Sequence[ActivationSource], keeps: bool) -> Iterator[None]:
    """Remove the hidden states that were extracted inside, after the measurement, unless `keeps`.

    The entries that existed before are recorded in the cache until then, so that a command that resumes after a kill
    does not mistake its entries for earlier entries.

    Raises:
        UserError: If the cache cannot be written.
    """
    of_all = {_note(source): source for source in sources}
    if keeps:
        for note in of_all:
            note.unlink(missing_ok=True)
        yield
        return
    before = {folder for note, source in of_all.items() for folder in _entries_before(note, source)}
    yield
    for note, source in of_all.items():
        for folder in _entries(source) - before:
            remove_unused(source.cache, folder)
        note.unlink(missing_ok=True)


def _entries(source: ActivationSource) -> set[Path]:
    return set(source.cache.glob(f"{escape(source.model.short_name)}-{'[0-9a-f]' * 16}"))


def _note(source: ActivationSource) -> Path:
    """Return the path of the note on the entries that a checkpoint had before it was measured."""
    return source.cache / f"checkpoints-{source.model.short_name}-{source.model.fingerprint()[:16]}.json"


def _entries_before(note: Path, source: ActivationSource) -> set[Path]:
    with suppress(FileNotFoundError, ValueError):  # a note that a kill cut short was written before any entry
        return {source.cache / name for name in parse_json(read_text(note, source.cache))}
    before = _entries(source)
    try:
        source.cache.mkdir(parents=True, exist_ok=True)
        note.write_text(json.dumps(sorted(folder.name for folder in before)), encoding="utf-8")
    except OSError as error:
        raise NotWritable(source.cache, error) from None
    return before


def _read(folder: Path) -> Document | None:
    try:
        store = WorkStore(folder)
    except DamagedCache:
        return None
    if store.unfinished([_ONLY]):
        return None
    store.touch()
    document: Document = parse_json(bytes(store.get(_ONLY)["document"].tolist()).decode())
    return document


Rows = list[dict[str, Any]]

# Measures of `accuracy.csv`, those with an interval first.
_OF_PROBES = (
    "accuracy", "information", "macro_accuracy", "within_one", "mean_absolute_error", "cross_entropy",
    "majority_accuracy", "token_accuracy",
)  # fmt: skip
# Measures of `attention_layers.csv`, as it names them, and what they are called here.
_OF_HEADS = {
    ("entropy", ""): "entropy", ("distance", ""): "distance", ("self", ""): "self", ("previous", ""): "previous",
    ("next", ""): "next", ("mass", SPECIAL): "special_mass", ("norm_mass", SPECIAL): "special_norm_mass",
}  # fmt: skip


def _of_fit(source: ActivationSource, config: CheckpointConfig) -> tuple[Document, CacheEntry]:
    """Measure the accuracy of position probes of each layer, and of a probe of the token alone."""
    task, corpora = load_task("position", None), config.corpora
    sides, stores = read_sides(source, corpora, config.splits, task, config.probe, "auto")
    controls = control_sides(["token"], sides, corpora, source, config.seed)
    evidence = EvidenceConfig(0, False, False, "none", config.seed, ranking=False)
    measured = measure(
        sides, controls, source.layers, config.probe, evidence, source.trainer, Stopwatch(), silence, None, None
    )
    assert isinstance(measured, ClassResults)
    rows: Rows = []
    for row in measured.accuracy():
        layer, n = row["layer"], int(row["n_test_tokens"])
        rows += [
            _row(layer, name, row[name], row.get(f"{name}_low"), row.get(f"{name}_high"), n=n) for name in _OF_PROBES
        ]
        above = row["accuracy"] - row["token_accuracy"]
        rows.append(_row(layer, "above_token", above, row["above_token_low"], row["above_token_high"], n=n))
    return _document(rows, stores[0]), stores[0]


def _of_geometry(source: ActivationSource, config: CheckpointConfig) -> tuple[Document, CacheEntry]:
    """Measure the anisotropy of each layer, and the distance of each neuron's mean from the others."""
    (store,) = source.read(config.corpora[:1], [partial(check_tokens, special_tokens="exclude")])
    plan = GeometryPlan("exclude", (), "mean_profile", Fitting(), 0, (), config.seed)
    geometry = survey(store, store, source.layers, load_encoder(source.model), load_tokenizer(source.model), plan)
    rows, deviations, dimensions = [], {}, Table(geometry.tables["dimensions"]).by("layer")
    for layer in source.layers:
        means = np.array(dimensions[layer].column("mean"))
        deviations[str(layer)] = [float(value) for value in deviations_of(means)]
        rows += [
            _row(layer, row["measure"], row["value"], row.get("low"), row.get("high"), n=int(row["n_tokens"]))
            for row in Table(geometry.tables["geometry"]).where(layer=layer, transform="none")
        ]
    return {**_document(rows, store), "deviations": deviations}, store


def _of_attention(source: ActivationSource, config: CheckpointConfig) -> tuple[Document, CacheEntry]:
    """Measure attention to fixed offsets and special tokens, its distance and its entropy."""
    request, *test = (source.request(corpus) for corpus in config.corpora)
    head_inputs = HeadSurvey.of(
        request, blocks_of(source), config.seed, test=test[0] if test else None, splits=config.splits, source=source
    )
    if lack := OFFSET_HEADS.needs(head_inputs):
        raise UserError(f"`--measures attention` needs {lack}.")
    parts = [*(part for part in PARTS if part.name in ("profile", "tokens")), OFFSET_HEADS]
    tables, stores = measure_heads(head_inputs, parts, source.cache, source.trainer, source.say)
    rows = [
        _row(row["layer"], name, row["value"], row["low"], row["high"], n=int(row["n"]))
        for (quantity, to), name in _OF_HEADS.items()
        for row in of_measure(tables["attention_layers"], quantity, to)
    ]
    for layer in blocks_of(source):
        heads = Table(tables[POSITION_HEADS]).where(layer=layer)
        rows.append(_row(layer, "n_position_heads", len(heads.where(position_head="yes"))))
        if attending := heads.where(lambda row: not math.isnan(row["mass"])):
            most = max(attending, key=lambda row: row["mass"])
            where = {"n": int(most["n"]), "head": most["head"], "offset": most["offset"]}
            rows.append(_row(layer, "offset_mass", most["mass"], most["mass_low"], most["mass_high"], **where))
    store = head_inputs.entry(stores)
    return _document(rows, store), store


# For each command, what measures one checkpoint; it returns an entry of the cache too, which tells what was read.
MEASURES: Mapping[str, Callable[[ActivationSource, CheckpointConfig], tuple[Document, CacheEntry]]] = {
    "fit": _of_fit, "geometry": _of_geometry, "attention": _of_attention,
}  # fmt: skip


def blocks_of(source: ActivationSource) -> list[int]:
    """Return the layers that are outputs of blocks."""
    return [layer for layer in source.layers if layer > 0]


def _row(
    layer: int, measure: str, value: float, low: float | None = None, high: float | None = None, **more: Any
) -> dict[str, Any]:
    ends = {} if low is None or high is None else {"low": float(low), "high": float(high)}
    return {"layer": int(layer), "measure": measure, "value": float(value), **ends, **more}


def _document(rows: Iterable[Mapping[str, Any]], store: CacheEntry) -> Document:
    tokens = store.tokens
    ids = sha256(tokens.input_ids.astype(np.int64).tobytes() + tokens.lengths.astype(np.int64).tobytes()).hexdigest()
    return {"rows": [dict(row) for row in rows], "tokens": {"n": tokens.n_tokens, "sha256": ids}}
