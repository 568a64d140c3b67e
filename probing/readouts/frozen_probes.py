"""Classes of a task, such as positions, read from later layers by probes that were trained on the intact model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from probing.cache.tokens import Tokens
from probing.readouts.forward import Loss, ReadableText
from probing.readouts.names import POSITION
from probing.readouts.text import Padded
from probing.tasks import SentenceTask, TokenTask


def standing_for(task: TokenTask, tokens: Tokens) -> NDArray[np.int64] | None:
    """Return for each token the row of the token that stands for its example; None where examples are single tokens.

    Args:
        task: The task; of sentences, its vectors are means, or those of the first token.
        tokens: The table of tokens.

    Returns:
        Shape (n_tokens,); -1 for tokens that are in no mean, such as special ones.
    """
    if isinstance(task, SentenceTask):
        if task.pooling == "cls":
            return None
        return np.where(tokens.special, -1, _first_words(tokens)[tokens.sentences])
    if not task.word_means:
        return None
    begins = np.where(tokens.first_pieces, np.arange(tokens.n_tokens), -1)
    return np.where(tokens.special, -1, np.maximum.accumulate(begins))


def at_tokens(task: TokenTask, tokens: Tokens, labels: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the class of each token that stands for an example, -1 for others, shape (n_tokens,).

    Args:
        task: The task.
        tokens: The table of tokens.
        labels: Class of each token, or for a task of sentences of each sentence; -1 where there is none.
    """
    if not isinstance(task, SentenceTask):
        return labels
    first = tokens.offsets[:-1] if task.pooling == "cls" else _first_words(tokens)
    there = (tokens.lengths > 0) & (first >= 0)
    found = np.full(tokens.n_tokens, -1, dtype=np.int32)
    found[first[there]] = labels[there]
    return found


def means(states: Tensor, into: Tensor, n: int) -> Tensor:
    """Return means over the tokens of each example, shape (n, width), 0 for an example without tokens.

    Args:
        states: Values at tokens, shape (n_tokens, width).
        into: Index of the example of each token, shape (n_tokens,); -1 for tokens of none.
        n: Number of examples.
    """
    there = into >= 0
    rows = into[there]
    sums = states.new_zeros(n, states.shape[1]).index_add_(0, rows, states[there])
    return sums / rows.bincount(minlength=n).clamp_min(1)[:, None]


def spread(labels: Tensor, stands: Tensor | None) -> Tensor:
    """Return for each token the label of its example, shape (n_tokens,).

    Args:
        labels: Label of each token that stands for an example, shape (n_tokens,); -1 for others.
        stands: The row of the token that stands for each token's example, as `standing_for` returns it.
    """
    return labels if stands is None else torch.where(stands >= 0, labels[stands.clamp_min(0)], -1)


def _first_words(tokens: Tokens) -> NDArray[np.int64]:
    """Return the row of the first token of each sentence that is not special, -1 if there is none."""
    found = np.full(tokens.n_sentences, -1, dtype=np.int64)
    rows = np.flatnonzero(~tokens.special)
    sentences, first = np.unique(tokens.sentences[rows], return_index=True)
    found[sentences] = rows[first]
    return found


@dataclass(frozen=True)
class Probes:
    """Probes of a model's layers, frozen: they were trained while nothing was changed.

    Args:
        weight: Weight of each layer's probe on raw hidden states, shape (n_classes, d_model), by layer number.
        labels: Class of each token of the text that is an example or stands for one, shape (n_tokens,); -1 for others.
        stands: The row of the token that stands for each token's example, shape (n_tokens,), where examples are means
            over tokens; None where they are single tokens. See `probing.readouts.frozen_probes`.
    """

    weight: Mapping[int, Tensor]
    labels: Tensor
    stands: Tensor | None = None

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
        labels = self.labels_of(batch)
        sentence, token = (labels >= 0).nonzero(as_tuple=True)
        vectors_of = self._vectors(batch, sentence, token)
        right = torch.zeros(len(layers), len(labels), device=labels.device)
        for i, layer in enumerate(layers):
            predicted = (vectors_of(states[layer]) @ self.weight[layer].T).argmax(1)
            right[i].index_add_(0, sentence, (predicted == labels[sentence, token]).float())
        return right

    def _vectors(self, batch: Padded, sentence: Tensor, token: Tensor) -> Callable[[Tensor], Tensor]:
        """Return what takes the hidden states of a batch and returns the vectors of its examples, float32.

        Args:
            batch: The batch.
            sentence: Index in the batch of the sentence of each token that stands for an example, shape (n,).
            token: Index of this token in its sentence, shape (n,).
        """
        if self.stands is None:
            return lambda states: states[sentence, token].float()
        number = torch.full(batch.mask.shape, -1, device=batch.mask.device)
        number[sentence, token] = torch.arange(len(sentence), device=number.device)
        stands = torch.where(batch.mask, self.stands.to(number.device)[batch.rows], -1)
        of, taken = (stands >= 0).nonzero(as_tuple=True)
        # The tokens of a sentence follow each other in the text.
        into = number[of, stands[of, taken] - batch.rows[of, 0]]
        return lambda states: means(states[of, taken].float(), into, len(sentence))

    def labels_of(self, batch: Padded) -> Tensor:
        """Return the class of each token of a batch, shape (batch, sequence); -1 where it is not an example."""
        return torch.where(batch.mask, self.labels.to(batch.mask.device)[batch.rows], -1)


@dataclass(frozen=True, eq=False)
class ProbeReadout:
    """The share of examples, such as tokens, whose class the probe of a later layer predicts rightly.

    Args:
        text: The sentences.
        probes: The probes, and the class of each example.
        device: Where hidden states are.
        name: Its name in tables.
    """

    text: ReadableText
    probes: Probes
    device: torch.device
    name: str = POSITION

    @cached_property
    def n(self) -> NDArray[np.int64]:
        """Number of examples of each sentence."""
        return self.probes.n_by_sentence(self.text.tokens)

    @property
    def content(self) -> tuple[NDArray[Any], ...]:
        """The token ids, the probes and the classes."""
        weight = [one.cpu().numpy() for one in self.probes.weight.values()]
        tokens, probes = self.text.tokens, self.probes
        stands = [] if probes.stands is None else [probes.stands.numpy()]
        own = tokens.input_ids, tokens.lengths, np.array(list(probes.weight)), *weight, probes.labels.numpy()
        return (*own, *stands)

    def layers(self, block: int) -> list[int]:
        """Return the layers that have a probe, from this block's output on."""
        return self.probes.layers(block)

    def begin(self, layers: Sequence[int]) -> _Reading:
        """Begin a reading of some layers."""
        return _Reading(self._on_device, layers, torch.zeros(len(layers), len(self.n), device=self.device))

    @cached_property
    def _on_device(self) -> Probes:
        weight = {layer: one.to(self.device) for layer, one in self.probes.weight.items()}
        stands = self.probes.stands
        return Probes(weight, self.probes.labels.to(self.device), None if stands is None else stands.to(self.device))

    @cached_property
    def occurrences(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Each sentence, which is an item, once."""
        return (every := np.arange(len(self.n))), every

    def loss(self, batch: Padded, occurrences: NDArray[np.int64]) -> Loss:
        """Return the mean cross-entropy of the last layer's probe over each sentence's examples, which are tokens.

        Raises:
            ValueError: If they are means over tokens.
        """
        probes = self._on_device
        if probes.stands is not None:
            raise ValueError("the loss is of examples that are single tokens")
        return probe_loss(probes.weight[max(probes.weight)], probes.labels_of(batch))


@dataclass(frozen=True)
class _Reading:
    probes: Probes
    layers: Sequence[int]
    right: Tensor

    def take(self, states: Mapping[int, Tensor], batch: Padded) -> None:
        self.right[:, batch.sentences] = self.probes.read(states, self.layers, batch)

    def sums(self) -> Tensor:
        return self.right.cpu()


def probe_loss(weight: Tensor, labels: Tensor) -> Loss:
    """Return the mean cross-entropy of a frozen probe over the examples of each sentence, 0 where there are none.

    Args:
        weight: The probe's weight, shape (n_classes, d_model).
        labels: Class of each token, shape (batch, sequence); -1 where it is not an example.
    """
    n = (labels >= 0).sum(1)

    def loss(states: Tensor) -> Tensor:
        logits = states @ weight.T.to(states.dtype)
        nats = cross_entropy(logits.transpose(1, 2), labels, ignore_index=-1, reduction="none")
        return nats.sum(1) / n.clamp_min(1)

    return loss
