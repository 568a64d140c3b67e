"""`geometry --norms --path` from end to end on tiny models, and models in which neither can be told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from families import masked_lm
from probing import WandbOptions
from probing.__main__ import COMMANDS
from probing.cli.commandline import run
from probing.readouts import model_output as readouts
from probing.runs.study import Result
from probing.studies.geometry.command import geometry
from synthetic import LIGHTNING_WARNINGS
from wandb_stand_in import read_offline_runs
from written import read_csv

pytestmark = [
    pytest.mark.numeric,
    *(pytest.mark.filterwarnings(warning) for warning in ("ignore::DeprecationWarning", *LIGHTNING_WARNINGS)),
]

PLANTED = 3
TABLES = ("norms", "norm_changes", "path", "first_row")


@pytest.fixture(autouse=True, scope="module")
def few_passes() -> Iterator[None]:
    """Probes of a dozen passes are good enough here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readouts, "MAX_PASSES", 12)
        yield


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stream")


@pytest.fixture(scope="module")
def corpus_file(place: Path, sentences: list[str]) -> Path:
    (place / "some.txt").write_text("\n".join(sentences[:60]), encoding="utf-8")
    return place / "some.txt"


@pytest.fixture(scope="module")
def made(place: Path, corpus_file: Path, sentences: list[str]) -> Result:
    """Measure a model with a head for masked words, whose second norms make one neuron the smallest of all tokens."""
    from transformers import AutoModelForMaskedLM

    folder = masked_lm(place / "bent", "bert", sentences)
    model: Any = AutoModelForMaskedLM.from_pretrained(folder)
    with torch.no_grad():
        for block in model.base_model.encoder.layer:
            block.output.LayerNorm.bias[PLANTED] = -6
    model.save_pretrained(folder)
    found = geometry(
        str(folder), "1,2", corpus=str(corpus_file), runs=str(place / "runs"), name="g", norms=True, path=True,
        transforms="none", definition="argmin_share", draws=2, quiet=True, wandb=WandbOptions("offline"),
    )  # fmt: skip
    assert found is not None
    return found


@pytest.mark.slow
def test_the_planted_bias_is_traced_and_its_removal_measured_beside_random_neurons(made: Result) -> None:
    terms = {(row["layer"], row["norm"]): row for row in made.norms if row["neuron"] == PLANTED}
    assert set(terms) == {(k, n) for k in (1, 2, 3) for n in (1, 2)}
    assert {terms[k, 2]["largest"] for k in (1, 2, 3)} == {"bias"}
    assert sum(row["kind"] == "random" for row in made.norms) == 6 * 10
    changes = [row for row in made.norm_changes if row["measure"] == "deviations"]
    value = {(r["layer"], r["where"]): r["value"] for r in changes if r["kind"] in ("intact", "outliers")}
    for layer in (1, 2):
        assert value[layer, ""] < -3
        assert abs(value[layer, "second"]) < 2
        assert abs(value[layer, "first"]) > abs(value[layer, "second"])
    others = {row["measure"] for row in made.norm_changes} - {"deviations"}
    assert others == {"mlm_loss", "position_accuracy", "position_accuracy_retrained"}
    for measure in others:
        kinds = [row["kind"] for row in made.norm_changes if row["measure"] == measure]
        assert (kinds.count("intact"), kinds.count("outliers"), kinds.count("random")) == (1, 3, 6)


@pytest.mark.slow
def test_the_path_follows_it_through_every_block(made: Result) -> None:
    at = {(r["layer"], r["site"]): r for r in made.path if (r["neuron"], r["tokens"]) == (PLANTED, "words")}
    assert len(at) == 5 + 3 * 6
    # A value of the bias of the norm alone is in the second norms, and enters the next block from there.
    assert all(at[k, "norm_2"]["deviations"] < at[k, "sum_feed_forward"]["deviations"] - 1 for k in (1, 2, 3))
    assert {row["kind"] for row in made.path} == {"layers", "random"}


@pytest.mark.slow
def test_tables_figures_and_sentences_have_them(made: Result) -> None:
    for name in TABLES:
        rows, stored = getattr(made, name), read_csv(made.folder / f"{name}.csv")
        assert len(stored) == len(rows) > 0
        for row, again in zip(rows, stored, strict=True):
            # An empty end of an interval is read as one that is not defined.
            given, read = ({k: str(v) for k, v in one.items() if str(v) not in ("", "nan")} for one in (row, again))
            assert read == given
    figures = {path.name for path in (made.folder / "figures").iterdir()}
    assert {f"{name}.{form}" for name in TABLES if name != "first_row" for form in ("png", "pdf")} <= figures
    shown = repr(made)
    assert all(part in shown for part in ("Terms of outliers", "Outliers in sd", "on the residual stream"))
    said = made.conclusions()
    for start in ("Above the embeddings,", "Loss on masked words", "Accuracy of position", "10 random neurons are"):
        assert any(line.startswith(start) for line in said), start
    (tracked,) = read_offline_runs(made.folder)
    assert all(tracked.rows(key) for key in (*TABLES, *(f"figures/{name}" for name in TABLES[:-1])))


@pytest.mark.slow
def test_a_model_without_outliers_is_told_so_and_has_no_table(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = [f"--model={checkpoints['gpt2']}", f"--corpus={corpus_file}", f"--runs={tmp_path}", "--name=g"]
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
    family: str, option: str, reason: str, checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    args = [f"--model={checkpoints[family]}", f"--corpus={corpus_file}", f"--runs={tmp_path}"]
    assert run(COMMANDS, ["geometry", option, "--wandb.mode=disabled", *args]) == 2
    said = capsys.readouterr().err
    assert f"`{option}`: " in said
    assert reason in said
    assert f"({family})" in said
    assert "leave the option out, or choose another model" in said
    assert not list(tmp_path.rglob("*.safetensors"))
    assert not list(tmp_path.glob("*geometry*"))
