"""Labels and positions permuted within each sentence."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

_Label = TypeVar("_Label", np.int32, np.int64)


def permute_within_sentences(
    labels: NDArray[_Label], sentences: NDArray[np.int32], input_ids: NDArray[np.int32], n_draws: int, seed: int
) -> NDArray[_Label]:
    """Return draws of the labels in which each sentence's labels are permuted among its tokens.

    Such labels tell a sentence's length and topic, but not where a token is. The permutation of a sentence depends on
    its tokens and the seed, but not on the sentence's index in the corpus.

    Args:
        labels: Class of each token, shape (n_tokens,); tokens labelled -1 take no part and keep -1.
        sentences: Sentence of each token, ascending, shape (n_tokens,).
        input_ids: Token ids, shape (n_tokens,).
        n_draws: Number of draws.
        seed: Seed of all draws.

    Returns:
        Shape (n_draws, n_tokens), with the dtype of the labels.
    """
    examples = np.flatnonzero(labels >= 0)
    keys, here = _token_keys(sentences, input_ids)[examples], sentences[examples]
    salts = np.random.default_rng(seed).integers(2**64, size=n_draws, dtype=np.uint64)
    draws = np.repeat(labels[None], n_draws, axis=0)
    for draw, salt in zip(draws, salts, strict=True):
        order = np.lexsort((mix(keys + salt), here))
        draw[examples] = labels[examples[order]]
    return draws


def _token_keys(sentences: NDArray[np.int32], input_ids: NDArray[np.int32]) -> NDArray[np.uint64]:
    """Return a number for each token, computed from its sentence's tokens and its index among them."""
    _, first, sentence = np.unique(sentences, return_index=True, return_inverse=True)
    indices = mix((np.arange(len(sentences)) - first[sentence]).astype(np.uint64))
    of_sentence = np.zeros(len(first), dtype=np.uint64)
    np.add.at(of_sentence, sentence, mix(indices + input_ids.astype(np.uint64)))
    return of_sentence[sentence] + indices


def mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scatter integers over 64 bits (the finaliser of SplitMix64; Steele, Lea & Flood 2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
