"""The classes that probes read of texts while neurons are changed, and between which examples are moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.cache import ActivationStore
from probing.disabling.probed_task import Labelled, ProbedTask
from probing.readouts.forward import Text
from probing.readouts.frozen_probes import ProbeReadout, Probes, spread
from probing.readouts.names import AGAIN, TRANSLATED
from probing.studies.geometry.neurons.stream import Moves, draw_targets
from probing.tasks import Labels


@dataclass(frozen=True, eq=False)
class ProbedClasses:
    """The classes of a task, with the probes that read them from a model's later layers.

    Args:
        task: The task.
        stores: The activations of each corpus.
        train: Training sentences.
        weight: Weight of each later layer's probe, shape (n_classes, d_model), by layer number.
        classes: The label of each class.
        device: Where hidden states are.
        seed: Seed of the draw of classes that examples are moved to.
    """

    task: ProbedTask
    stores: Sequence[ActivationStore]
    train: Text
    weight: Mapping[int, Tensor]
    classes: Labels
    device: torch.device
    seed: int

    @property
    def name(self) -> str:
        """What the readout is called."""
        return self.task.name

    @property
    def again(self) -> str:
        """What the readout by probes that are trained again is called."""
        return self.name + AGAIN

    @property
    def last(self) -> int:
        """The last layer that has a probe."""
        return max(self.weight)

    @cached_property
    def train_labels(self) -> NDArray[np.int32]:
        """Class of each training token that is an example or stands for one, -1 for others, shape (n_tokens,)."""
        return self.task.labels(self.stores, 0, self.classes, "train")[self.train.of_corpus]

    @cached_property
    def _test_labels(self) -> NDArray[np.int32]:
        return self.task.labels(self.stores, -1, self.classes, "test")

    @cached_property
    def _targets(self) -> NDArray[np.int32]:
        seen = np.unique(self.train_labels[self.train_labels >= 0]).astype(np.int64)
        return draw_targets(self._test_labels, seen, self.seed)

    def readout(self, text: Text) -> ProbeReadout:
        """Return the share of a text's examples whose class is read rightly."""
        return self._readout(text, self._test_labels, self.name)

    def translated(self, text: Text) -> ProbeReadout:
        """Return the share of a text's examples that are read as the class that they are moved to."""
        return self._readout(text, self._targets, self.name + TRANSLATED)

    def _readout(self, text: Text, labels: NDArray[np.int32], name: str) -> ProbeReadout:
        here = torch.from_numpy(labels[text.of_corpus].astype(np.int64))
        return ProbeReadout(text, Probes(self.weight, here, self.task.stands(text.tokens)), self.device, name)

    def moves(self, text: Text) -> Moves:
        """Return the class of each token's example, and the class that it is moved to."""
        stands, rows = self.task.stands(text.tokens), text.of_corpus
        source, target = (
            spread(torch.from_numpy(labels[rows].astype(np.int64)), stands)
            for labels in (self._test_labels, self._targets)
        )
        return Moves(torch.where(target >= 0, source, -1), target)

    def labelled(self, passes: Any, text: Text) -> Labelled:
        """Return passes over the training or the test sentences with their classes, for probes that are trained again.

        Args:
            passes: The passes.
            text: Their text.
        """
        labels = self.train_labels if text is self.train else self._test_labels[text.of_corpus]
        return Labelled(passes, labels, self.task.task)
