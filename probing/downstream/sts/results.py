"""What `sts` found, as it is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from probing.data.preparation import origin
from probing.downstream.figures import write_sts_figure
from probing.downstream.fitting import defined
from probing.downstream.sts.sentence_vectors import Vectors
from probing.results.schema import Row
from probing.runs.call import Measured


def measured(
    rows: Sequence[Row], chosen: Sequence[Row], texts: Mapping[str, Any], vectors: Vectors,
    sets: Sequence[Mapping[str, Any]], poolings: Sequence[str], model_name: str,
) -> Measured:  # fmt: skip
    """Return the tables with what belongs to them.

    Args:
        rows: Rows of `sts.csv`.
        chosen: Rows of `chosen.csv`.
        texts: The texts that transforms were fitted on, by their names.
        vectors: The vectors that were compared.
        sets: Descriptions of the sets.
        poolings: How sentences were pooled.
        model_name: The model's short name, for titles.
    """
    cached = {one.corpus.name: origin(store) for one, store in zip(vectors.sets, vectors.stores, strict=True)}
    if vectors.outside:
        cached[vectors.outside[0].name] = origin(vectors.outside[1])
    return Measured(
        {"sts": defined(rows), "chosen": defined(chosen)},
        {
            "fitted_on": {label: text.described() for label, text in texts.items()},
            "cache": cached,
            "sets": list(sets),
        },
        _curves(rows, poolings[0]),
        draw=lambda folder, formats: [
            path for how in poolings for path in write_sts_figure(folder / f"sts_{how}", rows, how, model_name, formats)
        ],
    )


def _curves(rows: Sequence[Row], pooling: str) -> list[dict[str, Any]]:
    """Return a row per layer with a column for each set and space, for W&B's curves."""
    by_layer: dict[int, dict[str, Any]] = {}
    for row in rows:
        if row["pooling"] == pooling and row["aggregation"] == "all":
            point = by_layer.setdefault(row["layer"], {"layer": row["layer"]})
            point[f"{row['set']}_{row['transform']}_spearman".replace(" ", "_")] = row["spearman"]
    return list(by_layer.values())
