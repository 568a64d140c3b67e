"""`geometry --extremes` from end to end on tiny models, and models of which a part cannot be measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from families import make_checkpoint, untouched
from probing import WandbOptions
from probing.__main__ import COMMANDS
from probing.cli.commandline import run
from probing.runs.study import Result
from probing.studies.geometry.command import geometry
from probing.studies.geometry.extremes.tables import ALL, EXTREMES, NAMES
from synthetic import LIGHTNING_WARNINGS
from written import read_csv

pytestmark = [
    *(pytest.mark.filterwarnings(warning) for warning in ("ignore::DeprecationWarning", *LIGHTNING_WARNINGS)),
]

PLANTED, LARGE = 11, 3


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("extremes")


@pytest.fixture(scope="module")
def text(place: Path, sentences: list[str]) -> Path:
    (place / "some.txt").write_text("\n".join(sentences[:60]), encoding="utf-8")
    return place / "some.txt"


@pytest.fixture(scope="module")
def made(place: Path, text: Path, sentences: list[str]) -> Result:
    """Measure a BERT whose second block makes a neuron huge on [CLS], and whose first head reads an outlier alone."""
    folder = make_checkpoint(place / "bent", "bert", sentences, hidden_size=48)
    model: Any = untouched(folder)
    with torch.no_grad():
        for norm in [module for module in model.modules() if isinstance(module, torch.nn.LayerNorm)]:
            norm.bias[PLANTED] = -20
        # Values of [CLS] alone have a huge entry, which the norm before does not see and the one behind hardly changes.
        block = model.encoder.layer[1]
        block.output.LayerNorm.weight[LARGE] = 2e4
        heads = model.encoder.layer[2].attention.self
        for linear in (heads.query, heads.key):
            linear.weight[:, PLANTED] = 3 * torch.randn(48)
    model.save_pretrained(folder)
    found = geometry(
        str(folder), extremes=True, transforms="none", corpus=str(text), runs=str(place / "runs"), name="g", quiet=True,
        wandb=WandbOptions("disabled"),
    )  # fmt: skip
    assert found is not None
    return found


def test_large_values_are_found_in_their_layer_and_outliers_held_where_blocks_read_them(made: Result) -> None:
    massive = {row["layer"]: row for row in made.massive if (row["definition"], row["token"]) == ("massive", ALL)}
    assert [massive[layer]["count"] > 0 for layer in range(4)] == [False, False, True, False]
    assert {
        row["neuron"] for row in made.massive if row["definition"] == "massive" and row.get("neuron") is not None
    } == {LARGE}
    (course,) = {(row["first_layer"], row["last_layer"], row["gone_layer"], row["neuron"])
                 for row in made.massive_course if row["definition"] == "massive"}  # fmt: skip
    assert course == (2, 2, 3, LARGE)
    blocks = {row["layer"]: row for row in made.held_outliers if row.get("head") is None}
    assert blocks[1]["neurons"] == blocks[2]["neurons"] == str(PLANTED)
    assert len([row for row in made.held_outliers if row.get("head") is not None]) == 2 * (len(blocks) - 1)


def test_tables_figures_page_and_sentences_have_them(made: Result, tmp_path: Path) -> None:
    for schema in EXTREMES:
        stored = read_csv(made.folder / f"{schema.name}.csv")
        assert len(stored) == len(getattr(made, schema.name)) > 0
        assert all(column.meaning for column in schema.columns)
    assert {"massive.png", "massive.pdf", "sinks.png", "sinks.pdf"} <= {
        path.name for path in (made.folder / "figures").iterdir()
    }
    shown, said = repr(made), made.conclusions()
    titles = ("Large values", "Neurons that are large", "What attention gives", "Attention of heads with outliers held")
    assert all(title in shown for title in titles)
    starts = ("Values more than 5 sd from the mean of their token", "The strongest sink is", "With the outliers held")
    assert all(any(line.startswith(start) for line in said) for start in starts)
    assert any("massive values, above 100 and 1,000 times the median" in line for line in said)
    page = made.report(tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Massive activations and attention sinks" in page
    assert all(title in page for title in titles)


def argued(folder: Path, text: Path, runs: Path, *options: str) -> list[str]:
    return ["geometry", "--extremes", "--transforms=none", "--name=g", "--wandb.mode=disabled", f"--model={folder}",
            f"--corpus={text}", f"--runs={runs}", *options]  # fmt: skip


def test_a_model_that_rotates_queries_has_everything_but_heads_without_outliers(
    place: Path, text: Path, sentences: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_checkpoint(place / "rotating", "llama", sentences)
    model: Any = untouched(folder)
    with torch.no_grad():
        model.embed_tokens.weight[:, 5] = 30
    model.save_pretrained(folder)
    assert run(COMMANDS, argued(folder, text, tmp_path, "--definition=argmax_share")) == 0
    said = capsys.readouterr().err
    assert "--extremes holds no outliers in queries and keys" in said
    assert "its queries and keys are rotated or normalised" in said
    there = {path.stem for path in (tmp_path / "g").glob("*.csv")}
    assert there & set(NAMES) >= {"massive", "sinks"}
    assert "held_outliers" not in there


@pytest.mark.parametrize(("family", "table"), [("gpt2", "wte"), ("mpnet", "embeddings.word_embeddings")])
def test_attention_without_outliers_is_that_of_the_model_behind_norms_masks_and_relative_biases(
    family: str, table: str, place: Path, text: Path, sentences: list[str], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    folder = make_checkpoint(place / f"large-{family}", family, sentences)
    model: Any = untouched(folder)
    with torch.no_grad():
        model.get_submodule(table).weight[:, 5] = 30
    model.save_pretrained(folder)
    assert run(COMMANDS, argued(folder, text, tmp_path, "--definition=argmax_share")) == 0
    # A block whose attention were not the model's would be left out.
    assert "leaves out block" not in capsys.readouterr().err
    rows = read_csv(tmp_path / "g" / "held_outliers.csv")
    assert {row["layer"] for row in rows} >= {1}
    sinks = read_csv(tmp_path / "g" / "sinks.csv")
    of_special = [row for row in sinks if row["token"] in ("first token", "<s>", "</s>")]
    for row in rows:
        if row["head"] not in ("", None):
            own = [r["mass"] for r in of_special if (r["layer"], r["head"]) == (row["layer"], row["head"])]
            assert row["special"] == pytest.approx(sum(own), abs=0.05)


def test_a_model_without_attention_in_each_block_has_its_large_values(
    checkpoints: dict[str, Path], text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(COMMANDS, argued(checkpoints["lfm2"], text, tmp_path)) == 0
    assert "--extremes leaves out what attention does with special tokens" in capsys.readouterr().err
    assert not {"sinks", "held_outliers"} & {path.stem for path in (tmp_path / "g").glob("*.csv")}
    assert (tmp_path / "g" / "massive.csv").exists()


def test_a_model_without_outliers_is_told_so(
    checkpoints: dict[str, Path], text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(COMMANDS, argued(checkpoints["gpt2"], text, tmp_path, "--layer=2,3")) == 0
    assert "no layer that a block reads has any" in capsys.readouterr().err
    rows = read_csv(tmp_path / "g" / "sinks.csv")
    assert {row["token"] for row in rows} == {"first token", "punctuation", "other tokens"}
    # The stream that enters block 2 was not asked for.
    of_block = {row["layer"]: row["of_stream"] for row in rows if row["head"] in ("", None)}
    assert of_block[2] in ("", None)
    assert of_block[3] not in ("", None)


def test_the_first_token_cannot_be_set_aside(
    checkpoints: dict[str, Path], text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(COMMANDS, argued(checkpoints["bert"], text, tmp_path, "--first_token=exclude")) == 2
    assert "`--first_token exclude` and `--extremes`" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
