"""Write what `disable` found into a run's folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from probing.cache import ActivationStore
from probing.data.preparation import origin
from probing.disabling.figures import write_figures
from probing.disabling.survey import Found
from probing.runs.call import Measured
from probing.tables.disabling import at_last_layer, is_head, readouts_of
from probing.tables.readout_names import POSITION


def measured(found: Found, stores: Sequence[ActivationStore], model_name: str) -> Measured:
    """Return the tables with what belongs to them.

    Args:
        found: What was found.
        stores: The activations of each corpus.
        model_name: The model's short name, for titles.
    """
    tokens = found.text.tokens
    results = {
        "cache": {side: origin(store) for side, store in (("train", stores[0]), ("test", stores[-1]))},
        "model": {"n_layers": stores[-1].plan.n_layers, "n_heads": found.n_heads},
        "n_sentences": tokens.n_sentences,
        "n_tokens": tokens.n_tokens,
        **_read(found),
    }
    return Measured(
        found.tables,
        results,
        _curves(found.disabled),
        draw=lambda folder, formats: write_figures(folder, found.tables, model_name, formats),
    )


def _curves(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a row per layer with the effect on the last layer of disabling it, a column for each kind, for W&B."""
    by_layer: dict[int, dict[str, Any]] = {}
    for readout in readouts_of({"disabled": rows}):
        of = "" if readout == POSITION else f"{readout}_"
        for row in at_last_layer({"disabled": rows}, readout):
            if not is_head(row):
                point = by_layer.setdefault(int(row["unit"]), {"layer": int(row["unit"])})
                kind = f"{of}{row['kind']}"
                point |= {f"{kind}_effect": row["effect"], f"{kind}_low": row["low"], f"{kind}_high": row["high"]}
    return list(by_layer.values())


def _read(found: Found) -> dict[str, Any]:
    """Return what each readout gives while nothing is disabled; of positions, by the names of earlier versions."""
    by_name = {
        name: {"n_examples": found.n_examples[name], "intact": {str(layer): value for layer, value in intact.items()}}
        for name, intact in found.intact.items()
    }
    positions = by_name.get(POSITION)
    told = {} if positions is None else {
        "n_examples": positions["n_examples"], "intact_accuracy": positions["intact"],
    }  # fmt: skip
    return {**told, "readouts": by_name}
