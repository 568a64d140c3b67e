"""`geometry --smoothing_bound --norms --path` from end to end on tiny models."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from families import masked_lm
from probing import WandbOptions
from probing.__main__ import COMMANDS
from probing.cli.commandline import run
from probing.runs import Result
from probing.studies.geometry import geometry
from probing.studies.geometry.inside import inside_conclusions
from synthetic import LIGHTNING_WARNINGS
from wandb_stand_in import read_offline_runs
from written import read_csv

pytestmark = [
    pytest.mark.numeric,
    pytest.mark.usefixtures("few_passes"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", *LIGHTNING_WARNINGS),
]

PLANTED = 3
# What is not looked at here costs most.
LEAN: dict[str, Any] = {"transforms": "none", "definition": "argmin_share", "draws": 1, "quiet": True}
N_SENTENCES = 60


@pytest.fixture(scope="module")
def made(place: Path, bent: Path, short_text: Path) -> Result:
    found = geometry(
        str(bent), "1,2", corpus=str(short_text), runs=str(place / "runs"), name="g", smoothing_bound=True,
        wandb=WandbOptions("offline"), **LEAN,
    )  # fmt: skip
    assert found is not None
    return found


@pytest.mark.slow
def test_the_bound_holds_on_every_sentence_and_the_folder_holds_each_of_them(made: Result, bent: Path) -> None:
    blocks = {row["layer"] for row in made.smoothing}
    assert blocks == {1, 2, 3}  # the theorem is about all blocks, whatever --layer
    for row in made.smoothing:
        if row["measure"] in ("share_within_bound", "share_within_bound_per_matrix"):
            assert (row["value"], row["n_sentences"]) == (1, N_SENTENCES)
    with (made.folder / "smoothing_sentences.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(int(row["sentence"]), int(row["layer"])) for row in rows] == [
        (i, k) for i in range(N_SENTENCES) for k in (1, 2, 3)
    ]
    first = [float(row["sigma_1"]) * float(row["sigma_2"]) for row in rows if row["layer"] == "1"]
    (mean,) = [r["value"] for r in made.smoothing if (r["layer"], r["measure"]) == (1, "sigma_product")]
    assert np.mean(first) == pytest.approx(mean)


@pytest.mark.slow
def test_tables_figures_and_sentences_are_where_the_others_are(made: Result, capsys: Any) -> None:
    for name in ("smoothing",):
        rows, stored = getattr(made, name), read_csv(made.folder / f"{name}.csv")
        assert len(stored) == len(rows) > 0
        for row, again in zip(rows, stored, strict=True):
            # An empty end of an interval is read as one that is not defined.
            given, read = ({k: str(v) for k, v in one.items() if str(v) not in ("", "nan")} for one in (row, again))
            assert read == given
    figures = {path.name for path in (made.folder / "figures").iterdir()}
    assert {"smoothing_bound.png", "smoothing_bound.pdf"} <= figures
    assert "Theorem 2" in repr(made)
    (bound,) = inside_conclusions({"smoothing": made.smoothing})
    assert "Theorem 2 holds on all of them" in bound
    (tracked,) = read_offline_runs(made.folder)
    assert all(tracked.rows(key) for key in ("smoothing", "figures/smoothing_bound"))


def ask(*args: str) -> list[str]:
    return ["geometry", "--transforms=none", "--draws=2", "--wandb.mode=disabled", *args]


@pytest.mark.slow
def test_what_does_not_apply_is_said_and_leaves_no_table(
    checkpoints: dict[str, Path], short_text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = [f"--model={checkpoints['gpt2']}", f"--corpus={short_text}", f"--runs={tmp_path}", "--name=g"]
    assert run(COMMANDS, ask("--smoothing_bound", "--layer=1", *args)) == 0
    said = capsys.readouterr().err
    assert "--smoothing_bound does not apply" in said
    assert "post-LN" in said
    assert not {"smoothing.csv", "smoothing_sentences.csv"} & {path.name for path in (tmp_path / "g").iterdir()}


TABLES = ("norms", "norm_changes", "path", "first_row")


@pytest.fixture(scope="module")
def stream_made(place: Path, short_text: Path, sentences: list[str]) -> Result:
    """Measure a model with a head for masked words, whose second norms make one neuron the smallest of all tokens."""
    from transformers import AutoModelForMaskedLM

    folder = masked_lm(place / "bent", "bert", sentences)
    model: Any = AutoModelForMaskedLM.from_pretrained(folder)
    with torch.no_grad():
        for block in model.base_model.encoder.layer:
            block.output.LayerNorm.bias[PLANTED] = -6
    model.save_pretrained(folder)
    found = geometry(
        str(folder), "1,2", corpus=str(short_text), runs=str(place / "runs"), name="stream", norms=True, path=True,
        transforms="none", definition="argmin_share", draws=2, quiet=True, wandb=WandbOptions("offline"),
    )  # fmt: skip
    assert found is not None
    return found


@pytest.mark.slow
def test_the_planted_bias_is_traced_and_its_removal_measured_beside_random_neurons(stream_made: Result) -> None:
    terms = {(row["layer"], row["norm"]): row for row in stream_made.norms if row["neuron"] == PLANTED}
    assert set(terms) == {(k, n) for k in (1, 2, 3) for n in (1, 2)}
    assert {terms[k, 2]["largest"] for k in (1, 2, 3)} == {"bias"}
    assert sum(row["kind"] == "random" for row in stream_made.norms) == 6 * 10
    changes = [row for row in stream_made.norm_changes if row["measure"] == "deviations"]
    value = {(r["layer"], r["where"]): r["value"] for r in changes if r["kind"] in ("intact", "outliers")}
    for layer in (1, 2):
        assert value[layer, ""] < -3
        assert abs(value[layer, "second"]) < 2
        assert abs(value[layer, "first"]) > abs(value[layer, "second"])
    others = {row["measure"] for row in stream_made.norm_changes} - {"deviations"}
    assert others == {"mlm_loss", "position_accuracy", "position_accuracy_retrained"}
    for measure in others:
        kinds = [row["kind"] for row in stream_made.norm_changes if row["measure"] == measure]
        assert (kinds.count("intact"), kinds.count("outliers"), kinds.count("random")) == (1, 3, 6)


@pytest.mark.slow
def test_the_path_follows_it_through_every_block(stream_made: Result) -> None:
    at = {(r["layer"], r["site"]): r for r in stream_made.path if (r["neuron"], r["tokens"]) == (PLANTED, "words")}
    assert len(at) == 5 + 3 * 6
    # A value of the bias of the norm alone is in the second norms, and enters the next block from there.
    assert all(at[k, "norm_2"]["deviations"] < at[k, "sum_feed_forward"]["deviations"] - 1 for k in (1, 2, 3))
    assert {row["kind"] for row in stream_made.path} == {"layers", "random"}


@pytest.mark.slow
def test_tables_figures_and_sentences_have_them(stream_made: Result) -> None:
    for name in TABLES:
        rows, stored = getattr(stream_made, name), read_csv(stream_made.folder / f"{name}.csv")
        assert len(stored) == len(rows) > 0
        for row, again in zip(rows, stored, strict=True):
            # An empty end of an interval is read as one that is not defined.
            given, read = ({k: str(v) for k, v in one.items() if str(v) not in ("", "nan")} for one in (row, again))
            assert read == given
    figures = {path.name for path in (stream_made.folder / "figures").iterdir()}
    assert {f"{name}.{form}" for name in TABLES if name != "first_row" for form in ("png", "pdf")} <= figures
    shown = repr(stream_made)
    assert all(part in shown for part in ("Terms of outliers", "Outliers in sd", "on the residual stream"))
    said = stream_made.conclusions()
    for start in ("Above the embeddings,", "Loss on masked words", "Accuracy of position", "10 random neurons are"):
        assert any(line.startswith(start) for line in said), start
    (tracked,) = read_offline_runs(stream_made.folder)
    assert all(tracked.rows(key) for key in (*TABLES, *(f"figures/{name}" for name in TABLES[:-1])))


@pytest.mark.slow
def test_a_model_without_outliers_is_told_so_and_has_no_table(
    checkpoints: dict[str, Path], short_text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = [f"--model={checkpoints['gpt2']}", f"--corpus={short_text}", f"--runs={tmp_path}", "--name=g"]
    options = ["--norms", "--path", "--layer=1", "--transforms=none", "--draws=2", "--wandb.mode=disabled"]
    assert run(COMMANDS, ["geometry", *options, *args]) == 0
    said = capsys.readouterr().err
    # A model of 16 neurons has no outlier by the default definition.
    assert "--norms: no outlier dimension was found above the embeddings" in said
    assert "--path: neither the first position nor any layer has an outlier to follow" in said
    assert not {f"{name}.csv" for name in TABLES} & {path.name for path in (tmp_path / "g").iterdir()}


@pytest.mark.parametrize(
    ("family", "option", "reason"),
    [
        ("xlnet", "--norms", "the norms of its blocks cannot be told"),
        ("xlnet", "--path", "the terms of its residual stream cannot be told"),
        ("modernbert", "--norms", "block 1 has 1 norm as wide as its hidden states, where 2 are expected"),
    ],
)
def test_models_whose_parts_cannot_be_told_are_refused_before_any_work(
    family: str, option: str, reason: str, checkpoints: dict[str, Path], short_text: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    args = [f"--model={checkpoints[family]}", f"--corpus={short_text}", f"--runs={tmp_path}"]
    assert run(COMMANDS, ["geometry", option, "--wandb.mode=disabled", *args]) == 2
    said = capsys.readouterr().err
    assert f"`{option}`: " in said
    assert reason in said
    assert f"({family})" in said
    assert "leave the option out, or choose another model" in said
    assert not list(tmp_path.rglob("*.safetensors"))
    assert not list(tmp_path.glob("*geometry*"))
