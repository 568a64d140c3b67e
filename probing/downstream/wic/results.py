"""What `wic` found, as it is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from probing.cache import ActivationStore
from probing.data.preparation import origin
from probing.downstream.figures import write_wic_figure
from probing.downstream.fitting import defined
from probing.results.schema import Row
from probing.runs.call import Measured


def measured(
    rows: Sequence[Row], chosen: Sequence[Row], read: Mapping[str, Any], pairs: Mapping[str, Any],
    stores: Sequence[ActivationStore], results: Mapping[str, Any], model_name: str,
) -> Measured:  # fmt: skip
    """Return the tables with what belongs to them.

    Args:
        rows: Rows of `wic.csv`.
        chosen: Rows of `chosen.csv`.
        read: The pairs of the training part, and those of the part that is reported, by the name of the part.
        pairs: Those of them whose words the model has read whole.
        stores: The activations of both.
        results: What else belongs into `results.json`.
        model_name: The model's short name, for titles.
    """
    part = list(read)[1]
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
        _curves(rows),
        draw=lambda folder, formats: write_wic_figure(folder / "wic", rows, part, model_name, formats),
    )


def _curves(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return a row per layer with a column for each space and measure, for W&B's curves."""
    by_layer: dict[int, dict[str, Any]] = {}
    for row in rows:
        point = by_layer.setdefault(row["layer"], {"layer": row["layer"]})
        point |= {f"{row['transform']}_{measure}": row[measure] for measure in ("accuracy", "auc")}
    return list(by_layer.values())
