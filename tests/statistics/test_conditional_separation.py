"""How neurons go with labels within strata: closed forms, rates under nulls, and planted signals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from probing.statistics import label_scores as conditional_separation
from probing.statistics.label_scores import (
    ConditionalAccumulator,
    LabelCodes,
    Separation,
    SeparationAccumulator,
    StratumMeans,
    WithinStrata,
    strata_with_several,
)

pytestmark = pytest.mark.numeric

Rows = NDArray[Any]


def separate(
    states: Rows, labels: Rows, given: Rows, sentences: Rows, clusters: Rows | None = None, n_batches: int = 1,
    between: float | None = None,
) -> Separation:  # fmt: skip
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
    found = separate(states, labels, given, sentences, between=1.0)
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
        whole = SeparationAccumulator(x.mean(0), sd, codes, between)
        whole.update(x, torch.from_numpy(labels), torch.from_numpy(sentences))
        expected, found = whole.result(), separate(states, labels, np.zeros_like(labels), sentences, between=between)
        # One corrects for few tokens by the share of a sentence, 1 in 150, the other by what exchanged labels give.
        assert torch.allclose(found.eta_squared, expected.eta_squared, atol=4e-4)
        assert torch.allclose(found.z, expected.z, rtol=0.1, atol=0.05)


def test_what_goes_with_the_value_alone_is_no_signal_and_what_goes_with_the_label_is() -> None:
    states, labels, given, sentences = confounded(np.random.default_rng(2), 40)
    states[:, 20:] += 0.4 * labels[:, None]
    p = separate(states, labels, given, sentences).p
    assert (p[:20] > 0.001).all()
    assert (p[20:] < 1e-6).all()
    assert (separate(states, np.random.default_rng(0).permutation(labels), given, sentences).p > 1e-4).all()


Design = Callable[[np.random.Generator, int], tuple[Rows, Rows, Rows, Rows, Rows | None]]


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


@pytest.mark.parametrize("design", [of_tokens, of_few_each, of_sentences, of_documents, of_positions])
def test_p_values_keep_their_rate(design: Design) -> None:
    drawn = [design(np.random.default_rng([7, seed]), 30) for seed in range(40)]
    p = np.concatenate([separate(*one[:4], clusters=one[4]).p for one in drawn])
    # Neurons of a draw have their labels in common: three standard errors of 40 draws are some 2.5 points.
    assert 0.015 <= (p <= 0.05).mean() <= 0.085
    assert (p <= 0.001).mean() <= 0.006


def test_in_pairs_of_tokens_of_two_sentences_chance_is_that_of_exchanged_labels() -> None:
    """Random signs of both scores of a pair, which are the same, would make half of that variance."""
    generator = np.random.default_rng(5)
    given = np.tile(np.arange(50), 2)
    sentences = np.repeat(np.arange(20), 5)
    states, labels = generator.standard_normal((100, 3)), np.repeat([0, 1], 50)
    found = separate(states, labels, given, sentences, clusters=np.arange(100), between=1.0)
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
        before, after = (separate(one, labels, given, sentences, between=between) for one in (states, moved))
        assert torch.allclose(before.z, after.z) is is_same


def test_batches_and_processes_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    data = confounded(np.random.default_rng(3), 5)
    expected = separate(*data)
    for n_batches, at_a_time in ((7, 2**21), (1, 30), (3, 1)):
        monkeypatch.setattr(conditional_separation, "SCORES", at_a_time)
        found = separate(*data, n_batches=n_batches)
        for one, other in zip(vars(found).values(), vars(expected).values(), strict=True):
            assert torch.allclose(one, other, rtol=1e-8, atol=1e-12)


def test_a_neuron_that_varies_between_strata_alone_has_no_signal() -> None:
    states, labels, given, sentences = confounded(np.random.default_rng(4), 2)
    states[:, 0], states[:, 1] = given, 3.7
    found = separate(states, labels, given, sentences)
    assert found.p.tolist() == [1.0, 1.0]
    assert found.eta_squared.tolist() == [0.0, 0.0]
