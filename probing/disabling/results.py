"""Write what `disable` found into a run's folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from probing.cache import ActivationStore
from probing.data.preparation import origin
from probing.disabling.survey import Found
from probing.runtime.versions import versions
from probing.tables.columns import without_nan
from probing.tables.readout_names import POSITION

KIND = "disabling of heads and layers"


def write_summary(
    folder: Path, found: Found, stores: Sequence[ActivationStore], timings: Mapping[str, float]
) -> Path:  # fmt: skip
    """Write `results.json`, the results for programs, and return its path.

    Args:
        folder: The run's folder.
        found: What was found.
        stores: The activations of each corpus.
        timings: Times in seconds.
    """
    tokens = found.text.tokens
    summary = {
        "kind": KIND,
        "versions": versions(),
        "cache": {side: origin(store) for side, store in (("train", stores[0]), ("test", stores[-1]))},
        "model": {"n_layers": stores[-1].plan.n_layers, "n_heads": found.n_heads},
        "n_sentences": tokens.n_sentences,
        "n_tokens": tokens.n_tokens,
        **_read(found),
        "timings": dict(timings),
        "better_without": [without_nan(row) for row in found.better_without],
    }
    path = folder / "results.json"
    path.write_text(json.dumps(summary, indent=2), encoding="utf-8")
    return path


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
