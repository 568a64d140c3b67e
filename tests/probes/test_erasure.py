"""Linear erasure in float64 and on held-out data, and probes with an intercept, against scikit-learn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from numpy.typing import NDArray
from scipy.linalg import sqrtm
from sklearn.linear_model import LogisticRegression, Ridge
from torch import Tensor

import probing
from conftest import BARE
from families import D_MODEL
from probing import WandbOptions, fit, rank
from probing.__main__ import COMMANDS
from probing.cli.commandline import run
from probing.data.examples import read
from probing.errors import UserError
from probing.probes.evidence import Evidence, collect_evidence, is_far, neuron_table
from probing.probes.retraining import (
    Retraining,
    cross_entropy_by_sentence,
    usable_information,
    with_intercept_probes,
)
from probing.probes.solvers import Penalty
from probing.probes.training import Lbfgs, Training
from probing.probes.transforms import CONSTANT as APPENDED
from probing.probes.transforms import (
    Eraser,
    ErasureAccumulator,
    fit_erasers,
    moments_with_constant,
    scaled_transform,
    with_neurons,
    without,
)
from probing.results import without_nan
from probing.runtime.terminal import render
from probing.statistics.moments import MomentsAccumulator, PenaltySpace, Scaling
from probing.tables import CONDITIONS
from probing.tables.conclusions import conclusion
from probing.tables.probes import neurons_table
from probing.tables.schema import ERASURE
from synthetic import Array, Data, make_store, make_tokens, positional, sides
from wandb_stand_in import read_offline_runs
from written import read_csv

pytestmark = pytest.mark.numeric


def planted_classes(
    n: int, d_model: int, n_classes: int, seed: int = 0, strength: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Return correlated float64 states around a random mean for each class, far from 0, and their labels."""
    generator = torch.Generator().manual_seed(0)
    mixing = torch.randn(d_model, d_model, generator=generator, dtype=torch.float64)
    means = torch.randn(n_classes, d_model, generator=generator, dtype=torch.float64)
    labels = torch.randint(n_classes, (n,), generator=generator)
    noise = torch.randn(n, d_model, generator=generator, dtype=torch.float64)
    return (noise + means[labels]) @ mixing + 3, labels


def fit_eraser(states: Tensor, labels: Tensor, n_classes: int, batch: int = 10_000) -> Eraser:
    accumulator = ErasureAccumulator(states.shape[1], n_classes)
    for start in range(0, len(states), batch):
        accumulator.update(states[start : start + batch], labels[start : start + batch])
    return accumulator.result()


def cross_covariance(states: Tensor, labels: Tensor) -> np.ndarray[Any, Any]:
    one_hot = np.eye(int(labels.max()) + 1)[labels.numpy()]
    x = states.double().numpy()
    return (x - x.mean(0)).T @ (one_hot - one_hot.mean(0)) / len(x)


# --- theorems ---


def test_the_eraser_is_the_papers_formula() -> None:
    # Theorem 4.3 written out: r(x) = x - W^+ P W (x - mu), W the symmetric inverse root of the covariance.
    states, labels = planted_classes(400, 9, 4)
    x, sigma_xz = states.numpy(), cross_covariance(states, labels)
    w = np.linalg.inv(np.real(sqrtm(np.cov(x.T, bias=True))))
    p = (w @ sigma_xz) @ np.linalg.pinv(w @ sigma_xz, rcond=1e-10)
    expected = x - (x - x.mean(0)) @ (np.linalg.pinv(w) @ p @ w).T
    eraser = fit_eraser(states, labels, 4)
    assert eraser.rank == 3
    np.testing.assert_allclose(eraser.apply(states).numpy(), expected, atol=1e-9)


def test_after_erasure_states_and_classes_do_not_vary_together_and_the_mean_stays() -> None:
    states, labels = planted_classes(500, 12, 5)
    changed = fit_eraser(states, labels, 5).apply(states)
    assert np.abs(cross_covariance(states, labels)).max() > 0.1
    assert np.abs(cross_covariance(changed, labels)).max() < 1e-12
    torch.testing.assert_close(changed.mean(0), states.mean(0))


def test_erasing_twice_is_erasing_once() -> None:
    states, labels = planted_classes(500, 12, 5)
    eraser = fit_eraser(states, labels, 5)
    changed = eraser.apply(states)
    torch.testing.assert_close(eraser.apply(changed), changed, atol=1e-10, rtol=0)
    assert fit_eraser(changed, labels, 5).rank == 0  # nothing is left to erase


def test_no_other_affine_map_that_erases_changes_the_states_less() -> None:
    states, labels = planted_classes(600, 8, 4)
    x, sigma_xz = states.numpy(), cross_covariance(states, labels)
    changed = fit_eraser(states, labels, 4).apply(states).numpy()
    q, _ = np.linalg.qr(np.linalg.svd(sigma_xz)[0][:, :3])
    orthogonal = x - (x - x.mean(0)) @ q @ q.T  # erases too: the projection along the means' differences
    assert np.abs(cross_covariance(torch.from_numpy(orthogonal), labels)).max() < 1e-12
    # Theorem 4.2: whatever positive definite form measures the change, here three of them.
    for form in (np.eye(8), np.diag(np.arange(1.0, 9)), np.linalg.inv(np.cov(x.T))):
        least, naive = (np.einsum("ni,ij,nj->n", x - r, form, x - r).mean() for r in (changed, orthogonal))
        assert least < 0.99 * naive
        # And by perturbation: adding any map that keeps the class means equal makes it worse.
        generator = np.random.default_rng(0)
        null = np.eye(8) - q @ q.T  # rows that see no difference between the means
        for _ in range(20):
            other = changed + (x - x.mean(0)) @ (0.05 * generator.standard_normal((8, 8)) @ null).T
            assert np.einsum("ni,ij,nj->n", x - other, form, x - other).mean() > least


def test_scaling_neurons_scales_what_is_left() -> None:
    states, labels = planted_classes(500, 12, 5)
    scale = torch.logspace(-9, 3, 12, dtype=torch.float64)
    changed = fit_eraser(states, labels, 5).apply(states)
    torch.testing.assert_close(fit_eraser(states * scale, labels, 5).apply(states * scale) / scale, changed)


def test_batches_do_not_matter_and_tokens_without_a_class_do_not_count() -> None:
    states, labels = planted_classes(500, 12, 5)
    mixed, of_mixed = torch.cat([states, torch.full((40, 12), 1e3)]), torch.cat([labels, torch.full((40,), -1)])
    whole = fit_eraser(states, labels, 5).apply(states)
    torch.testing.assert_close(fit_eraser(mixed, of_mixed, 5, batch=7).apply(states), whole, atol=1e-9, rtol=0)


def test_float32_states_stay_float32_and_are_erased_to_their_rounding() -> None:
    states, labels = planted_classes(2000, 12, 5)
    narrow = states.float() + 100  # large means, as outlier neurons have
    changed = fit_eraser(narrow, labels, 5).apply(narrow)
    assert changed.dtype == torch.float32
    assert np.abs(cross_covariance(changed, labels)).max() < 1e-6 * float(narrow.abs().max())


# --- what real layers are like ---


def test_directions_and_neurons_without_variance_are_passed_over() -> None:
    # As after a LayerNorm: a weighted sum of the neurons is 0; one is constant, two are dead in all but name.
    states, labels = planted_classes(800, 12, 5)
    states = states - states.mean(1, keepdim=True)
    extra = torch.stack([torch.full((800,), 10.1), 1e-32 * states[:, 0], 1e-12 * states[:, 1]], 1)
    states = torch.cat([states, extra], 1)
    eraser = fit_eraser(states, labels, 5)
    changed = eraser.apply(states)
    assert eraser.rank == 4
    assert torch.isfinite(eraser.left).all()
    assert torch.equal(changed[:, 12], states[:, 12])
    sd = states.std(0).clamp(min=1e-300).numpy()[:, None]
    left = np.abs(cross_covariance(changed, labels) / sd)[[*range(12), 14]]
    assert left.max() < 1e-9
    assert left[:12].max() < 1e-12
    torch.testing.assert_close(changed[:, :12].mean(1), states[:, :12].mean(1), atol=1e-10, rtol=0)


def test_rounding_in_float32_does_not_make_a_direction() -> None:
    states, labels = planted_classes(3000, 12, 5)
    narrow = (states - states.mean(1, keepdim=True)).float()
    eraser = fit_eraser(narrow, labels, 5)
    # Had the direction of rounding been kept, undoing its scale would show as large entries.
    assert float(eraser.right.norm(dim=1).max() * eraser.left.norm(dim=0).max()) < 50
    assert np.abs(cross_covariance(eraser.apply(narrow), labels)).max() < 1e-5


def test_of_classes_without_tokens_and_states_without_variance_nothing_is_erased() -> None:
    states, labels = planted_classes(300, 6, 3)
    assert fit_eraser(states, labels, 7).rank == 2
    constant = torch.full((300, 6), 10.1)
    assert fit_eraser(constant, labels, 3, batch=100).rank == 0
    assert torch.equal(fit_eraser(constant, labels, 3).apply(constant), constant)
    with pytest.raises(ValueError, match="no tokens"):
        ErasureAccumulator(6, 3).result()


def test_labels_without_signal_cost_as_many_directions_and_no_more() -> None:
    # LEACE removes the directions of the means' differences however small they are, so that it removes n_classes - 1 of
    # the d_model whitened ones from anything: the change is (n_classes - 1) / d_model, signal or not.
    for n_classes in (2, 6):
        states, _ = planted_classes(2000, 40, 3)
        labels = torch.randint(n_classes, (2000,), generator=torch.Generator().manual_seed(5))
        moved = fit_eraser(states, labels, n_classes).apply(states) - states
        whitened = np.einsum("ni,ij,nj->n", moved, np.linalg.inv(np.cov(states.numpy().T, bias=True)), moved).mean()
        assert whitened / 40 == pytest.approx((n_classes - 1) / 40)


# --- held-out data ---


@pytest.mark.slow
def test_logistic_regression_on_held_out_states_falls_to_the_majority() -> None:
    # science.md, F9. With an intercept and next to no penalty, as the theorem has it.
    states, labels = planted_classes(4000, 20, 4)
    labels = torch.where(torch.rand(4000, generator=torch.Generator().manual_seed(1)) < 0.3, 0, labels)
    train, test = slice(0, 2000), slice(2000, 4000)
    eraser = fit_eraser(states[train], labels[train], 4)
    accuracy = {}
    for name, x in (("before", states), ("after", eraser.apply(states))):
        probe = LogisticRegression(C=1e4, max_iter=2000).fit(x[train], labels[train])
        accuracy[name] = probe.score(x[test], labels[test])
    majority = float((labels[test] == labels[train].mode().values).float().mean())
    assert accuracy["before"] > majority + 0.2
    assert accuracy["after"] <= majority + 3 * (majority * (1 - majority) / 2000) ** 0.5


LENGTHS = np.random.default_rng(0).integers(6, 14, 240).tolist()


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Data:
    """Position in the first 4 neurons of 48; all have a mean, of which a bias-free probe can make an intercept."""
    tokens = make_tokens(LENGTHS)
    states = np.random.default_rng(1).standard_normal((tokens.n_tokens, 48))
    states[:, :4] = positional(tokens, 4, 3.0)
    return sides(make_store(tmp_path_factory.mktemp("store"), [states + 1, 2 * states - 1], tokens, shard_tokens=500))


@pytest.mark.slow
def test_after_erasure_a_bias_free_probe_knows_no_more_than_the_best_constant_answer(planted: Data) -> None:
    changed = Data(**vars(without(planted, fit_erasers(planted.train, [0, 1], len(planted.classes)))))
    n_classes = len(planted.classes)
    p = planted.train.counts(n_classes) / planted.train.n_tokens
    constant = -np.log(p)
    for before, after in zip(planted.fit([0, 1], l2=1e-5), changed.fit([0, 1], l2=1e-5), strict=True):
        assert before.metrics["accuracy"] > 0.6
        # On the tokens it was fitted on, by Jensen's inequality exactly so (up to float32's rounding).
        on_train = cross_entropy_by_sentence(changed.train, after.layer, [after.weight]).sum() / planted.train.n_tokens
        assert on_train >= float(p @ constant) - 1e-5
        # On others within three standard errors of the paired difference, sentence by sentence.
        of = planted.test.store.tokens.sentences[planted.test.labels >= 0]
        best = np.bincount(of, constant[planted.test.labels[planted.test.labels >= 0]], minlength=len(LENGTHS))
        (loss,) = cross_entropy_by_sentence(changed.test, after.layer, [after.weight])
        saved = (best - loss)[planted.test.sentences()]
        assert saved.sum() <= 3 * saved.std(ddof=1) * len(saved) ** 0.5
        majority = (planted.test.labels == p.argmax()).sum() / planted.test.n_tokens
        assert after.metrics["accuracy"] <= majority + 3 * (majority / planted.test.n_tokens) ** 0.5


def test_neurons_are_picked_layer_by_layer_and_equally_many(planted: Data) -> None:
    picked = with_neurons(planted, {0: [3, 1], 1: [0, 15]})
    assert picked.test.store.plan.d_model == 2
    for batch, some in zip(read(planted.test, [0, 1]), read(picked.test, [0, 1]), strict=True):
        assert torch.equal(some.hidden_states[0], batch.hidden_states[0][:, [3, 1]])
        assert torch.equal(some.hidden_states[1], batch.hidden_states[1][:, [0, 15]])
    with pytest.raises(ValueError, match="the same number of neurons, not 1 and 2"):
        with_neurons(planted, {0: [3], 1: [0, 15]})


# --- what is known ---

TRAINING = Training(Penalty(0, 1e-4), Lbfgs(1e-4))


@pytest.mark.slow
def test_usable_information_is_where_it_was_planted(planted: Data) -> None:
    order = list(range(48))
    rows = {
        (row["layer"], row["condition"]): row
        for row in usable_information(planted, {1: order, 0: order}, 4, TRAINING, seed=0)
    }
    assert list(rows) == [(layer, condition) for layer in (1, 0) for condition in CONDITIONS]
    for layer in (0, 1):
        share = {condition: rows[layer, condition]["share"] for condition in CONDITIONS}
        assert share["all"] == 1
        assert share["top"] > 0.95
        assert share["without_random"] > 0.95
        assert share["erased_shuffled"] > 0.5
        for condition in ("random", "without_top", "erased"):
            assert share[condition] < 0.05
            assert rows[layer, condition]["information_low"] <= 0
        gone = rows[layer, "erased"]
        assert gone["n_removed"] == len(planted.classes) - 1
        assert gone["n_neurons"] == 48
        assert rows[layer, "without_top"]["n_removed"] == 4
        assert rows[layer, "without_top"]["n_neurons"] == 44
        for row in (rows[layer, condition] for condition in CONDITIONS):
            assert set(ERASURE.types) == set(row)
            assert row["accuracy_low"] <= row["accuracy"] <= row["accuracy_high"]
            assert row["information_low"] <= row["information"] <= row["information_high"]
            assert row["information"] == pytest.approx(row["constant_cross_entropy"] - row["cross_entropy"])


def test_without_signal_nothing_is_known_and_there_is_nothing_to_share(tmp_path: Path) -> None:
    tokens = make_tokens(LENGTHS[:100])
    noise = np.random.default_rng(2).standard_normal((tokens.n_tokens, 6))
    data = sides(make_store(tmp_path / "store", [noise], tokens, shard_tokens=500))
    rows = usable_information(data, {0: range(6)}, 2, TRAINING, seed=0)
    assert all(row["information_low"] <= 0 for row in rows)
    assert all(np.isnan(row["share"]) or row["information"] > 0 or row["share"] < 1 for row in rows)


@pytest.mark.parametrize("n_top", [0, 25])
def test_more_than_half_of_the_neurons_are_no_top(planted: Data, n_top: int) -> None:
    with pytest.raises(ValueError, match="expected 1 to 24"):
        usable_information(planted, {0: range(48)}, n_top, TRAINING, seed=0)


# --- a finished run ---


@pytest.mark.slow
def test_of_a_finished_run_the_table_is_written_beside_its_rankings(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = fit(
        model=str(checkpoints["bert"]), corpus=str(corpus_file), layer="0,2", **BARE, runs=str(tmp_path),
        name="made", wandb=WandbOptions(mode="disabled"), task_args={"min_count": 5}, quiet=True,
    )  # fmt: skip
    folder = made.folder / "rankings"
    typed = ["rank", str(made.folder), "--erase", "--top", "4"]
    assert run(COMMANDS, [*typed, "--layer", "2", "--wandb.mode", "offline"]) == 0
    output = capsys.readouterr().out
    assert output.count("usable information for retrained linear probes") == 1
    assert "shuffled labels erased instead" in output
    assert {path.name for path in folder.iterdir()} == {"contribution.csv", "directions.csv", "erasure.csv", "wandb"}
    rows = read_csv(folder / "erasure.csv")
    assert list(rows[0]) == list(ERASURE.types)
    assert [(row["layer"], row["condition"]) for row in rows] == [(2, condition) for condition in CONDITIONS]
    (tracked,) = read_offline_runs(folder)
    assert len(tracked.table("erasure")) == len(rows)
    for row in rows:
        fitted = made.accuracy[1]
        assert row["n_test_tokens"] == fitted["n_test_tokens"]
        assert row["majority_accuracy"] == pytest.approx(fitted["majority_accuracy"])
        if row["condition"] == "all":  # the run's own probe, trained again
            assert row["cross_entropy"] == pytest.approx(fitted["cross_entropy"], abs=5e-3)
    # Another layer is added, in full precision like those that stay.
    added = rank(str(made.folder), layer=0, erase=True, top=4, quiet=True, wandb=WandbOptions(mode="disabled"))
    stored = read_csv(folder / "erasure.csv")
    assert [without_nan(row) for row in stored] == [without_nan(row) for row in [*added.erasure, *rows]]
    assert added.erasure[0]["accuracy"] > 0.3  # the embeddings know position
    assert added.erasure[-2]["condition"] == "erased"
    erased = added.erasure[-2]
    assert erased["information_low"] < erased["information"] < erased["information_high"]
    assert "usable information for retrained linear probes" in repr(added)
    for top in ("0", str(D_MODEL // 2 + 1)):
        assert run(COMMANDS, ["rank", str(made.folder), "--erase", "--top", top]) == 2
        assert f"`--top {top}` is out of range: expected 1 to {D_MODEL // 2}, half" in capsys.readouterr().err


N, D, L2 = 1500, 12, 1e-3
CONSTANT, SIGNAL = 4, 2
BIASED = probing.ProbeOptions(l2=L2, bias=True, tolerance=1e-7)


def bias_planted(seed: int = 0, offset: float = 0.0) -> tuple[NDArray[Any], NDArray[Any]]:
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
    x, y = bias_planted(offset=3.0)
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
    x, y = bias_planted()
    (plain_first, *_), there = fitted(x, y, probe=probing.ProbeOptions(l2=L2)).neurons, fitted(x, y).neurons
    assert plain_first["neuron"] == CONSTANT
    assert "offset" in plain_first["flag"]
    moved = fitted(bias_planted(offset=30.0)[0], y).neurons
    assert there[0]["neuron"] == SIGNAL
    assert there[-1]["contribution"] < 0.2 * there[0]["contribution"]
    assert {row["neuron"] for row in there if "offset" in row["flag"]} == set()
    own, other = ({row["neuron"]: row["contribution"] for row in rows} for rows in (there, moved))
    assert other == pytest.approx(own, abs=5e-3)
    for row in there:
        assert row["contribution"] == pytest.approx(row["contribution_centred"], rel=1e-4, abs=1e-6)


def test_contributions_and_intercept_add_up_to_the_logit(tmp_path: Path) -> None:
    x, y = bias_planted(offset=3.0)
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


@pytest.mark.slow
def test_all_evidence_goes_with_it() -> None:
    x, y = bias_planted(offset=3.0)
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
    x, y = bias_planted()
    with pytest.raises(UserError, match=said):
        fitted(x, y, probe={"bias": True, **options})


def test_checkpoints_of_features_are_refused() -> None:
    x, y = bias_planted()
    with pytest.raises(UserError, match="enable_checkpointing"):
        fitted(x, y, trainer={"enable_checkpointing": True})


INTERCEPT_L2 = 1e-3
BIAS_LENGTHS = np.random.default_rng(0).integers(6, 14, 150).tolist()
TOKENS = make_tokens(BIAS_LENGTHS)
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


@pytest.mark.slow
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
