"""Probes' examples read through transforms that were fitted on the training side."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from probing.data.examples import Examples, read
from probing.probes.transforms import clip_others, fit_each, moments_of, transform_all, transformed
from synthetic import LIGHTNING_WARNINGS, Data, make_store, make_tokens, positional, sides

pytestmark = [pytest.mark.numeric, *(pytest.mark.filterwarnings(warning) for warning in LIGHTNING_WARNINGS)]

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
