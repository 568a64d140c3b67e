"""Names of the sites whose neurons can be probed, and what a neuron is at each of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

SiteName = Literal["residual", "mlp", "attention"]

# What a neuron of layer k is, in a few words for a table.
NEURON: Mapping[str, str] = {
    "residual": "coordinate of the residual stream",
    "mlp": "unit of the MLP inside the block, after its activation function",
    "attention": "coordinate of a head's output inside the block, before the output projection",
}


def site_of(config: Mapping[str, Any]) -> SiteName:
    """Return the site of a run's neurons; configurations of earlier versions do not name it."""
    site: SiteName = config.get("site", "residual")
    return site


def first_layer(site: str) -> int:
    """Return the lowest layer of a site: there is no block before block 1, but there are embeddings."""
    return 0 if site == "residual" else 1


def what_is_a_neuron(site: str) -> str:
    """Return the line of a table's caption that says what a neuron is."""
    return f"neuron: {NEURON[site]}"
