"""Examples of tokens, words and sentences, values held fixed, and labels of word types given to others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from probing.builtin_tasks.column import SentenceLabel, UniversalPartOfSpeech
from probing.builtin_tasks.position import Position

from probing.activations.store import ActivationStore
from probing.data import examples as examples_module
from probing.data.examples import (
    Batch,
    Examples,
    SentenceVectors,
    ShardDataset,
    blocks,
    check_covariate,
    common_words,
    exchanged,
    open_shard,
    permuted_within,
    pool_words,
    read,
    read_clusters,
    read_shard,
    token_per_sentence,
    type_keys,
    values_of,
    with_covariate,
)
from probing.data.labelling import choose_classes, class_of_tokens, label, labels_in_training, warn_rare_classes
from probing.data.module import LEAST_TYPES, permute_among_types, token_types
from probing.errors import UserError
from probing.text import Corpus, Split, from_words
from probing.text.tasks import Covariate, Pooling, labels_of, labels_words
from probing.text.tokens import Tokens
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
        warn_rare_classes(found, there, "token", said.append, task.max_position)
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
        shards = ShardDataset(examples, [1], rank, world_size)
        batches = [shards[i] for i in range(len(shards))]
        seen += check_in_step(examples, batches, [1])
        steps.add(len(batches))
        with pytest.raises(IndexError):
            shards[len(shards)]
    assert sorted(seen) == np.flatnonzero(examples.labels >= 0).tolist()
    assert len(steps) == 1


def test_beyond_the_last_shard_batches_are_empty(store: ActivationStore) -> None:
    shards = ShardDataset(sides(store).train, [0, 2], rank=49, world_size=50)
    assert [tuple(states.shape) for states in shards[0].hidden_states] == [(0, 3), (0, 3)]


# A sentence of [CLS] one two-piece word, a word of one piece, [SEP]; then one whose second word was cut off.
WORDS = np.array([-1, 0, 0, 1, -1, -1, 0, -1], dtype=np.int16)
SENTENCES = np.array([4, 4, 4, 4, 4, 5, 5, 5], dtype=np.int32)


def test_the_pieces_of_a_word_are_averaged_and_special_tokens_left_out() -> None:
    states = torch.arange(16.0).reshape(8, 2)
    found = pool_words([states, -states], WORDS, SENTENCES)
    assert found.keys.tolist() == [[4, 0], [4, 1], [5, 0]]
    expected = torch.tensor([[3.0, 4.0], [6.0, 7.0], [12.0, 13.0]])
    assert torch.equal(found.hidden_states[0], expected)
    assert torch.equal(found.hidden_states[1], -expected)


def test_pooling_equals_a_loop_over_words() -> None:
    generator = np.random.default_rng(0)
    sentences = np.sort(generator.integers(0, 9, 200))
    words = generator.integers(-1, 6, 200)
    words = words[np.lexsort((words, sentences))]  # pieces of a word stand side by side
    states = torch.from_numpy(generator.normal(size=(200, 3)))
    found = pool_words([states], words, sentences)
    loop: dict[tuple[int, int], list[NDArray[np.float64]]] = {}
    for state, key in zip(states.numpy(), zip(sentences.tolist(), words.tolist(), strict=True), strict=True):
        if key[1] >= 0:
            loop.setdefault(key, []).append(state)
    assert [tuple(key) for key in found.keys.tolist()] == sorted(loop)
    for row, key in zip(found.hidden_states[0], sorted(loop), strict=True):
        np.testing.assert_allclose(row, np.mean(loop[key], axis=0), rtol=1e-12)


def test_half_precision_is_averaged_in_single() -> None:
    states = torch.tensor([[1.0], [1.0 + 2**-7]], dtype=torch.bfloat16)
    found = pool_words([states], np.array([0, 0]), np.array([0, 0])).hidden_states[0]
    assert found.dtype == torch.float32
    assert float(found[0, 0]) == 1 + 2**-8  # no bfloat16


def test_where_all_tokens_are_special_there_are_no_words() -> None:
    found = pool_words([torch.ones(2, 3)], np.array([-1, -1]), np.array([0, 0]))
    assert found.keys.shape == (0, 2)
    assert found.hidden_states[0].shape == (0, 3)


def test_tokens_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"number of tokens: \[7, 8\]"):
        pool_words([torch.ones(7, 2)], WORDS, SENTENCES)


@given(*(2 * [st.sets(st.tuples(st.integers(0, 3), st.integers(0, 3)))]))
def test_common_words_are_those_of_both_and_side_by_side(
    one: set[tuple[int, int]], other: set[tuple[int, int]]
) -> None:
    keys_a, keys_b = (np.array(sorted(keys), dtype=np.int64).reshape(-1, 2) for keys in (one, other))
    rows_a, rows_b = common_words(keys_a, keys_b)
    assert [tuple(key) for key in keys_a[rows_a].tolist()] == sorted(one & other)
    assert keys_b[rows_b].tolist() == keys_a[rows_a].tolist()


def test_two_tokenizations_of_the_same_words_meet_where_neither_was_cut() -> None:
    # The other tokenizer makes more pieces and is cut earlier.
    words, sentences = np.array([-1, 0, 0, 0, -1, -1, 0, 1, -1]), np.array([4, 4, 4, 4, 4, 5, 5, 5, 5])
    one = pool_words([torch.ones(8, 2)], WORDS, SENTENCES)
    other = pool_words([torch.ones(9, 2)], words, sentences)
    rows_a, rows_b = common_words(one.keys, other.keys)
    assert one.keys[rows_a].tolist() == other.keys[rows_b].tolist() == [[4, 0], [5, 0]]


def test_inputs_stay_as_they_were() -> None:
    states = torch.ones(8, 2)
    pool_words([states], WORDS, SENTENCES)
    assert torch.equal(states, torch.ones(8, 2))


SENTENCE_LENGTHS = [5, 3, 9, 2, 4] * 20


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_vectors_are_pooled_over_tokens_that_are_not_special(
    pooling: Pooling, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = make_tokens(SENTENCE_LENGTHS)
    states = torch.from_numpy(np.random.default_rng(0).standard_normal((tokens.n_tokens, 6))).to(getattr(torch, dtype))
    store = make_store(tmp_path / "store", [states, 2 * states], tokens, shard_tokens=60, dtype=dtype)
    vectors = SentenceVectors(store, pooling)
    assert len(vectors.plan.shards) > 3
    expected = []
    for i in range(tokens.n_sentences):
        own = states[tokens.of_sentences(i, 1)].float()
        inside = own[1:-1]  # none in a sentence of two tokens
        empty = torch.zeros(6)
        pooled = {"mean": inside.mean(0) if len(inside) else empty, "max": inside.amax(0) if len(inside) else empty}
        expected.append({**pooled, "cls": own[0]}[pooling])
    for kept in (2**30, 0):
        monkeypatch.setattr(examples_module, "KEPT_BYTES", kept)
        vectors = SentenceVectors(store, pooling)
        for _ in range(2):
            found = torch.cat([vectors.read(1, shard.index) for shard in vectors.plan.shards])
            assert found.dtype == torch.float32
            assert torch.allclose(found, 2 * torch.stack(expected), atol=1e-6)
        assert bool(vectors._cache.cached) == bool(kept)


def test_different_sentences_are_different_types_and_equal_ones_are_not() -> None:
    tokens = make_tokens([4, 4, 4])
    tokens.input_ids[:] = [1, 2, 3, 4, 1, 3, 2, 4, 1, 2, 3, 4]
    table = token_per_sentence(tokens)
    assert (table.n_tokens, table.n_sentences) == (3, 3)
    assert table.input_ids[0] == table.input_ids[2] != table.input_ids[1]
    assert not table.special.any()


def test_other_activations_are_pooled_as_the_first_ones_are(tmp_path: Path) -> None:
    tokens = make_tokens(SENTENCE_LENGTHS)
    states = np.random.default_rng(0).standard_normal((tokens.n_tokens, 6))
    one, two = (make_store(tmp_path / name, [factor * states], tokens) for name, factor in (("one", 1), ("two", 2)))
    vectors = exchanged(SentenceVectors(one, "max"), lambda base: two if base is one else base)
    assert torch.equal(vectors.read(0, 0), SentenceVectors(two, "max").read(0, 0))
    assert exchanged(one, lambda base: two) is two


# "un|like|ly dogs" and "dogs un|ly" with special tokens around them.
IDS = [1, 7, 8, 9, 5, 2, 1, 5, 7, 9, 2]
HELD_WORDS = [-1, 0, 0, 0, 1, -1, -1, 0, 1, 1, -1]
TOKENS = Tokens(np.array([6, 5], np.int32), np.array(IDS, np.int32), np.array(HELD_WORDS, np.int16))
HELD_CORPUS = from_words("bank", [("unlikely", "dogs"), ("dogs", "unly")], {"upos": [("ADJ", "NOUN"), ("NOUN", "X")]})
OF_WORDS = UniversalPartOfSpeech()


def test_a_token_is_its_id_and_a_word_its_pieces() -> None:
    token = Covariate("token", None)
    assert values_of(token, TOKENS, HELD_CORPUS, Position()).tolist() == np.unique(IDS, return_inverse=True)[1].tolist()
    for pieces in ("first", "last", "mean"):
        found = values_of(token, TOKENS, HELD_CORPUS, UniversalPartOfSpeech(pieces=pieces))
        words = [found[at].tolist() for at in ([1, 2, 3], [4], [7], [8, 9])]
        unlikely, dogs, dogs_again, unly = (set(word) for word in words)
        assert [len(word) for word in (unlikely, dogs, unly)] == [1, 1, 1]
        assert dogs == dogs_again
        assert len(unlikely | dogs | unly) == 3


@given(st.lists(st.lists(st.lists(st.integers(5, 7), min_size=1, max_size=3), max_size=4), min_size=1, max_size=5),
       st.sampled_from(["first", "last", "mean"]))  # fmt: skip
@settings(max_examples=40, deadline=None, derandomize=True)
def test_two_words_are_the_same_exactly_if_all_their_pieces_are(sentences: list[Any], pieces: Any) -> None:
    """Against words in a dictionary, in the stratum and by the keys that the controls use."""
    ids = [id for words in sentences for id in (1, *(piece for word in words for piece in word), 2)]
    of = [k for words in sentences for k in (-1, *(k for k, word in enumerate(words) for _ in word), -1)]
    lengths = [sum(map(len, words)) + 2 for words in sentences]
    tokens = Tokens(np.array(lengths, np.int32), np.array(ids, np.int32), np.array(of, np.int16))
    texts = [tuple("-".join(map(str, word)) for word in words) for words in sentences]
    corpus = replace(HELD_CORPUS, words=tuple(texts), sentences=(" ",) * len(texts),
                     columns={"upos": tuple(("X",) * len(words) for words in texts)})  # fmt: skip
    labelled = np.flatnonzero(labels_of(task := UniversalPartOfSpeech(pieces=pieces), tokens, corpus) != "")
    expected: dict[str, int] = {}
    words = [expected.setdefault(word, len(expected)) for words in texts for word in words]
    for values in (values_of(Covariate("token"), tokens, corpus, task), type_keys(tokens, of_words=True)):
        found = values[labelled]
        assert len(found) == len(words)
        same = [[one == other for other in words] for one in words]
        assert (found[:, None] == found[None]).tolist() == same


def test_a_task_that_labels_several_pieces_of_a_word_or_special_tokens_is_of_tokens() -> None:
    assert not labels_words(Position(), TOKENS, HELD_CORPUS)
    single = Tokens(np.array([3, 3], np.int32), np.array([1, 5, 2] * 2, np.int32), np.array([-1, 0, -1] * 2, np.int16))
    assert labels_words(Position(), single, HELD_CORPUS)
    assert not labels_words(Position(special_tokens="include"), single, HELD_CORPUS)
    assert not labels_words(SentenceLabel(), single, replace(HELD_CORPUS, sentence_columns={"label": ("a", "b")}))


@pytest.mark.parametrize("pieces", ["first", "last", "mean"])
def test_a_word_has_its_value_at_all_of_its_pieces(pieces: Any) -> None:
    found = values_of(Covariate("upos", UniversalPartOfSpeech(pieces=pieces)), TOKENS, HELD_CORPUS, Position())
    assert found.tolist() == [-1, 0, 0, 0, 1, -1, -1, 1, 2, 2, -1]


def test_what_gives_no_value_is_refused() -> None:
    unlabelled = replace(HELD_CORPUS, name="plain", columns={"upos": (("_", "_"), ("_", "_"))})
    with pytest.raises(UserError, match="`--control_for upos`: it gives no token of `plain` a label"):
        values_of(Covariate("upos", OF_WORDS), TOKENS, unlabelled, OF_WORDS)


def test_labels_are_permuted_among_equal_values_and_sides_keep_theirs(tmp_path: Path) -> None:
    tokens = make_tokens([8] * 60)
    planted = sides(make_store(tmp_path / "store", [np.zeros((tokens.n_tokens, 2))], tokens))
    values = np.random.default_rng(0).integers(-1, 5, tokens.n_tokens)
    for side in ("train", "test"):
        before = getattr(with_covariate(planted, [values]), side)
        after = permuted_within(before, seed=1)
        kept = before.labels >= 0
        assert np.array_equal(after.labels >= 0, kept)
        assert (after.labels != before.labels)[kept].mean() > 0.5
        for value in range(-1, 5):
            here = kept & (values == value)
            assert sorted(after.labels[here]) == sorted(before.labels[here])
        assert np.array_equal(permuted_within(before, seed=1).labels, after.labels)
        assert not np.array_equal(permuted_within(before, seed=2).labels, after.labels)


def test_the_test_corpus_has_its_own_values(tmp_path: Path) -> None:
    tokens = make_tokens([8] * 60)
    planted = sides(make_store(tmp_path / "store", [np.zeros((tokens.n_tokens, 2))], tokens))
    one, other = np.zeros(3, dtype=np.int64), np.ones(4, dtype=np.int64)
    found = with_covariate(planted, [one, other])
    assert found.train.covariate is one
    assert found.validation.covariate is one
    assert found.test.covariate is other


def test_values_that_determine_the_label_are_refused() -> None:
    labels = np.array([0, 1, 0, -1])
    check_covariate(np.array([0, 0, 1, 1]), labels, "--control_for x", "token")
    with pytest.raises(UserError, match="`--control_for x`: no two training tokens with the same value have different"):
        check_covariate(np.array([0, 1, 0, 0]), labels, "--control_for x", "token")


# --- the option ---


def test_a_task_a_column_or_the_token_is_held_fixed() -> None:
    assert Covariate.of(None) is None
    assert Covariate.of("token") == Covariate("token")
    assert Covariate.of("upos") == Covariate("upos", OF_WORDS)
    of_column = Covariate.of("genre")
    assert of_column == Covariate("genre")
    corpus = replace(HELD_CORPUS, columns={"genre": (("a", "b"), ("a", "a"))})
    assert of_column is not None
    assert values_of(of_column, TOKENS, corpus, Position()).tolist() == [-1, 0, 0, 0, 1, -1, -1, 0, 0, 0, -1]


@pytest.mark.parametrize(
    ("typed", "of", "message"),
    [
        ("genre", Position(), r"is neither token, nor a task \(.*upos.*\), nor a column of `bank`, which has upos"),
        ("token", SentenceLabel(), "the task labels sentences, which have many; give a label of sentences"),
        ("upos", SentenceLabel(), "it labels tokens, and the probed task sentences; give a label of sentences"),
    ],
)
def test_what_cannot_be_held_fixed_is_refused(typed: str, of: Any, message: str) -> None:
    given = Covariate.of(typed)
    assert given is not None
    with pytest.raises(UserError, match=f"`--control_for {typed}`:? {message}"):
        values_of(given, TOKENS, HELD_CORPUS, of)


def test_numbers_are_not_held_fixed() -> None:
    with pytest.raises(UserError, match="`--control_for x`: of its numbers hardly two are equal"):
        Covariate("x", SentenceLabel(numbers=True)).task_in(HELD_CORPUS, Position())


def test_a_task_that_cannot_be_loaded_is_named_as_it_was_typed() -> None:
    with pytest.raises(UserError, match=r"`--control_for nowhere\.py:X`"):
        Covariate.of("nowhere.py:X")


def test_a_label_of_sentences_is_that_of_all_their_tokens() -> None:
    corpus = Corpus("topics", ("a", "b"), sentence_columns={"label": ("x", "y")})
    for fixed in (Covariate("sentence_label", SentenceLabel()), Covariate("label")):
        assert values_of(fixed, TOKENS, corpus, Position()).tolist() == [0] * 6 + [1] * 5
        assert values_of(fixed, TOKENS, corpus, SentenceLabel()).tolist() == [0, 1]


Labels = NDArray[np.int64]


def zipf_types(n_types: int, n_tokens: int, seed: int = 0) -> NDArray[np.uint64]:
    """Return word types whose frequencies fall as those of words do."""
    share = 1 / np.arange(1, n_types + 1)
    return np.random.default_rng(seed).choice(n_types, n_tokens, p=share / share.sum()).astype(np.uint64)


TYPES = zipf_types(300, 2000)


# Ten or more types of each count.
EVEN = np.repeat(np.arange(190), np.repeat([1, 3, 10, 40], [100, 60, 20, 10])).astype(np.uint64)


def per_token(seed: int, types: NDArray[np.uint64] = EVEN) -> Labels:
    return np.random.default_rng(seed).integers(4, size=len(types))


def per_type(seed: int, types: NDArray[np.uint64] = EVEN) -> Labels:
    of_type: Labels = np.random.default_rng(seed).integers(4, size=300)
    return of_type[types.astype(int)]


def test_each_type_takes_the_labels_of_one_other_type_of_like_frequency() -> None:
    counts = np.bincount(TYPES.astype(int), minlength=300)
    # A label for each type, so that the draw shows whose labels it took.
    for draw in permute_among_types(TYPES.astype(np.int64), TYPES, 3, seed=0):
        source = {(int(own), int(taken)) for own, taken in zip(TYPES, draw, strict=True)}
        assert len(source) == len({own for own, _ in source}) == (counts > 0).sum()
        assert len({taken for _, taken in source}) == len(source)
        rare = [(own, taken) for own, taken in source if counts[own] <= 3]
        assert len(rare) > 5 * LEAST_TYPES
        assert all(counts[own] == counts[taken] for own, taken in rare)
        assert np.mean([own != taken for own, taken in source]) > 0.8
        frequent = np.argsort(-counts)[:LEAST_TYPES]
        assert {taken for own, taken in source if own in frequent} <= {*np.argsort(-counts)[: 2 * LEAST_TYPES]}


def test_a_type_takes_all_the_labels_of_one_as_frequent_in_random_order() -> None:
    types = np.repeat(np.arange(12, dtype=np.uint64), 50)
    labels = np.arange(600)
    (draw,) = permute_among_types(labels, types, 1, seed=0)
    assert sorted(draw) == labels.tolist()
    blocks = draw.reshape(12, 50)
    assert (blocks // 50 == blocks[:, :1] // 50).all()
    assert (np.diff(blocks, axis=1) > 0).mean() == pytest.approx(0.5, abs=0.06)


def test_the_labels_of_a_rarer_type_are_repeated_equally_often() -> None:
    types = np.repeat(np.arange(2, dtype=np.uint64), [9, 3])
    draws = permute_among_types(np.array([0] * 9 + [1, 2, 3]), types, 20, seed=0)
    swapped = [draw for draw in draws if draw[0] != 0]
    assert 0 < len(swapped) < 20
    for draw in swapped:
        assert np.bincount(draw[:9]).tolist() == [0, 3, 3, 3]
        assert draw[9:].tolist() == [0, 0, 0]


def purity(labels: Labels, types: NDArray[np.uint64] = EVEN) -> float:
    """Return the share of tokens with the label that most tokens of their type have."""
    counts = np.zeros((300, 4))
    np.add.at(counts, (types.astype(int), labels), 1)
    return float(counts.max(1).sum() / len(labels))


def frequency(labels: Labels) -> float:
    """Return the share of the first class."""
    return float((labels == 0).mean())


@pytest.mark.parametrize(("draw_labels", "statistic"), [(per_token, purity), (per_type, frequency)])
def test_random_labels_stand_among_their_draws_as_one_of_them(
    draw_labels: Callable[[int], Labels], statistic: Callable[[Labels], float]
) -> None:
    order = np.random.default_rng(0).random(len(EVEN))  # so that the first class is of other types in each draw
    places = []
    for seed in range(100):
        labels = draw_labels(seed)
        draws = permute_among_types(labels, EVEN, 9, seed)
        if statistic is frequency:  # each type as often as before: the classes of the tokens of one half
            labels, draws = labels[order < 0.5], draws[:, order < 0.5]
        values = [statistic(draw) for draw in draws]
        places.append(np.mean([(value > statistic(labels)) + 0.5 * (value == statistic(labels)) for value in values]))
    # Uniform over ten places: a mean of a half with a standard error of .03, and a tenth at either end.
    assert np.mean(places) == pytest.approx(0.5, abs=0.1)
    assert np.mean(np.array(places) < 0.05) < 0.25
    assert np.mean(np.array(places) > 0.95) < 0.25


def test_types_stay_as_pure_as_they_were_and_hardly_purer_where_frequencies_differ() -> None:
    for seed in range(5):
        for draw in permute_among_types(per_type(seed, TYPES), TYPES, 3, seed):
            assert purity(draw, TYPES) == 1
        labels = per_token(seed, TYPES)
        for draw in permute_among_types(labels, TYPES, 3, seed):
            assert -0.01 < purity(draw, TYPES) - purity(labels, TYPES) < 0.06


def test_labels_that_say_where_a_token_stands_do_not_stand_among_them() -> None:
    labels = np.arange(len(TYPES)) // (len(TYPES) // 4)
    draws = permute_among_types(labels, TYPES, 19, 0)
    alike = [(row[1:] == row[:-1]).mean() for row in (labels, *draws)]  # neighbours of one class
    assert alike[0] > 0.99
    assert max(alike[1:]) < 0.4


def test_the_seed_decides_and_draws_differ() -> None:
    labels = per_token(0)
    draws = permute_among_types(labels, EVEN, 3, seed=1)
    np.testing.assert_array_equal(draws[:2], permute_among_types(labels, EVEN, 2, seed=1))
    assert (draws[0] != draws[1]).any()
    assert (draws != permute_among_types(labels, EVEN, 3, seed=2)).any()
    assert draws.dtype == labels.dtype


def test_no_tokens_and_a_single_type_are_fine() -> None:
    none = np.zeros(0, dtype=np.int32)
    assert permute_among_types(none, none.astype(np.uint64), 2, 0).shape == (2, 0)
    one = np.arange(5, dtype=np.int32)
    (draw,) = permute_among_types(one, np.zeros(5, dtype=np.uint64), 1, 0)
    assert sorted(draw) == one.tolist()


def test_the_type_of_a_token_is_the_pieces_of_its_word_and_which_one_it_is() -> None:
    def table(*sentences: list[tuple[int, int]]) -> Tokens:
        lengths = np.array([len(sentence) for sentence in sentences], dtype=np.int32)
        ids, words = np.array([pair for sentence in sentences for pair in sentence]).T
        return Tokens(lengths, ids.astype(np.int32), words.astype(np.int16))

    # Special, "un" "able", "un", special; then "un" "able" and "able".
    one = token_types(table([(1, -1), (7, 0), (8, 0), (7, 1), (2, -1)], [(7, 0), (8, 0), (8, 1)]))
    start, un_of_unable, able_of_unable, un, end, *again, able = one.tolist()
    assert again == [un_of_unable, able_of_unable]
    assert len({start, un_of_unable, able_of_unable, un, end, able}) == 6
    # The same in another table.
    assert token_types(table([(8, 0), (7, 1), (8, 1), (1, -1)])).tolist() == [able, un_of_unable, able_of_unable, start]
