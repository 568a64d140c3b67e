"""Each ranking, of all labels and by class, against an independent computation and what was planted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.feature_selection import f_classif
from torch import Tensor, nn
from torch.testing import assert_close

from probing.data.examples import Examples
from probing.data.labelling import load, thin
from probing.probes import rankings as elastic_net
from probing.probes.pairs import rank_on_clusters
from probing.probes.rankings import (
    METHODS,
    MOST,
    ClassMagnitudes,
    LayerData,
    MagnitudeAccumulator,
    Ranking,
    by_score,
    class_contributions,
    class_rows,
    control_task_shares,
    entries,
    mean_contribution,
    mean_differences,
    neuron_contributions,
    read_layer,
)
from probing.probes.solvers import Penalty, centre_over_classes
from probing.statistics.chance import sentence_counts
from probing.tables.schema import CLASSES
from synthetic import Data, make_store, make_tokens, objective, optimum, positional, scaled_features, sides
from written import columns_of

pytestmark = pytest.mark.numeric

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


def test_each_class_has_its_own_ranking() -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(4, 30, generator=generator)
    states, labels = torch.randn(60, 30, generator=generator), torch.arange(60) % 3  # no token of class 3
    sums = MagnitudeAccumulator(torch.zeros(30), 4)
    sums.update(states, labels)
    rows = class_rows(5, weight, sums.result(), ["a", "b", "c", "never"])
    centred = (weight.double() - weight.double().mean(0)).numpy()
    assert [row["class"] for row in rows] == ["a"] * MOST + ["b"] * MOST + ["c"] * MOST
    for c, label in enumerate("abc"):
        of_tokens = [np.abs(centred[c] * x.double().numpy()) for x, y in zip(states, labels, strict=True) if y == c]
        expected = np.mean(of_tokens, axis=0)
        own = [row for row in rows if row["class"] == label]
        assert [row["neuron"] for row in own] == np.argsort(-expected)[:MOST].tolist()
        for rank, row in enumerate(own, start=1):
            assert tuple(row) == columns_of(CLASSES)
            assert (row["layer"], row["rank"], row["n_test_tokens"]) == (5, rank, 20)
            np.testing.assert_allclose(row["contribution"], expected[row["neuron"]])
            np.testing.assert_allclose(row["share"], expected[row["neuron"]] / expected.sum())
            np.testing.assert_allclose(row["weight"], centred[c, row["neuron"]])


def test_a_neuron_planted_for_one_class_leads_there_alone() -> None:
    weight, states = torch.zeros(3, 8), torch.ones(30, 8)
    weight[:, 0], weight[2, 5] = 0.1, 1.0  # what all classes share does not count
    weight[0, 3] = 0.5
    sums = MagnitudeAccumulator(torch.zeros(8), 3)
    sums.update(states, torch.arange(30) % 3)
    rows = class_rows(0, weight, sums.result(), "abc")
    first = {label: [row["neuron"] for row in rows if (row["class"], row["rank"]) == (label, 1)] for label in "abc"}
    assert first == {"a": [3, 5], "b": [5], "c": [5]}  # of class a, the two are a third away from the mean


# Sums of at most 60 float64 terms near 1, in another order.
EXACT: dict[str, Any] = {"rtol": 1e-12, "atol": 1e-12}
N_CLASSES, CONTRIBUTED_D_MODEL = 4, 5


@pytest.fixture
def data() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(N_CLASSES, CONTRIBUTED_D_MODEL, generator=generator, dtype=torch.float64)
    states = torch.randn(60, CONTRIBUTED_D_MODEL, generator=generator, dtype=torch.float64) + 2
    # Class 3 has no token, and some tokens are of no class.
    return weight, states, torch.randint(-1, 3, (60,), generator=generator)


def magnitudes(states: torch.Tensor, labels: torch.Tensor, mean: torch.Tensor, *cuts: int) -> ClassMagnitudes:
    accumulator = MagnitudeAccumulator(mean, N_CLASSES)
    for at in torch.tensor_split(torch.arange(len(labels)), list(cuts)):
        accumulator.update(states[at], labels[at])
    return accumulator.result()


def tables(
    weight: torch.Tensor, states: torch.Tensor, labels: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    sums = magnitudes(states, labels, states.mean(0))
    return (
        class_contributions(weight, sums),
        mean_contribution(weight, sums),
        mean_contribution(weight, sums, centred=True),
    )


def test_contributions_sum_to_the_centred_logits(data: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> None:
    weight, states, _ = data
    logits = states @ weight.T
    contributions = neuron_contributions(weight, states)
    assert contributions.shape == (60, N_CLASSES, CONTRIBUTED_D_MODEL)
    torch.testing.assert_close(contributions.sum(-1), logits - logits.mean(-1, keepdim=True), **EXACT)


def test_centred_weights_give_the_same_probabilities(data: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> None:
    weight, states, _ = data
    centred = states @ centre_over_classes(weight).T
    torch.testing.assert_close(centred.softmax(-1), (states @ weight.T).softmax(-1), **EXACT)


def test_a_vector_added_to_every_class_changes_no_table(data: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> None:
    weight, states, labels = data
    shift = 100 * torch.randn(CONTRIBUTED_D_MODEL, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for one, other in zip(tables(weight, states, labels), tables(weight + shift, states, labels), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)  # a hundred times the size is cancelled


def test_permuted_neurons_permute_the_tables(data: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> None:
    weight, states, labels = data
    order = torch.tensor([3, 0, 4, 2, 1])
    permuted = tables(weight[:, order], states[:, order], labels)
    for one, other in zip(tables(weight, states, labels), permuted, strict=True):
        torch.testing.assert_close(one[..., order], other, **EXACT)


def test_permuted_classes_change_no_mean_contribution(data: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> None:
    weight, states, labels = data
    order = torch.tensor([2, 0, 3, 1])
    relabelled = torch.where(labels >= 0, order[labels.clamp(min=0)], -1)
    permuted = torch.empty_like(weight)
    permuted[order] = weight
    for one, other in zip(tables(weight, states, labels)[1:], tables(permuted, states, relabelled)[1:], strict=True):
        torch.testing.assert_close(one, other, **EXACT)


def test_contributions_equal_a_loop_over_tokens(data: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> None:
    weight, states, labels = data
    mean = torch.arange(CONTRIBUTED_D_MODEL, dtype=torch.float64)
    sums = magnitudes(states, labels, mean)
    centred_weight = weight - weight.mean(0)
    by_class = torch.zeros(N_CLASSES, CONTRIBUTED_D_MODEL, dtype=torch.float64)
    true, deviating, counts = torch.zeros(CONTRIBUTED_D_MODEL), torch.zeros(CONTRIBUTED_D_MODEL), torch.zeros(N_CLASSES)
    for state, label in zip(states, labels.tolist(), strict=True):
        if label >= 0:
            counts[label] += 1
            by_class[label] += (centred_weight[label] * state).abs()
            true = true + (centred_weight[label] * state).abs()
            deviating = deviating + (centred_weight[label] * (state - mean)).abs()
    assert counts[3] == 0
    torch.testing.assert_close(class_contributions(weight, sums), by_class / counts.clamp(min=1)[:, None], **EXACT)
    torch.testing.assert_close(mean_contribution(weight, sums), true / counts.sum(), **EXACT)
    torch.testing.assert_close(mean_contribution(weight, sums, centred=True), deviating / counts.sum(), **EXACT)


def test_a_class_without_tokens_contributes_nothing(data: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> None:
    assert not tables(*data)[0][3].any()


def test_batches_give_what_one_gives(data: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> None:
    _, states, labels = data
    mean = states.mean(0)
    whole, parts = magnitudes(states, labels, mean), magnitudes(states, labels, mean, 0, 7, 59)
    for name in ("counts", "magnitude", "deviation"):
        torch.testing.assert_close(getattr(whole, name), getattr(parts, name), **EXACT)


def test_scaling_a_neuron_against_its_weight_changes_nothing(
    data: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
) -> None:
    weight, states, labels = data
    scale = torch.tensor([1e-3, 1.0, -5.0, 1e3, 2.0], dtype=torch.float64)
    for one, other in zip(tables(weight, states, labels), tables(weight / scale, states * scale, labels), strict=True):
        torch.testing.assert_close(one, other, **EXACT)


def test_shapes_that_do_not_fit_are_both_shown() -> None:
    with pytest.raises(ValueError, match=r"\(3, 4\).*\(7, 5\).*d_model"):
        neuron_contributions(torch.zeros(3, 4), torch.zeros(7, 5))


def test_inputs_stay_as_they_were(data: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> None:
    before = [tensor.clone() for tensor in data]
    tables(*data)
    neuron_contributions(*data[:2])
    assert all(torch.equal(one, other) for one, other in zip(before, data, strict=True))


ATTRIBUTED_N_CLASSES, ATTRIBUTED_D_MODEL = 4, 6


@pytest.fixture
def layer() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A probe's weights, training tokens that are far from 0, and other tokens with their classes."""
    generator = torch.Generator().manual_seed(0)
    weight, train, test = (
        torch.randn(n, ATTRIBUTED_D_MODEL, generator=generator, dtype=torch.float64)
        for n in (ATTRIBUTED_N_CLASSES, 80, 50)
    )
    return weight, 2 * train + 3, test - 1, torch.randint(ATTRIBUTED_N_CLASSES, (50,), generator=generator)


def contributions(layer: tuple[Tensor, Tensor, Tensor, Tensor], centred: bool) -> Tensor:
    weight, train, test, classes = layer
    sums = MagnitudeAccumulator(train.mean(0), ATTRIBUTED_N_CLASSES)
    sums.update(test, classes)
    return mean_contribution(weight, sums.result(), centred)


# shap 0.51 changes matplotlib's colour maps in a way that matplotlib 3.11 calls deprecated.
@pytest.mark.filterwarnings("ignore:The set_(bad|over|under) function:PendingDeprecationWarning")
def test_the_centred_contribution_is_the_mean_size_of_the_linear_shap_value(
    layer: tuple[Tensor, Tensor, Tensor, Tensor],
) -> None:
    import shap

    weight, train, test, classes = layer
    # By default the background is a sample of 100; its mean would then not be that of all training tokens.
    background = shap.maskers.Independent(train.numpy(), max_samples=len(train))
    probe = centre_over_classes(weight).numpy(), torch.zeros(ATTRIBUTED_N_CLASSES).double().numpy()
    values = torch.from_numpy(shap.LinearExplainer(probe, background).shap_values(test.numpy()))
    assert values.shape == (50, ATTRIBUTED_D_MODEL, ATTRIBUTED_N_CLASSES)
    of_the_class = values[torch.arange(50), :, classes]
    assert_close(of_the_class.abs().mean(0), contributions(layer, centred=True), rtol=1e-10, atol=0)
    # The values of the other classes, or the neuron's own mean in place of that of training, are others.
    assert (values.mean(-1).abs().mean(0) - contributions(layer, centred=True)).abs().min() > 0.01
    assert (contributions(layer, centred=False) - contributions(layer, centred=True)).abs().min() > 0.01


def test_the_contribution_is_the_mean_size_of_input_times_gradient(
    layer: tuple[Tensor, Tensor, Tensor, Tensor],
) -> None:
    from captum.attr import InputXGradient

    weight, _, test, classes = layer
    probe = nn.Linear(ATTRIBUTED_D_MODEL, ATTRIBUTED_N_CLASSES, bias=False, dtype=torch.float64)
    probe.weight.data = centre_over_classes(weight)
    found = InputXGradient(probe).attribute(test.clone().requires_grad_(), target=classes)
    assert_close(found.detach().abs().mean(0), contributions(layer, centred=False), rtol=1e-10, atol=0)


def test_shares_are_means_over_draws_of_the_contributions_to_their_probes(tmp_path: Path) -> None:
    """Neuron 0 tells the types of the control task apart, and neuron 1 the positions of the task itself."""
    generator = np.random.default_rng(0)
    tokens = make_tokens(generator.integers(6, 10, 200).tolist())
    types, others = generator.integers(2, size=(2, tokens.n_tokens))
    states = [positional(tokens, 6, 0.0), positional(tokens, 6, 0.0)]
    for of_layer in states:
        of_layer[:, 0] += 3 * types
        of_layer[:, 1] += tokens.positions
    planted = sides(make_store(tmp_path / "store", states, tokens))

    def draw(drawn: NDArray[np.int64]) -> Data:
        def labelled(examples: Examples) -> Examples:
            return replace(examples, labels=np.where(examples.labels >= 0, drawn, -1).astype(np.int32))

        made = planted.each(labelled)
        assert isinstance(made, Data)
        return replace(made, classes=np.arange(2))

    draws = [draw(types), draw(others)]
    fits = [one.fit([0, 1]) for one in draws]
    found = control_task_shares(draws, fits)
    assert len(found) == 2
    for layer, share in enumerate(found):
        expected = []
        for one, of_draw in zip(draws, fits, strict=True):
            kept = one.test.labels >= 0
            v = torch.cat([one.test.store.read(layer, s.index) for s in one.test.store.plan.shards]).double()[kept]
            terms = neuron_contributions(of_draw[layer].weight.double(), v).abs()
            true = terms[torch.arange(len(v)), torch.from_numpy(one.test.labels[kept]).long()].mean(0)
            expected.append(true / true.sum())
        assert torch.allclose(share, torch.stack(expected).mean(0), rtol=1e-5)
        assert expected[0].argmax() == 0
        assert not torch.allclose(share, expected[0], rtol=0.1)
    assert share.sum() == pytest.approx(1)


def clustered_planted(tmp_path: Path) -> Data:
    tokens = make_tokens(np.random.default_rng(0).integers(5, 9, 300).tolist())
    states = positional(tokens, 6, 1.0) + np.random.default_rng(1).standard_normal((100, 6))[tokens.sentences // 3]
    return sides(make_store(tmp_path / "store", [states], tokens))


def by_hand(data: Data, weight: torch.Tensor, cluster_of_sentence: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return sums of contributions and numbers of tokens, cluster by cluster, by the definition."""
    test = data.test
    states = torch.cat([test.store.read(0, shard.index) for shard in test.store.plan.shards]).double()
    kept = np.flatnonzero(test.labels >= 0)
    terms = neuron_contributions(weight.double(), states[kept]).abs()
    true = terms[torch.arange(len(kept)), torch.from_numpy(test.labels[kept]).long()].numpy()
    cluster = cluster_of_sentence[test.store.tokens.sentences[kept]]
    found = np.unique(cluster)
    return np.stack([true[cluster == c].sum(0) for c in found]), np.array([(cluster == c).sum() for c in found])


def test_sentences_are_resampled_or_documents_where_intervals_are_over_these(tmp_path: Path) -> None:
    data = clustered_planted(tmp_path)
    weight = torch.randn(1, len(data.classes), 6, generator=torch.Generator().manual_seed(0))
    document = np.arange(300) // 3
    for documents in (None, document):
        made = replace(data.test, documents=documents)
        ranked = rank_on_clusters("run", weight, made, [0], seed=4)
        sums, n = by_hand(data, weight[0], np.arange(300) if documents is None else documents)
        assert np.allclose(ranked.scores[0], sums.sum(0) / n.sum(), rtol=1e-6)
        times = sentence_counts(len(n), 4, 100)
        assert ranked.draws is not None
        assert np.allclose(ranked.draws[0], (times @ sums) / (times @ n)[:, None], rtol=1e-6)
    few = replace(data.test, documents=np.arange(300) // 40)
    assert rank_on_clusters("run", weight, few, [0], seed=4).draws is None
