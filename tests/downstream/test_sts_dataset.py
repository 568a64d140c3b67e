"""STS data sets found in a folder, in the layouts they are given away in, and on the hub."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from probing.downstream.sts_dataset import SentencePairs, read_sts
from probing.errors import UserError
from small_data import sentence_pairs, write_benchmark, write_semeval, write_sick, write_sts


def spelled(pairs: SentencePairs) -> list[tuple[str, str, float]]:
    sentences = pairs.corpus.sentences
    return [(sentences[i], sentences[j], score) for (i, j), score in zip(pairs.sentences, pairs.gold, strict=True)]


def test_all_sets_are_found_and_read_pair_by_pair(tmp_path: Path) -> None:
    found = {one.label: one for one in read_sts([str(write_sts(tmp_path))])}
    assert list(found) == ["STS12", "STS-B dev", "STS-B train", "SICK-R train", "SICK-R trial"]
    assert found["STS12"].subsets == ("MSRpar", "OnWN")
    assert spelled(found["STS12"]) == sentence_pairs(40, 0) + sentence_pairs(20, 1)
    assert np.bincount(found["STS12"].subset).tolist() == [40, 20]
    assert spelled(found["STS-B dev"]) == sentence_pairs(80, 3)
    assert spelled(found["SICK-R trial"]) == sentence_pairs(40, 5)
    assert found["SICK-R trial"].part == "dev"


def test_one_file_is_read_by_itself(tmp_path: Path) -> None:
    write_sts(tmp_path)
    (found,) = read_sts([str(tmp_path / "SICK" / "SICK_trial.txt")])
    assert (found.label, spelled(found)) == ("SICK-R trial", sentence_pairs(40, 5))
    (found,) = read_sts([str(tmp_path / "STSBenchmark" / "sts-dev.csv")])
    assert found.label == "STS-B dev"
    with pytest.raises(UserError, match="there are no pairs of sentences in it"):
        read_sts([str(tmp_path / "STS12-en-test" / "STS.gs.OnWN.txt")])


def test_sick_in_one_file_has_its_parts_and_its_entailment(tmp_path: Path) -> None:
    head = "pair_ID\tsentence_A\tsentence_B\tentailment_label\trelatedness_score\tSemEval_set\n"
    parts, labels = ("TRAIN", "TRIAL", "TEST"), ("NEUTRAL", "ENTAILMENT", "")
    lines = [f"{i}\ta {i}\tb {i}\t{labels[i // 3 % 3]}\t{i / 10}\t{parts[i % 3]}\n" for i in range(27)]
    (tmp_path / "SICK.txt").write_text(head + "".join(lines), encoding="utf-8")
    found = {one.label: one for one in read_sts([str(tmp_path)])}
    assert list(found) == ["SICK-R train", "SICK-R trial", "SICK-R"]
    for first, one in enumerate(found.values()):
        assert spelled(one) == [(f"a {i}", f"b {i}", i / 10) for i in range(first, 27, 3)]
        assert one.entailment == ("NEUTRAL", "ENTAILMENT", None) * 3
    (tmp_path / "SICK.txt").write_text(head + "1\ta\tb\tNEUTRAL\t3\tall\n", encoding="utf-8")
    with pytest.raises(UserError, match="its column SemEval_set has 'all'; expected TRAIN, TRIAL or TEST"):
        read_sts([str(tmp_path)])


def test_a_set_is_known_by_its_folder_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_semeval(tmp_path / "STS15-en-test", "headlines", sentence_pairs(5, 0))
    monkeypatch.chdir(tmp_path / "STS15-en-test")
    (found,) = read_sts(["."])
    assert (found.label, found.subsets) == ("STS15", ("headlines",))


def test_sets_are_found_in_folders_that_are_links(tmp_path: Path) -> None:
    write_semeval(tmp_path / "elsewhere" / "STS12", "headlines", sentence_pairs(5, 0))
    (tmp_path / "sts").mkdir()
    (tmp_path / "sts" / "STS12").symlink_to(tmp_path / "elsewhere" / "STS12")
    assert [one.label for one in read_sts([str(tmp_path / "sts")])] == ["STS12"]


def test_pairs_without_a_score_or_a_sentence_are_dropped_and_counted(tmp_path: Path) -> None:
    (tmp_path / "STS16").mkdir()
    (tmp_path / "STS16" / "STS.input.x.txt").write_text(
        "a b\tb  c\nd\te\nf\tg\n\th\na b\tf\tsource\n", encoding="utf-8"
    )
    (tmp_path / "STS16" / "STS.gs.x.txt").write_text("5\n\n0\n1\n2.5\n", encoding="utf-8")
    write_semeval(tmp_path / "STS16", "y", [("i", "j", 1.0)])
    (found,) = read_sts([str(tmp_path)])
    assert spelled(found) == [("a b", "b c", 5), ("f", "g", 0), ("a b", "f", 2.5), ("i", "j", 1)]
    assert (found.n_read, found.n_without_score, found.n_without_sentence) == (6, 1, 1)
    assert (found.n_dropped, found.subset.tolist()) == (2, [0, 0, 0, 1])
    assert found.said() == ["STS16: 2 of 6 pairs are left out: 1 have no score, 1 lack a sentence"]


# Scores as files have them, and what each says, by no code of the program.
SCORES = {
    "3.04": 3.04, "0": 0.0, "5": 5.0, "1e300": 1e300, "1e-300": 1e-300, "5e-324": 5e-324, "": None, " ": None,
    "nan": None, "NaN": None, "inf": None, "-inf": None, "1e999": None, "-1": None, "-1.0": None,
}  # fmt: skip
CELLS = st.tuples(st.sampled_from(["a", "b c", "", " "]), st.sampled_from(["d", "e"]), st.sampled_from(sorted(SCORES)))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(CELLS, max_size=8), st.sampled_from(["STS16", "STS-B", "SICK"]))
def test_all_pairs_that_are_read_are_used_or_counted_as_left_out(cells: list[tuple[str, str, str]], form: str) -> None:
    cells = [*cells, *(("x", "y", score) for score in ("0", "3.04", "5"))]
    with TemporaryDirectory() as folder:
        write = {"STS16": write_semeval, "STS-B": write_benchmark, "SICK": write_sick}[form]
        write(Path(folder, "STS16"), {"STS16": "x", "STS-B": "test", "SICK": "test"}[form], cells)
        (found,) = read_sts([folder])
    whole = [(a, b, SCORES[score]) for a, b, score in cells if a.strip()]
    used = [(a, b, score) for a, b, score in whole if score is not None]
    assert spelled(found) == used
    assert np.isfinite(found.gold).all()
    assert (found.n_without_sentence, found.n_without_score) == (len(cells) - len(whole), len(whole) - len(used))
    assert found.n_read == len(cells) == found.n_pairs + found.n_dropped
    assert len(found.said()) == (found.n_dropped > 0)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Write splits as JSON lines: `hub(test=rows)` returns `hf:FOLDER`."""
    datasets = pytest.importorskip("datasets", reason="the extra hf is not installed")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "arrow"))

    def write(**splits: list[dict[str, Any]]) -> str:
        (tmp_path / "sts13").mkdir()
        for split, rows in splits.items():
            text = "".join(f"{json.dumps(row)}\n" for row in rows)
            (tmp_path / "sts13" / f"{split}.jsonl").write_text(text, encoding="utf-8")
        return f"hf:{tmp_path / 'sts13'}"

    return write


def rows_of(scores: list[Any]) -> list[dict[str, Any]]:
    return [{"sentence1": f"a {i}", "sentence2": f"b {i}", "score": score} for i, score in enumerate(scores)]


@pytest.mark.parametrize(
    ("scores", "used"),
    [
        (["3.04", "", "1.09", "nan", "4", "-1"], [3.04, 1.09, 4]),
        ([3.04, float("nan"), 1.09, None, 4, -1.0, float("inf")], [3.04, 1.09, 4]),
    ],
)
def test_scores_of_the_hub_are_numbers_as_text_or_missing(
    hub: Callable[..., str], scores: list[Any], used: list[float]
) -> None:
    (found,) = read_sts([hub(test=rows_of(scores))])
    assert (found.gold.tolist(), found.n_without_score) == (used, len(scores) - 3)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (rows_of(["1", "2", "high"]), "the score of row 2, counted from 0, is 'high', which is not a number"),
        (rows_of([1, 2, -0.5]), r"the score of row 2, counted from 0, is -0\.5, which is not a number of at least 0"),
        (rows_of([True, False]), "the score of row 0, counted from 0, is True"),
        ([{"sentence1": 5, "sentence2": 6, "score": 1}], "sentence1 of row 0, counted from 0, is 5, where a sentence"),
    ],
)
def test_cells_of_the_hub_that_are_no_pairs_are_refused(
    hub: Callable[..., str], rows: list[dict[str, Any]], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        read_sts([hub(test=rows)])


def test_names_of_classes_are_no_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets", reason="the extra hf is not installed")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "arrow"))
    pairs = {"sentence1": ["a", "b", "c"], "sentence2": ["d", "e", "f"], "label": [0, 1, 2]}
    classes = datasets.ClassLabel(names=["entailment", "neutral", "contradiction"])
    text = datasets.Value("string")
    features = datasets.Features({"sentence1": text, "sentence2": text, "label": classes})
    (tmp_path / "nli").mkdir()
    datasets.Dataset.from_dict(pairs, features).to_parquet(str(tmp_path / "nli" / "test.parquet"))
    with pytest.raises(UserError, match="the score of row 0, counted from 0, is 'entailment'"):
        read_sts([f"hf:{tmp_path / 'nli'}"])


def test_data_sets_of_the_hub_are_known_by_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets", reason="the extra hf is not installed")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "arrow"))
    rows = [{"sentence1": f"a {i}", "sentence2": f"b {i}", "score": float(i)} for i in range(4)]
    hidden = [{**row, "score": -1.0} for row in rows]
    for name, splits in {"sts13-sts": {"test": rows}, "stsbenchmark": {"validation": rows, "test": hidden}}.items():
        (tmp_path / name).mkdir()
        for split, content in splits.items():
            (tmp_path / name / f"{split}.jsonl").write_text(
                "".join(f"{json.dumps(row)}\n" for row in content), encoding="utf-8"
            )
    found = read_sts([f"hf:{tmp_path / name}" for name in ("stsbenchmark", "sts13-sts")])
    assert [one.label for one in found] == ["STS13", "STS-B dev"]
    assert spelled(found[0]) == [(f"a {i}", f"b {i}", i) for i in range(4)]


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("sts-dev.csv", "a\tb\tc\td\t1.0\tone sentence\n", "line 1 is not a pair of sentences"),
        ("sts-dev.csv", "a\tb\tc\td\tx\tone\ttwo\n", "the score of line 1 is 'x', which is not a number"),
        ("SICK_trial.txt", "a\tb\n1\t2\n", "names no column relatedness_score"),
        ("SICK_trial.txt", "sentence_A\tsentence_B\trelatedness_score\nA dog\n", "line 2 is not a pair"),
        ("sts-dev.csv", "a\tb\tc\td\t1.0\tone\ttwo\n", "only 1 pairs have a score"),
        ("STS.input.x.txt", "a\tb\n", r"STS\.gs\.x\.txt cannot be read|STS\.gs\.x\.txt` cannot be read"),
        ("other.txt", "a\tb\n", "there are no pairs of sentences in it"),
    ],
)
def test_files_that_are_no_sts_are_refused(tmp_path: Path, file: str, content: str, words: str) -> None:
    (tmp_path / file).write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=words):
        read_sts([str(tmp_path)])


def test_files_out_of_step_and_sets_that_are_there_twice_are_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_benchmark(tmp_path / name, "dev", sentence_pairs(5, 0))
    with pytest.raises(UserError, match="STS-B dev was found twice"):
        read_sts([str(tmp_path)])
    write_sick(tmp_path / "c", "test_annotated", sentence_pairs(5, 0))
    assert [one.label for one in read_sts([str(tmp_path / "a"), str(tmp_path / "c")])] == ["STS-B dev", "SICK-R"]
    write_semeval(tmp_path / "d", "x", sentence_pairs(5, 0))
    (tmp_path / "d" / "STS.gs.x.txt").write_text("1\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"has 5 lines and STS\.gs\.x\.txt has 1"):
        read_sts([str(tmp_path / "d")])
