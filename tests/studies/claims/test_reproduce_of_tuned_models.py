"""`reproduce` with claims on tuned models, which it tunes itself: on labels that are given, and on any text."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from conftest import make_sentences
from probing import Result, load_run, reproduce

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
NO_WANDB: Any = {"mode": "disabled"}


@pytest.fixture(scope="module")
def labels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sentences, half of which end in `probe`, with a label that says so."""
    path = tmp_path_factory.mktemp("labels") / "labels.csv"
    texts = [" ".join(word for word in one.split() if word != "probe") for one in make_sentences(700, longest=8)]
    rows = [(f"{one} {'probe' if i % 2 else 'layer'}", "yes" if i % 2 else "no") for i, one in enumerate(texts)]
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    return path


def made(paper: str, model: Path, runs: Path, claims: str, **options: Any) -> tuple[Result, dict[int, dict[str, Any]]]:
    found = reproduce(paper, models=str(model), claims=claims, runs=str(runs), wandb=NO_WANDB, **options)
    assert found is not None
    return found, {row["id"]: row for row in found.claims if row["model"] == str(model)}


def test_claims_on_tuned_models_are_measured_on_labels_and_their_runs_are_taken_again(
    checkpoints: dict[str, Path], labels: Path, corpus_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, Any] = {"model": checkpoints["bert"], "runs": tmp_path / "runs", "corpus": str(corpus_file)}
    found, rows = made("kovaleva2019", claims="4,5,9,10", labels=str(labels), **options)
    assert {number for number, row in rows.items() if "measured" in row} == {4, 5, 9, 10}
    assert capsys.readouterr().err.count("run ") >= 4
    folders = found.results["runs"][str(checkpoints["bert"])]
    tuned = load_run(folders["tuned"])
    assert {row["answer"] for row in tuned.scores} == {"pretrained", "random", "shuffled", "majority", "bag"}
    by_pair = {(row["answer"], row["against"]): row["difference"] for row in tuned.differences}
    assert rows[5]["measured"] == min(by_pair["pretrained", "majority"], by_pair["pretrained", "random"])
    without = load_run(folders["disabled_task"])
    (layer,) = (row for row in without.disabled if row["unit"] == "1" and row["layer"] == 3)
    assert rows[10]["measured"] == layer["effect"]
    assert rows[9]["command"].startswith("python -m probing finetune ")
    assert f" && python -m probing disable --readouts task={folders['tuned']}/checkpoints/" in rows[9]["command"]
    _, again = made("kovaleva2019", claims="4,5,9,10", labels=str(labels), **options)
    assert capsys.readouterr().err.count(": read from ") == 4
    assert again == rows
    # Another paper reads the same tuning, from more starts than it needs.
    _, others = made("bertology", claims="32-34", labels=str(labels), **options)
    assert {number for number, row in others.items() if "measured" in row} == {32, 33, 34}
    assert others[34]["measured"] == rows[4]["measured"]
    assert all(0 <= others[number]["measured"] <= 1 for number in (32, 33))
    assert capsys.readouterr().err.count("run 1 of 1") == 1


def test_without_labels_a_model_is_tuned_on_positions_and_a_layer_that_it_does_not_have_is_named(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path
) -> None:
    found, rows = made("shi2022", checkpoints["bert"], tmp_path, "2", corpus=str(corpus_file), quiet=True)
    assert "`--tuning.layer -4`: " in rows[2]["lacking"]
    assert "has 3 blocks" in rows[2]["lacking"]
    folders = found.results["runs"][str(checkpoints["bert"])]
    assert set(folders) == {
        f"{what}_{on}" for what in ("head", "similarity") for on in ("on_last", "1_below", "2_below")
    }
    assert load_run(folders["head_2_below"]).config["task"] == "position_from_end"
    for on, n_layers in {"on_last": 3, "2_below": 1}.items():
        assert max(row["layer"] for row in load_run(folders[f"similarity_{on}"]).geometry) == n_layers
