"""`--probe.bias`: the run's own probe has an intercept, as scikit-learn's has, and all evidence goes with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression, Ridge

import probing
from probing.errors import UserError
from synthetic import LIGHTNING_WARNINGS

pytestmark = [pytest.mark.numeric, *(pytest.mark.filterwarnings(warning) for warning in LIGHTNING_WARNINGS)]

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
