"""Heads with outliers held in their queries and keys: planted reading is found, and none where nothing is read."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from probing.heads.position_controls import NEAREST
from probing.models.attention_heads import QueryKey
from probing.results.schema import ALL_LAYERS
from probing.studies.geometry.extremes.held import (
    DRAWS,
    Inputs,
    Sample,
    agrees,
    compare,
    distinct_sets,
    effects,
    held_rows,
)

pytestmark = pytest.mark.numeric

D, D_HEAD, OUTLIER = 64, 6, 9
LENGTHS = (5, 8, 3, 8, 11, 6)
NOTHING: NDArray[np.int64] = np.empty((1, 0), dtype=np.int64)


def sample(is_causal: bool = False) -> Sample:
    sentences = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
    special = np.zeros(sum(LENGTHS), dtype=bool)
    special[np.cumsum(LENGTHS) - np.array(LENGTHS)] = True
    return Sample(np.arange(sum(LENGTHS)), sentences, special, is_causal)


def planted(seed: int = 0) -> tuple[Inputs, QueryKey]:
    """Return a block of two heads: the first one reads mostly the outlier, the second one everything but that."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    states = normal(sum(LENGTHS), D) + 5 * (torch.arange(D) == OUTLIER)
    query, key = 0.1 * normal(2, D, D_HEAD), 0.1 * normal(2, D, D_HEAD)
    query[0, OUTLIER], key[0, OUTLIER] = 1.5, 1.5
    query[1, OUTLIER], key[1, OUTLIER] = 0, 0
    heads = QueryKey(query, normal(2, D_HEAD), key, None)
    return Inputs(states, states.mean(0), states.std(0, correction=0).numpy()), heads


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("has_biases", [False, True])
def test_effects_are_those_of_a_loop(is_causal: bool, has_biases: bool) -> None:
    inputs, heads = planted()
    if has_biases:
        of = torch.randn(2, 2 * max(LENGTHS) - 1, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
        heads = replace(heads, biases=of)
    asked, sets = sample(is_causal), np.array([[OUTLIER, 3], [1, 2]])
    factors = np.array([1.0, 2.5])
    found = effects(inputs, heads, asked, sets, factors)
    for h in range(2):
        for s, (held, times) in enumerate(zip(sets, factors, strict=True)):
            divergence, special, whole = 0.0, 0.0, 0.0
            for sentence in range(len(LENGTHS)):
                rows = np.flatnonzero(asked.sentences == sentence)
                changed = inputs.states[rows].clone()
                changed[:, held] -= times * (changed[:, held] - inputs.mean[held])
                p, q = (maps_of(heads, h, states, is_causal) for states in (inputs.states[rows], changed))
                for i in range(len(rows)):
                    for j in range(len(rows)):
                        middle = (p[i, j] + q[i, j]) / 2
                        divergence += sum(a * math.log(a / middle) / 2 for a in (p[i, j], q[i, j]) if a > 0)
                special += q[:, asked.special[rows]].sum()
                whole += p[:, asked.special[rows]].sum()
            n = len(asked.rows)
            assert found.divergence[h, s] == pytest.approx(divergence / n, rel=1e-9)
            assert found.special[h, s] == pytest.approx(special / n, rel=1e-9)
            assert found.whole[h] == pytest.approx(whole / n, rel=1e-9)


def maps_of(heads: QueryKey, h: int, states: torch.Tensor, is_causal: bool) -> NDArray[np.float64]:
    scores = (states @ heads.query[h] + heads.query_bias[h]) @ (states @ heads.key[h]).T
    places = torch.arange(len(states))
    scores = scores + heads.biases_at(places - places[:, None])[h]
    if is_causal:
        scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
    made: NDArray[np.float64] = scores.softmax(1).numpy()
    return made


def test_attention_is_exactly_the_same_where_no_neuron_is_held() -> None:
    inputs, heads = planted()
    found = effects(inputs, heads, sample(), NOTHING, np.ones(1))
    assert found.divergence.tolist() == [[0.0], [0.0]]
    np.testing.assert_array_equal(found.special[:, 0], found.whole)


def test_an_outlier_that_a_head_reads_has_the_least_p_and_one_that_it_does_not_read_has_the_largest() -> None:
    inputs, heads = planted()
    made = compare(4, [OUTLIER], inputs, heads, sample(), seed=0)
    assert made.n_draws == NEAREST
    block, reads, does_not = held_rows([made], seed=0)
    assert [row.get("head") for row in (block, reads, does_not)] == [None, 1, 2]
    assert reads["divergence_p"] == reads["divergence_scaled_p"] == 1 / (1 + NEAREST)
    assert reads["divergence"] > 5 * reads["divergence_matched_high"]
    assert does_not["divergence"] == 0
    assert does_not["special_held"] == does_not["special"]
    assert does_not["divergence_p"] == does_not["special_p"] == 1
    assert reads["divergence_p_holm"] == pytest.approx(2 / (1 + NEAREST))
    assert block["divergence"] == pytest.approx(reads["divergence"] / 2)
    assert block["divergence_p_holm"] == block["divergence_p"]


def test_neurons_that_are_no_outliers_have_no_small_p_more_often_than_chance() -> None:
    generator = np.random.default_rng(0)
    p = []
    for seed in range(60):
        inputs, heads = planted(seed)
        (neuron,) = generator.choice(np.setdiff1d(np.arange(D), OUTLIER), 1)
        row, *_ = held_rows([compare(1, [neuron], inputs, heads, sample(), seed, without=[OUTLIER])], seed)
        p.append(row["divergence_p"])
    assert np.mean(np.array(p) <= 0.1) < 0.25
    assert 0.35 < np.mean(p) < 0.7


def test_matched_sets_are_distinct_and_hold_no_outlier_by_any_definition() -> None:
    sd = np.linspace(1, 2, D)
    one = distinct_sets(sd, [OUTLIER], DRAWS, np.random.default_rng(0), without=[10])
    assert len(one) == NEAREST == len(np.unique(one))
    assert not {OUTLIER, 10} & set(one.flatten().tolist())
    assert np.abs(one - OUTLIER).max() <= NEAREST
    several = distinct_sets(sd, [OUTLIER, 40, 41], DRAWS, np.random.default_rng(0), without=[10])
    assert several.shape == (DRAWS, 3) == np.unique(several, axis=0).shape
    assert not {OUTLIER, 10, 40, 41} & set(several.flatten().tolist())
    assert all(len(set(row)) == 3 for row in several.tolist())


def test_scaled_sets_take_away_the_variance_of_the_outliers() -> None:
    inputs, heads = planted()
    inputs = replace(inputs, sd=np.where(np.arange(D) == OUTLIER, 3.0, 1.5))
    made = compare(1, [OUTLIER], inputs, heads, sample(), seed=0)
    assert made.sd_ratio == 2
    sets = distinct_sets(inputs.sd, [OUTLIER], DRAWS, np.random.default_rng([0, 1, 5]))
    scaled = effects(inputs, heads, sample(), sets, np.full(len(sets), 2.0))
    np.testing.assert_allclose(made.effects.divergence[:, 1 + len(sets) :], scaled.divergence, rtol=1e-12)


def test_the_row_of_all_blocks_is_the_mean_over_their_heads() -> None:
    inputs, heads = planted()
    chosen = {1: [OUTLIER], 2: [OUTLIER, 3]}
    several = [compare(layer, held, inputs, heads, sample(), seed=0) for layer, held in chosen.items()]
    whole, *rows = held_rows(several, seed=0)
    assert (whole["layer"], whole["neurons"], whole["n_draws"]) == (ALL_LAYERS, f"3 {OUTLIER}", DRAWS)
    of_heads = [row for row in rows if "head" in row]
    assert len(of_heads) == 4
    assert whole["divergence"] == pytest.approx(np.mean([row["divergence"] for row in of_heads]))
    assert whole["divergence_p"] == pytest.approx(1 / (1 + DRAWS))


def test_attention_that_does_not_follow_from_queries_and_keys_is_noticed() -> None:
    inputs, heads = planted()
    found = effects(inputs, heads, sample(), NOTHING, np.ones(1))
    assert agrees(found, found.whole + 0.005)
    assert not agrees(found, found.whole + np.array([0, 0.02]))
