"""Output of `wic` and `sts`: their tables, results and curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from probing.activations import ActivationStore
from probing.data.labelling import origin
from probing.downstream.sentence_vectors import Vectors, defined
from probing.results import Row, Table, curve_points
from probing.runs.call import Measured


def sts_output(
    rows: Sequence[Row], chosen: Sequence[Row], texts: Mapping[str, Any], vectors: Vectors,
    sets: Sequence[Mapping[str, Any]], poolings: Sequence[str],
) -> Measured:  # fmt: skip
    """Return the tables with their summary and curves; the transforms were fitted on `texts`."""
    cached = {pairs.corpus.name: origin(store) for pairs, store in zip(vectors.sets, vectors.stores, strict=True)}
    if vectors.outside:
        cached[vectors.outside[0].name] = origin(vectors.outside[1])
    fitted_on = {label: {"corpora": text.names, "n_sentences": text.n_sentences} for label, text in texts.items()}
    curves = curve_points(
        Table(rows).where(pooling=poolings[0], aggregation="all"),
        lambda row: {f"{row['set']}_{row['transform']}_spearman".replace(" ", "_"): row["spearman"]},
    )
    results = {"fitted_on": fitted_on, "cache": cached, "sets": list(sets)}
    return Measured({"sts": defined(rows), "chosen": defined(chosen)}, results, curves)


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
    curves = curve_points(rows, lambda row: {f"{row['transform']}_{name}": row[name] for name in ("accuracy", "auc")})
    tables = {"wic": defined(rows), "chosen": defined(chosen)}
    return Measured(tables, {**counts, **results, "cache": cached}, curves)
