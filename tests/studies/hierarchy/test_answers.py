from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from probing.cache.tokens import Tokens
from probing.data.examples import Examples
from probing.studies.hierarchy.survey import answered_words, compared, counted
from synthetic import make_store

pytestmark = pytest.mark.numeric

# Four sentences with a special token at both ends; some words have two pieces.
WORDS = [[-1, 0, 0, 1, 2, -1], [-1, 0, 1, -1], [-1, 0, 1, 1, 2, 3, 3, -1], [-1, 0, 1, 2, -1]]


def test_the_answer_is_the_likeliest_word_as_a_loop_finds_it(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    words = np.concatenate(WORDS).astype(np.int16)
    tokens = Tokens(np.array([len(one) for one in WORDS], dtype=np.int32), np.zeros(len(words), np.int32), words)
    layers = [generator.normal(size=(len(words), 3)).astype(np.float32) for _ in range(2)]
    weights = [torch.from_numpy(generator.normal(size=(2, 3)).astype(np.float32)) for _ in range(2)]
    for states, weight in zip(layers, weights, strict=True):
        direction = (weight[1] - weight[0]).numpy()
        states[tokens.special] = 50 * direction  # what is no word would be likeliest
        states[tokens.sentences == 3] = np.where(tokens.special[tokens.sentences == 3, None], 50 * direction, 1)
    store = make_store(tmp_path / "store", layers, tokens, shard_tokens=8)
    assert len(store.plan.shards) > 1
    found = answered_words(Examples(store, np.where(tokens.first_pieces, 0, -1), word_means=True), [0, 1], weights)
    for layer in range(2):
        for sentence in range(4):
            scores = []
            for word in range(max(WORDS[sentence]) + 1):
                of_word = (tokens.sentences == sentence) & (words == word)
                mean = np.mean(layers[layer][of_word].astype(np.float64), axis=0)
                scores.append(float(mean @ (weights[layer][1] - weights[layer][0]).double().numpy()))
            assert found[layer, sentence] == np.argmax(scores)
    assert found[:, 3].tolist() == [0, 0]  # of equally likely words the first


def test_shares_and_their_differences_are_those_of_the_sentences() -> None:
    first, second = np.array([True] * 30 + [False] * 10), np.array([False] * 20 + [True] * 20)
    own, difference = counted("test", first), compared("difference", first, second)
    assert own["test"] == 0.75
    assert own["test_low"] < 0.75 < own["test_high"]
    assert difference["difference"] == 0.25
    assert difference["difference_low"] < 0.25 < difference["difference_high"]
    assert compared("difference", first, first)["difference"] == 0
