"""Ablation of heads and layers: the replacements of their outputs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from probing.interventions import REPLACEMENTS, HeadReplacement
from probing.interventions.forward import (
    Change,
    Forward,
    LaterBlocks,
    Padded,
    ReadableText,
    Readers,
    draw_others,
)
from probing.runtime.trainer import to_float64

UnitType = Literal["heads", "layers"]

UNITS: tuple[UnitType, ...] = ("heads", "layers")

KINDS = tuple(REPLACEMENTS)

# A head cannot be skipped: without it, a block has another width.
OF_HEADS = tuple(kind for kind in KINDS if kind != "skip")


@dataclass(frozen=True)
class AblationJob:
    """One forward pass over the text with a head or a layer ablated.

    Args:
        block: The changed block, from 1.
        head: The head whose output is replaced, from 1; None for all heads of the block, or for the whole block.
        kind: The replacement, one of `REPLACEMENTS`; `skip` removes the block, so that its output is its input. None
            for the baseline without a change.
    """

    block: int
    head: int | None
    kind: HeadReplacement | None

    @property
    def unit(self) -> str:
        """Name in tables: `3-9` is head 9 of layer 3, `3` is layer 3."""
        return str(self.block) if self.head is None else f"{self.block}-{self.head}"


def all_jobs(n_layers: int, n_heads: int) -> list[AblationJob]:
    """Return all possible passes, in the order in which they are computed and stored."""
    return [job for block in range(1, n_layers + 1) for job in _jobs_of_block(block, n_heads)]


def _jobs_of_block(block: int, n_heads: int) -> list[AblationJob]:
    of_heads = [AblationJob(block, head, kind) for head in range(1, n_heads + 1) for kind in OF_HEADS]
    return [AblationJob(block, None, None), *of_heads, *(AblationJob(block, None, kind) for kind in KINDS)]


def is_needed(
    job: AblationJob, units: Sequence[UnitType], kinds: Sequence[HeadReplacement], blocks: Sequence[int]
) -> bool:
    """Return True if a pass is needed for the given units, kinds of replacement and blocks."""
    if job.block not in blocks:
        return False
    return job.kind is None or (job.kind in kinds and ("layers" if job.head is None else "heads") in units)


def uniform_outputs(values: Tensor, mask: Tensor, is_causal: bool) -> Tensor:
    """Return the outputs of heads under uniform attention: the mean of their values over the visible keys.

    With attention 1/L, all queries of a sentence get the same (Kovaleva et al. 2019, section 4.6). In a causal model,
    query i sees the keys up to itself, so that it gets the mean of the first i values.

    Args:
        values: The heads' values, shape (batch, heads, keys, d_head).
        mask: Whether there is a token, shape (batch, keys); padding is at the end.

    Returns:
        The concatenated outputs, shape (batch, queries, heads * d_head), with a single query for all if the model is
            not causal.
    """
    unmasked = values * mask[:, None, :, None]
    if is_causal:
        counts = torch.arange(1, values.shape[2] + 1, device=values.device, dtype=values.dtype)
        means = unmasked.cumsum(2) / counts[:, None]
    else:
        means = unmasked.sum(2, keepdim=True) / mask.sum(1).clamp_min(1)[:, None, None, None]
    return means.transpose(1, 2).flatten(2)


@dataclass(frozen=True)
class Replacements:
    """The values that replace the outputs of a block's attention heads, side by side.

    Args:
        uniform: The outputs under uniform attention, shape (n_sentences, width), or (n_tokens, width) in causal models.
        mean: Mean of the outputs over training tokens, shape (width,).
        bank: Outputs at training tokens, shape (n, width).
        drawn: For each token of the text, the row of `bank` that replaces it, shape (n_tokens,).
    """

    uniform: Tensor
    is_causal: bool
    mean: Tensor
    bank: Tensor
    drawn: Tensor

    def of(self, kind: HeadReplacement, heads: slice, outputs: Tensor, batch: Padded) -> Tensor:
        """Return the replacement of the columns `heads`, given what it replaces.

        Args:
            outputs: What is replaced: the outputs of these columns, shape (batch, sequence, columns).

        Returns:
            A tensor that broadcasts to the shape of `outputs`.
        """
        if kind == "zero":
            return torch.zeros_like(outputs)
        if kind == "mean":
            return self.mean[heads]
        if kind == "resample":
            return self.bank[:, heads][self.drawn[batch.rows]]
        if kind == "uniform":
            return self.uniform[:, heads][batch.rows if self.is_causal else batch.sentences[:, None]]
        raise ValueError(f"{kind} replaces no outputs of heads")


def with_heads(outputs: Tensor, heads: slice, others: Tensor) -> Tensor:
    """Return a copy of outputs, shape (..., width), with the columns `heads` replaced by `others`."""
    changed = outputs.clone()
    changed[..., heads] = others.to(outputs.dtype)
    return changed


class HeadPasses(Forward):
    """Passes over a text for each `AblationJob`.

    Args:
        train: Training sentences, from which the replacements of heads' outputs are taken.
        batch_tokens: Maximum number of tokens in a batch, padding included.
        seed: Seed of the draw of the tokens whose outputs replace others.
    """

    def __init__(
        self, readers: Readers, text: ReadableText, train: ReadableText, batch_tokens: int, seed: int
    ) -> None:  # fmt: skip
        super().__init__(readers, text, batch_tokens)
        self.model, self.device, self.seed = readers.model, readers.device, seed
        self.train = Forward(readers, train, batch_tokens)
        self._replacements: tuple[int, Replacements] | None = None

    def change(self, job: AblationJob) -> Change:
        """Return the change of the model for a job."""
        kind = job.kind
        if kind is None or kind == "skip":
            return Change(job.block - 1, skips=kind == "skip")
        columns, replacements = self.model.columns(job.head), self.replacements(job.block)

        def replace(outputs: Tensor, batch: Padded) -> Tensor:
            return with_heads(outputs, columns, replacements.of(kind, columns, outputs[..., columns], batch))

        return Change(job.block - 1, heads={job.block: replace})

    def replacements(self, block: int) -> Replacements:
        """Return the possible replacements of the outputs of a block's heads; caches those of one block."""
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
            outputs = uniform_outputs(values, batch.mask, is_causal)
            if is_causal:
                uniform[batch.rows[batch.mask]] = outputs[batch.mask]
            else:
                uniform[batch.sentences] = outputs[:, 0]

        def note_outputs(model: LaterBlocks, batch: Padded, beside: Any, states: Tensor) -> None:
            outputs, _ = model.outputs_of_heads(batch.inputs, block, states, beside)
            bank[batch.rows[batch.mask]] = outputs[batch.mask]

        self.over(block - 1, note_uniform)
        self.train.over(block - 1, note_outputs)
        mean = to_float64(bank).mean(0).to(bank)
        return Replacements(uniform, is_causal, mean, bank, self._drawn)

    @cached_property
    def _drawn(self) -> Tensor:
        """Training token whose outputs replace the outputs of each token of the text, the same in all blocks."""
        others = self.train.text.tokens.sentences
        drawn = draw_others(self.tokens.sentences, others, self.text is self.train.text, self.seed)
        return torch.from_numpy(drawn).to(self.device)


def chosen_units(
    jobs: Sequence[AblationJob], effects: Mapping[AblationJob, float], n: int, seed: int
) -> list[AblationJob]:
    """Return the n heads that cost most in the last layer and n random others, likewise layers, for one kind."""
    generator = np.random.default_rng(seed)
    selected: list[AblationJob] = []
    for is_layer in (False, True):
        candidates = [job for job in jobs if job.kind is not None and (job.head is None) is is_layer]
        kinds: list[HeadReplacement | None] = list(dict.fromkeys(job.kind for job in candidates))
        candidates = [job for job in candidates if job.kind == kinds[0]]
        strongest = sorted(candidates, key=lambda job: effects[job])[:n]
        others = [job for job in candidates if job not in strongest]
        drawn = generator.permutation(len(others))[:n]
        selected += strongest + [others[i] for i in sorted(drawn.tolist())]
    return selected


Head = tuple[int, int]


def joint_change(heads: Collection[Head], stands: Tensor, d_head: int, below: int) -> Change:
    """Return the change of the model for heads, as pairs of block and head, from 1, that are ablated together.

    `stands` are the replacements of the outputs of heads, shape (n_layers, width). The empty set is the intact model
    from layer `below` on.
    """
    layer = min((block - 1 for block, _ in heads), default=below)
    return Change(layer, heads=replaced_heads(heads, stands, d_head))


def replaced_heads(heads: Collection[Head], stands: Tensor, d_head: int) -> dict[int, Callable[..., Tensor]]:
    """Return, for each block of some heads, the function that changes the input of its output projection.

    For `stands` see `joint_change`.
    """

    def of_block(block: int) -> Callable[..., Tensor]:
        block_stands, width = stands[block - 1], stands.shape[1]
        gone = torch.zeros(width, dtype=torch.bool, device=stands.device)
        for head in (head for of, head in heads if of == block):
            gone[(head - 1) * d_head : head * d_head] = True

        def change(outputs: Tensor, batch: Padded | None = None) -> Tensor:
            head_outputs = torch.where(gone, block_stands.to(outputs.dtype), outputs[..., :width])
            return torch.cat([head_outputs, outputs[..., width:]], dim=-1)

        return change

    return {block: of_block(block) for block in sorted({block for block, _ in heads})}
