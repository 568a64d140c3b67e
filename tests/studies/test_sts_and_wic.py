"""`sts` and `wic` from the command line: what is planted is found, shuffled labels find nothing, nothing leaks."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from probing import sts, wic
from probing.__main__ import COMMANDS
from probing.cli.commandline import run
from probing.errors import UserError
from probing.models import load_tokenizer, resolve_model
from probing.results import Table
from probing.runs import Result
from probing.runs.loading import load_run
from probing.runs.run import load_fit
from probing.studies.similarity import WIC, WIC_CHOSEN, wic_tables
from rendering import rendered
from small_data import (
    WORDS,
    Pair,
    plant_outlier,
    sentence_pairs,
    word_pairs,
    write_benchmark,
    write_semeval,
    write_sts,
    write_wic,
)
from wandb_stand_in import read_offline_runs
from written import read_csv

pytestmark = pytest.mark.slow


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "vectors.txt").write_text(
        "".join(f"{w} {i} {i % 3} 1\n" for i, w in enumerate(WORDS, 1)), encoding="utf-8"
    )
    return write_sts(tmp_path / "sts")


@pytest.fixture
def options(tmp_path: Path, checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What all runs here have in common; they share one cache."""
    cache = tmp_path_factory.getbasetemp() / "sts-cache"
    model = str(checkpoints["bert"])
    return {"model": model, "runs": str(tmp_path / "runs"), "cache": str(cache), "wandb": {"mode": "disabled"}}


def find(rows: list[dict[str, Any]], **wanted: object) -> dict[str, Any]:
    (row,) = [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]
    return row


def test_an_area_that_is_not_defined_is_an_empty_cell() -> None:
    rows = Table([{"layer": layer, "transform": "none", "accuracy": 0.5, "n_pairs": 40} for layer in (0, 1)], WIC)
    chosen = Table([{"protocol": "held_out", "reported_on": "dev", "transform": "none"}], WIC_CHOSEN)
    accuracies, areas, *_ = wic_tables(rows, chosen)
    assert list(accuracies.columns[1].cells) == ["0.500", "0.500"]
    assert not any(cell for column in areas.columns[1:] for cell in column.cells)


def test_sentences_that_share_words_are_alike_and_all_of_it_is_on_disk(
    data: Path, options: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    args = [f"--{name}={value}" for name, value in options.items() if name != "wandb"]
    args += ["--static", str(data.parent / "vectors.txt"), "--pooling", "mean,cls", "--name", "a", "--verbose"]
    assert run(COMMANDS, ["sts", str(data), *args, "--wandb.mode", "offline"]) == 0
    said = capsys.readouterr()
    assert "Spearman x 100: mean, whitened" in said.out
    assert "STS-B train" in said.out
    folder = Path(options["runs"]) / "a"
    assert f"Results: {folder}" in said.out
    assert {path.name for path in folder.iterdir()} == {
        "sts.csv", "chosen.csv", "config.yaml", "results.json", "figures", "wandb"
    }  # fmt: skip
    drawn = {f"sts_{pooling}.{form}" for pooling in ("mean", "cls") for form in ("png", "pdf")}
    assert {path.name for path in (folder / "figures").iterdir()} == drawn
    rows, chosen = read_csv(folder / "sts.csv"), read_csv(folder / "chosen.csv")
    # Two poolings of four layers in three spaces, and static vectors in two.
    assert len(rows) == 3 * 3 * (2 * 4 * 3 + 2)
    row = find(rows, set="STS-B dev", pooling="mean", layer=0, transform="none", aggregation="all")
    assert row["low"] < row["spearman"] < row["high"]
    assert row["spearman"] > 0.7
    assert row["n_pairs"] == 80
    plain = find(chosen, protocol="held_out", set="STS12", pooling="mean", transform="none", aggregation="all")
    assert (plain["chosen_on"], plain["n_chosen_on"]) == ("STS-B dev", 80)
    mean = find(chosen, protocol="held_out", set="STS12", pooling="mean", transform="none", aggregation="mean")
    assert mean["spearman"] != plain["spearman"]
    whitened = find(chosen, protocol="held_out", set="STS12", pooling="mean", transform="whiten", aggregation="all")
    assert whitened["fitted_on"] == "STS-B train and SICK-R train"
    assert whitened["gain_low"] <= whitened["gain"] <= whitened["gain_high"]
    # In the embeddings every [CLS] is the same: no correlation is defined.
    assert find(rows, set="STS12", pooling="cls", layer=0, transform="none", aggregation="all")["spearman"] == ""
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"), parse_constant=pytest.fail)
    assert results["sets"][0]["subsets"] == {"MSRpar": 40, "OnWN": 20}
    assert 0 < results["sets"][0]["static_coverage"] < 1
    (tracked,) = read_offline_runs(folder)
    assert len(tracked.table("chosen")) == len(chosen)
    with pytest.raises(UserError, match="holds a similarity evaluation"):
        load_fit(folder)
    opened = load_run(folder)
    assert type(opened) is Result
    assert (opened.folder, opened.results) == (folder, results)
    assert (len(opened.sts), len(opened.chosen)) == (len(rows), len(chosen))
    assert "Spearman x 100: mean, whitened" in repr(opened)
    assert run(COMMANDS, ["sts", "--config", str(folder / "config.yaml"), "--name", "b", "--wandb.mode=disabled"]) == 0
    assert (folder / "sts.csv").read_bytes() == (folder.parent / "b" / "sts.csv").read_bytes()


def test_transforms_know_nothing_of_what_they_are_judged_on_unless_asked(data: Path, options: dict[str, Any]) -> None:
    def whitened(fit_on: str) -> tuple[dict[str, Any], dict[str, Any]]:
        found = sts([str(data)], layer=1, transforms="whiten", fit_on=fit_on, quiet=True, **options)
        row = find(found.sts, set="STS-B dev", transform="whiten", aggregation="all")
        return row, json.loads((found.folder / "results.json").read_text(encoding="utf-8"))["fitted_on"]["STS-B dev"]

    train, on_train = whitened("train")
    target, on_target = whitened("target")
    n_distinct = len({text for pair in sentence_pairs(80, 3) for text in pair[:2]})
    assert on_target == {"corpora": ["STS-B dev (transductive)"], "n_sentences": n_distinct}
    assert target["fitted_on"] == "STS-B dev (transductive)"
    # Another STS12 changes nothing of STS-B, nor do its sentences that are in a training part add to the fit.
    leaked = sentence_pairs(80, 2)[:10]
    write_semeval(data / "STS12-en-test", "MSRpar", [*leaked, *sentence_pairs(9, 20)])
    again, on_again = whitened("train")
    assert on_again["n_sentences"] == on_train["n_sentences"] - len({s for pair in leaked for s in pair[:2]})
    assert whitened("target")[0]["spearman"] == target["spearman"]
    assert train["spearman"] not in (again["spearman"], target["spearman"])


def test_without_training_part_the_built_in_corpus_is_fitted_on(
    tmp_path: Path, options: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from probing import text as corpus

    monkeypatch.setattr(corpus, "builtin_sentences", lambda: [f"the {word} reads the {word}" for word in WORDS] * 3)
    write_benchmark(tmp_path / "sts", "dev", sentence_pairs(30, 0))
    found = sts([str(tmp_path / "sts")], layer=[1, 2], quiet=False, **options)
    said = capsys.readouterr()
    assert "there is no training part: transforms are fitted on the built-in corpus" in said.err
    assert found is not None
    assert {row["protocol"] for row in found.chosen} == {"published"}
    assert {row["fitted_on"] for row in found.chosen if row["transform"] != "none"} == {"builtin"}
    assert "As published, which can be too high" in repr(found)


def test_a_corpus_of_ones_own_can_be_fitted_on(data: Path, options: dict[str, Any], corpus_file: Path) -> None:
    found = sts([str(data)], layer=0, fit_on=str(corpus_file), quiet=True, **options)
    assert {row["fitted_on"] for row in found.sts if row["transform"] != "none"} == {str(corpus_file)}


def test_a_planted_outlier_is_clipped_of_the_average_of_two_layers_too(
    data: Path, options: dict[str, Any], tiny_model: Callable[..., Path]
) -> None:
    planted = {**options, "model": str(plant_outlier(tiny_model("bert"), 3)), "quiet": True}
    found = sts([str(data)], layer=0, pooling="mean,first_last", definition="argmin_share", components=3, **planted)
    rows = {(row["pooling"], row["transform"]): row for row in found.sts if row["aggregation"] == "all"}
    # Of the average, those of layer 1 are clipped too.
    n_clipped = [rows[how, name]["n_clipped"] for name in ("none", "clip") for how in ("mean", "first_last")]
    assert n_clipped == [0, 0, 1, 2]
    assert "3" in str(rows["first_last", "clip"]["clipped"]).split()
    assert rows["mean", "clip"]["spearman"] != rows["mean", "none"]["spearman"]
    other = sts([str(data)], layer=0, transforms="whiten", components=4, **planted)
    again = next(row for row in reversed(other.sts) if row["aggregation"] == "all")
    assert again["spearman"] != rows["mean", "whiten"]["spearman"]


def test_sentences_that_no_vector_stands_for_are_counted(
    data: Path, options: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    # Snowmen are not in the vocabulary, and neither they nor words that no vectors are of have a static vector.
    pairs = [*sentence_pairs(40, 0), ("☃ ☂", "☃", 5.0), ("☃", "probe layer", 0.0), ("a the", "never", 5.0)]
    write_semeval(data / "STS12-en-test", "MSRpar", pairs)
    found = sts([str(data)], layer=1, static=str(data.parent / "vectors.txt"), transforms="whiten", **options)
    said, (told, *_) = capsys.readouterr().err, found.results["sets"]
    assert (told["n_unknown_sentences"], told["n_unknown_pairs"]) == (2, 2)
    everything = [*pairs, *sentence_pairs(20, 1)]
    texts = {text for *pair, _ in everything for text in pair if {*WORDS}.isdisjoint(text.split())}
    n_pairs = sum(not texts.isdisjoint(pair[:2]) for pair in everything)
    assert (told["n_static_unknown_sentences"], told["n_static_unknown_pairs"]) == (len(texts), n_pairs)
    assert "STS12: 2 sentences have no token that the model's vocabulary knows, and their 2 pairs are ranked" in said
    assert f"STS12: {len(texts)} sentences have no word with a static vector, and static cosines of their" in said
    assert {row["n_pairs"] for row in found.sts if row["set"] == "STS12"} == {63}


def test_pairs_without_a_score_are_left_out_and_counted(
    data: Path, options: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    whole = sentence_pairs(40, 0)
    write_semeval(data / "STS12-en-test", "MSRpar", whole)
    before = sts([str(data)], layer=1, transforms="none", quiet=True, **options)
    broken = [pair for some in zip(whole, sentence_pairs(40, 0), strict=True) for pair in some]
    scores = ["nan", "inf", "", "-1"]
    written = [(a, b, scores[i % 4]) if i % 2 else (a, b, score) for i, (a, b, score) in enumerate(broken)]
    write_semeval(data / "STS12-en-test", "MSRpar", written)
    after = sts([str(data)], layer=1, transforms="none", **options)
    assert before is not None
    assert after is not None
    assert "STS12: 40 of 100 pairs are left out: 40 have no score, 0 lack a sentence" in capsys.readouterr().err
    told = after.results["sets"][0]
    assert told["n_read"] == 100 == told["n_pairs"] + told["n_without_score"] + told["n_without_sentence"]
    assert after.sts == before.sts


def test_all_poolings_differ_and_the_published_average_takes_the_first_block(
    data: Path, options: dict[str, Any]
) -> None:
    found = sts([str(data)], layer=2, pooling="all", transforms="none", quiet=True, **options)
    values = [row["spearman"] for row in found.sts if row["set"] == "STS12" and row["aggregation"] == "all"]
    assert len(set(values)) == 4


def test_cls_needs_a_special_token_at_the_beginning(
    data: Path, options: dict[str, Any], checkpoints: dict[str, Path]
) -> None:
    with pytest.raises(UserError, match=r"`pooling=.cls.`: tiny-t5 puts no special token at the beginning"):
        sts([str(data)], pooling="cls", quiet=True, **{**options, "model": str(checkpoints["t5"])})


def test_quiet_prints_a_line_for_each_set_and_space(
    data: Path, options: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    sts([str(data)], layer="0,1", transforms="none", quiet=True, **options)
    said = capsys.readouterr()
    assert said.err == ""
    lines = said.out.splitlines()
    assert [line.split(",")[0] for line in lines[:3]] == ["STS12", "STS-B dev", "SICK-R trial"]
    assert len(lines) == 4


TRAIN, DEV = word_pairs(160, 0), word_pairs(100, 1)


@pytest.fixture
def wic_data(tmp_path: Path) -> Path:
    write_wic(tmp_path / "wic", "train", TRAIN)
    write_wic(tmp_path / "wic", "dev", DEV)
    return tmp_path / "wic"


@rendered()
def test_a_planted_difference_is_found_and_all_of_it_is_on_disk(
    wic_data: Path, options: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    args = [f"--{name}={value}" for name, value in options.items() if name != "wandb"]
    assert (
        run(COMMANDS, ["wic", str(wic_data), *args, "--wandb.mode=offline", "--name=a", "--layer=0,2", "--verbose"])
        == 0
    )
    said = capsys.readouterr()
    assert "Layer and threshold selected on train, accuracy on dev" in said.out
    assert "always yes" in said.out
    folder = Path(options["runs"]) / "a"
    assert f"Results: {folder}" in said.out
    assert {path.name for path in folder.iterdir()} == {
        "wic.csv", "chosen.csv", "config.yaml", "results.json", "figures", "wandb"
    }  # fmt: skip
    assert (folder / "figures" / "wic.png").stat().st_size > 10_000
    rows, chosen = read_csv(folder / "wic.csv"), read_csv(folder / "chosen.csv")
    assert [(row["layer"], row["transform"]) for row in rows] == [
        (layer, name) for layer in (0, 2) for name in ("none", "clip", "whiten")
    ]
    # The same word at the same place has the same embedding.
    best = find(chosen, protocol="held_out", transform="none")
    assert best["accuracy"] > 0.95
    assert find(rows, layer=0, transform="none")["auc"] > 0.99
    assert find(chosen, protocol="constant_true")["accuracy"] == 0.5
    assert [row["transform"] for row in chosen if row["protocol"] == "published"] == ["none", "clip", "whiten"]
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    assert results["n_pairs"] == {"train": 160, "dev": 100}
    assert results["n_cut_pairs"] == {"train": 0, "dev": 0}
    (tracked,) = read_offline_runs(folder)
    assert len(tracked.table("wic")) == len(rows)
    assert [kind for _, kind, _ in tracked.artifacts if kind == "wic"]
    with pytest.raises(UserError, match="holds a word-in-context evaluation"):
        load_fit(folder)
    opened = load_run(folder)
    assert type(opened) is Result
    assert (opened.folder, opened.results) == (folder, results)
    assert (len(opened.wic), len(opened.chosen)) == (len(rows), len(chosen))
    assert "Layer and threshold selected on train" in repr(opened)
    # The configuration repeats the run.
    assert run(COMMANDS, ["wic", "--config", str(folder / "config.yaml"), "--name", "b", "--wandb.mode=disabled"]) == 0
    for name in ("wic.csv", "chosen.csv"):
        assert (folder / name).read_bytes() == (folder.parent / "b" / name).read_bytes()


def shuffled(pairs: list[Pair], seed: int) -> list[Pair]:
    labels = [same for *_, same in pairs]
    random.Random(seed).shuffle(labels)
    return [(a, b, place, label) for (a, b, place, _), label in zip(pairs, labels, strict=True)]


def test_shuffled_labels_find_nothing(wic_data: Path, options: dict[str, Any]) -> None:
    write_wic(wic_data, "train", shuffled(TRAIN, 0))
    write_wic(wic_data, "dev", shuffled(DEV, 1))
    found = wic(str(wic_data), quiet=True, **options)
    for row in found.chosen:
        if row["protocol"] == "held_out":
            assert row["accuracy_low"] <= 0.5 <= row["accuracy_high"]
    assert "Layer and threshold selected on train" in repr(found)


def test_what_is_chosen_and_fitted_on_train_knows_nothing_of_dev(wic_data: Path, options: dict[str, Any]) -> None:
    before = wic(str(wic_data), layer=[0, 2], transforms="all", quiet=True, **options)
    write_wic(wic_data, "dev", shuffled(word_pairs(60, 7), 0))
    after = wic(str(wic_data), layer=[0, 2], transforms="all", quiet=True, **options)
    assert before is not None
    assert after is not None
    assert len(before.wic) == len(after.wic) == 2 * 7
    for old, new in zip(before.wic, after.wic, strict=True):
        for column in ("threshold", "train_accuracy", "train_auc", "published_accuracy", "n_clipped"):
            assert old[column] == new[column]
        assert old["n_pairs"] != new["n_pairs"]


def test_a_planted_outlier_is_clipped_by_the_definition_that_names_it(
    wic_data: Path, options: dict[str, Any], tiny_model: Callable[..., Path]
) -> None:
    planted = {**options, "model": str(plant_outlier(tiny_model("bert"), 3)), "layer": 0, "quiet": True}
    found = wic(str(wic_data), transforms="clip,clip_random,whiten", definition="argmin_share", components=2, **planted)
    other = wic(str(wic_data), transforms="clip,whiten", definition="variance", components=5, **planted)
    assert found is not None
    assert other is not None
    named = {row["transform"]: row for row in found.wic}
    unnamed = {row["transform"]: row for row in other.wic}
    assert (named["clip"]["n_clipped"], named["clip_random"]["n_clipped"], unnamed["clip"]["n_clipped"]) == (1, 1, 0)
    assert named["clip"]["clipped"] == "3" != named["clip_random"]["clipped"]
    # Pointing all the same way, vectors need a threshold near 1, and without the outlier they do not.
    assert named["none"]["threshold"] > 0.98 > named["clip"]["threshold"]
    assert named["clip_random"]["threshold"] > 0.98
    assert unnamed["clip"]["threshold"] == named["none"]["threshold"]
    assert named["whiten"]["threshold"] != unnamed["whiten"]["threshold"]


def test_sentences_that_are_in_dev_too_are_not_fitted_on(wic_data: Path, options: dict[str, Any]) -> None:
    first, second, *rest = TRAIN[0]
    write_wic(wic_data, "dev", [*DEV, ([*first[:-1], first[-1].upper()], second, *rest)])  # type: ignore[list-item]
    found = wic(str(wic_data), layer=0, transforms="whiten", quiet=True, **options)
    fitted = json.loads((found.folder / "results.json").read_text(encoding="utf-8"))["n_sentences_fitted_on"]
    assert fitted == len({tuple(words) for pair in TRAIN for words in pair[:2]}) - 2


def test_pairs_whose_word_is_cut_off_are_left_out_and_counted(
    wic_data: Path, options: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    found = wic(str(wic_data), layer=0, transforms="none", max_length=5, **options)
    said = capsys.readouterr().err
    assert found is not None
    results = json.loads((found.folder / "results.json").read_text(encoding="utf-8"))
    n_cut = results["n_cut_pairs"]["dev"]
    assert f"dev: {n_cut} of 100 pairs are left out: their word was cut off" in said
    tokenizer = load_tokenizer(resolve_model(options["model"]))

    def is_left(words: list[str], place: int) -> bool:
        return place in tokenizer(words, is_split_into_words=True, truncation=True, max_length=5).word_ids()

    assert n_cut == sum(not (is_left(a, place) and is_left(b, place)) for a, b, place, _ in DEV)
    assert 0 < n_cut < 100
    assert results["n_pairs"]["dev"] == 100 - n_cut == found.wic[0]["n_pairs"]


def test_pairs_without_a_label_or_a_known_word_are_counted(
    wic_data: Path, options: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    before = wic(str(wic_data), layer=0, transforms="none", quiet=True, **options)
    write_wic(wic_data, "dev", [*DEV, *DEV[:7]])
    gold = wic_data / "dev" / "dev.gold.txt"
    gold.write_text("".join(f"{'FT'[same]}\n" for *_, same in DEV) + "\nnan\n-1\n\n\n\n\n", encoding="utf-8")
    after = wic(str(wic_data), layer=0, transforms="none", **options)
    assert before is not None
    assert after is not None
    assert "dev: 7 of 107 pairs have no label and are left out" in capsys.readouterr().err
    told = after.results
    assert (told["n_read_pairs"]["dev"], told["n_pairs"]["dev"], told["n_unlabelled_pairs"]["dev"]) == (107, 100, 7)
    assert after.wic == before.wic
    write_wic(wic_data, "dev", [*DEV, (["the", "☃"], ["a", "☃"], 1, True)])
    unknown = wic(str(wic_data), layer=0, transforms="none", max_length=8, **options)
    assert "dev: 1 of " in (said := capsys.readouterr().err)
    assert "pairs have a word of which the model's vocabulary knows no piece; they count like the others" in said
    told = {name: counts["dev"] for name, counts in unknown.results.items() if name.endswith("_pairs")}
    assert told["n_unknown_pairs"] == 1
    assert told["n_read_pairs"] == 101 == told["n_pairs"] + told["n_unlabelled_pairs"] + told["n_cut_pairs"]


def test_quiet_prints_a_line_a_space(
    wic_data: Path, options: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    wic(str(wic_data), layer="0,1", part="dev", quiet=True, **options)
    said = capsys.readouterr()
    assert said.err == ""
    *spaces, fitted_on, results = said.out.splitlines()
    assert [line.split(":")[0] for line in (*spaces, results)] == ["Plain", "Clipped", "Whitened", "Results"]
    assert fitted_on.startswith("Whitening of 16 dimensions is fitted on")
    # A model of 16 neurons has none that is five standard deviations from their mean.
    assert "because no neuron is an outlier there" in said.out.splitlines()[1]
