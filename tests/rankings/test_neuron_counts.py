"""How many neurons it takes: planted ones are counted, and accuracies are scikit-learn's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from probing.data.labelling import load
from probing.figures.probes import write_curves_figure
from probing.probes.solvers import Penalty
from probing.rankings import evaluation
from probing.rankings.evaluation import CURVE_KEY, curves
from probing.rankings.methods import METHODS, LayerData, read_layer
from probing.runtime.terminal import render
from probing.tables.rankings import curves_lines, curves_tables, smallest
from synthetic import LIGHTNING_WARNINGS, Data, make_store, make_tokens, sides

pytestmark = [pytest.mark.numeric, *(pytest.mark.filterwarnings(warning) for warning in LIGHTNING_WARNINGS)]
LENGTHS = np.random.default_rng(0).integers(8, 13, 200).tolist()
D_MODEL, INFORMATIVE, L2 = 24, [4, 9, 17], 1e-3
SIZES = (1, 2, 8, 16)

Planted = tuple[LayerData, Data]


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Planted:
    """Position in three neurons of 24, each of which is needed, on a spiral over a sphere; the others are noise.

    Of points equally far from 0 a probe can tell each from the others without an intercept, so that it needs none.
    """
    tokens = make_tokens(LENGTHS)
    states = np.random.default_rng(1).standard_normal((tokens.n_tokens, D_MODEL))
    height, angle = 1 - (2 * tokens.positions + 1) / max(LENGTHS), np.pi * (3 - 5**0.5) * tokens.positions
    radius = np.sqrt(1 - height**2)
    states[:, INFORMATIVE] += 3 * np.stack([height, radius * np.cos(angle), radius * np.sin(angle)], 1)
    data = sides(make_store(tmp_path_factory.mktemp("planted") / "store", [states], tokens))
    fit = data.fit(l2=L2)[0]
    return read_layer(0, fit.weight, Penalty(0.0, L2), "sd", data, 0), data


@pytest.fixture(scope="module")
def rows(planted: Planted) -> list[dict[str, Any]]:
    rankings = {name: METHODS[name](planted[0]) for name in ("anova", "random")}
    assert sorted(rankings["anova"].order[:3].tolist()) == INFORMATIVE
    return curves(rankings, *planted, SIZES, draws=4)


def accuracies(rows: list[dict[str, Any]], kind: str, end: str, k: int) -> list[float]:
    return [row["accuracy"] for row in rows if (row["kind"], row["from"], row["k"]) == (kind, end, k)]


def test_the_planted_neurons_are_counted(rows: list[dict[str, Any]]) -> None:
    # 3 is not among the sizes: it is found between 2 and 8.
    found = smallest(rows)
    (full,) = accuracies(rows, "only", "top", D_MODEL)
    assert found["k"] == 3
    assert full > 0.6
    assert found["accuracy"] >= full - 0.02  # within 1 point on validation tokens
    assert accuracies(rows, "only", "top", 2)[0] < full - 0.1
    # The last five of the first 8 are of no use and do no harm.
    assert accuracies(rows, "only", "top", 8)[0] >= full - 0.02


def test_without_them_nothing_is_left(planted: Planted, rows: list[dict[str, Any]]) -> None:
    full, (without,) = accuracies(rows, "only", "top", D_MODEL)[0], accuracies(rows, "without", "top", 8)
    test, n_classes = planted[1].test, len(planted[1].classes)
    majority = np.bincount(test.labels[test.labels >= 0], minlength=n_classes).max() / test.n_tokens
    (three,) = accuracies(curves({"anova": METHODS["anova"](planted[0])}, *planted, [3], draws=1), "without", "top", 3)
    for left in (three, without):
        assert left < majority + 3 * (majority / test.n_tokens) ** 0.5
    # The last neurons are as good as none; random ones lie between.
    assert accuracies(rows, "without", "bottom", 16)[0] > full - 0.03
    assert accuracies(rows, "only", "bottom", 16)[0] < majority + 0.05
    assert without < np.mean(accuracies(rows, "without", "random", 8)) < full


def test_every_probe_has_one_row(rows: list[dict[str, Any]]) -> None:
    keys = [tuple(row.get(column) for column in CURVE_KEY) for row in rows]
    assert len(set(keys)) == len(keys)
    ends = [("anova", "top", None), ("anova", "bottom", None), *(("random", "random", draw) for draw in range(1, 5))]
    grid = {(0, name, kind, end, k, draw) for name, end, draw in ends for kind in ("only", "without") for k in SIZES}
    tried = {key for key in keys if key not in grid}
    assert grid <= set(keys)
    assert tried == {(0, "anova", "only", "top", k, None) for k in (3, 5, D_MODEL)}
    # Without an interval, on few test sentences, both ends are NaN.
    assert not any(row["accuracy_low"] > row["accuracy"] or row["accuracy"] > row["accuracy_high"] for row in rows)


@pytest.mark.parametrize("k", [3, 16])
def test_probes_are_right_as_often_as_sklearn_says(planted: Planted, monkeypatch: pytest.MonkeyPatch, k: int) -> None:
    """Of few neurons, which are columns of their own, and of many, which are masked: both kinds have both."""
    monkeypatch.setattr(evaluation, "TOLERANCE", 1e-6)
    data, parts = planted
    ranking = METHODS["weight"](data)
    made = {
        row["kind"]: row
        for row in curves({"weight": ranking}, *planted, [k], 1)
        if (row["k"], row["from"]) == (k, "top")
    }
    x, y = (values.numpy() for values in data.train)
    scale = x.astype(np.float64).std(0)
    for kind, kept in (("only", ranking.order[:k].numpy()), ("without", ranking.order[k:].numpy())):
        model = LogisticRegression(C=1 / (2 * len(y) * L2), fit_intercept=False, tol=1e-8, max_iter=5000)
        model.fit(x[:, kept] / scale[kept], y)
        for side, column in ((parts.test, "accuracy"), (parts.validation, "validation_accuracy")):
            states, labels = (values.numpy() for values in load(side, 0))
            expected = model.score(states[:, kept] / scale[kept], labels)
            # Both within 1e-6 nats of one optimum: a token or two may lie on the border between classes.
            assert made[kind][column] == pytest.approx(expected, abs=2 / len(labels)), (kind, column)


def test_the_smallest_number_is_chosen_on_validation_tokens() -> None:
    def row(k: int, validation: float, test: float) -> dict[str, Any]:
        return {"kind": "only", "from": "top", "k": k, "validation_accuracy": validation, "accuracy": test}

    rows = [row(1, 0.3, 0.9), row(5, 0.795, 0.5), row(10, 0.85, 0.9), row(20, 0.8, 0.9)]
    assert smallest(rows) is rows[1]
    beside = [{**row(2, 0.9, 0.9), "kind": "without"}, {**row(3, 0.9, 0.9), "from": "random"}]
    assert smallest([*beside, *rows]) is rows[1]


def test_what_is_shown_says_what_was_found(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    (line,) = curves_lines(rows)
    assert line.startswith(f"Layer 0, anova: 1 of {D_MODEL} neurons reach ")
    assert "; 3, chosen on validation tokens, are the fewest within 1 point of all (" in line
    assert curves_lines([row for row in rows if row["k"] not in (3, 5, 8, 16)])[0].endswith(
        "no smaller number is within 1 point of all."
    )
    shown = [cells.split()[0] for cells in render(*curves_tables(rows)).splitlines()[4:] if cells.strip()]
    assert shown == ["1", "2", "3", "8", "16", str(D_MODEL)]
    write_curves_figure(tmp_path / "drawn.png", rows, 0.1, "position", "planted")
    assert (tmp_path / "drawn.png").read_bytes()[1:4] == b"PNG"


def test_tokens_are_thinned_and_counted(planted: Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    from probing.rankings import evaluation as module

    monkeypatch.setattr(module, "MOST_TOKENS", 500)
    made = curves({"anova": METHODS["anova"](planted[0])}, *planted, [12], 1)
    assert {row["n_train_tokens"] for row in made} <= set(range(480, 501))
