from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from probing.builtin_tasks.position import Position

from probing.cache.store import ActivationStore
from probing.corpus.splits import Split
from probing.data import examples as examples_module
from probing.data.examples import Batch, Examples, ShardBatches, blocks, open_shard, read, read_clusters, read_shard
from probing.data.labelling import choose_classes, class_of_tokens, label, labels_in_training, say_what_is_no_class
from probing.errors import UserError
from synthetic import CORPUS, SPLITS, make_splits, make_store, make_tokens, sides

pytestmark = pytest.mark.numeric

LENGTHS = np.random.default_rng(0).integers(6, 12, 60).tolist()


@pytest.fixture
def store(tmp_path: Path) -> ActivationStore:
    """Activations that say which token they are: layer k holds k and the token's index."""
    tokens = make_tokens(LENGTHS)
    index = np.arange(tokens.n_tokens)
    layers = [np.stack([np.full_like(index, k), index, index % 7], 1) for k in range(3)]
    store = make_store(tmp_path / "store", layers, tokens, shard_tokens=64)
    assert len(store.plan.shards) > 5
    return store


def check_in_step(examples: Examples, batches: Iterable[Batch], layers: Sequence[int]) -> list[int]:
    """Assert that every row carries the label and sentence of the token it says it is; return the examples' tokens."""
    seen = []
    for batch in batches:
        for layer, states in zip(layers, batch.hidden_states, strict=True):
            assert states.dtype == torch.float32
            index = states[:, 1].long().numpy()
            assert (states[:, 0] == layer).all()
            assert batch.labels.tolist() == examples.labels[index].tolist()
            assert batch.sentences.tolist() == examples.store.tokens.sentences[index].tolist()
        seen += index[batch.labels.numpy() >= 0].tolist()
    return seen


@pytest.mark.parametrize("side", ["train", "validation", "test"])
def test_activations_labels_and_sentences_stay_in_step(store: ActivationStore, side: str) -> None:
    examples = getattr(sides(store), side)
    seen = check_in_step(examples, read(examples, [2, 0]), [2, 0])
    assert seen == np.flatnonzero(examples.labels >= 0).tolist()


def test_what_is_read_is_examples_and_what_is_opened_all_rows_where_they_lie(store: ActivationStore) -> None:
    train = sides(store).train
    read_, opened = read_shard(train, [0], 0), open_shard(train, [0], 0)
    assert 0 < len(read_.labels) < len(opened.labels) == store.plan.shards[0].n_tokens
    assert (read_.labels >= 0).all()
    assert torch.equal(opened.pick((opened.labels >= 0).nonzero().squeeze(1)).hidden_states[0], read_.hidden_states[0])
    assert opened.hidden_states[0].data_ptr() == store.read(0, 0).data_ptr()


def test_no_more_is_copied_at_a_time_than_a_block(store: ActivationStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examples_module, "BLOCK_BYTES", 5 * 4 * 3 * 2 + 23)  # five rows of two layers, and not six
    train = sides(store).train
    found = list(read(train, [2, 0]))
    assert check_in_step(train, found, [2, 0]) == np.flatnonzero(train.labels >= 0).tolist()
    assert {len(block.labels) for block in found} == {1, 2, 3, 4, 5}
    (whole,) = blocks(open_shard(train, [0], 0)._replace(labels=torch.full((store.plan.shards[0].n_tokens,), -1)))
    assert [tuple(part.shape) for part in (*whole.hidden_states, *whole[1:])] == [(0, 3), (0,), (0,), (0,)]


@pytest.mark.parametrize("rows", [1, 5, 1000])
@pytest.mark.parametrize("by_document", [False, True])
@pytest.mark.parametrize("n_ranks", [1, 2, 3])
def test_clusters_stay_whole_whatever_the_blocks_and_the_ranks(
    store: ActivationStore, rows: int, by_document: bool, n_ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examples_module, "BLOCK_BYTES", rows * 4 * 3 * 2)
    train = sides(store).train
    if by_document:
        train = replace(train, documents=np.arange(store.tokens.n_sentences) // 3)
    seen: list[int] = []
    read_rows: list[int] = []
    for rank in range(n_ranks):
        monkeypatch.setattr(examples_module, "rank_and_world_size", lambda rank=rank: (rank, n_ranks))
        for batch, clusters in read_clusters(train, [2, 0]):
            check_in_step(train, [batch], [2, 0])
            assert clusters.tolist() == train.cluster_of_sentence()[batch.sentences].tolist()
            seen += clusters.unique_consecutive().tolist()
            read_rows += batch.rows.tolist()
    assert sorted(read_rows) == np.flatnonzero(train.labels >= 0).tolist()
    assert len(seen) == len(set(seen)) == len(np.unique(train.cluster_of_sentence()[train.sentences()]))


def test_sides_share_no_token_and_cover_all_that_are_of_a_class(store: ActivationStore) -> None:
    data = sides(store)
    labels = np.stack([data.train.labels, data.validation.labels, data.test.labels])
    assert ((labels >= 0).sum(0) <= 1).all()
    positions = Position().labels(store.tokens, CORPUS)
    assert ((labels >= 0).any(0) == np.isin(positions, data.classes)).all()
    sentences = [set(examples.sentences().tolist()) for examples in (data.train, data.validation, data.test)]
    assert not sentences[0] & sentences[1] | sentences[0] & sentences[2] | sentences[1] & sentences[2]


def test_labels_are_places_among_the_classes(store: ActivationStore) -> None:
    data = sides(store, Position(min_count=1))
    data_of_some = label(store, CORPUS, Position(), make_splits(60), data.classes[2:5], "train")
    positions = Position().labels(store.tokens, CORPUS)
    kept = data_of_some.labels >= 0
    np.testing.assert_array_equal(data.classes[2:5][data_of_some.labels[kept]], positions[kept])


def test_tokens_of_no_class_are_dropped_and_counted(store: ActivationStore) -> None:
    splits, positions = make_splits(60), Position().labels(store.tokens, CORPUS)
    here = np.array([side == "test" for side in splits])[store.tokens.sentences] & (positions >= 0)
    examples = label(store, CORPUS, Position(), splits, np.array([2, 3, 5]), "test")
    assert examples.n_tokens == np.isin(positions[here], [2, 3, 5]).sum()
    assert examples.n_dropped == here.sum() - examples.n_tokens > 0
    assert sides(store, Position(min_count=1)).train.n_dropped == 0


def test_counts_are_by_class(store: ActivationStore) -> None:
    examples = label(store, CORPUS, Position(), make_splits(60), np.array([2, 3, 99]), "train")
    n_train = make_splits(60).count("train")
    assert examples.counts(3).tolist() == [n_train, n_train, 0]


def test_classes_are_chosen_on_training_sentences_alone(store: ActivationStore) -> None:
    splits: list[Split] = ["train" if length <= 8 else "test" for length in LENGTHS]
    classes = choose_classes(store.tokens, CORPUS, Position(min_count=1), splits)
    assert classes.max() == 6  # of 8 tokens the last is special
    assert Position().labels(store.tokens, CORPUS).max() > 6


def test_too_few_examples_name_the_option_that_lowers_the_bar(store: ActivationStore) -> None:
    with pytest.raises(UserError, match=r"`--corpus`: 42 training sentences leave 0 classes.*--task_args.min_count"):
        choose_classes(store.tokens, CORPUS, Position(min_count=1000), make_splits(60))


def test_a_limit_that_leaves_one_class_is_named_and_so_is_a_single_label(store: ActivationStore) -> None:
    limited = r"`--task_args.max_position 1` leaves 1 classes with enough examples, .*; raise it, or leave it out"
    with pytest.raises(UserError, match=limited):
        choose_classes(store.tokens, CORPUS, Position(max_position=1), make_splits(60))
    alone = replace(store.tokens, words=np.where(store.tokens.positions == 1, 0, -1).astype(np.int16))
    with pytest.raises(
        UserError, match=r"all labels of the 42 training sentences are 1, .* give text with another label"
    ):
        choose_classes(alone, CORPUS, Position(), make_splits(60))


def test_labels_above_a_limit_are_left_out_by_it_and_not_as_rare(store: ActivationStore) -> None:
    splits = make_splits(60)
    for task in (Position(max_position=3, min_count=1), Position(min_count=30)):
        classes = choose_classes(store.tokens, CORPUS, task, splits)
        found = {side: class_of_tokens(store.tokens, CORPUS, task, splits, classes, side) for side in SPLITS}
        said: list[str] = []
        there = labels_in_training(store.tokens, CORPUS, task, splits)
        say_what_is_no_class(found, there, "token", said.append, task.max_position)
        limited = [line for line in said if "are above `--task_args.max_position 3`" in line]
        rare = [line for line in said if "too rare" in line]
        assert (len(limited), len(rare)) == ((1, 0) if task.max_position else (0, 1))


def test_sentences_of_special_tokens_alone_are_refused(tmp_path: Path) -> None:
    tokens = make_tokens([2] * 30)
    empty = make_store(tmp_path / "empty", [np.zeros((60, 3))], tokens)
    with pytest.raises(UserError, match=r"`--corpus`: no sentence is longer than one token"):
        choose_classes(empty.tokens, CORPUS, Position(min_count=1), make_splits(30))


# --- ranks ---


@pytest.mark.parametrize("world_size", [1, 2, 3, 50])
def test_ranks_read_every_example_once_in_equally_many_steps(store: ActivationStore, world_size: int) -> None:
    examples, seen, steps = sides(store).train, [], set()
    for rank in range(world_size):
        shards = ShardBatches(examples, [1], rank, world_size)
        batches = [shards[i] for i in range(len(shards))]
        seen += check_in_step(examples, batches, [1])
        steps.add(len(batches))
        with pytest.raises(IndexError):
            shards[len(shards)]
    assert sorted(seen) == np.flatnonzero(examples.labels >= 0).tolist()
    assert len(steps) == 1


def test_beyond_the_last_shard_batches_are_empty(store: ActivationStore) -> None:
    shards = ShardBatches(sides(store).train, [0, 2], rank=49, world_size=50)
    assert [tuple(states.shape) for states in shards[0].hidden_states] == [(0, 3), (0, 3)]
