"""Options of `finetune`: how the model is tuned; help texts are read from here.

This file imports nothing heavy, because the command line reads it before anything else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from probing.errors import out_of_range

# From where the model starts: its trained weights, or random ones; or its trained weights on labels that mean nothing.
STARTS = PRETRAINED, RANDOM, SHUFFLED = "pretrained", "random", "shuffled"

# The layer on which the head stands if it is the highest one.
LAST = -1


@dataclass(frozen=True)
class TuningOptions:
    """How the model is tuned.

    Args:
        learning_rate: Highest learning rate of AdamW.
        epochs: Number of times that the training text is read; 0 leaves the model as it starts.
        warm_up: Share of the steps in which the learning rate rises; then it falls linearly to 0.
        batch_tokens: Most tokens of a batch, padding included, over all processes.
        weight_decay: Weight decay of AdamW, of weight matrices alone.
        clip: Largest norm of the gradient; 0 does not limit it.
        frozen: Number of the lowest layers that are not tuned: 1 is the embeddings alone, 3 also blocks 1 and 2.
        layer_decay: Factor of the learning rate from each layer to the one below it.
        layer: Layer on which the head stands, such as 4, or -1 for the last one and -2 for the one below it; the blocks
            above are left out of the model and of its checkpoints.
        save_every: Number of steps between saved states, from which an interrupted run continues.
    """

    learning_rate: float = 5e-5
    epochs: int = 3
    warm_up: float = 0.1
    batch_tokens: int = 1024
    weight_decay: float = 0.01
    clip: float = 1.0
    frozen: int = 0
    layer_decay: float = 1.0
    layer: int = LAST
    save_every: int = 200

    def problems(self) -> list[str]:
        """Return the problems with values that are out of range."""
        return [
            *out_of_range("tuning.learning_rate", self.learning_rate, 1e-30, 1e30),
            *out_of_range("tuning.epochs", self.epochs, 0, 100_000),
            *out_of_range("tuning.warm_up", self.warm_up, 0, 1),
            *out_of_range("tuning.batch_tokens", self.batch_tokens, 1),
            *out_of_range("tuning.weight_decay", self.weight_decay, 0, 1e30),
            *out_of_range("tuning.clip", self.clip, 0, 1e30),
            *out_of_range("tuning.frozen", self.frozen, 0),
            *out_of_range("tuning.layer_decay", self.layer_decay, 1e-6, 1),
            *out_of_range("tuning.save_every", self.save_every, 1),
        ]


# In Python, a group of options may be a mapping; the parser of arguments sees only the group.
if TYPE_CHECKING:
    TuningGroup: TypeAlias = TuningOptions | Mapping[str, Any]
else:
    TuningGroup = TuningOptions
