"""The choice of the penalty, the online code, and probes' examples read through transforms."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from conftest import BARE
from probing import WandbOptions, fit
from probing.data.examples import Examples, Sides, read
from probing.data.labelling import constant_cross_entropy_by_sentence, prior_cross_entropy_by_sentence
from probing.data.module import layer_moments
from probing.probes.solvers import Penalty, problem_of_layer
from probing.probes.training import FIRST_PENALTY as FIRST
from probing.probes.training import STRONGEST_PENALTY as STRONGEST
from probing.probes.training import (
    TOLERANCE,
    Lbfgs,
    PenaltyPath,
    Training,
    choose_penalty,
    online_code,
    prefix_sizes,
    sentence_order,
    strength,
    train_problems,
    walk,
)
from probing.probes.training import WEAKEST_PENALTY as WEAKEST
from probing.probes.transforms import clip_others, fit_each, moments_of, transform_all, transformed
from probing.runtime.terminal import render
from probing.tables.probes import accuracy_table, penalty_lines
from synthetic import Data, make_store, make_tokens, objective, optimum, positional, scaled_features, sides

pytestmark = pytest.mark.numeric

TRAINING = Training(Penalty(0, 1e-4), Lbfgs(1e-4))


# Nats that a step of one on these curves is worth, well above what ends a walk.
STEP = 0.1


def follow(
    curve: Callable[[float], float], reachable: float = WEAKEST
) -> tuple[list[float], list[int], list[list[float] | None]]:
    """Walk along a known curve whose weights are the grid index; return what was asked for.

    Args:
        curve: Cross-entropy by grid index.
        reachable: The weakest penalty at which both probes come near their optima.
    """
    visited: list[float] = []
    starts: list[list[float] | None] = []

    def train(l2: float, begins: Sequence[torch.Tensor | None]) -> list[Any]:
        visited.append(l2)
        starts.append(None if begins[0] is None else [float(begin) for begin in begins if begin is not None])
        at = round(2 * np.log10(l2))
        probe = SimpleNamespace(
            metrics={"cross_entropy": curve(at)}, weight=torch.tensor(at), converged=at >= reachable
        )
        return [probe, SimpleNamespace(**{**vars(probe), "converged": True})]

    found = walk(train, 2)
    return visited, sorted(found, reverse=True), starts


def test_the_grid_has_two_values_a_decade() -> None:
    assert [strength(i) for i in (0, -1, -2, -8)] == [1.0, 0.316, 0.1, 1e-4]


@pytest.mark.parametrize("best", [-9, -5, -4, -3, 2])
def test_a_walk_ends_with_a_worse_penalty_on_either_side_of_the_best(best: int) -> None:
    _, found, _ = follow(lambda at: STEP * (at - best) ** 2)
    assert {best - 1, best, best + 1} <= {*found}
    assert found == list(range(found[0], found[-1] - 1, -1))
    assert min(found) >= min(best, FIRST) - 1
    assert max(found) <= max(best, FIRST) + 1


@pytest.mark.parametrize(("sign", "end"), [(1, WEAKEST), (-1, STRONGEST)])
def test_a_walk_that_goes_on_improving_ends_at_the_end_of_the_grid(sign: int, end: int) -> None:
    _, found, _ = follow(lambda at: sign * STEP * at)
    assert found[0 if end > 0 else -1] == end


def test_a_walk_ends_where_it_no_longer_improves() -> None:
    _, found, _ = follow(lambda at: 0.5 ** (-at))
    assert WEAKEST < min(found) < FIRST - 2
    assert max(found) == FIRST


@pytest.mark.parametrize("reachable", [-7, FIRST, FIRST + 1])
def test_a_penalty_at_which_probes_do_not_come_near_their_optima_is_not_chosen(reachable: int) -> None:
    visited, found, _ = follow(lambda at: STEP * at, reachable)
    assert min(found) == min(reachable, FIRST)  # where it begins is taken as it is
    assert min(visited) == strength(min(reachable, FIRST) - 1)


def test_each_step_begins_where_the_two_before_it_point() -> None:
    visited, _, starts = follow(lambda at: (at + 7) ** 2)
    assert starts[0] is None
    at = [round(2 * np.log10(l2)) for l2 in visited]
    assert starts[1] == pytest.approx([at[0]] * 2)
    assert starts[2] == pytest.approx([2 * at[1] - at[0]] * 2)


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Sides:
    """Return few tokens of many neurons, in two layers: one in which position is plain, one in which it is faint."""
    tokens = make_tokens(np.random.default_rng(0).integers(6, 9, 60).tolist())
    states = [positional(tokens, 48, 1.0), positional(tokens, 48, 0.3, seed=1)]
    return sides(make_store(tmp_path_factory.mktemp("few"), states, tokens))


def test_the_chosen_penalty_is_that_of_optima_found_in_float64(few: Sides) -> None:
    path = choose_penalty(few, [0, 1], layer_moments(few.train, [0, 1]), TRAINING)
    n_classes, expected = len(few.classes), []
    for layer in (0, 1):
        x, y = scaled_features(few.train, layer)
        store = few.train.store
        raw = np.concatenate([store.read(layer, s.index).double().numpy() for s in store.plan.shards])
        kept = few.validation.labels >= 0
        held = raw[kept] / raw[few.train.labels >= 0].std(0)
        weights = [optimum(x, y, n_classes, 0, l2) for l2 in path.l2]
        expected.append([objective(w, held, few.validation.labels[kept], 0, 0)[0] for w in weights])
    # Each probe is within 3e-3 nats of its optimum on the training tokens, which few validation tokens feel the more.
    np.testing.assert_allclose(path.cross_entropy, np.array(expected).T, atol=0.05)
    assert path.chosen == path.l2[int(np.mean(expected, 0).argmin())]
    assert path.alone == [path.l2[int(np.argmin(own))] for own in expected]
    assert path.l2[0] > path.chosen > path.l2[-1]
    assert [l2 for l2, _ in path.neighbours] == list(path.l2[path.best - 1 : path.best + 2])


def test_at_the_chosen_penalty_probes_beat_the_constant_answer_that_beats_them_at_a_small_one(few: Sides) -> None:
    moments = layer_moments(few.train, [1])
    path = choose_penalty(few, [1], moments, TRAINING)
    prior = prior_cross_entropy_by_sentence(few.train, few.test, len(few.classes)).sum() / few.test.n_tokens
    (small,), (chosen,) = (few.fit((1,), l2=l2) for l2 in (1e-4, path.chosen))  # type: ignore[attr-defined]
    assert chosen.metrics["cross_entropy"] < prior < small.metrics["cross_entropy"]
    # Overfitting shows in the training cross-entropy, which is far below what the same probe has on other sentences.
    assert small.train_cross_entropy < 0.5 * chosen.train_cross_entropy


def test_labels_that_nothing_tells_take_a_penalty_that_leaves_next_to_nothing(tmp_path: Path) -> None:
    tokens = make_tokens(np.random.default_rng(0).integers(6, 9, 60).tolist())
    noise = sides(make_store(tmp_path / "noise", [positional(tokens, 48, 0.0)], tokens))
    path = choose_penalty(noise, [0], layer_moments(noise.train, [0]), TRAINING)
    assert path.chosen > 0.03
    assert path.cross_entropy.min() > np.log(len(noise.classes)) - 0.05


def test_the_prior_of_a_sentence_is_the_sum_of_its_tokens_log_shares(few: Sides) -> None:
    shares = few.train.counts(len(few.classes)) / few.train.n_tokens
    expected = np.zeros(60)
    for label, sentence in zip(few.test.labels, few.test.store.tokens.sentences, strict=True):
        expected[sentence] -= np.log(shares[label]) if label >= 0 else 0.0
    np.testing.assert_allclose(prior_cross_entropy_by_sentence(few.train, few.test, len(few.classes)), expected)


def test_the_constant_answer_is_uniform_where_the_shares_of_many_classes_are_noise(tmp_path: Path) -> None:
    generator, tokens = np.random.default_rng(0), make_tokens([10] * 120)
    data = sides(make_store(tmp_path / "store", [np.ones((tokens.n_tokens, 2))], tokens))
    own = data.test.tokens_by_sentence()

    def constant(labels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        drawn = data.each(lambda part: replace(part, labels=np.where(part.labels >= 0, labels, -1).astype(np.int32)))
        found = constant_cross_entropy_by_sentence(drawn.train, drawn.test, 50)
        shares = prior_cross_entropy_by_sentence(drawn.train, drawn.test, 50)
        np.testing.assert_allclose(found, min(own * np.log(50), shares, key=np.sum))
        return found

    np.testing.assert_allclose(constant(generator.integers(50, size=tokens.n_tokens)), own * np.log(50))
    common = np.where(generator.random(tokens.n_tokens) < 0.9, 0, generator.integers(50, size=tokens.n_tokens))
    assert constant(common).sum() < 0.4 * own.sum() * np.log(50)


def test_without_validation_tokens_there_is_nothing_to_choose_by(few: Sides) -> None:
    empty = Sides(
        few.train, few.train.__class__(few.train.store, np.full_like(few.train.labels, -1)), few.test, few.classes, True
    )
    with pytest.raises(ValueError, match="no validation tokens"):
        choose_penalty(empty, [0], layer_moments(few.train, [0]), TRAINING)


def test_the_choice_is_told_with_its_neighbours_and_with_what_each_layer_would_take() -> None:
    path = PenaltyPath([0, 6], [1e-2, 3.16e-3, 1e-3], np.array([[1.0, 2.0], [0.6, 1.8], [0.5, 2.5]]), {})
    assert penalty_lines(path.summary()) == [
        "Penalty: l2 3.2e-03 for all layers, chosen for the lowest mean cross-entropy of validation tokens "
        "(1.2000 nats; 1.5000 with l2 1.0e-02 and 1.5000 with l2 1.0e-03).",
        "The best for each layer alone would be at most 1.0e-03 (layer 0), 3.2e-03 (layer 6).",
    ]
    assert penalty_lines({"l2": 1e-4}) == []


def test_the_choice_for_a_single_layer_speaks_of_no_others() -> None:
    path = PenaltyPath([6], [1e-2, 3.16e-3, 1e-3], np.array([[2.0], [1.8], [2.5]]), {})
    (line,) = penalty_lines(path.summary())
    assert line.startswith("Penalty: l2 3.2e-03, chosen for the lowest mean cross-entropy")


def test_probes_a_decade_away_start_on_the_path_or_on_the_line_through_its_end() -> None:
    chosen, half, decade = (torch.full((2, 3), value) for value in (1.0, 1.5, 7.0))

    def starts(around: dict[int, list[torch.Tensor]], decades: int) -> list[float] | None:
        found = PenaltyPath([6], [1e-2], np.zeros((1, 1)), around).starts(decades)
        return None if found is None else [float(weight.mean()) for weight in found]

    assert starts({0: [chosen], 2: [decade], 1: [half]}, 1) == [7.0]
    assert starts({0: [chosen], -1: [half]}, -1) == [2.0]
    assert starts({0: [chosen]}, -1) is None


def test_the_path_keeps_the_probes_around_the_chosen_penalty(few: Sides) -> None:
    moments = layer_moments(few.train, [0])
    path = choose_penalty(few, [0], moments, TRAINING)
    assert set(path.around) <= {-2, -1, 0, 1, 2}
    assert 0 in path.around
    for half_decades, (weight,) in path.around.items():
        penalty = Penalty(0.0, strength(round(2 * np.log10(path.chosen)) + half_decades))
        problem = problem_of_layer(0, 0, penalty, weight)
        (fit,) = train_problems(few, [0], moments, [problem], TRAINING.loosened(TOLERANCE))
        assert fit.n_passes <= 2


CODE_TRAINING = Training(Penalty(0, 1e-4), Lbfgs(1e-6))


def planted(folder: Path, lengths: list[int], d_model: int, strength: float) -> Data:
    tokens = make_tokens(lengths)
    return sides(make_store(folder, [positional(tokens, d_model, strength)], tokens, shard_tokens=500))


def by_hand(sizes: Sequence[int], log_p: Callable[[int, int, float], float], first_bits: float) -> float:
    """Return the length of the code in bits, each block under the penalty that was best on the block before.

    Args:
        sizes: Sentences after which blocks end.
        log_p: Returns the log-probability of the sentences from `n` up to `until` by a probe of the first `n` ones.
        first_bits: What the first block takes.
    """
    bits, exponent = first_bits, -1
    for n, until in itertools.pairwise(sizes):
        found = {e: log_p(n, until, 10.0**e) for e in (exponent + 1, exponent, exponent - 1) if -8 <= e <= 2}
        bits -= found[exponent] / np.log(2)
        exponent = max(found, key=lambda e: found[e])
    return bits


def test_blocks_end_at_the_published_shares_of_the_sentences() -> None:
    assert prefix_sizes(10_000) == [10, 20, 40, 80, 160, 320, 625, 1250, 2500, 5000, 10_000]
    assert prefix_sizes(20) == [1, 2, 5, 10, 20]
    assert prefix_sizes(1) == [1]


def test_sentences_are_sent_once_each_in_an_order_of_the_seed(tmp_path: Path) -> None:
    train = planted(tmp_path, [7] * 40, 3, 1.0).train
    order = sentence_order(train, 3)
    assert sorted(order) == list(train.sentences())
    assert list(order) != sorted(order)
    assert list(order) == list(sentence_order(train, 3)) != list(sentence_order(train, 4))


def test_the_code_is_what_logistic_regression_gives_block_by_block(tmp_path: Path) -> None:
    # Every sentence has every class, as scikit-learn needs.
    data = planted(tmp_path, [7] * 60, 4, 1.0)
    order, (n_classes, d_model) = sentence_order(data.train, 5), (5, 4)
    states = np.concatenate([data.train.store.read(0, s.index).double().numpy() for s in data.train.store.plan.shards])
    rows = [np.flatnonzero((data.train.store.tokens.sentences == i) & (data.train.labels >= 0)) for i in order]
    sizes = [1, 3, 5, 10, 21, 42]  # shares of the 42 training sentences: .042, .084, ..., 1.3, 2.6, 5.2, 10.5, 21, 42
    assert [round(42 * share) for share in (0.0625, 0.125, 0.25, 0.5, 1)] == sizes[1:]

    def log_p(n: int, until: int, l2: float) -> float:
        known, block = np.concatenate(rows[:n]), np.concatenate(rows[n:until])
        sd = states[known].std(0)
        probe = LogisticRegression(C=1 / (2 * len(known) * l2), fit_intercept=False, tol=1e-10, max_iter=10_000)
        probe.fit(states[known] / sd, data.train.labels[known])
        p = probe.predict_proba(states[block] / sd)[np.arange(len(block)), data.train.labels[block]]
        return float(np.log(p).sum())

    bits = by_hand(sizes, log_p, len(rows[0]) * np.log2(n_classes))
    (code,) = online_code(data, [0], replace(CODE_TRAINING, solver=Lbfgs(1e-9)), seed=5)
    assert states.shape[1] == d_model
    assert code.layer == 0
    assert code.uniform == pytest.approx(42 * 5 * np.log2(5))
    # Probes stop within 1e-3 nats of the optimum.
    assert code.online == pytest.approx(bits, rel=5e-3)
    assert code.compression == pytest.approx(code.uniform / bits, rel=5e-3)


def test_a_class_that_no_earlier_sentence_had_costs_what_the_softmax_says(tmp_path: Path) -> None:
    lengths = np.random.default_rng(1).integers(4, 10, 40).tolist()
    data = planted(tmp_path, lengths, 6, 1.0)
    order, n_classes = sentence_order(data.train, 0), len(data.classes)
    tokens = data.train.store.tokens
    states = np.concatenate([data.train.store.read(0, s.index).double().numpy() for s in data.train.store.plan.shards])
    of = [np.flatnonzero((tokens.sentences == i) & (data.train.labels >= 0)) for i in order]
    sizes = prefix_sizes(len(order))
    unseen: list[int] = []

    def log_p(n: int, until: int, l2: float) -> float:
        known, block = np.concatenate(of[:n]), np.concatenate(of[n:until])
        x, y, sd = states[known], data.train.labels[known], states[known].std(0)
        unseen.append(int((~np.isin(data.train.labels[block], y)).sum()))
        logits = (states[block] / sd) @ optimum(x / sd, y, n_classes, 0, l2).T
        log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        return float(log_p[np.arange(len(block)), data.train.labels[block]].sum())

    bits = by_hand(sizes, log_p, sum(map(len, of[: sizes[0]])) * np.log2(n_classes))
    assert sum(unseen) > 0
    (code,) = online_code(data, [0], CODE_TRAINING, seed=0)
    assert code.online == pytest.approx(bits, rel=1e-2)


def test_random_labels_cannot_be_compressed(tmp_path: Path) -> None:
    # science.md, F8. By Kraft's inequality any code saves m bits on uniformly random labels with chance 2^-m.
    data = planted(tmp_path, [12] * 300, 4, 3.0)
    labels = np.random.default_rng(0).integers(10, size=len(data.train.labels))
    random = replace(data, train=replace(data.train, labels=np.where(data.train.labels >= 0, labels, -1)))
    (code,) = online_code(random, [0], CODE_TRAINING, seed=0)
    assert code.uniform == pytest.approx(210 * 10 * np.log2(10))
    assert code.uniform - 20 < code.online < 1.05 * code.uniform


@pytest.mark.parametrize("n_classes", [2, 8])
def test_random_labels_take_the_uniform_code_however_wide_the_layer(tmp_path: Path, n_classes: int) -> None:
    # At a fixed penalty of 1e-4 they took twice the uniform code, for early probes were wrong with confidence.
    data = planted(tmp_path, [12] * 200, 64, 1.0)
    labels = np.random.default_rng(n_classes).integers(n_classes, size=len(data.train.labels))
    random = replace(
        data, train=replace(data.train, labels=np.where(data.train.labels >= 0, labels, -1)),
        classes=np.arange(n_classes),
    )  # fmt: skip
    (code,) = online_code(random, [0], replace(CODE_TRAINING, penalty=Penalty(0, 1e-4)), seed=0)
    assert code.compression == pytest.approx(1, abs=0.05)


def test_easy_labels_take_far_fewer_bits(tmp_path: Path) -> None:
    data = planted(tmp_path, [12] * 300, 12, 5.0)
    (code,) = online_code(data, [0], replace(CODE_TRAINING, penalty=Penalty(0, 1e-4)), seed=0)
    assert code.compression > 10


@pytest.mark.slow
def test_fit_puts_the_code_beside_the_accuracy(checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path) -> None:
    run = fit(
        model=str(checkpoints["bert"]), corpus=str(corpus_file), layer="0,2", runs=str(tmp_path), mdl=True,
        wandb=WandbOptions(mode="disabled"), task_args={"min_count": 5}, quiet=True, **BARE,
    )  # fmt: skip
    for row in run.accuracy:
        assert row["uniform_code_bits"] == pytest.approx(row["n_train_tokens"] * np.log2(row["n_classes"]))
        assert row["compression"] == pytest.approx(row["uniform_code_bits"] / row["online_code_bits"])
    assert run.config["mdl"] is True
    assert run.accuracy[0]["compression"] > 1.2  # the embeddings know position
    assert f"{run.accuracy[0]['compression']:.1f}" in render(accuracy_table(run.accuracy))


D = 40


@pytest.fixture
def data(tmp_path: Path) -> Data:
    """Two layers that know position; neuron 6 of layer 1 is an outlier of the mean that does not."""
    tokens = make_tokens([12] * 150)
    states = [positional(tokens, D, 1.0, seed) for seed in (0, 1)]
    states[1][:, 6] = -9 + 0.3 * np.random.default_rng(2).standard_normal(len(states[1]))
    return sides(make_store(tmp_path / "store", states, tokens))


def rows(examples: Examples, layer: int) -> np.ndarray:
    kept = [batch.hidden_states[0][batch.labels >= 0] for batch in read(examples, [layer])]
    return torch.cat(kept).double().numpy()


def test_transforms_are_fitted_on_the_training_side_alone(data: Data) -> None:
    train = rows(data.train, 1)
    found = moments_of(data.train, [0, 1])[1]
    assert found.n_tokens == len(train)
    np.testing.assert_allclose(found.mean, train.mean(0), atol=1e-9)
    changed = transformed(data, fit_each("whiten", moments_of(data.train, [0, 1])))
    np.testing.assert_allclose(np.cov(rows(changed.train, 1).T, bias=True), np.eye(D), atol=1e-4)
    test = np.cov(rows(changed.test, 1).T, bias=True)
    assert 0.05 < np.abs(test - np.eye(D)).max() < 1  # of text that it was not fitted on, only nearly so


def test_outliers_are_clipped_and_a_layer_without_any_stays(data: Data) -> None:
    changed, controls, fitted = transform_all("clip", data, {}, [0, 1], 0)
    assert {layer: transform.clipped for layer, transform in fitted.items()} == {0: [], 1: [6]}
    np.testing.assert_array_equal(rows(changed.test, 0), rows(data.test, 0))
    expected = rows(data.test, 1) * (np.arange(D) != 6)
    np.testing.assert_array_equal(rows(changed.test, 1), expected)
    assert set(controls) == {"untransformed", "others_clipped"}
    np.testing.assert_array_equal(rows(controls["untransformed"][0].test, 1), rows(data.test, 1))
    gone = np.flatnonzero((rows(controls["others_clipped"][0].test, 1) == 0).all(0))
    assert len(gone) == 1
    assert gone[0] != 6


def test_clipping_an_outlier_that_does_not_know_position_leaves_it(data: Data) -> None:
    changed, controls, _ = transform_all("clip", data, {}, [1], 0)
    accuracy = [
        Data(each.train, each.validation, each.test, data.classes, True).fit([1])[0].metrics["accuracy"]
        for each in (changed, controls["untransformed"][0])
    ]
    assert accuracy[0] > 0.9
    assert accuracy[0] == pytest.approx(accuracy[1], abs=0.02)


def test_controls_with_activations_of_their_own_have_transforms_of_their_own(data: Data, tmp_path: Path) -> None:
    tokens = data.train.store.tokens
    other = make_store(tmp_path / "other", [positional(tokens, D, 1.0, 9) + 5] * 2, tokens)
    controls: dict[str, list[Any]] = {
        "untrained": [data.each(lambda examples: replace(examples, store=other))],
        "control_task": [
            data.each(lambda examples: replace(examples, labels=np.minimum(examples.labels, 3))), data,
        ],
        "token": [data],
    }  # fmt: skip
    _, changed, fitted = transform_all("center", data, controls, [1], 0)
    for draw in (*changed["untrained"], *changed["control_task"]):
        np.testing.assert_allclose(rows(draw.train, 1).mean(0), 0, atol=1e-6)
    assert len(changed["control_task"]) == 2
    assert changed["token"] == [data]
    assert "others_clipped" not in changed
    torch.testing.assert_close(fitted[1].shift, moments_of(data.train, [1])[1].mean)


def test_other_neurons_are_drawn_layer_by_layer(data: Data) -> None:
    moments = moments_of(data.train, [0, 1])
    fitted = fit_each("clip", moments)
    assert clip_others(moments, fitted, 3)[1].clipped == clip_others(moments, {1: fitted[1]}, 3)[1].clipped
    assert len({tuple(clip_others(moments, fitted, seed)[1].clipped) for seed in range(20)}) > 10
