"""Groups of options that a command takes as one argument; their help text is read from here.

This file imports nothing heavy, not even for type checkers, because the command line reads it before anything else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Literal, TypeVar

from probing.errors import UserError, out_of_range

# Limits of penalties and learning rates: beyond, their squares and sums over tokens are 0 or infinite in float32.
SMALLEST, LARGEST = 1e-30, 1e30

# Arguments of Lightning's Trainer that concern how a probe is trained, and not where.
OF_TRAINING = ("max_epochs", "max_time", "enable_checkpointing", "detect_anomaly")

_Options = TypeVar("_Options")


def are_options(value: Any) -> bool:
    """Return whether a value is a group of options, NAME.FIELD of a command: a dataclass of the package `probing.cli`.

    A task, which Python may give in the place of its name, can be a dataclass too.
    """
    return is_dataclass(value) and type(value).__module__.startswith("probing.cli.")


@dataclass(frozen=True)
class ProbeOptions:
    """How the probe is trained.

    Args:
        l1: Strength of the l1 penalty on the scaled weights.
        l2: Strength of the squared l2 penalty on the scaled weights, above 0; auto chooses one value for all layers on
            validation sentences.
        penalty_space: What each neuron is divided by before its weights are penalised: its standard deviation (sd), its
            root mean square (rms), or 1 (raw).
        solver: lbfgs trains until a bound on the distance to the optimum is reached; adam trains on mini-batches, as
            published probes do.
        tolerance: lbfgs stops when the bound on the distance to the optimum is at most this, in nats.
        learning_rate: Learning rate of adam.
        batch_size: Batch size of adam, in tokens.
        patience: With adam, a layer stops after this many epochs without a lower validation cross-entropy.
    """

    l1: float = 0.0
    l2: float | Literal["auto"] = "auto"
    penalty_space: Literal["sd", "rms", "raw"] = "sd"
    solver: Literal["lbfgs", "adam"] = "lbfgs"
    # In every layer tried, pairs of neurons whose contributions differ by more than 1% have the order of the optimum
    # once the true distance is at most 3e-6. The bound is then 4 to 50 times the true distance.
    tolerance: float = 3e-6
    learning_rate: float = 1e-3
    batch_size: int = 512
    patience: int = 3

    @property
    def needs_validation(self) -> bool:
        """Whether the penalty is chosen on validation examples, or adam is stopped by them."""
        return self.solver == "adam" or self.l2 == "auto"

    def problems(self) -> list[str]:
        """Return the problems with values that are out of range."""
        problems = out_of_range("probe.l1", self.l1, 0, LARGEST)
        problems += out_of_range("probe.batch_size", self.batch_size, 1)
        problems += out_of_range("probe.patience", self.patience, 1)
        for name in ("l2", "tolerance", "learning_rate"):
            if getattr(self, name) == "auto":
                continue
            if not SMALLEST <= (value := getattr(self, name)) <= LARGEST:
                why = ", without which the distance to the optimum has no bound" if name == "l2" else ""
                problem = f"`--probe.{name} {value}` is out of range: expected a number above 0"
                problems.append(f"{problem}{why} ({SMALLEST} to {LARGEST})")
        return problems

    def problems_with_numbers(self, trainer: Mapping[str, Any], mdl: bool) -> list[str]:
        """Return the problems with options that do not apply where numbers are predicted, in closed form.

        Args:
            trainer: Arguments of Lightning's Trainer.
            mdl: Whether labels are to be encoded online.
        """
        usual, why = ProbeOptions(), "the task predicts numbers, by a ridge probe in closed form"
        names = ("l1", "solver", "tolerance", "learning_rate", "batch_size", "patience")
        given = [
            f"--probe.{name} {getattr(self, name)}" for name in names if getattr(self, name) != getattr(usual, name)
        ]
        given += [f"--trainer.{name} {value}" for name, value in trainer.items() if name in OF_TRAINING]
        given += ["--mdl"] if mdl else []
        return [f"`{option}` does not apply: {why}; leave it out" for option in given]


@dataclass(frozen=True)
class WandbOptions:
    """Where and how a run is logged to Weights & Biases.

    Args:
        mode: `online`, `offline` or `disabled`; `auto` takes `$WANDB_MODE` if set, otherwise online if there is an API
            key and offline if not.
        project: Project that the run belongs to; `$WANDB_PROJECT` by default, or else `probing`.
        entity: User or team that owns the project; `$WANDB_ENTITY` by default, or else your own default entity.
        group: Name under which runs are shown together, such as the name of their sweep.
        tags: Tags of the run.
    """

    mode: Literal["auto", "online", "offline", "disabled"] = "auto"
    project: str | None = None
    entity: str | None = None
    group: str | None = None
    tags: list[str] = field(default_factory=list)


def as_options(kind: type[_Options], value: _Options | Mapping[str, Any], name: str) -> _Options:
    """Return the options as a dataclass, also where they come as a mapping, as in a run's configuration.

    Raises:
        UserError: If the mapping has an unknown key.
    """
    if not isinstance(value, Mapping):
        return value
    known = [option.name for option in fields(kind)]  # type: ignore[arg-type]
    if unknown := [key for key in value if key not in known]:
        raise UserError(f"`{name}.{unknown[0]}` is not an option; the options of `{name}` are {', '.join(known)}.")
    return kind(**value)
