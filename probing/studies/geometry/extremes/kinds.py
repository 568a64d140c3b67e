"""Kinds of tokens, each token being of exactly one: special ones by their text, first ones, frequent ones, others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probing.cache.tokens import Tokens
from probing.corpus import Corpus
from probing.heads.subject import PUNCTUATION, types_of
from probing.studies.geometry.extremes.names import FIRST, OTHER

# Number of frequent texts that are kinds of their own.
FREQUENT = 10


@dataclass(frozen=True)
class Kinds:
    """The kind of each token.

    Args:
        names: Names of the kinds that occur.
        of_tokens: Index of each token's kind, shape (n_tokens,).
    """

    names: list[str]
    of_tokens: NDArray[np.int64]

    @classmethod
    def of(cls, names: NDArray[Any]) -> Kinds:
        """Number the kinds in the order of the text; the rest comes last.

        Args:
            names: The name of each token's kind, shape (n_tokens,), objects.
        """
        there = sorted(dict.fromkeys(names.tolist()), key=lambda name: name == OTHER)
        index = {name: i for i, name in enumerate(there)}
        return cls(there, np.array([index[name] for name in names.tolist()], dtype=np.int64))

    @property
    def counts(self) -> NDArray[np.int64]:
        """Number of tokens of each kind, shape (n_kinds,)."""
        return np.bincount(self.of_tokens, minlength=len(self.names))

    @property
    def members(self) -> dict[str, NDArray[np.bool_]]:
        """Whether each token is of each kind, by name, each of shape (n_tokens,)."""
        return {name: self.of_tokens == i for i, name in enumerate(self.names)}


def by_text(tokens: Tokens, tokenizer: Any) -> Kinds:
    """Tell tokens by their texts: special ones, first ones of a sentence, the most frequent ones, and the others."""
    texts = _texts(tokens, tokenizer)
    names = np.full(tokens.n_tokens, OTHER, dtype=object)
    inside = ~tokens.added & (tokens.positions > 0)
    frequent = {text for text, _ in Counter(texts[inside].tolist()).most_common(FREQUENT)}
    for text in frequent:
        names[inside & (texts == text)] = text
    return Kinds.of(_with_special(names, texts, tokens))


def as_sinks(tokens: Tokens, corpus: Corpus, tokenizer: Any) -> Kinds:
    """Tell tokens by what may draw attention: special ones, first ones of a sentence, punctuation, and the others."""
    names = np.full(tokens.n_tokens, OTHER, dtype=object)
    if (marks := types_of(tokens, corpus, {}).get(PUNCTUATION)) is not None:
        names[marks] = PUNCTUATION
    return Kinds.of(_with_special(names, _texts(tokens, tokenizer), tokens))


def _with_special(names: NDArray[Any], texts: NDArray[Any], tokens: Tokens) -> NDArray[Any]:
    """Return the names of kinds with those of special tokens by their text, and of first tokens that are not."""
    names[tokens.positions == 0] = FIRST
    return np.where(tokens.added, texts, names)


def _texts(tokens: Tokens, tokenizer: Any) -> NDArray[Any]:
    """Return the text of each token without blanks around it, shape (n_tokens,), objects."""
    ids, of_token = np.unique(tokens.input_ids, return_inverse=True)
    texts: Mapping[int, str] = {i: tokenizer.decode([i]) for i in ids.tolist()}
    return np.array([text.strip() or repr(text) for text in texts.values()], dtype=object)[of_token.reshape(-1)]
