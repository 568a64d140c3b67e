"""What stands in the place of the outputs of heads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from probing.disabling.units import Kind


def uniform_outputs(values: Tensor, mask: Tensor, is_causal: bool) -> Tensor:
    """Return what heads give under uniform attention: the mean of their values over the keys that a query may see.

    With attention 1/L, all queries of a sentence get the same (Kovaleva et al. 2019, section 4.6). In a causal model,
    query i sees the keys up to itself, so that it gets the mean of the first i values.

    Args:
        values: The heads' values, shape (batch, heads, keys, d_head).
        mask: Whether there is a token, shape (batch, keys); padding is at the end.
        is_causal: Whether no token attends to a later one.

    Returns:
        The heads' outputs one after the other, shape (batch, queries, heads * d_head), with a single query for all if
        the model is not causal.
    """
    kept = values * mask[:, None, :, None]
    if is_causal:
        counts = torch.arange(1, values.shape[2] + 1, device=values.device, dtype=values.dtype)
        means = kept.cumsum(2) / counts[:, None]
    else:
        means = kept.sum(2, keepdim=True) / mask.sum(1).clamp_min(1)[:, None, None, None]
    return means.transpose(1, 2).flatten(2)


@dataclass(frozen=True)
class Replacements:
    """What may stand in the place of the outputs of a block's heads, all heads side by side.

    Args:
        uniform: The outputs under uniform attention, shape (n_sentences, width), or (n_tokens, width) in causal models.
        is_causal: Whether the model is causal, which decides the shape of `uniform`.
        mean: Mean of the outputs over training tokens, shape (width,).
        bank: Outputs at training tokens, shape (n, width).
        drawn: For each token of the text, the row of `bank` that replaces it, shape (n_tokens,).
    """

    uniform: Tensor
    is_causal: bool
    mean: Tensor
    bank: Tensor
    drawn: Tensor

    def of(self, kind: Kind, heads: slice, sentences: Tensor, rows: Tensor) -> Tensor:
        """Return what replaces the outputs of some heads in a batch.

        Args:
            kind: What stands in their place.
            heads: Their columns.
            sentences: Index of each sentence of the batch, shape (batch,).
            rows: Index of each token, shape (batch, sequence).

        Returns:
            A tensor that broadcasts to shape (batch, sequence, columns).
        """
        if kind == "zero":
            return torch.zeros_like(self.mean[heads])
        if kind == "mean":
            return self.mean[heads]
        if kind == "resample":
            return self.bank[:, heads][self.drawn[rows]]
        if kind == "uniform":
            return self.uniform[:, heads][rows] if self.is_causal else self.uniform[sentences, heads][:, None]
        raise ValueError(f"{kind} replaces no outputs of heads")


def replacing(heads: slice, others: Tensor) -> Callable[[Tensor], Tensor]:
    """Return a function that returns a copy of a tensor in which some columns are replaced.

    Args:
        heads: The columns.
        others: What stands in their place.
    """

    def change(outputs: Tensor) -> Tensor:
        changed = outputs.clone()
        changed[..., heads] = others.to(outputs.dtype)
        return changed

    return change
