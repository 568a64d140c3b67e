"""What is said and shown of a single neuron."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from probing.results.schema import Row, count, layers_named, listed, shown_table
from probing.tables.schema import NEURON_CLASSES, PROFILES

# Classes that are shown at each end of the weights.
MOST_CLASSES = 5


def rank_sentence(layer: int, neuron: int, ranks: Sequence[Row], n_neurons: int) -> str:
    """Return a neuron's rank, and those of the neurons of the same index in the other layers of the run.

    Args:
        layer: The layer.
        neuron: Index of the neuron.
        ranks: The row of `neurons.csv` of that index in each layer.
        n_neurons: Number of neurons of a layer.
    """
    (own,) = (row for row in ranks if row["layer"] == layer)
    said = f"Neuron {neuron} of layer {layer} has rank {own['rank']} of {n_neurons}"
    others = [row for row in ranks if row["layer"] != layer]
    if not others:
        return f"{said}."
    first = [row["layer"] for row in ranks if row["rank"] == 1]
    named = layers_named(first) if first else "no layer of the run"
    places = listed([f"{row['rank']} in layer {row['layer']}" for row in others])
    return f"{said}; the neuron of this index is first in {named}. Other ranks: {places}."


def profile_sentences(profile: Sequence[Row]) -> list[str]:
    """Return a neuron's mean, its share of the mean cosine, and the neurons that it varies with.

    Args:
        profile: Its rows of `profiles.csv`.
    """
    sentences = []
    for row in _of("mean", profile):
        inside = _interval(row)
        sentences.append(
            f"Its mean activation over {count(row['n_test_tokens'], 'test token')} is {_three(row)}{inside}."
        )
    for row in _of("cosine_share", profile):
        sentences.append(f"It makes {row['value']:.1%} of the mean cosine of two different test tokens.")
    if others := _of("correlation", profile):
        named = listed([f"{row['index']} ({row['value']:+.2f})" for row in others])
        sentences.append(f"Its activations correlate most with those of the neurons {named}.")
    return sentences


def positions_of(profile: Sequence[Row]) -> list[Row]:
    """Return the rows of `profiles.csv` that are means at a position."""
    return _of("position", profile)


def classes_table(classes: Sequence[Row]) -> Any:
    """Return the classes of the highest and of the lowest weights as a rich table, the highest first."""
    ordered = sorted(classes, key=lambda row: -row["weight"])
    kept = ordered if len(ordered) <= 2 * MOST_CLASSES else [*ordered[:MOST_CLASSES], *ordered[-MOST_CLASSES:]]
    title = "Weight by class"
    if len(kept) < len(ordered):
        title += f": the {MOST_CLASSES} highest and the {MOST_CLASSES} lowest of {len(ordered)}"
    return shown_table(NEURON_CLASSES, kept, title, ["class", "weight", "contribution"])


def positions_table(profile: Sequence[Row]) -> Any:
    """Return the mean activation at each position as a rich table."""
    return shown_table(
        PROFILES, positions_of(profile), "Mean activation by position", ["index", "value*", "n_test_tokens"]
    )


def _of(measure: str, profile: Sequence[Row]) -> list[Row]:
    return [row for row in profile if row["measure"] == measure]


def _three(row: Row) -> str:
    return f"{row['value']:.3g}"


def _interval(row: Row) -> str:
    low, high = row.get("value_low", float("nan")), row.get("value_high", float("nan"))
    return "" if low != low else f" (95% interval {low:.3g} to {high:.3g})"
