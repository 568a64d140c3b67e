"""Objects of the package `lightning`, which has a second copy of every class of `pytorch_lightning`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl

from probing import ActivationDataModule, LinearProbe, fit, probe
from probing.errors import UserError

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.. is deprecated"),
    pytest.mark.filterwarnings("ignore:.*exists and is not empty:UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

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
        lightning.Trainer(**options).fit(module, datamodule=data)  # as docs/arrays.md says


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
