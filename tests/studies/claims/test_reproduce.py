"""`reproduce` on tiny models: plans, runs, resumes, tunes, and writes the table of claims."""

from __future__ import annotations

import csv
import json
import shutil
from html import escape
from pathlib import Path
from typing import Any

import pytest

from conftest import make_sentences
from families import masked_lm
from probing import Result, report, reproduce
from probing.__main__ import COMMANDS
from probing.cli.commandline import run
from probing.runs.loading import load_run
from probing.studies import geometry as geometry_module
from report_runs import treebank
from tiny_models import other_queries, tuned

NO_WANDB: Any = {"mode": "disabled"}
# Two runs of `geometry`, of which each takes a second.
CLAIMS = "1-5,19,34-37,52"


@pytest.fixture(scope="module")
def place(checkpoints: dict[str, Path], corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs with one table of claims."""
    folder = tmp_path_factory.mktemp("reproduce") / "runs"
    reproduce(**options(checkpoints, corpus_file, folder), name="first")
    return folder


def options(checkpoints: dict[str, Path], corpus_file: Path, folder: Path, **others: Any) -> dict[str, Any]:
    usual = {
        "paper": "luo2021", "models": str(checkpoints["bert"]), "claims": "1-5,34-37,52", "corpus": str(corpus_file),
        "runs": str(folder), "quiet": True, "wandb": NO_WANDB,
    }  # fmt: skip
    return {**usual, **others}


def test_the_table_has_a_row_for_each_claim_and_model(place: Path, checkpoints: dict[str, Path]) -> None:
    made = load_run(place / "first")
    assert isinstance(made, Result)
    rows = {(row["id"], row["model"]): row for row in made.claims}
    other = str(checkpoints["bert"])
    assert [number for number, model in rows if model == other] == [1, 2, 3, 4, 5, 34, 35, 36, 37, 52]
    assert {model for number, model in rows if number == 34} == {other, "bert", "roberta"}
    assert {model for number, model in rows if number == 3} == {other, "roberta"}
    measured = rows[34, other]
    assert measured["verdict"] == "analogue"
    assert -1 <= measured["measured"] <= 1
    assert measured["met"] in ("yes", "no")
    assert measured["criterion"] == "> 0.8"
    assert measured["command"].startswith("python -m probing geometry --model ")
    assert rows[34, "bert"]["verdict"] == "not testable here"
    assert "google-bert/bert-base-cased" in rows[34, "bert"]["lacking"]
    assert rows[52, other]["lacking"] == "`--other_corpus`"
    with (place / "first" / "claims.csv").open(encoding="utf-8") as file:
        assert next(csv.reader(file))[:11] == [
            "id", "claim", "where", "published", "model", "measured", "low", "high", "control", "verdict", "command",
        ]  # fmt: skip


def test_no_verdict_on_the_paper_is_given_by_another_model(place: Path) -> None:
    made = load_run(place / "first")
    assert {row["verdict"] for row in made.claims} == {"analogue", "not testable here"}
    assert not any("met" in row for row in made.claims if row["verdict"] != "analogue")
    assert any("nothing follows for the paper" in line for line in made.conclusions())


def test_the_markdown_table_is_the_same(place: Path) -> None:
    lines = (place / "first" / "claims.md").read_text(encoding="utf-8").splitlines()
    made = load_run(place / "first")
    assert lines[0] == made.results["title"]
    cells = [line.strip("| ").split(" | ") for line in lines[4:]]
    assert [int(row[0]) for row in cells] == [row["id"] for row in made.claims]
    assert {len(line.replace("\\|", "").split("|")) for line in lines[2:]} == {11}


@pytest.mark.slow
def test_finished_runs_are_taken_and_what_a_killed_command_left_is_made(
    place: Path, checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """The first run is there, and the second is interrupted; the same command then makes it and nothing else."""
    runs = tmp_path / "runs"
    shutil.copytree(place, runs)
    with_other = options(checkpoints, corpus_file, runs, other_corpus=str(corpus_file), cache=str(place / "cache"))
    before = {path.name for path in runs.iterdir()}

    def interrupted(*args: Any, **keywords: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(geometry_module, "_plan", interrupted)
        with pytest.raises(KeyboardInterrupt, match="the same command goes on with the others"):
            reproduce(**with_other)
    whole = {path.name for path in runs.iterdir() if path.suffix != ".partial"}
    assert whole == before
    capsys.readouterr()
    made = reproduce(**{**with_other, "quiet": False})
    said = capsys.readouterr().err
    assert said.count(": read from ") == 1
    assert "run 1 of 1: python -m probing geometry " in said
    (row,) = (row for row in made.claims if row["id"] == 52 and row["verdict"] == "analogue")
    assert abs(row["measured"]) < 1
    again = reproduce(**with_other)
    assert again.results["runs"] == made.results["runs"]
    assert [row for row in again.claims if row["id"] == 52] == [row for row in made.claims if row["id"] == 52]


def test_a_dry_run_makes_nothing(
    place: Path, checkpoints: dict[str, Path], corpus_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(path.name for path in place.iterdir())
    assert reproduce(**options(checkpoints, corpus_file, place, claims=CLAIMS, dry_run=True)) is None
    said = " ".join(capsys.readouterr().out.split())
    assert "1 run to make: about 1 min with nothing else on this machine, and 0.00 GB of activations added" in said
    assert "probing fit" in said
    assert "needs `--other_corpus`" in said
    assert "google-bert/bert-base-cased, which is not on this machine" in said
    assert sorted(path.name for path in place.iterdir()) == before


def test_a_folder_may_hold_a_model_of_the_paper_which_then_has_a_verdict(
    place: Path, checkpoints: dict[str, Path], corpus_file: Path
) -> None:
    """That a tiny model is not BERT is the user's to know; its width says it where neurons are named."""
    named = f"bert={checkpoints['bert']}"
    made = reproduce(**options(checkpoints, corpus_file, place, models=named, claims="1,34"))
    rows = {(row["id"], row["model"]): row for row in made.claims}
    assert set(rows) == {(1, "bert"), (34, "bert"), (34, "roberta")}
    assert rows[34, "bert"]["verdict"] in ("confirmed", "not confirmed")
    assert rows[1, "bert"]["lacking"] == "the model has no neuron 557"
    assert made.results["runs"]["bert"] == load_run(place / "first").results["runs"][str(checkpoints["bert"])]
    (line,) = made.conclusions()
    assert "2 not testable here" in line


@pytest.mark.slow
def test_sentences_with_labels_are_read_for_the_claim_on_them(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sentences = corpus_file.read_text(encoding="utf-8").splitlines()
    middle = sorted(map(len, sentences))[len(sentences) // 2]
    rows = [{"text": sentence, "label": "long" if len(sentence) > middle else "short"} for sentence in sentences]
    labels = tmp_path / "labels.jsonl"
    labels.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    asked = options(checkpoints, corpus_file, tmp_path / "runs", claims="47", labels=str(labels), quiet=False)
    for made_or_read in ("run 1 of 1", ": read from "):
        found = reproduce(**asked)
        assert made_or_read in capsys.readouterr().err
        (row,) = (row for row in found.claims if row["model"] not in ("bert", "roberta"))
        # None of 16 neurons can be beyond 5 standard deviations of all.
        assert row["lacking"] == "no layer has an outlier that could be clipped"


def test_models_of_the_paper_that_cannot_be_reached_are_no_error(place: Path, corpus_file: Path) -> None:
    words = ["luo2021", "--models", "roberta", "--claims", "3,34", "--corpus", str(corpus_file), "--runs", str(place)]
    assert run(COMMANDS, ["reproduce", *words, "--quiet", "--wandb.mode", "disabled"]) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "`reproduce` takes a paper: bertology, kovaleva2019, luo2021"),
        (["luo2020"], "did you mean `luo2021`"),
        (["luo2021", "--claims", "0"], "--claims 0"),
        (["luo2021", "--models", "no/such/model"], "`--models no/such/model`"),
        (["luo2021", "--models", "minilm,minilm"], "minilm is there twice"),
        (["luo2021", "--corpus", "no.txt"], "no.txt"),
        (["luo2021", "--corpus", "-"], "standard input can be read only once"),
        (["bertology", "--facts", "-"], "standard input can be read only once"),
        (["luo2021", "kovaleva2019"], "takes one paper"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(COMMANDS, ["reproduce", *words, "--runs", str(tmp_path / "runs")]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_the_report_has_a_row_for_each_claim_that_was_measured(place: Path, tmp_path: Path) -> None:
    page = report([str(place / "first")], output=str(tmp_path / "claims.html")).read_text(encoding="utf-8")
    made = load_run(place / "first")
    there = [row for row in made.claims if "measured" in row]
    assert there
    assert "<h1>Claims of luo2021</h1>" in page
    assert page.count('class="range-axis"') == len(there)
    for row in there:
        assert escape(row["claim"]) in page
        assert f"by the claim {escape(row['criterion'])}" in page
        assert escape(row["command"]) in page
    for row in made.claims:
        assert escape(row.get("lacking", "")) in page


PAIRS = [f"word {'ab' * i} goes\tthe next one is {i}" for i in range(1, 26)]


def made(model: Path, corpus: Path, folder: Path, **others: Any) -> Result:
    return reproduce(
        **{
            "paper": "kovaleva2019", "models": str(model), "claims": "1,2,6,7", "corpus": str(corpus),
            "runs": str(folder), "wandb": NO_WANDB, **others,
        }
    )  # fmt: skip


@pytest.mark.slow
def test_pairs_are_read_in_place_of_the_corpus_and_known_by_their_content(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("\n".join(PAIRS), encoding="utf-8")
    options: dict[str, Any] = {"model": checkpoints["bert"], "corpus": corpus_file, "folder": tmp_path / "runs"}
    first = made(**options, pairs=str(pairs))
    rows = {row["id"]: row for row in first.claims if row["model"] == str(checkpoints["bert"])}
    assert {number for number, row in rows.items() if "measured" in row} == {1, 2, 7}
    assert 0 <= rows[1]["low"] <= rows[1]["measured"] <= rows[2]["measured"] <= 1
    assert rows[2]["command"].endswith(f"--pairs {pairs} --parts classes")
    assert "--corpus" not in rows[2]["command"]
    assert rows[6]["lacking"].startswith("a treebank as `--corpus`")
    capsys.readouterr()
    again = made(**options, pairs=str(pairs))
    assert capsys.readouterr().err.count(": read from ") == 2
    assert again.results["runs"] == first.results["runs"]
    pairs.write_text("\n".join(PAIRS[1:]), encoding="utf-8")
    changed = made(**options, pairs=str(pairs))
    said = capsys.readouterr().err
    assert said.count(": read from ") == 1
    assert "run 1 of 1" in said
    assert changed.results["runs"] != first.results["runs"]
    without = made(**options)
    assert {row["lacking"] for row in without.claims if row["id"] in (1, 2) and row["model"] != "own"} == {"`--pairs`"}


@pytest.mark.slow
def test_a_model_is_compared_with_the_one_that_it_was_tuned_from(
    tmp_path: Path, corpus_file: Path, capsys: pytest.CaptureFixture[str], sentences: list[str]
) -> None:
    # The last two of three blocks read what the second one, whose queries were changed, makes of the text.
    before = masked_lm(tmp_path / "before", "bert", sentences)
    options: dict[str, Any] = {
        "model": tuned(before, other_queries),
        "corpus": corpus_file,
        "folder": tmp_path / "runs",
    }
    for made_or_read in ("run 1 of 1", ": read from "):
        found = made(**options, claims="4", untuned=str(before))
        assert made_or_read in capsys.readouterr().err
        (row,) = (row for row in found.claims if row["model"] != "own")
        assert row["met"] == "yes"
        assert row["measured"] > 0
        assert row["control"] > 0
    same = made(**{**options, "model": before}, claims="4", untuned=str(before))
    (row,) = (row for row in same.claims if row["model"] != "own")
    assert (row["measured"], row["met"]) == (0, "no")


def test_pairs_that_are_none_are_refused_before_anything_is_run(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("one sentence\n", encoding="utf-8")
    words = ["kovaleva2019", "--models", str(checkpoints["bert"]), "--corpus", str(corpus_file), "--pairs", str(pairs)]
    assert run(COMMANDS, ["reproduce", *words, "--runs", str(tmp_path / "runs")]) == 2
    assert f"`--pairs {pairs}`, line 1: expected two sentences" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


BERTOLOGY_PAIRS = (
    "The [MASK] reads a layer.\tprobe\ttoken\taffirmative\nA probe reads the [MASK].\ttoken\tprobe\tnegated\n"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, sentences: list[str]) -> Path:
    return masked_lm(tmp_path_factory.mktemp("bertology") / "bert", "bert", sentences)


def bertology_made(model: str, corpus: Path, runs: Path, claims: str, **others: Any) -> Result:
    return reproduce(
        "bertology", models=model, claims=claims, corpus=str(corpus), runs=str(runs), wandb=NO_WANDB, **others
    )


def of(found: Result, model: str) -> dict[int, dict[str, Any]]:
    return {row["id"]: row for row in found.claims if row["model"] == model}


def test_words_at_a_mask_are_measured_and_their_runs_are_taken_again(
    model: Path, corpus_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text(BERTOLOGY_PAIRS, encoding="utf-8")
    options: dict[str, Any] = {"corpus": corpus_file, "runs": tmp_path / "runs", "claims": "6,11,26-28,35"}
    rows = of(bertology_made(str(model), **options, cloze=str(pairs)), str(model))
    assert {number for number, row in rows.items() if "measured" in row} == {6, 26, 27}
    assert {rows[26]["measured"], rows[27]["measured"]} <= {0, 1}
    assert rows[27]["control"] == rows[26]["measured"]
    assert rows[6]["low"] <= rows[6]["measured"] <= rows[6]["high"]
    assert rows[26]["command"] == f"python -m probing cloze --model {model} {pairs}"
    assert rows[6]["command"] == f"python -m probing cloze --model {model} --corpus {corpus_file}"
    assert rows[11]["lacking"] == "pairs of the group `agreement` in the file that `--cloze` names"
    assert rows[28]["lacking"].startswith("a treebank as `--corpus`")
    assert rows[35]["lacking"] == "`--facts`"
    capsys.readouterr()
    again = of(bertology_made(str(model), **options, cloze=str(pairs)), str(model))
    assert capsys.readouterr().err.count(": read from ") == 2
    assert again == rows
    pairs.write_text(BERTOLOGY_PAIRS.splitlines()[0], encoding="utf-8")
    changed = of(bertology_made(str(model), **options, cloze=str(pairs)), str(model))
    said = capsys.readouterr().err
    assert said.count(": read from ") == said.count("run 1 of 1") == 1
    assert "measured" not in changed[27]


@pytest.mark.slow
def test_heads_of_a_model_of_the_survey_are_judged_by_masked_words_and_of_others_by_positions(
    model: Path, corpus_file: Path, tmp_path: Path, checkpoints: dict[str, Path]
) -> None:
    own = of(bertology_made(f"bert-uncased={model}", corpus_file, tmp_path, "29,30"), "bert-uncased")
    assert own[29]["measure"] == "spare_heads_of_words"
    assert own[29]["verdict"] in ("confirmed", "not confirmed", "unclear")
    assert own[29]["command"].endswith("--kinds zero --retrain 0 --readouts mlm")
    other = of(bertology_made(str(checkpoints["bert"]), corpus_file, tmp_path, "29,30"), str(checkpoints["bert"]))
    assert other[29]["measure"] == "spare_heads_of_positions"
    for rows in (own, other):
        assert 0 <= rows[29]["low"] <= rows[29]["measured"] <= rows[29]["high"] <= 1
        assert "more text" in rows[30]["lacking"]  # a half of the test sentences has no interval


@pytest.mark.slow
def test_what_a_model_or_a_text_does_not_have_is_said(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path
) -> None:
    bare = str(checkpoints["bert"])
    rows = of(bertology_made(bare, corpus_file, tmp_path, "6-9,14,16,24,26", quiet=True), bare)
    assert {row["verdict"] for row in rows.values()} == {"not testable here"}
    assert rows[24]["lacking"] == "`--sts`"
    for number in (6, 26):
        assert "masked-language-model head" in rows[number]["lacking"]
    for number in (7, 8, 9, 14, 16):
        assert rows[number]["lacking"].startswith("a treebank as `--corpus`")


@pytest.fixture(scope="module")
def labels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sentences, half of which end in `probe`, with a label that says so."""
    path = tmp_path_factory.mktemp("labels") / "labels.csv"
    texts = [" ".join(word for word in one.split() if word != "probe") for one in make_sentences(700, longest=8)]
    rows = [(f"{one} {'probe' if i % 2 else 'layer'}", "yes" if i % 2 else "no") for i, one in enumerate(texts)]
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    return path


def tuned_made(
    paper: str, model: Path, runs: Path, claims: str, **options: Any
) -> tuple[Result, dict[int, dict[str, Any]]]:
    found = reproduce(paper, models=str(model), claims=claims, runs=str(runs), wandb=NO_WANDB, **options)
    return found, {row["id"]: row for row in found.claims if row["model"] == str(model)}


@pytest.mark.slow
def test_claims_on_tuned_models_are_measured_on_labels_and_their_runs_are_taken_again(
    checkpoints: dict[str, Path], labels: Path, corpus_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, Any] = {"model": checkpoints["bert"], "runs": tmp_path / "runs", "corpus": str(corpus_file)}
    found, rows = tuned_made("kovaleva2019", claims="4,5,9,10", labels=str(labels), **options)
    assert {number for number, row in rows.items() if "measured" in row} == {4, 5, 9, 10}
    assert capsys.readouterr().err.count("run ") >= 4
    folders = found.results["runs"][str(checkpoints["bert"])]
    tuned = load_run(folders["tuned"])
    assert {row["answer"] for row in tuned.scores} == {"pretrained", "random", "shuffled", "majority", "bag"}
    by_pair = {(row["answer"], row["against"]): row["difference"] for row in tuned.differences}
    assert rows[5]["measured"] == min(by_pair["pretrained", "majority"], by_pair["pretrained", "random"])
    without = load_run(folders["ablated_task"])
    (layer,) = (row for row in without.ablated if row["unit"] == "1" and row["layer"] == 3)
    assert rows[10]["measured"] == layer["effect"]
    assert rows[9]["command"].startswith("python -m probing finetune ")
    assert f" && python -m probing ablate --readouts tuned={folders['tuned']}/checkpoints/" in rows[9]["command"]
    _, again = tuned_made("kovaleva2019", claims="4,5,9,10", labels=str(labels), **options)
    assert capsys.readouterr().err.count(": read from ") == 4
    assert again == rows
    # Another paper reads the same tuning, from more starts than it needs.
    _, others = tuned_made("bertology", claims="32-34", labels=str(labels), **options)
    assert {number for number, row in others.items() if "measured" in row} == {32, 33, 34}
    assert others[34]["measured"] == rows[4]["measured"]
    assert all(0 <= others[number]["measured"] <= 1 for number in (32, 33))
    assert capsys.readouterr().err.count("run 1 of 1") == 1


@pytest.mark.slow
def test_trees_facts_numerals_spans_and_triggers_are_measured_and_their_runs_are_taken_again(
    model: Path, labels: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [f"{text} {7 ** (i % 5) + i}" for i, text in enumerate(make_sentences(300, longest=8))]
    (tmp_path / "bank.conllu").write_text(treebank(texts), encoding="utf-8")
    facts = [
        {"masked_sentences": [f"The {subject} is a [MASK]."], "sub_label": subject, "obj_label": "probe"}
        for subject in (f"token {i}" for i in range(24))
    ]
    labelled = [
        {"text": text, "targets": [{"span1": [at, at + 1], "label": text.split()[at][:1]} for at in (0, 1)]}
        for text in texts
    ]
    for name, lines in (("facts", facts), ("spans", labelled)):
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    files = {"facts": "facts.jsonl", "spans": "spans.jsonl", "corpus": "bank.conllu"}
    options = {"labels": str(labels), **{name: str(tmp_path / file) for name, file in files.items()}}
    found, rows = tuned_made("bertology", model, tmp_path / "runs", "10,35-38", **options)
    assert {number: row.get("lacking", "") for number, row in rows.items()} == dict.fromkeys((10, 35, 36, 37, 38), "")
    runs = {name: load_run(folder) for name, folder in found.results["runs"][str(model)].items()}
    best = max(row["r2"] for row in runs["numerals_above"].accuracy)
    assert (rows[36]["measured"], rows[36]["control"]) == (best, max(row["r2"] for row in runs["numerals"].accuracy))
    best_layer = max(runs["spans"].accuracy[1:], key=lambda row: row["accuracy"])
    assert rows[38]["measured"] == best_layer["accuracy"] - best_layer["token_accuracy"]
    (row,) = runs["facts"].fact_relations.where(relation="all")
    assert rows[35]["measured"] == row["above_without_subject"]
    assert rows[37]["measured"] == runs["misled"].triggers.where(condition="searched")[0]["fall"]
    assert " && python -m probing triggers --run " in rows[37]["command"]
    middle = runs["structural"].trees.where(condition="model", layer=2)[0]["uuas"]
    others = runs["structural"].trees.where(lambda row: row["layer"] != 2, condition="model")
    assert rows[10]["measured"] == pytest.approx(middle - max(others.column("uuas")))
    capsys.readouterr()
    _, again = tuned_made("bertology", model, tmp_path / "runs", "10,35-38", **options)
    assert capsys.readouterr().err.count(": read from ") == 7
    assert again == rows


@pytest.mark.slow
def test_without_labels_a_model_is_tuned_on_positions_and_a_layer_that_it_does_not_have_is_named(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path
) -> None:
    found, rows = tuned_made("shi2022", checkpoints["bert"], tmp_path, "2", corpus=str(corpus_file), quiet=True)
    assert '`tuning={"layer": -4}`: ' in rows[2]["lacking"]
    assert "has 3 blocks" in rows[2]["lacking"]
    folders = found.results["runs"][str(checkpoints["bert"])]
    assert set(folders) == {
        f"{what}_{on}" for what in ("head", "similarity") for on in ("on_last", "1_below", "2_below")
    }
    assert load_run(folders["head_2_below"]).config["task"] == "position_from_end"
    for on, n_layers in {"on_last": 3, "2_below": 1}.items():
        assert max(row["layer"] for row in load_run(folders[f"similarity_{on}"]).geometry) == n_layers
