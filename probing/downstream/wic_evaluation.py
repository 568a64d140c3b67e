"""The evaluation on WiC: cosines of a word's two vectors by layer and space, and how well they predict its senses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.cache import ActivationStore
from probing.cache.tokens import Tokens
from probing.downstream.pooling import cosines, has_pieces, unknown_words, word_vectors
from probing.downstream.spaces import Fitting, Text, fitted, outliers, token_moments
from probing.downstream.wic_dataset import WordPairs
from probing.downstream.words_in_context import Scored, by_layer, chosen
from probing.errors import UserError
from probing.statistics.sample_size import size_columns


def targets(pairs: WordPairs) -> NDArray[np.int64]:
    """Return sentence and word index of both words of every pair, consecutive for each pair, shape (2 n_pairs, 2)."""
    return np.stack([pairs.sentences.ravel(), pairs.targets.ravel()], axis=1)


def with_both_words(pairs: WordPairs, tokens: Tokens) -> WordPairs:
    """Return the pairs of which both words have a token."""
    first, second = has_pieces(tokens, targets(pairs)).reshape(-1, 2).T
    return pairs.pick(first & second)


def target_check(pairs: WordPairs) -> Callable[[Tokens], None]:
    """Return a check that raises a `UserError` if, after truncation, no pair has its word in both sentences."""

    def check(tokens: Tokens) -> None:
        if not with_both_words(pairs, tokens).n_pairs:
            raise UserError(
                f"`--max_length`: of {pairs.corpus.name}, no pair keeps its word in both sentences; allow more tokens."
            )

    return check


def scored_pairs(
    layers: Sequence[int],
    parts: Sequence[WordPairs],
    stores: Sequence[ActivationStore],
    fit_on: Sequence[Text],
    fitting: Fitting,
) -> list[Scored]:
    """Return the cosines of all pairs in each layer and space.

    Args:
        layers: Layer numbers.
        parts: The training part and the part that is reported on.
        stores: Stores of the activations of each part.
        fit_on: Texts that transforms are fitted on.
        fitting: The transforms and how they are fitted.
    """
    found = []
    for layer in layers:
        moments = token_moments(fit_on, layer)
        clipped = outliers(fit_on, layer, fitting.definition) if fitting.clips else []
        transforms = fitted(fitting, moments, clipped, layer)
        vectors = [_target_vectors(pairs, store, layer) for pairs, store in zip(parts, stores, strict=True)]
        for name, transform in transforms.items():
            train, reported = (cosines(transform(first), transform(second)) for first, second in vectors)
            found.append(Scored(layer, name, train, reported, transform.clipped))
    return found


def _target_vectors(pairs: WordPairs, store: ActivationStore, layer: int) -> tuple[Tensor, Tensor]:
    """Return the vectors of the first and of the second word of each pair, each of shape (n_pairs, d_model)."""
    wanted, index = np.unique(targets(pairs), axis=0, return_inverse=True)
    (vectors,) = word_vectors(store, [layer], wanted)
    first, second = torch.from_numpy(index.reshape(-1, 2)).T
    return vectors[first], vectors[second]


def target_cosines(pairs: WordPairs, store: ActivationStore, layer: int) -> NDArray[np.float64]:
    """Return the cosine of the word's two vectors in a layer, untransformed, for each pair, shape (n_pairs,)."""
    return cosines(*_target_vectors(pairs, store, layer))


def without_cut_words(
    parts: Mapping[str, WordPairs], stores: Sequence[ActivationStore], say: Callable[[str], None]
) -> dict[str, WordPairs]:
    """Return the pairs of each part whose words were not truncated, and report how many are left out."""
    kept = {}
    for (which, pairs), store in zip(parts.items(), stores, strict=True):
        kept[which] = with_both_words(pairs, store.tokens)
        if n_cut := pairs.n_pairs - kept[which].n_pairs:
            say(f"{which}: {n_cut} of {pairs.n_pairs} pairs are left out: their word was cut off")
    return kept


def unknown_pairs(
    parts: Mapping[str, WordPairs], stores: Sequence[ActivationStore], tokenizer: Any, say: Callable[[str], None]
) -> dict[str, int]:
    """Return how many pairs of each part have a word that the vocabulary does not know, and report them.

    Args:
        parts: The pairs of each part.
        stores: Stores of the activations of each part.
        tokenizer: The model's tokenizer.
        say: Function that takes one-line messages.
    """
    found = {}
    for (which, pairs), store in zip(parts.items(), stores, strict=True):
        unknown = unknown_words(store.tokens, tokenizer, targets(pairs)).reshape(-1, 2).any(axis=1)
        found[which] = int(unknown.sum())
        if found[which]:
            say(
                f"{which}: {found[which]} of {pairs.n_pairs} pairs have a word of which the model's vocabulary knows "
                "no piece; they count like the others"
            )
    return found


def evaluate(
    parts: Mapping[str, WordPairs],
    stores: Sequence[ActivationStore],
    fit_on: Text,
    layers: Sequence[int],
    fitting: Fitting,
    seed: int,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the rows of `wic.csv` and of `chosen.csv`.

    Args:
        parts: The training part and the part that is reported on, by name.
        stores: Stores of the activations of each part.
        fit_on: Text that transforms are fitted on.
        layers: Layer numbers.
        fitting: The transforms and how they are fitted.
        seed: Seed of the bootstraps.
    """
    train, test = parts.values()
    scored = scored_pairs(layers, [train, test], stores, [fit_on], fitting)
    rows = by_layer(scored, train.labels, test.labels, seed)
    picked = chosen(scored, rows, train.labels, test.labels, list(parts)[1], seed)
    n_vectors, n_sentences = int(fit_on.taken.sum()), int(fit_on.kept.sum())
    for row in (*rows, *picked):
        width = stores[0].plan.d_model
        row |= size_columns(row.get("transform", ""), n_vectors, n_sentences, width, fitting.components)
    return rows, picked
