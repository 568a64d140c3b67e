"""Neurons beside directions, how they go with labels where something is held fixed, and how far rankings move."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import binom, ortho_group

import probing
from probing.data.arrays import activations_of_arrays
from probing.data.examples import Examples, with_covariate
from probing.data.labelling import thin
from probing.data.module import layer_moments
from probing.errors import UserError
from probing.probes import evidence as table_module
from probing.probes.evidence import (
    Directions,
    basis_table,
    compared_with,
    rotation_comparison,
    separation_within_covariate,
)
from probing.probes.retraining import (
    bootstrap,
    penalty_problems,
    penalty_stability,
    replicate_problems,
    stability_of,
)
from probing.probes.solvers import Penalty
from probing.statistics import chance
from probing.statistics.chance import random_rotation
from probing.statistics.label_scores import ConditionalAccumulator, StratumMeans, WithinStrata, strata_with_several
from probing.statistics.moments import PenaltySpace
from probing.tables.conclusions import basis
from synthetic import Array, Data, make_store, make_tokens, optimum, positional, sides

pytestmark = pytest.mark.numeric

D, N, CLASSES, PLANTED = 48, 1200, 5, [3, 11, 20, 21, 40]


def examples_of(X: NDArray[Any], y: NDArray[Any], values: NDArray[np.float64] | None = None) -> Examples:
    store = activations_of_arrays(np.ascontiguousarray(X, dtype=np.float32))
    return Examples(store, y.astype(np.int32), unit="row", values=values)


def measured(
    X: NDArray[Any],
    y: NDArray[Any],
    weight: Array | None = None,
    n: int = 20,
    space: PenaltySpace = "sd",
    seed: int = 0,
) -> Directions:
    """Measure a probe of rows, which is fitted to them in the space of the penalty where no weight is given."""
    examples = examples_of(X, y)
    (moments,) = layer_moments(examples, [0])
    if weight is None:
        scale = moments.sd.numpy() if space == "sd" else np.ones(X.shape[1])
        weight = optimum(X / scale, y, int(y.max()) + 1, 0, 1e-2) / scale
    return rotation_comparison(examples, 0, torch.from_numpy(weight), moments, space, n, seed)()


def planted(seed: int = 0) -> tuple[Array, NDArray[np.int64]]:
    """Return noise in which five neurons tell five classes apart, a class each, and the classes."""
    generator = np.random.default_rng(seed)
    y = generator.integers(CLASSES, size=N)
    X = generator.standard_normal((N, D))
    X[np.arange(N), np.array(PLANTED)[y]] += 2
    return X, y


def above(found: Directions, kind: int = 0) -> list[int]:
    return np.flatnonzero(found.p[kind].numpy() <= 0.05).tolist()


def rows_of(found: Directions) -> list[dict[str, Any]]:
    return basis_table([(0, found)])


# --- what is planted is above, and what is rotated is not ---


def test_neurons_that_carry_the_classes_are_above_all_directions() -> None:
    found = measured(*planted())
    assert above(found) == above(found, 1) == PLANTED
    plain, centred = rows_of(found)
    assert [plain["kind"], centred["kind"]] == ["plain", "centred"]
    assert plain["n_above"] == 5
    for name in ("first_share", "first_10_share", "participation_ratio"):
        assert plain[f"{name}_p"] == pytest.approx(1 / 21)
    assert plain["first_10_share"] > plain["first_10_share_highest"] >= plain["first_10_share_directions"]
    assert plain["participation_ratio"] < plain["participation_ratio_lowest"]


def test_the_same_signal_in_directions_is_within_the_band() -> None:
    X, y = planted()
    found = measured(X @ ortho_group.rvs(D, random_state=np.random.default_rng(5)), y)
    (plain, _) = rows_of(found)
    assert above(found) == []
    assert plain["n_above"] == 0
    assert plain["first_10_share_p"] > 0.05


@pytest.mark.slow
def test_noise_is_above_no_more_often_than_by_chance() -> None:
    """Neurons without a preferred basis, and a probe of shuffled labels: p is uniform."""
    p, n_above = [], 0
    for seed in range(200):
        generator = np.random.default_rng(seed)
        X = generator.standard_normal((100, 12))
        y = generator.integers(3, size=100)
        weight = np.stack([X[y == c].mean(0) for c in range(3)])
        found = measured(X, y, weight, space="raw", seed=seed)
        p.append(rows_of(found)[0]["first_10_share_p"])
        n_above += len(above(found))
    assert sum(value <= 0.05 for value in p) <= binom.ppf(0.99, 200, 0.05)
    assert n_above <= 0.01 * 200 * 12
    assert 0.4 < np.mean(p) < 0.6


def test_a_neuron_with_heavy_tails_and_no_meaning_is_not_above() -> None:
    X, y = planted()
    X[:, 7] = np.random.default_rng(1).standard_t(3, N)
    found = measured(X, y)
    assert above(found) == PLANTED
    assert found.p[0, 7] > 0.5


def test_a_large_mean_is_above_as_it_is_and_not_centred() -> None:
    generator = np.random.default_rng(0)
    X, y = generator.standard_normal((N, D)), generator.choice(3, size=N, p=[0.8, 0.1, 0.1])
    X[:, 7] += 30  # how frequent classes are is read off the mean by a probe without an intercept
    found = measured(X, y)
    assert 7 in above(found)
    assert 7 not in above(found, 1)


# --- what changes nothing ---


def test_the_scale_of_columns_and_a_constant_column_change_nothing() -> None:
    X, y = planted()
    weight = optimum(X / X.std(0), y, CLASSES, 0, 1e-2) / X.std(0)
    scale = 2.0 ** np.random.default_rng(2).integers(-8, 9, D)
    found, scaled = measured(X, y, weight), measured(X * scale, y, weight / scale)
    with_dead = measured(np.c_[X, np.full(N, 3.0)], y, np.c_[weight, np.ones(CLASSES)])
    for other in (scaled, with_dead):
        torch.testing.assert_close(other.neurons[:, :D], found.neurons, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(other.directions, found.directions, rtol=1e-9, atol=1e-12)
    assert with_dead.neurons[:, D].tolist() == [0, 0]
    assert with_dead.p[:, D].tolist() == [1, 1]


def test_a_constant_added_to_all_classes_changes_nothing() -> None:
    X, y = planted()
    weight = optimum(X, y, CLASSES, 0, 1e-2)
    moved = weight + np.random.default_rng(3).standard_normal(D)
    torch.testing.assert_close(
        measured(X, y, moved).directions, measured(X, y, weight).directions, rtol=1e-9, atol=1e-12
    )


def test_permuted_neurons_have_permuted_results() -> None:
    X, y = planted()
    order = np.random.default_rng(4).permutation(D)
    weight = optimum(X, y, CLASSES, 0, 1e-2)
    found, permuted = measured(X, y, weight), measured(X[:, order], y, weight[:, order])
    torch.testing.assert_close(permuted.neurons, found.neurons[:, order], rtol=1e-9, atol=1e-12)
    assert sorted(order[above(permuted)]) == above(found) == PLANTED


# --- against a plain loop ---


@pytest.mark.parametrize("space", ["sd", "rms", "raw"])
@pytest.mark.parametrize("n_classes", [1, 4])
def test_contributions_are_those_of_a_plain_loop(space: PenaltySpace, n_classes: int) -> None:
    generator = np.random.default_rng(6)
    X = (generator.standard_normal((60, 9)) * generator.uniform(0.5, 4, 9) + generator.uniform(-3, 3, 9)).astype("f4")
    y = generator.integers(n_classes, size=60) if n_classes > 1 else generator.integers(7, size=60)
    weight = generator.standard_normal((n_classes, 9))
    found = measured(X, y, weight, 19, space, seed=8)
    states, (moments,) = X.astype(float), layer_moments(examples_of(X, y), [0])
    size = {"sd": moments.sd.numpy(), "rms": moments.rms.numpy(), "raw": np.ones(9)}[space]
    centred = weight - weight.mean(0) if n_classes > 1 else weight
    for kind, shift in ((0, np.zeros(9)), (1, moments.mean.numpy())):
        for draw in range(-1, 19):
            basis = np.eye(9) if draw < 0 else random_rotation(9, 8, 0, draw)(torch.eye(9, dtype=torch.float64)).numpy()
            expected = np.zeros(9)
            for j in range(9):
                for state, label in zip(states, y, strict=True):
                    row = centred[label if n_classes > 1 else 0]
                    expected[j] += abs(((row * size) @ basis[:, j]) * (((state - shift) / size) @ basis[:, j])) / 60
            own = found.neurons[kind] if draw < 0 else found.directions[kind, draw]
            ordered = expected if draw < 0 else np.sort(expected)[::-1]
            np.testing.assert_allclose(own.numpy(), ordered, rtol=1e-9, atol=1e-12)


def test_p_values_count_rotations_whose_largest_direction_contributes_as_much() -> None:
    found = measured(*planted())
    for i in range(D):
        reached = sum(float(draw[0]) >= float(found.neurons[0, i]) for draw in found.directions[0])
        assert float(found.p[0, i]) == pytest.approx((1 + reached) / 21)


@pytest.mark.parametrize("most", [1024, 4])
def test_rotations_are_orthogonal_seeded_and_alike(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of sign changes and cosine transforms spread a neuron as evenly as uniform rotations do."""
    monkeypatch.setattr(chance, "MOST_DRAWN", most)
    eye = torch.eye(96, dtype=torch.float64)
    drawn = [random_rotation(96, 0, 3, draw)(eye) for draw in range(30)]
    for one in drawn:
        torch.testing.assert_close(one.T @ one, eye, rtol=0, atol=1e-12)
    assert torch.equal(drawn[4], random_rotation(96, 0, 3, 4)(eye))
    assert not torch.allclose(drawn[0], random_rotation(96, 0, 4, 0)(eye))
    entries = torch.stack(drawn) * 96**0.5
    assert abs(float(entries.mean())) < 0.01
    assert float(entries.pow(4).mean()) == pytest.approx(3, abs=0.15)  # as of normal numbers
    largest = float(entries.abs().amax((1, 2)).mean())
    assert 3.6 < largest < 4.1


def test_a_wide_layer_tells_planted_from_rotated_neurons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chance, "MOST_DRAWN", 4)
    monkeypatch.setattr(table_module, "AT_A_TIME", 1000)  # and in parts
    assert above(measured(*planted())) == PLANTED


# --- samples, edges and runs ---


def test_a_sample_is_never_empty_however_long_a_sentence_is() -> None:
    store = activations_of_arrays(np.random.default_rng(0).standard_normal((500, 3)).astype("f4"))
    sizes = [3, 480, 17]
    store.tokens.lengths[:] = store.tokens.lengths  # rows are sentences of one token
    one = Examples(store, np.zeros(500, dtype=np.int32))
    assert thin(one, 100, 0).n_tokens == 100
    from synthetic import make_tokens

    class Long:
        plan, tokens = store.plan, make_tokens(sizes, special=False)

    for seed in range(5):
        few = thin(Examples(Long(), np.zeros(500, dtype=np.int32)), 100, seed)  # type: ignore[arg-type]
        assert 50 <= few.n_tokens <= 100


def test_layers_without_live_neurons_and_of_a_single_one_have_no_neuron_above() -> None:
    y = np.arange(40) % 2
    constant = np.ones((40, 3))
    found = measured(constant, y, np.zeros((2, 3)))
    assert found.p.tolist() == [[1.0] * 3] * 2
    assert [row["n_neurons"] for row in rows_of(found)] == [0, 0]
    single = measured(np.random.default_rng(0).standard_normal((40, 1)), y, np.array([[1.0], [-1.0]]))
    assert single.p.tolist() == [[1.0], [1.0]]


SPLIT = np.where(np.arange(N) < N // 2, "train", "test")


def run(X: Array, y: NDArray[Any], **options: Any) -> probing.Run:
    return probing.probe(X, y, split=SPLIT, quiet=True, **{"replicates": 0, "probe": {"l2": 1e-3}, **options})


def test_a_run_has_the_table_the_columns_the_flag_and_the_sentence() -> None:
    X, y = planted()
    made = run(X, y)
    assert [row["kind"] for row in made.basis] == ["plain", "centred"]
    for row in made.neurons:
        assert (row["above_directions"] == "yes") == (row["direction_p"] <= 0.05) == (row["neuron"] in PLANTED)
        assert ("direction" in row["flag"].split()) == (row["neuron"] not in PLANTED)
    said = " ".join(made.conclusions())
    assert "Layer 0 favours neurons: its first 10 make up" in said
    assert "; 5 neurons contribute more than any direction." in said
    assert "it carries label" in said
    turned = run(X @ ortho_group.rvs(D, random_state=np.random.default_rng(5)), y)
    said = " ".join(turned.conclusions())
    assert "Layer 0 does not favour neurons" in said
    assert "no neuron contributes more than any direction: none may be said to carry label" in said
    assert "A random direction contributes as much (p = " in said
    assert "carries label" not in said


def test_ends_of_the_band_are_of_the_directions_of_the_same_rank(tmp_path: Path) -> None:
    X, y = planted()
    made = run(np.c_[X, np.full(N, 3.0)], y, runs=tmp_path)  # the last neuron is dead
    assert {path.name for path in made.folder.glob("figures/directions.*")} == {"directions.png", "directions.pdf"}
    scale, weight = X[SPLIT == "train"].std(0), made.weight[0, :, :D].double().numpy()
    weight, states, labels = (weight - weight.mean(0)) * scale, X[SPLIT == "test"] / scale, y[SPLIT == "test"]
    drawn = []
    for draw in range(20):
        turn = random_rotation(D, 0, 0, draw)(torch.eye(D, dtype=torch.float64)).numpy()
        pairs = zip(states @ turn, labels, strict=True)
        drawn.append(sorted(np.mean([abs((weight @ turn)[label] * state) for state, label in pairs], axis=0))[::-1])
    *live, dead = made.neurons
    for row, of_rank in zip(live, zip(*drawn, strict=True), strict=True):
        assert (row["direction_lowest"], row["direction_highest"]) == pytest.approx((min(of_rank), max(of_rank)), 1e-4)
    assert (dead["neuron"], dead["direction_lowest"], dead["direction_highest"]) == (D, "", "")


def test_numbers_are_compared_with_directions_too() -> None:
    X, _ = planted()
    numbers = 1.5 * X[:, 3] + np.random.default_rng(0).standard_normal(N)
    made = run(X, numbers)
    assert [row["neuron"] for row in made.neurons if row["above_directions"] == "yes"] == [3]
    assert {row["n_neurons"] for row in made.basis} == {D}
    other = run(X @ ortho_group.rvs(D, random_state=np.random.default_rng(5)), numbers)
    assert not [row["neuron"] for row in other.neurons if row["above_directions"] == "yes"]
    assert "Layer 0 favours neurons" in " ".join(made.conclusions())


@pytest.mark.slow
def test_without_rotations_nothing_is_claimed_of_directions(tmp_path: Path) -> None:
    X, y = planted()
    for options in ({"rotations": 0, "controls": "none"}, {"evidence": "none"}):
        made = run(X, y, runs=tmp_path, **options)
        assert (made.folder / "figures" / "accuracy.png").is_file()
        assert not (made.folder / "figures" / "directions.png").exists()
        assert not len(made.basis)
        assert "direction_p" not in made.neurons[0]
        said = " ".join(made.conclusions())
        assert "it was not compared with random directions" in said
        assert "it carries" not in said
    made = run(X, y, evidence="none", rotations=19)
    assert {row["n_rotations"] for row in made.basis} == {19}
    assert not any(row.get("removed") for row in made.neurons)
    with pytest.raises(UserError, match=r"rotations.*expected 0, or at least 19"):
        run(X, y, rotations=10)


def test_an_l1_penalty_is_said_to_have_its_optimum_in_one_basis() -> None:
    row = {"layer": 0, "kind": "plain", "n_above": 1, "n_neurons": 40, "n_rotations": 20}
    shares = {f"first_10_share{end}": 0.2 for end in ("", "_lowest", "_highest", "_p")}
    beside = [row | shares, row | shares | {"kind": "centred"}]
    for l1, n in ((1e-3, 1), (0.0, 0)):
        said = " ".join(basis([{"layer": 0}], beside, "label", {"probe": {"l1": l1}}))
        assert said.count("With an l1 penalty the probe is optimal only in the basis of neurons") == n


@pytest.fixture
def given(tmp_path: Path) -> Data:
    """Positions beside values that half of the tokens share with their position."""
    generator = np.random.default_rng(0)
    tokens = make_tokens(generator.integers(6, 12, 150).tolist())
    values = np.where(
        generator.random(tokens.n_tokens) < 0.5, tokens.positions, generator.integers(12, size=tokens.n_tokens)
    )
    found = with_covariate(sides(make_store(tmp_path / "store", [positional(tokens, 5, 0.3)], tokens)), [values])
    assert isinstance(found, Data)
    return found


def test_it_is_that_of_all_examples_at_once(given: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    train, n_classes = given.train, len(given.classes)
    assert train.covariate is not None
    strata = strata_with_several(train.covariate, train.labels)
    kept = strata >= 0
    used = replace(train, labels=np.where(kept, train.labels, -1).astype(np.int32))
    states = torch.cat([train.store.read(0, shard.index) for shard in train.store.plan.shards]).double()[kept]
    label, stratum = torch.from_numpy(train.labels[kept]).long(), torch.from_numpy(strata[kept])
    sentences = torch.from_numpy(train.store.tokens.sentences[kept]).long()
    codes = used.codes(n_classes)
    vectors = WithinStrata.of(codes, label, stratum)
    means = StratumMeans.empty(len(vectors.sizes), 5)
    means.add(states, stratum, sentences)
    between = codes.excess_between(used.labels, train.store.tokens.sentences)
    sums = ConditionalAccumulator(means.over(vectors.sizes), vectors, between)
    sums.update(states, stratum, label, sentences, sentences)
    expected, found = sums.result(), separation_within_covariate(train, 0, n_classes)
    monkeypatch.setattr(table_module, "neurons_at_a_time", lambda n_columns: 2)
    for one in (found, separation_within_covariate(train, 0, n_classes)):
        assert one is not None
        for own, other in zip(vars(one).values(), vars(expected).values(), strict=True):
            assert torch.allclose(own, other, rtol=1e-6, atol=1e-9)
    assert compared_with(train) == {"n_tokens": int(kept.sum()), "n_values": int(strata.max()) + 1}


def test_without_anything_held_fixed_there_is_none(given: Data) -> None:
    assert separation_within_covariate(replace(given.train, covariate=None), 0, len(given.classes)) is None


@pytest.fixture
def data(tmp_path: Path) -> Data:
    tokens = make_tokens([8] * 60)
    return sides(make_store(tmp_path / "store", [positional(tokens, 4, 1.0)], tokens))


def test_as_many_training_sentences_are_drawn_as_there_are_and_no_others(data: Data) -> None:
    draws = bootstrap(data.train, 4, seed=1).numpy()
    assert draws.shape == (4, 60)
    assert (draws.sum(1) == len(data.train.sentences())).all()
    assert (draws[:, np.setdiff1d(np.arange(60), data.train.sentences())] == 0).all()
    assert draws.max() > 1  # with replacement
    assert len({tuple(row) for row in draws}) == 4


def test_a_replicate_is_the_same_however_many_there_are(data: Data) -> None:
    np.testing.assert_array_equal(bootstrap(data.train, 2, seed=1), bootstrap(data.train, 5, seed=1)[:2])
    assert not np.array_equal(bootstrap(data.train, 2, seed=1), bootstrap(data.train, 2, seed=2))


def test_replicates_have_their_draws_and_other_penalties_are_a_decade_away(data: Data) -> None:
    draws, penalty = bootstrap(data.train, 3, 0), Penalty(1e-3, 1e-4)
    replicates, penalties = replicate_problems(penalty, draws), penalty_problems(penalty, {})
    assert [(p.draws == drawn).all() for p, drawn in zip(replicates, draws, strict=True)] == [True] * 3
    assert [p.penalty for p in penalties] == [Penalty(1e-2, 1e-3), Penalty(1e-4, 1e-5)]


def test_ranks_range_over_the_probe_and_its_replicates() -> None:
    replicates = np.array([[5.0, 4, 3, 0, 0], [4.0, 5, 3, 0, 0], [5.0, 3, 4, 0, 0]])
    found = stability_of(np.array([3.0, 4, 5, 0, 0]), replicates)
    assert found.rank_low.tolist() == [1, 1, 1, 4, 4]  # the first of the replicates' third; dead ones share theirs
    assert found.rank_high.tolist() == [3, 3, 3, 4, 4]


@pytest.mark.parametrize("seed", range(5))
def test_a_range_contains_the_rank_it_is_about_whatever_replicates_say(seed: int) -> None:
    generator = np.random.default_rng(seed)
    scores = generator.exponential(size=40) * (generator.random(40) > 0.1)
    biased = scores * np.linspace(0.5, 2, 40) * generator.uniform(0.9, 1.1, (5, 40))  # all err alike
    found, rank = stability_of(scores, biased), 1 + (scores > scores[:, None]).sum(1)
    assert ((found.rank_low <= rank) & (rank <= found.rank_high)).all()
    alone = stability_of(biased[0], biased[1:])
    assert not ((alone.rank_low <= rank) & (rank <= alone.rank_high)).all()
    assert found.rank_low.min() == 1
    assert found.rank_high.max() <= 40


def test_overlap_is_the_mean_over_pairs_of_replicates() -> None:
    one = np.arange(40.0, 0, -1)
    other = np.concatenate([one[20:], one[:20]])  # the last twenty come first
    assert stability_of(one, np.stack([one, one, other])).bootstrap_overlap == pytest.approx(1 / 3)
    assert stability_of(other, np.stack([one, one])).bootstrap_overlap == 1  # the probe itself is no replicate


def test_a_ranking_agrees_with_itself_and_not_with_its_reverse() -> None:
    scores = np.arange(1.0, 31)
    found = penalty_stability(scores, np.stack([scores * 2, scores[::-1]]))
    assert found == {
        "more_penalty_overlap": 1, "more_penalty_spearman": pytest.approx(1), "less_penalty_overlap": 0,
        "less_penalty_spearman": pytest.approx(-1),
    }  # fmt: skip
