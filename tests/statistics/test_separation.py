"""How neurons separate classes, against every relabelling of small corpora and many of larger ones."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import pearson3

from probing.statistics import permutation_moments, separation
from probing.statistics.permutation import permute_within_sentences
from probing.statistics.separation import Separation, SeparationAccumulator, neurons_at_a_time, upper_tail


def corpus(n_sentences: int, shortest: int = 5, longest: int = 15, seed: int = 0) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return labels (the place in the sentence) and sentences."""
    lengths = np.random.default_rng(seed).integers(shortest, longest + 1, n_sentences)
    return np.concatenate([np.arange(length) for length in lengths]), np.repeat(np.arange(n_sentences), lengths)


def separate(
    states: NDArray[Any] | torch.Tensor, labels: NDArray[Any] | torch.Tensor, sentences: NDArray[Any], *ends: int
) -> Separation:
    """Return the separation of neurons from batches that end where these sentences begin."""
    states, labels = torch.as_tensor(states), torch.as_tensor(labels)
    wide = states[labels >= 0].double()
    sizes = labels[labels >= 0].bincount()
    accumulator = SeparationAccumulator(wide.mean(0), wide.std(0, correction=0), sizes)
    for at in np.split(np.arange(len(labels)), np.searchsorted(sentences, ends)):
        accumulator.update(states[at], labels[at], torch.from_numpy(sentences[at]))
    return accumulator.result()


def anova(states: NDArray[Any], labels: NDArray[Any]) -> NDArray[Any]:
    """Return the share of each neuron's variance between classes, by the definition."""
    states, labels = states[labels >= 0], labels[labels >= 0]
    groups = [states[labels == c] for c in np.unique(labels)]
    between = sum(len(g) * np.square(g.mean(0) - states.mean(0)) for g in groups)
    return between / np.square(states - states.mean(0)).sum(0)


def relabellings(labels: NDArray[Any], sentences: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Yield the labels with each sentence's permuted, in every way there is."""
    of_sentences = [labels[sentences == s] for s in np.unique(sentences)]
    for parts in itertools.product(*(list(itertools.permutations(own)) for own in of_sentences)):
        yield np.concatenate(parts)


@pytest.fixture
def data() -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    labels, sentences = corpus(80)
    labels = np.where(labels == 0, -1, labels)
    states = np.random.default_rng(1).standard_normal((len(labels), 3)) + np.outer(labels, [0.0, 0.1, 1.0])
    return states, labels, sentences


# --- the null ---


@pytest.mark.parametrize(
    "of_sentences",
    [
        [[0, 1, 2, 0], [1, 0], [2, 1, 1]],
        [[0, 0, 1, 1, 1], [0, 1, 0]],
        [[0, 1, 2, 3], [3], [1, 1, 1], [0, 2]],  # one token, and one class alone
    ],
)
def test_mean_and_standard_deviation_of_the_null_are_those_over_all_relabellings(of_sentences: list[list[int]]) -> None:
    labels = np.concatenate(of_sentences)
    sentences = np.repeat(np.arange(len(of_sentences)), [len(own) for own in of_sentences])
    generator = np.random.default_rng(0)
    # Gaussian, with an outlier, and with a part of its sentence in it.
    states = generator.standard_normal((len(labels), 3)) + np.outer(np.arange(len(labels)) == 1, [0, 30, 0])
    states += np.outer(generator.standard_normal(len(of_sentences))[sentences], [0, 0, 3])
    null = np.array([anova(states, other) for other in relabellings(labels, sentences)])
    excess = anova(states, labels) - null.mean(0)
    found = separate(states, labels, sentences)
    np.testing.assert_allclose(found.eta_squared, excess, atol=1e-12)
    np.testing.assert_allclose(found.z, excess / null.std(0), atol=1e-9)


@pytest.mark.parametrize("n_classes", [2, 5, 8, 49])
def test_without_a_signal_p_values_are_uniform_whatever_the_number_of_classes(n_classes: int) -> None:
    """With 2 classes 2.3% of neurons had a z of 4 from 20 draws, with 49 classes .17%."""
    _, sentences = corpus(200)
    generator = np.random.default_rng(n_classes)
    noise = generator.standard_normal((len(sentences), 1500)) + generator.standard_normal((200, 1500))[sentences] / 2
    p = separate(noise, generator.integers(n_classes, size=len(sentences)), sentences).p.numpy()
    for level in (0.5, 0.1, 0.01):
        # Four standard errors of a share of independent neurons, and a tenth for the fitted tail.
        assert abs((p <= level).mean() - level) < 0.1 * level + 4 * (level / len(p)) ** 0.5
    assert (p <= 1e-4).sum() <= 3  # .15 are expected


@pytest.mark.parametrize("n_classes", [2, 10])
def test_p_values_are_the_share_of_relabellings_that_separate_as_well(n_classes: int) -> None:
    """Of neurons with weak signals: Gaussian, heavy-tailed, and different between sentences."""
    _, sentences = corpus(40)
    generator = np.random.default_rng(n_classes)
    n = len(sentences)
    # A rare class, which one large value is enough for.
    labels = np.where(generator.random(n) < 0.03, n_classes - 1, generator.integers(n_classes - 1, size=n))
    kinds = np.stack([generator.standard_normal(n), generator.standard_t(3, n), generator.standard_normal(n)], 1)
    kinds[:, 2] += 2 * generator.standard_normal(40)[sentences]
    strengths = np.repeat([0.0, 0.1, 0.15], 3)
    states = np.tile(kinds, 3) + np.outer(generator.standard_normal(n_classes)[labels], strengths)
    found = separate(states, labels, sentences).p.numpy()
    ids = generator.integers(1000, size=n).astype(np.int32)
    draws = permute_within_sentences(labels, sentences.astype(np.int32), ids, 2000, 0)
    one_hot = np.eye(n_classes)[draws] / np.bincount(labels)[:, None].T ** 0.5
    centred = states - states.mean(0)
    between = np.square(np.einsum("rnc,nd->rcd", one_hot, centred, optimize=True)).sum(1)
    true = anova(states, labels) * np.square(centred).sum(0)
    expected = (between >= true).mean(0)
    assert (np.abs(found - expected) < 0.2 * expected + 4 * (expected / 2000) ** 0.5 + 1e-3).all()


def test_a_p_value_is_no_smaller_than_one_relabelling_among_all() -> None:
    labels, sentences = np.array([0, 1, 0, 1]), np.array([0, 0, 1, 1])
    states = labels[:, None] * 100.0 + np.arange(4)[:, None]
    assert float(separate(states, labels, sentences).p[0]) >= 1 / 4
    many = separate(np.tile(states, (200, 1)), np.tile(labels, 200), np.repeat(np.arange(400), 2))
    assert 0 < float(many.p[0]) < 1e-80


def test_where_every_sentence_has_one_class_nothing_can_be_told() -> None:
    sentences = np.repeat(np.arange(40), 5)
    states = np.random.default_rng(0).standard_normal((200, 4)) + (sentences % 2)[:, None]
    found = separate(states, sentences % 2, sentences)
    assert found.p.tolist() == [1] * 4
    assert found.z.tolist() == [0] * 4
    np.testing.assert_allclose(found.eta_squared, 0, atol=1e-12)


def test_the_tail_is_that_of_pearsons_third_type() -> None:
    z, skewness = np.array([-5.0, -0.5, 0.0, 2.0, 4.0, 8.0]), np.array([1.0, 0.3, 2.8, 0.01, 1.0, 0.5])
    found = upper_tail(torch.from_numpy(z), torch.from_numpy(skewness))
    np.testing.assert_allclose(found, pearson3.sf(z, skewness), rtol=1e-6)


# --- what is added, and how ---


@pytest.mark.parametrize("rows", [5, 60, 2048])
def test_many_batches_and_parts_of_any_size_give_what_one_gives(
    data: tuple[NDArray[Any], NDArray[Any], NDArray[Any]], rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = separate(*data)
    monkeypatch.setattr(permutation_moments, "ROWS", rows)
    monkeypatch.setattr(separation, "PRODUCTS", 16 * rows)
    parts = separate(*data, 3, 3, 40, 79)
    for name in ("eta_squared", "z", "p"):
        torch.testing.assert_close(getattr(parts, name), getattr(whole, name), rtol=1e-8, atol=1e-10)


def test_neurons_in_parts_are_what_they_are_together(data: tuple[NDArray[Any], NDArray[Any], NDArray[Any]]) -> None:
    states, labels, sentences = data
    parts = [separate(states[:, here], labels, sentences) for here in (slice(0, 1), slice(1, 3))]
    torch.testing.assert_close(Separation.of_all(parts).p, separate(*data).p)
    assert neurons_at_a_time(49) > 1000
    assert neurons_at_a_time(10_000) == 1


def test_float32_activations_far_from_zero_lose_nothing(data: tuple[NDArray[Any], NDArray[Any], NDArray[Any]]) -> None:
    states, labels, sentences = data
    far = (states + 1e4).astype(np.float32)
    expected = separate(far.astype(np.float64), labels, sentences)
    torch.testing.assert_close(separate(far, labels, sentences).z, expected.z, rtol=1e-8, atol=1e-8)


def test_the_mean_that_is_subtracted_first_changes_nothing(
    data: tuple[NDArray[Any], NDArray[Any], NDArray[Any]],
) -> None:
    states, labels, sentences = (torch.from_numpy(part) for part in data)
    sd = states[labels >= 0].std(0, correction=0)
    accumulator = SeparationAccumulator(torch.tensor([3.0, -1.0, 0.0]), sd, labels[labels >= 0].bincount())
    accumulator.update(states, labels, sentences)
    torch.testing.assert_close(accumulator.result().z, separate(*data).z, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(("scale", "shift"), [(-1.0, 0.0), (1.0, 50.0), (1e-3, 0.0), (-1e4, 3.0)])
def test_negating_shifting_or_scaling_a_neuron_changes_nothing(
    data: tuple[NDArray[Any], NDArray[Any], NDArray[Any]], scale: float, shift: float
) -> None:
    states, labels, sentences = data
    one, other = separate(*data), separate(scale * states + shift, labels, sentences)
    torch.testing.assert_close(one.eta_squared, other.eta_squared, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(one.z, other.z, rtol=1e-6, atol=1e-6)


def test_tokens_that_do_not_count_change_nothing(data: tuple[NDArray[Any], NDArray[Any], NDArray[Any]]) -> None:
    states, labels, sentences = data
    wild = np.where(labels[:, None] < 0, 1e6, states)
    assert torch.equal(separate(wild, labels, sentences).p, separate(*data).p)


# --- what is found ---


def test_pure_noise_has_no_excess_and_a_z_near_zero() -> None:
    labels, sentences = corpus(150)
    noise = np.random.default_rng(2).standard_normal((len(labels), 300))
    found = separate(noise, labels, sentences)
    assert anova(noise, labels).mean() > 0.005  # what is subtracted: about (15 - 1) / 1500
    # Standard error of a mean of 300 values of spread sqrt(2 x 14) / 1500 = .0035.
    assert abs(float(found.eta_squared.mean())) < 0.001
    # Standard errors .06 and, of a standard deviation, .04; four of them.
    assert abs(float(found.z.mean())) < 0.25
    assert 0.84 < float(found.z.std()) < 1.16


def test_a_neuron_that_knows_only_the_length_has_no_signal() -> None:
    labels, sentences = corpus(300, shortest=5, longest=40)
    length = np.bincount(sentences)[sentences].astype(np.float64)[:, None]
    found = separate(length, labels, sentences)
    assert anova(length, labels) > 0.2
    # Permuting within a sentence leaves its length with the same labels: nothing is left but rounding.
    assert abs(float(found.eta_squared[0])) < 1e-10
    assert (float(found.z[0]), float(found.p[0])) == (0, 1)
    noisy = separate(length + np.random.default_rng(0).standard_normal(length.shape), labels, sentences)
    assert abs(float(noisy.eta_squared[0])) < 0.002
    assert float(noisy.p[0]) > 0.001


def test_position_itself_is_explained_almost_whole() -> None:
    labels, sentences = corpus(300)
    found = separate(labels[:, None].astype(np.float64), labels, sentences)
    assert 0.85 < float(found.eta_squared[0]) < 1  # sentences of different lengths keep different positions
    assert float(found.z[0]) > 100
    assert 0 < float(found.p[0]) < 1e-100


def test_a_constant_neuron_separates_nothing(data: tuple[NDArray[Any], NDArray[Any], NDArray[Any]]) -> None:
    _, labels, sentences = data
    found = separate(np.full((len(labels), 2), [0.0, 3.3]), labels, sentences)
    assert found.eta_squared.tolist() == [0, 0]
    assert found.z.tolist() == [0, 0]
    assert found.p.tolist() == [1, 1]
