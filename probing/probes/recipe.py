"""Settings of the training: penalty, solver and arguments of Lightning's Trainer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytorch_lightning as pl

from probing.probes.solvers import Penalty
from probing.runtime.trainer import HONOURED
from probing.statistics.moments import Moments, PenaltySpace, Scaling

# Returns Lightning callbacks for the training of the named probes, such as `bootstraps`.
Callbacks = Callable[[str], Sequence[pl.Callback]]

# Tolerance of controls, in nats. At this tolerance the third digit of their accuracy is right; at ten times this
# tolerance, accuracy was wrong by up to .0005 (on the built-in model). A stricter tolerance is not needed, because the
# neurons of controls are not ranked.
CONTROL_TOLERANCE = 1e-4
# Arguments of the Trainer that also apply to probes trained after the one requested, such as those that measure the
# distance to the optimum.
_FOR_MEASURING = HONOURED - {"max_epochs", "max_time", "enable_checkpointing"}


def no_callbacks(what: str) -> Sequence[pl.Callback]:
    """Return no callbacks."""
    return ()


@dataclass(frozen=True)
class Lbfgs:
    """L-BFGS: full passes over the training tokens until a bound on the distance to the optimum is reached.

    Args:
        tolerance: The bound on the distance to the optimum, in nats.
    """

    tolerance: float


@dataclass(frozen=True)
class Adam:
    """Adam on shuffled mini-batches with early stopping, as published probes are trained.

    Args:
        learning_rate: Learning rate.
        batch_size: Number of tokens in a mini-batch.
        patience: Number of epochs without a lower validation cross-entropy before a layer stops.
        seed: Seed of the order of the tokens.
        tolerance: Tolerance, in nats, to which L-BFGS continues from Adam's last point, to measure its distance from
            the optimum; infinite if that is not measured.
    """

    learning_rate: float
    batch_size: int
    patience: int
    seed: int
    tolerance: float


@dataclass(frozen=True)
class Training:
    """Settings of the training.

    Args:
        penalty: Penalty on the scaled weights.
        solver: The solver that minimises the objective.
        penalty_space: Scale by which neurons are divided before their weights are penalised.
        trainer: Arguments of Lightning's Trainer, checked by `check_trainer_options`.
        callbacks: Returns Lightning callbacks for the training of the named probes.
    """

    penalty: Penalty
    solver: Lbfgs | Adam
    penalty_space: PenaltySpace = "sd"
    trainer: Mapping[str, Any] = field(default_factory=dict)
    callbacks: Callbacks = no_callbacks

    def scaling(self, moments: Moments) -> Scaling:
        """Return the scaling of a layer's neurons, given the moments of its training tokens."""
        return Scaling(moments, self.penalty_space)

    def loosened(self, tolerance: float) -> Training:
        """Return the settings with a tolerance of at least this many nats."""
        return replace(self, solver=replace(self.solver, tolerance=max(self.solver.tolerance, tolerance)))

    def for_controls(self) -> Training:
        """Return the settings for controls, whose accuracy needs only three digits.

        For Adam the distance to the optimum is not measured, and nothing is checkpointed.
        """
        trainer = {name: value for name, value in self.trainer.items() if name != "enable_checkpointing"}
        tolerance = CONTROL_TOLERANCE if isinstance(self.solver, Lbfgs) else math.inf
        return replace(self.loosened(tolerance), trainer=trainer)

    def for_measuring(self) -> Training:
        """Return the settings for probes other than the one requested; limits on passes do not apply to them."""
        trainer = {name: value for name, value in self.trainer.items() if name in _FOR_MEASURING}
        return replace(self, trainer=trainer)
