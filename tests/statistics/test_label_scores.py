"""Moments over all signs of clusters, by the definition; and the mean under exchangeable labels."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from probing.statistics.label_scores import Divided, ExchangedSums, LabelCodes, ScoreSums

pytestmark = pytest.mark.numeric


def scores(n: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 3, 2, generator=generator, dtype=torch.float64).exp()


@pytest.mark.parametrize("n", [2, 3, 9])
def test_moments_are_those_over_all_signs(n: int) -> None:
    u = scores(n)
    sums = ScoreSums.empty(3, 2)
    sums.add(u[:2])
    sums.add(u[2:])
    signs = torch.tensor(list(itertools.product([-1.0, 1.0], repeat=n)), dtype=torch.float64)
    drawn = torch.einsum("rn,ncd->rcd", signs, u).square().sum(1)
    found = sums.under_random_signs()
    torch.testing.assert_close(found.mean, drawn.mean(0))
    torch.testing.assert_close(found.variance, drawn.var(0, correction=0))
    torch.testing.assert_close(found.third, (drawn - drawn.mean(0)).pow(3).mean(0))


@pytest.mark.parametrize("share", [1.0, 0.3])
@pytest.mark.parametrize("columns", [[0, 1, 2], [2, 0, 2], [0, 0, 0]])
def test_multiples_of_a_labels_vector_are_added_as_if_one_by_one(columns: list[int], share: float) -> None:
    n_columns = max(columns) + 1
    codes = LabelCodes(
        torch.tensor(columns),
        torch.tensor([1.0, 0.5, -2], dtype=torch.float64),
        torch.tensor([0.2, -0.7, 0.4], dtype=torch.float64)[:n_columns],
    )
    vectors = share * (codes.values[:, None] * torch.eye(n_columns, dtype=torch.float64)[columns] - codes.mean)
    factors = torch.randn(7, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    label = torch.tensor([0, 1, 2, 0, 0, 1, 0])
    one_by_one, at_once = ScoreSums.empty(n_columns, 2), ScoreSums.empty(n_columns, 2)
    one_by_one.add(scores(4)[:, :n_columns])
    one_by_one.add(vectors[label][:, :, None] * factors[:, None])
    at_once.add(scores(4)[:, :n_columns])
    powers = torch.zeros(4, 3, 2, dtype=torch.float64)
    for total, power in zip(powers, (1, 2, 4, 6), strict=True):
        total.index_add_(0, label, factors**power)
    for name, value in vars(at_once.with_multiples(codes, share, powers)).items():
        torch.testing.assert_close(value, getattr(one_by_one, name))


def of_labels(labels: torch.Tensor, states: torch.Tensor, sentences: torch.Tensor, between: float) -> torch.Tensor:
    codes = LabelCodes.of_classes(labels.bincount())
    tokens = Divided.of(labels, sentences, sentences)
    deviations = states - states.mean(0)
    sums = ExchangedSums.empty(states.shape[1])
    sums.add(deviations, tokens.by_sentence(deviations), tokens, codes)
    return sums.mean(between)


def squared(labels: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
    """Return the sum of squares between classes."""
    one_hot = torch.nn.functional.one_hot(labels).double()
    return (one_hot.T @ (states - states.mean(0))).square().div(one_hot.sum(0)[:, None].clamp(min=1)).sum(0)


def test_among_rows_the_mean_is_that_over_all_permutations() -> None:
    states = scores(6, 2)[:, 0]
    labels = torch.tensor([0, 0, 0, 1, 1, 2])
    drawn = torch.stack([squared(labels[list(order)], states) for order in itertools.permutations(range(6))])
    torch.testing.assert_close(of_labels(labels, states, torch.arange(6), 1.0), drawn.mean(0))


def test_within_sentences_too() -> None:
    states, labels = scores(8, 3)[:, 0], torch.tensor([0, 1, 2, 1, 0, 0, 1, 2])
    sentences = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    means = torch.stack([part.mean(0) for part in states.split(4)])[sentences]
    orders = itertools.product(itertools.permutations(range(4)), itertools.permutations(range(4, 8)))
    # Without the means of sentences, which no permutation within sentences moves.
    drawn = torch.stack([squared(labels[[*a, *b]], states - means) for a, b in orders])
    torch.testing.assert_close(of_labels(labels, states, sentences, 0.0), drawn.mean(0))


def test_among_sentences_longer_ones_vary_more_whatever_their_label() -> None:
    """Where a class is of short sentences, its own variance is not that of all: labels are not merely permuted."""
    generator, found = np.random.default_rng(0), []
    label = np.arange(200) % 2
    sentences = torch.from_numpy(np.repeat(np.arange(200), np.where(label, 20, 3)))
    labels = torch.from_numpy(label)[sentences]
    for _ in range(40):
        states = torch.from_numpy(generator.standard_normal((len(labels), 50)))
        found.append((of_labels(labels, states, sentences, 1.0) / squared(labels, states).mean()).mean())
    assert np.mean(found) == pytest.approx(1, abs=0.1)


def test_sentences_that_differ_as_a_whole_vary_by_the_square_of_their_length() -> None:
    """Without that, labels of long sentences would be given too little variance, and those of short ones too much."""
    generator, found = np.random.default_rng(1), []
    label = np.arange(200) % 2
    sentences = torch.from_numpy(np.repeat(np.arange(200), np.where(label, 20, 3)))
    labels = torch.from_numpy(label)[sentences]
    for _ in range(40):
        states = torch.from_numpy(generator.standard_normal((200, 50)))[sentences]
        found.append((of_labels(labels, states, sentences, 1.0) / squared(labels, states).mean()).mean())
    assert np.mean(found) == pytest.approx(1, abs=0.1)
