"""The WiC data set read in both of its forms."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from probing.downstream.labelled_pairs import WordPairs, read_wic, read_wic_parts
from probing.errors import UserError
from small_data import word_pairs, write_wic


def spelled(pairs: WordPairs) -> list[tuple[tuple[str, ...], tuple[str, ...], str, str, bool]]:
    """Return the words of each pair's sentences, its two targets and its label."""
    words = pairs.corpus.words or ()
    return [
        (words[i], words[j], words[i][a], words[j][b], bool(label))
        for (i, j), (a, b), label in zip(pairs.sentences, pairs.targets, pairs.labels, strict=True)
    ]


def test_the_original_form_is_read_pair_by_pair(tmp_path: Path) -> None:
    made = word_pairs(30, 0)
    write_wic(tmp_path, "train", made)
    write_wic(tmp_path, "dev", made[:10])
    found = read_wic(str(tmp_path), ["train", "dev"])
    expected = [(tuple(a), tuple(b), a[place], b[place], same) for a, b, place, same in made]
    assert spelled(found["train"]) == expected
    assert spelled(found["dev"]) == expected[:10]
    assert len(set(found["train"].corpus.sentences)) == len(found["train"].corpus.sentences)
    kept = found["dev"].pick(found["dev"].labels)
    assert spelled(kept) == [pair for pair in expected[:10] if pair[4]]


def test_the_parts_that_are_there_are_found(tmp_path: Path) -> None:
    write_wic(tmp_path, "train", made := word_pairs(30, 0))
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "test.data.txt").write_text("without labels", encoding="utf-8")
    found = read_wic_parts(str(tmp_path))
    assert list(found) == ["train"]
    assert spelled(found["train"]) == spelled(read_wic(str(tmp_path), ["train"])["train"])
    assert read_wic_parts(str(tmp_path / "test")) == {}
    assert found["train"].n_pairs == len(made)


def test_the_word_is_found_by_its_index_even_where_it_stands_twice(tmp_path: Path) -> None:
    (tmp_path / "train.data.txt").write_text("run\tV\t4-0\tthe run was a run\trunning is fun\n", encoding="utf-8")
    (tmp_path / "train.gold.txt").write_text("T\n", encoding="utf-8")
    (pair,) = spelled(read_wic(str(tmp_path), ["train"])["train"])
    assert pair[2:] == ("run", "running", True)
    assert read_wic(str(tmp_path), ["train"])["train"].targets.tolist() == [[4, 0]]


ROW: dict[str, Any] = {
    "word": "board", "sentence1": "Room and board.", "sentence2": 'He nailed "boards" across.', "start1": 9,
    "end1": 14, "start2": 11, "end2": 17, "label": 0, "idx": 0,
}  # fmt: skip


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Write splits as JSON lines: `hub(train=rows)` returns `hf:FOLDER`."""
    datasets = pytest.importorskip("datasets", reason="the extra hf is not installed")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "arrow"))

    def write(**splits: list[dict[str, Any]]) -> str:
        (tmp_path / "data").mkdir()
        for split, rows in splits.items():
            (tmp_path / "data" / f"{split}.jsonl").write_text(
                "".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8"
            )
        return f"hf:{tmp_path / 'data'}"

    return write


def test_the_form_of_superglue_sets_the_word_off_as_the_original_does(hub: Callable[..., str]) -> None:
    true = {**ROW, "label": 1}
    source = hub(train=[ROW, true], validation=[true], test=[{**ROW, "label": -1}])
    found = read_wic(source, ["train", "dev"])
    first, second = ("Room", "and", "board", "."), ("He", "nailed", '"', "boards", '"', "across.")
    assert spelled(found["train"]) == [(first, second, "board", "boards", label) for label in (False, True)]
    assert found["dev"].n_pairs == 1
    assert list(read_wic_parts(source)) == ["train", "dev"]
    assert spelled(read_wic_parts(source)["train"]) == spelled(found["train"])
    with pytest.raises(UserError, match="no pair of test has a label"):
        read_wic(source, ["train", "test"])


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{**ROW, "end1": 9}], "in row 0, counted from 0, the span from start to end contains no word"),
        ([ROW, {**ROW, "start2": 40, "end2": 44}], "in row 1"),
        ([{"text": "x", "label": 1}], "have no column sentence1, only text, label"),
        ([ROW, {**ROW, "label": 2}], "the label of row 1, counted from 0, is 2; expected T, True or 1"),
        ([{**ROW, "label": "same"}], "the label of row 0, counted from 0, is 'same'"),
        ([{**ROW, "start1": "nine"}], "in row 0, counted from 0, the span from start to end contains no word"),
        ([{**ROW, "start1": 9.5}], "in row 0, counted from 0, the span"),
        ([{**ROW, "start1": None}], "in row 0, counted from 0, the span"),
        ([{**ROW, "sentence1": None}], "in row 0, counted from 0, the span"),
        ([{**ROW, "sentence1": 7}], "sentence1 of row 0, counted from 0, is 7, where a sentence was expected"),
    ],
)
def test_rows_that_are_no_pairs_are_refused(hub: Callable[..., str], rows: list[dict[str, Any]], words: str) -> None:
    source = hub(train=rows)
    with pytest.raises(UserError, match=words):
        read_wic(source, ["train"])


@pytest.mark.parametrize(
    ("yes", "no", "missing"),
    [("T", "F", ""), ("True", "False", "nan"), (1.0, 0.0, None), ("1.0", "0", "-1"), (True, False, None), (1, 0, -100)],
)
def test_labels_are_read_in_all_spellings_and_missing_ones_counted(
    hub: Callable[..., str], yes: Any, no: Any, missing: Any
) -> None:
    rows = [{**ROW, "label": label} for label in (yes, no, missing, yes, missing)]
    # Spans as CSV files give them.
    source = hub(train=[{**row, "start1": "9", "end1": "14"} for row in rows])
    found = read_wic(source, ["train"])["train"]
    assert found.labels.tolist() == [True, False, True]
    assert (found.n_read, found.n_pairs, found.n_unlabelled) == (5, 3, 2)
    assert found.said("train") == ["train: 2 of 5 pairs have no label and are left out"]


def test_classes_are_known_by_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets", reason="the extra hf is not installed")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "arrow"))
    rows = datasets.Dataset.from_list([{**ROW, "label": label} for label in (0, 1, -1)])
    (tmp_path / "data").mkdir()
    named = rows.cast_column("label", datasets.ClassLabel(names=["True", "False"]))
    named.to_parquet(str(tmp_path / "data" / "train.parquet"))
    found = read_wic(f"hf:{tmp_path / 'data'}", ["train"])["train"]
    assert (found.labels.tolist(), found.n_unlabelled) == ([True, False], 1)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from(["T", "F", "", "true", "0", "1.0", "nan", "-1"]), min_size=1, max_size=8))
def test_all_pairs_that_are_read_have_a_label_or_are_counted(labels: list[str]) -> None:
    labels = [*labels, "T"]
    with TemporaryDirectory() as folder:
        Path(folder, "train.data.txt").write_text(GOOD * len(labels), encoding="utf-8")
        Path(folder, "train.gold.txt").write_text("".join(f"{label}\n" for label in labels), encoding="utf-8")
        found = read_wic(folder, ["train"])["train"]
    expected = [label in ("T", "true", "1.0") for label in labels if label not in ("", "nan", "-1")]
    assert found.labels.tolist() == expected
    assert found.n_read == len(labels) == found.n_pairs + found.n_unlabelled


def test_a_split_that_is_not_there_is_refused(hub: Callable[..., str]) -> None:
    source = hub(train=[ROW])
    with pytest.raises(UserError, match="there is no split validation, only train"):
        read_wic(source, ["train", "dev"])
    with pytest.raises(UserError, match="leave split= out"):
        read_wic(f"{source}?split=train", ["train"])


GOOD = "run\tV\t1-0\tthe run\trunning is fun\n"


@pytest.mark.parametrize(
    ("data", "gold", "words"),
    [
        (GOOD + "run\tV\t1-0\tthe run\n", "T\nF\n", "line 2 of train is not a pair"),
        (GOOD.replace("1-0", "2-0"), "T\n", "there is no word 2 in a sentence of 2"),
        (GOOD.replace("1-0", "-1-0"), "T\n", "line 1 of train is not a pair"),
        (GOOD, "yes\n", "line 1 of train is not a pair"),
        (GOOD, "T\nF\n", "train.data.txt has 1 lines and train.gold.txt has 2"),
        ("", "", "holds no pair"),
    ],
)
def test_files_that_are_not_wic_are_refused(tmp_path: Path, data: str, gold: str, words: str) -> None:
    (tmp_path / "train.data.txt").write_text(data, encoding="utf-8")
    (tmp_path / "train.gold.txt").write_text(gold, encoding="utf-8")
    with pytest.raises(UserError, match=words):
        read_wic(str(tmp_path), ["train"])
