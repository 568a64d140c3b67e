"""How probes are trained: the penalty, the solver, and what Lightning's Trainer is told."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytorch_lightning as pl

from probing.probes.solvers import Penalty
from probing.runtime.trainer import HONOURED
from probing.statistics.moments import PenaltySpace

# Returns Lightning callbacks that show the training of what is named, such as `bootstraps`.
Progress = Callable[[str], Sequence[pl.Callback]]

# Distance of controls from their optimum, in nats: the third digit of their accuracy has settled by then, which was
# up to .0005 off at ten times as much (on the built-in model), and nothing is ranked.
CONTROL_TOLERANCE = 1e-4
# Arguments of the Trainer that hold where the distance to the optimum is measured, or a probe is trained anew.
_FOR_MEASURING = HONOURED - {"max_epochs", "max_time", "enable_checkpointing"}


def no_progress(what: str) -> Sequence[pl.Callback]:
    """Show nothing."""
    return ()


@dataclass(frozen=True)
class Lbfgs:
    """Passes over all training tokens until a bound on the distance to the optimum is met.

    Args:
        tolerance: That bound, in nats.
    """

    tolerance: float


@dataclass(frozen=True)
class Adam:
    """Shuffled mini-batches and early stopping, as published probes were trained.

    Args:
        learning_rate: Step size.
        batch_size: Number of tokens in a mini-batch.
        patience: Epochs without a lower validation cross-entropy after which a layer stops.
        seed: Seed of the order of the tokens.
        tolerance: Bound on the distance to the optimum, in nats, to which L-BFGS goes on from where Adam stopped, to
            measure how far that was; infinite where nobody asks.
    """

    learning_rate: float
    batch_size: int
    patience: int
    seed: int
    tolerance: float


@dataclass(frozen=True)
class Training:
    """How probes are trained.

    Args:
        penalty: Penalty on the scaled weights.
        solver: What minimises the objective.
        penalty_space: What neurons are divided by where their weights are penalised.
        trainer: Arguments of Lightning's Trainer, checked by `check_trainer_options`.
        progress: Returns Lightning callbacks for what is trained.
    """

    penalty: Penalty
    solver: Lbfgs | Adam
    penalty_space: PenaltySpace = "sd"
    trainer: Mapping[str, Any] = field(default_factory=dict)
    progress: Progress = no_progress

    def loosened(self, tolerance: float) -> Training:
        """Return the same training with a tolerance of at least this, in nats."""
        return replace(self, solver=replace(self.solver, tolerance=max(self.solver.tolerance, tolerance)))

    def for_controls(self) -> Training:
        """Return the training of what accuracy is held against, which needs no more than its third digit.

        How near Adam came to the optimum is not asked, and nothing is checkpointed.
        """
        trainer = {name: value for name, value in self.trainer.items() if name != "enable_checkpointing"}
        tolerance = CONTROL_TOLERANCE if isinstance(self.solver, Lbfgs) else math.inf
        return replace(self.loosened(tolerance), trainer=trainer)

    def for_measuring(self) -> Training:
        """Return the training of other probes than the one asked for, whose number of passes alone is limited."""
        trainer = {name: value for name, value in self.trainer.items() if name in _FOR_MEASURING}
        return replace(self, trainer=trainer)
