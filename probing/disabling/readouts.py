"""What is read from the later layers of a model in which something is disabled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.cache.tokens import Tokens
from probing.disabling.text import Padded


@dataclass(frozen=True)
class Probes:
    """Probes of a model's layers, frozen: they were trained while nothing was disabled.

    Args:
        weight: Weight of each layer's probe on raw hidden states, shape (n_classes, d_model), by layer number.
        labels: Class of each token of the text, shape (n_tokens,); -1 for tokens that are not examples.
    """

    weight: Mapping[int, Tensor]
    labels: Tensor

    def layers(self, block: int) -> list[int]:
        """Return the layers that can be read when a block is changed: its own output and later ones."""
        return [layer for layer in self.weight if layer >= block]

    def n_by_sentence(self, tokens: Tokens) -> NDArray[np.int64]:
        """Return the number of examples of each sentence, shape (n_sentences,)."""
        examples = self.labels.cpu().numpy() >= 0
        return np.bincount(tokens.sentences[examples], minlength=tokens.n_sentences)

    def read(self, states: Mapping[int, Tensor], layers: Sequence[int], batch: Padded) -> Tensor:
        """Return how many examples of each sentence the probes predict rightly, shape (n_layers, batch), float32.

        Args:
            states: Hidden states of each layer, shape (batch, sequence, d_model).
            layers: The layers.
            batch: The batch that they are of.
        """
        labels = torch.where(batch.mask, self.labels[batch.rows], -1)
        sentence, token = (labels >= 0).nonzero(as_tuple=True)
        right = torch.zeros(len(layers), len(labels), device=labels.device)
        for i, layer in enumerate(layers):
            predicted = (states[layer][sentence, token].float() @ self.weight[layer].T).argmax(1)
            right[i].index_add_(0, sentence, (predicted == labels[sentence, token]).float())
        return right
