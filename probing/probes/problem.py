"""One probe of a stack."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from probing.probes.class_curvature import ClassCurvature
from probing.probes.solvers import Penalty, Readout


@dataclass(frozen=True)
class Problem:
    """One probe of the stack.

    Args:
        name: For training curves, such as `layer_06`.
        layer_index: Index of its layer in `Batch.hidden_states`.
        penalty: Penalty on its scaled weights.
        start: Initial weights on raw hidden states, shape (n_classes, d_model); 0 if None.
        neurons: Which neurons it may use, shape (d_model,), bool; all if None.
        draws: How often each sentence of the training corpus counts, shape (n_sentences,); once if None.
        labels: Classes that replace those of the training corpus's tokens, shape (n_tokens,), for the same examples.
        curvature: Curvature of a similar probe, used as preconditioner; if None, the layer's second moment is used.
        readout: A function of the weights that decides when to stop, in place of the tolerance; its gradient is with
            respect to weights on raw hidden states.
        gain_share: Largest optimality gap as a share of what the objective has fallen below that of weight 0, where
            this is less than the tolerance.
    """

    name: str
    layer_index: int
    penalty: Penalty
    start: Tensor | None = None
    neurons: Tensor | None = None
    draws: Tensor | None = None
    labels: Tensor | None = None
    curvature: ClassCurvature | None = None
    readout: Readout | None = None
    gain_share: float = math.inf


def problem_of_layer(layer: int, layer_index: int, penalty: Penalty, start: Tensor | None = None) -> Problem:
    """Return the probe of a layer, named after its number.

    Args:
        layer: Layer number.
        layer_index: Index of the layer in `Batch.hidden_states`.
        penalty: Penalty on its scaled weights.
        start: Initial weights on raw hidden states, shape (n_classes, d_model); 0 if None.
    """
    return Problem(f"layer_{layer:02d}", layer_index, penalty, start)
