"""Probes while the Trainer of transformers trains, which logs them as its own metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

import probing
from conftest import BARE
from tiny_models import OPTIONS, SENTENCES, WARNINGS, in_bytes, make, trained

pytestmark = [pytest.mark.filterwarnings(*WARNINGS, "ignore:.*pin_memory")]


class Sets(TrainerCallback):
    """Notes what `on_log` is given, as what `report_to` names is."""

    def __init__(self) -> None:
        self.logged: list[tuple[int, dict[str, float]]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **others: Any) -> None:
        self.logged.append((state.global_step, dict(logs)))


def probes(**options: Any) -> probing.ProbingCallback:
    return probing.ProbingCallback(SENTENCES, **{**OPTIONS, **options})


@pytest.mark.parametrize("options", [{}, {"gradient_accumulation_steps": 2, "bf16": True}], ids=["float32", "bf16"])
def test_the_training_is_the_same_to_the_byte(
    checkpoints: dict[str, Path], tmp_path: Path, options: dict[str, Any]
) -> None:
    ends, folder = [], checkpoints["bert"]
    for probed in (True, False):
        trainer = make(folder, tmp_path, **options)
        if probed:
            trainer.add_callback(probes().for_trainer(trainer))
        trainer.train()
        optimizer: Any = trainer.optimizer
        ends.append((in_bytes(trained(trainer).state_dict()), in_bytes(optimizer.state_dict()), torch.rand(3)))
    assert ends[0][:2] == ends[1][:2]
    assert torch.equal(ends[0][2], ends[1][2])


def test_the_numbers_are_those_of_fit_and_are_in_all_logs(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    trainer, noted = make(checkpoints["bert"], tmp_path / "trainer", save_strategy="epoch"), Sets()
    trainer.add_callback(probes().for_trainer(trainer))
    trainer.add_callback(noted)
    trainer.train()
    name = "eval_probe/layer_03/accuracy"
    history = {int(row["step"]): row for row in trainer.state.log_history if name in row}
    reported = {step: row[name] for step, row in noted.logged if name in row}
    assert {step: row[name] for step, row in history.items()} == reported
    for step in (6, 12):
        run = probing.fit(
            model=tmp_path / "trainer" / f"checkpoint-{step}", quiet=True, runs=str(tmp_path / "runs"),
            **{**BARE, "corpus": SENTENCES, "layer": [1, 3], "controls": "shuffled", "probe": {"l2": 0.1}},
        )  # fmt: skip
        for row in run.accuracy:
            for column in ("accuracy", "optimality_gap", "shuffled_accuracy"):
                logged = history[step][f"eval_probe/layer_{row['layer']:02d}/{column}"]
                assert logged == pytest.approx(row[column], abs=1e-6)
    assert history[6][name] != history[12][name]


class Halved(TrainerCallback):
    """Evaluates a model of halved weights, and takes them back when the evaluation ends."""

    def _scale(self, model: Any, factor: float) -> None:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter *= factor

    def on_epoch_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self._scale(others["model"], 0.5)

    def on_evaluate(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self._scale(others["model"], 2)


def test_the_weights_that_the_evaluation_used_are_measured_whatever_the_order_of_callbacks(
    checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    found = []
    for order in ([], [Halved, None], [None, Halved]):
        trainer = make(checkpoints["bert"], tmp_path, num_train_epochs=1)
        for one in order or [None]:
            trainer.add_callback(probes(controls="none").for_trainer(trainer) if one is None else one())
        trainer.train()
        found.append(next(row for row in trainer.state.log_history if "eval_probe/layer_03/mean_cosine" in row))
    raw, before, after = found
    assert before == after != raw


@pytest.mark.slow
def test_the_best_model_may_be_chosen_by_a_probe(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    how = {"save_strategy": "epoch", "load_best_model_at_end": True, "greater_is_better": False}
    trainer = make(checkpoints["bert"], tmp_path, metric_for_best_model="probe/layer_03/mean_cosine", **how)
    trainer.add_callback(probes(controls="none").for_trainer(trainer))
    trainer.train()
    values = [row["eval_probe/layer_03/mean_cosine"] for row in trainer.state.log_history if "eval_probe" in str(row)]
    assert trainer.state.best_metric == min(values)
    assert trainer.evaluate()["eval_probe/layer_03/mean_cosine"] == pytest.approx(min(values), abs=1e-6)


@pytest.mark.slow
def test_of_several_sets_the_first_is_the_evaluation_and_a_continued_training_counts_on(
    checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    def steps(epochs: int, start: str | None = None) -> list[int]:
        options: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "epoch"}
        trainer = make(checkpoints["bert"], tmp_path, ("a", "b"), num_train_epochs=epochs, **options)
        trainer.add_callback(probes(controls="none", every_n_validations=2).for_trainer(trainer))
        trainer.train(resume_from_checkpoint=start)
        return [int(row["step"]) for row in trainer.state.log_history if any("eval_probe" in name for name in row)]

    assert steps(2) == [4, 8, 12]
    assert steps(2, str(tmp_path / "checkpoint-6")) == [4, 8, 12]


@pytest.mark.parametrize(
    ("options", "of_trainer", "words"),
    [
        ({"layer": 9}, {}, "so not 9"),
        ({"task": "upos"}, {}, "upos"),
        ({}, {"eval_strategy": "no"}, "measures at evaluations, and this training has none"),
    ],
    ids=["layer", "labels", "no evaluation"],
)
def test_a_mistake_is_refused_before_the_first_step(
    checkpoints: dict[str, Path], tmp_path: Path, options: dict[str, Any], of_trainer: dict[str, Any], words: str
) -> None:
    trainer = make(checkpoints["bert"], tmp_path, **of_trainer)
    trainer.add_callback(probes(**options).for_trainer(trainer))
    with pytest.raises(probing.UserError, match=words):
        trainer.train()
    assert trainer.state.global_step == 0
