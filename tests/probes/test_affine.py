"""Affine maps of hidden states: what each promises of its images, by numpy in float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from probing.probes import transforms
from probing.probes.transforms import Transform
from probing.statistics.moments import Covariance, CovarianceAccumulator

pytestmark = pytest.mark.numeric

D = 12


def moments(states: Tensor, *cuts: int) -> Covariance:
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
    for found in (moments(states), moments(states, 1, 1, 1000)):
        np.testing.assert_allclose(found.mean, x.mean(0), rtol=1e-13)
        np.testing.assert_allclose(found.covariance, np.cov(x.T, bias=True), atol=1e-12)
        np.testing.assert_allclose(found.sd, x.std(0), rtol=1e-12)


def test_moments_of_images_follow_from_those_of_the_vectors(states: Tensor) -> None:
    found = moments(states)
    for name, transform in every(found).items():
        expected, predicted = moments(transform(states)), transform.moments(found)
        torch.testing.assert_close(predicted.mean, expected.mean, atol=1e-9, rtol=0, msg=name)
        torch.testing.assert_close(predicted.covariance, expected.covariance, atol=1e-9, rtol=0, msg=name)
        # The rank is that of the images: LayerNorm's direction is lost already.
        assert transform.rank - np.linalg.matrix_rank(expected.covariance.numpy(), tol=1e-9) in (0, 1), name


@pytest.mark.parametrize("method", ["pca", "zca"])
def test_whitening_makes_the_covariance_the_identity_on_the_retained_subspace(states: Tensor, method: str) -> None:
    whiten = transforms.whiten(moments(states), method)  # type: ignore[arg-type]
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
    found = transforms.whiten(moments(full_rank), n_components=4)(full_rank).numpy()
    scale = np.sqrt(len(x) / (len(x) - 1))  # np.cov divides by n - 1
    np.testing.assert_allclose(np.abs(found), np.abs(expected) * scale, atol=1e-9)  # eigenvectors have no sign


@pytest.mark.parametrize("n_components", [None, 5])
def test_zca_has_the_inner_products_of_pca_and_is_symmetric(states: Tensor, n_components: int | None) -> None:
    found = moments(states)
    pca, zca = (transforms.whiten(found, method, n_components) for method in ("pca", "zca"))
    a, b = pca(states[:50]), zca(states[:50])
    assert a.shape == (50, n_components or D - 1)
    assert b.shape == (50, D)
    torch.testing.assert_close(a @ a.T, b @ b.T, atol=1e-9, rtol=0)
    torch.testing.assert_close(zca.linear, zca.linear.T)


def test_shrinkage_pulls_towards_the_sphere_and_restores_the_rank() -> None:
    few = torch.randn(8, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)  # fewer than neurons
    assert transforms.whiten(moments(few)).rank == 7
    assert transforms.whiten(moments(few), shrinkage=0.1).rank == D
    # All the way, whitening is one factor for all: cosines are those after centring.
    y, z = transforms.whiten(moments(few), "zca", shrinkage=1.0)(few), few - few.mean(0)
    torch.testing.assert_close(y / y.norm(dim=1, keepdim=True), z / z.norm(dim=1, keepdim=True))


def test_directions_below_the_floor_are_left_out(states: Tensor) -> None:
    scaled = states * torch.where(torch.arange(D) < 6, 1, 1e-4)
    assert transforms.whiten(moments(scaled)).rank == 6
    assert transforms.whiten(moments(scaled), floor=1e-12).rank == D - 1


@pytest.mark.parametrize("to", ["zero", "mean"])
def test_clipping_sets_the_neurons_and_nothing_else_and_twice_is_once(states: Tensor, to: str) -> None:
    clip = transforms.clip(moments(states), [3, 7], to=to)  # type: ignore[arg-type]
    y = clip(states)
    others = [k for k in range(D) if k not in (3, 7)]
    assert torch.equal(y[:, others], states[:, others])
    expected = states[:, [3, 7]].mean(0) if to == "mean" else torch.zeros(2, dtype=torch.float64)
    torch.testing.assert_close(y[:, [3, 7]], expected.expand(len(y), 2))
    assert torch.equal(clip(y), y)
    assert clip.clipped == [3, 7]


def test_centred_neurons_have_mean_0_and_dead_ones_are_exactly_0(states: Tensor) -> None:
    states[:, 5] = 1e4 + 1e-4 * states[:, 5]  # it varies by less than float32 tells apart around its mean
    images = transforms.center(moments(states))(states)
    assert not images[:, 5].any()
    assert images.mean(0).abs().max() < 1e-9
    live = [neuron for neuron in range(D) if neuron != 5]
    torch.testing.assert_close(images[:, live], states[:, live] - states[:, live].mean(0))


def test_standardised_neurons_have_mean_0_and_sd_1_and_dead_ones_are_0(states: Tensor) -> None:
    states[:, 5] = 7 + 1e-9 * states[:, 5]
    y = transforms.standardise(moments(states))(states).numpy()
    alive = np.arange(D) != 5
    np.testing.assert_allclose(y.mean(0), 0, atol=1e-10)
    np.testing.assert_allclose(y.std(0), alive, atol=1e-10)


def test_all_but_the_top_leaves_nothing_along_the_first_components(states: Tensor) -> None:
    y = transforms.all_but_the_top(moments(states), 2)(states).numpy()
    x = states.numpy() - states.numpy().mean(0)
    _, _, vt = np.linalg.svd(x, full_matrices=False)
    np.testing.assert_allclose(y @ vt[:2].T, 0, atol=1e-9)
    np.testing.assert_allclose(y, x - x @ vt[:2].T @ vt[:2], atol=1e-9)
    assert transforms.all_but_the_top(moments(torch.randn(500, 384))).rank == 384 - 3


def test_random_neurons_are_none_of_the_excluded_and_every_other_one_comes_up() -> None:
    generator = np.random.default_rng(0)
    drawn = [transforms.random_neurons(D, 2, [3, 7], generator) for _ in range(300)]
    assert {len(set(pair)) for pair in drawn} == {2}
    assert set(np.ravel(drawn)) == set(range(D)) - {3, 7}
    with pytest.raises(ValueError, match="11 neurons cannot be drawn from the 10"):
        transforms.random_neurons(D, 11, [3, 7], generator)


def test_saved_and_reloaded_transforms_are_the_same(states: Tensor, tmp_path: Path) -> None:
    for name, transform in every(moments(states)).items():
        transforms.save(tmp_path / "file.safetensors", {0: transform, 11: transform.centred_on(states[0])})
        again = transforms.load(tmp_path / "file.safetensors")
        assert list(again) == [0, 11]
        assert (again[0].kind, again[0].rank) == (transform.kind, transform.rank)
        assert torch.equal(again[0](states), transform(states)), name
        assert torch.equal(again[11].shift, states[0])


def test_half_precision_comes_out_as_float32_and_shapes_are_kept(states: Tensor) -> None:
    found = moments(states)
    for name, transform in every(found).items():
        y = transform(states[:6].view(2, 3, D).to(torch.bfloat16))
        assert y.dtype == torch.float32
        assert y.shape == (2, 3, transform.n_out), name


def test_recentred_maps_take_the_mean_to_0_and_keep_differences(states: Tensor) -> None:
    found = moments(states)
    for name, transform in every(found).items():
        y, z = transform(states), transform.centred_on(found.mean)(states)
        torch.testing.assert_close(z.mean(0), torch.zeros(transform.n_out).double(), atol=1e-9, rtol=0, msg=name)
        torch.testing.assert_close(y[1:] - y[0], z[1:] - z[0], atol=1e-9, rtol=0, msg=name)


def test_what_cannot_be_fitted_is_refused(states: Tensor) -> None:
    found = moments(states)
    with pytest.raises(ValueError, match="n_components must be 1 to 12, not 13"):
        transforms.whiten(found, n_components=13)
    with pytest.raises(ValueError, match="shrinkage must be 0 to 1"):
        transforms.whiten(found, shrinkage=1.5)
    with pytest.raises(ValueError, match="no neuron varies"):
        transforms.whiten(moments(torch.ones(5, D)))
    with pytest.raises(ValueError, match="0 to 11, not 12"):
        transforms.all_but_the_top(found, 12)
    with pytest.raises(ValueError, match="no tokens"):
        moments(states[:0])
