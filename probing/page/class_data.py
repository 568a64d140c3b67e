"""The contribution of each neuron to each class, for as many neurons as a page has room for."""

from __future__ import annotations

from typing import Any

import numpy as np

from probing.page.packing import BASE64, pack_halves
from probing.page.sources import Subject


def class_data(subject: Subject, room: int) -> dict[str, Any]:
    """Return contributions by class for the script.

    Args:
        subject: The run.
        room: Number of characters that the page has for them.

    Returns:
        `per_layer`, the number of neurons of each layer, first ranks first; `values`, packed, by layer, rank and class;
        `typical`, packed, the mean over all neurons by layer and class.
    """
    n_layers, n_classes, d_model = subject.by_class.shape
    per_layer = int(min(d_model, max(1, room // (n_layers * n_classes * 2 * BASE64))))
    first = [[row["neuron"] for row in rows[:per_layer]] for rows in subject.ranked.values()]
    values = np.stack([subject.by_class[i][:, neurons].T for i, neurons in enumerate(first)])
    return {"per_layer": per_layer, "values": pack_halves(values), "typical": pack_halves(subject.by_class.mean(2))}
