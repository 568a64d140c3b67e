"""Replacement values for neurons of the residual stream, from training tokens, and the change of a model by them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.cache.tokens import Tokens
from probing.disabling.neurons.neuron_sets import Kind
from probing.readouts.later_blocks import LaterBlocks
from probing.readouts.text import Padded, Text
from probing.statistics.permutation import permute_within_sentences
from probing.transforms.erasure import Eraser, ErasureAccumulator

Place = Literal["words", "everywhere"]
# Takes values of the neurons at some tokens, shape (n, k), and the rows of these tokens, shape (n,); returns others.
Replace = Callable[[Tensor, Tensor], Tensor]


def changed_tokens(tokens: Tokens, at: Place) -> NDArray[np.bool_]:
    """Return at which tokens neurons are changed, shape (n_tokens,): all tokens, or those that are not special."""
    return np.ones(tokens.n_tokens, dtype=bool) if at == "everywhere" else ~tokens.special


@dataclass(frozen=True, eq=False)
class Values:
    """Values of the neurons of a layer at training tokens.

    Args:
        states: Hidden states of the tokens, shape (n, d_model), float32.
        sentences: Index of the sentence of each, shape (n,).
        labels: Position class of each, shape (n,); -1 for tokens that are not examples.
        n_classes: Number of classes.
        shuffled: The classes, permuted within each sentence, shape (n,).
    """

    states: Tensor
    sentences: NDArray[Any]
    labels: Tensor
    n_classes: int
    shuffled: Tensor

    @classmethod
    def of(cls, train: Text, layer: int, at: Place, labels: NDArray[np.int32], n_classes: int, seed: int = 0) -> Values:
        """Read them from the cache.

        Args:
            train: Training sentences.
            layer: The layer.
            at: At which tokens neurons are changed; their values are taken from training tokens of the same kind.
            labels: Position class of each token of the training sentences, shape (n_tokens,).
            n_classes: Number of classes.
            seed: Seed of the permutations of classes.
        """
        tokens, there = train.tokens, changed_tokens(train.tokens, at)
        (shuffled,) = permute_within_sentences(labels, tokens.sentences, tokens.input_ids, 1, seed)
        of_tokens, of_others = (torch.from_numpy(given[there].astype(np.int64)) for given in (labels, shuffled))
        states = train.states(layer)[torch.from_numpy(there)]
        return cls(states, tokens.sentences[there], of_tokens, n_classes, of_others)

    @cached_property
    def mean(self) -> Tensor:
        """Mean of each neuron, shape (d_model,), float32."""
        return self.states.mean(0, dtype=torch.float64).float()

    @cached_property
    def sd(self) -> NDArray[np.float64]:
        """Standard deviation of each neuron, shape (d_model,)."""
        return self.states.double().std(0, correction=0).numpy()

    def eraser(self, neurons: Sequence[int], labels: Tensor | None = None) -> Eraser:
        """Return the map of some neurons after which no linear probe of these neurons tells positions (LEACE).

        Args:
            neurons: The neurons.
            labels: Class of each token, shape (n,); by default that of its position.
        """
        accumulator = ErasureAccumulator(len(neurons), self.n_classes)
        accumulator.update(self.states[:, list(neurons)], self.labels if labels is None else labels)
        return accumulator.result()

    def replace(self, kind: Kind, neurons: Sequence[int], drawn: Tensor) -> Replace:
        """Return the function that replaces the values of some neurons.

        Args:
            kind: Which values.
            neurons: The neurons.
            drawn: For each token of the text, the index of the training token that replaces it, shape (n_tokens,).
        """
        columns = list(neurons)
        if not columns:
            return lambda here, rows: here
        if kind == "zero":
            return lambda here, rows: torch.zeros_like(here)
        if kind == "mean":
            mean = self.mean[columns]
            return lambda here, rows: mean.to(here).expand_as(here)
        if kind == "resample":
            bank = self.states[:, columns]
            return lambda here, rows: bank[drawn[rows.cpu()]].to(here)
        if kind in ("direction", "shuffled"):
            eraser = self.eraser(columns, self.labels if kind == "direction" else self.shuffled)
            return lambda here, rows: eraser.apply(here.cpu()).to(here)
        raise ValueError(f"{kind} replaces no neurons")


@dataclass(frozen=True, eq=False)
class NeuronsChanged:
    """Some neurons of a layer are changed, at some tokens.

    Args:
        layer: The layer.
        neurons: The neurons; none if nothing is changed.
        replace: The function that replaces their values.
        where: At which tokens of the text, shape (n_tokens,).
    """

    layer: int
    neurons: Sequence[int]
    replace: Replace
    where: Tensor

    def later(
        self, model: LaterBlocks, batch: Padded, beside: Any, states: Tensor, layers: Sequence[int]
    ) -> Mapping[int, Tensor]:
        """Return the hidden states of some layers, this one among them if it is asked for, while they are changed."""
        return model.run(batch.inputs, self.layer + 1, self.changed(states, batch), beside, layers)

    def changed(self, states: Tensor, batch: Padded) -> Tensor:
        """Return the changed hidden states of the layer; the given ones stay as they are."""
        if not len(self.neurons):
            return states
        there, columns = batch.mask & self.where.to(batch.mask.device)[batch.rows], list(self.neurons)
        sentence, token = there.nonzero(as_tuple=True)
        at = (sentence[:, None], token[:, None], torch.tensor(columns, device=states.device))
        changed = states.clone()
        changed[at] = self.replace(states[at], batch.rows[there])
        return changed
