from __future__ import annotations

import numpy as np
import pytest
from probing.builtin_tasks.position import Position
from probing.builtin_tasks.position_from_end import PositionFromEnd
from probing.builtin_tasks.position_in_word import PositionInWord

from probing.cache.tokens import Tokens
from probing.tasks import labels_of, load_task
from synthetic import CORPUS, make_tokens


def test_positions_count_from_zero_with_special_tokens_counted_but_left_out() -> None:
    tokens = make_tokens([4, 3, 5])
    assert Position().labels(tokens, CORPUS).tolist() == [-1, 1, 2, -1, -1, 1, -1, -1, 1, 2, 3, -1]


def test_special_tokens_are_examples_where_included() -> None:
    tokens = make_tokens([4, 3])
    assert Position(special_tokens="include").labels(tokens, CORPUS).tolist() == [0, 1, 2, 3, 0, 1, 2]


def test_without_special_tokens_the_first_word_is_at_zero() -> None:
    assert Position().labels(make_tokens([3, 2], special=False), CORPUS).tolist() == [0, 1, 2, 0, 1]


def test_tokens_that_are_set_aside_have_no_label_whatever_a_task_says_of_special_ones() -> None:
    for special in (True, False):
        tokens = make_tokens([4, 3], special=special).without_first()
        labels = labels_of(Position(special_tokens="include"), tokens, CORPUS)
        assert labels.tolist() == [-1, 1, 2, 3, -1, 1, 2]


def test_asking_for_labels_leaves_the_table_as_it_was() -> None:
    tokens = make_tokens([4, 3])
    Position().labels(tokens, CORPUS)[:] = 99
    Position(special_tokens="include").labels(tokens, CORPUS)[:] = 99
    assert tokens.positions.tolist() == [0, 1, 2, 3, 0, 1, 2]


@pytest.mark.parametrize(
    ("n_sentences", "expected"), [(0, 5), (100, 5), (119, 5), (120, 6), (500, 25), (1000, 50), (1_000_000, 50)]
)
def test_a_class_needs_50_examples_or_a_twentieth_of_the_sentences_but_never_under_5(
    n_sentences: int, expected: int
) -> None:
    assert Position().threshold(n_sentences) == expected


def test_a_bar_that_is_set_is_the_bar() -> None:
    assert Position(min_count=3).threshold(1_000_000) == 3


def test_positions_with_enough_examples_are_classes_in_ascending_order() -> None:
    labels = np.repeat([7, 2, 4, -1], [6, 5, 4, 90])
    assert Position().classes(labels, 100).tolist() == [2, 7]
    assert Position(min_count=4).classes(labels, 100).tolist() == [2, 4, 7]
    assert Position(min_count=4, max_position=4).classes(labels, 100).tolist() == [2, 4]


def test_no_examples_give_no_classes() -> None:
    assert Position().classes(np.array([-1, -1]), 10).tolist() == []


def test_the_task_is_installed_under_its_name() -> None:
    assert load_task("position", {"max_position": 9}) == Position(max_position=9)


# --- its kin ---


def test_from_the_end_the_last_token_is_at_zero() -> None:
    tokens = make_tokens([4, 3, 5])
    assert PositionFromEnd().labels(tokens, CORPUS).tolist() == [-1, 2, 1, -1, -1, 1, -1, -1, 3, 2, 1, -1]
    everything = PositionFromEnd(special_tokens="include").labels(tokens, CORPUS)
    assert everything.tolist() == [3, 2, 1, 0, 2, 1, 0, 4, 3, 2, 1, 0]


def test_from_both_ends_the_distances_make_up_the_sentence() -> None:
    tokens = make_tokens([7, 2, 9, 5])
    both = sum(task(special_tokens="include").labels(tokens, CORPUS) for task in (Position, PositionFromEnd))
    assert (both == np.repeat(tokens.lengths - 1, tokens.lengths)).all()


def test_pieces_are_counted_within_their_word() -> None:
    lengths, words = [7, 4, 3], [-1, 0, 0, 0, 1, 2, -1, -1, 0, 0, -1, 0, 0, 1]
    tokens = Tokens(np.array(lengths, np.int32), np.arange(14, dtype=np.int32), np.array(words, np.int16))
    # The last sentence has no special tokens, and begins with a word of the number that the one before ended with.
    assert PositionInWord().labels(tokens, CORPUS).tolist() == [-1, 0, 1, 2, 0, 0, -1, -1, 0, 1, -1, 0, 1, 0]


@pytest.mark.parametrize(
    ("name", "task"),
    [("position_from_end", PositionFromEnd(max_position=9)), ("position_in_word", PositionInWord(None, 9))],
)
def test_its_kin_are_installed_under_their_names(name: str, task: Position) -> None:
    assert load_task(name, {"max_position": 9}) == task
