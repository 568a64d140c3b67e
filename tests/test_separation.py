import numpy as np
import pytest
import torch

from probing.permutation import permute_within_sentences
from probing.separation import DRAWS, SeparationAccumulator


def corpus(n_sentences, shortest=5, longest=15, seed=0):
    """Return labels (the place in the sentence), sentences and ids of random sentences."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(shortest, longest + 1, n_sentences)
    labels = np.concatenate([np.arange(length) for length in lengths])
    sentences = np.repeat(np.arange(n_sentences, dtype=np.int32), lengths)
    return labels, sentences, generator.integers(1000, size=len(labels)).astype(np.int32)


def separate(states, labels, permuted, *cuts):
    states, kept = torch.as_tensor(states), labels >= 0
    wide = states[torch.from_numpy(kept)].double()
    accumulator = SeparationAccumulator(wide.mean(0), wide.std(0, correction=0), labels.max() + 1, len(permuted))
    for at in np.split(np.arange(len(labels)), list(cuts)):
        accumulator.update(states[at], torch.from_numpy(labels[at]), torch.from_numpy(permuted[:, at]))
    return accumulator.result()


def anova(neuron, labels):
    """Return the share of the variance between classes, by the definition."""
    neuron, labels = neuron[labels >= 0], labels[labels >= 0]
    groups = [neuron[labels == c] for c in np.unique(labels)]
    between = sum(len(g) * (g.mean() - neuron.mean()) ** 2 for g in groups)
    return between / np.square(neuron - neuron.mean()).sum()


@pytest.fixture
def data():
    labels, sentences, ids = corpus(80)
    labels = np.where(labels == 0, -1, labels)
    noise = np.random.default_rng(1).standard_normal((len(labels), 3))
    states = noise + np.outer(labels, [0.0, 0.1, 1.0])
    return states, labels, permute_within_sentences(labels, sentences, ids, DRAWS, 0)


# --- permuted labels ---


def test_labels_are_permuted_within_their_sentences():
    labels, sentences, ids = corpus(40)
    for draw in permute_within_sentences(labels, sentences, ids, 5, 0):
        assert (draw != labels).any()
        for sentence in range(40):
            here = sentences == sentence
            assert sorted(draw[here]) == sorted(labels[here])


def test_tokens_that_do_not_count_stay_apart():
    labels, sentences, ids = corpus(40)
    masked = np.where(labels % 3 == 0, -1, labels)
    draws = permute_within_sentences(masked, sentences, ids, 5, 0)
    assert ((draws < 0) == (masked < 0)).all()


def test_draws_differ_and_a_seed_repeats_them():
    labels, sentences, ids = corpus(40)
    draws = permute_within_sentences(labels, sentences, ids, 5, 0)
    assert len({draw.tobytes() for draw in draws}) == 5
    np.testing.assert_array_equal(draws, permute_within_sentences(labels, sentences, ids, 5, 0))
    assert (draws != permute_within_sentences(labels, sentences, ids, 5, 1)).any()


def test_permuting_leaves_the_labels_as_they_were():
    labels, sentences, ids = corpus(10)
    before = labels.copy()
    permute_within_sentences(labels, sentences, ids, 3, 0)
    np.testing.assert_array_equal(labels, before)


def test_what_a_sentence_is_dealt_does_not_depend_on_its_place_in_the_corpus():
    labels, sentences, ids = corpus(30)
    draws = permute_within_sentences(labels, sentences, ids, 4, 0)
    # The sentences in reverse order, each sentence's tokens still in order.
    order = np.concatenate([np.flatnonzero(sentences == s) for s in range(29, -1, -1)])
    reordered = permute_within_sentences(labels[order], 29 - sentences[order], ids[order], 4, 0)
    np.testing.assert_array_equal(reordered, draws[:, order])


def test_every_place_is_dealt_every_label_equally_often():
    labels, sentences, ids = corpus(1000, shortest=4, longest=4)
    draws = permute_within_sentences(labels, sentences, ids, DRAWS, 0)
    for place in range(4):
        shares = np.bincount(draws[:, place::4].ravel(), minlength=4) / (1000 * DRAWS)
        # Standard error sqrt(3/16 / 20000) = .003; four of them.
        np.testing.assert_allclose(shares, 1 / 4, atol=0.012)


def test_like_sentences_apart_from_one_token_are_dealt_unlike():
    labels, sentences, ids = corpus(200, shortest=8, longest=8)
    ids = np.where(labels == 0, sentences, 7).astype(np.int32)
    first = permute_within_sentences(labels, sentences, ids, 1, 0)[0].reshape(200, 8)
    assert len({tuple(deal) for deal in first.tolist()}) > 190


# --- eta squared ---


def test_eta_squared_is_the_analysis_of_variance_minus_the_mean_of_the_permuted(data):
    states, labels, permuted = data
    found = separate(states, labels, permuted)
    for i in range(3):
        null = [anova(states[:, i], draw) for draw in permuted]
        true = anova(states[:, i], labels)
        # Float64 throughout.
        assert float(found.eta_squared[i]) == pytest.approx(true - np.mean(null), abs=1e-10)
        assert float(found.z[i]) == pytest.approx((true - np.mean(null)) / np.std(null, ddof=1), rel=1e-8)


def test_many_batches_in_any_order_give_what_one_gives(data):
    states, labels, permuted = data
    whole = separate(states, labels, permuted)
    order = np.random.default_rng(0).permutation(len(labels))
    parts = separate(states[order], labels[order], permuted[:, order], 3, 3, 400)
    torch.testing.assert_close(parts.eta_squared, whole.eta_squared, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(parts.z, whole.z, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_float32_activations_lose_nothing_near_zero_or_far_from_it(data, offset):
    states, labels, permuted = data
    narrow = (states + offset).astype(np.float32)
    expected = separate(narrow.astype(np.float64), labels, permuted)
    # Sums are taken in float64 whatever comes in.
    torch.testing.assert_close(separate(narrow, labels, permuted).eta_squared, expected.eta_squared, rtol=0, atol=1e-13)


def test_the_mean_that_is_subtracted_first_changes_nothing(data):
    states, labels, permuted = data
    kept = labels >= 0
    accumulator = SeparationAccumulator(
        torch.tensor([3.0, -1.0, 0.0]), torch.from_numpy(states[kept].std(0)), labels.max() + 1, DRAWS
    )
    accumulator.update(torch.from_numpy(states), torch.from_numpy(labels), torch.from_numpy(permuted))
    expected = separate(states, labels, permuted)
    torch.testing.assert_close(accumulator.result().eta_squared, expected.eta_squared, rtol=1e-10, atol=1e-10)


def test_pure_noise_has_no_excess_and_a_z_near_zero():
    labels, sentences, ids = corpus(150)
    permuted = permute_within_sentences(labels, sentences, ids, DRAWS, 0)
    noise = np.random.default_rng(2).standard_normal((len(labels), 300))
    found = separate(noise, labels, permuted)
    plain = np.mean([anova(noise[:, i], labels) for i in range(300)])
    assert plain > 0.005  # what is subtracted: about (15 - 1) / 1500
    # Standard error of a mean of 300 values of spread sqrt(2 x 14) / 1500 = .0035.
    assert abs(float(found.eta_squared.mean())) < 0.001
    # z has a t distribution with 19 degrees of freedom, stretched by sqrt(1 + 1/20) and skewed to the right.
    assert abs(float(found.z.mean())) < 0.3
    assert 0.8 < float(found.z.std()) < 1.4
    assert float((found.z >= 4).double().mean()) <= 0.02


def test_a_neuron_that_knows_only_the_length_has_no_excess():
    labels, sentences, ids = corpus(300, shortest=5, longest=40)
    permuted = permute_within_sentences(labels, sentences, ids, DRAWS, 0)
    length = np.bincount(sentences)[sentences].astype(np.float64)
    found = separate(length[:, None], labels, permuted)
    assert anova(length, labels) > 0.2
    # Permuting within a sentence leaves its length with the same labels: nothing is left but rounding.
    assert abs(float(found.eta_squared[0])) < 1e-10
    noisy = length + np.random.default_rng(0).standard_normal(len(length))
    assert abs(float(separate(noisy[:, None], labels, permuted).eta_squared[0])) < 0.002


def test_position_itself_is_explained_almost_whole():
    labels, sentences, ids = corpus(300)
    permuted = permute_within_sentences(labels, sentences, ids, DRAWS, 0)
    found = separate(labels[:, None].astype(np.float64), labels, permuted)
    null = np.mean([anova(labels.astype(float), draw) for draw in permuted])
    assert float(found.eta_squared[0]) == pytest.approx(1 - null, abs=1e-10)
    assert null < 0.15
    assert float(found.z[0]) > 100


@pytest.mark.parametrize(("scale", "shift"), [(-1.0, 0.0), (1.0, 50.0), (1e-3, 0.0), (-1e4, 3.0)])
def test_negating_shifting_or_scaling_a_neuron_changes_nothing(data, scale, shift):
    states, labels, permuted = data
    one, other = separate(states, labels, permuted), separate(scale * states + shift, labels, permuted)
    torch.testing.assert_close(one.eta_squared, other.eta_squared, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(one.z, other.z, rtol=1e-6, atol=1e-6)


def test_a_constant_neuron_separates_nothing(data):
    _, labels, permuted = data
    found = separate(np.full((len(labels), 2), [0.0, 3.3]), labels, permuted)
    assert found.eta_squared.tolist() == [0, 0]
    assert found.z.tolist() == [0, 0]


def test_tokens_that_do_not_count_change_nothing(data):
    states, labels, permuted = data
    wild = np.where(labels[:, None] < 0, 1e6, states)
    assert torch.equal(separate(wild, labels, permuted).eta_squared, separate(states, labels, permuted).eta_squared)


def test_permuted_neurons_permute_the_result(data):
    states, labels, permuted = data
    order = [2, 0, 1]
    torch.testing.assert_close(
        separate(states[:, order], labels, permuted).z, separate(states, labels, permuted).z[order], rtol=1e-10, atol=0
    )
