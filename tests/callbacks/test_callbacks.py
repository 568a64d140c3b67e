"""Probes while Lightning or the Trainer of transformers trains, in one process or two: the training stays as it is."""

from __future__ import annotations

import gc
import os
import random
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import EMAWeightAveraging, ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger
from torch import nn
from transformers import TrainerCallback

import probing
from conftest import BARE, make_sentences
from fault_loop import in_two_ranks
from probing.callbacks import without_traces
from probing.errors import RunError
from tiny_models import OPTIONS, SENTENCES, WARNINGS, Calls, Lengths, in_bytes, loaders, make, train, trained

pytestmark = pytest.mark.filterwarnings(*WARNINGS)

# A number is logged in float32.
TOLERANCE = 1e-6


@pytest.fixture
def module(checkpoints: dict[str, Path]) -> Lengths:
    return Lengths(checkpoints["bert"])


def callback(module: Lengths, **options: Any) -> probing.ProbingCallback:
    return probing.ProbingCallback(SENTENCES, module.tokenizer, **{**OPTIONS, **options})


def draws() -> tuple[Any, ...]:
    """Return what the random generators give next."""
    return random.random(), float(np.random.random()), float(torch.rand(1))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="each epoch", marks=pytest.mark.slow),
        pytest.param({"accumulate_grad_batches": 4, "val_check_interval": 3}, id="amid accumulation"),
        pytest.param({"precision": "bf16-mixed", "deterministic": True}, id="bf16", marks=pytest.mark.slow),
    ],
)
def test_the_training_is_the_same_to_the_byte(checkpoints: dict[str, Path], options: dict[str, Any]) -> None:
    ends, folder = [], checkpoints["bert"]
    for probes in (True, False):
        random.seed(7)
        np.random.seed(7)
        torch.manual_seed(1)
        module = Lengths(folder)
        trainer = train(module, [callback(module, rotations=19)] if probes else [], **options)
        hooks = [len(part._forward_hooks) + len(part._forward_pre_hooks) for part in module.modules()]
        needed = [one.requires_grad for one in module.parameters()]
        states = in_bytes(module.state_dict()), in_bytes(trainer.optimizers[0].state_dict())
        gradients = in_bytes([one.grad for one in module.parameters()])
        ends.append((states, gradients, module.modes, hooks, needed, draws()))
        for name in ("accuracy", "first_10_share_directions"):
            assert (f"probe/layer_03/{name}" in trainer.callback_metrics) is probes
    assert len(set(map(str, module.modes))) == 1
    assert {True, False} == {*module.modes[0]}
    assert ends[0] == ends[1]


@pytest.mark.slow
def test_the_numbers_are_those_of_the_commands_on_the_checkpoint_of_the_moment(module: Lengths, tmp_path: Path) -> None:
    logged = []

    def save(trainer: pl.Trainer, module: Any) -> None:
        logged.append({name: float(value) for name, value in trainer.callback_metrics.items()})
        module.encoder.save_pretrained(folder := tmp_path / f"step-{trainer.global_step}")
        module.tokenizer.save_pretrained(folder)

    train(module, [callback(module, rotations=20), Calls(save)])
    folders = sorted(tmp_path.glob("step-*"), key=lambda path: int(path.name[5:]))
    assert len(logged) == len(folders) == 2
    for folder, found in zip(folders, logged, strict=True):
        how = {**BARE, "corpus": SENTENCES, "layer": [1, 3], "quiet": True, "runs": str(tmp_path / "runs")}
        how |= {"controls": "shuffled", "probe": {"l2": 0.1}, "evidence": "all"}
        run = probing.fit(model=folder, **how, name=folder.name)
        measured: Any = probing.geometry(
            model=folder, corpus=SENTENCES, layer=[1, 3], transforms="none", quiet=True, runs=str(tmp_path / "runs")
        )
        for row in run.accuracy:
            for name in ("accuracy", "optimality_gap", "shuffled_accuracy"):
                assert found[f"probe/layer_{row['layer']:02d}/{name}"] == pytest.approx(row[name], abs=TOLERANCE)
            assert found["probe/majority_accuracy"] == pytest.approx(row["majority_accuracy"], abs=TOLERANCE)
            assert 0 < row["optimality_gap"] < 3e-6
        plain = [row for row in run.basis if row["kind"] == "plain"]
        assert len(plain) == 2
        for row in plain:
            for name in ("first_10_share", "first_10_share_directions", "first_10_share_p", "n_above"):
                assert found[f"probe/layer_{row['layer']:02d}/{name}"] == pytest.approx(row[name], abs=TOLERANCE)
        for row in measured.geometry:
            if row["measure"] == "mean_cosine":
                assert found[f"probe/layer_{row['layer']:02d}/mean_cosine"] == pytest.approx(
                    row["value"], abs=TOLERANCE
                )
    assert logged[0]["probe/layer_03/accuracy"] != logged[1]["probe/layer_03/accuracy"]


class Kept(Lengths):
    """Keeps the model that each validation of the training uses."""

    def __init__(self, folder: Path, kept: Path) -> None:
        super().__init__(folder)
        self.kept = kept

    def validation_step(self, batch: Any, index: int) -> None:
        super().validation_step(batch, index)
        self.encoder.save_pretrained(self.kept)
        self.tokenizer.save_pretrained(self.kept)


@pytest.mark.slow
def test_the_weights_that_the_validation_used_are_measured_whatever_the_order_of_callbacks(
    checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    found = []
    for name, place in (("raw", None), ("before", 0), ("after", 1)):
        torch.manual_seed(1)
        module = Kept(checkpoints["bert"], tmp_path / name)
        callbacks: list[pl.Callback] = [callback(module)]
        if place is not None:
            # The mean of the buffer of positions, whole numbers, would be rounded down.
            callbacks.insert(place, EMAWeightAveraging(decay=0.9, use_buffers=False))
        trainer = train(module, callbacks)
        found.append({key: float(value) for key, value in trainer.callback_metrics.items() if "probe" in key})
    raw, before, after = found
    assert before == after != raw
    run = probing.fit(
        model=tmp_path / "after", quiet=True, runs=str(tmp_path / "runs"),
        **{**BARE, "corpus": SENTENCES, "layer": [1, 3], "controls": "shuffled", "probe": {"l2": 0.1}},
    )  # fmt: skip
    for row in run.accuracy:
        for name in ("accuracy", "optimality_gap"):
            assert after[f"probe/layer_{row['layer']:02d}/{name}"] == pytest.approx(row[name], abs=TOLERANCE)


@pytest.mark.slow
def test_every_logger_has_the_numbers_and_checkpoints_are_kept_by_them(module: Lengths, tmp_path: Path) -> None:
    loggers = [CSVLogger(tmp_path, "a"), CSVLogger(tmp_path, "b")]
    best = ModelCheckpoint(tmp_path / "best", "best", monitor="probe/layer_01/accuracy", mode="max")
    train(module, [callback(module), best], logger=loggers, enable_checkpointing=True, log_every_n_steps=1)
    for logger in loggers:
        header, *rows = (Path(logger.log_dir) / "metrics.csv").read_text(encoding="utf-8").splitlines()
        column, step = header.split(",").index("probe/layer_01/accuracy"), header.split(",").index("step")
        kept = [(int(row.split(",")[step]), float(row.split(",")[column])) for row in rows if row.split(",")[column]]
        assert [at for at, _ in kept] == [5, 11]
    assert best.best_model_score == pytest.approx(max(value for _, value in kept), abs=TOLERANCE)


@pytest.mark.slow
def test_a_training_that_is_continued_measures_at_the_same_steps(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    def steps(until: int, start: str | None = None) -> list[int]:
        at: list[int] = []
        module = Lengths(checkpoints["bert"])
        seen: dict[str, Any] = {}

        def note(trainer: pl.Trainer, module: Any) -> None:
            value = trainer.callback_metrics.get("probe/layer_01/mean_cosine")
            if value is not None and float(value) != seen.get("last"):
                at.append(trainer.global_step)
                seen["last"] = float(value)

        torch.manual_seed(3)
        trainer = pl.Trainer(
            accelerator="cpu", devices=1, max_epochs=until, logger=False, enable_progress_bar=False,
            enable_checkpointing=False, enable_model_summary=False, val_check_interval=2,
            callbacks=[callback(module, every_n_validations=2, controls="none"), Calls(note)],
        )  # fmt: skip
        trainer.fit(module, *loaders(), ckpt_path=start, weights_only=False if start else None)
        trainer.save_checkpoint(tmp_path / f"{until}.ckpt")
        return at

    # Of three validations an epoch, at every second step.
    assert steps(2) == [4, 8, 12]
    assert steps(1) == [4]
    assert steps(2, str(tmp_path / "1.ckpt")) == [8, 12]


def test_nothing_is_said_and_nothing_is_left_on_the_disk(
    module: Lengths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    probes = callback(module)
    capfd.readouterr()
    probes.prepare(module, module.tokenizer, torch.device("cpu"))
    assert probes.measured(module, module.tokenizer, torch.device("cpu"))
    assert capfd.readouterr() == ("", "")
    assert [path.name for path in tmp_path.rglob("*")] == ["temporary"]


def test_an_error_leaves_the_module_and_the_generators_as_they_are(module: Lengths) -> None:
    probes, device = callback(module), torch.device("cpu")
    probes.prepare(module, module.tokenizer, device)
    with torch.no_grad():
        module.encoder.encoder.layer[0].output.dense.weight.fill_(torch.nan)
    torch.manual_seed(5)
    expected, before = draws_of(5), in_bytes(module.state_dict())
    modes = [part.training for part in module.modules()]
    with torch.inference_mode():
        with pytest.raises(RunError, match=r"encoder\.layer\.0\.output\.dense\.weight` of the BertModel is not finite"):
            probes.measured(module, module.tokenizer, device)
        assert torch.is_inference_mode_enabled()
    assert float(torch.rand(1)) == expected
    assert [part.training for part in module.modules()] == modes
    assert in_bytes(module.state_dict()) == before


def draws_of(seed: int) -> float:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return float(torch.rand(1))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"layer": 4}, r"has layers 0 \(embeddings\) to 3, so not 4"),
        ({"layer": 0, "site": "mlp"}, "layer k is inside block k"),
        ({"task": "sentence_label"}, "label"),
        ({"task": "upos"}, "upos"),
        ({"model": "norm"}, r"is of type BatchNorm1d.*`encoder` \(BertModel\)"),
        ({"model": "decoder"}, r"no such attribute; there is `encoder` \(BertModel\)"),
        ({"tokenizer": None}, "give its tokenizer too"),
        ({"max_length": 4000}, "--max_length 4000"),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value)),
)
def test_a_mistake_is_refused_before_the_first_step(module: Lengths, options: dict[str, Any], words: str) -> None:
    tokenizer = options.pop("tokenizer", module.tokenizer)
    probes = probing.ProbingCallback(SENTENCES, tokenizer, **{**OPTIONS, **options})
    with pytest.raises(probing.UserError, match=words) as error:
        train(module, [probes])
    assert module.modes == []
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"every_n_validations": 0}, "every_n_validations=0"),
        ({"task": "positoin"}, "did you mean `?position"),
        ({"controls": "shufled"}, "shufled"),
        ({"probe": {"l3": 1}}, "l3"),
        ({"probe": {"l2": 0}}, "l2"),
        ({"layer": "six"}, "six"),
        ({"seed": -1}, "seed"),
        ({"rotations": 5}, "`rotations=5`: expected 0, or at least 19"),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value)),
)
def test_a_wrong_option_is_refused_where_it_is_given(options: dict[str, Any], words: str) -> None:
    with pytest.raises(probing.UserError, match=words):
        probing.ProbingCallback(SENTENCES, **options)
    with pytest.raises(probing.UserError, match="no_such_file"):
        probing.ProbingCallback("no_such_file.txt")


def test_a_module_without_validation_is_refused(module: Lengths) -> None:
    with pytest.raises(probing.UserError, match="measures at validations, and this training has none"):
        train(module, [callback(module)], limit_val_batches=0)


class Two(nn.Module):
    """A module with two models in it, one of which is wrapped."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.teacher, self.student = Lengths(folder).encoder, nn.Sequential(Lengths(folder).encoder)


def test_the_model_is_found_by_itself_by_name_or_by_a_function(checkpoints: dict[str, Path]) -> None:
    from probing.callbacks import find_in

    module = Two(checkpoints["bert"])
    with pytest.raises(probing.UserError, match=r"`teacher` \(BertModel\), `student.0` \(BertModel\).*model='teacher'"):
        find_in(module)
    assert find_in(module, "teacher") is find_in(module.teacher) is module.teacher
    assert find_in(module, "student") is find_in(module, lambda both: both.student[0]) is module.student[0]
    with pytest.raises(probing.UserError, match="no part of the Linear is a PreTrainedModel"):
        find_in(nn.Linear(1, 1))


def test_a_hook_that_was_added_later_is_refused(module: Lengths) -> None:
    probes, device = callback(module), torch.device("cpu")
    probes.prepare(module, module.tokenizer, device)
    module.encoder.pooler.register_forward_hook(lambda part, given, found: found)
    with pytest.raises(probing.UserError, match="a hook on `pooler`"):
        probes.measured(module, module.tokenizer, device)


@pytest.mark.slow
def test_with_enough_test_sentences_an_accuracy_has_its_interval(module: Lengths) -> None:
    def found(n: int) -> dict[str, float]:
        probes = callback(module, layer=2, controls="none", test_corpus=make_sentences(n, seed=9, longest=16))
        return probes.measured(module, module.tokenizer, torch.device("cpu"))

    few, enough = found(19), found(20)
    ends = {"probe/layer_02/accuracy_low", "probe/layer_02/accuracy_high"}
    assert {*enough} - {*few} == ends
    low, high = sorted(enough[name] for name in ends)
    assert low < enough["probe/layer_02/accuracy"] < high


BESIDE = {"first_10_share", "first_10_share_directions", "first_10_share_p", "n_above"}


@pytest.mark.slow
@pytest.mark.parametrize("bias", [False, True])
def test_neurons_are_compared_with_directions_if_asked_for_and_at_the_optimum(module: Lengths, bias: bool) -> None:
    def found(rotations: int, **probe: Any) -> dict[str, float]:
        probes = callback(module, controls="none", rotations=rotations, probe={"l2": 0.1, "bias": bias, **probe})
        return probes.measured(module, module.tokenizer, torch.device("cpu"))

    without, beside = found(0), found(20)
    names = {f"probe/layer_{layer:02d}/{name}" for layer in (1, 3) for name in BESIDE}
    assert {*beside} - {*without} == names
    for layer in (1, 3):
        share, p, n = (
            beside[f"probe/layer_{layer:02d}/{end}"] for end in ("first_10_share", "first_10_share_p", "n_above")
        )
        assert 10 / 16 <= share < 1  # of 16 neurons
        assert p in [pytest.approx(k / 21) for k in range(1, 22)]
        assert n in range(17)
    assert {name: value for name, value in beside.items() if name not in names} == without
    if not bias:
        assert not names & {*found(20, solver="adam")}  # which seldom comes so near


def test_numbers_and_other_tasks_are_logged_under_their_own_names(module: Lengths, tmp_path: Path) -> None:
    rows = "".join(f"{sentence}\t{len(sentence) / 7}\n" for sentence in SENTENCES)
    (tmp_path / "lengths.tsv").write_text(f"sentence\tlength\n{rows}", encoding="utf-8")
    probes = probing.ProbingCallback(
        str(tmp_path / "lengths.tsv"), module.tokenizer, [1, 3], task="sentence_label", name="length",
        task_args={"column": "length", "numbers": True}, probe={"bias": True}, rotations=20,
    )  # fmt: skip
    found = probes.measured(module, module.tokenizer, torch.device("cpu"))
    names = {"r2", "relative_gradient", "shuffled_r2", "outlier_dimensions", "mean_cosine", *BESIDE}
    assert {*found} == {f"length/layer_{layer:02d}/{name}" for layer in (1, 3) for name in names}
    assert found["length/layer_01/r2"] > found["length/layer_01/shuffled_r2"]


class Sets(TrainerCallback):
    """Notes what `on_log` is given, as what `report_to` names is."""

    def __init__(self) -> None:
        self.logged: list[tuple[int, dict[str, float]]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **others: Any) -> None:
        self.logged.append((state.global_step, dict(logs)))


def probes(**options: Any) -> probing.ProbingCallback:
    return probing.ProbingCallback(SENTENCES, **{**OPTIONS, **options})


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"gradient_accumulation_steps": 2, "bf16": True}], ids=["float32", "bf16"])
def test_the_training_is_the_same_to_the_byte_by_transformers(
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


@pytest.mark.slow
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


@pytest.mark.slow
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
def test_a_mistake_is_refused_before_the_first_step_by_transformers(
    checkpoints: dict[str, Path], tmp_path: Path, options: dict[str, Any], of_trainer: dict[str, Any], words: str
) -> None:
    trainer = make(checkpoints["bert"], tmp_path, **of_trainer)
    trainer.add_callback(probes(**options).for_trainer(trainer))
    with pytest.raises(probing.UserError, match=words):
        trainer.train()
    assert trainer.state.global_step == 0


def train_by_lightning(folder: Path, place: Path, layer: int) -> tuple[Any, Any, Any]:
    """Return what is logged, or the error, the bytes of the weights, and those of a training without the callback."""
    import warnings

    import torch

    import probing
    from tiny_models import OPTIONS, SENTENCES, Calls, Lengths, in_bytes, train

    warnings.simplefilter("ignore")
    found, ends = [], []

    def note(trainer: Any, module: Any) -> None:
        if trainer.is_global_zero:
            module.encoder.save_pretrained(place / str(trainer.global_step))
            module.tokenizer.save_pretrained(place / str(trainer.global_step))
        found.append({name: float(value) for name, value in trainer.callback_metrics.items() if "probe" in name})

    for probed in (True, False):
        torch.manual_seed(1)
        module = Lengths(folder)
        callbacks: list[Any] = [Calls(note)]
        if probed:
            callbacks.insert(0, probing.ProbingCallback(SENTENCES, module.tokenizer, **{**OPTIONS, "layer": layer}))
        try:
            train(module, callbacks if probed else [], devices=2, strategy="ddp_find_unused_parameters_true")
        except Exception as error:
            return type(error).__name__, str(error), module.modes
        ends.append(in_bytes(module.state_dict()))
    return found, ends[0], ends[1]


@pytest.mark.slow
def test_two_processes_of_lightning_have_the_numbers_of_fit(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    import probing
    from conftest import BARE
    from tiny_models import SENTENCES

    first, second = in_two_ranks(train_by_lightning, checkpoints["bert"], tmp_path, 3)
    assert first.found == second.found
    logged, with_probes, without = first.found
    assert with_probes == without
    folders = sorted(tmp_path.iterdir(), key=lambda path: int(path.name))
    assert [path.name for path in folders] == ["3", "6"]
    for folder, found in zip(folders, logged, strict=True):
        how = {**BARE, "corpus": SENTENCES, "controls": "shuffled", "probe": {"l2": 0.1}}
        (row,) = probing.fit(model=folder, layer=3, quiet=True, runs=str(tmp_path / "runs"), **how).accuracy
        for name in ("accuracy", "optimality_gap", "shuffled_accuracy"):
            assert found[f"probe/layer_03/{name}"] == pytest.approx(row[name], abs=1e-6)


@pytest.mark.slow
def test_two_processes_refuse_a_mistake_together(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    for rank in in_two_ranks(train_by_lightning, checkpoints["bert"], tmp_path, 4):
        kind, message, steps = rank.found
        assert (kind, steps) == ("UserError", [])
        assert "has layers 0 (embeddings) to 3, so not 4" in message


def train_by_transformers(folder: Path, place: Path) -> tuple[list[Any], Any, Any]:
    """Return what is logged, the bytes of the weights, and those of a training without the callback."""
    import warnings

    import probing
    from tiny_models import OPTIONS, SENTENCES, in_bytes, make, trained

    warnings.simplefilter("ignore")
    logged, ends = [], []
    for probed in (True, False):
        trainer = make(folder, place)
        if probed:
            trainer.add_callback(probing.ProbingCallback(SENTENCES, **OPTIONS).for_trainer(trainer))
        trainer.train()
        ends.append(in_bytes(trained(trainer).state_dict()))
        logged += [
            {name: value for name, value in row.items() if "probe" in name}
            for row in trainer.state.log_history
            if any("probe" in name for name in row)
        ]
    return logged, ends[0], ends[1]


@pytest.mark.slow
def test_two_processes_of_transformers_have_the_same_numbers(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    first, second = in_two_ranks(train_by_transformers, checkpoints["bert"], tmp_path)
    assert first.found == second.found
    logged, with_probes, without = first.found
    assert with_probes == without
    assert len(logged) == 2
    assert logged[0] != logged[1]


SWITCHES: Any = torch.backends.cuda, torch.backends.mkldnn


def precision() -> tuple[str, ...]:
    return tuple(one.matmul.fp32_precision for one in SWITCHES)


def state() -> dict[str, Any]:
    """Return what a training goes on with."""
    return {
        "python": random.getstate(), "numpy": str(np.random.get_state()), "torch": torch.get_rng_state().tolist(),
        "grad": torch.is_grad_enabled(), "inference": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"), "dtype": torch.get_default_dtype(),
        "deterministic": torch.are_deterministic_algorithms_enabled(), "benchmark": torch.backends.cudnn.benchmark,
        "precision": precision(), "threads": torch.get_num_threads(), "environment": dict(os.environ),
        "warnings": list(warnings.filters), "frozen": gc.get_freeze_count() > 0,
    }  # fmt: skip


@pytest.fixture
def training() -> Iterator[None]:
    """A process as trainings set it up, which differs in everything from one that was just started."""
    before = precision()
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("medium")
    torch.set_default_dtype(torch.bfloat16)
    with torch.random.fork_rng(), torch.autocast("cpu"), torch.inference_mode():
        yield
    torch.set_default_dtype(torch.float32)
    torch.set_float32_matmul_precision("highest")
    for one, value in zip(SWITCHES, before, strict=True):
        one.matmul.fp32_precision = value
    torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(False)


def disturb() -> None:
    """Change all of it, as the core and Lightning may."""
    random.random(), np.random.random(), torch.rand(1)
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.benchmark = False
    torch.set_num_threads(torch.get_num_threads() + 1)
    torch.set_default_dtype(torch.float64)
    os.environ["SET_BY_A_LIBRARY"] = "1"
    os.environ.pop("OMP_NUM_THREADS", None)
    warnings.simplefilter("ignore")


def disturbed(error: type[BaseException] | None) -> None:
    with without_traces():
        disturb()
        if error is not None:
            raise error


@pytest.mark.parametrize("error", [None, RuntimeError, KeyboardInterrupt])
def test_the_state_of_the_process_is_restored(training: None, error: type[BaseException] | None) -> None:
    before = state()
    with nullcontext() if error is None else pytest.raises(error):
        disturbed(error)
    assert state() == before


def test_inside_a_process_is_as_a_command_finds_it(training: None) -> None:
    with without_traces():
        weight = torch.ones(3, 3, requires_grad=True)
        (weight @ weight).sum().backward()
        assert (weight.dtype, weight.grad is not None, torch.is_inference(weight)) == (torch.float32, True, False)
        assert (weight @ weight).dtype == torch.float32  # and not autocast's
        assert torch.get_float32_matmul_precision() == "highest"
        assert precision() == ("ieee", "ieee")
    assert torch.get_float32_matmul_precision() == "medium"


def test_switches_that_were_set_one_by_one_are_restored_as_such() -> None:
    before = precision()
    try:
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        with without_traces():
            assert precision() == ("ieee", "ieee")
        assert precision() == ("tf32", before[1])
    finally:
        torch.backends.cuda.matmul.fp32_precision = before[0]
    assert torch.get_float32_matmul_precision() == "highest"
