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

from probing.activations import job_lock
from probing.activations.source import ActivationSource
from probing.activations.store import (
    ActivationStore,
    DamagedCache,
    PassStore,
    fingerprint,
    leftovers,
    remove,
    remove_unused,
)
from probing.cli.options import ProbeOptions
from probing.data.labelling import read_sides
from probing.data.module import control_sides
from probing.errors import UserError
from probing.heads.parts import PARTS
from probing.heads.parts import measure as measure_heads
from probing.heads.position import OFFSET_HEADS, POSITION_HEADS
from probing.heads.subject import HeadConfig, HeadSurvey
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


def folder_of(cache: Path, key: Mapping[str, Any]) -> Path:
    """Return the folder of a cache entry; the key contains all that changes the result, but no checkpoint names."""
    return cache / f"checkpoints-{key['checkpoints']}-{fingerprint(key)[:16]}"


def cached_document(
    cache: Path,
    key: Mapping[str, Any],
    make: Callable[[], tuple[Document, ActivationStore]],
    say: Callable[[str], None],
) -> tuple[Document, bool]:
    """Return the content of a cache entry, and whether it existed; if not, make and store it.

    The key has everything that changes the result. `make` returns the result and the cache entry that is its origin.

    Raises:
        UserError: If the cache cannot be written.
    """
    folder = folder_of(cache, key)
    try:
        lock = job_lock(cache, folder.name, say)
    except OSError as error:
        raise not_writable(cache, error) from None
    with lock:
        for path in leftovers(folder):
            remove(path)
        if (stored := _read(folder)) is not None:
            return stored, True
        document, source = make()
        description = {name: source.header[name] for name in ("model", "revision", "corpus", "versions")}
        store = PassStore.opened(folder, key, source.tokens, _ONLY, source.plan.batch_tokens, description)
        store.put(_ONLY, {"document": _as_tensor(json.dumps(document))})
        # Converted to JSON and back, so that a number is the same whether it was measured now or read from the cache.
        return json.loads(json.dumps(document)), False


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
        raise not_writable(source.cache, error) from None
    return before


def not_writable(cache: Path, error: OSError) -> UserError:
    """Return the error for a cache that cannot be written."""
    return UserError(
        f"`--cache {cache}` cannot be written ({error.strerror or error}); name a writable folder with --cache."
    )


def _read(folder: Path) -> Document | None:
    try:
        store = PassStore(folder)
    except DamagedCache:
        return None
    if store.unfinished([_ONLY]):
        return None
    store.touch()
    document: Document = parse_json(bytes(store.get(_ONLY)["document"].tolist()).decode())
    return document


def _as_tensor(text: str) -> Any:
    import torch

    return torch.tensor(list(text.encode()), dtype=torch.uint8)


# Increased whenever the meaning of what is kept changes.
FORMAT = 1

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


@dataclass(frozen=True)
class CheckpointText:
    """Text of every checkpoint of a series: the corpus and any test corpus, and the sides of their sentences."""

    corpora: Sequence[Corpus]
    splits: Sequence[Sequence[Split]]


@dataclass(frozen=True)
class How:
    """Options of the measurement of a checkpoint."""

    probe: ProbeOptions
    seed: int


def key_of(name: str, source: ActivationSource, text: CheckpointText, how: How) -> dict[str, Any]:
    """Return everything that changes the result of a measure."""
    return {
        **source.request(text.corpora[0]).key(),
        "checkpoints": name,
        "checkpoints_format": FORMAT,
        "layers": list(source.layers),
        "test_corpus": text.corpora[1].fingerprint if len(text.corpora) > 1 else None,
        "seed": how.seed,
        **({"probe": asdict(how.probe)} if name == "fit" else {}),
    }


def _of_fit(source: ActivationSource, text: CheckpointText, how: How) -> tuple[Document, ActivationStore]:
    """Measure the accuracy of position probes of each layer, and of a probe of the token alone."""
    task, corpora = load_task("position", None), text.corpora
    sides, stores = read_sides(source, corpora, text.splits, task, how.probe, "auto")
    controls = control_sides(["token"], sides, corpora, source, how.seed)
    asked = EvidenceConfig(0, False, False, "none", how.seed, ranking=False)
    measured = measure(
        sides, controls, source.layers, how.probe, asked, source.trainer, Stopwatch(), silence, None, None
    )
    assert isinstance(measured, ClassResults)
    rows = [row for found in measured.accuracy() for row in _probe_rows(found)]
    return _document(rows, stores[0]), stores[0]


def _probe_rows(accuracy_row: Mapping[str, Any]) -> Rows:
    rows = [
        _row(
            accuracy_row["layer"],
            name,
            accuracy_row[name],
            accuracy_row.get(f"{name}_low"),
            accuracy_row.get(f"{name}_high"),
        )
        for name in _OF_PROBES
    ]
    ends = (accuracy_row["above_token_low"], accuracy_row["above_token_high"])
    rows.append(
        _row(accuracy_row["layer"], "above_token", accuracy_row["accuracy"] - accuracy_row["token_accuracy"], *ends)
    )
    return [{**row, "n": int(accuracy_row["n_test_tokens"])} for row in rows]


def _of_geometry(source: ActivationSource, text: CheckpointText, how: How) -> tuple[Document, ActivationStore]:
    """Measure the anisotropy of each layer, and the distance of each neuron's mean from the others."""
    (store,) = source.read(text.corpora[:1], [partial(check_tokens, special_tokens="exclude")])
    plan = GeometryPlan("exclude", (), "mean_profile", Fitting(), 0, (), how.seed)
    geometry = survey(store, store, source.layers, load_encoder(source.model), load_tokenizer(source.model), plan)
    rows, deviations, dimensions = [], {}, Table(geometry.dimensions).by("layer")
    for layer in source.layers:
        means = np.array(dimensions[layer].column("mean"))
        deviations[str(layer)] = [float(value) for value in deviations_of(means)]
        rows += [
            {**_row(layer, row["measure"], row["value"], row.get("low"), row.get("high")), "n": int(row["n_tokens"])}
            for row in Table(geometry.geometry).where(layer=layer, transform="none")
        ]
    return {**_document(rows, store), "deviations": deviations}, store


def _of_attention(source: ActivationSource, text: CheckpointText, how: How) -> tuple[Document, ActivationStore]:
    """Measure attention to fixed offsets and special tokens, its distance and its entropy."""
    blocks = [layer for layer in source.layers if layer > 0]
    request, *test = (source.request(corpus) for corpus in text.corpora)
    heads_config = HeadConfig(test=test[0] if test else None, splits=text.splits, source=source)
    head_inputs = HeadSurvey.of(request, blocks, how.seed, heads_config)
    if lack := OFFSET_HEADS.needs(head_inputs):
        raise UserError(f"`--measures attention` needs {lack}.")
    parts = [*(part for part in PARTS if part.name in ("profile", "tokens")), OFFSET_HEADS]
    tables, stores = measure_heads(head_inputs, parts, source.cache, source.trainer, source.say)
    rows = [
        {**_row(row["layer"], name, row["value"], row["low"], row["high"]), "n": int(row["n"])}
        for (quantity, to), name in _OF_HEADS.items()
        for row in of_measure(tables["attention_layers"], quantity, to)
    ]
    for layer in blocks:
        rows += _offset_rows(layer, Table(tables[POSITION_HEADS]).where(layer=layer))
    store = head_inputs.entry(stores)
    return _document(rows, store), store


def _offset_rows(layer: int, heads: Sequence[Mapping[str, Any]]) -> Rows:
    n = sum(row["position_head"] == "yes" for row in heads)
    rows = [_row(layer, "n_position_heads", n)]
    attending = [row for row in heads if not math.isnan(row["mass"])]
    if attending:
        most = max(attending, key=lambda row: row["mass"])
        mass_row = _row(layer, "offset_mass", most["mass"], most["mass_low"], most["mass_high"])
        rows.append({**mass_row, "n": int(most["n"]), "head": most["head"], "offset": most["offset"]})
    return rows


# For each command, what measures one checkpoint; it returns an entry of the cache too, which tells what was read.
MEASURES: Mapping[str, Callable[[ActivationSource, CheckpointText, How], tuple[Document, ActivationStore]]] = {
    "fit": _of_fit, "geometry": _of_geometry, "attention": _of_attention,
}  # fmt: skip


def _row(layer: int, measure: str, value: float, low: float | None = None, high: float | None = None) -> dict[str, Any]:
    ends = {"low": low, "high": high} if low is not None and high is not None else {}
    return {
        "layer": int(layer), "measure": measure, "value": float(value),
        **{name: float(end) for name, end in ends.items()},
    }  # fmt: skip


def _document(rows: Iterable[Mapping[str, Any]], store: ActivationStore) -> Document:
    tokens = store.tokens
    ids = sha256(tokens.input_ids.astype(np.int64).tobytes() + tokens.lengths.astype(np.int64).tobytes()).hexdigest()
    return {"rows": [dict(row) for row in rows], "tokens": {"n": tokens.n_tokens, "sha256": ids}}
