"""Numbers as targets: examples store the index of a distinct number in the place of a class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.cli.options import LARGEST, SMALLEST
from probing.errors import UserError
from probing.tasks import Labels, has_label

if TYPE_CHECKING:
    from probing.data.examples import Examples


def values_of(numbers: Labels) -> NDArray[np.float64]:
    """Return the different numbers among labels, ascending."""
    return np.unique(numbers[has_label(numbers)])


def check_size(numbers: Labels, where: str) -> None:
    """Refuse numbers to predict that are so large that their powers are infinite.

    Args:
        numbers: The numbers, of training and test examples alike; NaN where there is none.
        where: What the numbers are from, as the user typed it.

    Raises:
        UserError: If one is above 1e30 in size.
    """
    if (largest := float(np.abs(numbers[has_label(numbers)]).max(initial=0.0))) > LARGEST:
        raise UserError(
            f"{where}: a number to predict has the size {largest:g}, where at most {LARGEST:g} is expected; give the "
            "numbers in another unit, or as logarithms."
        )


def check_varies(values: NDArray[np.float64], where: str, unit: str) -> None:
    """Refuse numbers to predict that are all the same, or so near to each other that powers of differences are 0.

    Args:
        values: The different numbers of the training side.
        where: What the numbers are from, as the user typed it.
        unit: What the training side consists of.

    Raises:
        UserError: If there are fewer than two, or all are within 1e-30.
    """
    if len(values) < 2:
        found = f"all have the number {values[0]:g}" if len(values) else "have no number"
        raise UserError(f"{where}: the training {unit} {found}, and a probe needs numbers that vary.")
    if (spread := float(values[-1]) - float(values[0])) < SMALLEST:
        raise UserError(
            f"{where}: the numbers of the training {unit} differ by {spread:g} at most, and at least {SMALLEST:g} is "
            "needed; give the numbers in another unit, or as logarithms."
        )


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
