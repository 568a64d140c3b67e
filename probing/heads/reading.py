"""What a measure of heads receives, the attention of one block over one batch, and what it wants to keep."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from probing.cache.tokens import Tokens
from probing.corpus import Corpus
from probing.models.attention_heads import OutputProjection


@dataclass(frozen=True)
class Batch:
    """Sentences that are read together, the shorter ones padded at the end.

    Args:
        sentences: Index of each sentence in the corpus, shape (batch,).
        rows: Index of each token in the corpus's table of tokens, shape (batch, sequence); 0 for padding.
        input_ids: Token ids, shape (batch, sequence).
        mask: Whether there is a token, shape (batch, sequence).
        special: Whether the tokenizer added the token, shape (batch, sequence). The first token of a causal model
            counts as special too, because it is the only one that the first query sees.
        words: Index of each token's word in its sentence, shape (batch, sequence); -1 for tokens that the tokenizer
            added and for padding.
        is_causal: Whether no token attends to a later one.
        segments: Which sentence of a pair each token is of, 0 or 1, shape (batch, sequence); -1 for tokens that the
            tokenizer added and for padding. None for single sentences.
        token_types: The token type ids that the model is given, shape (batch, sequence); None if it takes none.
    """

    sentences: Tensor
    rows: Tensor
    input_ids: Tensor
    mask: Tensor
    special: Tensor
    words: Tensor
    is_causal: bool = False
    segments: Tensor | None = None
    token_types: Tensor | None = None

    @cached_property
    def inputs(self) -> dict[str, Tensor]:
        """What the model is given, each of shape (batch, sequence)."""
        found = {"input_ids": self.input_ids, "attention_mask": self.mask.long()}
        return found if self.token_types is None else {**found, "token_type_ids": self.token_types}

    @cached_property
    def lengths(self) -> Tensor:
        """Number of tokens of each sentence, shape (batch,)."""
        return self.mask.sum(1)

    @cached_property
    def ordinary(self) -> Tensor:
        """Whether there is a token that is not special, shape (batch, sequence)."""
        return self.mask & ~self.special

    @cached_property
    def seen(self) -> Tensor:
        """Whether a query may see a key where nothing but the order of tokens limits it, shape (batch, from, to)."""
        seen = self.mask[:, :, None] & self.mask[:, None, :]
        return seen.tril() if self.is_causal else seen

    @cached_property
    def uniform(self) -> Tensor:
        """Attention that is uniform over the keys that are `seen`, shape (batch, from, to), float64."""
        return _uniform(self.seen)

    @cached_property
    def first(self) -> Tensor:
        """Index of the first token of each sentence, shape (batch,); 0 for sentences without tokens."""
        return self.mask.to(torch.uint8).argmax(1)

    @cached_property
    def without_first(self) -> Batch:
        """The same sentences, with the first token treated as padding."""
        mask = self.mask.clone()
        mask[:, 0] = False
        return replace(self, mask=mask, special=self.special & mask, words=torch.where(mask, self.words, -1))

    @cached_property
    def is_padded(self) -> bool:
        """Whether some sentence is shorter than the longest one."""
        return not bool(self.mask.all())


@dataclass(frozen=True)
class Attention:
    """The attention of one block over one batch.

    Args:
        layer: Number of the block, from 1.
        probabilities: Shape (batch, heads, from, to), float32; rows and columns of padding are 0, others sum to 1.
        values: The value vectors of each head, of which attention takes weighted sums, shape (batch, heads, to,
            d_head); undefined for padding.
        projection: The block's output projection; None if it cannot be told.
        visible: Whether a query may see a key, shape (batch, from, to), where the block shows less than `Batch.seen`,
            such as a window; otherwise None.
    """

    layer: int
    probabilities: Tensor
    values: Tensor
    projection: OutputProjection | None
    visible: Tensor | None = None

    def uniform(self, batch: Batch) -> Tensor:
        """Return attention that is uniform over the keys that a query may see, shape (batch, from, to), float64."""
        return batch.uniform if self.visible is None else _uniform(self.visible)

    @cached_property
    def without_first(self) -> Attention:
        """The attention without the first token, in rows that sum to 1, or are 0 where nothing is left."""
        left = self.probabilities.clone()
        left[:, :, 0], left[..., 0] = 0, 0
        left /= left.sum(3, keepdim=True, dtype=torch.float64).to(left.dtype).clamp_min(torch.finfo(left.dtype).tiny)
        visible = None if self.visible is None else self.visible.clone()
        if visible is not None:
            visible[:, 0], visible[..., 0] = False, False
        return replace(self, probabilities=left, visible=visible)

    def value_norms(self) -> Tensor:
        """Return the norm of what each token would add to the residual stream with weight 1, shape (batch, heads, to).

        It is |f(x)| with f(x) = (x W_V + b_V) W_O, the columns of W_O being the head's, and without b_O (Kobayashi et
        al. 2020, section 2). It is computed from the inner products of the rows of W_O, because f(x) itself is
        d_model / d_head times as large as the values.

        Raises:
            ValueError: If the output projection is not known.
        """
        if self.projection is None:
            raise ValueError("this model's output projection is not known")
        values = self.values.double()
        return ((values @ self.projection.gram * values).sum(-1)).clamp_min(0).sqrt()


def attention_of(
    layer: int,
    probabilities: Tensor,
    values: Tensor,
    projection: OutputProjection | None,
    batch: Batch,
    mask: Tensor | None = None,
) -> Attention:
    """Return a block's attention in which padding neither attends nor is attended to.

    Args:
        layer: Number of the block, from 1.
        probabilities: Shape (batch, heads, from, to), whose rows of padding are undefined.
        values: Shape (batch, heads, to, d_head).
        projection: The block's output projection.
        batch: The sentences.
        mask: Whether a query may see a key by the model's mask, shape (batch or 1, from, to); None if there is none.
    """
    visible = None if mask is None else mask & batch.seen
    if visible is not None and torch.equal(visible, batch.seen):
        visible = None
    if batch.is_padded:
        pairs = (batch.mask[:, :, None] & batch.mask[:, None, :])[:, None]
        probabilities = torch.where(pairs, probabilities, 0.0)
    return Attention(layer, probabilities, values, projection, visible)


def _uniform(seen: Tensor) -> Tensor:
    return seen.double() / seen.sum(2, keepdim=True).clamp_min(1)


@dataclass(frozen=True)
class Kept:
    """What a measure keeps of one batch, each value under its name.

    Args:
        by_sentence: Shape (batch, ...).
        by_token: Shape (batch, sequence, ...); entries at padding are not kept.
        total: Any shape; the values of all batches are added up, without sentences, so that no interval by sentence
            can be computed from them.
        listed: For each sentence of the batch any number of rows, shape (n, ...), such as one for each pair of words.
    """

    by_sentence: Mapping[str, Tensor] = field(default_factory=dict)
    by_token: Mapping[str, Tensor] = field(default_factory=dict)
    total: Mapping[str, Tensor] = field(default_factory=dict)
    listed: Mapping[str, Sequence[Tensor]] = field(default_factory=dict)


class Accumulator(Protocol):
    """Takes the blocks of one batch in order."""

    def add(self, attention: Attention) -> None:
        """Take the next block. The attention may be overwritten after this call: copy what is needed later."""

    def kept(self) -> Kept:
        """Return what is kept of the batch, after its last block."""


class Measure(Protocol):
    """Something to be summed over a corpus.

    Args:
        name: Its name, by which its sums are found.
        settings: Everything other than model and corpus that changes its values, such as a version of its definition,
            and a fingerprint of labels that do not come with the corpus. Sums of other settings are not read.
    """

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def settings(self) -> Mapping[str, Any]: ...  # noqa: D102

    def of_corpus(self, tokens: Tokens, corpus: Corpus) -> Callable[[Batch], Accumulator]:
        """Prepare labels by token, and return a function that makes a batch's accumulator; threads share it."""


@dataclass(frozen=True)
class BlockMeasure:
    """A measure that looks at one block at a time and needs nothing else.

    Args:
        name: Its name.
        function: Returns sums by sentence and head, each of shape (batch, heads, ...); they are kept by sentence, with
            the block as second axis.
        settings: Whatever changes its values beside model and corpus.
    """

    name: str
    function: Callable[[Attention, Batch], Mapping[str, Tensor]]
    settings: Mapping[str, Any] = field(default_factory=dict)

    def of_corpus(self, tokens: Tokens, corpus: Corpus) -> Callable[[Batch], Accumulator]:
        """Return what makes an accumulator for each batch."""
        return lambda batch: _Blocks(self.function, batch)


class _Blocks:
    """Calls a function for each block and stacks what it returns."""

    def __init__(self, function: Callable[[Attention, Batch], Mapping[str, Tensor]], batch: Batch) -> None:
        self.function, self.batch = function, batch
        self.found: dict[str, list[Tensor]] = {}

    def add(self, attention: Attention) -> None:
        for name, values in self.function(attention, self.batch).items():
            self.found.setdefault(name, []).append(values)

    def kept(self) -> Kept:
        return Kept({name: torch.stack(values, dim=1) for name, values in self.found.items()})
