"""STS and WiC data sets in their layouts, and the vectors of their sentences and words."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from families import make_tokenizer, untouched
from probing.activations import ActivationStore, Request, activations
from probing.activations import store as cache_store
from probing.cli.options import chosen
from probing.downstream import SPACES, SentencePairs, read_sts
from probing.downstream.labelled_pairs import WordPairs, read_wic, read_wic_parts
from probing.downstream.sentence_vectors import (
    FitOn,
    FittingText,
    StaticVectors,
    TransformFitting,
    Vectors,
    check_static_text,
    cosines,
    fitted,
    fitted_columns,
    has_first_special,
    has_pieces,
    known_tokens,
    read_static,
    sentence_vectors,
    similarities,
    unknown_sentences,
    unknown_words,
    word_vectors,
)
from probing.errors import UserError
from probing.models import load_tokenizer, resolve_model
from probing.statistics.moments import CovarianceAccumulator
from probing.text import from_words
from probing.text.tokens import Tokens, tokenize
from small_data import (
    WORDS,
    sentence_pairs,
    word_pairs,
    write_benchmark,
    write_semeval,
    write_sick,
    write_sts,
    write_wic,
)

pytestmark = pytest.mark.numeric


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
    assert found.messages() == ["STS16: 2 of 6 pairs are left out: 1 have no score, 1 lack a sentence"]


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
    assert len(found.messages()) == (found.n_dropped > 0)


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


def wic_spelled(pairs: WordPairs) -> list[tuple[tuple[str, ...], tuple[str, ...], str, str, bool]]:
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
    assert wic_spelled(found["train"]) == expected
    assert wic_spelled(found["dev"]) == expected[:10]
    assert len(set(found["train"].corpus.sentences)) == len(found["train"].corpus.sentences)
    kept = found["dev"].pick(found["dev"].labels)
    assert wic_spelled(kept) == [pair for pair in expected[:10] if pair[4]]


def test_the_parts_that_are_there_are_found(tmp_path: Path) -> None:
    write_wic(tmp_path, "train", made := word_pairs(30, 0))
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "test.data.txt").write_text("without labels", encoding="utf-8")
    found = read_wic_parts(str(tmp_path))
    assert list(found) == ["train"]
    assert wic_spelled(found["train"]) == wic_spelled(read_wic(str(tmp_path), ["train"])["train"])
    assert read_wic_parts(str(tmp_path / "test")) == {}
    assert found["train"].n_pairs == len(made)


def test_the_word_is_found_by_its_index_even_where_it_stands_twice(tmp_path: Path) -> None:
    (tmp_path / "train.data.txt").write_text("run\tV\t4-0\tthe run was a run\trunning is fun\n", encoding="utf-8")
    (tmp_path / "train.gold.txt").write_text("T\n", encoding="utf-8")
    (pair,) = wic_spelled(read_wic(str(tmp_path), ["train"])["train"])
    assert pair[2:] == ("run", "running", True)
    assert read_wic(str(tmp_path), ["train"])["train"].targets.tolist() == [[4, 0]]


ROW: dict[str, Any] = {
    "word": "board", "sentence1": "Room and board.", "sentence2": 'He nailed "boards" across.', "start1": 9,
    "end1": 14, "start2": 11, "end2": 17, "label": 0, "idx": 0,
}  # fmt: skip


def test_the_form_of_superglue_sets_the_word_off_as_the_original_does(hub: Callable[..., str]) -> None:
    true = {**ROW, "label": 1}
    source = hub(train=[ROW, true], validation=[true], test=[{**ROW, "label": -1}])
    found = read_wic(source, ["train", "dev"])
    first, second = ("Room", "and", "board", "."), ("He", "nailed", '"', "boards", '"', "across.")
    assert wic_spelled(found["train"]) == [(first, second, "board", "boards", label) for label in (False, True)]
    assert found["dev"].n_pairs == 1
    assert list(read_wic_parts(source)) == ["train", "dev"]
    assert wic_spelled(read_wic_parts(source)["train"]) == wic_spelled(found["train"])
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
    assert found.messages("train") == ["train: 2 of 5 pairs have no label and are left out"]


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


LAYERS = [0, 1, 2]


@pytest.fixture(scope="module")
def words(sentences: list[str]) -> list[list[str]]:
    return [sentence.split() for sentence in sentences]


@pytest.fixture(scope="module")
def store(
    checkpoints: dict[str, Path], words: list[list[str]], tmp_path_factory: pytest.TempPathFactory
) -> ActivationStore:
    """Activations in several shards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache_store, "MIN_SHARD_TOKENS", 500)
        patch.setattr(cache_store, "SHARD_BYTES", 1)
        request = Request(resolve_model(str(checkpoints["bert"])), from_words("x", words), LAYERS)
        store = activations(request, tmp_path_factory.mktemp("cache"), {})
    assert len(store.plan.shards) > 3
    return store


@pytest.fixture(scope="module")
def expected(checkpoints: dict[str, Path], sentences: list[str]) -> list[torch.Tensor]:
    """For each sentence, the hidden states of all layers, shape (n_layers, n_tokens, d_model)."""
    model, tokenizer = untouched(checkpoints["bert"]), load_tokenizer(resolve_model(str(checkpoints["bert"])))
    with torch.inference_mode():
        encoded = (tokenizer(sentence, return_tensors="pt") for sentence in sentences)
        return [torch.stack(model(**one, output_hidden_states=True).hidden_states)[:, 0] for one in encoded]


def close(found: torch.Tensor, expected: list[torch.Tensor]) -> None:
    # Batches are padded and summed in another order.
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-4, atol=1e-4)


def test_sentences_are_pooled_as_told(store: ActivationStore, expected: list[torch.Tensor]) -> None:
    close(sentence_vectors(store, 2, "mean"), [states[2, 1:-1].mean(0) for states in expected])
    close(sentence_vectors(store, 2, "mean_special"), [states[2].mean(0) for states in expected])
    close(sentence_vectors(store, 2, "cls"), [states[2, 0] for states in expected])
    close(sentence_vectors(store, 2, "first_last"), [states[[1, 2], 1:-1].mean((0, 1)) for states in expected])


def test_words_are_the_means_of_their_pieces(
    store: ActivationStore, expected: list[torch.Tensor], words: list[list[str]]
) -> None:
    generator = np.random.default_rng(0)
    wanted = np.array([(i, generator.integers(len(words[i]))) for i in generator.permutation(len(words))])
    found = word_vectors(store, [0, 2], wanted)
    n_pieces = set()
    for layer, vectors in zip([0, 2], found, strict=True):
        of_words = []
        for sentence, word in wanted:
            here = store.tokens.of_sentences(sentence, 1)
            places = np.flatnonzero(store.tokens.words[here] == word)
            n_pieces.add(len(places))
            of_words.append(expected[sentence][layer, places].mean(0))
        close(vectors, of_words)
    assert max(n_pieces) > 1


def test_a_word_behind_the_cut_has_no_pieces(checkpoints: dict[str, Path]) -> None:
    from probing.text.tokens import tokenize

    tokenizer = load_tokenizer(resolve_model(str(checkpoints["bert"])))
    listed = [["the", "token", "reads", "the", "layer"]]
    tokens = tokenize(tokenizer, [" ".join(listed[0])], 5, listed)
    wanted = np.array([[0, word] for word in range(5)])
    assert has_pieces(tokens, wanted).tolist() == [True] * 3 + [False] * 2


def test_a_first_token_is_special_or_not() -> None:
    lengths, ids = np.array([2, 2], dtype=np.int32), np.arange(4, dtype=np.int32)
    assert has_first_special(Tokens(lengths, ids, np.array([-1, 0, -1, 0], dtype=np.int16)))
    assert not has_first_special(Tokens(lengths, ids, np.array([-1, 0, 0, -1], dtype=np.int16)))


def test_cosines_are_those_of_torch_and_0_without_a_direction() -> None:
    a, b = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
    np.testing.assert_allclose(cosines(a, b), torch.cosine_similarity(a, b).numpy(), rtol=1e-5)
    assert cosines(a, torch.zeros_like(a)).tolist() == [0] * 5
    assert cosines(1e-30 * a, a) == pytest.approx(1)
    # Vectors that differ by rounding alone tie.
    assert set(cosines(a, a + 1e-6 * a.roll(1, 1))) == {1.0}


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_vector_that_is_not_finite_has_no_cosine(value: float) -> None:
    first = torch.ones(3, 4)
    first[1, 2] = value
    with pytest.raises(UserError, match="values that are not finite in float32, so that it has no cosine"):
        cosines(first, torch.ones(3, 4))


def test_vectors_of_any_size_have_cosines() -> None:
    first, second = torch.eye(3)[:2], torch.eye(3)[[0, 2]]
    for size in (1e38, 1e-38, 1e-44):
        assert cosines(size * first, size * second).tolist() == [1, 0]


PAIRS = [(a, b, score) for a, b, score in sentence_pairs(40, 0) if score > 0]
UNKNOWN = [("☃", PAIRS[0][0], 0.0), (PAIRS[1][1], "☃ ☂", 5.0), ("☃", "☃", 5.0)]


def static_of(folder: Path, pairs: list[Any]) -> tuple[SentencePairs, StaticVectors, FitOn]:
    write_benchmark(folder, "test", pairs)
    (one,) = read_sts([str(folder)])
    generator = np.random.default_rng(0)
    lines = [f"{word} {' '.join(map(str, generator.normal(1, 1, 4)))}\n" for word in WORDS]
    (folder / "vectors.txt").write_text("".join(lines), encoding="utf-8")
    words = read_static(str(folder / "vectors.txt"), one.corpus.sentences)
    kept = np.ones(len(one.corpus.sentences), dtype=bool)
    store: Any = None  # static vectors need no activations
    return one, words, FitOn(["x"], [one.corpus], [FittingText(store, kept)], words)


def test_pairs_without_a_vector_are_0_in_every_space_and_change_no_other(tmp_path: Path) -> None:
    found, rows = [], []
    for name, pairs in (("whole", PAIRS), ("with", [*PAIRS, *UNKNOWN])):
        one, words, text = static_of(tmp_path / name, pairs)
        vectors = Vectors([one], [None], None, words)  # type: ignore[list-item]
        found.append(similarities(vectors, {one.label: text}, [], [], TransformFitting(SPACES)))
        rows.append(fitted_columns({"pooling": "static", "transform": "whiten"}, text, 16, words, None))
    assert len(found[0]) == len(found[1]) > 3
    for whole, other in zip(*found, strict=True):
        cosines = other.cosines["STS-B"]
        assert cosines[len(PAIRS) :].tolist() == [0, 0, 0]
        assert cosines[: len(PAIRS)] == pytest.approx(whole.cosines["STS-B"], abs=1e-6)
        assert np.abs(whole.cosines["STS-B"]).min() > 0
    assert (
        rows[1]["n_fitted_sentences"]
        == rows[0]["n_fitted_sentences"]
        == len({text for a, b, _ in PAIRS for text in (a, b)})
    )


def test_transforms_of_static_vectors_need_a_sentence_with_one(tmp_path: Path) -> None:
    one, words, text = static_of(tmp_path, PAIRS)
    check_static_text({one.label: text})
    none = FitOn(["x"], [one.corpus], [FittingText(text.texts[0].store, np.zeros_like(text.texts[0].is_used))], words)
    with pytest.raises(UserError, match="`--static`: no sentence that transforms for STS-B are fitted on has a word"):
        check_static_text({one.label: none})


def moments(states: torch.Tensor) -> CovarianceAccumulator:
    accumulator = CovarianceAccumulator(states.shape[1])
    accumulator.update(states)
    return accumulator


def test_each_name_does_what_it_says() -> None:
    states = torch.randn(500, 12, generator=torch.Generator().manual_seed(0)) * torch.arange(1, 13) + 3
    made = fitted(TransformFitting(SPACES), moments(states).result(), [2, 5], layer=1)
    assert list(made) == list(SPACES)
    torch.testing.assert_close(made["none"](states), states)
    assert made["clip"](states)[:, [2, 5]].abs().max() == 0
    drawn = made["clip_random"].clipped
    assert len(drawn) == 2
    assert not {*drawn} & {2, 5}
    torch.testing.assert_close(torch.cov(made["whiten"](states).T, correction=0), torch.eye(12), atol=1e-4, rtol=0)
    assert made["center"](states).mean(0).abs().max() < 1e-4
    torch.testing.assert_close(made["standardise"](states).std(0, correction=0), torch.ones(12))
    assert torch.linalg.matrix_rank(made["all_but_the_top"](states), rtol=1e-4) == 11
    again = fitted(TransformFitting(["clip_random"]), moments(states).result(), [2, 5], layer=1)["clip_random"].clipped
    assert again == drawn
    few = fitted(TransformFitting(["whiten"], components=3), moments(states).result(), [], layer=1)["whiten"]
    torch.testing.assert_close(few(states), made["whiten"](states)[:, :3])


def test_vectors_that_do_not_vary_are_centred_not_whitened() -> None:
    states = torch.ones(20, 4)
    assert fitted(TransformFitting(["whiten"]), moments(states).result(), [], 0)["whiten"](states).abs().max() == 0


def test_vectors_that_vary_by_rounding_alone_are_centred_not_whitened() -> None:
    values = torch.randn(4, generator=torch.Generator().manual_seed(0))
    last_digit = torch.randint(0, 2, (50, 4), generator=torch.Generator().manual_seed(1))
    states = torch.where(last_digit == 1, values.nextafter(torch.tensor(2.0)), values)
    assert (states.std(0) > 0).all()
    assert fitted(TransformFitting(["whiten"]), moments(states).result(), [], 0)["whiten"](states).abs().max() < 1e-6


def test_names_are_chosen_in_the_order_of_tables() -> None:
    assert chosen("--x", "whiten,clip", SPACES) == ["clip", "whiten"]
    assert chosen("--x", ["clip"], SPACES) == ["clip"]
    assert chosen("--x", "all", SPACES) == list(SPACES)
    assert chosen("--x", "none", SPACES[1:], "none") == []
    with pytest.raises(UserError, match=r"`--x whitn` is not one of .*\(did you mean `whiten`\?\)"):
        chosen("--x", "clip,whitn", SPACES)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "vectors.txt"
    path.write_text(
        "the 1 2\nNew 9 9\ncat 3 4.5\n, 0 1\n. . . 7 7\n\u00e9t\u00e9 -1 0\nunused 5 5\nthe 8 8\n", encoding="utf-8"
    )
    return path


def test_a_sentence_is_the_mean_of_its_words_with_a_vector(file: Path) -> None:
    sentences = ["The cat, the \u00e9t\u00e9!", "nothing known", "New new"]
    static = read_static(str(file), sentences)
    expected = torch.tensor([[1, 2], [3, 4.5], [0, 1], [1, 2], [-1, 0]]).mean(0)
    torch.testing.assert_close(
        static.sentences(sentences), torch.stack([expected, torch.zeros(2), torch.tensor([9.0, 9])])
    )
    assert static.known(sentences).tolist() == [True, False, True]
    assert static.coverage(sentences) == pytest.approx((5 + 0 + 1) / (6 + 2 + 2))


def test_words_that_are_not_needed_are_not_kept_and_a_first_line_of_word2vec_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "v.txt"
    path.write_text("3 2\nthe 1 2\ncat 3 4\ndog 5 6\n", encoding="utf-8")
    static = read_static(str(path), ["the dog"])
    assert set(static.rows) == {"the", "dog"}
    assert static.vectors.shape == (2, 2)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"the 1 2\ncat 3\n", "line 2 is not a word followed by 2 numbers"),
        (b"the 1 2\ncat 3 x\n", "line 2 is not a word followed by 2 numbers"),
        (b"the 1 nan\n", "line 1 is not a word followed by 2 numbers"),
        (b"the 1 -inf\n", "line 1 is not a word followed by 2 numbers that are finite"),
        (b"the 1 1e300\n", r"line 1 is not a word followed by 2 numbers that are finite and at most 1e\+30"),
        (b"the 1 2\ncat 3 4 5\n", "line 2 is not a word followed by 2 numbers"),
        (b"the 1\ncat 3 4\n", "line 2 is not a word followed by 1 numbers"),
        (b"the\n", "line 1 is not a word followed by"),
        (b"caf\xe9 1 2\n", "it is not UTF-8"),
        (b"dog 1 2\n", "has none of the words"),
        (b"", "has none of the words"),
    ],
)
def test_what_is_no_file_of_vectors_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "v.txt"
    path.write_bytes(content)
    with pytest.raises(UserError, match=words) as caught:
        read_static(str(path), ["the cat"])
    assert str(caught.value).startswith(f"`--static {path}`")


SENTENCES = ["the cat sat", "☃ ☂", "☃ cat", "the ☂"]


@pytest.fixture(params=["wordpiece", "unigram"])
def tokenizer(request: pytest.FixtureRequest, sentences: list[str]) -> Any:
    return make_tokenizer(request.param, [*sentences, "the cat sat"])


def test_what_the_vocabulary_does_not_know_is_found_in_words_and_sentences(tokenizer: Any) -> None:
    tokens = tokenize(tokenizer, SENTENCES, 50, [sentence.split() for sentence in SENTENCES])
    assert unknown_sentences(tokens, tokenizer).tolist() == [False, True, False, False]
    wanted = np.array([[0, 0], [0, 2], [1, 0], [1, 1], [2, 0], [2, 1], [3, 1]])
    assert unknown_words(tokens, tokenizer, wanted).tolist() == [False, False, True, True, True, False, True]
    assert not known_tokens(tokens, tokenizer)[tokens.special].any()


def test_a_sentence_without_tokens_is_unknown_and_a_vocabulary_of_bytes_knows_all(sentences: list[str]) -> None:
    wordpiece = make_tokenizer("wordpiece", sentences)
    assert unknown_sentences(tokenize(wordpiece, ["​", "it"], 50), wordpiece).tolist() == [True, False]
    of_bytes = make_tokenizer("byte-level alone", sentences)
    assert not unknown_sentences(tokenize(of_bytes, SENTENCES, 50), of_bytes).any()
