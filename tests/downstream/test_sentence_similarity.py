"""Where a layer is chosen and where it is reported, aggregated and held against the plain space."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import spearmanr

from probing.corpus import from_sentences
from probing.downstream.sentence_vectors import Row, Similarities, by_layer, choice, chosen, reported
from probing.downstream.sts_dataset import Part, SentencePairs

pytestmark = pytest.mark.numeric


def pairs(name: str, part: Part, n: int, n_subsets: int = 1, first: int = 0) -> SentencePairs:
    """Make a set of pairs of sentences `first`, `first` + 1, ... with random scores."""
    sentences = tuple(f"Sentence {i}." for i in range(first, first + 2 * n))
    gold = np.random.default_rng([n, first]).random(n)
    subset = np.sort(np.arange(n) % n_subsets)
    corpus = from_sentences("x", sentences)
    return SentencePairs(name, part, corpus, np.arange(2 * n).reshape(n, 2), gold, subset, tuple("abc"[:n_subsets]))


def similar(sets: list[SentencePairs], noise: dict[tuple[int | None, str], dict[str, float]]) -> list[Similarities]:
    """Make cosines for each layer and space: the score with so much noise on each set, by its label."""
    generator = np.random.default_rng(0)
    return [
        Similarities(
            "static" if layer is None else "mean",
            layer,
            name,
            {one.label: one.gold + of_set[one.label] * generator.random(one.n_pairs) for one in sets},
            {one.label: [] for one in sets},
        )
        for (layer, name), of_set in noise.items()
    ]


def find(rows: list[Row], **wanted: object) -> Row:
    (row,) = [row for row in rows if all(row[key] == value for key, value in wanted.items())]
    return row


SETS = [pairs("STS12", "test", 90, 3), pairs("STS-B", "dev", 80, first=1000), pairs("STS-B", "train", 70, first=2000)]


def test_the_layer_is_chosen_on_other_pairs_and_in_the_published_way_on_the_set_itself() -> None:
    levels = {"STS12": (9.0, 5.0, 0.5), "STS-B dev": (0.5, 5.0, 9.0), "STS-B train": (5.0, 0.5, 9.0)}
    noise: dict[tuple[int | None, str], dict[str, float]] = {
        (layer, "none"): {label: by[layer] for label, by in levels.items()} for layer in range(3)
    }
    found = similar(SETS, noise)
    rows = chosen(found, SETS[:2], SETS, seed=0)
    of_sts12 = find(rows, protocol="held_out", set="STS12", aggregation="all")
    assert (of_sts12["layer"], of_sts12["chosen_on"], of_sts12["n_chosen_on"]) == (0, "STS-B dev", 80)
    assert of_sts12["spearman"] == pytest.approx(spearmanr(found[0].cosines["STS12"], SETS[0].gold).statistic)
    of_dev = find(rows, protocol="held_out", set="STS-B dev", aggregation="all")
    assert (of_dev["layer"], of_dev["chosen_on"]) == (1, "STS-B train")
    best = find(rows, protocol="published", set="STS12", aggregation="all")
    assert (best["layer"], best["chosen_on"]) == (2, "STS12")
    assert best["spearman"] > of_sts12["spearman"]


def test_pairs_that_a_set_has_itself_do_not_choose_its_layer() -> None:
    shared = pairs("STS-B", "dev", 60, first=120)  # of STS12's sentences 0 to 179, the last 60
    made = choice(SETS[0], [SETS[0], shared])
    assert made is not None
    assert made.kept.sum() == 30
    known = {frozenset(SETS[0].corpus.sentences[i] for i in pair) for pair in SETS[0].sentences}
    for pair, kept in zip(shared.sentences, made.kept, strict=True):
        assert kept == (frozenset(shared.corpus.sentences[i] for i in pair) not in known)
    assert choice(SETS[0], [SETS[0]]) is None
    assert choice(shared, [SETS[0], shared]) is None


def test_without_sts_b_nothing_is_chosen_on_other_pairs_but_for_a_single_layer() -> None:
    two: dict[tuple[int | None, str], dict[str, float]] = {(layer, "none"): {"STS12": 1.0} for layer in (0, 1)}
    rows = chosen(similar(SETS[:1], two), SETS[:1], SETS[:1], seed=0)
    assert {row["protocol"] for row in rows} == {"published"}
    one: dict[tuple[int | None, str], dict[str, float]] = {(None, "none"): {"STS12": 1.0}}
    rows = chosen(similar(SETS[:1], one), SETS[:1], SETS[:1], seed=0)
    assert {(row["protocol"], row["layer"]) for row in rows} == {("held_out", "")}


def test_every_set_layer_and_space_has_all_three_aggregations() -> None:
    noise: dict[tuple[int | None, str], dict[str, float]] = {
        (layer, name): {one.label: 1.0 for one in SETS} for layer in (0, 1) for name in ("none", "clip")
    }
    found = similar(SETS, noise)
    rows = by_layer(found, SETS[:2], seed=0)
    assert len(rows) == 2 * 4 * 3
    row = find(rows, set="STS12", layer=1, transform="clip", aggregation="mean")
    (one,) = [one for one in found if (one.layer, one.transform) == (1, "clip")]
    each = [spearmanr(one.cosines["STS12"][at], SETS[0].gold[at]).statistic for at in np.arange(90).reshape(3, 30)]
    assert row["spearman"] == pytest.approx(np.mean(each))
    assert row["low"] < row["spearman"] < row["high"]
    assert row["n_pairs"] == 90


def test_a_gain_is_paired_so_that_its_interval_is_narrower_than_that_of_either() -> None:
    noise: dict[tuple[int | None, str], dict[str, float]] = {(0, "none"): {"STS12": 1.0}}
    (plain,) = similar(SETS[:1], noise)
    generator = np.random.default_rng(1)
    near = {"STS12": plain.cosines["STS12"] + 0.05 * generator.random(90)}
    found = [plain, Similarities("mean", 0, "clip", near, {"STS12": [3]})]
    rows = chosen(found, SETS[:1], SETS[:1], seed=0)
    row = find(rows, transform="clip", aggregation="all")
    plain_row = find(rows, transform="none", aggregation="all")
    assert row["gain"] == pytest.approx(row["spearman"] - plain_row["spearman"])
    assert row["gain_low"] <= row["gain"] <= row["gain_high"]
    assert row["gain_high"] - row["gain_low"] < (row["high"] - row["low"]) / 3
    assert "gain" not in plain_row


def test_dev_parts_are_reported_on_where_there_is_no_test_part() -> None:
    tested = [*SETS, pairs("STS-B", "test", 10), pairs("SICK-R", "dev", 10), pairs("SICK-R", "train", 10)]
    assert [one.label for one in reported(SETS)] == ["STS12", "STS-B dev"]
    assert [one.label for one in reported(tested)] == ["STS12", "STS-B", "SICK-R trial"]
