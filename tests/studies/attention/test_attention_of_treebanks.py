"""The parts of `attention` that need a treebank, from end to end on tiny models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from probing import Result, WandbOptions, attention
from probing.__main__ import COMMANDS
from probing.cli.commandline import run
from probing.heads import syntax
from probing.tables.heads import conclusions

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*LeafSpec.*:FutureWarning")


def treebank(sentences: list[str]) -> str:
    """Write sentences as CoNLL-U in which each word but the first depends on the previous one."""
    lines = []
    for sentence in sentences:
        for i, word in enumerate(sentence.split(), 1):
            relation = "root" if i == 1 else "punct" if i == 3 else "dep"
            lines.append(f"{i}\t{word}\t_\tX\t_\t_\t{i - 1}\t{relation}\t_\t_")
        lines.append("")
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, sentences: list[str]) -> Path:
    folder = tmp_path_factory.mktemp("treebanks")
    (folder / "train.conllu").write_text(treebank(sentences[:60]), encoding="utf-8")
    (folder / "short.conllu").write_text(
        treebank([" ".join(text.split()[:4]) for text in sentences[:60]]), encoding="utf-8"
    )
    (folder / "test.conllu").write_text(treebank(sentences[50:110]), encoding="utf-8")
    (folder / "plain.txt").write_text("\n".join(sentences[:30]) + "\n", encoding="utf-8")
    return folder


def survey(place: Path, model: Path, **options: Any) -> Result:
    usual = {"corpus": str(place / "train.conllu"), "runs": str(place / "runs"), "quiet": True}
    usual |= {"trainer": {"accelerator": "cpu"}, "wandb": WandbOptions("disabled")}
    made = attention(model=str(model), **{**usual, **options})
    assert made is not None
    return made


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_heads_are_chosen_on_the_corpus_and_tested_on_the_test_corpus(
    place: Path, checkpoints: dict[str, Path], family: str
) -> None:
    parts = "relations,trees,attention_probe"
    made = survey(place, checkpoints[family], parts=parts, test_corpus=str(place / "test.conllu"), layer=2)
    (relation,) = made.relations
    assert (relation["relation"], relation["layer"]) == ("dep", 2)
    assert (relation["offset"], relation["offset_train"], relation["offset_test"]) == (-1, 1.0, 1.0)
    assert relation["difference"] == pytest.approx(relation["test"] - 1)
    assert relation["test_low"] <= relation["test"] <= relation["test_high"]
    assert 0 <= relation["untrained_low"] <= relation["untrained"] <= relation["untrained_high"] <= 1
    trees = [row for row in made.trees if row["measure"] == "uuas"]
    assert [(row["layer"], row["head"]) for row in trees] == [(2, 1), (2, 2)]
    assert [row["chosen"] for row in trees].count("yes") == 1
    assert max(trees, key=lambda row: row["train"])["chosen"] == "yes"
    (probe,) = (row for row in made.trees if row["measure"] == "uas")
    assert (probe["layer"], probe["offset"]) == ("all", -1)
    assert 0 <= probe["optimality_gap"] <= 1e-5
    assert probe["n_test"] == relation["n_test"]
    # Trees have no word of punctuation, so that the word behind it has no edge.
    assert {row["n_test"] for row in trees} < {*range(relation["n_test"])}
    lines = " ".join(conclusions(made.by_name))
    assert f"dep 2-{relation['head']}" in lines
    assert "Trees of head 2-" in lines


@pytest.mark.slow
def test_without_a_test_corpus_heads_are_tested_on_sentences_that_they_are_not_chosen_on(
    place: Path, checkpoints: dict[str, Path]
) -> None:
    made = survey(place, checkpoints["bert"], parts="trees")
    whole = survey(place, checkpoints["bert"], parts="trees", test_corpus=str(place / "test.conllu"), seed=1)
    assert made.trees[0]["n_test"] < made.trees[0]["n_train"]
    assert whole.trees[0]["n_train"] < made.trees[0]["n_train"] + made.trees[0]["n_test"]  # shared ones are left out
    assert made.relations == []
    other = survey(place, checkpoints["bert"], parts="trees", random_weights=True)
    assert "untrained" not in other.trees[0] or other.trees[0]["untrained"] != other.trees[0]["untrained"]


def test_what_is_missing_is_said_and_the_probe_is_measured_only_if_it_is_named(
    place: Path, checkpoints: dict[str, Path], capsys: Any
) -> None:
    made = survey(place, checkpoints["bert"], corpus=str(place / "short.conllu"), quiet=False)
    err = capsys.readouterr().err
    assert f"the part relations is left out: it needs a relation with at least {syntax.LEAST_ARCS} arcs" in err
    results = json.loads((made.folder / "results.json").read_text(encoding="utf-8"))
    assert "trees" in results["parts"]
    assert "attention_probe" not in [*results["parts"], *results["left_out"]]
    assert {row["measure"] for row in made.trees} == {"uuas"}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--corpus", "short.conllu", "--parts", "relations"], "needs a relation with at least 100 arcs"),
        (
            ["--corpus", "train.conllu", "--test_corpus", "plain.txt", "--parts", "trees"],
            "`--parts trees` needs dependency relations, the columns head and deprel of a .conllu file, and "
            "`--test_corpus plain.txt` has none",
        ),
        (["--corpus", "broken.conllu", "--parts", "trees"], "has the head `99`, where 0 or the number of another"),
    ],
)
def test_what_cannot_be_tested_is_refused_before_the_model_reads(
    args: list[str], message: str, place: Path, checkpoints: dict[str, Path], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: Any,
) -> None:  # fmt: skip
    (place / "broken.conllu").write_text(
        (place / "train.conllu").read_text(encoding="utf-8").replace("\t1\tdep", "\t99\tdep", 1), encoding="utf-8"
    )
    monkeypatch.chdir(place)
    where = ["--model", str(checkpoints["bert"]), "--runs", str(tmp_path / "runs"), "--wandb.mode", "disabled"]
    assert run(COMMANDS, ["attention", *where, "--cache", str(tmp_path / "cache"), *args]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert "Traceback" not in err
    assert not (tmp_path / "runs").exists()
    assert not list((tmp_path / "cache").glob("*/plan.json"))
