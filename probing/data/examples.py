"""Labelled tokens: their side of the split, their class, and reading them shard by shard."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from probing.activations.store import MemoryCache, Shard, StorePlan
from probing.errors import UserError
from probing.results import Row
from probing.runtime.processes import rank_and_world_size
from probing.statistics.chance import mix
from probing.statistics.label_scores import LabelCodes, strata_with_several
from probing.text import Corpus
from probing.text.tasks import (
    Covariate,
    Labels,
    Pooling,
    SentenceTask,
    Span,
    SpanTask,
    TokenTask,
    has_label,
    labels_of,
    labels_words,
    rows_of_spans,
    sentences_of,
    unit_of,
)
from probing.text.tokens import Tokens, first_pieces

# --------------------------------------------------------------------------------------------------------------------
# Activations of words and of sentences: means over word pieces, pooled tokens, and words of two tokenizations.
# --------------------------------------------------------------------------------------------------------------------


def type_keys(tokens: Tokens, of_words: bool) -> NDArray[np.integer]:
    """Return an identifier of each token's type, equal across tables, shape (n_tokens,): its id, or a word's pieces."""
    return word_keys(tokens) if of_words else tokens.input_ids


def word_keys(tokens: Tokens) -> NDArray[np.uint64]:
    """Return a number for all pieces of each token's word (or special token), equal across tables, (n_tokens,)."""
    begins = tokens.first_pieces | tokens.special
    first, word = np.flatnonzero(begins), begins.cumsum() - 1
    indices = mix((np.arange(tokens.n_tokens) - first[word]).astype(np.uint64))
    keys: NDArray[np.uint64] = np.add.reduceat(mix(indices + tokens.input_ids.astype(np.uint64)), first)[word]
    return keys


class Words(NamedTuple):
    """The words of some sentences, with activations of each layer, shape (n_words, d_model), float32 or wider.

    Keys are the index of the sentence and of the word in it, ascending, shape (n_words, 2), int64.
    """

    keys: NDArray[np.int64]
    hidden_states: tuple[Tensor, ...]


def pool_words(hidden_states: Sequence[Tensor], words: NDArray[np.integer], sentences: NDArray[np.integer]) -> Words:
    """Return the mean over word pieces of each word's activations.

    Args:
        hidden_states: Hidden states of one or more layers, each of shape (n_tokens, d_model); they are not changed.
        words: Index of each token's word in its sentence, shape (n_tokens,); negative for special tokens, which are
            left out. The pieces of a word must be adjacent.
        sentences: Index of each token's sentence, ascending, shape (n_tokens,).
    """
    n_tokens = {len(words), len(sentences), *(len(states) for states in hidden_states)}
    if len(n_tokens) > 1:
        raise ValueError(f"hidden_states, words and sentences must agree in their number of tokens: {sorted(n_tokens)}")
    begins, pieces = first_pieces(words, sentences), np.flatnonzero(words >= 0)
    keys = np.stack([sentences[begins], words[begins]], axis=1).astype(np.int64)
    word = begins[pieces].cumsum() - 1
    at, into = torch.from_numpy(pieces), torch.from_numpy(word)
    size, first = into.bincount(minlength=len(keys)), torch.from_numpy(np.flatnonzero(begins))
    return Words(keys, tuple(_means(states, at, into, size, first) for states in hidden_states))


def common_words(keys_a: NDArray[np.int64], keys_b: NDArray[np.int64]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the rows of the common words, in the order of their keys; sentences may be cut at different words.

    Both tokenizers must have tokenised the same list of words (`is_split_into_words`). In running text each tokenizer
    divides words differently ("don't" is three for BERT, two for RoBERTa), and the same index means another word. If a
    sentence is cut within a word, that word is the mean of its remaining pieces.

    Keys are the index of the sentence and of the word, without repetition, shape (n, 2).
    """
    both, of_key = np.unique(np.concatenate([keys_a, keys_b]), axis=0, return_inverse=True)
    of_key = of_key.reshape(-1)
    rows = np.full((2, len(both)), -1, dtype=np.intp)
    rows[0, of_key[: len(keys_a)]] = np.arange(len(keys_a))
    rows[1, of_key[len(keys_a) :]] = np.arange(len(keys_b))
    rows_a, rows_b = rows[:, (rows >= 0).all(0)]
    return rows_a, rows_b


def _means(states: Tensor, pieces: Tensor, into: Tensor, size: Tensor, first: Tensor) -> Tensor:
    """Return the mean of each word's states, shape (n_words, d_model), float32 or wider.

    Most words have a single piece, whose state is copied; only the others are added up. `pieces` has the row and `into`
    the ascending word of each piece; `size` is the number of pieces and `first` the first row of each word.
    """
    # The cache may be in half precision; sums are in float32.
    wide = torch.promote_types(states.dtype, torch.float32)
    means = states.index_select(0, first).to(wide)
    if len(longer := (size > 1).nonzero().squeeze(1)):
        of_longer = (size > 1)[into]
        index = torch.searchsorted(longer, into[of_longer])
        added = states.index_select(0, pieces[of_longer]).to(wide)
        sums = added.new_zeros(len(longer), added.shape[1]).index_add_(0, index, added)
        means[longer] = sums / size[longer, None]
    return means


# Maximum size of the pooled vectors that are kept in memory; other vectors are pooled again in every pass.
KEPT_BYTES = 2**30

# Poolings of tasks, and that of sentence-transformers, which has the special tokens, too.
AnyPooling = Pooling | Literal["mean_special"]


def token_per_sentence(tokens: Tokens) -> Tokens:
    """Return a table with one token for each sentence, a word whose id is a hash of the sentence's tokens."""
    keys = np.zeros(tokens.n_sentences, dtype=np.uint64)
    places = tokens.positions.astype(np.uint64) << np.uint64(32)
    np.add.at(keys, tokens.sentences, mix(places + tokens.input_ids.astype(np.uint64)))
    ids = (mix(keys) >> np.uint64(33)).astype(np.int32)
    return Tokens(np.ones(len(ids), np.int32), ids, np.zeros(len(ids), np.int16), tokens.n_truncated)


class SentenceVectors:
    """Store with one token for each sentence, whose hidden state is pooled over the sentence's tokens.

    `mean` and `max` are over the tokens that are not special, `mean_special` over all; `cls` takes the first token.
    """

    def __init__(self, base: HiddenStateSource, pooling: AnyPooling) -> None:
        self.base, self.pooling = base, pooling
        self.tokens: Tokens = self._table(base.tokens)
        rows = {shard: shard.rows(self.tokens) for shard in base.plan.shards}
        shards = tuple(replace(shard, n_tokens=at.stop - at.start) for shard, at in rows.items())
        self.plan: StorePlan = replace(base.plan, shards=shards)
        self._cache = MemoryCache(KEPT_BYTES)

    def over(self, base: HiddenStateSource, pooling: AnyPooling | None = None) -> SentenceVectors:
        """Return the same examples pooled from other hidden states of the same tokens, perhaps in another way."""
        return SentenceVectors(base, pooling or self.pooling)

    def _table(self, tokens: Tokens) -> Tokens:
        return token_per_sentence(tokens)

    def _members(self, shard: Shard) -> list[tuple[Tensor, Tensor]]:
        """Return the rows of a shard's tokens that are pooled, and the ascending index in the shard of their vector.

        Vectors side by side have an entry each.
        """
        tokens, rows = self.base.tokens, shard.rows(self.base.tokens)
        is_taken = ~tokens.special[rows] if self.pooling != "mean_special" else np.ones(shard.n_tokens, dtype=bool)
        taken = torch.from_numpy(np.flatnonzero(is_taken))
        return [(taken, torch.from_numpy(tokens.sentences[rows].astype(np.int64) - shard.first_sentence)[taken])]

    def read(self, layer: int, shard: int) -> Tensor:
        """Return the vectors of a shard's sentences, shape (n_sentences_in_shard, d_model), float32."""
        return self._cache.get(layer, shard, self._pooled)

    def _pooled(self, layer: int, index: int) -> Tensor:
        shard, tokens = self.base.plan.shards[index], self.base.tokens
        shard_rows = shard.rows(self.base.tokens)
        states = self.base.read(layer, index)
        if self.pooling == "cls":
            first = tokens.offsets[shard.first_sentence : shard.first_sentence + shard.n_sentences] - shard_rows.start
            return states[torch.from_numpy(first)].float()
        n_vectors = self.plan.shards[index].n_tokens
        return torch.cat([self._over(states, *members, n_vectors) for members in self._members(shard)], 1)

    def _over(self, states: Tensor, taken: Tensor, vector: Tensor, n_vectors: int) -> Tensor:
        """Return the mean or the maximum over the tokens of each vector, shape (n_vectors, d_model)."""
        pooled = torch.zeros(n_vectors, states.shape[1])
        if self.pooling != "max":
            pooled.index_add_(0, vector, states[taken].float())
            return pooled / vector.bincount(minlength=len(pooled)).clamp(min=1)[:, None]
        # Tokens are in the order of sentences; torch's own reductions by index are in beta.
        vector_numbers, first_of = np.unique(vector.numpy(), return_index=True)
        if len(vector_numbers):
            pooled[torch.from_numpy(vector_numbers)] = torch.from_numpy(
                np.maximum.reduceat(states[taken].float().numpy(), first_of, axis=0)
            )
        return pooled


class SpanVectors(SentenceVectors):
    """Store with one token for each span of text, whose hidden state is pooled over the span's tokens.

    The hidden state of a pair of spans is that of the first and that of the second side by side, (2 d_model). The table
    of tokens has the characters of each (first) span, and as its id a hash of the tokens of the span or spans.
    """

    def __init__(self, base: HiddenStateSource, pooling: AnyPooling, spans: Sequence[Span], n_spans: int = 1) -> None:
        self.spans, self.n_spans = spans, n_spans
        self.rows = [rows_of_spans(spans, base.tokens, bool(i)) for i in range(n_spans)]
        super().__init__(base, pooling)
        self.plan = replace(self.plan, d_model=n_spans * base.plan.d_model)

    def over(self, base: HiddenStateSource, pooling: AnyPooling | None = None) -> SpanVectors:
        """Return the same spans pooled from other hidden states of the same tokens, perhaps in another way."""
        return SpanVectors(base, pooling or self.pooling, self.spans, self.n_spans)

    @property
    def has_tokens(self) -> NDArray[np.bool_]:
        """Whether each span, or both of a pair, have tokens, shape (n_spans,)."""
        return np.all([rows[:, 1] < rows[:, 2] for rows in self.rows], axis=0)

    def characters(self, row: int, neuron: int) -> tuple[int, int]:
        """Return the first character and the one after the last of the span that a neuron is of."""
        span = self.spans[row]
        return span[1:3] if span.second is None or neuron < self.base.plan.d_model else span.second

    def _table(self, tokens: Tokens) -> Tokens:
        sentences = self.rows[0][:, 0]
        keys = np.zeros(len(sentences), dtype=np.uint64)
        for i, (_, first, after) in enumerate(rows.T for rows in self.rows):
            member, span = _ranges(first, after)
            places = ((member - first[span]).astype(np.uint64) << np.uint64(32)) + np.uint64(i << 31)
            np.add.at(keys, span, mix(places + tokens.input_ids[member].astype(np.uint64)))
        lengths = np.bincount(sentences, minlength=tokens.n_sentences).astype(np.int32)
        words = np.arange(len(sentences)) - (np.cumsum(lengths) - lengths)[sentences]
        return Tokens(
            lengths, (mix(keys) >> np.uint64(33)).astype(np.int32), words.astype(np.int16), tokens.n_truncated,
            np.array([span[1:3] for span in self.spans], dtype=np.int32).reshape(-1, 2),
        )  # fmt: skip

    def _members(self, shard: Shard) -> list[tuple[Tensor, Tensor]]:
        start = shard.rows(self.base.tokens).start
        ranges = [_ranges(*rows[shard.rows(self.tokens), 1:].T) for rows in self.rows]
        return [(torch.from_numpy(member - start), torch.from_numpy(span)) for member, span in ranges]


def _ranges(first: NDArray[np.int64], after: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows of ranges, one range after another, and the range of each row."""
    sizes = after - first
    span = np.repeat(np.arange(len(sizes)), sizes)
    return np.arange(len(span)) - np.repeat(np.cumsum(sizes) - sizes - first, sizes), span


def pooled(store: HiddenStateSource, task: SentenceTask, corpus: Corpus) -> SentenceVectors:
    """Return the vectors that a task of sentences or of spans labels."""
    if isinstance(task, SpanTask):
        return SpanVectors(store, task.pooling, task.spans_of(corpus), task.n_spans)
    return SentenceVectors(store, task.pooling)


def span_vectors(store: HiddenStateSource) -> SpanVectors | None:
    """Return the vectors of spans that a store reads, perhaps transformed; None if its examples are no spans."""
    while (inner := getattr(store, "store", None)) is not None:
        store = inner
    return store if isinstance(store, SpanVectors) else None


def n_spans(store: HiddenStateSource) -> int:
    """Return the number of vectors side by side in an example: two of a pair of spans, otherwise one."""
    return 1 if (vectors := span_vectors(store)) is None else vectors.n_spans


def exchanged(store: HiddenStateSource, change: Callable[[HiddenStateSource], HiddenStateSource]) -> HiddenStateSource:
    """Replace the activations of a store; if the store pools sentences, replace the activations that it pools."""
    return store.over(change(store.base)) if isinstance(store, SentenceVectors) else change(store)


def sum_over_spans(values: Tensor, store: HiddenStateSource) -> Tensor:
    """Return values of each column, shape (..., n_spans d_model), added up by neuron, (..., d_model)."""
    return values if (n := n_spans(store)) == 1 else values.unflatten(-1, (n, -1)).sum(-2)


def with_spans(rows: Iterable[Row], sides: Sides) -> list[dict[str, Any]]:
    """Return rows of neurons; of pairs of spans, with the span of each neuron and its index in the layer."""
    n, width = n_spans(sides.train.store), sides.train.store.plan.d_model
    named = [dict(row) for row in rows]
    for row in named if n > 1 else ():
        span, row["span_neuron"] = divmod(row["neuron"], width // n)
        row["span"] = 1 + span
    return named


# Bytes of hidden states to copy at a time, all layers together. Copies of this size reuse the memory of the previous
# one and need no new pages.
BLOCK_BYTES = 32 * 2**20


class Batch(NamedTuple):
    """Examples, or all rows of one shard.

    Args:
        hidden_states: Hidden states of each requested layer, shape (n, d_model).
        labels: Class of each row, shape (n,); -1 for rows that are not examples, which only `open_shard` returns.
        sentences: Index of each row's sentence, shape (n,).
        rows: Index of each row's token in the store, shape (n,); for a word, the index of its first piece.
    """

    hidden_states: tuple[Tensor, ...]
    labels: Tensor
    sentences: Tensor
    rows: Tensor

    def pick(self, rows: Tensor) -> Batch:
        """Return the batch with these rows only."""
        # `index_select` copies rows whole, several times as fast as indexing.
        states = tuple(h.index_select(0, rows) for h in self.hidden_states)
        return Batch(states, self.labels[rows], self.sentences[rows], self.rows[rows])

    def part(self, start: int, stop: int) -> Batch:
        """Return the batch with the rows from `start` to before `stop`, without copying them."""
        states = tuple(h[start:stop] for h in self.hidden_states)
        return Batch(states, self.labels[start:stop], self.sentences[start:stop], self.rows[start:stop])


def as_batch(batch: Any) -> Batch:
    """Return a batch, also of a pair (hidden_states, labels), in which every row is an example.

    The hidden states have shape (n, d_model), or there is such a tensor for each layer; labels are classes, shape (n,).
    """
    if isinstance(batch, Batch):
        return batch
    if not isinstance(batch, Sequence) or len(batch) != 2:
        raise ValueError("expected batches of `ActivationDataModule`, or pairs (hidden_states, labels)")
    states, labels = batch
    rows = torch.arange(len(labels), device=labels.device)
    return Batch((states,) if isinstance(states, Tensor) else tuple(states), labels, rows, rows)


def as_batches(batch: Any) -> Sequence[Batch]:
    """Return the batches of one step: several of `ShardGroups`, or a single batch as `as_batch` takes it."""
    if isinstance(batch, list | tuple) and batch and all(isinstance(part, Batch) for part in batch):
        return batch
    return [as_batch(batch)]


class HiddenStateSource(Protocol):
    """A source of hidden states, read shard by shard: a store, or an object with the same interface."""

    @property
    def plan(self) -> StorePlan:
        """The division into shards, and the width."""
        ...

    @property
    def tokens(self) -> Tokens:
        """The table of tokens."""
        ...

    def read(self, layer: int, shard: int, /) -> Tensor:
        """Return the hidden states of a shard, shape (n, d_model)."""
        ...


def n_constants(store: HiddenStateSource) -> int:
    """Return the number of last neurons of a store that are constants by design, which count as live."""
    return int(getattr(store, "n_constants", 0))


@dataclass(frozen=True)
class Examples:
    """The tokens of a store that belong to one side of the split, with their classes.

    Args:
        labels: Class of each token, shape (n_tokens,); -1 for tokens of another side or without a class.
        n_dropped: Number of tokens of this side whose label is not a class.
        word_means: Whether a word's activations are the mean over its pieces; its label is then at the first piece.
        documents: Index of the document of each sentence of the corpus, ascending, shape (n_sentences,), if documents
            are independent; None if sentences are.
        unit: Name of a sentence: activations from arrays have groups or rows instead.
        pooling: Pooling of tokens where examples are sentences or spans; the store then has one token for each of
            them. None where examples are tokens.
        values: The number of each label, ascending, where numbers are predicted; None where labels are classes.
        n_unlabelled: Number of tokens of this side that have no label, without special tokens.
        n_special: Number of special tokens of this side that are no examples.
        covariate: Number of each token's value of the covariate, -1 if missing, shape (n_tokens,); None without a
            covariate.
        of_words: Whether examples are words, so that all pieces of a word identify it, whichever is read.
    """

    store: HiddenStateSource
    labels: NDArray[np.int32]
    n_dropped: int = 0
    word_means: bool = False
    documents: NDArray[np.int64] | None = None
    unit: str = "sentence"
    pooling: Pooling | None = None
    values: NDArray[np.float64] | None = None
    n_unlabelled: int = 0
    n_special: int = 0
    covariate: NDArray[np.int64] | None = None
    of_words: bool = False

    @property
    def targets(self) -> NDArray[np.float64]:
        """The number of each example, shape (n_examples,), where numbers are predicted."""
        assert self.values is not None
        return self.values[self.labels[self.labels >= 0]]

    @property
    def n_tokens(self) -> int:
        """Number of examples."""
        return int((self.labels >= 0).sum())

    def reads_as(self, other: Examples) -> bool:
        """Return whether other examples are the same rows of the same activations, whatever their classes are."""
        is_same = self.store is other.store and self.word_means == other.word_means and self.pooling == other.pooling
        return is_same and np.array_equal(self.labels >= 0, other.labels >= 0)

    def counts(self, n_classes: int) -> NDArray[np.int64]:
        """Return the number of examples of each class, shape (n_classes,)."""
        return np.bincount(self.labels[self.labels >= 0], minlength=n_classes)

    def codes(self, n_classes: int) -> LabelCodes:
        """Return the labels as vectors, for comparison with the examples' neurons."""
        if self.values is None:
            return LabelCodes.of_classes(torch.from_numpy(self.counts(n_classes)))
        mean, sd = self.targets.mean(), self.targets.std()
        return LabelCodes.of_numbers(torch.from_numpy((self.values - mean) / (sd or 1.0)), self.n_tokens)

    def tokens_by_sentence(self) -> NDArray[np.int64]:
        """Return the number of examples of each sentence of the corpus, 0 on other sides, shape (n_sentences,)."""
        tokens = self.store.tokens
        return np.bincount(tokens.sentences[self.labels >= 0], minlength=tokens.n_sentences)

    def cluster_of_sentence(self) -> NDArray[np.int64]:
        """Return the sentence itself, or its document if intervals are over documents, shape (n_sentences,)."""
        return np.arange(self.store.tokens.n_sentences) if self.documents is None else self.documents

    def clusters(self, sums: NDArray[Any]) -> NDArray[Any]:
        """Return sums by sentence unchanged, or added up by document if intervals are over documents."""
        return sums if self.documents is None else np.bincount(self.documents, weights=sums)

    def sentences(self) -> NDArray[np.int32]:
        """Return the sentences with at least one example, ascending."""
        return np.unique(self.store.tokens.sentences[self.labels >= 0])


@dataclass(frozen=True)
class Sides:
    """The three sides of the split, and their classes.

    Args:
        train: Examples that probes are trained on.
        validation: Examples for the choice of the penalty and the early stopping of Adam.
        test: Examples that probes are tested on, possibly from another store.
        classes: The label of each class; none where numbers are predicted.
        ordinal: Whether labels are numbers.
    """

    train: Examples
    validation: Examples
    test: Examples
    classes: Labels
    ordinal: bool

    @property
    def numbers(self) -> bool:
        """Whether numbers are predicted, and not classes."""
        return self.train.values is not None

    @property
    def of_words(self) -> bool:
        """Whether examples are words on every side."""
        return self.train.of_words and self.validation.of_words and self.test.of_words

    def each(self, change: Callable[[Examples], Examples]) -> Sides:
        """Return the sides with their examples changed."""
        return replace(self, train=change(self.train), validation=change(self.validation), test=change(self.test))


class ShardDataset(Dataset[Batch]):
    """Batches of one shard each, in order; after the last shard, empty batches.

    With several ranks, each reads every `world_size`-th shard. All ranks have equally many batches, because some
    strategies synchronise at every step. `read` is `read_shard` for the examples of a shard, or `open_shard` for all
    its rows without copying them.
    """

    def __init__(
        self,
        examples: Examples,
        layers: Sequence[int],
        rank: int = 0,
        world_size: int = 1,
        read: Callable[[Examples, Sequence[int], int], Batch] | None = None,
    ) -> None:
        self.examples, self.layers, self.read = examples, layers, read or read_shard
        n_shards = len(examples.store.plan.shards)
        self.shards = range(rank, n_shards, world_size)
        self.length = -(-n_shards // world_size)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Batch:
        if not 0 <= index < self.length:
            raise IndexError(index)
        if index >= len(self.shards):
            none = torch.empty(0, dtype=torch.int64)
            states = tuple(torch.empty(0, self.examples.store.plan.d_model) for _ in self.layers)
            return Batch(states, none, none, none)
        return self.read(self.examples, self.layers, self.shards[index])


# Number of shards in a step of a full pass. What Lightning does for a step took 1.1 ms, and a pass over a shard of one
# layer 3 ms. With more shards in a step, an interrupt would wait.
SHARDS_IN_A_STEP = 8


class ShardGroups(Dataset[Sequence[Batch]]):
    """Groups of batches, for memory-mapped batches that take no memory: a step processes them one by one."""

    def __init__(self, batches: ShardDataset) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return -(-len(self.batches) // SHARDS_IN_A_STEP)

    def __getitem__(self, index: int) -> Sequence[Batch]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        first = index * SHARDS_IN_A_STEP
        return [self.batches[i] for i in range(first, min(first + SHARDS_IN_A_STEP, len(self.batches)))]


def open_shard(examples: Examples, layers: Sequence[int], shard: int) -> Batch:
    """Return all rows of one shard, with the label -1 for other than examples; memory-mapped where possible."""
    store, tokens = examples.store, examples.store.tokens
    shard_rows = store.plan.shards[shard].rows(store.tokens)
    rows = np.arange(shard_rows.start, shard_rows.stop)
    states = tuple(store.read(layer, shard) for layer in layers)
    if examples.word_means:
        states = pool_words(states, tokens.words[shard_rows], tokens.sentences[shard_rows]).hidden_states
        rows = rows[tokens.first_pieces[shard_rows]]
    labels = torch.from_numpy(examples.labels[rows].astype(np.int64))
    sentences = torch.from_numpy(tokens.sentences[rows].astype(np.int64))
    return Batch(states, labels, sentences, torch.from_numpy(rows))


def read_shard(examples: Examples, layers: Sequence[int], shard: int) -> Batch:
    """Read only the examples of one shard, in float32."""
    batch = open_shard(examples, layers, shard)
    return _copy(batch, _examples(batch))


def blocks(batch: Batch, dtype: torch.dtype = torch.float32) -> Iterator[Batch]:
    """Yield only the examples of a batch, in order and in a dtype, in blocks of about `BLOCK_BYTES`."""
    width = sum(states.shape[1] for states in batch.hidden_states)
    n = max(BLOCK_BYTES // (4 * width), 1)
    return (_copy(batch, rows, dtype) for rows in _examples(batch).split(n))


def _examples(batch: Batch) -> Tensor:
    return (batch.labels >= 0).nonzero().squeeze(1)


def _copy(batch: Batch, rows: Tensor, dtype: torch.dtype = torch.float32) -> Batch:
    batch = batch.pick(rows)
    return batch._replace(hidden_states=tuple(h.to(dtype) for h in batch.hidden_states))


def read(examples: Examples, layers: Sequence[int]) -> Iterator[Batch]:
    """Yield all examples once, in order, in blocks of at most one shard."""
    return _read(examples, layers, examples.store.plan.shards)


def read_share(examples: Examples, layers: Sequence[int]) -> Iterator[Batch]:
    """Yield the examples of this rank's shards, for sums that are then all-reduced."""
    rank, n_ranks = rank_and_world_size()
    return _read(examples, layers, examples.store.plan.shards[rank::n_ranks])


def _read(examples: Examples, layers: Sequence[int], shards: Sequence[Shard]) -> Iterator[Batch]:
    for shard in shards:
        yield from blocks(open_shard(examples, layers, shard.index))


def read_clusters(examples: Examples, layers: Sequence[int]) -> Iterator[tuple[Batch, Tensor]]:
    """Yield this rank's share of the examples in batches that divide no cluster, and the cluster of each example.

    Clusters are sentences, or documents if intervals are over these. The shard of its beginning assigns it to a rank.
    """
    shards, rank, n_ranks = examples.store.plan.shards, *rank_and_world_size()
    of_sentence = torch.from_numpy(examples.cluster_of_sentence())
    begins = torch.searchsorted(
        torch.tensor([shard.first_sentence for shard in shards]), _first_sentences(of_sentence), right=True
    ).sub_(1)

    def of_shard(first_shard: int) -> Iterator[Batch]:
        for shard in shards[first_shard:]:
            first_shards = begins[shard.first_sentence : shard.first_sentence + shard.n_sentences]
            if not (first_shards == first_shard).any():
                return
            batch = open_shard(examples, layers, shard.index)
            yield from blocks(batch._replace(labels=batch.labels.where(begins[batch.sentences] == first_shard, -1)))

    for rank_shard in range(rank, len(shards), n_ranks):
        for batch in whole_clusters(of_shard(rank_shard), of_sentence):
            yield batch, of_sentence[batch.sentences]


def _first_sentences(of_sentence: Tensor) -> Tensor:
    """Return the first sentence of each sentence's cluster, given ascending clusters."""
    _, cluster, lengths = of_sentence.unique_consecutive(return_inverse=True, return_counts=True)
    return (lengths.cumsum(0) - lengths)[cluster]


def whole_clusters(batches: Iterable[Batch], cluster_of_sentence: Tensor) -> Iterator[Batch]:
    """Yield the same examples in order, in batches that do not divide clusters, which ascend with sentences."""
    pending: Batch | None = None
    for batch in batches:
        if not len(batch.sentences):
            continue
        if pending is not None:
            batch = _joined(pending, batch)
        clusters = cluster_of_sentence[batch.sentences]
        n_whole = int((clusters != clusters[-1]).sum())
        if n_whole:
            yield batch.part(0, n_whole)
        pending = batch.part(n_whole, len(clusters))
    if pending is not None:
        yield pending


def _joined(first: Batch, second: Batch) -> Batch:
    states = tuple(torch.cat(both) for both in zip(first.hidden_states, second.hidden_states, strict=True))
    rest = (torch.cat([getattr(first, name), getattr(second, name)]) for name in ("labels", "sentences", "rows"))
    return Batch(states, *rest)


# --------------------------------------------------------------------------------------------------------------------
# The covariate, `--control_for`: its value of each example, and labels permuted among examples with the same value.
# --------------------------------------------------------------------------------------------------------------------


def values_of(covariate: Covariate, tokens: Tokens, corpus: Corpus, task: TokenTask) -> NDArray[np.int64]:
    """Return a number for each token's covariate, -1 if missing; shape (n_tokens,), (n_sentences,) or (n_spans,).

    Raises:
        UserError: If no token has a value, or the covariate does not apply to the task (see `Covariate.task_in`).
    """
    other = covariate.task_in(corpus, task)
    if other is None:
        return np.unique(type_keys(tokens, labels_words(task, tokens, corpus)), return_inverse=True)[1]
    if isinstance(other, SpanTask) and isinstance(task, SpanTask):
        mine, of_other = ([span._replace(label=None) for span in each.spans_of(corpus)] for each in (task, other))
        if mine != of_other:
            raise UserError(f"`--control_for {covariate.typed}`: it labels other spans than the task; give another.")
    labels = labels_of(other, tokens, corpus)
    if not has_label(labels).any():
        unit = unit_of(other)
        raise UserError(
            f"`--control_for {covariate.typed}`: it gives no {unit} of `{corpus.name}` a label; give another."
        )
    values = numbered(labels)
    if unit_of(other) == "token":
        return _of_whole_words(values, tokens)
    return values if unit_of(task) == unit_of(other) else values[sentences_of(task, tokens, corpus)]


def _of_whole_words(values: NDArray[np.int64], tokens: Tokens) -> NDArray[np.int64]:
    """Return values in which a word's pieces without a value have the word's: tasks label one piece or another."""
    word = np.where(tokens.special, 0, tokens.first_pieces.cumsum())
    of_word = np.full(word.max(initial=0) + 1, -1)
    known = (values >= 0) & ~tokens.special
    of_word[word[known][::-1]] = values[known][::-1]
    return np.where((values < 0) & ~tokens.special, of_word[word], values)


def numbered(labels: NDArray[Any]) -> NDArray[np.int64]:
    """Return the number of each label among the distinct labels, -1 where missing."""
    numbers, known = np.full(len(labels), -1), has_label(labels)
    numbers[known] = np.unique(labels[known], return_inverse=True)[1]
    return numbers


def with_covariate(sides: Sides, values: Sequence[NDArray[np.int64]]) -> Sides:
    """Return the sides with covariate values of their examples: for the training and, last, the test corpus."""
    return replace(
        sides.each(lambda examples: replace(examples, covariate=values[0])),
        test=replace(sides.test, covariate=values[-1]),
    )


def check_covariate(values: NDArray[np.int64], labels: NDArray[np.integer[Any]], flag_text: str, unit: str) -> None:
    """Refuse covariate values that determine the label; values and labels are -1 where missing, (n_tokens,)."""
    if not (strata_with_several(values, labels) >= 0).any():
        raise UserError(
            f"`{flag_text}`: no two training {unit}s with the same value have different labels, so that nothing is "
            "left to compare; leave the option out, or give more data."
        )


def permuted_within(examples: Examples, seed: int) -> Examples:
    """Return the examples with labels permuted among equal covariate values, also among missing values."""
    assert examples.covariate is not None
    example_rows = np.flatnonzero(examples.labels >= 0)
    labels, values = examples.labels.copy(), examples.covariate[example_rows]
    order = np.lexsort((np.random.default_rng(seed).random(len(example_rows)), values))
    labels[example_rows[np.argsort(values, kind="stable")]] = examples.labels[example_rows[order]]
    return replace(examples, labels=labels)
