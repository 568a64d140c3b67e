"""Random subsets of sentences whose examples fit into memory."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from probing.data.examples import Examples, read


class Sample(NamedTuple):
    """Examples of one layer.

    Args:
        hidden_states: Hidden states of the examples, shape (n, d_model), float32.
        labels: Class of each example, shape (n,).
    """

    hidden_states: Tensor
    labels: Tensor


def thin(examples: Examples, at_most: int, seed: int) -> Examples:
    """Return the examples; if there are too many, those of randomly drawn sentences, as many as fit.

    Args:
        examples: Examples of one side.
        at_most: Most examples to return.
        seed: Seed of the draw.
    """
    if examples.n_tokens <= at_most:
        return examples
    tokens = examples.store.tokens
    sizes = np.bincount(tokens.sentences[examples.labels >= 0], minlength=tokens.n_sentences)
    drawn = np.random.default_rng(seed).permutation(tokens.n_sentences)
    kept = np.zeros(tokens.n_sentences, dtype=bool)
    kept[drawn[np.cumsum(sizes[drawn]) <= at_most]] = True
    return replace(examples, labels=np.where(kept[tokens.sentences], examples.labels, -1))


def load(examples: Examples, layer: int) -> Sample:
    """Read the examples of one layer into memory."""
    states, labels = [], []
    for batch in read(examples, [layer]):
        states.append(batch.hidden_states[0])
        labels.append(batch.labels)
    return Sample(torch.cat(states), torch.cat(labels))
