"""Planted hidden states: a rule that they carry is the one that is found, and where they carry none, none is found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from probing.cache.store import ActivationStore
from probing.cache.tokens import Tokens
from probing.errors import UserError
from probing.probes.solvers import Penalty
from probing.probes.training import Lbfgs, Training, train_probes
from probing.studies.hierarchy.survey import AUXILIARIES, Parts, Sizes, Text, answers_of, task_rows
from synthetic import LIGHTNING_WARNINGS, make_store

pytestmark = [pytest.mark.numeric, *(pytest.mark.filterwarnings(warning) for warning in LIGHTNING_WARNINGS)]

SIZES = Sizes(train=300, test=60, generalisation=120)
HIERARCHY, LINEAR, WORD, NOISE = range(4)


def tokens_of(text: Text) -> Tokens:
    """A table of tokens with a special token at both ends of each sentence, and a piece for each word."""
    assert text.corpus.words is not None
    words = [[-1, *range(len(words)), -1] for words in text.corpus.words]
    lengths = np.array([len(one) for one in words], dtype=np.int32)
    joined = np.concatenate(words).astype(np.int16)
    return Tokens(lengths, np.zeros(len(joined), dtype=np.int32), joined)


def planted(folder: Path, text: Text, seed: int) -> ActivationStore:
    """Four layers: one tells the right word, one the first auxiliary, one auxiliaries, one nothing."""
    tokens, generator = tokens_of(text), np.random.default_rng(seed)
    assert text.corpus.words is not None
    is_auxiliary = np.zeros(tokens.n_tokens, dtype=bool)
    for i, word in enumerate(tokens.words):
        is_auxiliary[i] = word >= 0 and text.corpus.words[tokens.sentences[i]][word] in AUXILIARIES
    rules: list[NDArray[Any]] = [tokens.words == rule[tokens.sentences] for rule in (text.answers, text.linear)]
    layers = []
    for tells in (*rules, is_auxiliary, np.zeros(tokens.n_tokens)):
        states = generator.normal(size=(tokens.n_tokens, 5))
        states[:, 0] = 1
        states[:, 1] = 6 * tells
        # Special tokens look like what is searched for, which must not matter: they are no words.
        states[tokens.special, 1] = 100
        layers.append(states)
    return make_store(folder, layers, tokens, shard_tokens=700)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    parts, folder = Parts.of("main_auxiliary", SIZES, 0), tmp_path_factory.mktemp("planted")
    stores = [planted(folder / str(i), text, i) for i, text in enumerate(parts.texts)]
    layers = [HIERARCHY, LINEAR, WORD, NOISE]
    fits = train_probes(parts.sides(stores), layers, Training(Penalty(0.0, 1e-3), Lbfgs(1e-4)))
    answers = answers_of(fits, parts, stores)
    return task_rows("main_auxiliary", "untrained", layers, answers, answers[[HIERARCHY] * 4], parts)


def test_a_layer_that_tells_the_main_auxiliary_generalises_by_hierarchy(rows: Any) -> None:
    row = rows[0][HIERARCHY]
    assert (row["test"], row["generalisation"], row["first_auxiliary"], row["preference"]) == (1, 1, 0, 1)
    assert row["low"] > 0.95
    assert row["high"] == 1
    assert row["preference_low"] > 0.9


def test_a_layer_that_tells_the_first_auxiliary_generalises_by_linear_order(rows: Any) -> None:
    row = rows[0][LINEAR]
    assert (row["test"], row["generalisation"], row["first_auxiliary"], row["preference"]) == (1, 0, 1, -1)
    assert row["high"] < 0.05
    assert (row["difference"], row["difference_low"] > 0.9) == (1, True)


def test_a_layer_that_tells_auxiliaries_alone_prefers_neither_rule(rows: Any) -> None:
    row = rows[0][WORD]
    assert row["preference_low"] < 0 < row["preference_high"]
    # Half of the sentences have two auxiliaries and half have three.
    assert row["low"] < 5 / 12 < row["high"]
    assert row["first_auxiliary_low"] < 5 / 12 < row["first_auxiliary_high"]


def test_a_layer_that_tells_nothing_does_not_learn_the_task(rows: Any) -> None:
    assert rows[0][NOISE]["test"] < 0.3
    assert rows[0][NOISE]["generalisation"] < 0.3


def test_each_distractor_has_its_sentences(rows: Any) -> None:
    table, kinds = rows
    for layer, row in enumerate(table):
        own = [kind for kind in kinds if kind["layer"] == layer]
        assert [kind["distractor"] for kind in own] == ["object_relative", "subject_relative"]
        assert sum(kind["n"] for kind in own) == SIZES.generalisation
        right = sum(kind["n"] * kind["generalisation"] for kind in own)
        assert right == pytest.approx(row["generalisation"] * SIZES.generalisation)


def test_a_sentence_of_which_a_word_is_cut_is_refused() -> None:
    text = Parts.of("subject_noun", Sizes(3, 2, 4), 0).training
    whole = tokens_of(text)
    text.check(whole)
    last = whole.lengths[0] - 2  # the full stop, before the special token
    lengths = whole.lengths - (np.arange(whole.n_sentences) == 0).astype(np.int32)
    tokens = Tokens(lengths, np.delete(whole.input_ids, last), np.delete(whole.words, last))
    with pytest.raises(UserError, match=r"sentences of the task subject noun, to train on, .* keeps only"):
        text.check(tokens)
