"""Gaussian and ridge probes and affine maps, against scipy, scikit-learn and numpy in float64."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import multivariate_normal
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge
from torch import Tensor

from probing.data.arrays import sides_of_arrays
from probing.data.labelling import Standard
from probing.probes import transforms
from probing.probes.closed_forms import (
    SHARED,
    Decomposed,
    GaussianProbe,
    NumberFit,
    choose_ridge_penalty,
    choose_shared,
    entropy,
    information,
    select,
)
from probing.probes.retraining import collect_number_evidence, optimum_without, with_number_removals
from probing.probes.transforms import Transform
from probing.statistics.moments import ClassMoments, ClassMomentsAccumulator, Covariance, CovarianceAccumulator

pytestmark = pytest.mark.numeric

N_CLASSES, D_MODEL = 3, 6


def draw(n: int, seed: int = 0, apart: float = 1.0) -> tuple[Tensor, Tensor]:
    """Draw correlated tokens of three classes, of which neurons 2 and 4 alone tell; neuron 5 is large and constant."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(N_CLASSES, size=n)
    states = generator.standard_normal((n, D_MODEL)) @ np.random.default_rng(9).standard_normal((D_MODEL, D_MODEL))
    states[:, 2] += 4 * apart * labels
    states[:, 4] += 3 * apart * (labels == 1)
    states[:, 5] = 50 + 0.1 * generator.standard_normal(n)
    return torch.from_numpy(states).float(), torch.from_numpy(labels)


def moments(states: Tensor, labels: Tensor, batch: int = 50) -> ClassMoments:
    accumulator = ClassMomentsAccumulator(states.shape[1], N_CLASSES)
    for rows in range(0, len(states), batch):
        accumulator.update(states[rows : rows + batch], labels[rows : rows + batch])
    return accumulator.result()


@pytest.mark.parametrize("batch", [1, 7, 1000])
def test_class_moments_are_numpys_however_they_are_fed(batch: int) -> None:
    states, labels = draw(300)
    labels[::10] = -1
    found = moments(states, labels, batch)
    for c in range(N_CLASSES):
        rows = states[labels == c].double().numpy()
        assert found.counts[c] == len(rows)
        # Float64 throughout.
        np.testing.assert_allclose(found.mean[c], rows.mean(0), rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(found.scatter[c], np.cov(rows.T, bias=True) * len(rows), rtol=1e-10, atol=1e-10)


def test_neurons_that_are_constant_within_classes_have_no_scatter_there() -> None:
    # As many values as it takes for products of their float32 distances from the mean to be rounded, on any processor.
    _, labels = draw(300)
    levels = torch.randn(N_CLASSES, 200, generator=torch.Generator().manual_seed(3))
    found = moments(levels[labels], labels)
    assert torch.equal(found.mean, levels.double())
    assert not found.scatter.any()
    assert (found.between > 0).all()


def test_the_scatter_of_neurons_that_repeat_each_other_is_not_negative_in_any_direction() -> None:
    states, labels = draw(3000)
    sums = states @ torch.randn(D_MODEL, D_MODEL, generator=torch.Generator().manual_seed(4))
    for scatter in moments(torch.cat([states, sums], 1), labels).scatter:
        scale = scatter.diagonal().rsqrt()
        values = torch.linalg.eigvalsh(scale[:, None] * scatter * scale)
        # The sums are rounded to float32; what is left in the directions that they repeat is that, squared.
        assert float(values.abs().min()) < 1e-11
        assert float(values.min()) > -1e-14


def test_class_means_far_from_0_keep_their_digits() -> None:
    labels = torch.arange(N_CLASSES).repeat(100)
    states = (1e4 + 1e-3 * torch.randn(300, 5, generator=torch.Generator().manual_seed(0))).float()
    found = moments(states, labels)
    for c in range(N_CLASSES):
        torch.testing.assert_close(found.mean[c], states[labels == c].double().mean(0), rtol=1e-14, atol=0)


def test_a_class_without_tokens_has_no_moments() -> None:
    states, labels = draw(100)
    labels[labels == 1] = -1
    found = moments(states, labels)
    assert found.counts[1] == 0
    assert not found.mean[1].any()
    assert not found.scatter[1].any()


@pytest.mark.parametrize("neurons", [[], [2], [4, 0, 5], range(D_MODEL)])
@pytest.mark.parametrize("shared", [0.0, 100.0])
def test_it_is_bayes_rule_on_scipys_densities(neurons: list[int], shared: float) -> None:
    states, labels = draw(200)
    test, _ = draw(20, seed=1)
    neurons, k = list(neurons), len(neurons)
    x = states.double().numpy()
    within = sum(np.cov(x[labels == c].T, bias=True) * int((labels == c).sum()) for c in range(N_CLASSES)) / 200
    log_joint = np.zeros((20, N_CLASSES))
    for c in range(N_CLASSES):
        rows = x[labels == c]
        n, own = len(rows), np.cov(rows.T, bias=True)
        # The prior of Torroba Hennigen et al.: nu_0 = k + 2, Lambda_0 = diag(own); see science.md E5.
        scale = np.diag(np.diag(own)) + n * own + shared * within
        covariance = (scale / (n + 2 * k + 4 + shared))[np.ix_(neurons, neurons)]
        log_joint[:, c] = math.log(n / 200)
        if k:
            density = multivariate_normal(rows.mean(0)[neurons], covariance)
            log_joint[:, c] += density.logpdf(test[:, neurons].double().numpy())
    expected = log_joint - np.log(np.exp(log_joint - log_joint.max(1, keepdims=True)).sum(1, keepdims=True))
    expected -= log_joint.max(1, keepdims=True)
    found = GaussianProbe(moments(states, labels), shared).log_p(test, neurons)
    # The floor under each variance is a millionth of the neuron's.
    np.testing.assert_allclose(found, expected, atol=2e-3)


def test_with_one_covariance_for_all_it_is_linear_discriminant_analysis() -> None:
    states, labels = draw(400)
    test, _ = draw(100, seed=1)
    probe = GaussianProbe(moments(states, labels), 1e12)
    expected = LinearDiscriminantAnalysis(solver="lsqr").fit(states.double(), labels).predict_proba(test.double())
    np.testing.assert_allclose(probe.log_p(test, range(D_MODEL)).exp(), expected, atol=1e-3)


def test_leaving_out_a_neuron_is_integrating_over_it() -> None:
    # With k fixed at what the subset has, a subset's density is the marginal of the joint one: here by quadrature.
    states, labels = draw(200, apart=0.3)
    probe = GaussianProbe(moments(states, labels), 1e9)  # of which 2 k + 4 is nothing
    point = states[:1].clone()
    grid = torch.linspace(-60, 60, 4001)
    points = point.repeat(len(grid), 1)
    points[:, 0] = grid
    chosen = torch.tensor([3, 0])
    factor = torch.linalg.cholesky(probe.scale(chosen) / probe.tokens(2)[:, None, None])
    means = probe.classes.mean[:, chosen]
    joint = torch.distributions.MultivariateNormal(means, scale_tril=factor)
    density = joint.log_prob(points[:, None, chosen].double()).exp()
    marginal = torch.trapezoid(density, grid.double(), dim=0)
    expected = (probe.log_prior + marginal.log()).log_softmax(0)
    np.testing.assert_allclose(probe.log_p(point, [3])[0], expected, atol=1e-6)


def test_information_is_zero_for_the_classes_shares_and_all_of_it_for_certainty() -> None:
    labels = torch.tensor([0, 0, 1, 2])
    shares = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64).log().expand(4, 3)
    assert entropy(labels) == pytest.approx(1.5)
    assert information(shares, labels) == pytest.approx(0)
    certain = torch.nn.functional.one_hot(labels, 3).double().clamp(min=1e-300).log()
    assert information(certain, labels) == pytest.approx(1.5)


def test_noise_carries_no_information_and_the_planted_neurons_most() -> None:
    train, held_out = draw(3000), draw(3000, seed=1)
    probe = GaussianProbe(moments(*train), 0.0)
    alone = [information(probe.log_p(held_out[0], [i]), held_out[1]) for i in range(D_MODEL)]
    assert abs(alone[5]) < 0.01
    assert max(alone) == alone[2]


@pytest.mark.parametrize("shared", [0.0, 1e3])
def test_selection_adds_what_refitting_every_candidate_would(shared: float) -> None:
    (states, labels), (held_out, classes) = draw(150), draw(300, seed=1)
    probe = GaussianProbe(moments(states, labels), shared)
    candidates = [0, 2, 3, 4, 5]
    found = select(probe, held_out, classes, candidates, 4)
    chosen: list[int] = []
    for step in range(5):
        bits = {i: information(probe.log_p(held_out, [*chosen, i]), classes) for i in candidates if i not in chosen}
        if step == 4:
            last = dict(zip(candidates, found.with_next.tolist(), strict=True))
            assert {i: last[i] for i in bits} == pytest.approx(bits, abs=1e-4)
            break
        best = max(bits, key=lambda i: bits[i])
        chosen.append(best)
        # Distances are kept in float32.
        assert found.information[step + 1] == pytest.approx(bits[best], abs=1e-4)
    assert found.neurons == chosen
    assert found.neurons[0] == 2


def test_selection_ends_with_the_candidates_and_leaves_the_inputs_alone() -> None:
    (states, labels), (held_out, classes) = draw(150), draw(300, seed=1)
    before = held_out.clone()
    found = select(GaussianProbe(moments(states, labels), 0.0), held_out, classes, [1, 2], 50)
    assert sorted(found.neurons) == [1, 2]
    assert len(found.information) == 3
    assert torch.isneginf(found.with_next).all()
    assert torch.equal(held_out, before)


def test_units_and_constants_change_nothing() -> None:
    (states, labels), (held_out, classes) = draw(500), draw(500, seed=1)
    unit, offset = torch.tensor([1e-3, 10.0, -1.0, 1e3, 2.0, 1.0]), torch.tensor([5.0, 0, -3, 1e3, 0, 0])
    plain = select(GaussianProbe(moments(states, labels), 10.0), held_out, classes, range(5), 5)
    changed = select(
        GaussianProbe(moments(states * unit + offset, labels), 10.0), held_out * unit + offset, classes, range(5), 5
    )
    assert changed.neurons == plain.neurons
    assert changed.information == pytest.approx(plain.information, abs=1e-3)


def test_a_neuron_that_is_constant_within_classes_is_certain_and_finite() -> None:
    _, labels = draw(300)
    states = torch.randn(300, D_MODEL, generator=torch.Generator().manual_seed(0))
    states[:, 3] = labels.float()
    probe = GaussianProbe(moments(states, labels), 0.0)
    assert information(probe.log_p(states, [3]), labels) == pytest.approx(entropy(labels), abs=1e-3)
    assert select(probe, states, labels, range(D_MODEL), 2).neurons[0] == 3


def test_few_tokens_for_many_neurons_borrow_from_all_classes() -> None:
    generator = np.random.default_rng(0)

    def many(n: int) -> tuple[Tensor, Tensor]:
        labels = generator.integers(N_CLASSES, size=n)
        states = generator.standard_normal((n, 30)) + 0.5 * labels[:, None]
        return torch.from_numpy(states).float(), torch.from_numpy(labels)

    train, held_out = many(120), many(500)
    probe = choose_shared(moments(*train), *held_out, range(30))
    assert probe.shared > SHARED[0]
    own = GaussianProbe(probe.classes, 0.0)
    assert information(own.log_p(held_out[0], range(30)), held_out[1]) < 0
    assert information(probe.log_p(held_out[0], range(30)), held_out[1]) > 0.5


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
    for l2, (r2,) in zip(path.l2[::6], path.scores[::6], strict=True):
        # A probe that is nearly not penalised divides by the difference of two neurons that are nearly the same.
        predicted = y[train].mean() + X[held].astype(np.float64) @ reference(X, y, l2)
        expected = 1 - ((y[held] - predicted) ** 2).sum() / ((y[held] - y[train].mean()) ** 2).sum()
        assert r2 == pytest.approx(expected, abs=1e-6)
    assert path.chosen == path.l2[int(path.scores[:, 0].argmax())]
    assert path.summary()["l2"] == path.chosen


def test_the_probe_without_a_neuron_is_that_of_the_other_neurons(arrays: Any, found: Decomposed) -> None:
    X, y = arrays
    fit = found.train(L2)[0]
    inverse = fit.spectrum.inverse(L2)
    for neuron in (2, 5):
        reduced = np.delete(X, neuron, 1)
        others = Decomposed.of(sides_of_arrays(reduced, y, split=SPLIT)[0], [0], "sd").train(L2)[0]
        weight = fit.spectrum.scaling.raw_weight(optimum_without(fit.scaled, neuron, inverse)) * fit.standard.sd
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


D = 12


def affine_moments(states: Tensor, *cuts: int) -> Covariance:
    accumulator = CovarianceAccumulator(states.shape[1])
    for batch in torch.tensor_split(states, list(cuts)):
        accumulator.update(batch)
    return accumulator.result()


@pytest.fixture
def states() -> Tensor:
    """Correlated float64 states far from 0, neuron 3 an outlier, and sum(h) constant as behind a LayerNorm."""
    generator = torch.Generator().manual_seed(0)
    mixing = torch.randn(D, D, generator=generator, dtype=torch.float64)
    noise = torch.randn(3000, D, generator=generator, dtype=torch.float64) @ mixing
    return noise - noise.mean(1, keepdim=True) + torch.arange(D) * 0.3 + 40 * (torch.arange(D) == 3)


def every(found: Covariance) -> dict[str, Transform]:
    return {
        "none": transforms.identity(D),
        "clip": transforms.clip(found, [3, 7]),
        "clip to the mean": transforms.clip(found, [3, 7], to="mean"),
        "center": transforms.center(found),
        "standardise": transforms.standardise(found),
        "pca": transforms.whiten(found),
        "pca of 4": transforms.whiten(found, n_components=4),
        "zca": transforms.whiten(found, "zca"),
        "shrunk": transforms.whiten(found, shrinkage=0.1),
        "all_but_the_top": transforms.all_but_the_top(found, 2),
    }


def test_moments_are_those_of_numpy_in_batches_or_not(states: Tensor) -> None:
    x = states.numpy()
    for found in (affine_moments(states), affine_moments(states, 1, 1, 1000)):
        np.testing.assert_allclose(found.mean, x.mean(0), rtol=1e-13)
        np.testing.assert_allclose(found.covariance, np.cov(x.T, bias=True), atol=1e-12)
        np.testing.assert_allclose(found.sd, x.std(0), rtol=1e-12)


def test_moments_of_images_follow_from_those_of_the_vectors(states: Tensor) -> None:
    found = affine_moments(states)
    for name, transform in every(found).items():
        expected, predicted = affine_moments(transform(states)), transform.moments(found)
        torch.testing.assert_close(predicted.mean, expected.mean, atol=1e-9, rtol=0, msg=name)
        torch.testing.assert_close(predicted.covariance, expected.covariance, atol=1e-9, rtol=0, msg=name)
        # The rank is that of the images: LayerNorm's direction is lost already.
        assert transform.rank - np.linalg.matrix_rank(expected.covariance.numpy(), tol=1e-9) in (0, 1), name


@pytest.mark.parametrize("method", ["pca", "zca"])
def test_whitening_makes_the_covariance_the_identity_on_the_retained_subspace(states: Tensor, method: str) -> None:
    whiten = transforms.whiten(affine_moments(states), method)  # type: ignore[arg-type]
    assert whiten.rank == D - 1  # of 12 directions, one does not vary
    y = whiten(states).numpy()
    np.testing.assert_allclose(y.mean(0), 0, atol=1e-10)
    values = np.linalg.eigvalsh(np.cov(y.T, bias=True))
    np.testing.assert_allclose(values[-(D - 1) :], 1, atol=1e-9)
    np.testing.assert_allclose(values[: -(D - 1)], 0, atol=1e-9)
    # And in float32, as hidden states come.
    single = np.cov(whiten(states.float()).double().numpy().T, bias=True)
    np.testing.assert_allclose(single, np.cov(y.T, bias=True), atol=1e-4)


def test_pca_whitening_is_the_published_code_and_keeps_the_first_components(states: Tensor) -> None:
    full_rank = states + torch.randn(states.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x = full_rank.numpy()
    # Su et al., run_eval.py: u, s, vh = np.linalg.svd(np.cov(vecs.T)); W = u @ diag(1 / sqrt(s)); W[:, :n].
    u, s, _ = np.linalg.svd(np.cov(x.T))
    expected = (x - x.mean(0)) @ (u / np.sqrt(s))[:, :4]
    found = transforms.whiten(affine_moments(full_rank), n_components=4)(full_rank).numpy()
    scale = np.sqrt(len(x) / (len(x) - 1))  # np.cov divides by n - 1
    np.testing.assert_allclose(np.abs(found), np.abs(expected) * scale, atol=1e-9)  # eigenvectors have no sign


@pytest.mark.parametrize("n_components", [None, 5])
def test_zca_has_the_inner_products_of_pca_and_is_symmetric(states: Tensor, n_components: int | None) -> None:
    found = affine_moments(states)
    pca, zca = (transforms.whiten(found, method, n_components) for method in ("pca", "zca"))
    a, b = pca(states[:50]), zca(states[:50])
    assert a.shape == (50, n_components or D - 1)
    assert b.shape == (50, D)
    torch.testing.assert_close(a @ a.T, b @ b.T, atol=1e-9, rtol=0)
    torch.testing.assert_close(zca.linear, zca.linear.T)


def test_shrinkage_pulls_towards_the_sphere_and_restores_the_rank() -> None:
    few = torch.randn(8, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)  # fewer than neurons
    assert transforms.whiten(affine_moments(few)).rank == 7
    assert transforms.whiten(affine_moments(few), shrinkage=0.1).rank == D
    # All the way, whitening is one factor for all: cosines are those after centring.
    y, z = transforms.whiten(affine_moments(few), "zca", shrinkage=1.0)(few), few - few.mean(0)
    torch.testing.assert_close(y / y.norm(dim=1, keepdim=True), z / z.norm(dim=1, keepdim=True))


def test_directions_below_the_floor_are_left_out(states: Tensor) -> None:
    scaled = states * torch.where(torch.arange(D) < 6, 1, 1e-4)
    assert transforms.whiten(affine_moments(scaled)).rank == 6
    assert transforms.whiten(affine_moments(scaled), floor=1e-12).rank == D - 1


@pytest.mark.parametrize("to", ["zero", "mean"])
def test_clipping_sets_the_neurons_and_nothing_else_and_twice_is_once(states: Tensor, to: str) -> None:
    clip = transforms.clip(affine_moments(states), [3, 7], to=to)  # type: ignore[arg-type]
    y = clip(states)
    others = [k for k in range(D) if k not in (3, 7)]
    assert torch.equal(y[:, others], states[:, others])
    expected = states[:, [3, 7]].mean(0) if to == "mean" else torch.zeros(2, dtype=torch.float64)
    torch.testing.assert_close(y[:, [3, 7]], expected.expand(len(y), 2))
    assert torch.equal(clip(y), y)
    assert clip.clipped == [3, 7]


def test_centred_neurons_have_mean_0_and_dead_ones_are_exactly_0(states: Tensor) -> None:
    states[:, 5] = 1e4 + 1e-4 * states[:, 5]  # it varies by less than float32 tells apart around its mean
    images = transforms.center(affine_moments(states))(states)
    assert not images[:, 5].any()
    assert images.mean(0).abs().max() < 1e-9
    live = [neuron for neuron in range(D) if neuron != 5]
    torch.testing.assert_close(images[:, live], states[:, live] - states[:, live].mean(0))


def test_standardised_neurons_have_mean_0_and_sd_1_and_dead_ones_are_0(states: Tensor) -> None:
    states[:, 5] = 7 + 1e-9 * states[:, 5]
    y = transforms.standardise(affine_moments(states))(states).numpy()
    alive = np.arange(D) != 5
    np.testing.assert_allclose(y.mean(0), 0, atol=1e-10)
    np.testing.assert_allclose(y.std(0), alive, atol=1e-10)


def test_all_but_the_top_leaves_nothing_along_the_first_components(states: Tensor) -> None:
    y = transforms.all_but_the_top(affine_moments(states), 2)(states).numpy()
    x = states.numpy() - states.numpy().mean(0)
    _, _, vt = np.linalg.svd(x, full_matrices=False)
    np.testing.assert_allclose(y @ vt[:2].T, 0, atol=1e-9)
    np.testing.assert_allclose(y, x - x @ vt[:2].T @ vt[:2], atol=1e-9)
    assert transforms.all_but_the_top(affine_moments(torch.randn(500, 384))).rank == 384 - 3


def test_random_neurons_are_none_of_the_excluded_and_every_other_one_comes_up() -> None:
    generator = np.random.default_rng(0)
    drawn = [transforms.random_neurons(D, 2, [3, 7], generator) for _ in range(300)]
    assert {len(set(pair)) for pair in drawn} == {2}
    assert set(np.ravel(drawn)) == set(range(D)) - {3, 7}
    with pytest.raises(ValueError, match="11 neurons cannot be drawn from the 10"):
        transforms.random_neurons(D, 11, [3, 7], generator)


def test_saved_and_reloaded_transforms_are_the_same(states: Tensor, tmp_path: Path) -> None:
    for name, transform in every(affine_moments(states)).items():
        transforms.save(tmp_path / "file.safetensors", {0: transform, 11: transform.centred_on(states[0])})
        again = transforms.load(tmp_path / "file.safetensors")
        assert list(again) == [0, 11]
        assert (again[0].kind, again[0].rank) == (transform.kind, transform.rank)
        assert torch.equal(again[0](states), transform(states)), name
        assert torch.equal(again[11].shift, states[0])


def test_half_precision_comes_out_as_float32_and_shapes_are_kept(states: Tensor) -> None:
    found = affine_moments(states)
    for name, transform in every(found).items():
        y = transform(states[:6].view(2, 3, D).to(torch.bfloat16))
        assert y.dtype == torch.float32
        assert y.shape == (2, 3, transform.n_out), name


def test_recentred_maps_take_the_mean_to_0_and_keep_differences(states: Tensor) -> None:
    found = affine_moments(states)
    for name, transform in every(found).items():
        y, z = transform(states), transform.centred_on(found.mean)(states)
        torch.testing.assert_close(z.mean(0), torch.zeros(transform.n_out).double(), atol=1e-9, rtol=0, msg=name)
        torch.testing.assert_close(y[1:] - y[0], z[1:] - z[0], atol=1e-9, rtol=0, msg=name)


def test_what_cannot_be_fitted_is_refused(states: Tensor) -> None:
    found = affine_moments(states)
    with pytest.raises(ValueError, match="n_components must be 1 to 12, not 13"):
        transforms.whiten(found, n_components=13)
    with pytest.raises(ValueError, match="shrinkage must be 0 to 1"):
        transforms.whiten(found, shrinkage=1.5)
    with pytest.raises(ValueError, match="no neuron varies"):
        transforms.whiten(affine_moments(torch.ones(5, D)))
    with pytest.raises(ValueError, match="0 to 11, not 12"):
        transforms.all_but_the_top(found, 12)
    with pytest.raises(ValueError, match="no tokens"):
        affine_moments(states[:0])
