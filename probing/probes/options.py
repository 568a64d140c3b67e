"""Training settings from the user's options, with the given penalty or one that is chosen on validation sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from probing.cli.options import ProbeOptions
from probing.data.examples import Sides
from probing.probes.penalty_path import FIRST, PenaltyPath, choose_penalty, strength
from probing.probes.recipe import Adam, Lbfgs, Progress, Training, no_progress
from probing.probes.solvers import Penalty
from probing.statistics.moments import Moments


def training_of(
    probe: ProbeOptions,
    l2: float,
    seed: int,
    trainer: Mapping[str, Any] | None = None,
    progress: Progress = no_progress,
) -> Training:
    """Return the training settings.

    Args:
        probe: The options.
        l2: Strength of the squared l2 penalty, which replaces the value in the options.
        seed: Seed of Adam's mini-batches.
        trainer: Arguments of Lightning's Trainer.
        progress: Returns Lightning callbacks that show the progress of the named probes.
    """
    solver: Lbfgs | Adam = Lbfgs(probe.tolerance)
    if probe.solver == "adam":
        solver = Adam(probe.learning_rate, probe.batch_size, probe.patience, seed, probe.tolerance)
    return Training(Penalty(probe.l1, l2), solver, probe.penalty_space, trainer or {}, progress)


def penalised(
    probe: ProbeOptions,
    seed: int,
    sides: Sides,
    layers: Sequence[int],
    moments: Sequence[Moments],
    trainer: Mapping[str, Any],
    progress: Progress,
) -> tuple[PenaltyPath | None, Training]:
    """Return the penalty path, if the penalty is to be chosen, and the training settings."""
    if probe.l2 != "auto":
        return None, training_of(probe, probe.l2, seed, trainer, progress)
    training = training_of(probe, strength(FIRST), seed, trainer, progress)
    path = choose_penalty(sides, layers, moments, training)
    return path, training_of(probe, path.chosen, seed, trainer, progress)
