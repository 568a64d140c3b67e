"""`attention --parts fusion` from end to end on a tiny model."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from conftest import N_LAYERS, make_sentences
from probing import Result, WandbOptions, attention, load_run
from probing.__main__ import COMMANDS
from probing.cli.commandline import run
from probing.studies.attention.command import FUSION
from probing.tables.change import fusion_lines
from rendering import rendered

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*LeafSpec.*:FutureWarning"),
]

HOW: dict[str, Any] = {"quiet": True, "trainer": {"accelerator": "cpu"}, "wandb": WandbOptions("disabled")}


def bank(sentences: list[str]) -> str:
    """Write sentences as CoNLL-U with the parts of speech of the first word, those of even length, and others."""
    lines = []
    for sentence in sentences:
        for i, word in enumerate(sentence.split(), 1):
            upos = "DET" if i == 1 else "NOUN" if len(word) % 2 else "VERB"
            lines.append(f"{i}\t{word}\t_\t{upos}\t_\t_\t_\t_\t_\t_")
        lines.append("")
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fusion")
    (folder / "bank.conllu").write_text(bank(make_sentences(200, longest=9)), encoding="utf-8")
    (folder / "few.txt").write_text("\n".join(make_sentences(4, longest=5)) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def made(place: Path, checkpoints: dict[str, Path]) -> Result:
    with rendered():
        found = attention(
            model=str(checkpoints["bert"]), corpus=str(place / "bank.conllu"), parts="fusion", layer="1,3",
            runs=str(place / "runs"), name="fusion", **HOW,
        )  # fmt: skip
    assert found is not None
    return found


def test_every_task_that_the_corpus_has_is_tested_with_every_fusion(made: Result) -> None:
    assert {row["task"] for row in made.fusion if row["measure"] == "accuracy"} == {"upos", "position"}
    assert N_LAYERS["bert"] == 3
    for task in ("upos", "position"):
        accuracies = [row for row in made.fusion if (row.get("task"), row["measure"]) == (task, "accuracy")]
        assert [(row["fusion"], row.get("layer")) for row in accuracies] == [
            ("layer", 1), ("layer", 3), ("equal", None), ("max", None), ("concat", None), ("gate", None)
        ]  # fmt: skip
        assert all(row["low"] <= row["value"] <= row["high"] and row["optimality_gap"] < 1e-5 for row in accuracies)
        assert {row["converged"] for row in accuracies[-2:]} == {"yes"}
        weights = [row["value"] for row in made.fusion if (row.get("task"), row["measure"]) == (task, "weight")]
        assert sum(map(abs, weights)) == pytest.approx(2)  # those of concat and of the gate
    against = [row for row in made.fusion if row["measure"] == "difference"]
    assert len(against) == 2 * 3 * 3
    assert all(0 <= row["p_value"] <= 1 for row in against)
    of_all = [row["fusion"] for row in made.fusion if row["measure"] == "cosine" and not row.get("task")]
    assert of_all == ["layer", "layer", "equal", "max"]


def test_the_folder_holds_what_was_returned_and_what_it_says(made: Result) -> None:
    def known(rows: Any) -> list[dict[str, Any]]:
        return [{k: v for k, v in row.items() if not (isinstance(v, float) and math.isnan(v))} for row in rows]

    assert known(load_run(made.folder).fusion) == known(made.fusion)
    header = (made.folder / "fusion.csv").read_text(encoding="utf-8").splitlines()[0]
    assert header.split(",") == list(FUSION.types)
    results = json.loads((made.folder / "results.json").read_text(encoding="utf-8"))
    assert results["parts"] == ["fusion"]
    assert sorted(path.name for path in (made.folder / "figures").iterdir()) == ["fusion.pdf", "fusion.png"]
    lines = fusion_lines(made.fusion)
    assert [line.split(":")[0] for line in lines[:2]] == ["Fusion for upos", "Fusion for position"]
    assert lines[2].startswith("The mean cosine of two tokens of a sentence is 0.")
    assert lines[3].startswith(
        "P-values are corrected for 18 comparisons. The model was not trained with these fusions"
    )
    assert len(lines) == 4
    unfinished = [{**row, "converged": "no"} if row["fusion"] == "gate" else row for row in made.fusion]
    assert "Training of gate for upos did not end at a minimum" in fusion_lines(unfinished)[1]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--layer", "2"], "`--parts fusion` needs at least two layers to fuse, and `--layer 2` is one."),
        (["--corpus", "few.txt"], "`--parts fusion` needs labels of upos, deprel or position, and "),
    ],
)
def test_what_cannot_be_fused_is_refused(
    place: Path, checkpoints: dict[str, Path], capsys: Any, args: list[str], message: str
) -> None:
    args = [str(place / arg) if arg.endswith(".txt") else arg for arg in args]
    corpus = [] if "--corpus" in args else ["--corpus", str(place / "bank.conllu")]
    usual = ["--model", str(checkpoints["bert"]), "--runs", str(place / "refused"), "--wandb.mode", "disabled"]
    assert run(COMMANDS, ["attention", *usual, *corpus, "--parts", "fusion", *args]) == 2
    assert message in capsys.readouterr().err
    assert not list((place / "refused").glob("*-attention-*"))
