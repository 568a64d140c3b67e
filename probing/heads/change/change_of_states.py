"""How the hidden states and the parameters of two checkpoints of a model differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probing.cache.tokens import Tokens
from probing.corpus import Corpus
from probing.heads.change.checkpoints import Checkpoint
from probing.heads.change.maps import SAME, change_row
from probing.heads.measures import Accumulator, Kept
from probing.heads.reading import Attention, Batch
from probing.heads.rows import Rows
from probing.heads.sums import SumsStore

OTHER_TOKENS = "other tokens"


@dataclass(frozen=True)
class StateChange:
    """The measure: each token's hidden states compared with those in another checkpoint.

    Args:
        model: A checkpoint.
        against: The other one, on the same sentences.
    """

    model: Checkpoint
    against: Checkpoint
    name: str = "change_of_states"

    @property
    def settings(self) -> Mapping[str, Any]:
        """Everything other than model and corpus that changes the sums."""
        return {"version": 1, "against": self.against.request.key()}

    def of_corpus(self, tokens: Tokens, corpus: Corpus) -> Callable[[Batch], Accumulator]:
        """Load both checkpoints, and return what makes an accumulator for each batch."""
        both = self.model.prepared(), self.against.prepared()
        return lambda batch: _Compared(both, batch)


class _Compared:
    def __init__(self, both: Sequence[Checkpoint], batch: Batch) -> None:
        self.both, self.batch = both, batch

    def add(self, attention: Attention) -> None:
        """Hidden states are read by forward passes of their own."""

    @torch.inference_mode()
    def kept(self) -> Kept:
        mask = self.batch.mask
        ours, theirs = (one.states(self.batch.inputs) for one in self.both)
        same, next_one = [], []
        for layer, a in ours.items():
            b = theirs[layer]
            same.append(torch.where(mask, row_cosines(a, b), 0.0).sum(1))
            next_one.append(torch.where(mask[:, 1:], row_cosines(a[:, :-1], b[:, 1:]), 0.0).sum(1))
        return Kept({"same": torch.stack(same, 1), "next": torch.stack(next_one, 1)})


def state_rows(store: SumsStore, layers: Sequence[int]) -> Rows:
    """Return the mean cosine of each token's hidden states in both checkpoints, and of a token and the next one.

    Args:
        store: The sums of `StateChange`.
        layers: Layer numbers, from 0.
    """
    lengths = store.tokens.lengths.astype(np.int64)
    comparisons = ((SAME, "same", lengths), (OTHER_TOKENS, "next", np.maximum(lengths - 1, 0)))
    return [
        change_row("hidden_states", of, layer, None, store.by_sentence(name)[:, layer].numpy(), n)
        for of, name, n in comparisons
        for layer in layers
    ]


def parameter_rows(model: Checkpoint, against: Checkpoint) -> Rows:
    """Return the cosine of each matrix of parameters in both checkpoints; `of` is its name.

    Matrices that have no counterpart of the same shape are left out.

    Args:
        model: A checkpoint.
        against: The other one.
    """
    theirs = {name: matrix for name, (_, matrix) in against.matrices().items()}
    rows = []
    for name, (layer, matrix) in model.matrices().items():
        if name in theirs and theirs[name].shape == matrix.shape:
            flat = (values.cpu().reshape(1, -1) for values in (matrix, theirs[name]))
            value = row_cosines(*flat).numpy()
            rows.append(change_row("parameters", name, layer, None, value, np.ones(1, dtype=np.int64)))
    return rows


def row_cosines(a: Tensor, b: Tensor) -> Tensor:
    """Return the cosine of vectors along the last axis, float64; exactly 1 for equal ones.

    Args:
        a: Shape (..., d).
        b: Of the same shape.
    """
    product, *squares = (_products(x, y) for x, y in ((a, b), (a, a), (b, b)))
    return (product / (squares[0] * squares[1]).sqrt().clamp_min(torch.finfo(torch.float64).tiny)).clamp(-1, 1)


def _products(x: Tensor, y: Tensor) -> Tensor:
    """Return inner products in float64, in pieces, because matrices of parameters are large."""
    pieces = zip(x.split(2**20, dim=-1), y.split(2**20, dim=-1), strict=True)
    return torch.stack([(p.double() * q.double()).sum(-1) for p, q in pieces]).sum(0)
