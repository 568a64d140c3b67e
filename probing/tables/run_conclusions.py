"""What the rankings of a run say, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from probing.results.schema import Row
from probing.tables.conclusions import basis, conclusion, given_words, held_fixed, overlaps
from probing.tables.evidence_sentences import say
from probing.tables.scope import scope


def ranking_conclusions(
    accuracy: Sequence[Row], neurons: Sequence[Row], task: str, results: Mapping[str, Any], config: Mapping[str, Any]
) -> list[str]:
    """Return the conclusion on the ranking of each layer, and what all of them hold for.

    Args:
        accuracy: Rows of `accuracy.csv`.
        neurons: Rows of `neurons.csv`.
        task: Name of the task.
        results: The content of `results.json`.
        config: The resolved configuration.
    """
    lines: list[str] = []
    for row, fitted in zip(accuracy, results["layers"], strict=True):
        ranked = [neuron for neuron in neurons if neuron["layer"] == row["layer"]]
        lines += [conclusion(ranked, task, row, given_words(config)), overlaps(row, len(ranked))]
        if not fitted["converged"]:
            lines.append(say("stopped_short", layer=row["layer"], gap=fitted["optimality_gap"]))
    lines += [*basis(accuracy, task), held_fixed(results, config), scope(results, config["test_corpus"])]
    return [line for line in lines if line]
