"""What baselines of pairs read: the mean static vectors of both sentences with their differences, or of the second."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from probing.cache.store import Plan, Shard
from probing.cache.tokens import SET_ASIDE, Tokens
from probing.data.controls import TokenRows
from probing.data.examples import Activations, SentenceVectors, Sides
from probing.models.residual_stream import word_table
from probing.studies.finetune.examples import TokenTable


class PairVectors:
    """Behaves like a store with one token for each pair: [u, v, |u - v|, u * v] of its sentences' vectors u and v.

    Args:
        first: The vectors of first sentences.
        second: Those of second sentences.
    """

    def __init__(self, first: SentenceVectors, second: SentenceVectors) -> None:
        self.first, self.second = first, second
        self.tokens: Tokens = first.tokens
        self.plan: Plan = replace(first.plan, d_model=4 * first.plan.d_model)

    def shard_tokens(self, shard: Shard) -> slice:
        """Return the shard's rows of the table of tokens."""
        return self.first.shard_tokens(shard)

    def read(self, layer: int, shard: int) -> Tensor:
        """Return the features of a shard's pairs, shape (n_pairs, 4 * d_embedding), float32."""
        u, v = self.first.read(layer, shard), self.second.read(layer, shard)
        return torch.cat([u, v, (u - v).abs(), u * v], dim=1)


def static_pairs(sides: Sides, encoder: nn.Module, second_alone: bool) -> Sides:
    """Return the sides with static vectors of their pairs as activations, from the model's input embeddings.

    Args:
        sides: The sides; each pair has one vector.
        encoder: The model.
        second_alone: Whether to give the mean of the second sentence alone, and not the features of `PairVectors`.
    """
    words: nn.Embedding = word_table(encoder)  # type: ignore[assignment]
    table = words.weight.detach().float()
    made: dict[int, Activations] = {}

    def vectors(store: SentenceVectors, segment: int) -> SentenceVectors:
        own = of_sentence(store.base.tokens, segment)
        return SentenceVectors(TokenRows(TokenTable(own), table), "mean")

    def of_pairs(store: Activations) -> Activations:
        assert isinstance(store, SentenceVectors)
        if id(store) not in made:
            second = vectors(store, 1)
            made[id(store)] = second if second_alone else PairVectors(vectors(store, 0), second)
        return made[id(store)]

    return sides.each(lambda examples: replace(examples, store=of_pairs(examples.store)))


def of_sentence(tokens: Tokens, segment: int) -> Tokens:
    """Return the table with the tokens of the other sentence of each pair set aside.

    Args:
        tokens: The table of tokens of pairs.
        segment: 0 for the first sentence, 1 for the second.
    """
    assert tokens.segments is not None
    return replace(tokens, words=np.where(tokens.segments == segment, tokens.words, SET_ASIDE).astype(np.int16))
