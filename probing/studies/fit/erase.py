"""Usable information of a finished run's layers without some neurons or directions: `rank --erase`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from probing.data.examples import Sides
from probing.evidence.removal import usable_information
from probing.probes.training import CONTROL_TOLERANCE, Lbfgs
from probing.runs.finished import trained_as
from probing.runs.run import Run
from probing.runtime.progress import stage


@stage("information without neurons")
def erasure_rows(run: Run, sides: Sides, layers: Sequence[int], n_top: int, seed: int) -> list[dict[str, Any]]:
    """Return the usable information under each condition in some layers of a run.

    Probes are trained with the run's penalty by lbfgs, whatever trained the run's own.

    Args:
        run: The finished run.
        sides: The run's examples and their classes.
        layers: Layers of the run to measure.
        n_top: Number of first neurons of the run's ranking that are kept or removed.
        seed: Seed of every random draw: random neurons, shuffled labels and resampled sentences.

    Returns:
        Rows as `probing.evidence.removal.usable_information` returns them.

    Raises:
        ValueError: If `n_top` is not between 1 and half the neurons.
    """
    d_model = sides.train.store.plan.d_model
    rankings = {layer: [row["neuron"] for row in run.top(layer, d_model)] for layer in layers}
    training = replace(trained_as(run), solver=Lbfgs(CONTROL_TOLERANCE))
    return usable_information(sides, rankings, n_top, training, seed)
