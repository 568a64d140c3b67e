"""Data sets as corpora, as a whole or as streams, from folders on this machine; no test reaches the hub."""

from __future__ import annotations

import csv
import gzip
import json
import os
import pickle
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import BARE
from probing import WandbOptions, fit
from probing.errors import UserError
from probing.studies.fit import extract
from probing.text import Corpus, from_words, load_corpus
from probing.text.tasks import load_task
from probing.text.tokens import Tokens
from synthetic import make_tokens

datasets = pytest.importorskip("datasets", reason="the extra hf is not installed")

Rows = list[dict[str, Any]]

PROSE: Rows = [
    {"text": "One  two.", "n": 1, "tokens": ["One", "two", "."], "other": "a"},
    {"text": None, "n": 2, "tokens": [], "other": None},
    {"text": "Three\nfour.", "n": 3, "tokens": ["New York", ""], "other": "b"},
    {"text": "", "n": 4, "tokens": None, "other": ""},
    {"text": "One two.", "n": 5, "tokens": ["One", "two", "."], "other": "a"},
]


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., str]:
    """Write files of rows as JSON lines into a folder: `folder(train=rows, test=rows)` returns `hf:FOLDER`."""

    def write(**files: Rows) -> str:
        (tmp_path / "data").mkdir(exist_ok=True)
        for name, rows in files.items():
            (tmp_path / "data" / f"{name}.jsonl").write_text(
                "".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8"
            )
        return f"hf:{tmp_path / 'data'}"

    return write


def parquet(path: Path) -> None:
    import pyarrow as pa
    from pyarrow.parquet import write_table

    write_table(pa.Table.from_pylist([{"text": row["text"]} for row in PROSE]), path)


@pytest.mark.parametrize(
    ("suffix", "write"),
    [
        ("parquet", parquet),
        (
            "csv",
            lambda path: path.write_text('n,text\n1,One  two.\n2,\n3,"Three\nfour."\n4,One two.\n', encoding="utf-8"),
        ),
        (
            "jsonl",
            lambda path: path.write_text(
                "".join(json.dumps({"text": row["text"]}) + "\n" for row in PROSE), encoding="utf-8"
            ),
        ),
        ("txt", lambda path: path.write_text("One  two.\n\nThree\u2028four.\nOne two.\n", encoding="utf-8")),
    ],
)
def test_a_folder_of_any_kind_gives_the_same_sentences(
    tmp_path: Path, suffix: str, write: Callable[[Path], Any], capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").mkdir()
    write(tmp_path / "data" / f"train.{suffix}")
    corpus = load_corpus(f"hf:{tmp_path / 'data'}")
    assert corpus.sentences == ("One two.", "Three four.")
    assert (corpus.words, corpus.n_repeated) == (None, 1)
    assert corpus.n_without_text == {"csv": 1, "parquet": 2, "jsonl": 2, "txt": 1}[suffix]
    assert capfd.readouterr() == ("", f"read hf:{tmp_path / 'data'}: text = column text, 2 sentences\n")
    assert not datasets.are_progress_bars_disabled()


@pytest.mark.parametrize(
    ("query", "sentences"),
    [
        ("", ("One two.", "Three four.")),
        ("?column=other", ("a", "b")),
        ("?split=test", ("Tested.",)),
        ("?config=default&column=other&split=train[:2]", ("a",)),
        ("?split=train[40%:60%]+test", ("Three four.", "Tested.")),
    ],
)
def test_config_split_and_column_are_chosen(folder: Callable[..., str], query: str, sentences: tuple[str, ...]) -> None:
    source = folder(train=PROSE, test=[{**PROSE[0], "text": "Tested."}])
    assert load_corpus(source + query).sentences == sentences


@pytest.mark.parametrize(
    ("row", "found"),
    [
        ({"sentence": "x", "label": "y", "text": "z"}, "z"),
        ({"label": "y", "sentence": "x"}, "x"),
        ({"text": 3, "label": "y", "sentence": "x"}, "x"),
        ({"id": 3, "review": "x"}, "x"),
        ({"id": 3, "tokens": ["x", "y"]}, "x y"),
    ],
)
def test_the_column_is_text_then_sentence_then_the_only_one(
    folder: Callable[..., str], row: Mapping[str, Any], found: str
) -> None:
    assert load_corpus(folder(train=[row])).sentences == (found,)


def test_cells_of_csv_files_are_text_as_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    labels = ["01", "1", "1.0", "NA", "None", "null", "nan", "True", "-100", ""]
    (data := tmp_path / "data").mkdir()
    rows = "".join(f"t {i},{label}\n" for i, label in enumerate(labels))
    (data / "train.csv").write_text(f"text,label\n{rows}null,01\n", encoding="utf-8")
    monkeypatch.chdir(data)
    for source in (f"hf:{data}", "hf:."):
        corpus = load_corpus(source)
        assert corpus.sentence_columns["label"] == (*labels[:-1], None, "01")
        assert corpus.sentences[-1] == "null"
    found = load_task("sentence_label", {}).labels(make_tokens([3]), corpus)
    assert list(found) == [*labels[:8], "", "", "01"]


def test_lists_of_strings_are_words(checkpoints: dict[str, Path], tmp_path: Path, folder: Callable[..., str]) -> None:
    source = folder(train=PROSE) + "?column=tokens"
    corpus = load_corpus(source)
    assert corpus.words == (("One", "two", "."), ("New York", ""))
    assert corpus.fingerprint == from_words("x", [["One", "two", "."], ["New York", ""]]).fingerprint
    entry = extract(str(checkpoints["distilbert"]), 0, corpus=source, cache=str(tmp_path / "cache"), quiet=True)
    assert set(Tokens.load(entry / "tokens.safetensors").words[-6:].tolist()) == {-1, 0}  # New York is one word


def test_a_folder_that_changed_is_read_again(folder: Callable[..., str]) -> None:
    source = folder(train=PROSE)
    before = load_corpus(source)
    assert load_corpus(folder(train=[*PROSE, {**PROSE[0], "text": "More."}])).sentences == (*before.sentences, "More.")


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("?split=dev", "there is no split dev; give one of train, test as split="),
        ("?split=train[:150%25]", r"split train\[:150%25\] is invalid \(.+\); give one of train, test"),
        ("?config=en", "there is no configuration en; give one of default as config="),
        ("?column=txet", "there is no column txet; of the columns text, n, tokens, other, .*: text, tokens, other"),
        ("?column=n", "column n holds no text; of the columns text, n, tokens, other, give one"),
        (
            "?colunm=n",
            r"`colunm` is not one of .* \(did you mean `column`\?\); expected hf:NAME\?config=C&split=S&column=T",
        ),
        ("?split=train&split=test", "may each be given once"),
        ("?split", "expected hf:NAME"),
        ("?split=", "expected hf:NAME"),
    ],
)
def test_what_a_data_set_does_not_have_is_refused(folder: Callable[..., str], query: str, message: str) -> None:
    source = folder(train=PROSE, test=PROSE)
    with pytest.raises(UserError, match=message) as caught:
        load_corpus(source + query, "--test_corpus")
    assert str(caught.value).startswith(f"`--test_corpus {source}{query}`")
    assert ". " not in str(caught.value)  # one sentence


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"a": "x", "b": "y"}], "not clear which column .*of the columns a, b, give one with text as column=: a, b"),
        ([{"a": 1, "b": 2.0}], "none of the columns a, b holds text"),
        ([{"text": "x"}, {"text": None}, {"text": 3}], "row 2 of column text, counted from 0, is 3 where text was"),
        ([{"text": ["x"]}, {"text": "x"}], "row 1 of column text, .* is 'x' where a list of words was expected"),
        ([{"text": ["x", None]}], r"row 0 of column text, .* is \['x', None\] where text was expected"),
        ([{"text": ""}, {"text": None}, {"text": " "}], "holds no sentence"),
    ],
)
def test_rows_that_are_not_text_are_refused(folder: Callable[..., str], rows: Rows, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_corpus(folder(train=rows))


def test_a_data_set_of_several_configurations_wants_one_named(tmp_path: Path) -> None:
    for name in ("x", "y"):
        (tmp_path / f"{name}.csv").write_text(f"text\n{name}\n", encoding="utf-8")
    configs = "".join(f"- config_name: {name}\n  data_files: {name}.csv\n" for name in ("x", "y"))
    (tmp_path / "README.md").write_text(f"---\nconfigs:\n{configs}---\n", encoding="utf-8")
    assert load_corpus(f"hf:{tmp_path}?config=y").sentences == ("y",)
    with pytest.raises(UserError, match="it has several configurations; give one of x, y as config="):
        load_corpus(f"hf:{tmp_path}")


class Payload:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("executed"),))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("data.py", b"open('executed', 'w')"),
        ("data.pkl", pickle.dumps(Payload())),
        ("data.parquet", b"junk"),
        ("x", b""),
    ],
)
@pytest.mark.parametrize("source", ["hf:data", "hf:data/", "hf:pandas"])
def test_code_pickles_and_junk_are_refused_and_never_run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    name: str,
    content: bytes,
    source: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    for folder in (".", "data"):
        Path(folder, name).write_bytes(content)
    with pytest.raises(UserError, match=r"cannot be read .*a folder of parquet, csv, json or text files"):
        load_corpus(source)
    assert not Path("executed").exists()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", ["no/such-data-set", "imdb", "no/such/folder", "/no/such/folder", "a b"])
def test_without_network_the_way_out_is_named(name: str) -> None:
    with pytest.raises(UserError, match=r"cannot be read \(Couldn't .*; give .* or offline a folder of parquet"):
        load_corpus(f"hf:{name}")


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"needs the library datasets.*pip install 'neuron-probing\[hf\]'"):
        load_corpus("hf:anything")


# --- labels ---


def labelled(folder: Path, sentences: list[str]) -> str:
    """Save a data set of words with classes of words and of sentences, as the hub has them."""
    words = [text.split() for text in sentences]
    tag, tone = datasets.ClassLabel(names=["O", "B-LONG", "I-LONG"]), datasets.ClassLabel(names=["short", "long"])
    rows: dict[str, Any] = {
        "id": [str(i) for i in range(len(words))],
        "tokens": words,
        "ner_tags": [[1 if len(word) > 5 else 0 for word in row] for row in words],
        "length": [[len(word) for word in row] for row in words],
        "tone": [int(len(row) > 20) for row in words],
        "score": [len(row) / 2 for row in words],
    }
    rows["ner_tags"][0] = None
    rows["ner_tags"][1][0] = -1
    rows["tone"][1] = -1
    features = {
        "id": datasets.Value("string"), "tokens": [datasets.Value("string")], "ner_tags": [tag],
        "length": [datasets.Value("int32")], "tone": tone, "score": datasets.Value("float64"),
    }  # fmt: skip
    folder.mkdir()
    datasets.Dataset.from_dict(rows, datasets.Features(features)).to_parquet(folder / "train.parquet")
    return f"hf:{folder}?column=tokens"


def test_classes_of_words_and_of_sentences_have_their_names(tmp_path: Path, sentences: list[str]) -> None:
    corpus = load_corpus(labelled(tmp_path / "data", sentences[:3]))
    words = [text.split() for text in sentences[:3]]
    assert corpus.columns["ner_tags"][0] == ("_",) * len(words[0])
    assert corpus.columns["ner_tags"][1][0] == "_"
    assert corpus.columns["ner_tags"][2] == tuple("B-LONG" if len(word) > 5 else "O" for word in words[2])
    assert corpus.columns["length"][2] == tuple(str(len(word)) for word in words[2])
    assert set(corpus.columns) == {"ner_tags", "length"}
    assert corpus.sentence_columns["tone"][1] is None
    assert corpus.sentence_columns["tone"][2] == ("long" if len(words[2]) > 20 else "short")
    assert corpus.sentence_columns["score"] == tuple(len(row) / 2 for row in words)
    assert corpus.sentence_columns["id"] == ("0", "1", "2")


def test_a_column_of_a_data_set_is_a_task(tmp_path: Path, checkpoints: dict[str, Path], sentences: list[str]) -> None:
    source = labelled(tmp_path / "data", sentences)
    corpus, tsv = load_corpus(source), tmp_path / "words.tsv"
    rows = zip(corpus.words or (), corpus.columns["ner_tags"], strict=True)
    tsv.write_text("\n".join("".join(map("{}\t{}\n".format, *row)) for row in rows), encoding="utf-8")
    by_column, by_file = (
        fit(
            model=str(checkpoints["bert"]), corpus=source, task=task, task_args=options, layer=2, quiet=True,
            name=task, runs=str(tmp_path / "runs"), wandb=WandbOptions(mode="disabled"), **BARE,
        )
        for source, task, options in ((source, "column", {"column": "ner_tags"}), (str(tsv), "label", {}))
    )  # fmt: skip
    assert by_column is not None
    assert by_file is not None
    assert by_column.results["classes"] == ["B-LONG", "O"]
    assert by_column.accuracy == by_file.accuracy
    assert by_column.neurons == by_file.neurons


def test_a_column_with_another_number_of_values_is_refused(folder: Callable[..., str]) -> None:
    rows = [{"tokens": ["One", "two"], "tags": ["A", "B"]}, {"tokens": ["Three", "four"], "tags": ["A"]}]
    corpus = load_corpus(folder(train=rows) + "?column=tokens")
    tokens = Tokens(np.array([2, 2], np.int32), np.arange(4, dtype=np.int32), np.array([0, 1, 0, 1], np.int16))
    with pytest.raises(UserError, match="the column tags has 1 values for the 2 words of `Three four`; give a value"):
        load_task("column", {"column": "tags"}).labels(tokens, corpus)


# More rows than are taken at a time, some of them empty, repeated, or without a label, as the first ones are.
TEXTS = ["", *(f"Line  {i % 2100} of many." for i in range(2500)), "", "The end."]
LABELS = [None] * 10 + ["01", "1", "NA"] * 830
LABELS += [None] * (len(TEXTS) - len(LABELS))
PARTS = ["[:7]", "[:1003]", "[1200:2400]", "[2400:9999]", "[:1000]"]


@pytest.fixture(autouse=True)
def copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[Path]]:
    """List the copies that the library has written."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "arrow"))
    return lambda: list((tmp_path / "arrow").rglob("*.arrow"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (folder := tmp_path / "data").mkdir()
    return folder


def as_jsonl(folder: Path) -> None:
    lines = (json.dumps({"text": text, "label": label}) for text, label in zip(TEXTS, LABELS, strict=True))
    (folder / "train.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def as_json_list(folder: Path) -> None:
    rows = [{"text": text, "label": label} for text, label in zip(TEXTS, LABELS, strict=True)]
    (folder / "train.json").write_text(json.dumps(rows), encoding="utf-8")


def as_packed_csv(folder: Path) -> None:
    with gzip.open(folder / "train.csv.gz", "wt", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *zip(TEXTS, LABELS, strict=True)])


def as_text(folder: Path) -> None:
    (folder / "train.txt").write_text("".join(f"{text}\n" for text in TEXTS), encoding="utf-8")


def as_two_parquet_files_of_words(folder: Path) -> None:
    tag, tone = datasets.ClassLabel(names=["O", "LONG"]), datasets.ClassLabel(names=["short", "long"])
    words = [text.split() for text in TEXTS]
    rows = {
        "words": words,
        "tags": [[int(len(word) > 3) for word in row] or None for row in words],
        "tone": [int(len(row) > 3) - (i % 9 == 0) for i, row in enumerate(words)],
        "score": [i / 3 for i in range(len(words))],
    }
    features = {"words": [datasets.Value("string")], "tags": [tag], "tone": tone, "score": datasets.Value("float64")}
    whole = datasets.Dataset.from_dict(rows, datasets.Features(features))
    for i in range(2):
        whole.shard(2, i, contiguous=True).to_parquet(folder / f"train-{i}-of-2.parquet", batch_size=300)


KINDS = [as_jsonl, as_json_list, as_packed_csv, as_text, as_two_parquet_files_of_words]


def unnamed(corpus: Corpus) -> Corpus:
    return replace(corpus, name="")


@pytest.mark.slow
@pytest.mark.parametrize("write", KINDS)
def test_a_stream_gives_the_corpus_of_a_copy(
    data: Path, copies: Callable[[], list[Path]], write: Callable[[Path], Any]
) -> None:
    write(data)
    streamed = load_corpus(f"hf:{data}?stream=yes")
    parts = [load_corpus(f"hf:{data}?split=train{part}") for part in PARTS]
    assert not copies()
    copied = load_corpus(f"hf:{data}")
    assert copies()
    assert unnamed(streamed) == unnamed(copied)
    assert streamed.fingerprint == copied.fingerprint
    assert len(streamed.sentences) == 2101
    for part, corpus in zip(PARTS, parts, strict=True):
        assert corpus == load_corpus(f"hf:{data}?split=train{part}")


def test_rows_of_a_copy_that_is_there_are_not_read_again(data: Path) -> None:
    as_text(data)
    corpus = load_corpus(f"hf:{data}")
    file, was = data / "train.txt", (data / "train.txt").stat()
    file.write_bytes(b"x" * was.st_size)
    os.utime(file, ns=(was.st_atime_ns, was.st_mtime_ns))  # which tell the library that it is the same file
    assert load_corpus(f"hf:{data}?split=train[:2000]").sentences == corpus.sentences[:1999]
    assert load_corpus(f"hf:{data}?stream=yes&split=train[:1]").sentences[0].startswith("xxx")


@pytest.mark.slow
def test_of_a_million_lines_a_thousand_are_read(data: Path, copies: Callable[[], list[Path]]) -> None:
    needed = "".join(json.dumps({"text": f"Line {i} of a million."}) + "\n" for i in range(1000))
    line = json.dumps({"text": "A line that nobody asked for. " * 3}) + "\n"
    (data / "train.jsonl").write_text(needed + line * 999_000 + "no JSON", encoding="utf-8")
    before = bytes_read()
    corpus = load_corpus(f"hf:{data}?split=train[:1000]")
    # The library reads 10 MiB at a time: once for the columns, once for the rows, and once ahead.
    assert bytes_read() - before < 35 * 2**20 < (data / "train.jsonl").stat().st_size / 2
    assert not copies()
    assert corpus.sentences == tuple(f"Line {i} of a million." for i in range(1000))
    with pytest.raises(UserError, match="cannot be read"):  # since it comes to the damage at the end
        load_corpus(f"hf:{data}?stream=yes")


def bytes_read() -> int:
    """Return how many bytes this process has read; 0 where the system does not tell."""
    counts = Path("/proc/self/io")
    return int(counts.read_text(encoding="utf-8").split()[1]) if counts.exists() else 0


@pytest.mark.slow
def test_a_download_that_ends_early_is_refused_where_it_ends(data: Path) -> None:
    packed = gzip.compress("".join(f"{os.urandom(9000).hex()}\n" for _ in range(2000)).encode())
    (data / "train.txt.gz").write_bytes(packed[: len(packed) * 3 // 4])
    assert len(load_corpus(f"hf:{data}?split=train[:300]").sentences) == 300
    with pytest.raises(UserError, match=r"train\[:1900\]` cannot be read \(.*end-of-stream.*\); give the id of a data"):
        load_corpus(f"hf:{data}?split=train[:1900]")


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("split=dev[:3]", "there is no split dev; give one of train as split="),
        ("split=dev&stream=yes", "there is no split dev; give one of train as split="),
        ("split=train[:10%]&stream=yes", r"split train\[:10%\] cannot be read as a stream, which has split=NAME or"),
        ("split=train+train&stream=yes", r"split train\+train cannot be read as a stream"),
        ("column=txet&stream=yes", "there is no column txet; of the columns text, label, give one"),
        ("split=train[:1]", "holds no sentence"),
        ("split=train[3:3]", "holds no sentence"),
        ("split=train[3:2]", "holds no sentence"),
        ("stream=no", r"expected hf:NAME\?config=C&split=S&column=T&label=L&stream=yes in quotation marks"),
    ],
)
def test_what_a_stream_does_not_have_is_refused(data: Path, query: str, message: str) -> None:
    as_jsonl(data)
    with pytest.raises(UserError, match=message):
        load_corpus(f"hf:{data}?{query}")


@pytest.mark.parametrize("query", ["?stream=yes", "?split=train[:9]"])
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("train.jsonl", "its files are empty"),
        ("train.txt", "its files are empty"),
        ("train.csv", "No columns to parse from file"),
        ("train.parquet", "Parquet file size is 0 bytes"),
    ],
)
def test_an_empty_stream_is_refused(data: Path, name: str, reason: str, query: str) -> None:
    (data / name).touch()
    with pytest.raises(UserError, match=rf"cannot be read \({reason}\); give the id of a data set"):
        load_corpus(f"hf:{data}{query}")


def test_rows_that_are_not_text_are_refused_by_their_number(data: Path) -> None:
    (data / "train.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n{"text": 3}\n', encoding="utf-8")
    assert load_corpus(f"hf:{data}?split=train[:2]").sentences == ("a", "b")
    with pytest.raises(UserError, match="row 1 of column text, counted from 0, is 3 where text was expected"):
        load_corpus(f"hf:{data}?split=train[1:3]")
