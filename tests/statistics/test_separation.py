"""How neurons go with labels, within strata or without: closed forms, rates under nulls, planted signals."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import pearson3, pearsonr

from probing.statistics import label_scores
from probing.statistics.chance import correlation_of_neighbours
from probing.statistics.label_scores import (
    ConditionalAccumulator,
    Divided,
    EtaSquared,
    EtaSquaredAccumulator,
    ExchangedSums,
    LabelCodes,
    ScoreSums,
    StratumMeans,
    WithinStrata,
    neurons_at_a_time,
    strata_with_several,
    upper_tail,
)

pytestmark = pytest.mark.numeric

Rows = NDArray[Any]


def corpus(n_sentences: int, shortest: int = 5, longest: int = 15, seed: int = 0) -> tuple[Rows, Rows]:
    """Return labels (the place in the sentence) and sentences."""
    lengths = np.random.default_rng(seed).integers(shortest, longest + 1, n_sentences)
    return np.concatenate([np.arange(length) for length in lengths]), np.repeat(np.arange(n_sentences), lengths)


def separate(
    states: Rows | torch.Tensor, labels: Rows, sentences: Rows, *ends: int, clusters: Rows | None = None,
    codes: LabelCodes | None = None,
) -> EtaSquared:  # fmt: skip
    """Return the separation of neurons from batches that end where these sentences begin."""
    states, labels = torch.as_tensor(states), np.asarray(labels)
    wide = states[torch.from_numpy(labels >= 0)].double()
    codes = codes or LabelCodes.of_classes(torch.from_numpy(np.bincount(labels[labels >= 0])))
    between = codes.excess_between(labels.astype(np.int32), sentences.astype(np.int32))
    accumulator = EtaSquaredAccumulator(wide.mean(0), wide.std(0, correction=0), codes, between)
    for at in np.split(np.arange(len(labels)), np.searchsorted(sentences, ends)):
        of_cluster = None if clusters is None else torch.from_numpy(clusters[at])
        accumulator.update(states[at], torch.from_numpy(labels[at]), torch.from_numpy(sentences[at]), of_cluster)
    return accumulator.result()


def of_numbers(states: Rows, numbers: Rows, sentences: Rows) -> EtaSquared:
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
    monkeypatch.setattr(EtaSquaredAccumulator, "_add_single", EtaSquaredAccumulator._add_mixed)
    slow = separate(states, labels, sentences, clusters=clusters)
    for name in ("eta_squared", "z", "p"):
        torch.testing.assert_close(getattr(slow, name), getattr(found, name), rtol=1e-8, atol=1e-10)


def test_neurons_in_parts_are_what_they_are_together(data: tuple[Rows, Rows, Rows]) -> None:
    states, labels, sentences = data
    parts = [separate(states[:, here], labels, sentences) for here in (slice(0, 1), slice(1, 3))]
    torch.testing.assert_close(EtaSquared.of_all(parts).p, separate(*data).p)
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


def conditional_separate(
    states: Rows, labels: Rows, given: Rows, sentences: Rows, clusters: Rows | None = None, n_batches: int = 1,
    between: float | None = None,
) -> EtaSquared:  # fmt: skip
    """Return the separation within strata, from batches of whole clusters."""
    clusters = sentences if clusters is None else clusters
    strata = strata_with_several(given, labels)
    kept = strata >= 0
    codes = LabelCodes.of_classes(torch.from_numpy(np.bincount(labels[kept], minlength=labels.max() + 1)))
    used = np.where(kept, labels, -1).astype(np.int32)
    between = codes.excess_between(used, sentences.astype(np.int32)) if between is None else between
    x, of_label, stratum, sentence, cluster = (
        torch.from_numpy(values[kept]) for values in (states, labels, strata, sentences, clusters)
    )
    vectors = WithinStrata.of(codes, of_label, stratum)
    means = StratumMeans.empty(len(vectors.sizes), x.shape[1])
    means.add(x, stratum, sentence)
    sums = ConditionalAccumulator(means.over(vectors.sizes), vectors, between)
    ends = np.quantile(clusters[kept], np.arange(1, n_batches) / n_batches).astype(int)
    for at in torch.from_numpy(np.arange(len(x))).tensor_split(np.searchsorted(clusters[kept], ends).tolist()):
        sums.update(x[at], stratum[at], of_label[at], sentence[at], cluster[at])
    return sums.result()


def partial(states: Rows, labels: Rows, given: Rows) -> Rows:
    """Return the partial eta squared by two regressions on indicators, in float64."""
    strata = strata_with_several(given, labels)
    kept = strata >= 0
    of_strata, of_labels = np.eye(strata.max() + 1)[strata[kept]], np.eye(labels.max() + 1)[labels[kept]]

    def left(design: Rows) -> Rows:
        return np.square(states[kept] - design @ np.linalg.lstsq(design, states[kept], rcond=None)[0]).sum(0)

    alone = left(of_strata)
    return (alone - left(np.hstack([of_strata, of_labels]))) / alone


def confounded(
    generator: np.random.Generator, d: int, n_sentences: int = 150, n_values: int = 40
) -> tuple[Rows, Rows, Rows, Rows]:
    """Return states that have the value, labels that go with it, values (a few of them frequent) and sentences."""
    sentences = np.repeat(np.arange(n_sentences), 10)
    frequency = 1 / np.arange(1, n_values + 1)
    given = generator.choice(n_values, len(sentences), p=frequency / frequency.sum())
    preferred = generator.dirichlet(np.full(4, 0.7), size=n_values)
    labels = (generator.random(len(given))[:, None] > preferred.cumsum(1)[given]).sum(1).clip(max=3)
    states = 2 * generator.standard_normal((n_values, d))[given] + generator.standard_normal((len(given), d))
    return states, labels, given, sentences


def test_strata_are_values_with_several_labels() -> None:
    values, labels = np.array([5, 5, 2, 2, 7, 7, -1, 9]), np.array([0, 1, 1, 1, 2, 0, 0, -1])
    assert strata_with_several(values, labels).tolist() == [0, 0, -1, -1, 1, 1, -1, -1]


def test_labels_explain_the_partial_eta_squared() -> None:
    states, labels, given, sentences = confounded(np.random.default_rng(0), 3)
    states[:, 1] += labels
    states[:, 2] += 10 * given
    found = conditional_separate(states, labels, given, sentences, between=1.0)
    expected = partial(states, labels, given)
    # What chance explains is subtracted: about the share of what the labels are free to explain.
    assert np.allclose(found.eta_squared, expected, atol=3 * 3 / len(labels))
    assert found.eta_squared[1] == pytest.approx(expected[1], abs=0.01)
    assert (found.p < 1e-6).tolist() == [False, True, False]


def test_with_one_value_it_is_that_of_all_tokens() -> None:
    states, labels, _, sentences = confounded(np.random.default_rng(1), 4)
    states += labels[:, None] * np.array([0.0, 0.1, 0.5, 2.0])
    for between in (0.0, 0.4, 1.0):
        codes = LabelCodes.of_classes(torch.from_numpy(np.bincount(labels)))
        x, sd = torch.from_numpy(states), torch.from_numpy(states.std(0))
        whole = EtaSquaredAccumulator(x.mean(0), sd, codes, between)
        whole.update(x, torch.from_numpy(labels), torch.from_numpy(sentences))
        expected, found = (
            whole.result(),
            conditional_separate(states, labels, np.zeros_like(labels), sentences, between=between),
        )
        # One corrects for few tokens by the share of a sentence, 1 in 150, the other by what exchanged labels give.
        assert torch.allclose(found.eta_squared, expected.eta_squared, atol=4e-4)
        assert torch.allclose(found.z, expected.z, rtol=0.1, atol=0.05)


def test_what_goes_with_the_value_alone_is_no_signal_and_what_goes_with_the_label_is() -> None:
    states, labels, given, sentences = confounded(np.random.default_rng(2), 40)
    states[:, 20:] += 0.4 * labels[:, None]
    p = conditional_separate(states, labels, given, sentences).p
    assert (p[:20] > 0.001).all()
    assert (p[20:] < 1e-6).all()
    assert (conditional_separate(states, np.random.default_rng(0).permutation(labels), given, sentences).p > 1e-4).all()


ConditionalDesign = Callable[[np.random.Generator, int], tuple[Rows, Rows, Rows, Rows, Rows | None]]


def of_tokens(generator: np.random.Generator, d: int) -> tuple[Rows, Rows, Rows, Rows, Rows | None]:
    return *confounded(generator, d), None


def of_few_each(generator: np.random.Generator, d: int) -> tuple[Rows, Rows, Rows, Rows, Rows | None]:
    """Many values with two or three tokens."""
    return *confounded(generator, d, n_values=800), None


def of_sentences(generator: np.random.Generator, d: int) -> tuple[Rows, Rows, Rows, Rows, Rows | None]:
    """A label for each sentence, which decides about half of its values; sentences differ as wholes."""
    states, _, given, sentences = confounded(generator, d)
    labels = generator.integers(4, size=sentences.max() + 1)[sentences]
    given = np.where(generator.random(len(given)) < 0.5, 4 * (given // 4) + labels, given)
    states = 2 * generator.standard_normal((50, d))[given] + generator.standard_normal(states.shape)
    return states + generator.standard_normal((sentences.max() + 1, d))[sentences], labels, given, sentences, None


def of_documents(generator: np.random.Generator, d: int) -> tuple[Rows, Rows, Rows, Rows, Rows | None]:
    """Documents of five sentences that differ, and mostly have one label."""
    states, labels, given, sentences = confounded(generator, d, n_sentences=400)
    documents = sentences // 5
    labels = np.where(generator.random(len(labels)) < 0.6, generator.integers(4, size=80)[documents], labels)
    return states + generator.standard_normal((80, d))[documents], labels, given, sentences, documents


def of_positions(generator: np.random.Generator, d: int) -> tuple[Rows, Rows, Rows, Rows, Rows | None]:
    """Places in the sentence, which many values go with; sentences differ as wholes."""
    states, _, given, sentences = confounded(generator, d)
    labels = np.tile(np.arange(10), len(given) // 10)
    given = np.where(generator.random(len(given)) < 0.4, labels, given)
    states = 2 * generator.standard_normal((50, d))[given] + generator.standard_normal(states.shape)
    return states + 2 * generator.standard_normal((sentences.max() + 1, d))[sentences], labels, given, sentences, None


@pytest.mark.slow
@pytest.mark.parametrize("design", [of_tokens, of_few_each, of_sentences, of_documents, of_positions])
def test_p_values_keep_their_rate(design: ConditionalDesign) -> None:
    drawn = [design(np.random.default_rng([7, seed]), 30) for seed in range(40)]
    p = np.concatenate([conditional_separate(*one[:4], clusters=one[4]).p for one in drawn])
    # Neurons of a draw have their labels in common: three standard errors of 40 draws are some 2.5 points.
    assert 0.015 <= (p <= 0.05).mean() <= 0.085
    assert (p <= 0.001).mean() <= 0.006


def test_in_pairs_of_tokens_of_two_sentences_chance_is_that_of_exchanged_labels() -> None:
    """Random signs of both scores of a pair, which are the same, would make half of that variance."""
    generator = np.random.default_rng(5)
    given = np.tile(np.arange(50), 2)
    sentences = np.repeat(np.arange(20), 5)
    states, labels = generator.standard_normal((100, 3)), np.repeat([0, 1], 50)
    found = conditional_separate(states, labels, given, sentences, clusters=np.arange(100), between=1.0)
    apart = states[50:] - states[:50]  # either order of the labels of a pair is as likely
    whole, by_chance, squares = (
        apart.sum(0) ** 2 / 2 / 50,
        np.square(apart).sum(0) / 2 / 50,
        np.square(apart).sum(0) / 2,
    )
    assert np.allclose(found.eta_squared, (whole - by_chance) / squares)


def test_what_is_the_same_for_a_whole_sentence_counts_only_where_sentences_are_compared() -> None:
    states, labels, given, sentences = confounded(np.random.default_rng(6), 4)
    moved = states + 5 * np.random.default_rng(7).standard_normal((150, 4))[sentences]
    for between, is_same in ((0.0, True), (1.0, False)):
        before, after = (
            conditional_separate(one, labels, given, sentences, between=between) for one in (states, moved)
        )
        assert torch.allclose(before.z, after.z) is is_same


def test_batches_and_processes_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    data = confounded(np.random.default_rng(3), 5)
    expected = conditional_separate(*data)
    for n_batches, at_a_time in ((7, 2**21), (1, 30), (3, 1)):
        monkeypatch.setattr(label_scores, "SCORES", at_a_time)
        found = conditional_separate(*data, n_batches=n_batches)
        for one, other in zip(vars(found).values(), vars(expected).values(), strict=True):
            assert torch.allclose(one, other, rtol=1e-8, atol=1e-12)


def test_a_neuron_that_varies_between_strata_alone_has_no_signal() -> None:
    states, labels, given, sentences = confounded(np.random.default_rng(4), 2)
    states[:, 0], states[:, 1] = given, 3.7
    found = conditional_separate(states, labels, given, sentences)
    assert found.p.tolist() == [1.0, 1.0]
    assert found.eta_squared.tolist() == [0.0, 0.0]


SENTENCES = np.repeat(np.arange(100), 10).astype(np.int32)


def share(labels: NDArray[np.int64], sentences: NDArray[np.int32] = SENTENCES) -> float:
    sizes = torch.from_numpy(np.bincount(labels[labels >= 0]))
    return LabelCodes.of_classes(sizes).excess_between(labels.astype(np.int32), sentences)


def coded_constant(n_classes: int = 2) -> NDArray[np.int64]:
    return np.repeat(np.random.default_rng(0).integers(n_classes, size=100), 10)


def test_the_sum_of_squared_products_is_the_sum_of_squares_between_classes() -> None:
    generator = np.random.default_rng(0)
    labels, x = generator.integers(4, size=200), generator.standard_normal(200)
    codes = LabelCodes.of_classes(torch.from_numpy(np.bincount(labels)))
    vectors = torch.zeros(200, 4, dtype=torch.float64)
    vectors[torch.arange(200), codes.columns[labels]] = codes.values[labels]
    torch.testing.assert_close(vectors.mean(0), codes.mean)
    between = sum((labels == c).sum() * (x[labels == c].mean() - x.mean()) ** 2 for c in range(4))
    assert float((vectors.T @ torch.from_numpy(x - x.mean())).square().sum()) == pytest.approx(between)


def test_labels_that_are_constant_within_sentences_lie_between_them() -> None:
    assert share(coded_constant()) == 1
    assert share(coded_constant(7)) == pytest.approx(1)
    assert share(np.arange(100) % 3, np.arange(100, dtype=np.int32)) == 1  # every token a sentence of its own


def test_positions_and_labels_drawn_for_each_token_do_not() -> None:
    assert share(np.tile(np.arange(10), 100)) == 0
    drawn = [share(np.random.default_rng(seed).integers(5, size=1000)) for seed in range(20)]
    assert max(drawn) < 0.25  # a hundred sentences: a standard error of .07
    assert np.mean(drawn) < 0.08
    assert share(np.tile([0, 1], 5), np.zeros(10, dtype=np.int32)) == 0  # a single sentence


@pytest.mark.parametrize("n_flipped", [1, 10, 100])
def test_each_row_that_is_flipped_takes_a_little(n_flipped: int) -> None:
    labels = coded_constant()
    labels[: 10 * n_flipped : 10] ^= 1
    # Of two equal labels, means of sentences have a variance near 1/4, less .09 for a flipped row. The variance within
    # such a sentence is .1, a tenth of which its mean has by chance.
    assert share(labels) == pytest.approx(1 - 0.01 * n_flipped / 100 / (0.25 - 0.09 * n_flipped / 100), abs=0.01)


def test_it_is_the_excess_that_was_planted() -> None:
    generator, found = np.random.default_rng(3), []
    for _ in range(20):
        numbers = generator.standard_normal(400).repeat(8) + 2 * generator.standard_normal(3200)
        standard = torch.from_numpy((numbers - numbers.mean()) / numbers.std())
        codes = LabelCodes.of_numbers(standard, len(numbers))
        found.append(codes.excess_between(np.arange(3200, dtype=np.int32), np.arange(400, dtype=np.int32).repeat(8)))
    # A mean of eight tokens has the variance 1 of its sentence and 4 / 8 of its tokens.
    assert np.mean(found) == pytest.approx(1 / 1.5, abs=0.01)


def test_tokens_without_a_label_do_not_count() -> None:
    labels = coded_constant()
    labels[::3] = -1
    assert share(labels) == 1


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


@pytest.mark.parametrize("as_a_whole", [False, True])
def test_among_sentences_longer_ones_vary_more_whatever_their_label(as_a_whole: bool) -> None:
    """Where a class is of short sentences, its own variance is not that of all: labels are not merely permuted.

    Sentences that differ as a whole vary by the square of their length. Without that, labels of long sentences would be
    given too little variance, and those of short ones too much.
    """
    generator, found = np.random.default_rng(int(as_a_whole)), []
    label = np.arange(200) % 2
    sentences = torch.from_numpy(np.repeat(np.arange(200), np.where(label, 20, 3)))
    labels = torch.from_numpy(label)[sentences]
    for _ in range(40):
        states = torch.from_numpy(generator.standard_normal((200 if as_a_whole else len(labels), 50)))
        states = states[sentences] if as_a_whole else states
        found.append((of_labels(labels, states, sentences, 1.0) / squared(labels, states).mean()).mean())
    assert np.mean(found) == pytest.approx(1, abs=0.1)


def found(labels: NDArray[np.int64], units: NDArray[np.int64] | None = None) -> float | None:
    codes = LabelCodes.of_classes(torch.from_numpy(np.bincount(labels[labels >= 0])))
    units = np.arange(len(labels)) if units is None else units
    return correlation_of_neighbours(labels.astype(np.int32), units.astype(np.int32), codes)


@pytest.mark.parametrize("n_classes", [2, 5, 40])
def test_labels_in_runs_are_seen_and_in_random_order_they_are_not(n_classes: int) -> None:
    generator = np.random.default_rng(n_classes)
    runs = generator.integers(n_classes, size=200).repeat(5)
    # Four of five neighbours are equal, and of the others one of all classes by chance.
    assert found(runs) == pytest.approx(0.8, abs=0.08)
    assert [found(generator.permutation(runs)) for _ in range(100)] == [None] * 100


def test_units_are_told_by_their_first_token_and_places_within_them_do_not_count() -> None:
    generator = np.random.default_rng(0)
    of_sentence = generator.integers(2, size=100).repeat(4)
    sentences = np.arange(400).repeat(3)
    assert found(of_sentence.repeat(3), sentences) == pytest.approx(0.75, abs=0.1)
    assert found(np.tile([0, 1, 2], 400), sentences) is None
    assert found(generator.integers(2, size=400).repeat(3), sentences) is None


def test_rows_without_a_label_are_left_out() -> None:
    labels = np.random.default_rng(1).integers(3, size=200).repeat(5)
    labels[::2] = -1
    assert found(labels) is not None
    assert found(np.zeros(50, dtype=np.int64)) is None


def test_numbers_that_drift_are_seen() -> None:
    numbers = np.linspace(-1, 1, 500) + 0.1 * np.random.default_rng(0).standard_normal(500)
    codes = LabelCodes.of_numbers(torch.from_numpy((numbers - numbers.mean()) / numbers.std()), 500)
    rows = np.arange(500, dtype=np.int32)
    assert (correlation_of_neighbours(rows, rows, codes) or 0) > 0.9
