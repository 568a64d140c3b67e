"""What is surveyed, and what a part of a survey is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from probing.cache import Request, load, tokens_of
from probing.cache.tokens import Tokens
from probing.heads.accumulation import AttentionReader
from probing.heads.attended import types_of
from probing.heads.means import Sentences
from probing.heads.measures import Measure
from probing.heads.rows import Rows
from probing.heads.sums import SumsStore
from probing.models import load_tokenizer
from probing.models.attention_heads import Heads


@dataclass(frozen=True)
class Subject:
    """A model and the corpus that it reads.

    Args:
        request: Model and corpus.
        heads: The heads of the model.
        tokens: The corpus's table of tokens.
        special_tokens: The tokenizer's special tokens, id to text.
        layers: The layers to report.
        seed: Seed of the bootstrap.
    """

    request: Request
    heads: Heads
    tokens: Tokens
    special_tokens: Mapping[int, str]
    layers: Sequence[int]
    seed: int

    @classmethod
    def of(cls, request: Request, layers: Sequence[int], seed: int) -> Subject:
        """Load the model, find its heads, and tokenise the corpus.

        Raises:
            UserError: If the model cannot be loaded or has no attention weights.
        """
        tokenizer = load_tokenizer(request.source)
        encoder, pad_token_id = load(request)
        heads = AttentionReader.of(encoder, pad_token_id, request.source.name).heads
        special = dict(zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True))
        return cls(request, heads, tokens_of(request, tokenizer), special, layers, seed)

    @cached_property
    def types(self) -> dict[str, NDArray[np.bool_]]:
        """Which tokens are of each type that occurs, each of shape (n_tokens,)."""
        return types_of(self.tokens, self.request.corpus, self.special_tokens)

    @cached_property
    def special(self) -> NDArray[np.bool_]:
        """Which tokens count as special, shape (n_tokens,): in causal models, the first one too."""
        return self.tokens.special | (self.tokens.positions == 0) if self.heads.is_causal else self.tokens.special

    @cached_property
    def sentences(self) -> Sentences:
        """The draws of the sentences for all intervals."""
        return Sentences(self.tokens.n_sentences, self.seed)


@dataclass(frozen=True)
class Part:
    """A part of a survey.

    Args:
        name: Its name, as `--parts` takes it.
        needs: Returns what the part needs and the corpus lacks, as the end of a sentence; None if nothing is lacking.
        measures: Returns the measures to be summed.
        rows: Returns rows by the name of their table.
    """

    name: str
    needs: Callable[[Subject], str | None]
    measures: Callable[[Subject], Sequence[Measure]]
    rows: Callable[[Subject, Mapping[str, SumsStore]], Mapping[str, Rows]]


def nothing(subject: Subject) -> None:
    """Return what a part lacks that needs nothing of the corpus."""
    return
