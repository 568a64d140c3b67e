"""`trees`: the certified metric against closed forms and naive loops, gold trees, and the command from end to end."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.studies.trees.metric import (
    Group,
    contributions,
    grouped,
    largest_penalty,
    mean_error,
    solve,
    spanning_edges,
)
from probing.studies.trees.survey import Scores, Tree, chain, spearman

pytestmark = pytest.mark.numeric

Vectors = list[Tensor]


def drawn(n: int, d: int, seed: int = 0) -> Vectors:
    draw = np.random.default_rng(seed)
    return [torch.from_numpy(draw.normal(size=(draw.integers(4, 12), d))) for _ in range(n)]


def distances(vectors: Tensor, factor: Tensor) -> NDArray[np.float64]:
    mapped = vectors @ factor.T
    return np.asarray((mapped[:, None] - mapped[None]).square().sum(-1).numpy())


def depths(vectors: Tensor, factor: Tensor) -> NDArray[np.float64]:
    return np.asarray((vectors @ factor.T).square().sum(-1).numpy())


def random_tree(n: int, draw: np.random.Generator) -> Tree:
    """Return a tree in which each word of a random order is attached to an earlier one."""
    order = draw.permutation(n)
    heads = np.full(n, -1, dtype=np.int64)
    for i in range(1, n):
        heads[order[i]] = order[draw.integers(i)]
    return Tree(heads, np.ones(n, dtype=bool))


def objective(matrix: NDArray[np.float64], vectors: Vectors, gold: list[NDArray[np.float64]], penalty: float) -> float:
    """Return the objective in a loop over pairs, in float64."""
    total = 0.0
    for states, of_sentence in zip(vectors, gold, strict=True):
        x = states.numpy()
        for i in range(len(x)):
            for j in range(len(x)):
                difference = x[i] - x[j]
                total += (of_sentence[i, j] - difference @ matrix @ difference) ** 2 / len(x) ** 2 / len(vectors)
    return float(total + penalty * np.trace(matrix))


@pytest.mark.parametrize("gold_of", [distances, depths])
def test_a_planted_metric_is_recovered(gold_of: Any) -> None:
    vectors, other = drawn(120, 10), drawn(20, 10, seed=1)
    planted = torch.from_numpy(np.random.default_rng(2).normal(size=(3, 10)))
    groups = grouped(vectors, [gold_of(states, planted) for states in vectors])
    metric = solve(groups, 1e-6 * largest_penalty(groups))
    for states in other:
        np.testing.assert_allclose(gold_of(states, metric.factor), gold_of(states, planted), rtol=0.01, atol=0.01)
    assert metric.gap <= 1e-3 * metric.objective


def test_objective_and_predictions_are_those_of_a_loop_in_float64() -> None:
    vectors = drawn(10, 6)
    gold = [distances(states, torch.eye(6, dtype=torch.float64)[:2]) + 1 for states in vectors]
    groups = grouped(vectors, gold)
    metric = solve(groups, 0.1 * largest_penalty(groups))
    matrix = (metric.factor.T @ metric.factor).numpy()
    assert metric.objective == pytest.approx(objective(matrix, vectors, gold, metric.penalty), rel=1e-9)
    predicted = [d for group in groups for d in group.predicted(metric.factor)[1]]
    by_length = sorted(vectors, key=len)
    for states, of_group in zip(by_length, predicted, strict=True):
        for i, j in combinations(range(len(states)), 2):
            difference = (states[i] - states[j]).numpy()
            assert float(of_group[i, j]) == pytest.approx(difference @ matrix @ difference, abs=1e-9)


@pytest.mark.parametrize("share", [0.5, 0.05, 1e-3])
def test_the_optimum_of_a_projected_method_is_within_the_gap(share: float) -> None:
    vectors = drawn(15, 4, seed=3)
    draw = np.random.default_rng(4)
    gold = [random_tree(len(states), draw).distances for states in vectors]
    groups = grouped(vectors, gold)
    penalty = share * largest_penalty(groups)
    metric = solve(groups, penalty, tolerance=1e-6)
    # Projected gradient on all of M: the map is linear, so that its Gram matrix has the step.
    pairs = [
        ((states[i] - states[j]).numpy(), of[i, j], len(states))
        for states, of in zip(vectors, gold, strict=True)
        for i in range(len(states))
        for j in range(len(states))
    ]
    rows = np.stack([np.outer(x, x).ravel() / n / len(vectors) ** 0.5 for x, _, n in pairs])
    target = np.array([of / n / len(vectors) ** 0.5 for _, of, n in pairs])
    matrix = np.zeros((4, 4))
    step = 1 / (2 * np.linalg.norm(rows, 2) ** 2)
    for _ in range(20_000):
        gradient = 2 * (rows.T @ (rows @ matrix.ravel() - target)).reshape(4, 4) + penalty * np.eye(4)
        values, axes = np.linalg.eigh(matrix - step * gradient)
        matrix = (axes * values.clip(min=0)) @ axes.T
    reference = objective(matrix, vectors, gold, penalty)
    assert reference - 1e-9 <= metric.objective <= reference + metric.gap + 1e-6 * reference


def test_nothing_is_learned_from_the_largest_penalty_on() -> None:
    vectors = drawn(20, 5)
    groups = grouped(vectors, [distances(states, torch.eye(5, dtype=torch.float64)) for states in vectors])
    assert solve(groups, 1.001 * largest_penalty(groups)).rank == 0
    assert solve(groups, 0.9 * largest_penalty(groups)).rank > 0


def test_the_gap_bounds_the_distance_to_a_better_solution() -> None:
    vectors = drawn(30, 8, seed=5)
    draw = np.random.default_rng(6)
    groups = grouped(vectors, [random_tree(len(states), draw).distances for states in vectors])
    penalty = 0.01 * largest_penalty(groups)
    rough, exact = solve(groups, penalty, tolerance=0.1), solve(groups, penalty, tolerance=1e-7)
    assert exact.objective <= rough.objective + 1e-9
    assert rough.objective - exact.objective <= rough.gap + 1e-9


def test_contributions_of_neurons_add_up_to_the_mean_distance_where_all_are_positive() -> None:
    vectors = drawn(10, 6)
    groups = grouped(vectors, [distances(states, torch.eye(6, dtype=torch.float64)) for states in vectors])
    diagonal = torch.diag(torch.tensor([2.0, 1.0, 0.5, 0.0, 0.0, 0.0], dtype=torch.float64))
    of_neurons = contributions(groups, diagonal)
    pairs = [(states[i] - states[j]).square() for states in vectors for i, j in combinations(range(len(states)), 2)]
    expected = torch.stack(pairs).mean(0) * torch.tensor([4.0, 1.0, 0.25, 0.0, 0.0, 0.0], dtype=torch.float64)
    torch.testing.assert_close(of_neurons, expected)


def test_trees_have_the_distances_depths_and_edges_of_their_heads() -> None:
    # "The cat sat ." with the full stop attached to the verb.
    tree = Tree(np.array([1, 2, -1, 2]), np.array([True, True, True, False]))
    assert tree.root == 2
    assert tree.distances.tolist() == [[0, 1, 2, 3], [1, 0, 1, 2], [2, 1, 0, 1], [3, 2, 1, 0]]
    assert tree.depths.tolist() == [2, 1, 0, 1]
    assert tree.edges == {(0, 1), (1, 2)}


def test_the_gold_distances_score_perfectly_and_the_chain_as_counted() -> None:
    draw = np.random.default_rng(7)
    trees = [random_tree(n, draw) for n in (6, 9, 12)]
    perfect = Scores.of(trees, [tree.distances for tree in trees], [tree.depths for tree in trees])
    assert perfect.right.tolist() == perfect.n_edges.tolist() == [5, 8, 11]
    assert perfect.root.tolist() == [1, 1, 1]
    np.testing.assert_allclose(perfect.distance_spearman, 1)
    np.testing.assert_allclose(perfect.depth_spearman, 1)
    neighbours = [sum(abs(i - head) == 1 for i, head in enumerate(tree.heads) if head >= 0) for tree in trees]
    assert chain(trees).right.tolist() == neighbours


def test_spanning_edges_are_those_of_the_least_sum_even_where_distances_are_0() -> None:
    distance = np.array([[0.0, 0.0, 5.0], [0.0, 0.0, 1.0], [5.0, 1.0, 0.0]])
    assert {tuple(sorted(edge)) for edge in spanning_edges(distance).tolist()} == {(0, 1), (1, 2)}


def test_rank_correlations_share_ranks_of_ties() -> None:
    from scipy.stats import spearmanr

    draw = np.random.default_rng(8)
    a, b = draw.integers(0, 4, (5, 9)).astype(float), draw.normal(size=(5, 9))
    np.testing.assert_allclose(spearman(a, b), [spearmanr(x, y).statistic for x, y in zip(a, b, strict=True)])
    assert spearman(np.zeros((1, 3)), b[:1, :3]).tolist() == [0.0]


def test_groups_weigh_sentences_alike() -> None:
    vectors = [torch.zeros(n, 3, dtype=torch.float64) for n in (2, 5, 5)]
    groups = grouped(vectors, [np.ones((n, n)) for n in (2, 5, 5)])
    assert [group.vectors.shape for group in groups] == [(1, 2, 3), (2, 5, 3)]
    assert isinstance(groups[0], Group)
    assert mean_error(groups, torch.zeros(1, 3, dtype=torch.float64)) == pytest.approx(1.0)


def write_treebank(path: Path, sentences: list[str], seed: int = 0, heads: Any = None) -> Path:
    """Write a treebank of random trees, or of the heads that a function of a number of words returns."""
    draw, lines = np.random.default_rng(seed), []
    for sentence in sentences:
        words = sentence.split()
        of_words = random_tree(len(words), draw).heads if heads is None else np.array(heads(len(words)))
        for i, (word, head) in enumerate(zip(words, of_words, strict=True), 1):
            relation = "root" if head < 0 else "punct" if word == "." else "dep"
            lines.append(f"{i}\t{word}\t_\tNOUN\t_\t_\t{head + 1}\t{relation}\t_\t_")
        lines.append("")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
