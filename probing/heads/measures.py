"""The interface of a measure: what it receives, block by block, and what it wants to keep."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from probing.cache.tokens import Tokens
from probing.corpus import Corpus
from probing.heads.reading import Attention, Batch


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
