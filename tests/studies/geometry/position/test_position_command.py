"""`geometry --position` from end to end, on a tiny model with positions in three neurons, beside a run of `fit`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conftest import BARE
from families import make_checkpoint
from probing import WandbOptions, fit, load_run, report
from probing.__main__ import COMMANDS
from probing.cli.commandline import run
from probing.runs.study import Result
from probing.studies.geometry.command import geometry
from probing.studies.geometry.position.tables import position_tables
from probing.studies.geometry.section import POSITION
from wandb_stand_in import read_offline_runs

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*LeafSpec.*:FutureWarning"),
]

PLANTED = [1, 4, 6]
USUAL: dict[str, Any] = {"quiet": True, "trainer": {"accelerator": "cpu"}, "figure_format": "png"}
TABLES = ("position_split", "position_spectrum", "position_curves", "position_shape", "position_basis",
          "position_held", "position_by_neuron")  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("position")


@pytest.fixture(scope="module")
def corpus_file(place: Path, sentences: list[str]) -> Path:
    (place / "some.txt").write_text("\n".join(sentences[:120]), encoding="utf-8")
    return place / "some.txt"


@pytest.fixture(scope="module")
def model(place: Path, sentences: list[str]) -> Path:
    """A BERT whose position table has nothing but three neurons."""
    from transformers import AutoModel

    folder = make_checkpoint(place / "planted", "bert", sentences)
    encoder: Any = AutoModel.from_pretrained(folder)
    with torch.no_grad():
        table = encoder.embeddings.position_embeddings.weight
        angles = torch.arange(len(table)) / 2
        table.zero_()
        size = 3 * encoder.embeddings.word_embeddings.weight.std()
        table[:, PLANTED] = size * torch.stack([angles.sin(), angles.cos(), (angles / 2).sin()], dim=1)
    encoder.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def fitted(place: Path, model: Path, corpus_file: Path) -> Path:
    options = {**BARE, **USUAL, "transform": "none", "layer": "0,1", "wandb": WandbOptions("disabled")}
    made = fit(model=str(model), corpus=str(corpus_file), name="fitted", runs=str(place / "runs"), **options)
    assert made is not None
    return made.folder


@pytest.fixture(scope="module")
def made(place: Path, fitted: Path) -> Result:
    found = geometry(
        position=True, from_run=str(fitted), transforms="none", runs=str(place / "runs"), name="made",
        wandb=WandbOptions("offline"), **USUAL,
    )  # fmt: skip
    assert found is not None
    return found


def test_its_tables_are_there_and_read_again(made: Result, fitted: Path) -> None:
    again = load_run(made.folder)
    for name in TABLES:
        assert made.by_name[name], name
        assert len(again.by_name[name]) == len(made.by_name[name])
    in_order = [row["neuron"] for row in load_run(fitted).top(0, 5)]
    held = {row["neuron"]: row["held"] for row in made.position_by_neuron if row["layer"] == 0}
    (of_fit,) = (
        row
        for row in made.position_held
        if (row["layer"], row["scale"], row["order"], row["k"]) == (0, "raw", "fit", 5)
    )
    assert of_fit["value"] == pytest.approx(sum(held[k] for k in in_order))
    # The run has two layers, and the others no ranking.
    assert {row["layer"] for row in made.position_held if row["order"] == "fit"} == {0, 1}


def test_the_planted_neurons_are_first_where_the_table_is_added(made: Result) -> None:
    first = [row for row in made.position_by_neuron if row["layer"] == 0]
    by_share = sorted(first, key=lambda row: -row["value"])
    assert {row["neuron"] for row in by_share[:3]} == set(PLANTED)


def test_every_layer_is_in_parts_that_add_up(made: Result) -> None:
    layers = {row["layer"] for row in made.position_split}
    for layer in layers:
        for scale in ("raw", "standardised"):
            rows = {row["part"]: row for row in made.position_split if (row["layer"], row["scale"]) == (layer, scale)}
            for what in ("value", "share"):
                parts = sum(rows[part][what] for part in ("position", "context", "shared", "rest"))
                np.testing.assert_allclose(parts, 1, atol=1e-9)


def test_the_terminal_the_page_and_wandb_have_it(made: Result, place: Path) -> None:
    lines = made.conclusions()
    assert any("of the variance" in line for line in lines)
    page = Path(report(str(made.folder), output=str(place / "page.html"))).read_text(encoding="utf-8")
    assert "<h3>Position</h3>" in page
    assert "Shares of the variance of the hidden states" in page
    headings = {str(column.header) for table in position_tables(made.by_name) for column in table.columns}
    assert headings - {"95% range"} == set(POSITION)
    assert all(meaning.split("`")[0] in page for meaning in POSITION.values())
    figures = {path.stem for path in (made.folder / "figures").iterdir()}
    assert {"position_split", "position_curves", "position_held"} <= figures
    (logged,) = read_offline_runs(made.folder)
    shares = {row["layer"]: row["value"] for row in made.position_split
              if (row["scale"], row["part"]) == ("raw", "position")}  # fmt: skip
    curve = {row["layer"]: row["by_layer/position_share"] for row in logged.rows("by_layer/position_share")}
    assert curve == pytest.approx(shares)
    assert len(logged.table("position_split")) == len(made.position_split)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--from_run", "nowhere"], "nowhere"),
        (["--kind", "zero"], "none are named"),
        (["--corpus", "short.txt"], "too few to tell means"),
        (["--from_run", "FITTED", "--layer", "3"], "none of these is among layer 3"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    options: list[str], words: str, model: Path, corpus_file: Path, fitted: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("short.txt").write_text("one two three\nfour five six\n", encoding="utf-8")
    given = ["geometry", "--position", "--model", str(model), "--corpus", str(corpus_file), "--wandb.mode", "disabled"]
    assert run(COMMANDS, [*given, *(str(fitted) if option == "FITTED" else option for option in options)]) == 2
    assert words in capsys.readouterr().err
    assert not Path("runs").exists() or not any(path.suffix != ".lock" for path in Path("runs").glob("[!c]*"))


def test_one_layer_has_its_figures_in_every_format(place: Path, model: Path, corpus_file: Path) -> None:
    found = geometry(
        model=str(model), corpus=str(corpus_file), layer=1, transforms="none", draws=0, runs=str(place / "runs"),
        name="one", wandb=WandbOptions("disabled"), position=True, **{**USUAL, "figure_format": "png,pdf"},
    )  # fmt: skip
    assert found is not None
    assert {path.suffix for path in (found.folder / "figures").glob("position_curves.*")} == {".png", ".pdf"}
    assert "in layer 1: " in " ".join(found.conclusions())


def test_without_the_option_there_are_no_such_tables(place: Path, model: Path, corpus_file: Path) -> None:
    found = geometry(
        model=str(model), corpus=str(corpus_file), layer=1, transforms="none", draws=0, runs=str(place / "runs"),
        name="plain", wandb=WandbOptions("disabled"), **USUAL,
    )  # fmt: skip
    assert found is not None
    assert not any(found.by_name[name] for name in TABLES)
    assert not any(path.stem.startswith("position") for path in found.folder.rglob("*"))
