"""How probes are trained, as a user's options say: with the penalty that is typed, or with one that is chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pytorch_lightning import Callback

from probing.cli.options import ProbeOptions
from probing.data.examples import Sides
from probing.probes.penalty_path import FIRST, PenaltyPath, choose_penalty, strength
from probing.probes.solvers import Penalty
from probing.probes.training import Training
from probing.statistics.moments import Moments


def training_of(probe: ProbeOptions, l2: float, seed: int) -> Training:
    """Return how probes are trained.

    Args:
        probe: The options.
        l2: Strength of the squared l2 penalty, which the options may leave to be chosen.
        seed: Seed of Adam's batches.
    """
    return Training(
        Penalty(probe.l1, l2), probe.penalty_space, probe.solver, probe.tolerance, probe.learning_rate,
        probe.batch_size, probe.patience, seed,
    )  # fmt: skip


def penalised(
    probe: ProbeOptions,
    seed: int,
    sides: Sides,
    layers: Sequence[int],
    moments: Sequence[Moments],
    trainer: Mapping[str, Any],
    callbacks: Callable[[str], Sequence[Callback]],
) -> tuple[PenaltyPath | None, Training]:
    """Return how probes are trained, and the path along which their penalty was chosen if it was left to be."""
    if probe.l2 != "auto":
        return None, training_of(probe, probe.l2, seed)
    first = training_of(probe, strength(FIRST), seed)
    path = choose_penalty(sides, layers, moments, first, trainer, callbacks)
    return path, training_of(probe, path.chosen, seed)
