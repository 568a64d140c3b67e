"""Probes with an intercept equal those of scikit-learn, and all evidence goes with it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression, Ridge

import probing
from probing.errors import UserError
from probing.probes.evidence import Evidence, collect_evidence, is_far, neuron_table
from probing.probes.retraining import Retraining, with_intercept_probes
from probing.probes.solvers import Penalty
from probing.probes.training import Lbfgs, Training
from probing.probes.transforms import CONSTANT as APPENDED
from probing.probes.transforms import moments_with_constant, scaled_transform
from probing.runtime.terminal import render
from probing.statistics.moments import MomentsAccumulator, PenaltySpace, Scaling
from probing.tables.conclusions import conclusion
from probing.tables.probes import neurons_table
from synthetic import LIGHTNING_WARNINGS, Array, Data, make_store, make_tokens, positional, sides

pytestmark = [pytest.mark.numeric, pytest.mark.filterwarnings(*LIGHTNING_WARNINGS)]

N, D, L2 = 1500, 12, 1e-3
CONSTANT, SIGNAL = 4, 2
BIASED = probing.ProbeOptions(l2=L2, bias=True, tolerance=1e-7)


def planted(seed: int = 0, offset: float = 0.0) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return states and three unequal classes: neuron 2 tells them apart, neuron 4 is large and hardly varies."""
    draw = np.random.default_rng(seed)
    y = draw.choice(3, N, p=[0.7, 0.2, 0.1])
    states = draw.normal(0, 1, (N, D))
    states[:, SIGNAL] += y
    states[:, CONSTANT] = draw.normal(20, 0.5, N)
    return (states + offset * np.arange(D)).astype(np.float32), y


def fitted(x: NDArray[Any], y: NDArray[Any], **options: Any) -> probing.Run:
    usual = {"controls": "all", "evidence": "none", "replicates": 0, "quiet": True, "probe": BIASED}
    return probing.probe(x, y, **{**usual, **options})


def parts(run: probing.Run, x: NDArray[Any], y: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the training rows of a run whose split is drawn with seed 0."""
    from probing.data.arrays import sides_of_arrays

    (sides, _) = sides_of_arrays(x, y, None, None, False, 0, None)
    taken = sides.train.labels >= 0
    assert taken.sum() == run.accuracy[0]["n_train_tokens"]
    return x[taken], y[taken]


def test_weights_and_intercept_are_those_of_scikit_learn() -> None:
    x, y = planted(offset=3.0)
    run = fitted(x, y)
    train_x, train_y = parts(run, x, y)
    mean, sd = train_x.mean(0), train_x.std(0)
    expected = LogisticRegression(C=1 / (2 * len(train_y) * L2), tol=1e-10, max_iter=10_000)
    expected.fit((train_x - mean) / sd, train_y)
    weight, intercept = run.weight[0].numpy(), run.intercept
    assert intercept is not None
    np.testing.assert_allclose(
        weight - weight.mean(0), (expected.coef_ - expected.coef_.mean(0)) / sd, atol=2e-3, rtol=1e-2
    )
    own = intercept[0].numpy()
    np.testing.assert_allclose(own - own.mean(), expected.intercept_ - expected.intercept_.mean(), atol=5e-3)
    labels = [row["predicted"] for row in run.predict(x)]
    assert np.mean(np.array(labels) == expected.predict((x - mean) / sd)) > 0.998


def test_where_neurons_say_nothing_it_answers_as_often_as_the_classes_are() -> None:
    draw = np.random.default_rng(1)
    x, y = draw.normal(0, 1, (N, D)).astype(np.float32), draw.choice(3, N, p=[0.7, 0.2, 0.1])
    (without,) = fitted(x, y, probe=probing.ProbeOptions(l2=L2)).accuracy
    (with_bias,) = fitted(x, y, mdl=True).accuracy
    prior = with_bias["prior_cross_entropy"]
    assert without["cross_entropy"] > prior + 0.15  # without an intercept it cannot say that a class is rare
    assert with_bias["cross_entropy"] == pytest.approx(prior, abs=0.03)
    # So do probes of parts of the rows, whose moments are measured again.
    bits = with_bias["online_code_bits"] / with_bias["n_train_tokens"]
    assert bits < 1.35  # the entropy of the classes is 1.16, and that of a uniform guess 1.58
    assert with_bias["above_shuffled_low"] < 0 < with_bias["above_shuffled_high"] + 0.02


def test_an_offset_of_neurons_changes_nothing_and_a_large_constant_is_not_ranked_first() -> None:
    x, y = planted()
    (plain_first, *_), there = fitted(x, y, probe=probing.ProbeOptions(l2=L2)).neurons, fitted(x, y).neurons
    assert plain_first["neuron"] == CONSTANT
    assert "offset" in plain_first["flag"]
    moved = fitted(planted(offset=30.0)[0], y).neurons
    assert there[0]["neuron"] == SIGNAL
    assert there[-1]["contribution"] < 0.2 * there[0]["contribution"]
    assert {row["neuron"] for row in there if "offset" in row["flag"]} == set()
    own, other = ({row["neuron"]: row["contribution"] for row in rows} for rows in (there, moved))
    assert other == pytest.approx(own, abs=5e-3)
    for row in there:
        assert row["contribution"] == pytest.approx(row["contribution_centred"], rel=1e-4, abs=1e-6)


def test_contributions_and_intercept_add_up_to_the_logit(tmp_path: Path) -> None:
    x, y = planted(offset=3.0)
    made = fitted(x, y, runs=tmp_path, name="A")
    run = probing.load_run(made.folder)
    assert isinstance(run, probing.Run)
    rows = run.explain(x[:5], n=D)
    mean = np.array([row["mean"] for row in sorted(run.neurons, key=lambda row: row["neuron"])])
    assert np.abs(mean).max() < 1e-3  # of the neurons as the probe reads them
    train_mean = parts(run, x, y)[0].mean(0)
    weight, intercept = run.weight[0].double().numpy(), run.intercept
    assert intercept is not None
    logits = (x[:5] - train_mean) @ (weight - weight.mean(0)).T + (intercept[0] - intercept[0].mean()).numpy()
    for i in range(5):
        own = [row for row in rows if row["row"] == i]
        assert own[0]["logit"] == pytest.approx(logits[i].max(), abs=1e-3)
        assert sum(row["contribution"] for row in own) + own[0]["intercept"] == pytest.approx(own[0]["logit"], abs=1e-6)


def test_all_evidence_goes_with_it() -> None:
    x, y = planted(offset=3.0)
    run = fitted(x, y, evidence="all", replicates=3, mdl=True)
    first, *_ = run.neurons
    assert (first["rank_low"], first["rank_high"]) == (1, 1)
    assert first["unique"] == max(row["unique"] for row in run.neurons)
    assert run.accuracy[0]["online_code_bits"] < run.accuracy[0]["uniform_code_bits"]
    (row,) = run.accuracy
    train_x, train_y = parts(run, x, y)
    mean, sd = train_x.mean(0), train_x.std(0)
    kept = [i for i in range(D) if i != SIGNAL]
    from probing.data.arrays import sides_of_arrays

    (sides, _) = sides_of_arrays(x, y, None, None, False, 0, None)
    tested = sides.test.labels >= 0
    test_x, test_y = (x[tested] - mean) / sd, y[tested]

    def nats(neurons: list[int]) -> float:
        model = LogisticRegression(C=1 / (2 * len(train_y) * L2), tol=1e-10, max_iter=10_000)
        model.fit(((train_x - mean) / sd)[:, neurons], train_y)
        return float(-model.predict_log_proba(test_x[:, neurons])[np.arange(len(test_y)), test_y].mean())

    assert row["cross_entropy"] == pytest.approx(nats([*range(D)]), abs=1e-3)
    lost = nats(kept) - nats([*range(D)])
    assert first["cross_entropy_without"] == pytest.approx(lost, abs=2e-3 + 0.02 * lost)


def test_numbers_are_predicted_as_by_ridge_regression_with_an_intercept() -> None:
    draw = np.random.default_rng(3)
    x = draw.normal(5, 1, (N, D)).astype(np.float32)
    y = 2 * x[:, SIGNAL] + draw.normal(0, 0.5, N) + 100
    run = fitted(x, y, probe=probing.ProbeOptions(l2=L2, bias=True))
    assert run.intercept is None
    (sides_x, sides_y) = parts(run, x, y)
    mean, sd = sides_x.mean(0), sides_x.std(0)
    expected = Ridge(alpha=len(sides_y) * L2).fit((sides_x - mean) / sd, sides_y)
    found = np.array([row["predicted"] for row in run.predict(x)])
    np.testing.assert_allclose(found, expected.predict((x - mean) / sd), atol=0.02)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"solver": "adam"}, "is trained by lbfgs"),
        ({"penalty_space": "rms"}, "their root mean square is their sd"),
    ],
)
def test_what_does_not_go_with_an_intercept_is_refused(options: dict[str, Any], said: str) -> None:
    x, y = planted()
    with pytest.raises(UserError, match=said):
        fitted(x, y, probe={"bias": True, **options})


def test_checkpoints_of_features_are_refused() -> None:
    x, y = planted()
    with pytest.raises(UserError, match="enable_checkpointing"):
        fitted(x, y, trainer={"enable_checkpointing": True})


INTERCEPT_L2 = 1e-3
LENGTHS = np.random.default_rng(0).integers(6, 14, 150).tolist()
TOKENS = make_tokens(LENGTHS)
# Where neurons are made far: 10 standard deviations, and more than any weight is worth.
INTERCEPT_CONSTANT, INFORMATIVE = 7, 2


def intercept_planted(offset: float = 10.0) -> Array:
    """Return seven neurons that carry position, one of them `offset` sd from 0, a constant, and a dead one."""
    states = positional(TOKENS, 9, 1.0)
    states[:, 5] *= 0.1
    states[:, INFORMATIVE] += offset * states[:, INFORMATIVE].std()
    states[:, INTERCEPT_CONSTANT] = np.random.default_rng(9).normal(10, 0.5, len(states))
    states[:, 8] = 3
    return states


def strengthened(folder: Path, *layers: Array, space: PenaltySpace = "sd", tolerance: float = 1e-6) -> tuple[
    Data, list[Evidence], list[list[dict[str, Any]]]
]:  # fmt: skip
    data = sides(make_store(folder, layers, TOKENS, shard_tokens=400))
    numbers = list(range(len(layers)))
    fits = data.fit(layers=numbers, l2=INTERCEPT_L2, tolerance=1e-6, penalty_space=space)
    evidence = collect_evidence(data.train, data.test, numbers, [fit.moments for fit in fits], len(data.classes))
    training = Training(Penalty(0.0, INTERCEPT_L2), Lbfgs(tolerance), space)
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
    probe = LogisticRegression(C=1 / (2 * len(y) * INTERCEPT_L2), tol=1e-9, max_iter=20_000).fit((x - mean) / scale, y)
    weight = (probe.coef_ - probe.coef_.mean(0)) / scale
    return np.abs(weight[test_y] * (test_x - mean)).mean(0)


@pytest.mark.parametrize("space", ["sd", "rms", "raw"])
def test_the_probe_with_an_intercept_is_logistic_regression_on_centred_features(
    tmp_path: Path, space: PenaltySpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("probing.probes.retraining.VARIANT_TOLERANCE", 1e-6)
    data, (found,), (rows,) = strengthened(tmp_path / "store", intercept_planted(), space=space)
    expected = reference(data, space)
    assert found.contribution_with_intercept is not None
    # Within 1e-6 nats of the optimum, which is flat: weights may be off by sqrt(1e-6 / l2) in all.
    np.testing.assert_allclose(found.contribution_with_intercept, expected, rtol=0.02, atol=2e-3)
    shown = {row["neuron"]: row["contribution_companion"] for row in rows}
    assert {n for n, value in shown.items() if value is not None} == {INFORMATIVE, INTERCEPT_CONSTANT}
    assert shown[INTERCEPT_CONSTANT] == pytest.approx(expected[INTERCEPT_CONSTANT], abs=2e-3)


def test_at_its_own_tolerance_it_tells_a_constant_from_a_neuron_that_is_far_and_informative(tmp_path: Path) -> None:
    _, (found, plain), (rows, as_it_was) = strengthened(
        tmp_path / "store", intercept_planted(), intercept_planted(offset=0.0)
    )
    centred, by_neuron = found.contribution_with_intercept, {row["neuron"]: row for row in rows}
    assert centred is not None
    live = [i for i in range(9) if i != 8]
    assert centred[8] == 0
    assert min(live, key=lambda i: centred[i]) == INTERCEPT_CONSTANT
    # Without its offset the constant is still there, and still the intercept: the informative neuron's value is that
    # of a probe which has one, to a fifth.
    before = {row["neuron"]: row for row in as_it_was}[INFORMATIVE]["contribution"]
    assert centred[INFORMATIVE] == pytest.approx(before, rel=0.2)
    assert by_neuron[INFORMATIVE]["contribution"] > 2 * before
    assert plain.contribution_with_intercept is not None  # of the constant
    assert {row["neuron"] for row in as_it_was if row["contribution_companion"] is not None} == {INTERCEPT_CONSTANT}


def test_layers_without_far_neurons_get_no_probe_with_an_intercept(tmp_path: Path) -> None:
    near = np.delete(intercept_planted(offset=0.0), INTERCEPT_CONSTANT, axis=1)
    far = np.delete(intercept_planted(), INTERCEPT_CONSTANT, axis=1)
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

    training = Training(Penalty(0.0, INTERCEPT_L2), Lbfgs(1e-3))
    retraining = Retraining(data, [0], [fit], replace(training, callbacks=refuse), 0)
    assert with_intercept_probes(evidence, retraining) == evidence


def test_far_is_more_than_three_standard_deviations_and_alive(tmp_path: Path) -> None:
    _, (found,), _ = strengthened(tmp_path / "store", intercept_planted())
    assert is_far(found.moments).nonzero().squeeze(1).tolist() == [INFORMATIVE, INTERCEPT_CONSTANT]
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
    _, _, (rows,) = strengthened(tmp_path / "store", intercept_planted())
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
    assert "*" not in render(
        neurons_table([row for row in bare if row["neuron"] not in (INFORMATIVE, INTERCEPT_CONSTANT)])
    )
