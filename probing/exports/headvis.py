"""The heads of a run in the layout that HeadVis reads: measures of every head, and attention on example sentences.

`config.json` and `scatter_data.json` have the heads and their measures, and `heads/L0H0.json` the attention of a head
on each sentence as pairs of an index and a value; the index of query q and key k in a sentence of n tokens is q n + k.
Layers and heads are counted from 0 there, and from 1 everywhere else in this package.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from probing.errors import UserError
from probing.heads.example_maps import Example, read_examples
from probing.runs.checks import reading
from probing.runs.study import Result

# Attention below this is left out, as in the programs that write this layout.
LEAST = 0.005
LEFT_OUT = (
    "qk_distance_histogram",
    "histogram",
    "attributions",
    "intervals of activation: all sentences are in the first",
)


def write_headvis(made: Result, folder: Path) -> Mapping[str, Any]:
    """Write the measures of all heads of a run of `attention`, and their attention on its example sentences.

    Raises:
        UserError: If the run has no example sentences.
    """
    with reading(made.folder):
        examples = read_examples(made.folder)
    if examples is None:
        raise UserError(
            f"`export`: `{made.folder}` has no examples.safetensors, since no sentence of its corpus is short enough."
        )
    n_heads = examples.examples[0].maps.shape[1]
    heads = [(layer - 1, head) for layer in examples.layers for head in range(n_heads)]
    measures, meanings = _measures(made)
    scatter = [{"layer": layer, "head": head, **measures.get((layer, head), {})} for layer, head in heads]
    config = {
        "model_name": Path(str(made.config["model"])).name, "dataset_name": Path(str(made.config["corpus"])).name,
        "heads": heads, "n_layers": max(examples.layers), "n_heads": n_heads, "n_intervals": 1,
        "metrics": meanings, "metric_descriptions": {name: name for name in meanings},
        "head_data_pattern": "L{layer}H{head}.json", "has_umap": False, "umap_heads": [], "custom_plots": [],
        "custom_tables": [
            {"key": f"top_{side}_tokens", "label": f"Top {side} tokens"} for side in ("query", "key")
        ],
        "statistics_display": {"n_samples": {"label": "Sentences", "format": "default"}},
    }  # fmt: skip
    _write(folder / "config.json", config)
    _write(folder / "scatter_data.json", scatter)
    _write(folder / "server_config.json", {})
    _write(folder / "attributions" / "manifest.json", {})
    for at, layer in enumerate(examples.layers):
        for head in range(n_heads):
            sequences = [_sequence(i, example, at, head) for i, example in enumerate(examples.examples)]
            _write(folder / "heads" / f"L{layer - 1}H{head}.json", {
                "sequences": sequences, "top_query_tokens": _top(sequences, 0), "top_key_tokens": _top(sequences, 1),
                "statistics": {"n_samples": len(sequences)},
            })  # fmt: skip
    return {"heads": len(heads), "sentences": len(examples.examples), "left_out": LEFT_OUT}


def _measures(made: Result) -> tuple[dict[tuple[int, int], dict[str, float]], list[str]]:
    """Return the measures of each head by its layer and number, from 0, and the names of all measures."""
    found: dict[tuple[int, int], dict[str, float]] = {}
    for row in made.heads:
        name = f"{row['measure']} to {row['to']}" if row.get("to") else str(row["measure"])
        if math.isfinite(row["value"]):
            found.setdefault((row["layer"] - 1, row["head"] - 1), {})[name] = row["value"]
    return found, list(dict.fromkeys(name for own in found.values() for name in own))


def _sequence(index: int, example: Example, layer: int, head: int) -> dict[str, Any]:
    """Return the attention of a head on a sentence; its largest leaves out the first token, as HeadVis does."""
    weights = example.maps[layer, head]
    (kept,) = np.nonzero(weights.ravel() >= LEAST)
    return {
        "sequence_id": index, "interval": 0, "seq_len": len(weights), "tokens": list(example.of.tokens),
        "attention_indices": kept.tolist(), "attention_values": [round(float(v), 4) for v in weights.ravel()[kept]],
        "max_activation": round(float(weights[1:, 1:].max(initial=0.0)), 4),
    }  # fmt: skip


def _top(sequences: Sequence[Mapping[str, Any]], side: int) -> list[dict[str, Any]]:
    """Return the tokens by the attention from them (side 0) or to them (1), the most first."""
    mass: dict[str, float] = {}
    for one in sequences:
        for index, value in zip(one["attention_indices"], one["attention_values"], strict=True):
            token = one["tokens"][divmod(index, one["seq_len"])[side]]
            mass[token] = mass.get(token, 0.0) + value
    return [{"token": token, "weight": round(mass[token], 4)} for token in sorted(mass, key=lambda name: -mass[name])]


def _write(path: Path, content: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, allow_nan=False) + "\n", encoding="utf-8")
