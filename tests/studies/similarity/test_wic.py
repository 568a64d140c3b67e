"""`wic` from the command line: a planted difference is found, shuffled labels find nothing, nothing leaks."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from probing import wic
from probing.__main__ import COMMANDS
from probing.cli.commandline import run
from probing.errors import UserError
from probing.models import load_tokenizer, resolve_model
from probing.runs.loading import load_run
from probing.runs.run import load_fit
from probing.runs.study import Result
from rendering import rendered
from small_data import Pair, plant_outlier, word_pairs, write_wic
from wandb_stand_in import read_offline_runs
from written import read_csv

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*LeafSpec.*:FutureWarning")

TRAIN, DEV = word_pairs(160, 0), word_pairs(100, 1)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_wic(tmp_path / "wic", "train", TRAIN)
    write_wic(tmp_path / "wic", "dev", DEV)
    return tmp_path / "wic"


@pytest.fixture
def options(tmp_path: Path, checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What all runs here have in common; they share one cache."""
    cache = tmp_path_factory.getbasetemp() / "wic-cache"
    model = str(checkpoints["bert"])
    return {"model": model, "runs": str(tmp_path / "runs"), "cache": str(cache), "wandb": {"mode": "disabled"}}


def find(rows: list[dict[str, Any]], **wanted: object) -> dict[str, Any]:
    (row,) = [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]
    return row


@rendered()
def test_a_planted_difference_is_found_and_all_of_it_is_on_disk(
    data: Path, options: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    args = [f"--{name}={value}" for name, value in options.items() if name != "wandb"]
    assert run(COMMANDS, ["wic", str(data), *args, "--wandb.mode=offline", "--name=a", "--layer=0,2"]) == 0
    said = capsys.readouterr()
    assert "Layer and threshold chosen on train, reported on dev" in said.out
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
    assert "Layer and threshold chosen on train" in repr(opened)
    # The configuration repeats the run.
    assert run(COMMANDS, ["wic", "--config", str(folder / "config.yaml"), "--name", "b", "--wandb.mode=disabled"]) == 0
    for name in ("wic.csv", "chosen.csv"):
        assert (folder / name).read_bytes() == (folder.parent / "b" / name).read_bytes()


def shuffled(pairs: list[Pair], seed: int) -> list[Pair]:
    labels = [same for *_, same in pairs]
    random.Random(seed).shuffle(labels)
    return [(a, b, place, label) for (a, b, place, _), label in zip(pairs, labels, strict=True)]


def test_shuffled_labels_find_nothing(data: Path, options: dict[str, Any]) -> None:
    write_wic(data, "train", shuffled(TRAIN, 0))
    write_wic(data, "dev", shuffled(DEV, 1))
    found = wic(str(data), quiet=True, **options)
    assert found is not None
    for row in found.chosen:
        if row["protocol"] == "held_out":
            assert row["accuracy_low"] <= 0.5 <= row["accuracy_high"]
    assert "Layer and threshold chosen on train" in repr(found)


def test_what_is_chosen_and_fitted_on_train_knows_nothing_of_dev(data: Path, options: dict[str, Any]) -> None:
    before = wic(str(data), layer=[0, 2], transforms="all", quiet=True, **options)
    write_wic(data, "dev", shuffled(word_pairs(60, 7), 0))
    after = wic(str(data), layer=[0, 2], transforms="all", quiet=True, **options)
    assert before is not None
    assert after is not None
    assert len(before.wic) == len(after.wic) == 2 * 7
    for old, new in zip(before.wic, after.wic, strict=True):
        for column in ("threshold", "train_accuracy", "train_auc", "published_accuracy", "n_clipped"):
            assert old[column] == new[column]
        assert old["n_pairs"] != new["n_pairs"]


def test_a_planted_outlier_is_clipped_by_the_definition_that_names_it(
    data: Path, options: dict[str, Any], tiny_model: Callable[..., Path]
) -> None:
    planted = {**options, "model": str(plant_outlier(tiny_model("bert"), 3)), "layer": 0, "quiet": True}
    found = wic(str(data), transforms="clip,clip_random,whiten", definition="argmin_share", components=2, **planted)
    other = wic(str(data), transforms="clip,whiten", definition="variance", components=5, **planted)
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


def test_sentences_that_are_in_dev_too_are_not_fitted_on(data: Path, options: dict[str, Any]) -> None:
    first, second, *rest = TRAIN[0]
    write_wic(data, "dev", [*DEV, ([*first[:-1], first[-1].upper()], second, *rest)])  # type: ignore[list-item]
    found = wic(str(data), layer=0, transforms="whiten", quiet=True, **options)
    assert found is not None
    fitted = json.loads((found.folder / "results.json").read_text(encoding="utf-8"))["n_sentences_fitted_on"]
    assert fitted == len({tuple(words) for pair in TRAIN for words in pair[:2]}) - 2


def test_pairs_whose_word_is_cut_off_are_left_out_and_counted(
    data: Path, options: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    found = wic(str(data), layer=0, transforms="none", max_length=5, **options)
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


@pytest.mark.slow
def test_pairs_without_a_label_or_a_known_word_are_counted(
    data: Path, options: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    before = wic(str(data), layer=0, transforms="none", quiet=True, **options)
    write_wic(data, "dev", [*DEV, *DEV[:7]])
    gold = data / "dev" / "dev.gold.txt"
    gold.write_text("".join(f"{'FT'[same]}\n" for *_, same in DEV) + "\nnan\n-1\n\n\n\n\n", encoding="utf-8")
    after = wic(str(data), layer=0, transforms="none", **options)
    assert before is not None
    assert after is not None
    assert "dev: 7 of 107 pairs have no label and are left out" in capsys.readouterr().err
    told = after.results
    assert (told["n_read_pairs"]["dev"], told["n_pairs"]["dev"], told["n_unlabelled_pairs"]["dev"]) == (107, 100, 7)
    assert after.wic == before.wic
    write_wic(data, "dev", [*DEV, (["the", "☃"], ["a", "☃"], 1, True)])
    unknown = wic(str(data), layer=0, transforms="none", max_length=8, **options)
    assert unknown is not None
    assert "dev: 1 of " in (said := capsys.readouterr().err)
    assert "pairs have a word of which the model's vocabulary knows no piece; they count like the others" in said
    told = {name: counts["dev"] for name, counts in unknown.results.items() if name.endswith("_pairs")}
    assert told["n_unknown_pairs"] == 1
    assert told["n_read_pairs"] == 101 == told["n_pairs"] + told["n_unlabelled_pairs"] + told["n_cut_pairs"]


def test_quiet_prints_a_line_a_space(data: Path, options: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    wic(str(data), layer="0,1", part="dev", quiet=True, **options)
    said = capsys.readouterr()
    assert said.err == ""
    *spaces, fitted_on, results = said.out.splitlines()
    assert [line.split(":")[0] for line in (*spaces, results)] == ["Plain", "Clipped", "Whitened", "Results"]
    assert fitted_on.startswith("Whitening of 16 dimensions is fitted on")
    # A model of 16 neurons has none that is five standard deviations from their mean.
    assert "because no neuron is an outlier there" in said.out.splitlines()[1]
