"""Vectors of texts are those of sentence-transformers' definition, and what is taken from them is what is said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from families import untouched
from probing.cache.source import ActivationSource
from probing.corpus import from_sentences
from probing.downstream.names import Pooling
from probing.models import load_tokenizer
from probing.studies.embeddings.vectors import Pooled, PositionPart, bag_of_words
from synthetic import make_store, make_tokens, positional

pytestmark = [
    pytest.mark.numeric,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.. is deprecated:FutureWarning"),
]
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
    for pooling, kept in (("mean_special", np.ones(tokens.n_tokens, dtype=bool)), ("mean", ~tokens.special)):
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


def test_position_means_are_those_of_each_position_and_the_last_known_one_stands_for_later_ones(tmp_path: Path) -> None:
    tokens = make_tokens(LENGTHS)
    store = make_store(tmp_path / "store", [positional(tokens, 6, 2.0)], tokens)
    states = np.concatenate([store.read(0, shard.index).numpy() for shard in store.plan.shards]).astype(np.float64)
    part = PositionPart.of(store, 0)
    n = np.bincount(tokens.positions)
    last = int(np.flatnonzero(n >= 10)[-1])
    assert last == 8  # of 30 texts, 6 are longer
    for position in range(last + 1):
        assert part.means[position] == pytest.approx(states[tokens.positions == position].mean(0), abs=1e-6)
    assert (part.means[last:] == part.means[last]).all()
    first, stop = np.array([0, 2]), np.array([40, 5])
    means = np.concatenate([part.means[: last + 1], np.repeat(part.means[last:][:1], 31, axis=0)])
    assert part.over(first, stop) == pytest.approx(np.array([means.mean(0), means[2:5].mean(0)]))


def test_eta_squared_is_the_share_between_positions_and_finds_the_neurons_that_read_them(tmp_path: Path) -> None:
    tokens = make_tokens(LENGTHS)
    generator = np.random.default_rng(0)
    states = generator.standard_normal((tokens.n_tokens, 6))
    states[:, 4] += tokens.positions
    states[:, 2] += 0.5 * tokens.positions
    states[:, 5] = 3.0
    store = make_store(tmp_path / "store", [states], tokens)
    part = PositionPart.of(store, 0)
    assert part.first_neurons(2) == [4, 2]
    assert part.eta_squared[5] == 0
    words, positions = states[~tokens.special].astype(np.float32).astype(np.float64), tokens.positions[~tokens.special]
    for neuron in range(5):
        values = words[:, neuron]
        groups = [values[positions == one] for one in np.unique(positions)]
        between = sum(len(one) * (one.mean() - values.mean()) ** 2 for one in groups)
        assert part.eta_squared[neuron] == pytest.approx(between / ((values - values.mean()) ** 2).sum())


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
