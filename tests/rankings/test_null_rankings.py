"""Rankings under shuffled labels: trained as the run's own, each as if it were alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from probing.comparison.agreement import agreement
from probing.probes.solvers import Penalty
from probing.probes.training import Adam, Lbfgs, Training
from probing.rankings.methods import mean_contribution, null_rankings, shuffled_among_types
from synthetic import LIGHTNING_WARNINGS, Data, make_splits, make_store, make_tokens, positional, sides

pytestmark = [pytest.mark.numeric, *(pytest.mark.filterwarnings(warning) for warning in LIGHTNING_WARNINGS)]

D = 12
TRAINING = Training(Penalty(0.0, 1e-2), Lbfgs(1e-6))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    """Two layers that know position, and neurons whose means are far from 0 to several degrees."""
    tokens = make_tokens(np.random.default_rng(0).integers(6, 12, 150).tolist())
    offset = np.geomspace(0.1, 10, D)
    layers = [positional(tokens, D, 0.5, seed) + offset for seed in (0, 1)]
    return sides(make_store(tmp_path_factory.mktemp("null") / "store", layers, tokens, shard_tokens=300))


def test_labels_are_dealt_to_the_same_examples_on_all_sides(data: Data) -> None:
    draws = shuffled_among_types(data, 2, seed=0)
    for draw in draws:
        for name in ("train", "validation", "test"):
            true, changed = getattr(data, name).labels, getattr(draw, name).labels
            assert ((true >= 0) == (changed >= 0)).all()
            assert (true != changed)[true >= 0].mean() > 0.5
            assert changed.dtype == true.dtype
    assert (draws[0].train.labels != draws[1].train.labels).any()
    assert len(data.train.labels) == len(draws[0].train.labels)


def test_a_word_type_has_its_new_labels_on_the_test_side_too(data: Data) -> None:
    # A label for each type, on whatever side.
    ids = data.train.store.tokens.input_ids
    by_type = data.each(lambda examples: replace(examples, labels=np.where(examples.labels >= 0, ids, -1)))
    (draw,) = shuffled_among_types(by_type, 1, seed=0)
    source: dict[int, int] = {}
    for examples in (draw.train, draw.validation, draw.test):
        rows = np.flatnonzero(examples.labels >= 0)
        for own, taken in zip(ids[rows].tolist(), examples.labels[rows].tolist(), strict=True):
            assert source.setdefault(own, taken) == taken
    assert np.mean([own != taken for own, taken in source.items()]) > 0.8


def test_rankings_are_those_of_probes_trained_alone(data: Data) -> None:
    found = null_rankings(data, [0, 1], TRAINING, 3, seed=4)
    assert found.shape == (2, 3, D)
    for i, draw in enumerate(shuffled_among_types(data, 3, seed=4)):
        alone = Data(draw.train, draw.validation, draw.test, draw.classes, ordinal=True).fit((0, 1), l2=1e-2)
        for layer, fit in enumerate(alone):
            states = data.test.store
            rows = np.flatnonzero(draw.test.labels >= 0)
            values = torch.cat([states.read(layer, shard.index) for shard in states.plan.shards])[rows].double()
            weight = fit.weight.double() - fit.weight.double().mean(0)
            score = (weight[torch.from_numpy(draw.test.labels[rows]).long()] * values).abs().mean(0)
            # Stopped a tenth of a nat from the bound on their optima, rankings are those of the optima.
            np.testing.assert_allclose(found[layer, i], score, rtol=0.1)


def test_a_draw_of_labels_that_say_little_is_ranked_too(data: Data) -> None:
    # Under a penalty as strong as is chosen for such labels, a probe gains less over weight 0 than the tolerance.
    strong = replace(TRAINING, penalty=Penalty(0.0, 10.0))
    found, optimum = null_rankings(data, [0], strong, 3, seed=4)[0], []
    for draw in shuffled_among_types(data, 3, seed=4):
        (fit,) = Data(draw.train, draw.validation, draw.test, draw.classes, ordinal=True).fit((0,), l2=10.0)
        assert fit.objective > np.log(len(draw.classes)) - 0.1
        optimum.append(_scores(fit.weight, draw, fit.moments.mean))
    assert (found > 0).all()
    np.testing.assert_allclose(found, optimum, rtol=0.1)


def test_a_draw_is_the_same_for_all_layers_and_whatever_their_number(data: Data) -> None:
    both = null_rankings(data, [0, 1], TRAINING, 2, seed=0)
    np.testing.assert_allclose(null_rankings(data, [1], TRAINING, 2, seed=0)[0], both[1], rtol=1e-6)
    assert np.abs(null_rankings(data, [1], TRAINING, 2, seed=1)[0] - both[1]).max() > 0


def test_runs_by_adam_are_held_against_rankings_by_adam(data: Data) -> None:
    adam = replace(TRAINING, solver=Adam(0.05, 64, 2, 0, 1e-6), trainer={"max_epochs": 2})
    found = null_rankings(data, [0], adam, 2, seed=0)
    optimum = null_rankings(data, [0], TRAINING, 2, seed=0)
    draws = shuffled_among_types(data, 2, seed=0)
    for i, draw in enumerate(draws):
        alone = Data(draw.train, draw.validation, draw.test, draw.classes, ordinal=True)
        (fit,) = alone.fit(
            solver="adam", learning_rate=0.05, batch_size=64, patience=2, l2=1e-2, trainer={"max_epochs": 2}
        )
        weight = fit.weight
        np.testing.assert_allclose(found[0, i], _scores(weight, draw, fit.moments.mean), rtol=1e-5)
    assert np.abs(found / optimum - 1).max() > 0.1


def _scores(weight: torch.Tensor, draw: object, mean: torch.Tensor) -> np.ndarray:
    from probing.data.examples import Sides, read
    from probing.rankings.methods import MagnitudeAccumulator

    assert isinstance(draw, Sides)
    sums = MagnitudeAccumulator(mean, len(weight))
    for batch in read(draw.test, [0]):
        sums.update(batch.hidden_states[0], batch.labels)
    return mean_contribution(weight, sums.result()).numpy()


@pytest.mark.slow
def test_two_tasks_that_say_nothing_agree_as_rankings_but_not_beyond_shuffled_labels(tmp_path: Path) -> None:
    # What the neurons share whatever the labels is how far their means are from 0: they serve as the intercept.
    tokens = make_tokens([9] * 80)
    generator = np.random.default_rng(0)
    states = generator.standard_normal((tokens.n_tokens, 30)) + np.geomspace(0.05, 20, 30)
    store, splits = make_store(tmp_path / "store", [states], tokens), make_splits(80)
    plain = sides(store, splits=splits)

    def labelled(seed: int) -> Data:
        drawn = np.random.default_rng(seed).choice(5, tokens.n_tokens, p=[0.4, 0.3, 0.15, 0.1, 0.05])
        train, validation, test = (
            replace(part, labels=np.where(part.labels >= 0, drawn, -1).astype(np.int32))
            for part in (plain.train, plain.validation, plain.test)
        )
        return Data(train, validation, test, np.arange(5), ordinal=False)

    tasks = [labelled(seed) for seed in range(6)]
    scores = [_scores(task.fit(l2=1e-2)[0].weight, task, torch.zeros(30)) for task in tasks]
    shuffled = [null_rankings(task, [0], TRAINING, 19, seed)[0] for seed, task in enumerate(tasks)]
    p_values = {"exchanged": [], "shuffled": []}  # type: dict[str, list[float]]
    for i in range(6):
        j = (i + 1) % 6
        for one in agreement(scores[i], scores[j], permutations=199):
            p_values["exchanged"].append(one.p_value)
        for one in agreement(scores[i], scores[j], shuffled=(shuffled[i], shuffled[j])):
            p_values["shuffled"].append(one.p_value)
    assert np.median(p_values["exchanged"]) < 0.05
    # Six pairs that share tasks, four statistics that go together: 5% of 24 is 1.2.
    assert sum(p <= 0.05 for p in p_values["shuffled"]) <= 4
    assert np.median(p_values["shuffled"]) > 0.2
