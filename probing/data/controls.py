"""Examples of the controls: other labels, permuted or uninformative, or other activations for the same labels."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from probing.cache.source import ActivationSource
from probing.cache.store import ActivationStore, Plan, Shard
from probing.cache.tokens import Tokens
from probing.corpus import Corpus
from probing.data.examples import (
    Activations,
    Examples,
    SentenceVectors,
    Sides,
    exchanged,
    permuted_within,
    pool_words,
    type_keys,
    word_keys,
)
from probing.models import load_encoder, load_tokenizer, word_folding
from probing.models.residual_stream import word_table
from probing.results.schema import count
from probing.runtime.progress import note, stage
from probing.statistics.chance import mix, permute_within_sentences
from probing.statistics.label_scores import LabelCodes

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
    indices = np.arange(tokens.n_tokens)
    of_word = indices - np.maximum.accumulate(np.where(tokens.first_pieces | tokens.special, indices, 0))
    return word_keys(tokens) + mix(of_word.astype(np.uint64))


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
    main = _types(sides.train.store.tokens, corpora[0], fold, sides.of_words)
    last = main if len(corpora) == 1 else _types(sides.test.store.tokens, corpora[-1], fold, sides.of_words)

    def labelled(examples: Examples, draw: int) -> Examples:
        types, of_token = last if examples is sides.test else main
        salted = (hashlib.sha256(f"{seed}\0{draw}\0{word}".encode()).digest() for word in types)
        uniform = [int.from_bytes(digest[:7]) / 2**56 for digest in salted]
        drawn = np.searchsorted(below, uniform, side="right").clip(max=len(below) - 1)[of_token]
        return replace(examples, labels=np.where(examples.labels >= 0, drawn, -1).astype(np.int32))

    return [sides.each(partial(labelled, draw=draw)) for draw in range(n_draws)]


def _types(
    tokens: Tokens, corpus: Corpus, fold: Callable[[str], str], of_words: bool
) -> tuple[list[str], NDArray[np.intp]]:
    """Return the word types and the index of each token's type; without a word list, those of `type_keys`.

    Words that are folded to the same type are several entries with the same name.
    """
    words = corpus.words
    if words is None:
        keys, of_token = np.unique(type_keys(tokens, of_words), return_inverse=True)
        return [str(key) for key in keys], of_token
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


# Fewest training examples of a word of several pieces that has a vector of its own, as one of a single piece has.
LEAST_OF_WORD = 5


class WordRows(TokenRows):
    """Behaves like a store with a single layer, in which every piece of a word has the same vector: that of the word.

    It is the mean of its pieces' rows, which a linear probe reads as a sum over the pieces, on words that training
    lacks, too. What pieces mean together is no such sum, so that frequent words of several have random vectors added.

    Args:
        store: The store whose tokens are used.
        table: Input embedding, shape (n_vocabulary, d_embedding).
        frequent: The keys of such words, ascending, shape (n_frequent,); see `word_keys`.
    """

    def __init__(self, store: Activations, table: Tensor, frequent: NDArray[np.uint64]) -> None:
        super().__init__(store, table)
        drawn = [np.random.default_rng(key).standard_normal(table.shape[1]) for key in frequent.tolist()]
        none = torch.zeros(1, table.shape[1])
        self.added = torch.cat([none, torch.from_numpy(np.array(drawn)).float() * table.std(0)] if drawn else [none])
        keys, index = word_keys(self.tokens), np.zeros(self.tokens.n_tokens, dtype=np.int64)
        known = np.isin(keys, frequent)
        index[known] = np.searchsorted(frequent, keys[known]) + 1
        self.index_of_added = index

    def read(self, layer: int, shard: int) -> Tensor:
        """Return the vectors of a shard's tokens, shape (n, d_embedding)."""
        rows, embeddings = self.shard_tokens(self.plan.shards[shard]), super().read(layer, shard)
        words = self.tokens.words[rows]
        (means,) = pool_words([embeddings], words, self.tokens.sentences[rows]).hidden_states
        embeddings[torch.from_numpy(words >= 0)] = means[self.tokens.first_pieces[rows].cumsum()[words >= 0] - 1]
        return embeddings + self.added[torch.from_numpy(self.index_of_added[rows])]


def _frequent_words(train: Examples) -> NDArray[np.uint64]:
    """Return the keys of the words of several pieces that have `LEAST_OF_WORD` training examples, ascending."""
    tokens = train.store.tokens
    several = (train.labels >= 0) & ~(tokens.first_pieces & tokens.last_pieces)
    keys, counts = np.unique(word_keys(tokens)[several], return_counts=True)
    return keys[counts >= LEAST_OF_WORD]


def token_identity(sides: Sides, encoder: nn.Module) -> Sides:
    """Return the sides with each token's input embedding as its activations; of words, those of `WordRows`.

    Where examples are sentences, the embeddings are pooled; by their mean where the model's vectors are those of the
    first token, whose embedding is the same in every sentence.
    """
    words: Any = word_table(encoder)
    table = words.weight.detach().float()
    frequent = _frequent_words(sides.train) if sides.of_words else None

    def rows(base: Activations) -> Activations:
        return TokenRows(base, table) if frequent is None else WordRows(base, table, frequent)

    def embedded(examples: Examples) -> Examples:
        store = exchanged(examples.store, rows)
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


# What a model is told where it reads the corpora once more for a control, by the control.
READ_AGAIN: Mapping[str, str] = {"permuted_positions": "permuted_tokens_seed", "untrained": "random_weights_seed"}

# How the examples of the other controls are made, from those of the task; each list has a draw of the control.
_Make = Callable[[Sides, Sequence[Corpus], ActivationSource, int], list[Sides]]
_MADE_FROM_THOSE: Mapping[str, _Make] = {
    "shuffled": lambda sides, corpora, source, seed: [shuffled(sides, seed)],
    "token": lambda sides, corpora, source, seed: [
        token_identity(sides, load_encoder(source.model, source.random_weights_seed))
    ],
    "control_task": lambda sides, corpora, source, seed: control_tasks(
        sides, corpora, word_folding(load_tokenizer(source.model)), seed
    ),
    "given": lambda sides, corpora, source, seed: [sides.each(partial(permuted_within, seed=seed))],
}


def source_of_control(name: str, source: ActivationSource, seed: int) -> ActivationSource | None:
    """Return the model as it reads the corpora for a control; None if no activations are needed, or can be.

    A model that is randomly initialised itself has no randomly initialised control.
    """
    told = READ_AGAIN.get(name)
    if told is None or (told == "random_weights_seed" and source.random_weights_seed is not None):
        return None
    reads: dict[str, Any] = {told: seed}
    return replace(source, **reads)


def control_sides(
    wanted: Sequence[str], sides: Sides, corpora: Sequence[Corpus], source: ActivationSource, seed: int
) -> dict[str, list[Sides]]:
    """Return the examples of each control that applies; missing activations are extracted.

    The control task has several draws of labels, every other control has one.
    """
    made: dict[str, list[Sides]] = {}
    again = {name: source_of_control(name, source, seed) for name in wanted if name in READ_AGAIN}
    read: dict[str, list[ActivationStore]] = {}
    if n := sum(other is not None for other in again.values()):
        with stage(f"hidden states for {count(n, 'control')}", n) as advance:
            for name, other in again.items():
                if other is not None:
                    note(name)
                    read[name] = other.read(corpora)
                    advance(1)
    for name in wanted:
        if name in read:
            made[name] = [with_activations(sides, read[name])]
        elif name in again:
            source.say(f"the control {name} is left out: the model itself is randomly initialised")
        else:
            made[name] = _MADE_FROM_THOSE[name](sides, corpora, source, seed)
    return made
