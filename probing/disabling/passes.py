"""Forward passes over a text with a head or a layer disabled, and what stands in the place of its outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from probing.disabling.units import Job, Kind
from probing.readouts.forward import Forward, ReadableText, Readers, Readout
from probing.readouts.later_blocks import LaterBlocks
from probing.readouts.text import Padded, draw_others
from probing.runtime.arithmetic import to_float64


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


@dataclass(frozen=True)
class Disabled:
    """A head or a layer is disabled.

    Args:
        job: What is disabled.
        columns: The columns of the heads' outputs that are replaced.
        replacements: What may stand in their place; None if nothing is replaced.
    """

    job: Job
    columns: slice
    replacements: Replacements | None

    @property
    def layer(self) -> int:
        """The layer below the block that is changed."""
        return self.job.block - 1

    def later(
        self, model: LaterBlocks, batch: Padded, beside: Any, states: Tensor, layers: Sequence[int]
    ) -> dict[int, Tensor]:
        """Return later hidden states while it is disabled."""
        change, kind = None, self.job.kind
        if self.replacements is not None and kind is not None:
            others = self.replacements.of(kind, self.columns, batch.sentences, batch.rows)
            change = replacing(self.columns, others)
        first = self.job.block + (kind == "skip")
        return model.run(batch.inputs, first, states, beside, layers, change)


class Passes:
    """Runs the later blocks of a model over a text, once for each job.

    Args:
        readers: The model.
        text: The sentences that are read.
        train: Training sentences, from which the replacements of heads' outputs are taken.
        batch_tokens: Most tokens in a batch, padding included.
        seed: Seed of the draw of the tokens whose outputs replace others.
    """

    def __init__(
        self, readers: Readers, text: ReadableText, train: ReadableText, batch_tokens: int, seed: int
    ) -> None:  # fmt: skip
        self.readers, self.model, self.device = readers, readers.model, readers.device
        self.text, self.train = (Forward(readers, one, batch_tokens) for one in (text, train))
        self.tokens, self.seed = text.tokens, seed
        self.d_model = int(self.model.encoder.config.hidden_size)  # type: ignore[union-attr,arg-type]
        self._replacements: tuple[int, Replacements] | None = None

    def change(self, job: Job) -> Disabled:
        """Return the change of the model by which something is disabled."""
        replacements = self.replacements(job.block) if job.kind not in (None, "skip") else None
        return Disabled(job, self.model.columns(job.head), replacements)

    def run(self, job: Job, readout: Readout) -> Tensor:
        """Return what a readout gives, shape (n_layers, n_items), for the layers `readout.layers(job.block)`."""
        return self.text.read(self.change(job), readout)

    def states(self, job: Job, layers: Sequence[int]) -> dict[int, Tensor]:
        """Return the hidden states of some layers while something is disabled, shape (n_tokens, d_model), float32.

        Args:
            job: What is disabled.
            layers: The layers, at least that of the block that is changed.
        """
        return self.text.states(self.change(job), layers)

    def replacements(self, block: int) -> Replacements:
        """Return the possible replacements of the outputs of a block's heads; those of one block are kept in memory."""
        if self._replacements is None or self._replacements[0] != block:
            self._replacements = block, self._find_replacements(block)
        return self._replacements[1]

    def _find_replacements(self, block: int) -> Replacements:
        is_causal, width = self.model.heads.is_causal, self.model.width
        n_tokens, n_sentences = self.tokens.n_tokens, self.tokens.n_sentences
        uniform = torch.zeros(n_tokens if is_causal else n_sentences, width, device=self.device)
        bank = torch.zeros(self.train.text.tokens.n_tokens, width, device=self.device)

        def note_uniform(model: LaterBlocks, batch: Padded, beside: Any, states: Tensor) -> None:
            _, values = model.outputs_of_heads(batch.inputs, block, states, beside)
            found = uniform_outputs(values, batch.mask, is_causal)
            if is_causal:
                uniform[batch.rows[batch.mask]] = found[batch.mask]
            else:
                uniform[batch.sentences] = found[:, 0]

        def note_outputs(model: LaterBlocks, batch: Padded, beside: Any, states: Tensor) -> None:
            outputs, _ = model.outputs_of_heads(batch.inputs, block, states, beside)
            bank[batch.rows[batch.mask]] = outputs[batch.mask]

        self.text.over(block - 1, note_uniform)
        self.train.over(block - 1, note_outputs)
        mean = to_float64(bank).mean(0).to(bank)
        return Replacements(uniform, is_causal, mean, bank, self._drawn)

    @cached_property
    def _drawn(self) -> Tensor:
        """For each token of the text, the training token whose outputs replace its own, the same in all blocks."""
        others = self.train.text.tokens.sentences
        drawn = draw_others(self.tokens.sentences, others, self.text.text is self.train.text, self.seed)
        return torch.from_numpy(drawn).to(self.device)
