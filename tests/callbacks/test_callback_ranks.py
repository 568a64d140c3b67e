"""Probes while two processes train: both have the same numbers, and the weights are those without the callback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fault_loop import in_two_ranks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*LeafSpec.*:FutureWarning"),
]


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


def test_two_processes_of_transformers_have_the_same_numbers(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    first, second = in_two_ranks(train_by_transformers, checkpoints["bert"], tmp_path)
    assert first.found == second.found
    logged, with_probes, without = first.found
    assert with_probes == without
    assert len(logged) == 2
    assert logged[0] != logged[1]
