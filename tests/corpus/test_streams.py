"""Data sets read as streams, from folders on this machine: what a copy gives, and no more than was asked for."""

from __future__ import annotations

import csv
import gzip
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from probing.corpus import Corpus, load_corpus
from probing.errors import UserError

datasets = pytest.importorskip("datasets", reason="the extra hf is not installed")

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
