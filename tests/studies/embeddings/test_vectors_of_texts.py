"""Vectors of texts are those of sentence-transformers' definition, and what is taken from them is what is said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from families import untouched
from probing.cache.source import ActivationSource
from probing.cache.tokens import Tokens
from probing.corpus import from_sentences
from probing.downstream.names import Pooling
from probing.models import load_tokenizer
from probing.studies.embeddings.survey import Pooled, PositionPart, bag_of_words
from synthetic import make_store, make_tokens, positional

pytestmark = [
    pytest.mark.numeric,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.. is deprecated:FutureWarning"),
]
Array = NDArray[np.float64]
LENGTHS = [5, 9, 3, 12, 7] * 6


@pytest.mark.parametrize("pooling", ["mean_special", "cls"])
def test_vectors_are_those_of_a_plain_loop_over_the_model(
    pooling: Pooling, tiny_model: Callable[..., Path], sentences: list[str], tmp_path: Path
) -> None:
    folder = tiny_model("bert")
    source = ActivationSource.of(str(folder), None, -1, {}, cache=tmp_path / "cache")
    (store,) = source.read([from_sentences("texts", sentences[:12])])
    found = Pooled.of(store, source.layers[0], pooling)
    model, tokenizer = untouched(folder), load_tokenizer(source.model)
    for i, text in enumerate(sentences[:12]):
        given = tokenizer(text, return_tensors="pt")
        with torch.inference_mode():
            states = model(**given).last_hidden_state[0].double()
        wanted = states[0] if pooling == "cls" else states.sum(0) / len(states)
        assert found.vectors[i] == pytest.approx(wanted.numpy(), abs=1e-5)
        assert (found.first[i], found.stop[i]) == (0, 1 if pooling == "cls" else len(states))


def test_what_is_taken_from_a_vector_is_the_mean_of_what_is_taken_from_its_tokens(tmp_path: Path) -> None:
    tokens = make_tokens(LENGTHS)
    states = positional(tokens, 6, 2.0)
    store = make_store(tmp_path / "store", [states], tokens)
    states = np.concatenate([store.read(0, shard.index).numpy() for shard in store.plan.shards]).astype(np.float64)
    part = PositionPart.of(store, 0)
    assert part.mean == pytest.approx(states.mean(0))
    kinds: dict[Pooling, NDArray[np.bool_]] = {
        "mean_special": tokens.lengths[tokens.sentences] > 0,
        "mean": ~tokens.special,
    }
    for pooling, kept in kinds.items():
        part = PositionPart.of(store, 0, pooling == "mean_special")
        pooled = Pooled.of(store, 0, pooling)
        for i in range(tokens.n_sentences):
            here = tokens.of_sentences(i, 1)
            own, positions = states[here][kept[here]], tokens.positions[here][kept[here]]
            assert pooled.vectors[i] == pytest.approx(own.mean(0), abs=1e-5)
            assert part.centred(pooled)[i] == pytest.approx((own - part.mean).mean(0), abs=1e-5)
            assert part.removed(pooled)[i] == pytest.approx((own - part.means[positions]).mean(0), abs=1e-5)
            own[:, [1, 4]] = part.mean[[1, 4]]
            assert part.held(pooled, [1, 4])[i] == pytest.approx(own.mean(0), abs=1e-5)


def regression(states: Array, tokens: Tokens) -> Array:
    """Return the position part by least squares on marks of positions and texts, with mean 0 over the tokens."""
    marks = [tokens.positions == one for one in range(tokens.lengths.max())]
    texts = [tokens.sentences == one for one in range(tokens.n_sentences)]
    design = np.array([*marks, *texts]).T.astype(np.float64)
    part = np.linalg.lstsq(design, states, rcond=None)[0][: len(marks)]
    return np.asarray(part - part[tokens.positions].mean(0))


def test_parts_are_those_of_a_regression_and_the_last_known_one_stands_for_later_positions(tmp_path: Path) -> None:
    tokens = make_tokens(LENGTHS)
    store = make_store(tmp_path / "store", [positional(tokens, 6, 2.0)], tokens)
    states = np.concatenate([store.read(0, shard.index).numpy() for shard in store.plan.shards]).astype(np.float64)
    part = PositionPart.of(store, 0)
    last = int(np.flatnonzero(np.bincount(tokens.positions) >= 10)[-1])
    assert last == 8  # of 30 texts, 6 are longer
    wanted = regression(states, tokens)
    assert part.means[: last + 1] == pytest.approx(states.mean(0) + wanted[: last + 1], abs=1e-6)
    assert (part.means[last:] == part.means[last]).all()
    first, stop = np.array([0, 2]), np.array([40, 5])
    means = np.concatenate([part.means[: last + 1], np.repeat(part.means[last:][:1], 31, axis=0)])
    assert part.over(first, stop) == pytest.approx(np.array([means.mean(0), means[2:5].mean(0)]))


def test_the_neurons_that_read_positions_are_found(tmp_path: Path) -> None:
    tokens = make_tokens(LENGTHS)
    states = np.random.default_rng(0).standard_normal((tokens.n_tokens, 6))
    states[:, 4] += tokens.positions
    states[:, 2] += 0.5 * tokens.positions
    states[:, 3] += tokens.sentences  # what texts add is no position
    states[:, 5] = 3.0
    store = make_store(tmp_path / "store", [states], tokens)
    part = PositionPart.of(store, 0)
    assert part.first_neurons(2) == [4, 2]
    assert part.shares[5] == 0
    assert np.abs(part.shares[[0, 1, 3]]).max() < 0.15 < part.shares[2] < part.shares[4] < 1


def test_a_bag_of_words_is_the_mean_of_the_words_rows_in_any_order() -> None:
    tokens = make_tokens([6, 6, 3, 2])
    ids = tokens.input_ids.copy()
    ids[7:11] = ids[1:5][::-1]  # the second text has the words of the first, in reverse
    object.__setattr__(tokens, "input_ids", ids)
    table = nn.Embedding(1000, 7)
    found = bag_of_words(tokens, table)
    rows = table.weight.detach().double().numpy()
    assert found[0] == pytest.approx(rows[ids[1:5]].mean(0))
    assert found[1] == pytest.approx(found[0], abs=1e-12)
    assert found[2] == pytest.approx(rows[ids[13]])
    assert (found[3] == 0).all()  # special tokens alone
