"""The probe with an intercept: it equals scikit-learn's, and judges neurons whose mean is far from 0."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from sklearn.linear_model import LogisticRegression

from probing.evidence.retraining import Retraining, with_intercept_probes
from probing.evidence.table import Evidence, collect_evidence, is_far, neuron_table
from probing.probes.solvers import Penalty
from probing.probes.training import Lbfgs, Training
from probing.probes.transforms import CONSTANT as APPENDED
from probing.probes.transforms import moments_with_constant, scaled_transform
from probing.runtime.terminal import render
from probing.statistics.moments import MomentsAccumulator, PenaltySpace, Scaling
from probing.tables.conclusions import conclusion
from probing.tables.probes import neurons_table
from synthetic import LIGHTNING_WARNINGS, Array, Data, make_store, make_tokens, positional, sides

pytestmark = [pytest.mark.numeric, *(pytest.mark.filterwarnings(warning) for warning in LIGHTNING_WARNINGS)]

L2 = 1e-3
LENGTHS = np.random.default_rng(0).integers(6, 14, 150).tolist()
TOKENS = make_tokens(LENGTHS)
# Where neurons are made far: 10 standard deviations, and more than any weight is worth.
CONSTANT, INFORMATIVE = 7, 2


def planted(offset: float = 10.0) -> Array:
    """Return seven neurons that carry position, one of them `offset` sd from 0, a constant, and a dead one."""
    states = positional(TOKENS, 9, 1.0)
    states[:, 5] *= 0.1
    states[:, INFORMATIVE] += offset * states[:, INFORMATIVE].std()
    states[:, CONSTANT] = np.random.default_rng(9).normal(10, 0.5, len(states))
    states[:, 8] = 3
    return states


def strengthened(folder: Path, *layers: Array, space: PenaltySpace = "sd", tolerance: float = 1e-6) -> tuple[
    Data, list[Evidence], list[list[dict[str, Any]]]
]:  # fmt: skip
    data = sides(make_store(folder, layers, TOKENS, shard_tokens=400))
    numbers = list(range(len(layers)))
    fits = data.fit(layers=numbers, l2=L2, tolerance=1e-6, penalty_space=space)
    evidence = collect_evidence(data.train, data.test, numbers, [fit.moments for fit in fits], len(data.classes))
    training = Training(Penalty(0.0, L2), Lbfgs(tolerance), space)
    found = with_intercept_probes(evidence, Retraining(data, numbers, fits, training, 0))
    return data, found, [neuron_table(i, fits[i].weight, found[i]) for i in numbers]


def states_of(data: Data, side: str) -> tuple[Array, Array]:
    examples = getattr(data, side)
    states = np.concatenate([examples.store.read(0, s.index).double().numpy() for s in examples.store.plan.shards])
    return states[examples.labels >= 0], examples.labels[examples.labels >= 0]


def reference(data: Data, space: PenaltySpace) -> Array:
    """Return the mean of |W[y, i] * (v[i] - mean[i])| over test tokens, W being scikit-learn's with an intercept."""
    (x, y), (test_x, test_y) = states_of(data, "train"), states_of(data, "test")
    mean, live = x.mean(0), x.std(0) > 1e-9
    scale = {"sd": x.std(0), "rms": np.sqrt(np.square(x).mean(0)), "raw": np.ones(x.shape[1])}[space]
    scale = np.where(live, scale, np.inf)
    probe = LogisticRegression(C=1 / (2 * len(y) * L2), tol=1e-9, max_iter=20_000).fit((x - mean) / scale, y)
    weight = (probe.coef_ - probe.coef_.mean(0)) / scale
    return np.abs(weight[test_y] * (test_x - mean)).mean(0)


@pytest.mark.parametrize("space", ["sd", "rms", "raw"])
def test_the_probe_with_an_intercept_is_logistic_regression_on_centred_features(
    tmp_path: Path, space: PenaltySpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("probing.evidence.retraining.VARIANT_TOLERANCE", 1e-6)
    data, (found,), (rows,) = strengthened(tmp_path / "store", planted(), space=space)
    expected = reference(data, space)
    assert found.contribution_with_intercept is not None
    # Within 1e-6 nats of the optimum, which is flat: weights may be off by sqrt(1e-6 / l2) in all.
    np.testing.assert_allclose(found.contribution_with_intercept, expected, rtol=0.02, atol=2e-3)
    shown = {row["neuron"]: row["contribution_companion"] for row in rows}
    assert {n for n, value in shown.items() if value is not None} == {INFORMATIVE, CONSTANT}
    assert shown[CONSTANT] == pytest.approx(expected[CONSTANT], abs=2e-3)


def test_at_its_own_tolerance_it_tells_a_constant_from_a_neuron_that_is_far_and_informative(tmp_path: Path) -> None:
    _, (found, plain), (rows, as_it_was) = strengthened(tmp_path / "store", planted(), planted(offset=0.0))
    centred, by_neuron = found.contribution_with_intercept, {row["neuron"]: row for row in rows}
    assert centred is not None
    live = [i for i in range(9) if i != 8]
    assert centred[8] == 0
    assert min(live, key=lambda i: centred[i]) == CONSTANT
    # Without its offset the constant is still there, and still the intercept: the informative neuron's value is that
    # of a probe which has one, to a fifth.
    before = {row["neuron"]: row for row in as_it_was}[INFORMATIVE]["contribution"]
    assert centred[INFORMATIVE] == pytest.approx(before, rel=0.2)
    assert by_neuron[INFORMATIVE]["contribution"] > 2 * before
    assert plain.contribution_with_intercept is not None  # of the constant
    assert {row["neuron"] for row in as_it_was if row["contribution_companion"] is not None} == {CONSTANT}


def test_layers_without_far_neurons_get_no_probe_with_an_intercept(tmp_path: Path) -> None:
    near = np.delete(planted(offset=0.0), CONSTANT, axis=1)
    far = np.delete(planted(), CONSTANT, axis=1)
    _, found, tables = strengthened(tmp_path / "store", near, far)
    assert found[0].contribution_with_intercept is None
    assert "contribution_companion" not in tables[0][0]
    assert found[1].contribution_with_intercept is not None
    _, (alone,), _ = strengthened(tmp_path / "alone", far)
    assert alone.contribution_with_intercept is not None
    np.testing.assert_allclose(found[1].contribution_with_intercept, alone.contribution_with_intercept, rtol=1e-5)


def test_nothing_is_trained_where_no_neuron_is_far(tmp_path: Path) -> None:
    data = sides(make_store(tmp_path / "store", [positional(TOKENS, 4, 1.0)], TOKENS))
    (fit,) = data.fit()
    evidence = collect_evidence(data.train, data.test, [0], [fit.moments], len(data.classes))

    def refuse(what: str) -> list[pl.Callback]:
        raise AssertionError(what)

    training = Training(Penalty(0.0, L2), Lbfgs(1e-3))
    retraining = Retraining(data, [0], [fit], replace(training, callbacks=refuse), 0)
    assert with_intercept_probes(evidence, retraining) == evidence


def test_far_is_more_than_three_standard_deviations_and_alive(tmp_path: Path) -> None:
    _, (found,), _ = strengthened(tmp_path / "store", planted())
    assert is_far(found.moments).nonzero().squeeze(1).tolist() == [INFORMATIVE, CONSTANT]
    moments = replace(found.moments, mean=-3.01 * found.moments.sd)
    assert is_far(moments)[:8].all()
    assert not is_far(replace(moments, mean=2.99 * moments.sd)).any()


@pytest.mark.parametrize("space", ["sd", "rms", "raw"])
def test_its_moments_are_those_of_its_features_however_far_neurons_are(space: PenaltySpace) -> None:
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(5000, 6, generator=generator) + torch.tensor([0, 1, 10, 100, 1e3, 1e4])
    accumulator = MomentsAccumulator(6)
    accumulator.update(states)
    scaling = Scaling(accumulator.result(), space)
    neurons = scaled_transform(scaling)(states.double())
    features = torch.cat([neurons, torch.full((len(neurons), 1), APPENDED)], 1)
    found = moments_with_constant(scaling.moments, scaling).second_moment
    # Correlations of features that are centred in float64 and multiplied in float32.
    scale = found.diagonal().rsqrt()
    expected = features.T @ features / len(features)
    torch.testing.assert_close(scale[:, None] * found * scale, scale[:, None] * expected * scale, rtol=0, atol=1e-3)


def test_the_table_and_the_sentence_use_the_probe_with_an_intercept_where_centring_is_unreliable(
    tmp_path: Path,
) -> None:
    _, _, (rows,) = strengthened(tmp_path / "store", planted())
    shown, row = render(neurons_table(rows)), {row["neuron"]: row for row in rows}[INFORMATIVE]
    assert f" {row['contribution_companion']:.4f}*" in shown
    assert shown.count("*") == 3  # two neurons, and what the star means
    assert "* mean more than 3 sd from 0: value from a probe with an intercept" in " ".join(shown.split())
    first = [row, *(other for other in rows if other is not row)]
    share = row["contribution_companion"] / row["contribution"]
    assert f"in a probe with an intercept only {share:.0%} of its contribution is left" in conclusion(first, "position")
    bare = [{name: value for name, value in row.items() if name != "contribution_companion"} for row in rows]
    shown = render(neurons_table(bare))
    assert f" {row['contribution_centred']:.4f}*" in shown
    assert "* mean more than 3 sd from 0: unreliable" in " ".join(shown.split())
    assert "*" not in render(neurons_table([row for row in bare if row["neuron"] not in (INFORMATIVE, CONSTANT)]))
