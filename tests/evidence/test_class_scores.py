"""Scores of classes and positions: counts against a loop and scikit-learn, what a run writes, and what is said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from probing import ProbeOptions, Run, WandbOptions, fit
from probing.evidence.neuron_profiles import class_scores, confusions, position_line, positions_of, predicted_classes
from probing.statistics.intervals import accuracy_interval
from probing.tables.schema import POSITIONS
from synthetic import LIGHTNING_WARNINGS, Data, make_store, make_tokens, positional, sides
from written import columns_of, read_csv

pytestmark = [pytest.mark.numeric, *(pytest.mark.filterwarnings(warning) for warning in LIGHTNING_WARNINGS)]
LENGTHS = np.random.default_rng(0).integers(4, 12, 300).tolist()


@pytest.fixture
def data(tmp_path: Path) -> Data:
    tokens = make_tokens(LENGTHS)
    return sides(make_store(tmp_path / "store", [positional(tokens, 8, 0.5)] * 2, tokens, shard_tokens=300))


def predictions(data: Data, weight: torch.Tensor) -> np.ndarray:
    (predicted,) = predicted_classes(data.test, [1], [weight])
    return predicted


def test_counts_and_intervals_are_those_of_a_loop(data: Data) -> None:
    weight = torch.randn(len(data.classes), 8, generator=torch.Generator().manual_seed(0))
    test, predicted = data.test, predictions(data, weight)
    states = np.concatenate([test.store.read(1, shard.index).numpy() for shard in test.store.plan.shards])
    expected = [
        int(np.argmax(weight.numpy() @ state)) if y >= 0 else -1 for y, state in zip(test.labels, states, strict=True)
    ]
    assert predicted.tolist() == expected
    rows = class_scores(data, 1, predicted)
    assert [row["class"] for row in rows] == data.classes.tolist()
    for i, row in enumerate(rows):
        for name, of, n in (("recall", test.labels, "n_test_tokens"), ("precision", predicted, "n_predicted")):
            here = np.flatnonzero(of == i)
            right = [int(test.labels[token] == predicted[token]) for token in here]
            assert row[n] == len(here)
            if not right:
                assert np.isnan([row[name], row[f"{name}_low"], row[f"{name}_high"]]).all()
                continue
            assert row[name] == pytest.approx(np.mean(right))
            sentences = test.store.tokens.sentences[here]
            by_sentence = [[right[k] for k in np.flatnonzero(sentences == s)] for s in np.unique(sentences)]
            sums, counts = (np.array([of_one(own) for own in by_sentence]) for of_one in (sum, len))
            np.testing.assert_allclose([row[f"{name}_low"], row[f"{name}_high"]], accuracy_interval(sums, counts))
        assert row["n_train_tokens"] == (data.train.labels == i).sum()


def test_scores_and_confusions_are_those_of_scikit_learn(data: Data) -> None:
    from sklearn.metrics import confusion_matrix, f1_score, precision_recall_fscore_support

    (fit,) = data.fit([1])
    predicted, here = predictions(data, fit.weight), data.test.labels >= 0
    true, taken_for, n = data.test.labels[here], predicted[here], len(data.classes)
    rows = class_scores(data, 1, predicted)
    precision, recall, f1, support = precision_recall_fscore_support(true, taken_for, labels=range(n), zero_division=0)
    for name, values in (("precision", precision), ("recall", recall), ("f1", f1), ("n_test_tokens", support)):
        np.testing.assert_allclose(np.nan_to_num([row[name] for row in rows]), values)
    assert fit.metrics["macro_f1"] == pytest.approx(f1_score(true, taken_for, average="macro"))
    matrix = confusion_matrix(true, taken_for, labels=range(n))
    labels, pairs = data.classes.tolist(), confusions(data, 1, predicted)
    assert len(pairs) == (matrix > 0).sum()
    for row in pairs:
        assert matrix[labels.index(row["class"]), labels.index(row["predicted"])] == row["n_test_tokens"]
    for i, row in enumerate(rows):
        wrong = np.where(np.arange(n) == i, 0, matrix[i])
        assert row["n_confused"] == wrong.max()
        assert row["confused_with"] == (labels[int(wrong.argmax())] if wrong.max() else "")


def test_accuracy_at_a_position_is_its_recall(data: Data) -> None:
    (fit,) = data.fit([1])
    rows = class_scores(data, 1, predictions(data, fit.weight))
    positions = positions_of(rows)
    assert [row["position"] for row in positions] == data.classes.tolist()
    right = sum(row["accuracy"] * row["n_test_tokens"] for row in positions if row["n_test_tokens"])
    assert right / data.test.n_tokens == pytest.approx(fit.metrics["accuracy"])
    for row, of in zip(positions, rows, strict=True):
        np.testing.assert_equal([row["accuracy_low"], row["accuracy_high"]], [of["recall_low"], of["recall_high"]])


def test_thirds_of_the_positions_are_told_by_their_tokens() -> None:
    rows = [
        {"layer": 6, "position": i, "accuracy": accuracy, "n_test_tokens": n}
        for i, (accuracy, n) in enumerate(
            [(1, 30), (0.5, 10), (0.4, 10), (0.2, 10), (0.1, 5), (0, 5), (float("nan"), 0)]
        )
    ]
    assert position_line(rows) == (
        "Layer 6: accuracy 0.875 at positions 0 to 1, 0.300 at positions 2 to 3 and 0.050 at positions 4 to 5; "
        "positions.csv has every position."
    )
    assert position_line(rows[:2]) == ""


@pytest.fixture(scope="module")
def made(checkpoints: dict[str, Path], corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = fit(
        model=str(checkpoints["bert"]), corpus=str(corpus_file), runs=str(tmp_path_factory.mktemp("runs")), name="made",
        layer="0,2", replicates=0, controls="none", evidence="none", task_args={"min_count": 5}, quiet=True,
        wandb=WandbOptions(mode="disabled"), probe=ProbeOptions(tolerance=1e-3, l2=1e-4),
    )  # fmt: skip
    assert run is not None
    return run


@pytest.mark.slow
def test_a_run_of_positions_has_the_table_and_the_figure(made: Run) -> None:
    rows = read_csv(made.folder / "positions.csv")
    assert tuple(rows[0]) == columns_of(POSITIONS)
    assert made.positions == rows or len(made.positions) == len(rows)
    classes = made.results["classes"]
    assert [(row["layer"], row["position"]) for row in rows] == [(layer, i) for layer in (0, 2) for i in classes]
    for row in made.accuracy:
        own = [one for one in rows if one["layer"] == row["layer"] and one["n_test_tokens"]]
        assert sum(one["n_test_tokens"] for one in own) == row["n_test_tokens"]
        right = sum(one["accuracy"] * one["n_test_tokens"] for one in own)
        assert right / row["n_test_tokens"] == pytest.approx(row["accuracy"])
    assert {path.name for path in (made.folder / "figures").glob("positions.*")} == {"positions.png", "positions.pdf"}
