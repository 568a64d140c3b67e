"""The first token as an attention sink: how much of the attention it gets, and measures of what is left without it.

In decoders, a head that has nothing to read attends to the first token, which every query sees (Xiao et al. 2023, arXiv
2309.17453). Measures of such a head are then measures of the sink. Without the first token, each row is divided by its
sum. That is the attention that softmax would give if the first key were masked, all else being the same, so that the
measures do not depend on how strong the sink is; its strength is a measure of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from probing.cache.tokens import Tokens
from probing.corpus import Corpus
from probing.heads.measures import Accumulator, BlockMeasure, Kept, Measure
from probing.heads.reading import Attention, Batch
from probing.heads.survey.attended import norm_columns

FIRST = "first token"


def sink(attention: Attention, batch: Batch) -> dict[str, Tensor]:
    """Return what the first token gets from the later ones, summed over these queries; each (batch, heads), float64.

    Args:
        attention: The attention of one block.
        batch: The sentences.

    Returns:
        mass: The attention to it.
        uniform: The attention that the first token would get under uniform attention over the keys that a query may
            see.
        norm_mass: As `mass`, but of weights times norms, with each row divided by its sum; absent if the model's output
            projection cannot be told.
    """
    later = attention.probabilities[:, :, 1:]
    uniform = attention.uniform(batch)[:, 1:, 0].sum(1)
    found = {
        "mass": later[..., 0].sum(2, dtype=torch.float64),
        "uniform": uniform[:, None].repeat(1, later.shape[1]),
    }
    if attention.projection is not None:
        found["norm_mass"] = norm_columns(later, attention.value_norms() * batch.mask[:, None])[..., 0]
    return found


SINK = BlockMeasure("sink", sink, {"version": 2})


@dataclass(frozen=True)
class WithoutFirst:
    """A measure of what is left of the attention without the first token of each sentence.

    The token is neither a query nor a key, as padding is neither. A query that attends to nothing else, in the
    precision of the model, has a row of 0.

    Args:
        of: The measure.
    """

    of: Measure

    @property
    def name(self) -> str:
        """The name of the measure."""
        return self.of.name

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings of the measure, and that the first token is left out."""
        return {**self.of.settings, "first_token": "exclude"}

    def of_corpus(self, tokens: Tokens, corpus: Corpus) -> Callable[[Batch], Accumulator]:
        """Return what makes an accumulator for each batch."""
        return without_first(self.of.of_corpus(tokens, corpus))


def without_first(begin: Callable[[Batch], Accumulator]) -> Callable[[Batch], Accumulator]:
    """Return what makes accumulators that see no first tokens."""
    return lambda batch: _WithoutFirst(begin(batch.without_first))


@dataclass(frozen=True)
class _WithoutFirst:
    inner: Accumulator

    def add(self, attention: Attention) -> None:
        self.inner.add(attention.without_first)

    def kept(self) -> Kept:
        return self.inner.kept()
