"""`LinearProbe` and its data module with both of Lightning's packages, and the metrics of probes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
import wandb
from numpy.typing import NDArray
from pytorch_lightning.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger, WandbLogger
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, f1_score, log_loss, mean_absolute_error, recall_score
from torch.utils.data import DataLoader, TensorDataset

from probing import ActivationDataModule, LinearProbe, fit, probe
from probing.errors import UserError
from probing.probes.linear import ProbeMetrics, SumBy
from wandb_stand_in import read_offline_runs

# What Lightning says of small data and of folders that are used again.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*(does not have many workers|smaller than the logging interval|exists and is not empty):UserWarning"
)

L2, WIDTH = 1e-3, 6


@pytest.fixture(scope="module")
def Xy() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """900 rows of 6 neurons of unlike scales; 3 classes."""
    generator = np.random.default_rng(0)
    y = generator.integers(3, size=900)
    X = generator.standard_normal((900, WIDTH)) * [1, 10, 0.1, 1, 1, 2]
    X[:, :3] += np.eye(3)[y] * [2, 15, 0.1]
    return X.astype(np.float32), y


def trainer(folder: Path, **options: Any) -> pl.Trainer:
    plain = {"accelerator": "cpu", "devices": 1, "max_epochs": 100, "enable_progress_bar": False, "logger": False}
    plain |= {"enable_model_summary": False, "enable_checkpointing": False, "default_root_dir": folder}
    return pl.Trainer(**{**plain, **options})


def part(data: ActivationDataModule, Xy: Any, side: str) -> tuple[Any, Any]:
    rows = np.flatnonzero(getattr(data.sides, side).labels >= 0)
    return Xy[0][rows], Xy[1][rows]


def by_sklearn(data: ActivationDataModule, Xy: Any) -> LogisticRegression:
    """Return scikit-learn's optimum of the same objective, on activations divided by their sd."""
    X, y = part(data, Xy, "train")
    model = LogisticRegression(fit_intercept=False, C=1 / (2 * L2 * len(y)), tol=1e-8, max_iter=5000)
    return model.fit(X / X.std(0), y)


def test_a_probe_is_trained_tested_and_loaded(Xy: Any, tmp_path: Path) -> None:
    data = ActivationDataModule.from_arrays(*Xy)
    module = LinearProbe(data.d_model, data.classes, l2=L2, tolerance=1e-7)
    best = ModelCheckpoint(tmp_path, monitor="train/optimality_gap")  # the last pass alone is below the tolerance
    plain = trainer(tmp_path, enable_checkpointing=True, callbacks=[best])
    plain.fit(module, datamodule=data)
    assert 3 < plain.current_epoch < 40  # it stopped at the optimum
    assert plain.callback_metrics["train/optimality_gap"] <= 1e-7
    expected = by_sklearn(data, Xy)
    sd = part(data, Xy, "train")[0].std(0)
    weight = module.weight[0] - module.weight[0].mean(0)
    np.testing.assert_allclose(weight * sd, expected.coef_ - expected.coef_.mean(0), atol=2e-3)

    (found,) = plain.test(module, datamodule=data, verbose=False)
    X, y = part(data, Xy, "test")
    assert found["test/accuracy"] == found["test/layer_00/accuracy"] == pytest.approx(expected.score(X / sd, y))
    log_p = expected.predict_log_proba(X / sd)
    assert found["test/cross_entropy"] == pytest.approx(-log_p[np.arange(len(y)), y].mean(), abs=1e-4)

    loaded = LinearProbe.load_from_checkpoint(best.best_model_path)
    assert loaded.hparams["l2"] == L2
    assert loaded.classes == [0, 1, 2]
    assert torch.equal(loaded.weight, module.weight)
    predicted = torch.cat([p[0] for p in trainer(tmp_path).predict(loaded, datamodule=data) or []])
    np.testing.assert_array_equal(predicted, expected.predict(X / sd))


def test_a_checkpoint_has_the_weights_of_its_objective(Xy: Any, tmp_path: Path) -> None:
    data = ActivationDataModule.from_arrays(*Xy)
    kept = ModelCheckpoint(tmp_path, "{epoch}-{train/objective:.12f}", save_top_k=-1, auto_insert_metric_name=False)
    module = LinearProbe(data.d_model, data.classes, l2=L2)
    trainer(tmp_path, enable_checkpointing=True, callbacks=[kept], max_epochs=4).fit(module, datamodule=data)
    X, y = (torch.from_numpy(a) for a in part(data, Xy, "train"))
    files = list(tmp_path.rglob("*.ckpt"))
    assert len(files) == 4
    for file in files:
        logged = float(torch.load(file, weights_only=False)["callbacks"] and file.stem.rsplit("-", 1)[1])
        loaded = LinearProbe.load_from_checkpoint(file)
        (logits,) = loaded([X])
        value = torch.nn.functional.cross_entropy(logits, y) + L2 * loaded.scaled_weight.square().sum()
        assert logged == pytest.approx(float(value.detach()), abs=1e-5)


def test_float64_trains_the_same_probe(Xy: Any, tmp_path: Path) -> None:
    data, weights = ActivationDataModule.from_arrays(*Xy), []
    for precision in ("32-true", "64-true"):
        module = LinearProbe(data.d_model, data.classes, l2=L2, tolerance=1e-9)
        trainer(tmp_path, precision=precision).fit(module, datamodule=data)
        weights.append(module.weight)
    assert weights[1].dtype == torch.float64
    np.testing.assert_allclose(weights[0], weights[1], rtol=1e-3, atol=1e-4)


def test_a_monitor_of_the_learning_rate_reads_one_of_lbfgs_too(Xy: Any, tmp_path: Path) -> None:
    data, logger = ActivationDataModule.from_arrays(*Xy), CSVLogger(tmp_path)
    module = LinearProbe(data.d_model, data.classes, l2=L2)
    monitor = LearningRateMonitor("epoch")
    trainer(tmp_path, logger=logger, callbacks=[monitor], log_every_n_steps=1).fit(module, datamodule=data)
    assert monitor.lrs == {"lr-SolverSteps": [1.0] * module.trainer.current_epoch}


def test_adam_stops_early_and_callbacks_see_the_validation(Xy: Any, tmp_path: Path) -> None:
    X, y = Xy
    data = ActivationDataModule.from_arrays(X, y, batch_size=64)
    module = LinearProbe(data.d_model, data.classes, l2=1e-4, solver="adam", learning_rate=0.01, patience=50)
    stopping = EarlyStopping("val/cross_entropy", patience=2)
    plain = trainer(tmp_path, callbacks=[stopping], max_epochs=60)
    plain.fit(module, datamodule=data)
    assert 3 < plain.current_epoch < 60
    (found,) = plain.test(module, datamodule=data, verbose=False)
    assert found["test/accuracy"] > 0.65


def test_adam_refuses_whole_shards(Xy: Any, tmp_path: Path) -> None:
    data = ActivationDataModule.from_arrays(*Xy)
    module = LinearProbe(data.d_model, data.classes, l2=1e-4, solver="adam")
    with pytest.raises(UserError, match=r"adam trains on mini-batches, .* give the data a `batch_size`"):
        trainer(tmp_path, max_epochs=2).fit(module, datamodule=data)


def test_its_curves_reach_every_logger(Xy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_SILENT", "true")
    data = ActivationDataModule.from_arrays({3: Xy[0], 6: Xy[0][:, ::-1]}, Xy[1])
    module = LinearProbe(data.d_model, data.classes, data.layers, l2=L2)
    online = WandbLogger(project="plain", save_dir=tmp_path, offline=True)
    plain = trainer(tmp_path, logger=[online, CSVLogger(tmp_path)], log_every_n_steps=1)
    plain.fit(module, datamodule=data)
    (tested,) = plain.test(module, datamodule=data, verbose=False)
    online.experiment.finish()
    wandb.teardown()  # the service has then written everything
    (run,) = read_offline_runs(tmp_path)
    for layer in ("layer_03", "layer_06"):
        curve = [row[f"train/{layer}/objective"] for row in run.rows(f"train/{layer}/objective")]
        assert len(curve) == plain.current_epoch
        assert curve[-1] < curve[0]
        assert run.rows(f"val/{layer}/accuracy")[-1][f"val/{layer}/accuracy"] > 0.65
    assert run.rows("test/accuracy")[0]["test/accuracy"] == pytest.approx(tested["test/accuracy"])
    assert run.config["l2"] == L2
    assert (Path(plain.loggers[1].log_dir or "") / "metrics.csv").read_text(encoding="utf-8").count(
        "\n"
    ) > plain.current_epoch


def test_layers_in_one_stack_are_those_alone(Xy: Any, tmp_path: Path) -> None:
    generator = np.random.default_rng(5)
    other = Xy[0] + generator.standard_normal(Xy[0].shape).astype(np.float32)
    stack = ActivationDataModule.from_arrays({0: Xy[0], 4: other}, Xy[1])
    together = LinearProbe(WIDTH, stack.classes, stack.layers, l2=L2)
    trainer(tmp_path).fit(together, datamodule=stack)
    for i, array in enumerate((Xy[0], other)):
        data = ActivationDataModule.from_arrays(array, Xy[1])
        alone = LinearProbe(WIDTH, data.classes, l2=L2)
        trainer(tmp_path).fit(alone, datamodule=data)
        torch.testing.assert_close(alone.weight[0], together.weight[i], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("solver", ["lbfgs", "adam"])
def test_it_takes_any_loader_of_pairs(Xy: Any, tmp_path: Path, solver: Any) -> None:
    X, y = torch.from_numpy(Xy[0]), torch.from_numpy(Xy[1])
    train = DataLoader(TensorDataset(X[:700], y[:700]), batch_size=100, shuffle=True)
    test = DataLoader(TensorDataset(X[700:], y[700:]), batch_size=100)
    module = LinearProbe(WIDTH, 3, l2=L2, solver=solver, learning_rate=0.05)
    plain = trainer(tmp_path, max_epochs=30)
    plain.fit(module, train, test)
    (found,) = plain.test(module, test, verbose=False)
    right = (module(X[700:])[0].argmax(1) == y[700:]).float().mean()
    assert found["test/accuracy"] == pytest.approx(float(right))
    assert right > 0.65
    with pytest.raises(ValueError, match=r"pairs \(hidden_states, labels\)"):
        module.training_step((X, y, y))


def test_it_is_what_probe_trains(Xy: Any, tmp_path: Path) -> None:
    data = ActivationDataModule.from_arrays(*Xy)
    module = LinearProbe(data.d_model, data.classes, l2=L2)
    plain = trainer(tmp_path)
    plain.fit(module, datamodule=data)
    (found,) = plain.test(module, datamodule=data, verbose=False)
    X, y = Xy
    run = probe(X, y, probe={"l2": L2}, replicates=0, evidence="none", controls="none")
    assert run.accuracy[0]["accuracy"] == pytest.approx(found["test/accuracy"])
    assert run.accuracy[0]["cross_entropy"] == pytest.approx(found["test/cross_entropy"], abs=1e-5)


@pytest.mark.slow
def test_a_model_and_a_corpus(checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path) -> None:
    data = ActivationDataModule.from_text(str(checkpoints["bert"]), str(corpus_file), layer=1, cache=tmp_path / "cache")
    assert data.sides.ordinal
    module = LinearProbe(data.d_model, data.classes, data.layers, data.sides.ordinal, l2=1e-2)
    plain = trainer(tmp_path, max_epochs=20)
    plain.fit(module, datamodule=data)
    (found,) = plain.test(module, datamodule=data, verbose=False)
    assert found["test/layer_01/within_one"] >= found["test/layer_01/accuracy"] > 0


def test_training_goes_on_from_where_it_ended(Xy: Any, tmp_path: Path) -> None:
    data = ActivationDataModule.from_arrays(*Xy)
    module = LinearProbe(data.d_model, data.classes, l2=L2)
    kept = ModelCheckpoint(tmp_path, save_last=True)
    short = trainer(tmp_path, enable_checkpointing=True, callbacks=[kept], max_epochs=5)
    short.fit(module, datamodule=data)
    n = {}
    for name, start in (
        ("new", LinearProbe(data.d_model, data.classes, l2=L2)),
        ("same", module),
        ("loaded", LinearProbe.load_from_checkpoint(kept.last_model_path)),
    ):
        again = trainer(tmp_path)
        again.fit(start, datamodule=data)
        n[name] = again.current_epoch
        assert again.callback_metrics["train/optimality_gap"] <= start.hparams["tolerance"]
    assert max(n["same"], n["loaded"]) < n["new"]
    resumed = trainer(tmp_path, enable_checkpointing=True, callbacks=[ModelCheckpoint(tmp_path, save_last=True)])
    with pytest.warns(UserWarning, match="exists and is not empty"):
        resumed.fit(LinearProbe(data.d_model, data.classes, l2=L2), datamodule=data, ckpt_path=kept.last_model_path)
    assert 5 < resumed.current_epoch < 5 + n["new"]
    assert resumed.callback_metrics["train/optimality_gap"] <= 3e-6


GENERATOR = np.random.default_rng(0)
X = GENERATOR.standard_normal((600, 8)).astype(np.float32)
Y = (X[:, 2] > 0).astype(int)
QUICK: dict[str, Any] = {"replicates": 0, "evidence": "none", "quiet": True}


@pytest.fixture(scope="module")
def lightning() -> Any:
    return pytest.importorskip("lightning.pytorch", reason="the package lightning is not installed")


def test_a_logger_of_either_package_gets_the_curves(lightning: Any, tmp_path: Path) -> None:
    for package, place in ((lightning, "lightning"), (pl, "pytorch_lightning")):
        probe(X, Y, logger=package.loggers.CSVLogger(tmp_path / place, name="", version=""), **QUICK)
    curves = [
        (tmp_path / place / "metrics.csv").read_text(encoding="utf-8") for place in ("lightning", "pytorch_lightning")
    ]
    assert curves[0] == curves[1]
    assert "train/optimality_gap" in curves[0]


def test_callbacks_of_the_other_package_work_under_a_trainer(lightning: Any, tmp_path: Path) -> None:
    data = ActivationDataModule.from_arrays(X, Y)
    module = LinearProbe(data.d_model, data.classes, data.layers, l2=1e-3)
    best = lightning.callbacks.ModelCheckpoint(tmp_path, monitor="val/cross_entropy")
    stop = lightning.callbacks.EarlyStopping("val/cross_entropy", patience=2)
    options: dict[str, Any] = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "max_epochs": 30}
    trainer = pl.Trainer(**options, callbacks=[best, stop], enable_model_summary=False)
    trainer.fit(module, datamodule=data)
    assert LinearProbe.load_from_checkpoint(best.best_model_path).weight.shape == module.weight.shape
    with pytest.raises(TypeError, match=r"must be a `LightningModule`.* got `LinearProbe`"):
        lightning.Trainer(**options).fit(module, datamodule=data)  # as docs/activations.md says


def test_other_objects_of_the_other_package_are_refused_with_what_to_import(lightning: Any) -> None:
    strategy = lightning.strategies.SingleDeviceStrategy()
    words = (
        r"`trainer\['strategy'\]` is of the package lightning, .*: import SingleDeviceStrategy from pytorch_lightning"
    )
    for call in (
        lambda: probe(X, Y, trainer={"strategy": strategy}, **QUICK),
        lambda: fit(trainer={"strategy": strategy}),
    ):
        with pytest.raises(UserError, match=words):
            call()
    with pytest.raises(UserError, match=r"`trainer` is of the type lightning.pytorch.*Trainer, and expected is a dict"):
        fit(trainer=lightning.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False))


def test_a_trainer_in_place_of_its_arguments_and_a_logger_that_is_none_are_refused() -> None:
    trainer: Any = pl.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    for call in (lambda: fit(trainer=trainer), lambda: probe(X, Y, trainer=trainer, **QUICK)):
        with pytest.raises(
            UserError, match=r"`trainer` is of the type pytorch_lightning.*Trainer, and expected is a dict of"
        ):
            call()
    with pytest.raises(UserError, match=r"`task_args` is of the type builtins.object, and expected is a dict"):
        fit(task_args=object())  # type: ignore[arg-type]
    with pytest.raises(UserError, match="`logger` is 3: expected a logger of Lightning"):
        probe(X, Y, logger=3, **QUICK)


# Labels with a gap: distances are between labels, not between classes.
CLASSES = torch.tensor([1, 2, 3, 7, 9])
FLOAT32 = 1e-6  # means of 200 values in float32


@pytest.fixture
def tokens() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(200, 5, generator=generator)
    # Class 4 never occurs, though it is predicted.
    return logits, torch.randint(4, (200,), generator=generator), torch.arange(200) // 20


def metrics(
    logits: torch.Tensor, labels: torch.Tensor, sentences: torch.Tensor, *cuts: int, ordinal: bool = True
) -> ProbeMetrics:
    probe = ProbeMetrics(CLASSES, ordinal, 12)
    for at in torch.tensor_split(torch.arange(len(labels)), list(cuts)):
        probe.update(logits[at], labels[at], sentences[at])
    return probe


def test_accuracies_and_cross_entropy_are_those_of_scikit_learn(
    tokens: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
) -> None:
    logits, labels, _ = tokens
    found, predicted = metrics(*tokens).compute(), logits.argmax(-1)
    assert found["accuracy"] == pytest.approx(accuracy_score(labels, predicted), abs=FLOAT32)
    # Over the four classes that occur: the fifth, which is only predicted, has no accuracy.
    macro = recall_score(labels, predicted, labels=range(4), average="macro")
    assert found["macro_accuracy"] == pytest.approx(macro, abs=FLOAT32)
    # Over all five: F1 of the fifth is 0.
    assert found["macro_f1"] == pytest.approx(f1_score(labels, predicted, average="macro"), abs=FLOAT32)
    p = logits.double().softmax(-1).numpy()
    assert found["cross_entropy"] == pytest.approx(log_loss(labels, p, labels=range(5)), abs=FLOAT32)


def test_distances_are_between_labels(tokens: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> None:
    logits, labels, _ = tokens
    found, values = metrics(*tokens).compute(), CLASSES.numpy()
    predicted, true = values[logits.argmax(-1)], values[labels]
    assert found["mean_absolute_error"] == pytest.approx(mean_absolute_error(true, predicted), abs=FLOAT32)
    assert found["within_one"] == pytest.approx(np.mean(np.abs(true - predicted) <= 1), abs=FLOAT32)


def test_batches_give_what_one_gives(tokens: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> None:
    whole, parts = metrics(*tokens), metrics(*tokens, 1, 50, 120)
    for name, value in whole.compute().items():
        assert parts.compute()[name] == pytest.approx(value, abs=FLOAT32)
    assert torch.equal(whole.correct_by_sentence.compute(), parts.correct_by_sentence.compute())


def test_labels_that_are_no_numbers_have_no_distances(tokens: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> None:
    found = metrics(*tokens, ordinal=False).compute()
    assert set(found) == {"accuracy", "macro_accuracy", "macro_f1", "cross_entropy"}


def test_right_tokens_are_counted_by_sentence(tokens: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> None:
    logits, labels, sentences = tokens
    found = metrics(*tokens).correct_by_sentence.compute()
    expected = [int(((logits.argmax(-1) == labels) & (sentences == s)).sum()) for s in range(12)]
    assert found.tolist() == expected
    assert expected[10:] == [0, 0]
    assert sum(expected) == round(metrics(*tokens).compute()["accuracy"] * 200)


def test_counts_of_ranks_add_up() -> None:
    one, other = SumBy(3, torch.int64), SumBy(3, torch.int64)
    one.update(torch.tensor([True, False, True]), torch.tensor([0, 0, 2]))
    other.update(torch.tensor([True]), torch.tensor([2]))
    add: Any = one._reductions["total"]
    summed = add(torch.stack([one.total, other.total]))
    assert summed.tolist() == [1, 0, 2]


def test_a_sure_and_right_probe_is_perfect() -> None:
    labels = torch.arange(5).repeat(4)
    found = metrics(50 * torch.eye(5)[labels], labels, labels).compute()
    # cross-entropy: 4 e^-50
    assert found == pytest.approx(
        {
            "accuracy": 1,
            "macro_accuracy": 1,
            "macro_f1": 1,
            "within_one": 1,
            "mean_absolute_error": 0,
            "cross_entropy": 0,
        },
        abs=1e-6,
    )
