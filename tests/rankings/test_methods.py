"""Each ranking against an independent computation, and all of them against what was planted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.feature_selection import f_classif

from probing.data.labelling import load, thin
from probing.probes.solvers import Penalty
from probing.rankings import methods as elastic_net
from probing.rankings.methods import METHODS, LayerData, Ranking, by_score, entries, mean_differences, read_layer
from synthetic import LIGHTNING_WARNINGS, Data, make_store, make_tokens, objective, optimum, scaled_features, sides

pytestmark = [pytest.mark.numeric, *(pytest.mark.filterwarnings(warning) for warning in LIGHTNING_WARNINGS)]
LENGTHS = np.random.default_rng(0).integers(8, 13, 200).tolist()
D_MODEL, INFORMATIVE, CONSTANT, DEAD = 20, 4, 9, 7

# What ranks by how far the classes are apart for the neuron's spread, so that a unit does not matter.
FREE_OF_SCALE = [name for name in METHODS if name not in ("probeless", "random")]
# What asks how much a weight or a logit is moved by the neuron's values, their mean included.
FOOLED_BY_CONSTANTS = ["contribution", "contribution_predicted", "contribution_all", "elastic_net"]


def states_of(seed: int = 0) -> Any:
    """Return noise, but for a neuron of position, a large constant one and a dead one."""
    tokens = make_tokens(LENGTHS)
    states = np.random.default_rng(seed).standard_normal((tokens.n_tokens, D_MODEL))
    states[:, INFORMATIVE] += tokens.positions
    states[:, CONSTANT] = 10 + 0.5 * states[:, CONSTANT]
    states[:, DEAD] *= 1e-8
    return tokens, states


def data_of(folder: Path, states: Any, tokens: Any, seed: int = 0) -> tuple[LayerData, Data]:
    data = sides(make_store(folder, [states], tokens))
    fit = data.fit()[0]
    return read_layer(0, fit.weight, Penalty(0.0, 1e-3), "sd", data, seed), data


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> tuple[LayerData, Data]:
    tokens, states = states_of()
    return data_of(tmp_path_factory.mktemp("planted") / "store", states, tokens)


@pytest.fixture(scope="module")
def ranked(planted: tuple[LayerData, Data]) -> Callable[[str], Ranking]:
    """Rank the neurons of the planted data by a method, once for each method."""
    return cache(lambda name: METHODS[name](planted[0]))


# --- what is planted is found (science.md F1, F2) ---


@pytest.mark.parametrize("name", [name for name in METHODS if name not in (*FOOLED_BY_CONSTANTS, "random")])
def test_the_neuron_of_position_is_first(ranked: Callable[[str], Ranking], name: str) -> None:
    order = ranked(name).order.tolist()
    assert order[0] == INFORMATIVE
    assert order[-1] == DEAD


@pytest.mark.parametrize("name", FOOLED_BY_CONSTANTS)
def test_a_large_constant_is_mistaken_for_one_by_what_does_not_centre(
    ranked: Callable[[str], Ranking], name: str
) -> None:
    order = ranked(name).order.tolist()
    assert set(order[:2]) == {INFORMATIVE, CONSTANT}
    assert order[-1] == DEAD


@pytest.mark.parametrize("name", METHODS)
def test_a_ranking_is_of_all_neurons_and_each_once(ranked: Callable[[str], Ranking], name: str) -> None:
    ranking = ranked(name)
    assert sorted(ranking.order.tolist()) == list(range(D_MODEL))
    assert ranking.score.shape == (D_MODEL,)
    assert torch.isfinite(ranking.score).all()
    if name != "gaussian":  # whose score is what a neuron adds to those before it
        assert (ranking.score[ranking.order].diff() <= 0).all()


def test_neurons_that_are_constant_within_classes_have_the_largest_f(tmp_path: Path) -> None:
    tokens, states = states_of()
    states[:, :6] = np.random.default_rng(5).standard_normal((tokens.positions.max() + 1, 6))[tokens.positions]
    data, _ = data_of(tmp_path / "store", states, tokens)
    found = METHODS["anova"](data)
    assert sorted(found.order[:6].tolist()) == [*range(6)]
    assert torch.isposinf(found.score[:6]).all()
    assert torch.isfinite(found.score[6:]).all()


# --- symmetries ---


NEW = np.random.default_rng(1).permutation(D_MODEL)


@pytest.fixture(scope="module")
def reordered(tmp_path_factory: pytest.TempPathFactory) -> LayerData:
    """The planted data with its neurons reordered, and some of them negated."""
    tokens, states = states_of()
    signs = np.random.default_rng(2).choice([-1, 1], D_MODEL)
    return data_of(tmp_path_factory.mktemp("reordered") / "store", (states * signs)[:, NEW], tokens)[0]


@pytest.fixture(scope="module")
def in_other_units(tmp_path_factory: pytest.TempPathFactory) -> LayerData:
    """The planted data with each neuron multiplied by a power of 2."""
    tokens, states = states_of()
    units = np.exp2(np.random.default_rng(3).integers(-6, 7, D_MODEL))
    units[DEAD] = 1
    return data_of(tmp_path_factory.mktemp("units") / "store", states * units, tokens)[0]


@pytest.mark.parametrize("name", [name for name in METHODS if name != "random"])
def test_neurons_reordered_and_negated_are_ranked_the_same(
    ranked: Callable[[str], Ranking], reordered: LayerData, name: str
) -> None:
    before, after = ranked(name), METHODS[name](reordered)
    live = [i for i in range(D_MODEL) if i != DEAD]
    # The probe is trained anew, to 1e-5 nats; neurons of noise may pass each other, the first may not.
    tolerance = 0.05 * float(before.score.abs().max())
    scores = torch.empty_like(after.score)
    scores[torch.from_numpy(NEW)] = after.score
    if name == "weight_mass":
        tolerance = 0.1
    np.testing.assert_allclose(scores[live], before.score[live], atol=tolerance)
    assert NEW[after.order[0]] == before.order[0]


@pytest.mark.parametrize("name", FREE_OF_SCALE)
def test_units_do_not_matter(ranked: Callable[[str], Ranking], in_other_units: LayerData, name: str) -> None:
    before, after = ranked(name), METHODS[name](in_other_units)
    np.testing.assert_allclose(after.score, before.score, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["contribution", "contribution_all", "contribution_centred", "weight", "weight_mass"])
def test_a_vector_added_to_the_weights_of_every_class_changes_nothing(
    planted: tuple[LayerData, Data], name: str
) -> None:
    data = planted[0]
    shifted = replace(data, weight=data.weight + torch.randn(D_MODEL, generator=torch.Generator().manual_seed(0)))
    np.testing.assert_allclose(METHODS[name](shifted).score, METHODS[name](data).score, rtol=1e-3, atol=1e-6)


def test_inputs_are_left_as_they_are(planted: tuple[LayerData, Data]) -> None:
    data = planted[0]
    held = [data.weight, data.moments.mean, data.classes.scatter, data.train.hidden_states, data.magnitudes.magnitude]
    before = [tensor.clone() for tensor in held]
    for method in METHODS.values():
        method(data)
    assert all(torch.equal(a, b) for a, b in zip(held, before, strict=True))


# --- oracles ---


def tokens_of(data: Data, side: str) -> tuple[Any, Any]:
    states, labels = load(getattr(data, side), 0)
    return states.double().numpy(), labels.numpy()


def test_contributions_are_sums_over_tokens_written_out(planted: tuple[LayerData, Data]) -> None:
    data, (x, y) = planted[0], tokens_of(planted[1], "test")
    weight = data.weight.double().numpy()
    weight = weight - weight.mean(0)
    predicted = (x @ weight.T).argmax(1)
    every = np.mean([[np.abs(w * v) for w in weight] for v in x], axis=(0, 1))
    of_class = {
        "contribution": np.mean([np.abs(weight[c] * v) for c, v in zip(y, x, strict=True)], axis=0),
        "contribution_predicted": np.mean([np.abs(weight[c] * v) for c, v in zip(predicted, x, strict=True)], axis=0),
        "contribution_all": every,
    }
    assert (predicted != y).any()
    for name, expected in of_class.items():
        np.testing.assert_allclose(METHODS[name](data).score, expected, rtol=1e-5)


def test_anova_is_sklearns_f(planted: tuple[LayerData, Data]) -> None:
    live = [i for i in range(D_MODEL) if i != DEAD]
    expected, _ = f_classif(*tokens_of(planted[1], "train"))
    np.testing.assert_allclose(METHODS["anova"](planted[0]).score[live], expected[live], rtol=1e-4)


def test_probeless_is_a_sum_over_pairs_of_classes(planted: tuple[LayerData, Data]) -> None:
    x, y = tokens_of(planted[1], "train")
    means = [x[y == c].mean(0) for c in range(y.max() + 1)]
    expected = sum(np.abs(a - b) for i, a in enumerate(means) for b in means[:i])
    np.testing.assert_allclose(METHODS["probeless"](planted[0]).score, expected, rtol=1e-4)
    live = [i for i in range(D_MODEL) if i != DEAD]
    standardised = METHODS["probeless_standardised"](planted[0]).score
    np.testing.assert_allclose(standardised[live], (expected / x.std(0))[live], rtol=1e-4)
    assert standardised[DEAD] == 0


def test_differences_of_two_means_are_their_distance() -> None:
    assert mean_differences(torch.tensor([[1.0, -2.0], [4.0, 0.5]])).tolist() == [3.0, 2.5]
    # Means that are equal are no distance apart, whatever they are: a sum of signed means would be rounded.
    equal = torch.rand(50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert not mean_differences(equal.expand(7, -1)).any()


def test_weight_mass_is_the_union_over_classes_grown_percent_by_percent(planted: tuple[LayerData, Data]) -> None:
    data = planted[0]
    sizes = data.standardised_weight.abs().numpy()
    order: list[int] = []
    for percent in range(1, 101):
        top: set[int] = set()
        for row in sizes:
            by_size = np.argsort(-row, kind="stable")
            n = int(np.searchsorted(np.cumsum(row[by_size]), percent / 100 * row.sum() * (1 - 1e-12))) + 1
            top |= set(by_size[:n].tolist())
        order += sorted(top - set(order), key=lambda i: -sizes[:, i].mean())
    assert METHODS["weight_mass"](data).order.tolist()[: len(order)] == order
    assert len(order) >= D_MODEL - 1


def test_the_elastic_net_enters_neurons_where_the_exact_path_does(
    planted: tuple[LayerData, Data], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = scaled_features(planted[1].train)
    x, y = np.delete(x, DEAD, 1)[:400, :8], y[:400]
    monkeypatch.setattr(elastic_net, "STEPS", 6)
    monkeypatch.setattr(elastic_net, "TOLERANCE", 1e-5)
    n_classes = int(y.max()) + 1
    found = entries(torch.from_numpy(x).float(), torch.from_numpy(y), n_classes, 1e-2)
    _, gradient = objective(np.zeros((n_classes, x.shape[1])), x, y, 0, 1e-2)
    strongest = np.abs(gradient).max()
    expected = np.zeros(x.shape[1])
    for step in range(1, 7):
        l1 = strongest * elastic_net.LAST ** (step / 6)
        # Of weights that FISTA leaves at no more than this, it cannot tell whether they are 0.
        is_in = np.abs(optimum(x, y, n_classes, l1, 1e-2)).max(0) > 1e-9
        expected[is_in & (expected == 0)] = l1
    assert len(set(expected)) >= 3
    np.testing.assert_allclose(found.l1, expected, rtol=1e-5)


def test_no_neuron_has_entered_before_the_path_begins(planted: tuple[LayerData, Data]) -> None:
    states, labels = planted[0].train
    found = entries(planted[0].scaling.features(states), labels, int(labels.max()) + 1, 1e-3)
    assert found.l1[DEAD] == found.norm[DEAD] == 0
    assert ((found.l1 > 0) == (found.norm > 0)).all()
    assert found.l1.argmax() in (INFORMATIVE, CONSTANT)


def test_a_strong_penalty_alone_keeps_all_weights_at_zero() -> None:
    states, labels = torch.randn(50, 3, generator=torch.Generator().manual_seed(0)), torch.arange(50) % 2
    preconditioner = elastic_net.Preconditioner((states.T @ states).double() / 50)
    assert not elastic_net.minimise(states, labels, torch.zeros(2, 3), Penalty(9.0, 0.1), preconditioner).point.any()


def test_equal_scores_go_by_ties_and_then_by_index() -> None:
    score, ties = torch.tensor([1.0, 2.0, 1.0, 2.0, 1.0]), torch.tensor([0.0, 1.0, 5.0, 1.0, 0.0])
    assert by_score(score).order.tolist() == [1, 3, 0, 2, 4]
    assert by_score(score, ties).order.tolist() == [1, 3, 2, 0, 4]


# --- what is drawn ---


def test_random_is_another_order_for_another_seed_or_layer(planted: tuple[LayerData, Data]) -> None:
    data = planted[0]
    random: Callable[[LayerData], list[int]] = lambda data: METHODS["random"](data).order.tolist()  # noqa: E731
    assert random(data) == random(data)
    assert random(replace(data, seed=1)) != random(data) != random(replace(data, layer=1))
    assert data.draw(5, 1) == data.draw(5, 1) != data.draw(5, 2)
    assert len(set(data.draw(5, 1))) == 5


def test_fewer_examples_are_whole_sentences_drawn_evenly(planted: tuple[LayerData, Data]) -> None:
    train = planted[1].train
    few = thin(train, 300, seed=0)
    assert 280 < few.n_tokens <= 300
    assert thin(train, train.n_tokens, seed=0) is train
    sentences = set(few.sentences().tolist())
    assert max(sentences) > 100  # not the first ones
    for sentence in sentences:
        rows = train.store.tokens.sentences == sentence
        assert np.array_equal(few.labels[rows], train.labels[rows])
    assert set(thin(train, 300, seed=1).sentences().tolist()) != sentences
