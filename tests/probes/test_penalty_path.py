"""The choice of the penalty: a walk over a grid, held against optima found by scipy in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from probing.data.examples import Sides
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
    strength,
    train_problems,
    walk,
)
from probing.probes.training import WEAKEST_PENALTY as WEAKEST
from probing.tables.probes import penalty_lines
from synthetic import (
    LIGHTNING_WARNINGS,
    make_store,
    make_tokens,
    objective,
    optimum,
    positional,
    scaled_features,
    sides,
)

pytestmark = [pytest.mark.numeric, *(pytest.mark.filterwarnings(warning) for warning in LIGHTNING_WARNINGS)]

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
