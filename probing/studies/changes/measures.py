"""What is measured of each checkpoint, and of pairs of checkpoints, layer by layer; each is kept in the cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from probing.cache.source import ActivationSource
from probing.cache.store import ActivationStore
from probing.heads.accumulation import accumulate
from probing.heads.change import COSINE, SAME, Change, PublishedChange, check_padding, map_rows, published_rows
from probing.heads.parts import PARTS
from probing.heads.parts import measure as measure_heads
from probing.heads.subject import Checkpoint, Subject, check_comparable
from probing.runtime.machine import drop_garbage
from probing.runtime.terminal import silence
from probing.studies.changes.states import state_distances
from probing.studies.changes.tables import MAPS, OUTLIERS, POSITION, PUBLISHED, SPECIAL_MASS, STATES
from probing.studies.series.measures import MEASURES, Document, How, Text, kept, key_of
from probing.tables.heads import SPECIAL, of_measure

Rows = list[dict[str, Any]]


def of_checkpoint(name: str, source: ActivationSource, text: Text, how: How) -> Rows:
    """Return a property of a checkpoint: a row for each layer with `measure` and `value`.

    Args:
        name: `position`, `outliers` or `special`.
        source: The checkpoint.
        text: What it reads.
        how: How probes are trained.
    """
    command, read = _OF_CHECKPOINT[name]
    source = replace(source, say=silence)  # what is said of the labels of positions has no remedy here
    make = MEASURES.get(command, _of_special)
    document, _ = kept(source.cache, key_of(command, source, text, how), lambda: make(source, text, how), source.say)
    return read(document)


def _of_special(source: ActivationSource, text: Text, how: How) -> tuple[Document, ActivationStore]:
    """Measure which share of the attention of each block goes to special tokens."""
    blocks = [layer for layer in source.layers if layer > 0]
    subject = Subject.of(source.request(text.corpora[0]), blocks, how.seed)
    parts = [part for part in PARTS if part.name == "tokens"]
    tables, stores = measure_heads(subject, parts, source.cache, source.trainer, source.say)
    rows = of_measure(tables["attention_layers"], "mass", SPECIAL)
    return {"rows": _values("special_mass", rows)}, subject.entry(stores)


def _values(measure: str, rows: Sequence[Mapping[str, Any]]) -> Rows:
    return [{"measure": measure, "layer": int(row["layer"]), "value": float(row["value"])} for row in rows]


def _accuracies(document: Document) -> Rows:
    return _values("position_accuracy", [row for row in document["rows"] if row["measure"] == "accuracy"])


def _geometry(document: Document) -> Rows:
    """Return the mean cosine of two tokens, and how far the mean of the farthest neuron is from those of the others."""
    farthest = [
        {"layer": layer, "value": float(np.abs(values).max())} for layer, values in document["deviations"].items()
    ]
    cosines = [row for row in document["rows"] if row["measure"] == "mean_cosine"]
    return [*_values("mean_cosine", cosines), *_values("outlier_deviation", farthest)]


_OF_CHECKPOINT: Mapping[str, tuple[str, Callable[[Document], Rows]]] = {
    POSITION: ("fit", _accuracies),
    OUTLIERS: ("geometry", _geometry),
    SPECIAL_MASS: (SPECIAL_MASS, lambda document: document["rows"]),
}


def of_pair(names: Sequence[str], a: ActivationSource, b: ActivationSource, text: Text, how: How) -> Rows:
    """Return distances of two checkpoints: a row for each layer with `measure` and `value`.

    Args:
        names: Some of `maps`, `published` and `states`.
        a: A checkpoint.
        b: The other one, with the same tokens.
        text: What both read.
        how: Nothing of it matters.
    """
    rows: Rows = []
    for name in names:
        key = {**key_of(f"change-{name}", a, text, how), "against": b.request(text.corpora[0]).key()}
        make = _OF_PAIR[name]
        document, _ = kept(a.cache, key, lambda make=make: make(a, b, text), a.say)  # type: ignore[misc]
        rows += document["rows"]
    return rows


def _of_states(a: ActivationSource, b: ActivationSource, text: Text) -> tuple[Document, ActivationStore]:
    first, second = (one.read(text.corpora[:1])[0] for one in (a, b))
    found = state_distances(first, second, a.layers)
    rows: Rows = [
        {"measure": f"states_{name}", "layer": layer, "value": value}
        for layer, distances in found.items()
        for name, value in vars(distances).items()
    ]
    return {"rows": rows}, first


def _of_maps(a: ActivationSource, b: ActivationSource, text: Text) -> tuple[Document, ActivationStore]:
    request, against = _requests(a, b, text)
    store = accumulate(request, [Change(against, alone=True)], a.cache, a.trainer, a.say)["change"]
    rows = [row for row in map_rows(store, _blocks(a)) if row["of"] == SAME and row["head"] is None]
    cosines, divergences = ([row for row in rows if row["measure"] == one] for one in ("cosine", "jensen_shannon"))
    cosines = [{**row, "value": 1 - row["value"]} for row in cosines]
    return {"rows": _values("maps_cosine", cosines) + _values("maps_jensen_shannon", divergences)}, store


def _of_published(a: ActivationSource, b: ActivationSource, text: Text) -> tuple[Document, ActivationStore]:
    request, against = _requests(a, b, text)
    own = Checkpoint(request)
    check_padding(own)
    store = accumulate(request, [PublishedChange(own, against)], a.cache, a.trainer, a.say)["change_as_published"]
    rows = [row for row in published_rows(store, _blocks(a)) if row["measure"] == COSINE and row["head"] is None]
    same = [{**row, "value": 1 - row["value"]} for row in rows if row["of"] == SAME]
    return {"rows": _values("maps_as_published", same)}, store


def _requests(a: ActivationSource, b: ActivationSource, text: Text) -> tuple[Any, Checkpoint]:
    request, other = (one.request(text.corpora[0]) for one in (a, b))
    return request, Checkpoint(other)


def _blocks(source: ActivationSource) -> list[int]:
    return [layer for layer in source.layers if layer > 0]


_OF_PAIR: Mapping[str, Callable[[ActivationSource, ActivationSource, Text], tuple[Document, ActivationStore]]] = {
    MAPS: _of_maps, PUBLISHED: _of_published, STATES: _of_states,
}  # fmt: skip


def check_members(
    start: ActivationSource, others: Mapping[str, ActivationSource], options: Mapping[str, str], text: Text
) -> None:  # fmt: skip
    """Refuse checkpoints that are not of the start's architecture, or divide the text into other tokens.

    Args:
        start: The start.
        others: The checkpoints by name.
        options: The option that names each, by its name.
        text: What all read.

    Raises:
        UserError: If one cannot be compared.
    """
    heads = Subject.of(start.request(text.corpora[0]), [], 0).heads
    for name, other in others.items():
        against = Checkpoint(other.request(text.corpora[0]))
        check_comparable(start.request(text.corpora[0]), heads, against, options[name])
        drop_garbage()
