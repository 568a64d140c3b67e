"""The Gaussian probe against scipy and sklearn, and its greedy selection against refitting every candidate."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch import Tensor

from probing.probes.closed_forms import SHARED, GaussianProbe, choose_shared, entropy, information, select
from probing.statistics.moments import ClassMoments, ClassMomentsAccumulator

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
