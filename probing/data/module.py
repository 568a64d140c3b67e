"""The LightningDataModule of labelled activations: examples of controls, mini-batches, cache on an accelerator."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import pytorch_lightning as pl
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from probing.activations.source import ActivationSource
from probing.activations.store import ActivationStore, StorePlan, cache_folder
from probing.cli.options import ProbeOptions
from probing.data.arrays import sides_of_arrays
from probing.data.examples import (
    Batch,
    Examples,
    HiddenStateSource,
    SentenceVectors,
    ShardDataset,
    ShardGroups,
    Sides,
    as_batches,
    blocks,
    exchanged,
    n_constants,
    open_shard,
    permuted_within,
    pool_words,
    read_shard,
    read_share,
    type_keys,
    word_keys,
)
from probing.data.labelling import read_sides
from probing.errors import UserError
from probing.models import load_encoder, load_tokenizer, word_folding
from probing.models.anatomy import word_table
from probing.results import count
from probing.runtime.processes import most_over_ranks, sum_over_ranks
from probing.runtime.progress import note, stage
from probing.runtime.terminal import say, silence
from probing.statistics.chance import mix, permute_within_sentences
from probing.statistics.label_scores import LabelCodes
from probing.statistics.moments import Moments, MomentsAccumulator
from probing.text import Corpus, read_corpora
from probing.text.tasks import TokenTask, load_task, reader_of
from probing.text.tokens import Tokens

_Label = TypeVar("_Label", np.int32, np.int64)

# Fewest word types in a group that exchanges labels; groups consist of types as similar in frequency as possible.
LEAST_TYPES = 10


def permute_among_types(labels: NDArray[_Label], types: NDArray[np.uint64], n_draws: int, seed: int) -> NDArray[_Label]:
    """Return draws of the labels in which the tokens of each word type have the labels of another type.

    A label then depends on the word type as much as before, but carries no information about the word or about the
    token's position. If the labels themselves are random, drawn for each token or for each word type (Hewitt & Liang
    2019), they have the same distribution as these draws, and so has every statistic of them.

    Types exchange labels with types of similar frequency (see `_like_frequency`). If two types are not equally
    frequent, the labels of the rarer type are repeated for all tokens of the other. `labels` and `types` have shape
    (n_tokens,); the draws have shape (n_draws, n_tokens) and the dtype of the labels.
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
        type_index = of_token[tokens]
        index = np.arange(len(tokens)) - (ends - counts)[type_index]
        of_source = source[type_index]
        row[tokens] = labels[tokens[(ends - counts)[of_source] + index % counts[of_source]]]
    return draws


def _like_frequency(counts: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the index of each type's group, from the most frequent types to the rarest.

    Types with the same count are in the same group, and neighbouring counts are merged until a group has `LEAST_TYPES`
    types. Rare types, of which there are many, therefore exchange labels with types of exactly the same count.
    """
    _, of_type, sizes = np.unique(-counts, return_inverse=True, return_counts=True)
    group_of_count, group, members, n_remaining = np.zeros(len(sizes), dtype=np.intp), 0, 0, len(counts)
    for i, size in enumerate(sizes):
        if members >= LEAST_TYPES and n_remaining >= LEAST_TYPES:
            group, members = group + 1, 0
        group_of_count[i], members, n_remaining = group, members + size, n_remaining - size
    return group_of_count[of_type]


def token_types(tokens: Tokens) -> NDArray[np.uint64]:
    """Return a number for each token's type, from its word's pieces and its index among them; shape (n_tokens,).

    It is equal across tables. Words with the same pieces are one type; a special token counts as a separate word.
    """
    indices = np.arange(tokens.n_tokens)
    of_word = indices - np.maximum.accumulate(np.where(tokens.first_pieces | tokens.special, indices, 0))
    return word_keys(tokens) + mix(of_word.astype(np.uint64))


# Number of draws of the control task's labels; a single draw may be easier or harder than most.
CONTROL_DRAWS = 5


def shuffled(sides: Sides, seed: int) -> Sides:
    """Return the sides with labels permuted within and exchanged among sentences, by `shuffled_labels`."""

    def permute(examples: Examples) -> Examples:
        if not examples.n_tokens:
            return examples
        codes = examples.codes(len(sides.classes))
        return replace(examples, labels=shuffled_labels(examples.labels, examples.store.tokens, codes, seed))

    return sides.each(permute)


def shuffled_labels(labels: NDArray[np.int32], tokens: Tokens, codes: LabelCodes, seed: int) -> NDArray[np.int32]:
    """Return labels permuted within sentences, and exchanged among these as far as they differ between them.

    Each sentence gets the labels of another with the probability of `LabelCodes.excess_between`. Where every sentence
    has one label only, all are exchanged; positions never are. Labels have shape (n_tokens,); -1 stays.
    """
    labels = _exchanged(labels, tokens.sentences, codes, seed)
    (permuted,) = permute_within_sentences(labels, tokens.sentences, tokens.input_ids, 1, seed)
    return permuted


def _exchanged(
    labels: NDArray[np.int32], sentences: NDArray[np.int32], codes: LabelCodes, seed: int
) -> NDArray[np.int32]:
    """Return labels with some sentences' labels exchanged; of a longer sentence's labels, a random part."""
    example_rows, source_labels = np.flatnonzero(labels >= 0), labels
    between = codes.excess_between(labels, sentences) if len(example_rows) else 0.0
    if not between:
        return labels
    generator, labels = np.random.default_rng(seed), labels.copy()
    _, first, lengths = np.unique(sentences[example_rows], return_index=True, return_counts=True)
    moved = np.flatnonzero(generator.random(len(first)) < between)
    source, n = generator.permutation(moved), lengths[moved]
    in_random_order = example_rows[np.lexsort((generator.random(len(example_rows)), sentences[example_rows]))]
    index = np.arange(n.sum()) - np.repeat(np.cumsum(n) - n, n)
    given = np.repeat(first[source], n) + index % np.repeat(lengths[source], n)
    labels[example_rows[np.repeat(first[moved], n) + index]] = source_labels[in_random_order[given]]
    return labels


def control_tasks(
    sides: Sides, corpora: Sequence[Corpus], fold: Callable[[str], str], seed: int, n_draws: int = CONTROL_DRAWS
) -> list[Sides]:
    """Draw control tasks: random labels for word types, with the label frequencies of training (Hewitt & Liang 2019).

    Test words that do not occur in training also have random labels, which no probe can predict. `fold` maps words that
    the model cannot distinguish to the same type. A type's label depends only on the seed, the draw and the type.
    `corpora` are the training corpus and, last, the test corpus.
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
    """Return the word types (folded words may repeat) and each token's type; `type_keys` without a word list."""
    words = corpus.words
    if words is None:
        keys, of_token = np.unique(type_keys(tokens, of_words), return_inverse=True)
        return [str(key) for key in keys], of_token
    pairs = zip(tokens.sentences.tolist(), tokens.words.tolist(), strict=True)
    names, of_token = np.unique([words[i][word] if word >= 0 else "" for i, word in pairs], return_inverse=True)
    return [fold(str(word)) for word in names], of_token


class TokenEmbeddings:
    """Store with a single layer, whose hidden states are rows of the input embedding, (n_vocabulary, d_embedding)."""

    def __init__(self, store: HiddenStateSource, table: Tensor) -> None:
        self.tokens: Tokens = store.tokens
        self.plan: StorePlan = replace(store.plan, d_model=table.shape[1])
        self.table = table

    def read(self, layer: int, shard: int) -> Tensor:
        """Return the embeddings of a shard's tokens, shape (n, d_embedding)."""
        rows = self.plan.shards[shard].rows(self.tokens)
        return self.table[torch.from_numpy(self.tokens.input_ids[rows].astype(np.int64))]


# Fewest training examples of a word of several pieces that has a vector of its own, as one of a single piece has.
LEAST_OF_WORD = 5


class WordEmbeddings(TokenEmbeddings):
    """Store with a single layer, in which every piece of a word has the same vector, the word's.

    It is the mean of its pieces' rows, which a linear probe reads as a sum over the pieces, also on words that training
    lacks. The joint meaning of pieces is no such sum, so frequent words of several pieces have random vectors added;
    `frequent` has their keys, ascending, shape (n_frequent,); see `word_keys`.
    """

    def __init__(self, store: HiddenStateSource, table: Tensor, frequent: NDArray[np.uint64]) -> None:
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
        rows, embeddings = self.plan.shards[shard].rows(self.tokens), super().read(layer, shard)
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


def token_control(sides: Sides, encoder: nn.Module) -> Sides:
    """Return the control `token`, the token alone: its input embedding as activations; for words, see `WordEmbeddings`.

    Where examples are sentences, the embeddings are pooled; by their mean where the model's vectors are the first
    token's, whose embedding is the same in every sentence.
    """
    words: Any = word_table(encoder)
    table = words.weight.detach().float()
    frequent = _frequent_words(sides.train) if sides.of_words else None

    def rows(base: HiddenStateSource) -> HiddenStateSource:
        return TokenEmbeddings(base, table) if frequent is None else WordEmbeddings(base, table, frequent)

    def embedded(examples: Examples) -> Examples:
        store = exchanged(examples.store, rows)
        if isinstance(store, SentenceVectors) and store.pooling == "cls":
            store = store.over(store.base, "mean")
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
        token_control(sides, load_encoder(source.model, source.random_weights_seed))
    ],
    "control_task": lambda sides, corpora, source, seed: control_tasks(
        sides, corpora, word_folding(load_tokenizer(source.model)), seed
    ),
    "covariate": lambda sides, corpora, source, seed: [sides.each(partial(permuted_within, seed=seed))],
}


def source_of_control(name: str, source: ActivationSource, seed: int) -> ActivationSource | None:
    """Return the model as it reads the corpora for a control; None if no activations are needed, or can be.

    A model that is randomly initialised itself has no randomly initialised control.
    """
    option = READ_AGAIN.get(name)
    if option is None or (option == "random_weights_seed" and source.random_weights_seed is not None):
        return None
    reads: dict[str, Any] = {option: seed}
    return replace(source, **reads)


def sources_of_controls(names: Sequence[str], source: ActivationSource, seed: int) -> dict[str, ActivationSource]:
    """Return the model as it reads the corpora for each control that applies, by name, and report the others."""
    sources = {}
    for name in names:
        if (of_control := source_of_control(name, source, seed)) is not None:
            sources[name] = of_control
        else:
            source.say(f"the control {name} is left out: the model itself is randomly initialised")
    return sources


def control_sides(
    names: Sequence[str], sides: Sides, corpora: Sequence[Corpus], source: ActivationSource, seed: int
) -> dict[str, list[Sides]]:
    """Return the examples of each control that applies, with several draws of the control task only."""
    sides_by_control: dict[str, list[Sides]] = {}
    again = {name: source_of_control(name, source, seed) for name in names if name in READ_AGAIN}
    read: dict[str, list[ActivationStore]] = {}
    if n := sum(other is not None for other in again.values()):
        with stage(f"hidden states for {count(n, 'control')}", n) as advance:
            for name, other in again.items():
                if other is not None:
                    note(name)
                    read[name] = other.read(corpora)
                    advance(1)
    for name in names:
        if name in read:
            sides_by_control[name] = [with_activations(sides, read[name])]
        elif name in again:
            source.say(f"the control {name} is left out: the model itself is randomly initialised")
        else:
            sides_by_control[name] = _MADE_FROM_THOSE[name](sides, corpora, source, seed)
    return sides_by_control


def are_columns(store: HiddenStateSource) -> bool:
    """Return whether neurons are columns of an array, unchanged or transformed, which may have different units."""
    while (inner := getattr(store, "store", None)) is not None:
        store = inner
    return bool(getattr(store, "are_columns", False))


def layer_moments(train: Examples, layers: Sequence[int]) -> list[Moments]:
    """Return the moments of each layer's training tokens, in one streamed pass divided among ranks.

    Neurons that are constants by design are given sd 1, so that they count as live.
    """
    widths = [train.store.plan.d_model] * len(layers)
    moments_by_layer = _moments(read_share(train, layers), widths, are_columns(train.store))
    if n := n_constants(train.store):
        for moments in moments_by_layer:
            moments.sd[-n:] = 1
            if moments.constant is not None:
                moments.constant[-n:] = False
    return moments_by_layer


def loader_moments(batches: Iterable[Any], n_layers: int) -> list[Moments]:
    """Return the moments of each layer over the batches of all ranks' loaders; `ValueError` without batches."""
    iterator = (block for batch in batches for block_batch in as_batches(batch) for block in blocks(block_batch))
    if (first := next(iterator, None)) is None:
        raise ValueError("the loader of training batches yields none")
    widths = [states.shape[1] for states in first.hidden_states]
    if len(widths) != n_layers:
        raise ValueError(f"the batches have {len(widths)} layers, and the probe has {n_layers}")
    return _moments((block for part in ((first,), iterator) for block in part), widths)


def _moments(batches: Iterable[Batch], widths: Sequence[int], columns: bool = False) -> list[Moments]:
    accumulators = [MomentsAccumulator(width, columns) for width in widths]
    for batch in batches:
        for accumulator, states in zip(accumulators, batch.hidden_states, strict=True):
            accumulator.update(states.cpu())
    for accumulator in accumulators:
        accumulator.all_reduce(sum_over_ranks)
        accumulator.mean.limits = most_over_ranks(accumulator.mean.limits)
    return [accumulator.result() for accumulator in accumulators]


# Number of shards whose examples are shuffled together. A shard has 128 MiB of activations of all layers (12,483 tokens
# of the built-in model), which are memory-mapped and not copied.
WINDOW = 4


class MiniBatches(IterableDataset[Batch]):
    """Shuffled batches of examples, in an order that depends only on the seed and the epoch.

    Shards are put in random order and read `WINDOW` at a time. The examples of a window are shuffled uniformly. The
    sizes of a window's batches differ by at most one example. Ranks read all shards and take equal shares of each
    batch, so that they train as a single process would and do not wait for one another. The remainder of a batch, at
    most `n_ranks` - 1 examples, is skipped. `size` is the most examples in a batch, over all ranks.
    """

    def __init__(
        self, examples: Examples, layers: Sequence[int], size: int, seed: int, rank: int = 0, n_ranks: int = 1
    ) -> None:
        self.examples, self.layers, self.size, self.seed = examples, layers, size, seed
        self.rank, self.n_ranks, self.epoch = rank, n_ranks, 0

    def __iter__(self) -> Iterator[Batch]:
        generator = np.random.default_rng([self.seed, self.epoch])
        self.epoch += 1
        shards = generator.permutation(len(self.examples.store.plan.shards))
        for first in range(0, len(shards), WINDOW):
            window = [open_shard(self.examples, self.layers, int(i)) for i in shards[first : first + WINDOW]]
            # Shard and row of each example.
            pairs = np.concatenate([_examples_of(i, batch) for i, batch in enumerate(window)])
            pairs = generator.permutation(pairs)
            for batch in np.array_split(pairs, -(-len(pairs) // self.size)) if len(pairs) else ():
                if share := len(batch) // self.n_ranks:
                    yield _pick(window, batch[self.rank * share :][:share])


def _examples_of(shard: int, batch: Batch) -> np.ndarray:
    rows = (batch.labels >= 0).nonzero().squeeze(1).numpy()
    return np.stack([np.full_like(rows, shard), rows], 1)


def _pick(window: Sequence[Batch], pairs: np.ndarray) -> Batch:
    """Return the rows given by pairs (shard, row) as one float32 batch, in the order of the pairs."""
    order = np.argsort(pairs[:, 0], kind="stable")
    in_shards = pairs[order]
    back = torch.from_numpy(np.argsort(order))
    parts = [
        window[shard].pick(torch.from_numpy(in_shards[in_shards[:, 0] == shard, 1]))
        for shard in np.unique(in_shards[:, 0])
    ]
    states = (
        torch.cat(parts_of_layer).float()[back]
        for parts_of_layer in zip(*(part.hidden_states for part in parts), strict=True)
    )
    labels, sentences, rows = (torch.cat([part[i] for part in parts])[back] for i in (1, 2, 3))
    return Batch(tuple(states), labels, sentences, rows)


# Share of the accelerator's free memory that the cache may use; the rest is for the probes and their computations.
SHARE = 0.5


class DeviceCache(Dataset[Batch]):
    """Cache of as many batches as fit on a device; all other batches must be copied again in every pass.

    Lightning does not move batches that are already there. `room_bytes` is by default half of the device's free memory.
    """

    def __init__(self, batches: ShardDataset, device: torch.device, room_bytes: int | None = None) -> None:
        self.batches, self.device = batches, device
        self.room_bytes = int(SHARE * torch.cuda.mem_get_info(device)[0]) if room_bytes is None else room_bytes
        self.cached: dict[int, Batch] = {}

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> Batch:
        if index in self.cached:
            return self.cached[index]
        batch = self.batches[index]
        size = sum(tensor.nbytes for tensor in (*batch.hidden_states, *batch[1:]))
        if size > self.room_bytes:
            return batch
        self.room_bytes -= size
        states = tuple(states.to(self.device) for states in batch.hidden_states)
        self.cached[index] = Batch(states, *(tensor.to(self.device) for tensor in batch[1:]))
        return self.cached[index]


class ActivationDataModule(pl.LightningDataModule):
    """Labelled activations of the train, validation and test parts, divided among ranks by shard.

    `from_arrays` takes activations from any source, `from_text` from a model and a corpus.

    Args:
        sides: The examples of the three parts.
        layers: Layers to read.
        batch_size: Most examples in a shuffled mini-batch, for adam; None for whole shards in order, for lbfgs.
        seed: Seed of the order of mini-batches.
    """

    def __init__(self, sides: Sides, layers: Sequence[int], batch_size: int | None = None, seed: int = 0) -> None:
        super().__init__()
        if sides.numbers:
            raise UserError(
                "`LinearProbe` predicts classes, and these labels are numbers; `probing.probe` and `fit` predict them."
            )
        self.sides, self.layers, self.batch_size, self.seed = sides, list(layers), batch_size, seed

    @classmethod
    def from_arrays(
        cls,
        X: Any,
        y: Any,
        groups: Any = None,
        split: Any = None,
        ordinal: bool = False,
        batch_size: int | None = None,
        seed: int = 0,
    ) -> ActivationDataModule:
        """Take activations from arrays; `batch_size` and `seed`, also of the split, are as for the class.

        Args:
            X: Array of shape (n_rows, d_model), or an array for each layer number: NumPy arrays, memory maps or
                tensors.
            y: Label of each row, a whole number or a string.
            groups: Group of each row, such as its sentence or document, which stays on one side; see `probing.probe`.
            split: `train`, `validation` or `test` for each row; if None, a hash of its group and `seed` decides.
            ordinal: Whether labels are numbers, so that distances between labels are meaningful.
        """
        sides, layers = sides_of_arrays(X, y, groups, split, ordinal, seed, say=say)
        return cls(sides, [*map(int, layers)], batch_size, seed)

    @classmethod
    def from_text(
        cls,
        model: str = "minilm",
        corpus: str = "builtin",
        layer: int | Sequence[int] | str = "all",
        task: str | TokenTask = "position",
        cache: str | Path | None = None,
        batch_size: int | None = None,
        seed: int = 0,
    ) -> ActivationDataModule:
        """Take the activations of a model that reads a corpus; `batch_size` and `seed` are as for `from_arrays`.

        Args:
            model: Alias, hub id or folder of the model.
            corpus: Corpus, as for `fit`.
            layer: Layers to read: one, several or `all`.
            task: Name of the task that labels tokens, or a task.
            cache: Folder of cached activations; $PROBING_CACHE or runs/cache if None.
        """
        labelled = load_task(task, {}) if isinstance(task, str) else task
        corpora, splits = read_corpora(corpus, None, seed, silence, column_of=reader_of(labelled))
        source = ActivationSource.of(model, None, layer, None, cache=cache_folder(cache))
        sides, _ = read_sides(source, corpora, splits, labelled, ProbeOptions(), "sentence")
        return cls(sides, source.layers, batch_size, seed)

    @property
    def classes(self) -> list[Any]:
        """The label of each class."""
        return list(self.sides.classes.tolist())

    @property
    def d_model(self) -> int:
        """Number of neurons of a layer."""
        return self.sides.train.store.plan.d_model

    @property
    def n_test_sentences(self) -> int:
        """Number of sentences of the test corpus, including other parts."""
        return self.sides.test.store.tokens.n_sentences

    @cached_property
    def moments(self) -> list[Moments]:
        """Moments of each layer's training tokens, computed on first request."""
        return layer_moments(self.sides.train, self.layers)

    def train_dataloader(self) -> DataLoader[Any]:
        """Return whole shards in order, several at a time on a processor, or shuffled mini-batches."""
        trainer = cast(pl.Trainer, self.trainer)
        if self.batch_size is None:
            shards, device = self._shards(self.sides.train), trainer.strategy.root_device
            # Shards are read in every pass, so as many as fit are copied to an accelerator only once.
            return _loader(DeviceCache(shards, device) if device.type == "cuda" else ShardGroups(shards))
        ranks = trainer.global_rank, trainer.world_size
        return _loader(MiniBatches(self.sides.train, self.layers, self.batch_size, self.seed, *ranks))

    def val_dataloader(self) -> DataLoader[Batch] | list[Any]:
        """Return whole shards; nothing if there are no validation examples."""
        return _loader(self._shards(self.sides.validation)) if self.sides.validation.n_tokens else []

    def test_dataloader(self) -> DataLoader[Batch]:
        """Return whole shards."""
        return _loader(self._shards(self.sides.test))

    def predict_dataloader(self) -> DataLoader[Batch]:
        """Return the examples of the test part, shard by shard."""
        return _loader(self._shards(self.sides.test, only_examples=True))

    def _shards(self, examples: Examples, only_examples: bool = False) -> ShardDataset:
        """Return one batch per shard: memory-mapped rows on a processor, only the examples for an accelerator."""
        trainer = cast(pl.Trainer, self.trainer)
        copies = only_examples or trainer.strategy.root_device.type == "cuda"
        read = read_shard if copies else open_shard
        return ShardDataset(examples, self.layers, trainer.global_rank, trainer.world_size, read)


def _loader(batches: Dataset[Any]) -> DataLoader[Any]:
    # With a generator of its own: a loader draws a seed for workers that it does not have.
    return DataLoader(batches, batch_size=None, generator=torch.Generator())
