from __future__ import annotations

from typing import Any

import pytest
import torch

from probing.probes.objective import MOST_ROWS, SAMPLED, Workspace, cross_entropy_sums

pytestmark = pytest.mark.numeric

# Sums of float64 terms in two orders: a few units in the last place of values near 10.
EXACT: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-11}


# Weight, hidden states and labels.
Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@pytest.fixture
def batch() -> Batch:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(3, 4, 5, generator=generator, dtype=torch.float64)
    hidden_states = torch.randn(17, 5, generator=generator, dtype=torch.float64)
    labels = torch.randint(4, (17,), generator=generator)
    return weight, hidden_states, labels


def summed_cross_entropy(weight: torch.Tensor, hidden_states: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(hidden_states @ weight.T, labels, reduction="sum")


def test_value_and_gradient_equal_automatic_differentiation(batch: Batch) -> None:
    weight, hidden_states, labels = batch
    sums = cross_entropy_sums(weight, hidden_states, labels)
    for i in range(3):
        w = weight[i].clone().requires_grad_()
        value = summed_cross_entropy(w, hidden_states, labels)
        value.backward()
        torch.testing.assert_close(sums.cross_entropy[i], value.detach(), **EXACT)
        torch.testing.assert_close(sums.gradient[i], w.grad, **EXACT)


def test_class_covariance_equals_the_hessian_in_the_logits(batch: Batch) -> None:
    weight, hidden_states, labels = batch
    sums = cross_entropy_sums(weight, hidden_states, labels)
    for i in range(3):
        logits = hidden_states @ weight[i].T
        expected = sum(
            torch.autograd.functional.hessian(
                lambda z, y=y: torch.nn.functional.cross_entropy(z[None], y[None], reduction="sum"), z
            )
            for z, y in zip(logits, labels, strict=True)
        )
        torch.testing.assert_close(sums.class_covariance[i], expected, **EXACT)


def test_masked_rows_never_count_whatever_they_hold(batch: Batch) -> None:
    weight, hidden_states, labels = batch
    masked = labels.clone()
    masked[[0, 5, 16]] = -1
    wild = hidden_states.clone()
    wild[[0, 5, 16]] = 1e4
    kept = masked >= 0
    for one, other in zip(
        cross_entropy_sums(weight, wild, masked),
        cross_entropy_sums(weight, hidden_states[kept], labels[kept]),
        strict=True,
    ):
        torch.testing.assert_close(one, other, **EXACT)


def test_a_batch_without_examples_adds_nothing(batch: Batch) -> None:
    weight, hidden_states, labels = batch
    for sums in (
        cross_entropy_sums(weight, hidden_states, torch.full_like(labels, -1)),
        cross_entropy_sums(weight, hidden_states[:0], labels[:0]),
    ):
        assert all(not part.any() for part in sums)


def test_stacked_problems_give_what_each_gives_alone(batch: Batch) -> None:
    weight, hidden_states, labels = batch
    stacked = cross_entropy_sums(weight, hidden_states, labels)
    for i in range(3):
        for one, alone in zip(stacked, cross_entropy_sums(weight[i : i + 1], hidden_states, labels), strict=True):
            torch.testing.assert_close(one[i], alone[0], **EXACT)


def test_problems_may_have_labels_of_their_own_for_the_same_tokens(batch: Batch) -> None:
    weight, hidden_states, labels = batch
    own = torch.stack([labels, labels.flip(0), (labels + 1) % 4])
    own[:, [2, 9]] = -1
    stacked = cross_entropy_sums(weight, hidden_states, own)
    for i in range(3):
        for one, alone in zip(stacked, cross_entropy_sums(weight[i : i + 1], hidden_states, own[i]), strict=True):
            torch.testing.assert_close(one[i], alone[0], **EXACT)


def test_two_batches_add_up_to_one(batch: Batch) -> None:
    weight, hidden_states, labels = batch
    parts = [cross_entropy_sums(weight, hidden_states[at], labels[at]) for at in (slice(0, 6), slice(6, None))]
    for whole, a, b in zip(cross_entropy_sums(weight, hidden_states, labels), *parts, strict=True):
        torch.testing.assert_close(whole, a + b, **EXACT)


def test_inputs_stay_as_they_were(batch: Batch) -> None:
    before = [tensor.clone() for tensor in batch]
    cross_entropy_sums(*batch)
    assert all(torch.equal(one, other) for one, other in zip(before, batch, strict=True))


def test_values_are_summed_in_float64_from_float32_activations(batch: Batch) -> None:
    weight, hidden_states, labels = batch
    sums = cross_entropy_sums(weight.float(), hidden_states.float(), labels)
    assert sums.cross_entropy.dtype == torch.float64
    # Logits near 5 in float32: 17 errors of about 5e-7.
    expected = cross_entropy_sums(weight, hidden_states, labels).cross_entropy
    torch.testing.assert_close(sums.cross_entropy, expected, rtol=1e-6, atol=1e-5)


def test_probabilities_too_small_for_products_of_float32_change_nothing() -> None:
    """Logits that are 100 apart have probabilities whose products are denormal numbers, or 0."""
    weight, states = 100 * torch.eye(3), torch.eye(3).repeat(50, 1)
    labels = torch.arange(3).repeat(50)
    wrong = labels.roll(1)
    kinds = torch.float32, torch.float64
    sums, exact = (cross_entropy_sums(weight[None].to(kind), states.to(kind), wrong) for kind in kinds)
    assert float(sums.cross_entropy) == pytest.approx(150 * 100, rel=1e-6)  # not cut off
    torch.testing.assert_close(sums.gradient.double(), exact.gradient, rtol=1e-6, atol=1e-12)
    right = cross_entropy_sums(weight[None], states, labels).gradient[0]
    assert float(right[~torch.eye(3, dtype=torch.bool)].min()) > torch.finfo(torch.float32).tiny


def test_memory_that_was_used_before_changes_nothing(batch: Batch) -> None:
    """Whatever was summed there: more or fewer problems and tokens, in another dtype."""
    weight, hidden_states, labels = batch
    workspace = Workspace()
    cases = [
        (weight, hidden_states),
        (weight[:1], hidden_states[:4]),
        (weight.float(), hidden_states),
        (weight, hidden_states),
    ]
    for w, states in cases:
        alone = cross_entropy_sums(w, states.to(w), labels[: len(states)])
        after = cross_entropy_sums(w, states, labels[: len(states)], workspace=workspace)
        assert all(torch.equal(one, other) for one, other in zip(alone, after, strict=True))


def test_of_many_tokens_all_count_and_a_part_gives_the_class_covariance() -> None:
    generator = torch.Generator().manual_seed(0)
    n = 2 * MOST_ROWS + SAMPLED + 300
    weight = torch.randn(2, 3, 4, generator=generator, dtype=torch.float64)
    states, labels = torch.randn(n, 4, generator=generator).double(), torch.randint(3, (n,), generator=generator)
    counts = torch.stack([torch.ones(n), torch.arange(n) % 3]).double()
    found = cross_entropy_sums(weight, states, labels, counts)
    parts = zip(states.split(99), labels.split(99), counts.split(99, 1), strict=True)
    rows = [cross_entropy_sums(weight, *part) for part in parts]
    for name in ("cross_entropy", "gradient"):
        torch.testing.assert_close(getattr(found, name), sum(getattr(row, name) for row in rows), **EXACT)
    exact = torch.stack([row.class_covariance for row in rows]).sum(0)
    torch.testing.assert_close(found.class_covariance, exact, rtol=0.1, atol=0.01 * float(exact.max()))
    assert not torch.allclose(found.class_covariance, exact, rtol=1e-6)


def test_of_many_classes_fewer_tokens_give_the_class_covariance_and_none_give_it_where_it_is_not_needed() -> None:
    generator = torch.Generator().manual_seed(0)
    n, n_classes = 4096, 256
    weight = 0.3 * torch.randn(1, n_classes, 16, generator=generator, dtype=torch.float64)
    states, labels = (
        torch.randn(n, 16, generator=generator).double(),
        torch.randint(n_classes, (n,), generator=generator),
    )
    counts = torch.ones(1, n, dtype=torch.float64)
    p = (states @ weight[0].T).softmax(1)
    exact = p.sum(0).diag() - p.T @ p
    found = cross_entropy_sums(weight, states, labels, counts)
    half = 0.5 * 16 / n_classes  # a quarter of the two products: n x 256 x 256 against 2 x n x 256 x 16
    first = p[: int(half * n)]
    scale = n / len(first)
    torch.testing.assert_close(found.class_covariance[0], scale * (first.sum(0).diag() - first.T @ first), **EXACT)
    assert float(found.class_covariance[0].trace()) == pytest.approx(float(exact.trace()), rel=0.02)
    without = cross_entropy_sums(weight, states, labels, counts, with_curvature=False)
    assert without.class_covariance.shape == (1, 0, 0)
    torch.testing.assert_close(without.gradient, found.gradient, **EXACT)
