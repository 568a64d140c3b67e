"""Scores of neurons beside those of directions: a plain loop, planted neurons, the same rotated, and noise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm, ortho_group

from probing.evidence.table import concentration, shares_above
from probing.probes.closed_forms import FLOOR, GaussianProbe, choose_shared, information
from probing.probes.solvers import Penalty
from probing.rankings.bases import SCORES, rotated_scores
from probing.rankings.methods import METHODS, SELECTED, LayerData, read_layer
from probing.statistics.chance import random_rotation
from synthetic import LIGHTNING_WARNINGS, Array, make_store, make_tokens, sides

pytestmark = [pytest.mark.numeric, *map(pytest.mark.filterwarnings, LIGHTNING_WARNINGS)]

D, PLANTED, DEAD = 40, [3, 11, 20, 21, 35], 7


def data_of(folder: Path, states: Array, tokens: Any) -> LayerData:
    data = sides(make_store(folder, [states], tokens))
    return read_layer(0, data.fit()[0].weight, Penalty(0.0, 1e-3), "sd", data, 0)


def planted() -> tuple[Array, Any]:
    """Return noise in which each of five neurons tells two of ten positions from the others."""
    tokens = make_tokens([12] * 250)
    states = np.random.default_rng(0).standard_normal((tokens.n_tokens, D))
    states[np.arange(tokens.n_tokens), np.array(PLANTED)[tokens.positions % 5]] += 2
    return states, tokens


def test_planted_neurons_are_above_directions_and_rotated_ones_are_within_the_band(tmp_path: Path) -> None:
    states, tokens = planted()
    turned = states @ ortho_group.rvs(D, random_state=np.random.default_rng(5))
    for name, rows, is_planted in (("own", states, True), ("turned", turned, False)):
        found = rotated_scores(data_of(tmp_path / name, rows, tokens), [*METHODS], 20, 0)
        assert [*found] == [*SCORES]
        for method, (neurons, directions) in found.items():
            p = concentration(neurons, directions)["first_10_share_p"]
            above = np.flatnonzero(shares_above(neurons, directions).numpy() <= 0.05).tolist()
            assert (above == PLANTED) if is_planted else (above == []), (method, name)
            assert (p <= 0.05) == is_planted, (method, name)


def test_scores_are_those_of_a_plain_loop(tmp_path: Path) -> None:
    states, tokens = planted()
    states = states * np.exp(np.random.default_rng(1).uniform(-2, 2, D)) + np.random.default_rng(2).uniform(-9, 9, D)
    states[:, DEAD] = 4
    data = data_of(tmp_path / "store", states, tokens)
    live = [i for i in range(D) if i != DEAD]
    found = rotated_scores(data, [*METHODS], 19, 6)
    x, y = data.train.hidden_states.double().numpy()[:, live], data.train.labels.numpy()
    held, classes = data.validation.hidden_states.double().numpy()[:, live], data.validation.labels.numpy()
    sd, weight = x.std(0), data.weight.double().numpy()[:, live]
    weight = (weight - weight.mean(0)) * sd
    drawn = [i for i in data.draw(SELECTED, 0) if i != DEAD]
    shared = choose_shared(data.classes, *data.validation, drawn).shared
    kinds, n = range(int(y.max()) + 1), len(y)
    for draw in range(-1, 19):
        basis = (
            np.eye(len(live))
            if draw < 0
            else random_rotation(len(live), 6, 0, draw)(torch.eye(len(live)).double()).numpy()
        )
        expected: dict[str, list[float]] = {name: [] for name in SCORES}
        for j in range(len(live)):
            z, new = x / sd @ basis[:, j], held / sd @ basis[:, j]
            means = [z[y == c].mean() for c in kinds]
            squares = [np.square(z[y == c] - means[c]).sum() for c in kinds]
            counts = [int((y == c).sum()) for c in kinds]
            between = sum(counts[c] * (means[c] - z.mean()) ** 2 for c in kinds)
            within = sum(squares)
            expected["weight"].append(np.mean([abs(weight[c] @ basis[:, j]) for c in kinds]))
            pairs = sum(abs(means[a] - means[b]) for a in kinds for b in range(a))
            expected["probeless_standardised"].append(pairs / z.std())
            expected["anova"].append(between / z.var() / n)
            joint = []
            for c in kinds:
                scale = squares[c] + shared * within / n + squares[c] / counts[c] + FLOOR * z.var()
                spread = (scale / (counts[c] + 6 + shared)) ** 0.5
                joint.append(np.log(counts[c] / n) + norm.logpdf(new, means[c], spread))
            shares = np.bincount(classes) / len(classes)
            entropy = -sum(share * np.log2(share) for share in shares if share)
            log_p = np.array(joint) - np.logaddexp.reduce(joint)
            bits = entropy + np.mean([log_p[c, i] for i, c in enumerate(classes)]) / np.log(2)
            expected["gaussian"].append(max(0.0, bits))
        for name, scores in expected.items():
            own = found[name][0] if draw < 0 else found[name][1][draw]
            ordered = scores if draw < 0 else sorted(scores, reverse=True)
            np.testing.assert_allclose(own.numpy(), ordered, rtol=2e-4, atol=2e-5, err_msg=name)


def test_of_isotropic_noise_p_is_uniform(tmp_path: Path) -> None:
    """Weights of chance, and classes that go with nothing."""
    p: dict[str, list[float]] = {name: [] for name in SCORES}
    tokens = make_tokens([6] * 60)
    for seed in range(60):
        states = np.random.default_rng(seed).standard_normal((tokens.n_tokens, 24))
        data = sides(make_store(tmp_path / str(seed), [states], tokens))
        weight = torch.from_numpy(np.random.default_rng([seed, 1]).standard_normal((len(data.classes), 24))).float()
        layer = read_layer(0, weight, Penalty(0.0, 1e-3), "sd", data, seed)
        for name, pair in rotated_scores(layer, [*SCORES], 19, seed).items():
            p[name].append(concentration(*pair)["first_10_share_p"])
    for name, values in p.items():
        assert sum(value <= 0.05 for value in values) <= 8, name
        assert np.mean(values) > 0.38, name
        # Of noise, most directions mislead the Gaussian probe, and have all 0 bits.
        assert np.mean(values) < 0.64 or name == "gaussian", name


def test_gaussian_scores_begin_as_its_own_selection_does(tmp_path: Path) -> None:
    states, tokens = planted()
    data = data_of(tmp_path / "store", states, tokens)
    first = METHODS["gaussian"](data)
    neurons, _ = rotated_scores(data, ["gaussian"], 19, 0)["gaussian"]
    assert int(neurons.argmax()) == int(first.order[0])
    assert float(neurons.max()) == pytest.approx(float(first.score[first.order[0]]), rel=1e-3)


@pytest.mark.parametrize("shared", [0.0, 1e2])
def test_bits_of_neurons_alone_are_those_of_the_gaussian_probe(tmp_path: Path, shared: float) -> None:
    states, tokens = planted()
    states[:, 5] = tokens.positions  # constant within classes
    data = data_of(tmp_path / "store", states, tokens)
    held, labels = data.validation
    probe = GaussianProbe(data.classes, shared)
    expected = [max(0.0, information(probe.log_p(held, [i]), labels)) for i in range(D)]
    basis = torch.diag(1 / data.moments.sd)
    found = SCORES["gaussian"](data, basis, shared=shared, tokens=data.validation)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_a_layer_without_live_neurons_is_not_compared(tmp_path: Path) -> None:
    states, tokens = planted()
    assert rotated_scores(data_of(tmp_path / "store", states * 0 + 1, tokens), ["weight", "anova"], 19, 0) == {}
