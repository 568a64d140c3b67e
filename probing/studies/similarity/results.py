"""Output of `wic` and `sts`: their tables, results and curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from probing.activations import ActivationStore
from probing.data.labelling import origin
from probing.downstream.sentence_vectors import Vectors, defined
from probing.results import Row
from probing.runs.call import Measured


def sts_output(
    rows: Sequence[Row], chosen: Sequence[Row], texts: Mapping[str, Any], vectors: Vectors,
    sets: Sequence[Mapping[str, Any]], poolings: Sequence[str],
) -> Measured:  # fmt: skip
    """Return the tables with their summary and curves; the transforms were fitted on `texts`."""
    cached = {pairs.corpus.name: origin(store) for pairs, store in zip(vectors.sets, vectors.stores, strict=True)}
    if vectors.outside:
        cached[vectors.outside[0].name] = origin(vectors.outside[1])
    return Measured(
        {"sts": defined(rows), "chosen": defined(chosen)},
        {
            "fitted_on": {label: text.described() for label, text in texts.items()},
            "cache": cached,
            "sets": list(sets),
        },
        _curves_of_sts(rows, poolings[0]),
    )


def _curves_of_sts(rows: Sequence[Row], pooling: str) -> list[dict[str, Any]]:
    by_layer: dict[int, dict[str, Any]] = {}
    for row in rows:
        if row["pooling"] == pooling and row["aggregation"] == "all":
            point = by_layer.setdefault(row["layer"], {"layer": row["layer"]})
            point[f"{row['set']}_{row['transform']}_spearman".replace(" ", "_")] = row["spearman"]
    return list(by_layer.values())


def wic_output(
    rows: Sequence[Row], chosen: Sequence[Row], read: Mapping[str, Any], pairs: Mapping[str, Any],
    stores: Sequence[ActivationStore], results: Mapping[str, Any],
) -> Measured:  # fmt: skip
    """Return the tables with summary and curves; `read` are all pairs by part, `pairs` those read whole."""
    counts = {
        "n_read_pairs": {which: some.n_read for which, some in read.items()},
        "n_pairs": {which: some.n_pairs for which, some in pairs.items()},
        "n_unlabelled_pairs": {which: some.n_unlabelled for which, some in read.items()},
        "n_cut_pairs": {which: read[which].n_pairs - some.n_pairs for which, some in pairs.items()},
    }
    cached = {which: origin(store) for which, store in zip(read, stores, strict=True)}
    return Measured(
        {"wic": defined(rows), "chosen": defined(chosen)},
        {**counts, **results, "cache": cached},
        _curves_of_wic(rows),
    )


def _curves_of_wic(rows: Sequence[Row]) -> list[dict[str, Any]]:
    by_layer: dict[int, dict[str, Any]] = {}
    for row in rows:
        point = by_layer.setdefault(row["layer"], {"layer": row["layer"]})
        point |= {f"{row['transform']}_{measure}": row[measure] for measure in ("accuracy", "auc")}
    return list(by_layer.values())
