"""Uninformative labels: each word type gets the labels of another type with a similar frequency."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from probing.cache.tokens import Tokens
from probing.statistics.permutation import mix

_Label = TypeVar("_Label", np.int32, np.int64)

# Fewest word types in a group that exchanges labels; groups consist of types as similar in frequency as possible.
LEAST_TYPES = 10


def permute_among_types(labels: NDArray[_Label], types: NDArray[np.uint64], n_draws: int, seed: int) -> NDArray[_Label]:
    """Return draws of the labels in which the tokens of each word type have the labels of another type.

    A label then depends on the word type as much as before, but carries no information about the word or about the
    token's position. If the labels themselves are random, drawn for each token or for each word type (Hewitt & Liang
    2019), they have the same distribution as these draws, and so has every statistic of them.

    Types exchange labels with types of similar frequency (see `_like_frequency`). If two types are not equally
    frequent, the labels of the rarer one are repeated for all tokens of the other.

    Args:
        labels: Class of each token, shape (n_tokens,).
        types: Word type of each token, shape (n_tokens,).
        n_draws: Number of draws.
        seed: Seed of all draws.

    Returns:
        Shape (n_draws, n_tokens), with the dtype of the labels.
    """
    _, of_token, counts = np.unique(types, return_inverse=True, return_counts=True)
    ends, groups = np.cumsum(counts), _like_frequency(counts)
    in_groups = np.argsort(groups, kind="stable")
    draws = np.empty((n_draws, len(labels)), dtype=labels.dtype)
    for draw, row in enumerate(draws):
        generator = np.random.default_rng([seed, draw])
        tokens = np.lexsort((generator.random(len(labels)), of_token))  # sorted by type, in random order within a type
        source = np.empty(len(counts), dtype=np.intp)
        source[in_groups] = np.lexsort((generator.random(len(counts)), groups))
        of_own = of_token[tokens]
        index = np.arange(len(tokens)) - (ends - counts)[of_own]
        of_source = source[of_own]
        row[tokens] = labels[tokens[(ends - counts)[of_source] + index % counts[of_source]]]
    return draws


def _like_frequency(counts: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the index of each type's group, from the most frequent types to the rarest.

    Types with the same count are in the same group, and neighbouring counts are merged until a group has `LEAST_TYPES`
    types. Rare types, of which there are many, therefore exchange labels with types of exactly the same count.
    """
    _, of_type, sizes = np.unique(-counts, return_inverse=True, return_counts=True)
    group_of_count, group, members, left = np.zeros(len(sizes), dtype=np.intp), 0, 0, len(counts)
    for i, size in enumerate(sizes):
        if members >= LEAST_TYPES and left >= LEAST_TYPES:
            group, members = group + 1, 0
        group_of_count[i], members, left = group, members + size, left - size
    return group_of_count[of_type]


def token_types(tokens: Tokens) -> NDArray[np.uint64]:
    """Return a number for each token's type, computed from the pieces of its word and the token's index among them.

    Words that the tokenizer maps to the same pieces are one type. A special token is a word of its own.

    Args:
        tokens: The table of tokens.

    Returns:
        Shape (n_tokens,); the same type has the same number in every table.
    """
    begins = tokens.first_pieces | tokens.special
    first, word = np.flatnonzero(begins), begins.cumsum() - 1
    indices = mix((np.arange(tokens.n_tokens) - first[word]).astype(np.uint64))
    of_word = np.add.reduceat(mix(indices + tokens.input_ids.astype(np.uint64)), first)
    return of_word[word] + indices
