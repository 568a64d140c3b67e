"""Examples for controls, on which the same probe is trained and tested for comparison."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from probing.cache.plan import Plan, Shard
from probing.cache.store import ActivationStore
from probing.cache.tokens import Tokens
from probing.corpus import Corpus
from probing.data.examples import Activations, Examples, Sides
from probing.data.sentences import SentenceVectors, exchanged
from probing.models.word_table import word_table
from probing.statistics.label_codes import LabelCodes
from probing.statistics.permutation import permute_within_sentences

# Number of draws of the control task's labels; a single draw may be easier or harder than most.
CONTROL_DRAWS = 5


def shuffled(sides: Sides, seed: int) -> Sides:
    """Return the sides with each sentence's labels permuted among its tokens.

    So far as labels differ between sentences and not within them, they are exchanged among the sentences of each side
    first; see `shuffled_labels`.
    """

    def permute(examples: Examples) -> Examples:
        if not examples.n_tokens:
            return examples
        codes = examples.codes(len(sides.classes))
        return replace(examples, labels=shuffled_labels(examples.labels, examples.store.tokens, codes, seed))

    return sides.each(permute)


def shuffled_labels(labels: NDArray[np.int32], tokens: Tokens, codes: LabelCodes, seed: int) -> NDArray[np.int32]:
    """Return labels permuted within sentences, and exchanged among these as far as they differ between them.

    Each sentence gets the labels of another with the probability of `LabelCodes.excess_between`. Where every sentence
    has one label only, all are exchanged; positions never are.

    Args:
        labels: Class of each token, shape (n_tokens,); -1 for tokens that are not examples, which keep it.
        tokens: The table of tokens.
        codes: The classes as vectors.
        seed: Seed of the draw.
    """
    labels = _exchanged(labels, tokens.sentences, codes, seed)
    (permuted,) = permute_within_sentences(labels, tokens.sentences, tokens.input_ids, 1, seed)
    return permuted


def _exchanged(
    labels: NDArray[np.int32], sentences: NDArray[np.int32], codes: LabelCodes, seed: int
) -> NDArray[np.int32]:
    """Return the labels with those of some sentences exchanged; of a longer sentence's labels, a random part."""
    kept, given_labels = np.flatnonzero(labels >= 0), labels
    between = codes.excess_between(labels, sentences) if len(kept) else 0.0
    if not between:
        return labels
    generator, labels = np.random.default_rng(seed), labels.copy()
    _, first, lengths = np.unique(sentences[kept], return_index=True, return_counts=True)
    moved = np.flatnonzero(generator.random(len(first)) < between)
    source, n = generator.permutation(moved), lengths[moved]
    in_random_order = kept[np.lexsort((generator.random(len(kept)), sentences[kept]))]
    index = np.arange(n.sum()) - np.repeat(np.cumsum(n) - n, n)
    given = np.repeat(first[source], n) + index % np.repeat(lengths[source], n)
    labels[kept[np.repeat(first[moved], n) + index]] = given_labels[in_random_order[given]]
    return labels


def control_tasks(
    sides: Sides, corpora: Sequence[Corpus], fold: Callable[[str], str], seed: int, n_draws: int = CONTROL_DRAWS
) -> list[Sides]:
    """Return draws of random labels for word types, with the label frequencies of training (Hewitt & Liang 2019).

    Test words that do not occur in training also have random labels, which no probe can predict.

    Args:
        sides: The sides with the true labels.
        corpora: The training corpus and, last, the test corpus.
        fold: Maps words that the model cannot tell apart to the same type.
        seed: Seed of all draws; a type's label depends only on the seed, the draw and the type.
        n_draws: Number of draws.
    """
    counts = sides.train.counts(len(sides.classes))
    below = np.cumsum(counts / counts.sum())
    main = _types(sides.train.store.tokens, corpora[0], fold)
    last = main if len(corpora) == 1 else _types(sides.test.store.tokens, corpora[-1], fold)

    def labelled(examples: Examples, draw: int) -> Examples:
        types, of_token = last if examples is sides.test else main
        salted = (hashlib.sha256(f"{seed}\0{draw}\0{word}".encode()).digest() for word in types)
        uniform = [int.from_bytes(digest[:7]) / 2**56 for digest in salted]
        drawn = np.searchsorted(below, uniform, side="right").clip(max=len(below) - 1)[of_token]
        return replace(examples, labels=np.where(examples.labels >= 0, drawn, -1).astype(np.int32))

    return [sides.each(partial(labelled, draw=draw)) for draw in range(n_draws)]


def _types(tokens: Tokens, corpus: Corpus, fold: Callable[[str], str]) -> tuple[list[str], NDArray[np.intp]]:
    """Return the word types and the index of each token's type; without a word list, token ids are the types.

    Words that are folded to the same type are several entries with the same name.
    """
    if corpus.words is None:
        ids, of_token = np.unique(tokens.input_ids, return_inverse=True)
        return [str(i) for i in ids], of_token
    words = corpus.words
    pairs = zip(tokens.sentences.tolist(), tokens.words.tolist(), strict=True)
    found, of_token = np.unique([words[i][word] if word >= 0 else "" for i, word in pairs], return_inverse=True)
    return [fold(str(word)) for word in found], of_token


class TokenRows:
    """Behaves like a store with a single layer, whose hidden states are rows of the input embedding.

    Args:
        store: The store whose tokens are used.
        table: Input embedding, shape (n_vocabulary, d_embedding).
    """

    def __init__(self, store: Activations, table: Tensor) -> None:
        self.tokens: Tokens = store.tokens
        self.plan: Plan = replace(store.plan, d_model=table.shape[1])
        self.table = table

    def shard_tokens(self, shard: Shard) -> slice:
        """Return the shard's rows of the table of tokens."""
        return self.tokens.of_sentences(shard.first_sentence, shard.n_sentences)

    def read(self, layer: int, shard: int) -> Tensor:
        """Return the embeddings of a shard's tokens, shape (n, d_embedding)."""
        rows = self.shard_tokens(self.plan.shards[shard])
        return self.table[torch.from_numpy(self.tokens.input_ids[rows].astype(np.int64))]


def token_identity(sides: Sides, encoder: nn.Module) -> Sides:
    """Return the sides with each token's input embedding as its activations.

    Where examples are sentences, the embeddings are pooled; by their mean where the model's vectors are those of the
    first token, whose embedding is the same in every sentence.
    """
    words: Any = word_table(encoder)
    table = words.weight.detach().float()

    def embedded(examples: Examples) -> Examples:
        store = exchanged(examples.store, lambda base: TokenRows(base, table))
        if isinstance(store, SentenceVectors) and store.pooling == "cls":
            store = SentenceVectors(store.base, "mean")
        return replace(examples, store=store)

    return sides.each(embedded)


def with_activations(sides: Sides, stores: Sequence[ActivationStore]) -> Sides:
    """Return the sides with other activations of the same tokens: for the training and, last, for the test side."""

    def exchange(examples: Examples) -> Examples:
        store = exchanged(examples.store, lambda base: stores[-1] if examples is sides.test else stores[0])
        if not np.array_equal(store.tokens.input_ids, examples.store.tokens.input_ids):
            raise ValueError("the activations belong to other tokens")
        return replace(examples, store=store)

    return sides.each(exchange)
