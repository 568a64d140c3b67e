"""The loss of a checkpoint is what its training wrote of that step."""

from __future__ import annotations

import json
from pathlib import Path

from probing.studies.series.survey import Checkpoint, loss_rows


def told(folder: Path, step: int) -> dict[str, float]:
    return {row["measure"]: row["value"] for row in loss_rows([Checkpoint(step, folder.name, str(folder))])}


def test_a_run_of_pretrain_tells_the_loss_of_its_arm_seed_and_step(tmp_path: Path) -> None:
    columns = "arm,seed,step,train_loss,loss,unigram_loss"
    rows = ["learned,0,0,,5.9,5.1", "learned,0,64,4,3.5,5.1", "none,0,64,4,4.6,5.1", "learned,1,64,4,3.4,5.2"]
    (tmp_path / "losses.csv").write_text("\n".join([columns, *rows]) + "\n", encoding="utf-8")
    place = tmp_path / "checkpoints"
    assert told(place / "learned-seed0" / "step0064", 64) == {"held_out_loss": 3.5, "unigram_loss": 5.1}
    assert told(place / "none-seed0" / "step0064", 64) == {"held_out_loss": 4.6, "unigram_loss": 5.1}
    assert told(place / "learned-seed1" / "step0064", 64) == {"held_out_loss": 3.4, "unigram_loss": 5.2}
    assert told(place / "learned-seed0" / "step0128", 128) == {}
    assert told(tmp_path / "learned-seed0" / "step0064", 64) == {}


def test_the_trainer_of_transformers_tells_the_loss_at_the_step_of_the_checkpoint(tmp_path: Path) -> None:
    history = [{"step": 5, "loss": 9.0}, {"step": 5, "eval_loss": 4.0}, {"step": 10, "eval_loss": 3.0}]
    state = tmp_path / "trainer_state.json"
    state.write_text(json.dumps({"log_history": history}), encoding="utf-8")
    assert told(tmp_path, 5) == {"held_out_loss": 4.0}
    assert told(tmp_path, 10) == {"held_out_loss": 3.0}
    assert told(tmp_path, 15) == {}
    for content in ("", "[1]", '{"log_history": []}'):
        state.write_text(content, encoding="utf-8")
        assert told(tmp_path, 5) == {}
    assert loss_rows([Checkpoint(0, "step0", "pythia", "step0")]) == []
