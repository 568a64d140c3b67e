"""How neurons go with labels: rates under many nulls, planted signals, and what must change nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import pearson3, pearsonr

from probing.statistics import label_scores
from probing.statistics.label_scores import LabelCodes, Separation, SeparationAccumulator, neurons_at_a_time, upper_tail

pytestmark = pytest.mark.numeric

Rows = NDArray[Any]


def corpus(n_sentences: int, shortest: int = 5, longest: int = 15, seed: int = 0) -> tuple[Rows, Rows]:
    """Return labels (the place in the sentence) and sentences."""
    lengths = np.random.default_rng(seed).integers(shortest, longest + 1, n_sentences)
    return np.concatenate([np.arange(length) for length in lengths]), np.repeat(np.arange(n_sentences), lengths)


def separate(
    states: Rows | torch.Tensor, labels: Rows, sentences: Rows, *ends: int, clusters: Rows | None = None,
    codes: LabelCodes | None = None,
) -> Separation:  # fmt: skip
    """Return the separation of neurons from batches that end where these sentences begin."""
    states, labels = torch.as_tensor(states), np.asarray(labels)
    wide = states[torch.from_numpy(labels >= 0)].double()
    codes = codes or LabelCodes.of_classes(torch.from_numpy(np.bincount(labels[labels >= 0])))
    between = codes.excess_between(labels.astype(np.int32), sentences.astype(np.int32))
    accumulator = SeparationAccumulator(wide.mean(0), wide.std(0, correction=0), codes, between)
    for at in np.split(np.arange(len(labels)), np.searchsorted(sentences, ends)):
        of_cluster = None if clusters is None else torch.from_numpy(clusters[at])
        accumulator.update(states[at], torch.from_numpy(labels[at]), torch.from_numpy(sentences[at]), of_cluster)
    return accumulator.result()


def of_numbers(states: Rows, numbers: Rows, sentences: Rows) -> Separation:
    """Return the separation of neurons by a number for each token."""
    codes = LabelCodes.of_numbers(torch.from_numpy((numbers - numbers.mean()) / numbers.std()), len(numbers))
    return separate(states, np.arange(len(numbers)), sentences, codes=codes)


def anova(states: Rows, labels: Rows) -> Rows:
    """Return the share of each neuron's variance between classes, by the definition."""
    states, labels = states[labels >= 0], labels[labels >= 0]
    groups = [states[labels == c] for c in np.unique(labels)]
    between = sum(len(g) * np.square(g.mean(0) - states.mean(0)) for g in groups)
    return between / np.square(states - states.mean(0)).sum(0)


@pytest.fixture
def data() -> tuple[Rows, Rows, Rows]:
    labels, sentences = corpus(80)
    labels = np.where(labels == 0, -1, labels)
    states = np.random.default_rng(1).standard_normal((len(labels), 3)) + np.outer(labels, [0.0, 0.1, 1.0])
    return states, labels, sentences


# --- the rates, where labels say nothing of the neurons ---

Design = Callable[[np.random.Generator, int], tuple[Rows, Rows, Rows, Rows | None]]


def words(generator: np.random.Generator, d: int) -> tuple[Rows, Rows, Rows, Rows | None]:
    """Labels drawn for each token, some of them rare; sentences differ in their mean."""
    _, sentences = corpus(200)
    labels = generator.choice(6, size=len(sentences), p=[0.4, 0.3, 0.15, 0.1, 0.04, 0.01])
    return _around(sentences, generator, d), labels, sentences, None


def positions(generator: np.random.Generator, d: int) -> tuple[Rows, Rows, Rows, Rows | None]:
    labels, sentences = corpus(200)
    return _around(sentences, generator, d), labels, sentences, None


def constant(generator: np.random.Generator, d: int, flipped: int = 0) -> tuple[Rows, Rows, Rows, Rows | None]:
    """Sentences of ten tokens with one label each, but for one token in some of them."""
    sentences = np.repeat(np.arange(150), 10)
    labels = generator.integers(2, size=150)[sentences]
    labels[: 10 * flipped : 10] ^= 1
    return _around(sentences, generator, d), labels, sentences, None


def one_flipped(generator: np.random.Generator, d: int) -> tuple[Rows, Rows, Rows, Rows | None]:
    return constant(generator, d, 1)


def each_flipped(generator: np.random.Generator, d: int) -> tuple[Rows, Rows, Rows, Rows | None]:
    return constant(generator, d, 150)


def runs(generator: np.random.Generator, d: int) -> tuple[Rows, Rows, Rows, Rows | None]:
    """Labels in runs of five beside neurons that change slowly."""
    _, sentences = corpus(120, 15, 40)
    n = len(sentences)
    starts = (generator.random(n) < 0.2) | np.diff(sentences, prepend=-1).astype(bool)
    labels = generator.integers(3, size=n)[np.maximum.accumulate(np.where(starts, np.arange(n), 0))]
    states = generator.standard_normal((n, d))
    for i in range(1, n):
        if sentences[i] == sentences[i - 1]:
            states[i] = 0.9 * states[i - 1] + np.sqrt(1 - 0.81) * states[i]
    return states, labels, sentences, None


def documents(generator: np.random.Generator, d: int) -> tuple[Rows, Rows, Rows, Rows | None]:
    """Sixty documents with one label each, which differ in their mean."""
    document = np.repeat(np.arange(60), generator.integers(4, 12, 60))
    sentences = np.repeat(np.arange(len(document)), generator.integers(3, 9, len(document)))
    of_token = document[sentences]
    states = _around(sentences, generator, d) + generator.standard_normal((60, d))[of_token]
    return states, generator.integers(2, size=60)[of_token], sentences, of_token


def sizes(generator: np.random.Generator, d: int) -> tuple[Rows, Rows, Rows, Rows | None]:
    """Classes that go with the length of the sentence, whose mean varies less if it is long."""
    label = generator.integers(2, size=200)
    sentences = np.repeat(np.arange(200), np.where(label, generator.integers(10, 30, 200), 3))
    return generator.standard_normal((len(sentences), d)), label[sentences], sentences, None


def rows(generator: np.random.Generator, d: int) -> tuple[Rows, Rows, Rows, Rows | None]:
    """Rows without groups."""
    return generator.standard_t(5, (300, d)), generator.integers(4, size=300), np.arange(300), None


def _around(sentences: Rows, generator: np.random.Generator, d: int) -> Rows:
    return generator.standard_normal((len(sentences), d)) + generator.standard_normal((sentences[-1] + 1, d))[sentences]


@pytest.mark.parametrize(
    "design", [words, positions, constant, one_flipped, each_flipped, runs, documents, sizes, rows],
    ids=lambda design: design.__name__,
)  # fmt: skip
def test_where_labels_say_nothing_p_values_are_as_small_as_they_should_be(design: Design) -> None:
    generator, found = np.random.default_rng(7), []
    for _ in range(6):
        states, labels, sentences, clusters = design(generator, 250)
        found.append(separate(states, labels, sentences, clusters=clusters))
    p = torch.cat([one.p for one in found]).numpy()
    # Of 1,500 neurons; those of one set of labels are not independent. Documents are few.
    assert 0.025 < (p <= 0.05).mean() < 0.08
    assert (p <= 0.001).mean() < 0.004
    excess = torch.stack([one.eta_squared for one in found])
    assert abs(float(excess.mean())) < 5 * float(excess.std()) / len(p) ** 0.5 + 1e-4


def test_tokens_of_a_document_are_not_taken_for_independent_sentences() -> None:
    states, labels, sentences, clusters = documents(np.random.default_rng(0), 400)
    by_document, by_sentence = (separate(states, labels, sentences, clusters=one).p for one in (clusters, None))
    assert float((by_document <= 0.05).double().mean()) < 0.12
    assert float((by_sentence <= 0.05).double().mean()) > 0.3


@pytest.mark.parametrize("draw", ["standard_normal", "lognormal"])
def test_numbers_that_say_nothing_do_not_either(draw: str) -> None:
    """Numbers that follow the sentence alone, and neurons that do, within sentences have nothing in common."""
    generator = np.random.default_rng(2)
    lengths = generator.integers(2, 9, 80)
    of_sentence = np.repeat(generator.standard_normal(80), lengths)
    sentences = np.repeat(np.arange(80), lengths)
    numbers = getattr(generator, draw)(size=len(sentences))
    states = of_sentence[:, None] + getattr(generator, draw)(size=(len(sentences), 2000))
    p = of_numbers(states, numbers, sentences).p.numpy()
    assert (p < 0.01).mean() < 0.02
    assert (p < 0.001).mean() < 0.004


# --- planted signals ---


@pytest.mark.parametrize("n_flipped", [0, 1, 5, 30, 300])
def test_a_flipped_row_in_some_groups_takes_no_more_than_its_share(n_flipped: int) -> None:
    """Of 300 groups of ten; one flipped row took eta squared from .98 to .0002."""
    generator = np.random.default_rng(0)
    sentences = np.repeat(np.arange(300), 10)
    label = generator.integers(2, size=300)[sentences]
    neuron = (2.0 * label + 0.1 * generator.standard_normal(3000))[:, None]
    noisy = label.copy()
    noisy[: 10 * n_flipped : 10] ^= 1
    found = separate(neuron, noisy, sentences)
    assert float(found.eta_squared[0]) > 0.85 * anova(neuron, noisy)[0]
    assert float(found.p[0]) < 1e-30


def test_in_rows_of_their_own_numbers_have_pearsons_correlation() -> None:
    generator = np.random.default_rng(1)
    numbers = generator.standard_normal(400)
    states = generator.standard_normal((400, 3)) + 0.15 * numbers[:, None]
    found = of_numbers(states, numbers, np.arange(400))
    expected = [pearsonr(column, numbers) for column in states.T]
    np.testing.assert_allclose(np.log(found.p.numpy()), np.log([one.pvalue for one in expected]), rtol=0.15, atol=0.1)
    np.testing.assert_allclose(found.eta_squared.numpy(), [one.statistic**2 for one in expected], atol=0.006)


def test_runs_and_documents_that_the_neuron_follows_are_found() -> None:
    generator = np.random.default_rng(4)
    for design in (runs, documents, sizes):
        states, labels, sentences, clusters = design(generator, 5)
        states[:, 0] += 3 * labels
        p = separate(states, labels, sentences, clusters=clusters).p
        assert float(p[0]) < 1e-4, design.__name__
        assert float(p[1:].min()) > 1e-3, design.__name__


def test_position_itself_is_explained_almost_whole() -> None:
    labels, sentences = corpus(300)
    found = separate(labels[:, None].astype(np.float64), labels, sentences)
    assert 0.85 < float(found.eta_squared[0]) < 1  # sentences of different lengths keep different positions
    assert float(found.z[0]) > 100
    assert 0 < float(found.p[0]) < 1e-30


def test_a_neuron_that_knows_only_the_length_has_no_signal_of_position() -> None:
    labels, sentences = corpus(300, shortest=5, longest=40)
    length = np.bincount(sentences)[sentences].astype(np.float64)[:, None]
    found = separate(length, labels, sentences)
    assert anova(length, labels) > 0.2
    # Within its sentence a length does not vary: nothing is left but rounding.
    assert abs(float(found.eta_squared[0])) < 1e-10
    assert (float(found.z[0]), float(found.p[0])) == (0, 1)
    noisy = separate(length + np.random.default_rng(0).standard_normal(length.shape), labels, sentences)
    assert abs(float(noisy.eta_squared[0])) < 0.002
    assert float(noisy.p[0]) > 0.001


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


# --- what cannot be told ---


def test_a_constant_neuron_separates_nothing(data: tuple[Rows, Rows, Rows]) -> None:
    _, labels, sentences = data
    found = separate(np.full((len(labels), 2), [0.0, 3.3]), labels, sentences)
    assert found.eta_squared.tolist() == [0, 0]
    assert found.z.tolist() == [0, 0]
    assert found.p.tolist() == [1, 1]


def test_of_a_single_sentence_nothing_can_be_told() -> None:
    labels = np.arange(60) % 3
    assert float(separate(labels[:, None] * 9.0, labels, np.zeros(60, dtype=np.int64)).p[0]) == 1


def test_a_p_value_is_no_smaller_than_one_pattern_of_signs_among_all() -> None:
    labels, sentences = np.array([0, 1] * 3), np.repeat(np.arange(3), 2)
    states = labels[:, None] * 100.0 + np.arange(6)[:, None]
    assert float(separate(states, labels, sentences).p[0]) >= 1 / 4
    many = separate(np.tile(states, (200, 1)), np.tile(labels, 200), np.repeat(np.arange(600), 2))
    assert 0 < float(many.p[0]) < 1e-80


def test_the_tail_is_that_of_pearsons_third_type() -> None:
    z, skewness = np.array([-5.0, -0.5, 0.0, 2.0, 4.0, 8.0]), np.array([1.0, 0.3, 2.8, 0.01, 1.0, 0.5])
    found = upper_tail(torch.from_numpy(z), torch.from_numpy(skewness))
    np.testing.assert_allclose(found, pearson3.sf(z, skewness), rtol=1e-6)


# --- what is added, and how ---


@pytest.mark.parametrize("scores", [1, 200, 100_000])
def test_many_batches_and_parts_of_any_size_give_what_one_gives(
    data: tuple[Rows, Rows, Rows], scores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = separate(*data)
    monkeypatch.setattr(label_scores, "SCORES", scores)
    parts = separate(*data, 3, 3, 40, 79)
    for name in ("eta_squared", "z", "p"):
        torch.testing.assert_close(getattr(parts, name), getattr(whole, name), rtol=1e-8, atol=1e-10)


def test_clusters_with_one_label_are_added_as_others_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their scores are multiples of one vector for each label, which is only faster."""
    states, labels, sentences, clusters = documents(np.random.default_rng(0), 20)
    labels = labels + (np.arange(len(labels)) % 97 == 0)
    found = separate(states, labels, sentences, clusters=clusters)
    monkeypatch.setattr(SeparationAccumulator, "_add_single", SeparationAccumulator._add_mixed)
    slow = separate(states, labels, sentences, clusters=clusters)
    for name in ("eta_squared", "z", "p"):
        torch.testing.assert_close(getattr(slow, name), getattr(found, name), rtol=1e-8, atol=1e-10)


def test_neurons_in_parts_are_what_they_are_together(data: tuple[Rows, Rows, Rows]) -> None:
    states, labels, sentences = data
    parts = [separate(states[:, here], labels, sentences) for here in (slice(0, 1), slice(1, 3))]
    torch.testing.assert_close(Separation.of_all(parts).p, separate(*data).p)
    assert neurons_at_a_time(49) > 1000
    assert neurons_at_a_time(10_000) == 1


def test_float32_activations_far_from_zero_lose_nothing(data: tuple[Rows, Rows, Rows]) -> None:
    states, labels, sentences = data
    far = (states + 1e4).astype(np.float32)
    expected = separate(far.astype(np.float64), labels, sentences)
    torch.testing.assert_close(separate(far, labels, sentences).z, expected.z, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(("scale", "shift"), [(-1.0, 0.0), (1.0, 50.0), (1e-3, 0.0), (-1e4, 3.0)])
def test_negating_shifting_or_scaling_a_neuron_changes_nothing(
    data: tuple[Rows, Rows, Rows], scale: float, shift: float
) -> None:
    states, labels, sentences = data
    one, other = separate(*data), separate(scale * states + shift, labels, sentences)
    torch.testing.assert_close(one.eta_squared, other.eta_squared, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(one.z, other.z, rtol=1e-6, atol=1e-6)


def test_tokens_that_do_not_count_change_nothing(data: tuple[Rows, Rows, Rows]) -> None:
    states, labels, sentences = data
    wild = np.where(labels[:, None] < 0, 1e6, states)
    assert torch.equal(separate(wild, labels, sentences).p, separate(*data).p)
