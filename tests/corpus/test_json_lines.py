"""Labels from .jsonl files."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from probing.builtin_tasks.label import Label

from conftest import BARE
from probing import WandbOptions, fit
from probing.corpus import load_corpus
from probing.errors import UserError


def write(path: Path, *rows: Any) -> str:
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def test_lists_are_values_of_words_and_others_of_the_sentence(tmp_path: Path) -> None:
    rows = [
        {"words": ["Dogs", "bark"], "labels": ["N", "V"], "number": [3, None], "tone": "plain", "score": 0.5, "x": {}},
        "\n",
        {"words": ["Dogs", "bark"], "labels": ["X", "X"]},
        {"words": ["He  is", "né"], "labels": None, "score": 1, "number": [1, 2]},
    ]
    path = write(tmp_path / "words.jsonl", *rows)
    corpus = load_corpus(path)
    assert corpus.words == (("Dogs", "bark"), ("He is", "né"))
    assert corpus.columns["labels"] == corpus.columns["label"] == (("N", "V"), ("_", "_"))
    assert corpus.columns["number"] == (("3", "_"), ("1", "2"))
    assert corpus.sentence_columns == {"tone": ("plain", None), "score": (0.5, 1)}
    assert corpus.n_repeated == 1
    packed = tmp_path / "packed.jsonl.gz"
    packed.write_bytes(gzip.compress(Path(path).read_bytes()))
    assert load_corpus(str(packed)).fingerprint == corpus.fingerprint


def test_running_text_has_values_of_sentences(tmp_path: Path) -> None:
    rows = [{"id": 1, "text": " Dogs  bark. ", "label": "a", "spans": [1, 2]}, {"text": "He is.", "label": None}]
    corpus = load_corpus(write(tmp_path / "text.jsonl", *rows))
    assert corpus.sentences == ("Dogs bark.", "He is.")
    assert (corpus.words, corpus.columns) == (None, {})
    assert corpus.sentence_columns == {"id": (1, None), "label": ("a", None)}


def test_rows_without_text_are_counted(tmp_path: Path) -> None:
    rows = [{"text": "a"}, {"text": ""}, {"text": " \t"}, {"text": "a"}]
    corpus = load_corpus(write(tmp_path / "a.jsonl", *rows))
    assert (corpus.sentences, corpus.n_repeated, corpus.n_without_text) == (("a",), 1, 2)
    words = [{"words": ["-DOCSTART-"]}, {"words": ["a"]}, {"words": []}, {"words": ["", " "]}, {"words": ["b"]}]
    corpus = load_corpus(write(tmp_path / "b.jsonl", *words))
    assert (corpus.sentences, corpus.n_repeated, corpus.n_without_text) == (("a", "b"), 0, 2)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (['{"words": ["a"]}\n', "{words\n"], r"line 2 is not JSON \(.*, in '{words'\); expected lines such as"),
        (['["a"]\n'], r"line 1 is not a JSON object \(found '\[\"a\"\]'\)"),
        ([{"label": "a"}], "line 1 has no sentence as 'words' or 'text'"),
        ([{"words": ["a"]}, {"text": "a"}], "line 2 has no list of words as 'words', which the first line has"),
        ([{"words": ["a", 3]}], "line 1 has no list of words"),
        ([{"text": "a b"}, {"text": ["a", "b"]}], "line 2 has no sentence as 'text'"),
        ([{"sentence1": "a b", "sentence2": "c d"}], r"no sentence as 'words' or 'text'; .*\?text=sentence1`"),
        ([{"words": ["a", "b"], "labels": ["N"]}], "line 1 has 1 values as 'labels' for its 2 words"),
        ([{"words": ["a"], "tag": ["N"]}, {"words": ["b"], "tag": "N"}], "line 2 has 'N' as 'tag' for its 1 words"),
        (["\n"], "holds no sentence"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path: Path, rows: list[Any], message: str) -> None:
    path = write(tmp_path / "wrong.jsonl", *rows)
    with pytest.raises(UserError, match=rf"^`--corpus {path}`:? .*{message}"):
        load_corpus(path)


def test_the_task_label_reads_it_as_it_reads_a_tsv_file(
    tmp_path: Path, checkpoints: dict[str, Path], sentences: list[str]
) -> None:
    labelled = [[(word, "LONG" if len(word) > 5 else "SHORT") for word in text.split()] for text in sentences]
    tsv = tmp_path / "words.tsv"
    tsv.write_text(
        "\n".join("".join(f"{word}\t{label}\n" for word, label in rows) for rows in labelled), encoding="utf-8"
    )
    objects = [{"words": [w for w, _ in rows], "labels": [label for _, label in rows]} for rows in labelled]
    jsonl = write(tmp_path / "words.jsonl", *objects)
    assert load_corpus(str(tsv)).columns["label"] == load_corpus(jsonl).columns["label"]
    runs = [
        fit(
            model=str(checkpoints["bert"]), corpus=corpus, task=Label(), layer=2, name=name, quiet=True,
            runs=str(tmp_path / "runs"), wandb=WandbOptions(mode="disabled"), **BARE,
        )
        for name, corpus in (("tsv", str(tsv)), ("jsonl", jsonl))
    ]  # fmt: skip
    by_tsv, by_jsonl = (made for made in runs if made is not None)
    assert by_tsv.results["classes"] == ["LONG", "SHORT"]
    assert by_tsv.neurons == by_jsonl.neurons
    assert by_jsonl.config["task"] == "label"
