"""What the estimators fit, the rows that choose the penalty, and their use inside of scikit-learn."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import ortho_group
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_selection import SelectFromModel
from sklearn.inspection import permutation_importance
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import probing
from probing import ProbeClassifier, ProbeRegressor
from probing.data.arrays import groups_of_rows
from probing.errors import UserError
from probing.probes.estimators import hold_out
from probing.probes.rankings import neuron_contributions
from probing.probes.training import STRONGEST_PENALTY as STRONGEST
from probing.probes.training import WEAKEST_PENALTY as WEAKEST
from probing.probes.training import strength
from probing.statistics.chance import random_rotation

pytestmark = pytest.mark.numeric

N, D, L2 = 300, 8, 1e-3
Array = NDArray[Any]


def planted(n_classes: int = 4, n: int = N, noise: float = 1.5) -> tuple[Array, Array]:
    """Return rows off 0 and of unlike scales, exact in float32, and a noisy class of each."""
    draw = np.random.default_rng(n_classes)
    x = (draw.normal(0, 1, (n, D)) * np.geomspace(0.3, 3, D) + draw.normal(0, 0.5, D)).astype(np.float32)
    logits = (x / x.std(0)) @ draw.normal(0, 1, (D, n_classes)) + noise * draw.gumbel(size=(n, n_classes))
    return x.astype(np.float64), np.array(["a", "b", "c", "d"])[logits.argmax(1)]


def numbers(x: Array) -> Array:
    """Return a number of each row, far from 0."""
    return 3 * x[:, 2] - x[:, 5] + np.random.default_rng(1).normal(100, 2, len(x))


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("n_classes", [2, 4])
def test_probabilities_and_weights_are_those_of_logistic_regression(n_classes: int, intercept: bool) -> None:
    x, y = planted(n_classes)
    probe = ProbeClassifier(l2=L2, tolerance=1e-12, fit_intercept=intercept).fit(x, y)
    scaled = (x - x.mean(0) * intercept) / x.std(0)
    C = 1 / ((1 if n_classes == 2 else 2) * N * L2)
    expected = LogisticRegression(C=C, fit_intercept=intercept, tol=1e-12, max_iter=10_000).fit(scaled, y)
    assert probe.coef_.shape == expected.coef_.shape
    assert probe.intercept_.shape == expected.intercept_.shape
    assert probe.decision_function(x).shape == expected.decision_function(scaled).shape
    # Within 1e-12 nats, weights are within sqrt(1e-12 / l2) of the optimum; the intercept is penalised by a 10,000th.
    atol = 1e-4 if intercept else 3e-5
    np.testing.assert_allclose(probe.coef_ * x.std(0), expected.coef_, atol=atol)
    np.testing.assert_allclose(probe.predict_proba(x), expected.predict_proba(scaled), atol=atol)
    assert probe.score(x, y) == expected.score(scaled, y)
    assert probe.gap_ <= 1e-12
    if not intercept:
        assert (probe.intercept_ == 0).all()


@pytest.mark.parametrize("n_classes", [2, 4])
def test_with_both_penalties_it_is_the_elastic_net_of_scikit_learn(n_classes: int) -> None:
    x, y = planted(n_classes)
    l1 = 1e-2
    probe = ProbeClassifier(l2=L2, l1=l1, tolerance=1e-10).fit(x, y)
    times = 1 if n_classes == 2 else 2
    expected = LogisticRegression(
        C=1 / (N * (l1 + times * L2)), l1_ratio=l1 / (l1 + times * L2), solver="saga", fit_intercept=False, tol=1e-9,
        max_iter=20_000, random_state=0,
    ).fit(x / x.std(0), y)  # fmt: skip
    np.testing.assert_allclose(probe.coef_ * x.std(0), expected.coef_, atol=1e-3)
    np.testing.assert_array_equal(probe.coef_ == 0, expected.coef_ == 0)
    assert (probe.coef_ == 0).any()


@pytest.mark.parametrize("intercept", [False, True])
def test_numbers_are_those_of_ridge_regression(intercept: bool) -> None:
    x, _ = planted()
    y = numbers(x)
    probe = ProbeRegressor(l2=L2, fit_intercept=intercept).fit(x, y)
    scaled = (x - x.mean(0) * intercept) / x.std(0)
    expected = Ridge(alpha=N * L2, fit_intercept=False).fit(scaled, y - y.mean())
    np.testing.assert_allclose(probe.coef_ * x.std(0), expected.coef_, atol=1e-5)
    np.testing.assert_allclose(probe.predict(x), expected.predict(scaled) + y.mean(), atol=1e-4)
    assert probe.intercept_ == pytest.approx(y.mean() - intercept * (probe.coef_ @ x.mean(0)), abs=1e-4)
    assert 0 <= probe.gap_ < 1e-20


def run_of(x: Array, y: Array, split: list[str], **options: Any) -> Any:
    return probing.probe(
        x, y, split=split, controls="none", evidence="none", replicates=0, quiet=True, probe=options
    )  # fmt: skip


def run_on_the_same(x: Array, y: Array, **options: Any) -> Any:
    """Return a run of `probe` whose training rows are all rows, and whose test rows are the same again."""
    return run_of(np.concatenate([x, x]), np.concatenate([y, y]), ["train"] * len(x) + ["test"] * len(x), **options)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("space", ["sd", "raw"])
def test_classes_are_as_in_a_run_of_probe(intercept: bool, space: Any) -> None:
    x, y = planted()
    probe = ProbeClassifier(l2=L2, fit_intercept=intercept, penalty_space=space).fit(x, y)
    run = run_on_the_same(x, y, l2=L2, bias=intercept, penalty_space=space)
    np.testing.assert_allclose(probe.coef_, run.weight[0].numpy(), rtol=1e-6, atol=1e-6)
    by_neuron = [row["contribution"] for row in sorted(run.neurons, key=lambda row: row["neuron"])]
    np.testing.assert_allclose(probe.contributions_, by_neuron, rtol=1e-6)
    ranked = [{name: row[name] for name in ("rank", "neuron", "contribution", "share")} for row in run.neurons]
    for row, expected in zip(probe.neurons_, ranked, strict=True):
        assert {name: row[name] for name in expected} == pytest.approx(expected, rel=1e-5)
    (accuracy,) = run.accuracy
    assert probe.gap_ == pytest.approx(accuracy["optimality_gap"], rel=1e-6)
    assert probe.score(x, y) == accuracy["accuracy"]
    nats = -probe.predict_log_proba(x)[np.arange(N), np.searchsorted(probe.classes_, y)].mean()
    assert nats == pytest.approx(accuracy["cross_entropy"], abs=1e-6)


@pytest.mark.parametrize("intercept", [False, True])
def test_numbers_are_as_in_a_run_of_probe(intercept: bool) -> None:
    x, _ = planted()
    y = numbers(x)
    probe = ProbeRegressor(l2=L2, fit_intercept=intercept).fit(x, y)
    run = run_on_the_same(x, y, l2=L2, bias=intercept)
    np.testing.assert_allclose(probe.coef_, run.weight[0, 0].numpy(), rtol=1e-6, atol=1e-6)
    by_neuron = [row["contribution"] for row in sorted(run.neurons, key=lambda row: row["neuron"])]
    np.testing.assert_allclose(probe.contributions_, by_neuron, rtol=1e-6)
    assert probe.score(x, y) == pytest.approx(run.accuracy[0]["r2"], abs=1e-6)
    np.testing.assert_allclose(probe.predict(x[:9]), [row["predicted"] for row in run.predict(x[:9])], rtol=1e-6)


def test_the_penalty_is_the_one_that_probe_chooses_on_the_same_split() -> None:
    x, y = planted()
    for labels, probe, scores in (
        (y, ProbeClassifier().fit(x, y), "validation_cross_entropy"),
        (numbers(x), ProbeRegressor().fit(x, numbers(x)), "validation_r2"),
    ):
        assert probe.split_ is not None
        assert probe.validation_scores_ is not None
        kept, held_out = probe.split_
        rows = np.concatenate([kept, held_out, kept])
        split = ["train"] * len(kept) + ["validation"] * len(held_out) + ["test"] * len(kept)
        penalty = run_of(x[rows], labels[rows], split).results["penalty"]
        assert probe.l2_ == penalty["l2"]
        assert list(probe.validation_scores_) == penalty["tried"]
        np.testing.assert_allclose([*probe.validation_scores_.values()], penalty[scores], rtol=1e-5)


@pytest.mark.parametrize("numeric", [False, True])
def test_the_penalty_is_the_one_that_a_search_over_the_same_split_finds(numeric: bool) -> None:
    kind: type[ProbeClassifier | ProbeRegressor]
    x, classes = planted(n=600, noise=4)
    y, kind, scoring, weakest = classes, ProbeClassifier, "neg_log_loss", -12  # weaker ones take hundreds of passes
    if numeric:
        y, kind, scoring, weakest = numbers(x), ProbeRegressor, "r2", WEAKEST
    probe = kind().fit(x, y)
    grid = [strength(i) for i in range(STRONGEST, weakest - 1, -1)]
    search = GridSearchCV(kind(), {"l2": grid}, cv=[probe.split_], scoring=scoring).fit(x, y)
    assert search.best_params_ == {"l2": probe.l2_}
    # Both are then fitted to all rows, and start from 0.
    np.testing.assert_array_equal(search.best_estimator_.coef_, probe.coef_)


def test_contributions_are_weight_times_activation() -> None:
    for n_classes in (2, 4):
        x, y = planted(n_classes)
        probe = ProbeClassifier(l2=L2).fit(x, y)
        weight = probe.coef_ if n_classes > 2 else np.concatenate([-probe.coef_, probe.coef_]) / 2
        terms = neuron_contributions(torch.from_numpy(weight), torch.from_numpy(x)).numpy()
        own = terms[np.arange(N), np.searchsorted(probe.classes_, y)]
        np.testing.assert_allclose(probe.contributions_, np.abs(own).mean(0), rtol=1e-5)
        logits, decision = terms.sum(2), probe.decision_function(x)
        # The weights of all classes add up to 0 as far as float32 goes; contributions are centred exactly.
        np.testing.assert_allclose(decision, logits if n_classes > 2 else logits[:, 1] - logits[:, 0], atol=1e-4)


def concentrated(contributions: Array) -> Array:
    """Return the share of the first, that of the first ten, and the participation ratio."""
    highest, total = sorted(contributions, reverse=True), sum(contributions)
    return np.array([highest[0] / total, sum(highest[:10]) / total, total**2 / sum(one**2 for one in contributions)])


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("n_outputs", [1, 2, 4])
@pytest.mark.parametrize("space", ["sd", "raw"])
def test_directions_are_those_of_a_plain_loop(n_outputs: int, intercept: bool, space: Any) -> None:
    """One output is a number, two are the weights u and -u of a difference."""
    x, y = planted(max(n_outputs, 2))
    options: Any = {"l2": L2, "fit_intercept": intercept, "penalty_space": space, "random_state": 3, "rotations": 19}
    probe: Any = (
        ProbeRegressor(**options).fit(x, numbers(x)) if n_outputs == 1 else ProbeClassifier(**options).fit(x, y)
    )
    weight = np.atleast_2d(probe.coef_) if n_outputs != 2 else np.concatenate([-probe.coef_, probe.coef_]) / 2
    own = np.zeros(N, int) if n_outputs == 1 else np.searchsorted(probe.classes_, y)
    size, states = x.std(0) if space == "sd" else np.ones(D), x - x.mean(0) * intercept
    for row, shift in zip(probe.basis_, (np.zeros(D), states.mean(0)), strict=True):
        contributions = []
        for draw in range(-1, 19):
            basis = (
                random_rotation(D, 3, 0, draw)(torch.eye(D, dtype=torch.float64)).numpy() if draw >= 0 else np.eye(D)
            )
            sums = np.zeros(D)
            for state, c in zip(states, own, strict=True):
                sums += np.abs(((weight[c] * size) @ basis) * (((state - shift) / size) @ basis)) / N
            contributions.append(sums)
        columns, *rotated = contributions
        of_rotations = np.array([concentrated(one) for one in rotated])
        for i, name in enumerate(("first_share", "first_10_share", "participation_ratio")):
            assert row[name] == pytest.approx(concentrated(columns)[i], rel=1e-5)
            assert row[f"{name}_directions"] == pytest.approx(np.median(of_rotations[:, i]), rel=1e-5)
        p = [(1 + sum(max(one) >= value for one in rotated)) / 20 for value in columns]
        column = "direction_p" if row["kind"] == "plain" else "direction_p_centred"
        assert [one[column] for one in sorted(probe.neurons_, key=lambda one: one["neuron"])] == pytest.approx(p)
        assert row["n_above"] == sum(value <= 0.05 for value in p)
        assert (row["n_rows"], row["n_rotations"], row["n_neurons"]) == (N, 19, D)


@pytest.mark.parametrize("intercept", [False, True])
def test_planted_columns_are_above_directions_and_rotated_ones_are_not(intercept: bool) -> None:
    draw = np.random.default_rng(0)
    y, carrying = draw.integers(0, 5, 1200), [3, 11, 20, 21, 40]
    x = draw.standard_normal((1200, 48))
    x[np.arange(1200), np.array(carrying)[y]] += 2
    rotated = x @ ortho_group.rvs(48, random_state=draw)
    for rows, expected in ((x, carrying), (rotated, [])):
        probe = ProbeClassifier(l2=L2, fit_intercept=intercept).fit(rows, y)
        assert sorted(row["neuron"] for row in probe.neurons_ if row["above_directions"] == "yes") == expected
        assert [row["n_above"] for row in probe.basis_] == [len(expected)] * 2
        assert (probe.basis_[0]["first_10_share_p"] <= 0.05) == bool(expected)


def test_the_certificate_holds() -> None:
    x, y = planted()
    loose, exact = (ProbeClassifier(l2=L2, tolerance=tolerance).fit(x, y) for tolerance in (1e-2, 1e-12))

    def objective(probe: ProbeClassifier) -> float:
        nats = -probe.predict_log_proba(x)[np.arange(N), np.searchsorted(probe.classes_, y)].mean()
        return float(nats + L2 * np.square(probe.coef_ * x.std(0)).sum())

    assert 1e-7 < objective(loose) - objective(exact) <= loose.gap_ <= 1e-2
    assert loose.n_iter_ < exact.n_iter_


FACTORS = st.lists(st.sampled_from([1e-6, 1e-3, 1.0, 1e3, 1e6]), min_size=5, max_size=5)
SHIFTS = st.lists(st.sampled_from([0.0, -1e6, -30.0, 1e3, 1e6]), min_size=5, max_size=5)


def carriers(n: int = 200) -> tuple[Array, Array, Array]:
    """Return five columns, the last one of 0 and 1, which carry a class and a number unequally."""
    draw = np.random.default_rng(5)
    x = np.c_[draw.normal(0, 1, (n, 4)), draw.integers(0, 2, n)].astype(np.float32).astype(np.float64)
    score = x @ np.array([0.1, 0.5, 1.0, 2.0, 6.0])
    y = np.where(score + draw.normal(0, 1, n) > np.median(score), "u", "d")
    return x, y, score + draw.normal(0, 0.3, n)


def unresolved(caught: list[warnings.WarningMessage]) -> set[int]:
    """Return the columns that warnings name."""
    named = (re.search(r"columns? ([\d, ]+), counted", str(one.message)) for one in caught)
    return {int(column) for found in named if found for column in found[1].split(", ")}


@settings(max_examples=25, deadline=None, derandomize=True)
@given(factors=FACTORS, shifts=SHIFTS, intercept=st.booleans())
def test_units_of_columns_and_with_an_intercept_their_zeros_change_no_weight(
    factors: list[float], shifts: list[float], intercept: bool
) -> None:
    base, y, of_rows = carriers()
    x = base * factors + (np.array(shifts) if intercept else 0)
    scaled = (base - base.mean(0) * intercept) / base.std(0)
    expected = LogisticRegression(C=1 / (len(y) * 1e-2), fit_intercept=intercept, tol=1e-10).fit(scaled, y)
    ridge = Ridge(alpha=len(y) * 1e-2, fit_intercept=False).fit(scaled, of_rows - of_rows.mean())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        probe = ProbeClassifier(l2=1e-2, tolerance=1e-10, fit_intercept=intercept).fit(x, y)
        regressor = ProbeRegressor(l2=1e-2, fit_intercept=intercept).fit(x, of_rows)
    assert not caught
    sd = base.std(0) * factors
    # A millionth beside a million is resolved to 4 digits in float64.
    np.testing.assert_allclose(probe.coef_[0] * sd, expected.coef_[0], atol=3e-3)
    np.testing.assert_allclose(regressor.coef_ * sd, ridge.coef_, atol=3e-3)
    assert probe.gap_ <= 1e-10
    by_size = np.argsort(-np.abs(expected.coef_[0] * scaled).mean(0))
    assert [row["neuron"] for row in probe.neurons_] == by_size.tolist()
    assert regressor.score(x, of_rows) == pytest.approx(
        1 - np.mean((ridge.predict(scaled) + of_rows.mean() - of_rows) ** 2) / of_rows.var(), abs=1e-4
    )


@pytest.mark.slow
@settings(max_examples=8, deadline=None, derandomize=True)
@given(factors=FACTORS, shifts=SHIFTS, intercept=st.booleans())
def test_units_of_columns_change_nothing_in_a_run_or_a_warning_names_the_column(
    factors: list[float], shifts: list[float], intercept: bool
) -> None:
    base, y, of_rows = carriers()
    x = (base * factors + (np.array(shifts) if intercept else 0)).astype(np.float32)
    options = {"l2": 1e-2, "bias": intercept, "tolerance": 1e-8}
    found, expected = [], []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for labels, own in ((y, options), (of_rows, {"l2": 1e-2, "bias": intercept})):
            found.append(run_on_the_same(x, labels, **own))
    for labels, own in ((y, options), (of_rows, {"l2": 1e-2, "bias": intercept})):
        expected.append(run_on_the_same(base, labels, **own))
    ranges, sizes = np.ptp(x, axis=0), np.abs(x).max(0)
    hardly = {i for i in range(5) if 0 < ranges[i] < 20 * sizes[i] * 2**-23}
    named = unresolved(caught)
    assert hardly <= named
    if named or not ranges.all():
        return
    for run, plain in zip(found, expected, strict=True):
        np.testing.assert_allclose(
            run.weight[0].numpy() * x.std(0, dtype=np.float64), plain.weight[0].numpy() * base.std(0), atol=3e-3
        )
        assert [row["neuron"] for row in run.neurons] == [row["neuron"] for row in plain.neurons]
        assert {row["flag"] for row in run.neurons} & {"dead"} == set()


def test_a_column_is_constant_only_within_the_rounding_of_its_values() -> None:
    x, y, _ = carriers()
    x = np.c_[x, np.full(len(x), 0.1), np.float32(0.3) + np.float32(2**-25) * (np.arange(len(x)) % 2)]
    x[:, :4] *= 1e9
    with pytest.warns(UserWarning, match=r"^`X`: column 6, counted from 0, varies so little for its size"):
        probe = ProbeClassifier(l2=1e-2).fit(x, y)
    assert (probe.coef_[0] == 0).tolist() == [False] * 5 + [True, True]
    # The same for shuffled labels: a column that is read tells nothing by itself.
    shuffled = np.random.default_rng(0).permutation(y)
    assert ProbeClassifier(l2=1e-2).fit(x[:, :5], shuffled).score(x[:, :5], shuffled) < 0.65 < probe.score(x, y)


LABELS = np.arange(200) % 3


def test_a_tenth_of_the_groups_is_held_out_as_wholes() -> None:
    groups = np.repeat(np.arange(40), 5)
    held_out = hold_out(*groups_of_rows(groups, 200), LABELS, 0.1, seed=0)
    assert held_out.sum() == 20
    assert {held_out[groups == group].mean() for group in range(40)} == {0.0, 1.0}


def test_the_order_of_the_rows_does_not_matter_and_the_seed_does() -> None:
    groups, order = np.array([f"speaker {i // 4}" for i in range(200)]), np.random.default_rng(0).permutation(200)
    held_out, other = (hold_out(*groups_of_rows(groups, 200), LABELS, 0.2, seed) for seed in (0, 1))
    moved = hold_out(*groups_of_rows(groups[order], 200), LABELS[order], 0.2, seed=0)
    np.testing.assert_array_equal(moved, held_out[order])
    assert (held_out != other).any()


@pytest.mark.parametrize("seed", range(10))
def test_every_class_keeps_rows_however_many_are_held_out(seed: int) -> None:
    labels = np.array([0] * 20 + [1] * 3 + [2])
    held_out = hold_out(*groups_of_rows(None, 24), labels, 0.9, seed)
    assert set(labels[~held_out]) == {0, 1, 2}
    assert 0 < held_out.sum() <= 21  # all but one of each class


def test_at_least_one_group_is_held_out_and_at_least_one_is_left() -> None:
    assert hold_out(*groups_of_rows(None, 3), None, 0.01, seed=0).sum() == 1
    assert hold_out(*groups_of_rows(None, 3), None, 0.99, seed=0).sum() == 2


def test_where_no_group_can_be_held_out_a_number_is_asked_for() -> None:
    with pytest.raises(UserError, match=r"each group of rows has all rows of a class; .* such as `l2=1e-3`"):
        hold_out(*groups_of_rows(None, 3), np.arange(3), 0.1, seed=0)


SKLEARN_N, SKLEARN_D, SIGNAL = 240, 6, 3
GROUPS = np.repeat([f"sentence {i}" for i in range(SKLEARN_N // 6)], 6)


def sklearn_planted(seed: int = 0) -> tuple[pd.DataFrame, NDArray[Any]]:
    draw = np.random.default_rng(seed)
    x = pd.DataFrame(draw.normal(0, 1, (SKLEARN_N, SKLEARN_D)), columns=[f"unit {i}" for i in range(SKLEARN_D)])
    return x, np.where(x[f"unit {SIGNAL}"] + 0.3 * draw.normal(0, 1, SKLEARN_N) > 0, "noun", "verb")


def test_a_pipeline_is_cross_validated_by_group() -> None:
    x, y = sklearn_planted()
    pipeline = make_pipeline(StandardScaler(), ProbeClassifier())
    scores = cross_val_score(
        pipeline, x, y, groups=GROUPS, cv=GroupKFold(3), params={"probeclassifier__groups": GROUPS}
    )
    assert scores.min() > 0.8
    with sklearn.config_context(enable_metadata_routing=True):
        routed = make_pipeline(StandardScaler(), ProbeClassifier().set_fit_request(groups=True))
        again = cross_val_score(routed, x, y, cv=GroupKFold(3), params={"groups": GROUPS})
    np.testing.assert_array_equal(again, scores)


def test_rows_of_a_group_are_held_out_together() -> None:
    x, y = sklearn_planted()
    for probe in (ProbeClassifier().fit(x, y, groups=GROUPS), ProbeRegressor().fit(x, x["unit 0"], groups=GROUPS)):
        assert probe.split_ is not None
        kept, held_out = probe.split_
        assert len(held_out) == SKLEARN_N // 10
        assert set(GROUPS[kept]) & set(GROUPS[held_out]) == set()
        assert sorted([*kept, *held_out]) == list(range(SKLEARN_N))


def test_importances_selections_and_searches_agree_on_the_planted_column() -> None:
    x, y = sklearn_planted()
    found = permutation_importance(make_pipeline(StandardScaler(), ProbeClassifier()).fit(x, y), x, y, random_state=0)
    assert found.importances_mean.argmax() == SIGNAL
    selection = SelectFromModel(ProbeClassifier(l2=1e-3), importance_getter="contributions_", max_features=1)
    assert selection.fit(x, y).get_feature_names_out().tolist() == [f"unit {SIGNAL}"]
    grid = {"l2": [1e-1, 1e-3, "auto"], "fit_intercept": [False, True]}
    search = GridSearchCV(ProbeClassifier(), grid, cv=3).fit(x, y)
    assert search.best_score_ > 0.8


def test_columns_are_ranked_with_their_names() -> None:
    x, y = sklearn_planted()
    probe = ProbeClassifier(l2=1e-3).fit(x, y)
    first = probe.neurons_[0]
    assert (first["rank"], first["neuron"], first["feature"]) == (1, SIGNAL, f"unit {SIGNAL}")
    assert sum(row["share"] for row in probe.neurons_) == pytest.approx(1)
    assert probe.neurons_.to_pandas()["feature"][0] == f"unit {SIGNAL}"
    assert probe.neurons_.schema is not None
    columns = ["rank", "neuron", "feature", "contribution", "share"]
    beside = ["direction_p", "direction_p_centred", "above_directions"]
    assert probe.neurons_.schema.order(probe.neurons_) == columns + beside
    without = ProbeClassifier(l2=1e-3, rotations=0).fit(x, y)
    assert [*without.neurons_[0]] == columns
    assert [*without.basis_] == []
    assert "unit 3" in repr(probe.neurons_)
    assert "feature" not in ProbeClassifier(l2=1e-3).fit(x.to_numpy(), y).neurons_[0]


def test_a_probe_is_cloned_pickled_and_fitted_again() -> None:
    x, y = sklearn_planted()
    probe = ProbeClassifier(l1=1e-4).fit(x, y)
    loaded = pickle.loads(pickle.dumps(probe))
    np.testing.assert_array_equal(loaded.predict_proba(x), probe.predict_proba(x))
    again = clone(probe).fit(x, y)
    np.testing.assert_array_equal(again.coef_, probe.coef_)
    other = sklearn_planted(1)
    probe.set_params(l2=1e-2).fit(*other)  # nothing of the first fit is left
    fresh = ProbeClassifier(l1=1e-4, l2=1e-2).fit(*other)
    assert {name for name in vars(probe) if name.endswith("_")} == {name for name in vars(fresh) if name.endswith("_")}
    np.testing.assert_array_equal(probe.coef_, fresh.coef_)
    assert (probe.l2_, probe.split_, probe.validation_scores_) == (1e-2, None, None)


def test_a_pickle_has_the_directions_and_no_training_rows() -> None:
    x = np.random.default_rng(0).standard_normal((5_000, 8))
    probe = ProbeClassifier(l2=1e-3).fit(x, x[:, 2] > 0)
    content = pickle.dumps(probe)
    assert len(content) < 40_000
    loaded = pickle.loads(content)
    assert loaded.basis_ == probe.basis_ == ProbeClassifier(l2=1e-3).fit(x, x[:, 2] > 0).basis_
    assert loaded.basis_[0]["n_rows"] == 4_000
    assert loaded.neurons_ == probe.neurons_
    other = ProbeClassifier(l2=1e-3, random_state=np.random.RandomState(5)).fit(x, x[:, 2] > 0)
    assert other.basis_[0]["first_share_directions"] != probe.basis_[0]["first_share_directions"]


@pytest.mark.parametrize(
    "labels", [np.array([True, False]), np.array([-1, 7]), np.array([0.0, 2.0]), np.array(["up", "down"], dtype=object)]
)
def test_labels_come_back_as_they_were(labels: NDArray[Any]) -> None:
    x, y = sklearn_planted()
    probe = ProbeClassifier(l2=1e-3).fit(x, labels[(y == "noun").astype(int)])
    assert probe.classes_.tolist() == sorted(labels.tolist())
    predicted = probe.predict(x)
    assert predicted.dtype == labels.dtype
    assert (predicted == labels[(y == "noun").astype(int)]).mean() > 0.8


def test_tensors_are_read() -> None:
    x, y = sklearn_planted()
    tensor = torch.tensor(x.to_numpy(), requires_grad=True).to(torch.bfloat16)
    probe = ProbeClassifier(l2=1e-3).fit(tensor, y)
    assert (probe.predict(tensor) == y).mean() > 0.8


def test_columns_that_do_not_vary_have_no_weight() -> None:
    x, y = sklearn_planted()
    probe = ProbeClassifier(l2=1e-3).fit(x.assign(constant=5.0), y)
    assert probe.coef_[0, -1] == 0
    np.testing.assert_allclose(probe.coef_[:, :-1], ProbeClassifier(l2=1e-3).fit(x, y).coef_, atol=1e-5)
    for probe in (ProbeClassifier(), ProbeClassifier(l2=1e-3)):
        np.testing.assert_array_equal(
            probe.fit(np.ones((SKLEARN_N, 2)), y).predict_proba(np.ones((1, 2))), [[0.5, 0.5]]
        )
    shares = ProbeClassifier(l2=1e-3, fit_intercept=True).fit(np.ones((SKLEARN_N, 2)), y).predict_proba(np.ones((1, 2)))
    np.testing.assert_allclose(shares, [[(y == "noun").mean(), (y == "verb").mean()]], atol=1e-3)
    assert ProbeClassifier().fit(x[["unit 3"]], y).score(x[["unit 3"]], y) > 0.8


def test_a_class_of_one_row_is_learnt() -> None:
    x, y = sklearn_planted()
    y = np.where(np.arange(SKLEARN_N) == 5, "rare", y)
    probe = ProbeClassifier(validation_fraction=0.5).fit(x, y)
    assert probe.split_ is not None
    assert 5 in probe.split_[0]
    assert probe.classes_.tolist() == ["noun", "rare", "verb"]


@pytest.mark.parametrize(
    ("options", "change", "said"),
    [
        ({}, lambda x, y: (x, ["a"] * SKLEARN_N), "`y` has only one class, a, and a probe tells at least two apart"),
        ({}, lambda x, y: (x.mask(x > 2), y), "contains NaN"),
        ({}, lambda x, y: (x * 1e300, y), r"`X`: row 0 has a value that is infinite or not a number in float32"),
        ({}, lambda x, y: (x * 1e20, y), r"the largest magnitude is [\d.]+e\+20, and expected are 1e-12 to 1e\+12"),
        ({}, lambda x, y: (np.ma.masked_array(x, x > 2), y), "`X` has masked values"),
        ({}, lambda x, y: (x[:0], y[:0]), "0 sample"),
        ({}, lambda x, y: (x[:3], [1, 2, 3]), "give more rows or groups, or a number, such as `l2=1e-3`"),
        ({"l2": -1}, lambda x, y: (x, y), "`l2=-1.0` is out of range: expected a number above 0"),
        ({"l2": "big"}, lambda x, y: (x, y), '`l2="big"`: expected a number or auto'),
        ({"fit_intercept": "ja"}, lambda x, y: (x, y), '`fit_intercept="ja"`: expected true or false'),
        ({"rotations": 5}, lambda x, y: (x, y), "`rotations=5`: expected 0, or at least 19"),
        ({"rotations": "ja"}, lambda x, y: (x, y), "`rotations=ja`: expected a whole number"),
        ({"random_state": -1}, lambda x, y: (x, y), "`random_state=-1` is out of range: expected 0 to"),
        ({"validation_fraction": 1.0}, lambda x, y: (x, y), "`validation_fraction=1.0`: expected a number between"),
        (
            {"penalty_space": "rms", "fit_intercept": True},
            lambda x, y: (x, y),
            '`penalty_space="rms"`: with `fit_intercept=True` neurons are centred',
        ),
    ],
)
def test_what_cannot_be_fitted_is_refused(options: dict[str, Any], change: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ProbeClassifier(**options).fit(*change(*sklearn_planted()))


def test_groups_of_another_length_and_numbers_that_do_not_vary_are_refused() -> None:
    x, y = sklearn_planted()
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        ProbeClassifier().fit(x, y, groups=GROUPS[:-1])
    with pytest.raises(ValueError, match=r"`y`: the training rows all have the number 1"):
        ProbeRegressor().fit(x, np.ones(SKLEARN_N))


@pytest.mark.slow
def test_a_probe_that_is_not_at_its_optimum_says_so() -> None:
    x, y = sklearn_planted()
    centred = x - x.mean()  # so that float32 is used, whose rounding errors are larger than this tolerance
    with pytest.warns(ConvergenceWarning, match=r"may be .* nats above its optimum, .* at most 1e-20.* not compared"):
        probe = ProbeClassifier(l2=1e-3, tolerance=1e-20).fit(centred, y)
    assert 1e-20 < probe.gap_ < 1e-10
    assert [*probe.basis_] == []
    assert "direction_p" not in probe.neurons_[0]


def test_nothing_of_the_process_changes_and_nothing_is_said(capfd: pytest.CaptureFixture[str]) -> None:
    x, y = sklearn_planted()

    def state() -> list[Any]:
        return [
            torch.get_rng_state().tolist(), pickle.dumps(np.random.get_state()), torch.get_num_threads(),
            torch.get_num_interop_threads(), torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled(),
            torch.backends.cudnn.benchmark, torch.is_grad_enabled(), list(warnings.filters),
        ]  # fmt: skip

    before = state()
    for probe in (ProbeClassifier(), ProbeClassifier(fit_intercept=True), ProbeRegressor()):
        probe.fit(x, y == "noun")
    assert state() == before
    assert capfd.readouterr() == ("", "")


SCRIPT = """
import sys
import probing
assert not {"sklearn", "torch", "numpy"} & {*sys.modules}
from probing import ProbeClassifier, ProbeRegressor
probe = ProbeClassifier()
assert not {"torch", "pytorch_lightning"} & {*sys.modules}
import numpy as np
from sklearn.model_selection import cross_val_score
x = np.random.default_rng(0).normal(0, 1, (90, 3))
scores = cross_val_score(probe, x, x[:, 1] > 0, cv=3, n_jobs=2)
assert scores.min() > 0.8
assert (cross_val_score(probe, x, x[:, 1] > 0, cv=3) == scores).all()
ProbeRegressor().fit(x, x[:, 1])
"""


@pytest.mark.several
def test_a_new_process_imports_little_and_says_nothing_in_other_processes_either() -> None:
    ended = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, encoding="utf-8", check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


WITHOUT = """
import sys
sys.modules["sklearn"] = None
from probing import *
import probing
assert callable(fit) and "ProbeClassifier" not in globals() and "ProbeClassifier" not in dir(probing)
try:
    from probing import ProbeClassifier
except ImportError as error:
    print(error)
"""


@pytest.mark.several
def test_where_scikit_learn_is_missing_it_is_said_what_to_install() -> None:
    ended = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, encoding="utf-8", check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("`ProbeClassifier` and `ProbeRegressor` need scikit-learn 1.6 or later")
    assert "pip install 'neuron-probing[sklearn]'" in ended.stdout


# One check is skipped, `check_array_api_input`: scikit-learn makes it only where $SCIPY_ARRAY_API is set, and only of
# estimators that compute on other arrays than those of NumPy, which these do not.
@parametrize_with_checks([ProbeClassifier(l2=1e-2), ProbeRegressor()])  # type: ignore[untyped-decorator]
def test_it_is_an_estimator(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(
    [ProbeClassifier(), ProbeClassifier(l2=1e-2, fit_intercept=True), ProbeRegressor(l2=1e-2, fit_intercept=True)]
)  # type: ignore[untyped-decorator]
def test_it_is_one_with_an_intercept_and_where_it_chooses_the_penalty(
    estimator: Any, check: Callable[[Any], None]
) -> None:
    check(estimator)
