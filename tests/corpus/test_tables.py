"""Tables of sentences and files of words as people have them: .csv, .tsv with a header, .conll."""

from __future__ import annotations

import csv
import gzip
import io
from pathlib import Path

import pytest

from conftest import BARE
from probing import UserError, WandbOptions, fit
from probing.corpus import Corpus, load_corpus

ROWS = [(f"Sentence {i}, of some words.", ("good", "bad")[i % 2]) for i in range(6)]


def written(path: Path, header: list[str], rows: list[list[str]], **how: str) -> str:
    text = io.StringIO()
    csv.writer(text, **how).writerows([header, *rows])  # type: ignore[arg-type]
    path.write_text(text.getvalue(), encoding="utf-8")
    return str(path)


def read(path: Path, text: str) -> Corpus:
    path.write_text(text, encoding="utf-8")
    return load_corpus(str(path))


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("ending", ["csv", "csv.gz", "tsv"])
def test_named_columns_are_read_as_they_are_named(tmp_path: Path, delimiter: str, ending: str) -> None:
    if ending == "tsv" and delimiter != "\t":
        pytest.skip("the name says what divides cells")
    rows = [[label, text, "x"] for text, label in ROWS]
    file = Path(written(tmp_path / "own", ["Label", "Text", ""], rows, delimiter=delimiter))
    path = tmp_path / f"own.{ending}"
    path.write_bytes(gzip.compress(file.read_bytes()) if ending.endswith("gz") else file.read_bytes())
    corpus = load_corpus(str(path))
    assert corpus.sentences == tuple(text for text, _ in ROWS)
    assert corpus.sentence_columns["label"] == tuple(label for _, label in ROWS)
    assert corpus.reading.startswith('text = column Text, label = column Label ("Sentence 0, of some words." good, ')


def test_quoted_cells_have_delimiters_quotation_marks_and_line_ends(tmp_path: Path) -> None:
    corpus = load_corpus(
        written(tmp_path / "a.csv", ["text", "label"], [['He said "a, b",\nand c.', "x"], ["D e.", "y"]])
    )
    assert corpus.sentences == ('He said "a, b", and c.', "D e.")
    # In a .tsv file, quotation marks are characters as any other.
    assert read(tmp_path / "a.tsv", 'text\tlabel\n"A b\tx\nC "d" e"\ty\n').sentences == ('"A b', 'C "d" e"')


@pytest.mark.parametrize(
    ("header", "row", "label", "text"),
    [
        (["review", "stars"], [], "stars", "review"),
        (["id", "sentence", "topic"], ["id"], "topic", "sentence"),
        (["id", "body", "labels"], ["id"], "labels", "body"),
    ],
)
def test_what_is_chosen_is_said(tmp_path: Path, header: list[str], row: list[str], label: str, text: str) -> None:
    rows = [[*(f"{name}{i}" for name in row), *pair] for i, pair in enumerate(ROWS)]
    corpus = load_corpus(written(tmp_path / "own.csv", header, rows))
    assert corpus.sentences == tuple(text for text, _ in ROWS)
    assert corpus.reading.startswith(f"text = column {text}, label = column {label} (")
    assert corpus.sentence_columns[label] == tuple(one for _, one in ROWS)
    assert corpus.sentence_columns["label" if label != "labels" else label] == corpus.sentence_columns[label]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.csv", "", "holds no sentence: expected a first line"),
        ("a.csv", "text,label\n", "holds no sentence"),
        ("a.csv", "text,label\nA b.\n", "line 2 has 1 cell and the header has 2"),
        ("a.csv", "text,label\nA b, c,x\n", "line 2 has 3 cells"),
        ("a.csv", 'text,label\n"A b,x\nC d,y\n', "is not a table in line"),
        ("a.csv", "text,text\nA b,x\n", "two columns are called text"),
        ("a.csv", "a,b\nA b,c d\nE f,g h\n", "of the columns a, b, it is not clear which holds the sentences"),
        ("a.csv", "a,b\nx,y\nz,w\n", "it is not clear which"),
        (
            "a.tsv",
            "A sentence here.\tx\nAnother one.\ty\n",
            "may be a sentence with its label, or name the columns; put a first line",
        ),
        ("a.conll", "EU NNP B\nrejects VBZ\n", r"line 2 has 2 columns \(found 'rejects VBZ'\), where 3"),
        ("a.conll", "EU\nrejects\n", "a word and its label were expected"),
    ],
)
def test_a_table_that_cannot_be_told_is_refused(tmp_path: Path, name: str, text: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        read(tmp_path / name, text)


def test_a_file_of_words_stays_one_whatever_its_words_and_labels(tmp_path: Path) -> None:
    assert read(tmp_path / "one.tsv", "Mona\twork of art\nLisa\twork of art\n").words == (("Mona", "Lisa"),)
    corpus = read(tmp_path / "words.tsv", "text\tNOUN\nis\tVERB\n\nsentence\tNOUN\nNew York\tPROPN\n")
    assert corpus.sentences == ("text is", "sentence New York")
    assert corpus.columns["label"] == (("NOUN", "VERB"), ("NOUN", "PROPN"))


@pytest.mark.parametrize("divider", [" ", "\t", "   "])
def test_conll_has_words_first_and_labels_last(tmp_path: Path, divider: str) -> None:
    lines = [
        "-DOCSTART- -X- O",
        "",
        "EU NNP B-ORG",
        "# NN O",
        "",
        "# id = 2",
        "-DOCSTART- -X- O",
        "",
        "Peter NNP B-PER",
        "",
    ]
    text = "\n".join(line if line.startswith("# id") else line.replace(" ", divider) for line in lines)
    corpus = read(tmp_path / "ner.conll", text)
    assert corpus.words == (("EU", "#"), ("Peter",))
    assert corpus.columns["label"] == (("B-ORG", "O"), ("B-PER",))
    assert corpus.documents == (0, 1)


def test_conll_of_ten_columns_is_a_treebank(tmp_path: Path) -> None:
    words = ["1 The the DET DT _ 2 det _ _", "2 dog dog NOUN NN _ 0 root _ _", ""]
    lines = ["# newdoc", *words, "# newdoc", *(line.replace("dog", "cat") for line in words)]
    text = "\n".join(line if line.startswith("#") else line.replace(" ", "\t") for line in lines)
    corpus = read(tmp_path / "a.conll", text)
    assert corpus.columns["upos"] == (("DET", "NOUN"), ("DET", "NOUN"))
    assert corpus.documents == (0, 1)


def test_labels_that_are_not_used_are_said(
    checkpoints: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [[f"Some words {'and others ' * (i % 9)}in sentence {i}.", "ab"[i % 2]] for i in range(300)]
    file = written(tmp_path / "own.csv", ["review", "stars"], rows)
    how = {"model": checkpoints["bert"], "corpus": file, "layer": 1, "runs": tmp_path / "runs", **BARE}
    fit(**how, wandb=WandbOptions(mode="disabled"))
    said = capsys.readouterr().err
    assert "own.csv: its labels are not used; `--task sentence_label` predicts them" in said
    assert "own.csv: text = column review, label = column stars (" in said
    run = fit(**how, task="sentence_label", wandb=WandbOptions(mode="disabled"))
    assert run.results["classes"] == ["a", "b"]
    assert "not used" not in capsys.readouterr().err


def test_a_table_without_names_of_columns_does_not_lose_its_first_row(tmp_path: Path) -> None:
    rows = [[text, label] for text, label in ROWS]
    corpus = load_corpus(written(tmp_path / "own.csv", rows[0], rows[1:]))
    assert corpus.sentences == tuple(text for text, _ in ROWS)
    assert corpus.sentence_columns["label"] == tuple(label for _, label in ROWS)
    assert corpus.reading.startswith('text = column 1, label = column 2 ("Sentence 0, ')
    # A name that no row has as its label is a name.
    assert len(load_corpus(written(tmp_path / "named.csv", ["What they said", "quality"], rows)).sentences) == len(ROWS)


@pytest.mark.parametrize(
    ("task", "column", "words"),
    [
        ("sentence_label", {}, r"reads the column label .* has id, year, genre; .* `--task_args.column year`"),
        ("sentence_label", {"column": "gnre"}, r"\(did you mean `genre`\?\); name one of them"),
        ("label", {}, r"columns of sentences \(id, year, genre\); `--task sentence_label --task_args.column id`"),
        ("column", {"column": "genre"}, r"`--task sentence_label --task_args.column genre` predicts these"),
    ],
)
def test_a_column_that_is_not_there_or_of_sentences_is_said_with_the_way_to_it(
    tmp_path: Path, task: str, column: dict[str, str], words: str, checkpoints: dict[str, Path]
) -> None:
    rows = [[str(i), text, str(2000 + i % 2), label] for i, (text, label) in enumerate(ROWS)]
    path = written(tmp_path / "own.csv", ["id", "text", "year", "genre"], rows)
    with pytest.raises(UserError, match=words):
        fit(model=str(checkpoints["bert"]), corpus=path, task=task, task_args=column, layer=0, runs=str(tmp_path))
