"""Numbers as targets: examples store the index of a distinct number in the place of a class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.errors import UserError
from probing.tasks import Labels, has_label

if TYPE_CHECKING:
    from probing.data.examples import Examples


def values_of(numbers: Labels) -> NDArray[np.float64]:
    """Return the different numbers among labels, ascending."""
    return np.unique(numbers[has_label(numbers)])


def check_varies(values: NDArray[np.float64], where: str, unit: str) -> None:
    """Refuse numbers to predict that are all the same.

    Args:
        values: The different numbers of the training side.
        where: What the numbers are from, as the user typed it.
        unit: What the training side consists of.

    Raises:
        UserError: If there are fewer than two.
    """
    if len(values) < 2:
        found = f"all have the number {values[0]:g}" if len(values) else "have no number"
        raise UserError(f"{where}: the training {unit} {found}, and a probe needs numbers that vary.")


@dataclass(frozen=True)
class Standard:
    """Standardises the numbers to predict by the training examples.

    Args:
        mean: Mean of the training examples, which is the constant answer that a probe is compared with.
        sd: Their population standard deviation.
    """

    mean: float
    sd: float

    @classmethod
    def of(cls, train: Examples) -> Standard:
        """Return mean and standard deviation of the training examples."""
        targets = train.targets
        return cls(float(targets.mean()), float(targets.std()))

    def table(self, examples: Examples) -> Tensor:
        """Return the standardised number that each label of the examples stands for, float64."""
        assert examples.values is not None
        return torch.from_numpy((examples.values - self.mean) / self.sd)
