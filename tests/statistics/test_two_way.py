"""The two-way split against least squares on the whole design, means of a balanced one, and all orders of tokens."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from probing.statistics.two_way import TwoWaySums, jackknife_interval
from probing.statistics.two_way_design import Design

pytestmark = pytest.mark.numeric
Array = NDArray[np.float64]
D = 5


def positions_of(sizes: Any, first: int = 0) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the sentence and the position of each token, positions in a row."""
    sentences = np.repeat(np.arange(len(sizes)), sizes).astype(np.int32)
    return sentences, np.concatenate([np.arange(first, first + size) for size in sizes]).astype(np.int32)


def summed(design: Design, states: Array, with_covariance: bool = False) -> TwoWaySums:
    """Return the sums of states, added in two parts."""
    sums = TwoWaySums(design, states.shape[1], with_covariance)
    half = int(np.cumsum(design.sizes)[design.n_sentences // 2])
    for part in (states[:half], states[half:]):
        sums.update(torch.from_numpy(part))
    return sums


def marks(of: Any) -> Array:
    return (np.asarray(of)[:, None] == np.unique(of)).astype(np.float64)


def left(states: Array, *columns: Array) -> Array:
    """Return each neuron's residual sum of squares after least squares on columns, by numpy."""
    x = np.hstack(columns)
    return np.square(states - x @ np.linalg.lstsq(x, states, rcond=None)[0]).sum(0)


@settings(max_examples=25, deadline=None)
@example([2, 1, 1], 14, True)  # one sentence is left, and without its group there is none
@given(st.lists(st.integers(1, 7), min_size=3, max_size=12), st.integers(0, 10**6), st.booleans())
def test_sums_of_squares_are_those_of_least_squares(sizes: list[int], seed: int, has_gaps: bool) -> None:
    generator = np.random.default_rng(seed)
    sentences, positions = positions_of(sizes)
    if has_gaps:
        # Some tokens are left out, as special ones are: positions are then not in a row.
        kept = generator.random(len(positions)) < 0.7
        kept[:2] = True
        sentences, positions = sentences[kept], positions[kept]
    states = generator.normal(size=(len(sentences), D)) * [1, 5, 1, 1, 100] + [0, 0, 1000, 0, 1e4]
    sums = summed(Design(sentences, positions, seed), states)
    one, p, c = np.ones((len(states), 1)), marks(positions), marks(sentences)
    total, of_p, of_c, both = left(states, one), left(states, p), left(states, c), left(states, p, c)
    found = sums.shares(by_neuron=True)[0].found
    expected = {
        "position": of_c - both, "context": of_p - both, "rest": both, "position_alone": total - of_p,
        "context_alone": total - of_c, "shared": of_c.clip(0) * -1 + both - of_p + total,
    }  # fmt: skip
    for part, squares in expected.items():
        np.testing.assert_allclose(found[part], squares / total, atol=1e-9, err_msg=part)
    together = sums.shares()[0].found
    np.testing.assert_allclose(together["position"], (of_c - both).sum() / total.sum(), atol=1e-9)
    np.testing.assert_allclose(sum(together[part] for part in ("position", "context", "shared", "rest")), 1)


def test_a_balanced_design_is_that_of_means() -> None:
    """Song & Zhong (2023), equation 1."""
    generator = np.random.default_rng(0)
    n_sentences, n_positions = 30, 9
    cube = generator.normal(size=(n_sentences, n_positions, D)) + generator.normal(size=(n_positions, D))
    sums = summed(Design(*positions_of([n_positions] * n_sentences)), cube.reshape(-1, D), with_covariance=True)
    mean = cube.mean((0, 1))
    position, context = cube.mean(0) - mean, cube.mean(1) - mean
    rest = cube - mean - position - context[:, None]
    total = np.square(cube - mean).sum()
    found = sums.shares()[0].found
    np.testing.assert_allclose(sums.position_part(sums.design.whole), position, atol=1e-8)
    np.testing.assert_allclose(found["position"], n_sentences * np.square(position).sum() / total, atol=1e-8)
    np.testing.assert_allclose(found["position_alone"], found["position"], atol=1e-8)
    np.testing.assert_allclose(found["context"], n_positions * np.square(context).sum() / total, atol=1e-8)
    np.testing.assert_allclose(found["shared"], 0, atol=1e-8)
    of_context, of_rest = sums.covariances()
    flat = rest.reshape(-1, D)
    np.testing.assert_allclose(of_rest, flat.T @ flat, atol=1e-8)
    noise = (n_sentences - 1) * of_rest / ((n_sentences - 1) * (n_positions - 1))
    np.testing.assert_allclose(of_context, n_positions * context.T @ context - noise, atol=1e-8)


def test_chance_is_the_mean_over_all_orders_within_sentences() -> None:
    generator = np.random.default_rng(1)
    sizes = [3, 2, 3, 1]
    sentences, positions = positions_of(sizes)
    design = Design(sentences, positions)
    states = generator.normal(size=(len(sentences), 2)) * [1, 3]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    orders = itertools.product(*(itertools.permutations(range(a, b)) for a, b in itertools.pairwise(starts)))
    shares = []
    for order in orders:
        found = summed(design, states[list(itertools.chain(*order))]).shares()[0].found
        shares.append((found["position"], found["position_alone"]))
    assert len(shares) == 6 * 2 * 6
    chance = summed(design, states).shares()[0].chance
    np.testing.assert_allclose((chance["position"], chance["position_alone"]), np.mean(shares, 0), atol=1e-12)


def test_eta_squared_times_variance_adds_up_to_the_share_of_positions() -> None:
    generator = np.random.default_rng(2)
    sentences, positions = positions_of(generator.integers(2, 9, 40))
    states = generator.normal(size=(len(sentences), D)) + np.sin(positions)[:, None] * np.arange(D)
    sums = summed(Design(sentences, positions), states)
    eta_squared = []
    for neuron in states.T:
        means = {t: neuron[positions == t].mean() for t in np.unique(positions)}
        between = sum((positions == t).sum() * (means[t] - neuron.mean()) ** 2 for t in means)
        eta_squared.append(between / np.square(neuron - neuron.mean()).sum())
    variance = states.var(0)
    share = float(eta_squared @ variance / variance.sum())
    np.testing.assert_allclose(sums.shares()[0].found["position_alone"], share, atol=1e-12)
    np.testing.assert_allclose(sums.shares(by_neuron=True)[0].found["position_alone"], eta_squared, atol=1e-12)
    np.testing.assert_allclose(sums.variance, variance)
    standardised = sums.shares(standardised=True)[0].found["position_alone"]
    np.testing.assert_allclose(standardised, np.mean(eta_squared), atol=1e-12)


@pytest.mark.parametrize("largest", [1, 30])
def test_positions_in_random_order_have_no_share(largest: float) -> None:
    """In at least 19 of 20 draws the interval holds 0, also where one neuron has nearly all of the variance."""
    generator = np.random.default_rng(3)
    holds, excess = [], []
    for draw in range(40):
        sentences, positions = positions_of(generator.integers(3, 25, 80))
        scale = np.array([largest, 1, 1, 1, 1.0])
        states = generator.normal(size=(80, D))[sentences] + generator.normal(size=(len(sentences), D)) * scale
        shares = summed(Design(sentences, positions, draw), states).shares()
        values = np.array([float(one.excess["position"]) for one in shares])
        low, high = jackknife_interval(values, 80)
        holds.append(low <= 0 <= high)
        excess.append(values[0])
    assert np.mean(holds) >= 0.95
    assert abs(np.mean(excess)) < 3 * np.std(excess) / np.sqrt(len(excess))


def test_a_planted_share_is_found_without_bias() -> None:
    generator = np.random.default_rng(4)
    holds, found = [], []
    code = np.stack([np.sin(np.arange(25) / 4), np.cos(np.arange(25) / 4), *np.zeros((D - 2, 25))], 1)
    for draw in range(40):
        sentences, positions = positions_of(generator.integers(3, 25, 80))
        part = 0.5 * code[positions]
        sizes = np.bincount(sentences)[:, None]
        of_sentences = np.stack([np.bincount(sentences, column) for column in part.T], 1) / sizes
        squares = np.square(part - of_sentences[sentences]).sum()
        states = part + generator.normal(size=(len(sentences), D))
        # What the total is on average: that of the part about its mean, and of the noise.
        total = np.square(part - part.mean(0)).sum() + (len(part) - 1) * D
        shares = summed(Design(sentences, positions, draw), states).shares()
        values = np.array([float(one.excess["position"]) for one in shares])
        low, high = jackknife_interval(values, 80)
        holds.append(low <= squares / total <= high)
        found.append(values[0] - squares / total)
    assert np.mean(holds) >= 0.9
    assert abs(np.mean(found)) < 3 * np.std(found) / np.sqrt(len(found))


def test_what_is_not_whole_sentences_is_refused() -> None:
    design = Design(*positions_of([2, 3]))
    sums = TwoWaySums(design, 1)
    with pytest.raises(ValueError, match="not whole sentences"):
        sums.update(torch.zeros(3, 1))
    with pytest.raises(ValueError, match="not whole sentences"):
        sums.update(torch.zeros(6, 1))
    sums.update(torch.zeros(0, 1))


def test_a_neuron_that_does_not_vary_has_no_share_and_counts_for_nothing() -> None:
    generator = np.random.default_rng(5)
    sentences, positions = positions_of([4] * 25)
    states = np.hstack([generator.normal(size=(100, 2)), np.full((100, 1), 0.1)])
    sums, alone = (summed(Design(sentences, positions), one) for one in (states, states[:, :2]))
    by_neuron = sums.shares(by_neuron=True)[0].excess["position"]
    assert np.isnan(by_neuron[2])
    assert np.isfinite(by_neuron[:2]).all()
    for standardised in (False, True):
        np.testing.assert_allclose(
            sums.shares(standardised)[0].excess["position"], alone.shares(standardised)[0].excess["position"]
        )


def test_eta_squared_of_some_groups_is_that_of_their_tokens() -> None:
    generator = np.random.default_rng(17)
    sizes = generator.integers(2, 9, 60)
    sentences = np.repeat(np.arange(60), sizes).astype(np.int32)
    positions = np.concatenate([np.arange(size) for size in sizes]).astype(np.int32)
    states = 5 + generator.normal(size=(len(positions), 3)) + positions[:, None] * [1.0, 0.1, 0.0]
    states[:, 2] = 0.7
    design = Design(sentences, positions)
    sums = TwoWaySums(design, 3)
    sums.update(torch.from_numpy(states))
    groups = design.parts(2)[1]
    chosen = np.isin(design.groups[sentences], groups)
    x, t = states[chosen], positions[chosen]
    expected = [sum((t == p).sum() * (x[t == p, j].mean() - x[:, j].mean()) ** 2 for p in set(t.tolist()))
                / ((x[:, j] - x[:, j].mean()) ** 2).sum() for j in (0, 1)]  # fmt: skip
    np.testing.assert_allclose(sums.eta_squared(groups, design.solve(groups)), [*expected, 0], rtol=1e-9)
