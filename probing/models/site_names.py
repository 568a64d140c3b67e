"""Names of the sites whose neurons can be probed, and what a neuron is at each of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

SiteName = Literal["residual", "mlp", "attention"]

# What a neuron of layer k is, in a few words for a table; activations that are given as arrays have columns.
NEURON: Mapping[str, str] = {
    "residual": "coordinate of the residual stream",
    "mlp": "unit of the MLP inside the block, after its activation function",
    "attention": "coordinate of a head's output inside the block, before the output projection",
    "arrays": "column of the given activations",
}


def site_of(config: Mapping[str, Any]) -> str:
    """Return the site of a run's neurons, or `arrays`; configurations of earlier versions do not name it."""
    return "arrays" if "arrays" in config else str(config.get("site", "residual"))


def is_inside_blocks(site: str) -> bool:
    """Whether the neurons of layer k are inside block k; there are none before block 1, where embeddings are."""
    return site in ("mlp", "attention")


def what_is_a_neuron(site: str) -> str:
    """Return the line of a table's caption that says what a neuron is."""
    return f"neuron: {NEURON[site]}"
