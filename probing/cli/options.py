"""Groups of options that a command takes as one argument; the help is read from here.

This file imports nothing heavy, not even for type checkers: the command line looks at it before
anything else is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeVar

from probing.errors import UserError, out_of_range

# Of penalties and steps: what is beyond is 0 or infinite in float32, squared or times a few thousand tokens.
SMALLEST, LARGEST = 1e-30, 1e30

_Options = TypeVar("_Options")


@dataclass(frozen=True)
class ProbeOptions:
    """How the probe is trained.

    Args:
        l1: Strength of the l1 penalty on the scaled weights.
        l2: Strength of the squared l2 penalty on the scaled weights, above 0; auto chooses one value for all layers on
            validation sentences.
        penalty_space: What neurons are divided by where their weights are penalised.
        solver: lbfgs trains to a bound on the distance to the optimum, adam as published probes were.
        tolerance: Bound on the distance to the optimum at which lbfgs stops, in nats.
        learning_rate: Of adam.
        batch_size: Of adam, in tokens.
        patience: Of adam, epochs without a lower validation cross-entropy before a layer stops.
    """

    l1: float = 0.0
    l2: float | Literal["auto"] = "auto"
    penalty_space: Literal["sd", "rms", "raw"] = "sd"
    solver: Literal["lbfgs", "adam"] = "lbfgs"
    # Pairs of neurons whose contributions differ by more than 1% stood in the order of the optimum from a true
    # distance of 3e-6 on, in every layer tried; the bound is 4 to 50 times the true distance by then.
    tolerance: float = 3e-6
    learning_rate: float = 1e-3
    batch_size: int = 512
    patience: int = 3

    def problems(self) -> list[str]:
        """Return what is wrong with values that are out of range."""
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


@dataclass(frozen=True)
class WandbOptions:
    """Where and how a run is logged to Weights & Biases.

    Args:
        mode: `online`, `offline`, `disabled`; `auto` is `$WANDB_MODE`, else online with an API key.
        project: Project the run belongs to.
        entity: User or team that owns the project; without it, your default one.
        group: Name under which runs are shown together, such as the sweep they came from.
        tags: Labels of the run.
    """

    mode: Literal["auto", "online", "offline", "disabled"] = "auto"
    project: str = "probing"
    entity: str | None = None
    group: str | None = None
    tags: list[str] = field(default_factory=list)


def as_options(kind: type[_Options], value: _Options | Mapping[str, Any], name: str) -> _Options:
    """Return options that may come as a mapping, as they stand in a run's configuration.

    Raises:
        UserError: If the mapping has a key that is no option.
    """
    if not isinstance(value, Mapping):
        return value
    known = [option.name for option in fields(kind)]  # type: ignore[arg-type]
    if unknown := [key for key in value if key not in known]:
        raise UserError(f"`{name}.{unknown[0]}` is no option; those of `{name}` are {', '.join(known)}.")
    return kind(**value)
