"""Ridge probes of numbers, against scikit-learn and the normal equations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.linear_model import Ridge

from probing.data.arrays import sides_of_arrays
from probing.data.labelling import Standard
from probing.evidence.table import collect_number_evidence, with_number_removals, without
from probing.probes.closed_forms import Decomposed, NumberFit, choose_ridge_penalty

pytestmark = pytest.mark.numeric

L2 = 0.01
SPLIT = np.repeat(["train", "validation", "test"], [300, 60, 60])


@pytest.fixture(scope="module")
def arrays() -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """420 rows of 12 neurons of different sizes and means, of which one hardly varies and two are nearly the same."""
    generator = np.random.default_rng(1)
    X = generator.standard_normal((420, 12)) * np.linspace(0.1, 5, 12) + np.linspace(-3, 30, 12)
    X[:, 4] = X[:, 5] + 1e-3 * X[:, 4]
    X[:, 8] = 2.0
    return X.astype(np.float32), 40 + X[:, 2] * 3 - X[:, 9] + generator.standard_normal(420)


@pytest.fixture(scope="module")
def found(arrays: Any) -> Decomposed:
    X, y = arrays
    sides, layers = sides_of_arrays(X, y, split=SPLIT)
    return Decomposed.of(sides, layers, "sd")


@pytest.fixture(scope="module")
def fitted(found: Decomposed) -> NumberFit:
    return found.train(L2)[0]


def reference(X: Any, y: Any, l2: float, dead: int = 8) -> NDArray[np.float64]:
    """Return scikit-learn's weights on raw neurons."""
    train = SPLIT == "train"
    X, y = X[train].astype(np.float64), y[train]
    scale = np.where(np.arange(X.shape[1]) == dead, np.inf, X.std(0))
    model = Ridge(alpha=l2 * len(y), fit_intercept=False, solver="cholesky")
    weight: NDArray[np.float64] = model.fit(X / scale, (y - y.mean()) / y.std()).coef_ / scale * y.std()
    return weight


def test_weights_are_those_of_scikit_learn_and_the_gradient_is_rounding(arrays: Any, fitted: NumberFit) -> None:
    X, y = arrays
    # The standard deviations come from float32 deviations, so that scales agree to that alone; hence the next test.
    np.testing.assert_allclose(fitted.weight[0].numpy(), reference(X, y, L2), rtol=1e-5, atol=1e-8)
    assert fitted.relative_gradient < 1e-12
    assert fitted.weight[0, 8] == 0


def test_in_the_space_of_raw_neurons_weights_agree_to_rounding(arrays: Any) -> None:
    X, y = arrays
    X = np.delete(X, 8, 1)
    sides, layers = sides_of_arrays(X, y, split=SPLIT)
    fit = Decomposed.of(sides, layers, "raw").train(L2)[0]
    x, t = X[:300].astype(np.float64), y[:300] - y[:300].mean()
    exact = Ridge(alpha=L2 * 300, fit_intercept=False, solver="cholesky").fit(x, t).coef_
    np.testing.assert_allclose(fit.weight[0].numpy(), exact, atol=1e-8)
    stacked = np.vstack([x, np.sqrt(L2 * 300) * np.eye(11)])
    by_rows = np.linalg.lstsq(stacked, np.append(t, np.zeros(11)))[0]
    np.testing.assert_allclose(fit.weight[0].numpy(), by_rows, atol=1e-8)


def test_r_squared_is_held_against_the_training_mean(arrays: Any, fitted: NumberFit) -> None:
    X, y = arrays
    train, test = SPLIT == "train", SPLIT == "test"
    predicted = y[train].mean() + X[test].astype(np.float64) @ fitted.weight[0].numpy()
    expected = 1 - ((y[test] - predicted) ** 2).sum() / ((y[test] - y[train].mean()) ** 2).sum()
    assert fitted.r2 == pytest.approx(expected, abs=1e-12)
    own = y[train].mean() + X[train].astype(np.float64) @ fitted.weight[0].numpy()
    assert fitted.train_r2 == pytest.approx(1 - ((y[train] - own) ** 2).mean() / y[train].var(), abs=1e-12)
    size = fitted.absolute.sum() / 60 * fitted.standard.sd
    assert size == pytest.approx(np.abs(y[test] - predicted).mean())


def test_the_penalty_is_the_best_on_validation_rows(arrays: Any, found: Decomposed) -> None:
    X, y = arrays
    path = choose_ridge_penalty(found.sides, found.layers, found.spectra, found.products)
    train, held = SPLIT == "train", SPLIT == "validation"
    for l2, (r2,) in zip(path.l2[::6], path.r2[::6], strict=True):
        # A probe that is nearly not penalised divides by the difference of two neurons that are nearly the same.
        predicted = y[train].mean() + X[held].astype(np.float64) @ reference(X, y, l2)
        expected = 1 - ((y[held] - predicted) ** 2).sum() / ((y[held] - y[train].mean()) ** 2).sum()
        assert r2 == pytest.approx(expected, abs=1e-6)
    assert path.chosen == path.l2[int(path.r2[:, 0].argmax())]
    assert path.summary()["l2"] == path.chosen


def test_the_probe_without_a_neuron_is_that_of_the_other_neurons(arrays: Any, found: Decomposed) -> None:
    X, y = arrays
    fit = found.train(L2)[0]
    inverse = fit.spectrum.inverse(L2)
    for neuron in (2, 5):
        reduced = np.delete(X, neuron, 1)
        others = Decomposed.of(sides_of_arrays(reduced, y, split=SPLIT)[0], [0], "sd").train(L2)[0]
        weight = fit.spectrum.scaling.raw_weight(without(fit.scaled, neuron, inverse)) * fit.standard.sd
        np.testing.assert_allclose(np.delete(weight.numpy(), neuron), others.weight[0].numpy(), atol=1e-8)
        (one,) = with_number_removals(collect_number_evidence(found, [fit]), found.sides, [fit], L2, 0)
        assert one.unique is not None
        assert float(one.unique[neuron]) == pytest.approx(others.objective - fit.objective, abs=1e-10)
        if neuron in one.ablation_effects:
            assert one.ablation_effects[neuron].value == pytest.approx(fit.r2 - others.r2, abs=1e-8)
    assert 2 in one.ablation_effects


def test_another_unit_of_the_numbers_changes_the_weights_alone(arrays: Any, fitted: NumberFit) -> None:
    X, y = arrays
    sides, layers = sides_of_arrays(X, 1000 * y - 7, split=SPLIT)
    other = Decomposed.of(sides, layers, "sd").train(L2)[0]
    torch.testing.assert_close(other.weight, 1000 * fitted.weight)
    assert other.r2 == pytest.approx(fitted.r2)
    assert Standard.of(sides.train).mean == pytest.approx(1000 * fitted.standard.mean - 7)
