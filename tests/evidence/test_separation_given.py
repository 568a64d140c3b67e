"""How neurons go with labels where something is held fixed, streamed from a store."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from probing.data.examples import with_given
from probing.evidence import table as module
from probing.evidence.table import compared_with, separation_given
from probing.statistics.label_scores import ConditionalAccumulator, StratumMeans, WithinStrata, strata_with_several
from synthetic import Data, make_store, make_tokens, positional, sides

pytestmark = pytest.mark.numeric


@pytest.fixture
def given(tmp_path: Path) -> Data:
    """Positions beside values that half of the tokens share with their position."""
    generator = np.random.default_rng(0)
    tokens = make_tokens(generator.integers(6, 12, 150).tolist())
    values = np.where(
        generator.random(tokens.n_tokens) < 0.5, tokens.positions, generator.integers(12, size=tokens.n_tokens)
    )
    found = with_given(sides(make_store(tmp_path / "store", [positional(tokens, 5, 0.3)], tokens)), [values])
    assert isinstance(found, Data)
    return found


def test_it_is_that_of_all_examples_at_once(given: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    train, n_classes = given.train, len(given.classes)
    assert train.given is not None
    strata = strata_with_several(train.given, train.labels)
    kept = strata >= 0
    used = replace(train, labels=np.where(kept, train.labels, -1).astype(np.int32))
    states = torch.cat([train.store.read(0, shard.index) for shard in train.store.plan.shards]).double()[kept]
    label, stratum = torch.from_numpy(train.labels[kept]).long(), torch.from_numpy(strata[kept])
    sentences = torch.from_numpy(train.store.tokens.sentences[kept]).long()
    codes = used.codes(n_classes)
    vectors = WithinStrata.of(codes, label, stratum)
    means = StratumMeans.empty(len(vectors.sizes), 5)
    means.add(states, stratum, sentences)
    between = codes.excess_between(used.labels, train.store.tokens.sentences)
    sums = ConditionalAccumulator(means.over(vectors.sizes), vectors, between)
    sums.update(states, stratum, label, sentences, sentences)
    expected, found = sums.result(), separation_given(train, 0, n_classes)
    monkeypatch.setattr(module, "neurons_at_a_time", lambda n_columns: 2)
    for one in (found, separation_given(train, 0, n_classes)):
        assert one is not None
        for own, other in zip(vars(one).values(), vars(expected).values(), strict=True):
            assert torch.allclose(own, other, rtol=1e-6, atol=1e-9)
    assert compared_with(train) == {"n_tokens": int(kept.sum()), "n_values": int(strata.max()) + 1}


def test_without_anything_held_fixed_there_is_none(given: Data) -> None:
    assert separation_given(replace(given.train, given=None), 0, len(given.classes)) is None
