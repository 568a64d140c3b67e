"""`trees`: the certified metric against closed forms and naive loops, gold trees, and the command from end to end."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from conftest import make_sentences
from probing.__main__ import COMMANDS
from probing.cli.commandline import run
from probing.runs.loading import load_run
from probing.studies.trees.metric import Group, contributions, grouped, mean_error, solve
from probing.studies.trees.survey import (
    LayerProbes,
    Tree,
    Treebank,
    TreeScores,
    TreeWords,
    chain,
    decoded_heads,
    predictions,
    spanning_edges,
    spearman,
)
from wandb_stand_in import read_offline_runs
from written import read_csv

pytestmark = pytest.mark.numeric

Vectors = list[Tensor]
SENTENCES = make_sentences(300, longest=24)


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


def largest_penalty(vectors: Vectors, gold: list[NDArray[np.float64]]) -> float:
    """Return the smallest penalty at which a metric of zeros is optimal: there, no direction gains more."""
    gain = np.zeros((vectors[0].shape[1], vectors[0].shape[1]))
    for states, of_sentence in zip(vectors, gold, strict=True):
        x = states.numpy()
        is_depth = of_sentence.ndim == 1
        differences = x if is_depth else (x[:, None] - x[None]).reshape(-1, x.shape[1])
        gain += 2 * (differences.T * of_sentence.ravel()) @ differences / of_sentence.size / len(vectors)
    return float(np.linalg.eigvalsh(gain)[-1])


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
    gold = [gold_of(states, planted) for states in vectors]
    metric = solve(grouped(vectors, gold), 1e-6 * largest_penalty(vectors, gold))
    for states in other:
        np.testing.assert_allclose(gold_of(states, metric.factor), gold_of(states, planted), rtol=0.01, atol=0.01)
    assert metric.gap <= 1e-3 * metric.objective


def test_objective_and_predictions_are_those_of_a_loop_in_float64() -> None:
    vectors = drawn(10, 6)
    gold = [distances(states, torch.eye(6, dtype=torch.float64)[:2]) + 1 for states in vectors]
    groups = grouped(vectors, gold)
    metric = solve(groups, 0.1 * largest_penalty(vectors, gold))
    matrix = (metric.factor.T @ metric.factor).numpy()
    assert metric.objective == pytest.approx(objective(matrix, vectors, gold, metric.penalty), rel=1e-9)
    for states, of_sentence in zip(vectors, predictions(groups, metric), strict=True):
        for i, j in combinations(range(len(states)), 2):
            difference = (states[i] - states[j]).numpy()
            assert of_sentence[i, j] == pytest.approx(difference @ matrix @ difference, abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.5, 0.05, 1e-3])
def test_the_optimum_of_a_projected_method_is_within_the_gap(share: float) -> None:
    vectors = drawn(30, 8, seed=3)
    draw = np.random.default_rng(4)
    gold = [random_tree(len(states), draw).distances for states in vectors]
    penalty = share * largest_penalty(vectors, gold)
    metric = solve(grouped(vectors, gold), penalty)
    # Projected gradient on all of M: the map is linear, so that its Gram matrix has the step.
    pairs = [
        ((states[i] - states[j]).numpy(), of[i, j], len(states))
        for states, of in zip(vectors, gold, strict=True)
        for i in range(len(states))
        for j in range(len(states))
    ]
    rows = np.stack([np.outer(x, x).ravel() / n / len(vectors) ** 0.5 for x, _, n in pairs])
    target = np.array([of / n / len(vectors) ** 0.5 for _, of, n in pairs])
    gram, linear = rows.T @ rows, rows.T @ target
    matrix = np.zeros((8, 8))
    step = 1 / (2 * np.linalg.norm(gram, 2))
    for _ in range(20_000):
        gradient = 2 * (gram @ matrix.ravel() - linear).reshape(8, 8) + penalty * np.eye(8)
        values, axes = np.linalg.eigh(matrix - step * gradient)
        matrix = (axes * values.clip(min=0)) @ axes.T
    reference = objective(matrix, vectors, gold, penalty)
    assert metric.gap <= 1e-3 * metric.objective
    assert metric.objective - metric.gap <= reference <= metric.objective + 1e-9


def test_nothing_is_learned_from_the_largest_penalty_on() -> None:
    vectors = drawn(20, 5)
    gold = [distances(states, torch.eye(5, dtype=torch.float64)) for states in vectors]
    groups, largest = grouped(vectors, gold), largest_penalty(vectors, gold)
    assert solve(groups, 1.001 * largest).rank == 0
    assert solve(groups, 0.9 * largest).rank > 0


def test_the_gap_bounds_the_distance_to_a_better_solution() -> None:
    vectors = drawn(30, 8, seed=5)
    draw = np.random.default_rng(6)
    gold = [random_tree(len(states), draw).distances for states in vectors]
    groups, penalty = grouped(vectors, gold), 0.01 * largest_penalty(vectors, gold)
    exact = solve(groups, penalty, tolerance=1e-7)
    # Also from a start whose predictions are far too large.
    for start in (None, 10 * torch.ones(1, 8, dtype=torch.float64)):
        rough = solve(groups, penalty, start, tolerance=0.1)
        assert exact.objective <= rough.objective + 1e-9
        assert rough.objective - exact.objective <= rough.gap + 1e-9


def test_the_parts_of_all_neurons_add_up_to_the_mean_distance() -> None:
    vectors = drawn(10, 6)
    groups = grouped(vectors, [np.zeros((len(states), len(states))) for states in vectors])
    factor = torch.from_numpy(np.random.default_rng(1).normal(size=(2, 6)))
    size, part = contributions(groups, factor)
    pairs = [states[i] - states[j] for states in vectors for i, j in combinations(range(len(states)), 2)]
    parts = [difference * (factor.T @ factor @ difference) for difference in pairs]
    torch.testing.assert_close(size, torch.stack(parts).abs().mean(0))
    torch.testing.assert_close(part, torch.stack(parts).mean(0))
    assert float(part.sum()) == pytest.approx(np.mean([float((factor @ of).square().sum()) for of in pairs]))


def test_trees_have_the_distances_depths_and_edges_of_their_heads() -> None:
    # "The cat sat ." with the full stop attached to the verb.
    tree = Tree(np.array([1, 2, -1, 2]), np.array([True, True, True, False]))
    assert tree.root == 2
    assert decoded_heads(tree, tree.distances, tree.depths).tolist() == [1, 2, -1, -1]
    assert decoded_heads(tree, tree.distances, np.array([0, 1, 2, -1])).tolist() == [-1, 0, 1, -1]
    assert tree.distances.tolist() == [[0, 1, 2, 3], [1, 0, 1, 2], [2, 1, 0, 1], [3, 2, 1, 0]]
    assert tree.depths.tolist() == [2, 1, 0, 1]
    assert tree.edges == {(0, 1), (1, 2)}


def test_the_gold_distances_score_perfectly_and_the_chain_as_counted() -> None:
    draw = np.random.default_rng(7)
    trees = [random_tree(n, draw) for n in (6, 9, 12)]
    perfect = TreeScores.of(trees, [tree.distances for tree in trees], [tree.depths for tree in trees])
    assert perfect.right.tolist() == perfect.n_edges.tolist() == [5, 8, 11]
    assert perfect.root.tolist() == [1, 1, 1]
    np.testing.assert_allclose(perfect.distance_spearman, 1)
    np.testing.assert_allclose(perfect.depth_spearman, 1)
    neighbours = [sum(abs(i - head) == 1 for i, head in enumerate(tree.heads) if head >= 0) for tree in trees]
    assert chain(trees).right.tolist() == neighbours


def test_spanning_edges_are_those_of_the_least_sum_even_where_distances_are_0() -> None:
    distance = np.array([[0.0, 0.0, 5.0, 0.0], [0.0, 0.0, 1.0, 0.0], [5.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    tree = Tree(np.array([-1, 0, 1, 0]), np.array([True, True, True, False]))
    other = Tree(np.array([1, -1]), np.array([True, True]))
    assert spanning_edges([tree, other], [distance, distance[:2, :2]]) == [{(0, 1), (1, 2)}, {(0, 1)}]


def test_rank_correlations_share_ranks_of_ties() -> None:
    from scipy.stats import spearmanr

    draw = np.random.default_rng(8)
    predicted = [draw.integers(0, 4, (n, n)).astype(float) for n in (9, 5, 9)]
    gold = [draw.normal(size=of_sentence.shape) for of_sentence in predicted]
    expected = [
        np.mean([spearmanr(x, y).statistic for x, y in zip(a, b, strict=True)])
        for a, b in zip(predicted, gold, strict=True)
    ]
    np.testing.assert_allclose(spearman(predicted, gold), expected)
    rows = [of_sentence[0] for of_sentence in predicted], [of_sentence[0] for of_sentence in gold]
    np.testing.assert_allclose(spearman(*rows), [spearmanr(x, y).statistic for x, y in zip(*rows, strict=True)])
    assert spearman([np.zeros(3)], [gold[0][0, :3]]).tolist() == [0.0]


def test_groups_weigh_sentences_alike() -> None:
    vectors = [torch.zeros(n, 3, dtype=torch.float64) for n in (2, 5, 5)]
    groups = grouped(vectors, [np.ones((n, n)) for n in (2, 5, 5)])
    assert [group.vectors.shape for group in groups] == [(1, 2, 3), (2, 5, 3)]
    assert isinstance(groups[0], Group)
    assert mean_error(groups, torch.zeros(1, 3, dtype=torch.float64)) == pytest.approx(1.0)


def paths_from_the_root(tree: Tree) -> Tensor:
    """Return a vector for each word with a 1 at itself and at the words above it, whose squared distances are exact."""
    vectors = torch.zeros(len(tree.heads), 12)
    for i in range(len(tree.heads)):
        at = i
        while at >= 0:
            vectors[i, at] = 1
            at = int(tree.heads[at])
    return vectors


def chance(trees: list[Tree]) -> float:
    """Return the expected UUAS of any trees where the gold trees are drawn at random: each pair is as probable."""
    n = np.array([len(tree.heads) for tree in trees])
    return float((2 * (n - 1) / n).sum() / (n - 1).sum())


def test_trees_in_the_vectors_are_decoded_and_permuted_ones_are_not() -> None:
    draw = np.random.default_rng(9)
    treebanks, vectors = {}, {}
    for split, n in (("train", 300), ("test", 100)):
        trees = [random_tree(int(draw.integers(4, 12)), draw) for _ in range(n)]
        treebanks[split] = Treebank(0, np.arange(n), trees, np.arange(n))
        vectors[split] = [paths_from_the_root(tree) for tree in trees]
    penalties: Any = {"distance": 1e-3, "depth": 1e-3}
    probes = LayerProbes.train(TreeWords(vectors, torch.zeros(12)), treebanks, penalties, {})  # type: ignore[arg-type]
    scores = probes.scores
    assert scores.right.sum() > 0.99 * scores.n_edges.sum()
    assert scores.root.mean() > 0.99
    # Ties of the gold distances are broken by the rounding of the predicted ones.
    assert min(scores.distance_spearman.mean(), scores.depth_spearman.mean()) > 0.9
    permuted = {split: treebank.with_permuted_trees(0) for split, treebank in treebanks.items()}
    assert [len(tree.heads) for tree in permuted["test"].trees] == permuted["test"].lengths.tolist()
    picked = {split: [vectors[split][i] for i in permuted[split].places] for split in vectors}
    other = LayerProbes.train(TreeWords(picked, torch.zeros(12)), permuted, penalties, {}).scores  # type: ignore[arg-type]
    assert other.right.sum() / other.n_edges.sum() < chance(list(permuted["test"].trees)) + 0.08


@pytest.fixture
def options(tmp_path: Path, checkpoints: dict[str, Path]) -> list[str]:
    write_treebank(tmp_path / "random.conllu", SENTENCES)
    places = {"model": checkpoints["bert"], "corpus": tmp_path / "random.conllu", "runs": tmp_path / "runs"}
    return [*(f"--{name}={value}" for name, value in places.items()), "--figure_format=png"]


@pytest.mark.slow
def test_random_trees_are_decoded_at_chance_by_the_command(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["--layer=0,2", "--name=a", "--rotations=19", "--train_sentences=60", "--controls=all", "--verbose"]
    assert run(COMMANDS, ["trees", *options, *args, "--wandb.mode=offline"]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "Edges of dependency trees (UUAS) by layer" in output
    assert "of its objective." in output
    folder = tmp_path / "runs" / "a"
    assert (folder / "figures" / "trees.png").exists()
    rows = read_csv(folder / "trees.csv")
    assert [(row["condition"], row["layer"]) for row in rows] == [
        (condition, layer)
        for condition in ("model", "untrained", "permuted_positions", "permuted_trees")
        for layer in (0, 2)
    ]
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    assert results["n_sentences"] | {"test": 0} == {"train": 60, "validation": 15, "test": 0}
    # Longer sentences have a smaller chance, and all are of 3 to 24 words.
    n = np.array([len(sentence.split()) for sentence in SENTENCES])
    expected = float((2 * (n - 1) / n).sum() / (n - 1).sum())
    for row in rows:
        assert row["uuas_low"] - 0.05 < expected < row["uuas_high"] + 0.05
        assert max(row["gap_distance"], row["gap_depth"]) <= 1e-3
        assert (row["difference"] == "") is (row["condition"] == "model")
    assert (folder / "figures" / "tree_example.png").exists()
    words = read_csv(folder / "tree_example.csv")
    for column in ("gold_head", "decoded_head"):
        assert [[row["layer"] for row in words if row[column] == 0]] == [[0, 2]]
    assert {row["word"] for row in words} <= {word for sentence in SENTENCES for word in sentence.split()} - {"."}
    neurons = read_csv(folder / "tree_neurons.csv")
    for layer in (0, 2):
        of_layer = [row for row in neurons if row["layer"] == layer]
        assert sorted(row["neuron"] for row in of_layer) == list(range(len(of_layer)))
        assert sum(row["share"] for row in of_layer) == pytest.approx(1)
        assert sum(row["mean_part"] for row in of_layer) > 0
    (tracked,) = read_offline_runs(folder)
    assert len(tracked.table("trees")) == len(rows)
    assert load_run(folder).trees.where(condition="model").layers() == [0, 2]


@pytest.mark.parametrize(
    ("args", "heads", "message"),
    [
        ([], lambda n: [1, 2, 0, *range(2, n - 1)][:n], "are not one tree with one root; correct the treebank"),
        ([], lambda n: [-1, -1, *range(1, n - 1)][:n], "are not one tree with one root; correct the treebank"),
        ([], lambda n: [-1, 98, *range(1, n - 1)], "where 0 or the number of another of its"),
        (["--train_sentences=10"], None, "`--train_sentences 10`"),
        (["--corpus=builtin"], None, "has no dependency relations"),
        (["--corpus=FEW"], None, "sentences have two words or more that the model reads, and at least 5 are needed"),
        (["--penalty=0"], None, "`--penalty 0.0` is out of range: expected a number above 0"),
        (["--rotations=5"], None, "`--rotations 5`: expected 0, or at least 19"),
        (["--controls=token"], None, "`--controls token` is not one of untrained, permuted_positions, permuted_trees"),
    ],
)
def test_what_is_no_treebank_is_refused_and_leaves_nothing(
    args: list[str], heads: Any, message: str, options: list[str], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    if heads is not None:
        write_treebank(tmp_path / "random.conllu", SENTENCES, heads=heads)
    few = write_treebank(tmp_path / "few.conllu", SENTENCES[:20])
    args = [arg.replace("FEW", str(few)) for arg in args]
    assert run(COMMANDS, ["trees", *options, *args, "--wandb.mode=disabled"]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert message in error
    assert not (tmp_path / "runs").exists()


def test_a_treebank_is_required(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(COMMANDS, ["trees", f"--runs={tmp_path / 'runs'}", "--wandb.mode=disabled"]) == 2
    assert "`--corpus builtin` has no dependency relations" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


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
