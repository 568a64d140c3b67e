from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from probing.comparison.pairs import CrossMoments, CrossMomentsAccumulator, cross_moments
from probing.errors import UserError
from probing.runtime import machine as memory

pytestmark = pytest.mark.numeric

D = 12


def normal(*shape: int, seed: int = 0) -> NDArray[Any]:
    return np.random.default_rng(seed).standard_normal(shape)


def layers(states: NDArray[Any]) -> list[torch.Tensor]:
    """Take an array of shape (n_layers, n_words, d_model) apart."""
    return [torch.from_numpy(np.ascontiguousarray(layer)) for layer in np.asarray(states)]


def moments(a: NDArray[Any], b: NDArray[Any], *cuts: int) -> CrossMoments:
    """Moments of arrays of shape (n_layers, n_words, d_model), fed in batches."""
    accumulator = CrossMomentsAccumulator((len(a), len(b)), (a.shape[2], b.shape[2]))
    for x, y in zip(np.split(a, cuts, axis=1), np.split(b, cuts, axis=1), strict=True):
        accumulator.update(layers(x), layers(y))
    return accumulator.result()


def naive_cka(x: NDArray[Any], y: NDArray[Any]) -> float:
    """Linear CKA from centred Gram matrices of words."""
    k, m = ((z - z.mean(0)) @ (z - z.mean(0)).T for z in (x, y))
    return (k * m).sum() / np.sqrt((k * k).sum() * (m * m).sum())


def test_correlations_of_all_pairs_of_layers_are_those_of_numpy() -> None:
    a, b = normal(3, 500, 5), normal(2, 500, 7, seed=1)
    b[1, :, :5] += a[2]
    found = moments(a, b)
    assert found.n_words == 500
    for i in range(3):
        for j in range(2):
            expected = np.corrcoef(a[i].T, b[j].T)[:5, 5:]
            np.testing.assert_allclose(found.correlation(i, j), expected, atol=1e-6)  # products in float32


def test_correlations_with_the_neurons_of_another_basis_are_those_of_the_turned_states() -> None:
    a, b, basis = normal(1, 500, 5), normal(2, 500, 7, seed=1), normal(7, 4, seed=2)
    b[1, :, :5] += a[0]
    found = moments(a, b).correlation(0, 1, torch.from_numpy(basis))
    np.testing.assert_allclose(found, np.corrcoef(a[0].T, (b[1] @ basis).T)[:5, 5:], atol=1e-6)


def test_many_batches_give_what_one_gives() -> None:
    a, b = normal(2, 300, 5) + 3, normal(2, 300, 4, seed=1)
    whole, parts = moments(a, b), moments(a, b, 0, 1, 7, 7, 299)
    assert parts.n_words == whole.n_words
    for name in ("own_a", "own_b", "cross"):
        # Products are taken in float32 around another shift.
        torch.testing.assert_close(getattr(parts, name), getattr(whole, name), rtol=0, atol=1e-6)


def test_more_words_than_are_multiplied_at_a_time() -> None:
    a, b = normal(1, 9001, 2), normal(1, 9001, 2, seed=1)
    np.testing.assert_allclose(moments(a, b).correlation(0, 0), np.corrcoef(a[0].T, b[0].T)[:2, 2:], atol=1e-6)


@pytest.mark.parametrize("cuts", [(), (1,), (1000, 2000)])
def test_a_mean_ten_thousand_times_the_sd_keeps_the_correlations(cuts: tuple[int, ...]) -> None:
    shared = normal(1, 4000, 1)
    a = (1e4 + shared + normal(1, 4000, 6, seed=1)).astype(np.float32)
    b = (-1e4 + shared + normal(1, 4000, 6, seed=2)).astype(np.float32)
    wide = np.corrcoef(a[0].T.astype(np.float64), b[0].T.astype(np.float64))[:6, 6:]
    assert np.abs(wide).min() > 0.4
    np.testing.assert_allclose(moments(a, b, *cuts).correlation(0, 0), wide, atol=1e-5)


def test_a_first_batch_far_from_the_others_takes_no_digits_from_them() -> None:
    shared = normal(1, 20_000, 1)
    a, b = shared + normal(1, 20_000, 3, seed=1), shared + normal(1, 20_000, 3, seed=2)
    a[:, 0], b[:, 0] = 400, -400
    wide = np.corrcoef(a[0].T, b[0].T)[:3, 3:]
    a, b = a.astype(np.float32), b.astype(np.float32)
    np.testing.assert_allclose(moments(a, b, 1).correlation(0, 0), wide, atol=1e-5)


def test_dead_neurons_correlate_with_nothing() -> None:
    a, b = normal(400, D), normal(400, D, seed=1)
    b[:, 3:] = a[:, 3:]
    a[:, 0], a[:, 1], b[:, 2] = 7, 1e-9 * a[:, 1], 0
    b[:, 1] = a[:, 1]  # rounding errors may well be the same in two models
    found = moments(a[None], b[None]).correlation(0, 0)
    assert not found[:2].any()
    assert not found[:, 1:3].any()
    assert found[2:, [0, *range(3, D)]].all()


def test_cka_is_that_of_gram_matrices() -> None:
    a, b = normal(2, 80, 5) + 2, normal(2, 80, 9, seed=1)
    b[1, :, :5] += a[1]
    found = moments(a, b)
    for i in range(2):
        for j in range(2):
            assert found.cka(i, j) == pytest.approx(naive_cka(a[i], b[j]), rel=1e-5)  # products in float32


def test_cka_ignores_rotation_and_scale_and_nothing_else() -> None:
    a, b = normal(300, D) * np.arange(1, D + 1), normal(300, D, seed=1)
    b += a @ normal(D, D, seed=2) / 10
    rotation, _ = np.linalg.qr(normal(D, D, seed=3))
    plain = moments(a[None], b[None]).cka(0, 0)
    assert moments(5 * a[None] @ rotation, b[None] + 3).cka(0, 0) == pytest.approx(plain, rel=1e-5)
    assert moments(a[None] @ rotation, a[None]).cka(0, 0) == pytest.approx(1, rel=1e-5)
    assert abs(moments(a[None] / np.arange(1, D + 1), b[None]).cka(0, 0) - plain) > 0.01


def test_unrelated_layers_have_the_cka_of_chance() -> None:
    found = [moments(normal(1, 200, 30, seed=i), normal(1, 200, 20, seed=100 + i)) for i in range(30)]
    assert np.mean([one.cka(0, 0) for one in found]) == pytest.approx(found[0].cka_chance(0, 0), rel=0.03)
    assert found[0].cka_chance(0, 0) == pytest.approx(np.sqrt(30 * 20) / 200, rel=0.15)


def test_the_cka_of_a_constant_layer_is_undefined() -> None:
    assert np.isnan(moments(np.ones((1, 50, 3)), normal(1, 50, 3)).cka(0, 0))


def test_half_precision_is_taken_as_it_is() -> None:
    a = layers(normal(1, 300, 4))[0]
    accumulator = CrossMomentsAccumulator((1, 1), (4, 4))
    accumulator.update([a.bfloat16()], [a.half()])
    np.testing.assert_allclose(accumulator.result().correlation(0, 0).diagonal(), 1, atol=1e-4)


def test_what_does_not_fit_is_refused() -> None:
    accumulator = CrossMomentsAccumulator((1, 2), (3, 4))
    a, b = torch.ones(5, 3), torch.ones(5, 4)
    with pytest.raises(ValueError, match="no words"):
        accumulator.result()
    with pytest.raises(ValueError, match=r"2 layers of shape \(n_words, 4\), found \[\(5, 4\)\]"):
        accumulator.update([a], [b])
    with pytest.raises(ValueError, match=r"1 layers of shape \(n_words, 3\), found \[\(5, 4\)\]"):
        accumulator.update([b], [b, b])
    with pytest.raises(ValueError, match=r"the same words, found \[4, 5\]"):
        accumulator.update([a[:4]], [b, b])
    for bad in (np.nan, np.inf):
        with pytest.raises(ValueError, match="finite"):
            accumulator.update([a], [b, torch.full_like(b, bad)])


def test_inputs_stay_as_they_were() -> None:
    a, b = layers(normal(1, 20, 3)), layers(normal(1, 20, 3, seed=1))
    before = a[0].clone(), b[0].clone()
    accumulator = CrossMomentsAccumulator((1, 1), (3, 3))
    accumulator.update(a, b)
    accumulator.result()
    assert torch.equal(a[0], before[0])
    assert torch.equal(b[0], before[1])


def test_covariances_that_do_not_fit_in_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    wide: Any = SimpleNamespace(layers=range(25), store=SimpleNamespace(plan=SimpleNamespace(d_model=1024)))
    monkeypatch.setattr(memory, "memory_bytes", lambda: 4 * 10**9)
    with pytest.raises(UserError, match=r"25600 neurons with 25600.*5.2 GB.*this machine has 4.0 GB.*fewer layers"):
        cross_moments(wide, wide)
