"""Correlations, thresholds and areas against independent ones, and layers that one part chooses for another."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest
from scipy.stats import beta, spearmanr
from sklearn.metrics import roc_auc_score

from probing.downstream import Part, SentencePairs
from probing.downstream.sentence_vectors import (
    AGGREGATIONS,
    Row,
    Similarities,
    aggregated,
    aggregated_draws,
    by_layer,
    choice,
    chosen,
    pair_draws,
    pseudo_values,
    reported,
    spearman,
    weighted_spearman,
)
from probing.downstream.wic import (
    Labels,
    PairCosines,
    Scores,
    accuracy,
    area_interval,
    area_under_curve,
    best_published_threshold,
    best_threshold,
    exact_interval,
    gain_interval,
    mcnemar,
)
from probing.downstream.wic import Row as WicRow
from probing.downstream.wic import by_layer as wic_by_layer
from probing.downstream.wic import chosen as wic_chosen
from probing.statistics.chance import percentiles
from probing.text import from_sentences

pytestmark = pytest.mark.numeric


@pytest.fixture
def values() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cosines, scores with ties, and three subsets of different sizes."""
    generator = np.random.default_rng(0)
    gold = np.round(generator.random(90) * 5)
    return generator.random(90) + 0.1 * gold, gold, np.repeat([0, 1, 2], [20, 30, 40])


def test_it_is_that_of_scipy(values: tuple[np.ndarray, ...]) -> None:
    a, b, _ = values
    assert spearman(a, b) == pytest.approx(spearmanr(a, b).statistic)
    assert spearman(a, 3 - b) == pytest.approx(-spearman(a, b))
    assert np.isnan(spearman(a, np.ones_like(a)))


@pytest.mark.parametrize("at", [0, 45, 89])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_has_no_rank(values: tuple[np.ndarray, ...], at: int, value: float) -> None:
    a, b, subset = values
    broken = b.copy()
    broken[at] = value
    for one, other in ((a, broken), (broken, a)):
        assert np.isnan(aggregated(one, other, subset)["all"])
        assert np.isnan(aggregated_draws(one, other, subset, pair_draws(subset, 0, 3))["all"]).all()
        assert np.isnan(pseudo_values(one, other)).all()


def test_numbers_of_any_size_have_ranks(values: tuple[np.ndarray, ...]) -> None:
    a, b, _ = values
    for times in (1e300, 1e-300, 5e-324):
        scaled = b * times
        assert np.isfinite(scaled).all()
        assert spearman(a, scaled) == pytest.approx(spearman(a, b))


def test_drawn_pairs_have_the_correlation_of_the_list_that_they_make(values: tuple[np.ndarray, ...]) -> None:
    a, b, subset = values
    draws = pair_draws(subset, seed=3, n_draws=5)
    found = weighted_spearman(a, b, draws)
    for times, value in zip(draws.astype(int), found, strict=True):
        assert value == pytest.approx(spearmanr(np.repeat(a, times), np.repeat(b, times)).statistic)
        assert [times[subset == one].sum() for one in range(3)] == [20, 30, 40]


def test_where_subsets_differ_in_level_all_is_not_mean() -> None:
    # Within each subset cosines go with scores; between them they go against each other.
    cosines = np.array([0.7, 0.8, 0.9, 0.1, 0.2, 0.3, 0.4])
    gold = np.array([1.0, 2.0, 3.0, 5.0, 4.0, 5.5, 6.0])
    subset = np.array([0, 0, 0, 1, 1, 1, 1])
    found = aggregated(cosines, gold, subset)
    assert found["all"] == pytest.approx(spearmanr(cosines, gold).statistic)
    assert found["all"] < 0
    each = 1.0, spearmanr(cosines[3:], gold[3:]).statistic
    assert found["mean"] == pytest.approx(np.mean(each))
    assert found["wmean"] == pytest.approx((3 * each[0] + 4 * each[1]) / 7)
    assert found["mean"] > found["wmean"] > 0.8


def test_a_set_of_one_subset_has_one_value(values: tuple[np.ndarray, ...]) -> None:
    a, b, _ = values
    found = aggregated(a, b, np.zeros(90, dtype=int))
    assert {found[how] for how in AGGREGATIONS} == {spearman(a, b)}


def test_the_interval_holds_the_value_and_narrows_with_more_pairs(values: tuple[np.ndarray, ...]) -> None:
    a, b, subset = values
    widths = []
    for times in (1, 9):
        more_a, more_b, more_subset = (np.tile(x, times) for x in (a, b, subset))
        drawn = aggregated_draws(more_a, more_b, more_subset, pair_draws(more_subset, seed=0))
        for how, value in aggregated(more_a, more_b, more_subset).items():
            low, high = percentiles(drawn[how])
            assert low < value < high
        widths.append(high - low)
    # Nine times as many pairs, a third of the width; 1,000 draws know it to a few hundredths.
    assert widths[0] / widths[1] == pytest.approx(3, rel=0.2)


def test_pseudo_values_are_those_of_leaving_out_each_pair_and_their_mean_is_the_correlation() -> None:
    generator = np.random.default_rng(0)
    a = generator.integers(0, 8, 300).astype(np.float64)  # with ties, and more than are left out at once
    b = a + generator.normal(0, 3, 300)
    found = pseudo_values(a, b)
    whole = spearmanr(a, b).statistic
    assert found.mean() == pytest.approx(whole, abs=1e-12)
    naive = np.array([spearmanr(np.delete(a, i), np.delete(b, i)).statistic for i in (0, 7, 255, 256, 299)])
    differences = found[[0, 7, 255, 256, 299]] - found[0]
    assert differences == pytest.approx(-299 * (naive - naive[0]), abs=1e-9)
    # Their standard error is that of the bootstrap.
    draws = pair_draws(np.zeros(300, dtype=np.int64), 0, 400)
    spread = weighted_spearman(a, b, draws).std()
    assert found.std() / np.sqrt(300) == pytest.approx(spread, rel=0.15)
    assert pseudo_values(np.ones(30), b[:30]).tolist() == [0] * 30


def test_many_lists_are_ranked_in_blocks_as_each_by_itself(values: tuple[np.ndarray, ...]) -> None:
    a, b, subset = values
    times = pair_draws(subset, 0, 300)
    found = weighted_spearman(a, b, times)
    assert found.shape == (300,)
    for draw in (0, 127, 128, 299):
        written_out = np.repeat(np.arange(len(a)), times[draw].astype(int))
        assert found[draw] == pytest.approx(spearmanr(a[written_out], b[written_out]).statistic, abs=1e-9)


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
    assert made.is_used.sum() == 30
    known = {frozenset(SETS[0].corpus.sentences[i] for i in pair) for pair in SETS[0].sentences}
    for pair, kept in zip(shared.sentences, made.is_used, strict=True):
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


@pytest.fixture(params=[0, 1, 2])
def threshold_pairs(request: pytest.FixtureRequest) -> tuple[Scores, Labels]:
    """Scores with many ties, a little higher where the label is yes."""
    generator = np.random.default_rng(request.param)
    labels = generator.random(120) < 0.4
    return np.round(generator.random(120) + 0.2 * labels.astype(np.float64), 1), labels


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_neither_above_nor_below_a_threshold(
    threshold_pairs: tuple[Scores, Labels], value: float
) -> None:
    scores, labels = threshold_pairs
    broken = scores.copy()
    broken[7] = value
    rule, published = best_threshold(broken, labels), best_published_threshold(broken, labels)
    assert np.isnan([rule.threshold, rule.accuracy, published.accuracy, accuracy(broken, labels, 0.5)]).all()
    areas = area_under_curve(np.stack([scores, broken]), np.stack([labels, labels]))
    assert np.isnan(areas).tolist() == [False, True]


def test_the_best_threshold_is_that_of_a_loop_over_all(threshold_pairs: tuple[Scores, Labels]) -> None:
    scores, labels = threshold_pairs
    best = best_threshold(scores, labels)
    tried = [np.mean((scores > t) == labels) for t in np.linspace(-0.55, 1.75, 2301)]
    assert best.accuracy == pytest.approx(max(tried))
    assert accuracy(scores, labels, best.threshold) == pytest.approx(best.accuracy)


def test_a_score_equal_to_the_threshold_says_no() -> None:
    assert accuracy(np.array([0.5, 0.7]), np.array([False, True]), 0.5) == 1
    rule = best_threshold(np.array([0.5, 0.5, np.nextafter(0.5, 1)]), np.array([False, False, True]))
    assert rule.accuracy == 1
    assert rule.threshold == 0.5  # no number lies between the two


@pytest.mark.parametrize(("label", "direction"), [(True, -1), (False, 1)])
def test_where_all_labels_are_the_same_the_threshold_is_beyond_all_scores(label: bool, direction: int) -> None:
    scores = np.array([0.1, 0.3, 0.2])
    rule = best_threshold(scores, np.full(3, label))
    assert rule.accuracy == 1
    assert ((rule.threshold - scores) * direction >= 0).all()


def test_the_published_protocol_tries_nine(threshold_pairs: tuple[Scores, Labels]) -> None:
    scores, labels = threshold_pairs
    rule = best_published_threshold(scores, labels)
    tried = {t: float(np.mean((scores > t) == labels)) for t in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)}
    assert rule.accuracy == max(tried.values())
    assert tried[rule.threshold] == rule.accuracy
    assert rule.accuracy <= best_threshold(scores, labels).accuracy


def test_the_area_is_that_of_scikit_learn_one_by_one_and_all_at_once(threshold_pairs: tuple[Scores, Labels]) -> None:
    scores, labels = threshold_pairs
    expected = roc_auc_score(labels, scores)
    assert area_under_curve(scores, labels) == pytest.approx(expected)
    both = area_under_curve(np.stack([scores, -scores]), np.stack([labels, labels]))
    np.testing.assert_allclose(both, [expected, 1 - expected])
    low, high = area_interval(scores, labels, seed=0)
    assert low < expected < high
    assert np.isnan(area_under_curve(scores, np.ones_like(labels)))


def test_mcnemar_is_the_sum_of_binomial_terms() -> None:
    generator = np.random.default_rng(0)
    first, second = generator.random((2, 60)) < [[0.5], [0.7]]
    found = mcnemar(first, second)
    gained = sum(b and not a for a, b in zip(first, second, strict=True))
    lost = sum(a and not b for a, b in zip(first, second, strict=True))
    n, few = gained + lost, min(gained, lost)
    assert (found.gained, found.lost) == (gained, lost)
    assert found.p_value == pytest.approx(min(1, 2 * sum(comb(n, k) for k in range(few + 1)) / 2**n))
    assert mcnemar(first, first).p_value == 1


def test_the_exact_interval_is_that_of_the_beta_distribution() -> None:
    assert exact_interval(30, 80) == pytest.approx((beta.ppf(0.025, 30, 51), beta.ppf(0.975, 31, 50)))
    assert exact_interval(0, 20)[0] == 0
    assert np.isnan(exact_interval(0, 19)).all()


def test_the_interval_of_a_gain_is_as_wide_as_theory_says_and_narrow_for_one_rule_with_itself() -> None:
    generator = np.random.default_rng(1)
    first, second = generator.random((2, 500)) < [[0.5], [0.7]]
    low, high = gain_interval(first, second)
    difference = second.astype(float) - first
    assert low < difference.mean() < high
    assert high - low == pytest.approx(2 * 1.96 * difference.std() / np.sqrt(500), rel=0.02)
    low, high = gain_interval(first, first)
    assert low == -high
    assert 0 < high < 0.01  # rules that agree on 500 pairs may disagree on some that were not seen
    assert np.isnan(gain_interval(first[:19], second[:19])).all()


def planted(
    strength: dict[tuple[int, str], float], n: int = 400, seed: int = 0
) -> tuple[list[PairCosines], Labels, Labels]:
    """Make scores of each layer and space, higher where the label is yes by so many sd, noise of all the same pairs."""
    generator = np.random.default_rng(seed)
    train, test = (generator.permutation(np.arange(n) % 2 == 0) for _ in range(2))
    scored = []
    for (layer, name), by in strength.items():
        of_train, of_test = (generator.normal(size=n) + by * labels for labels in (train, test))
        scored.append(PairCosines(layer, name, of_train, of_test, clipped=[]))
    return scored, train, test


def wic_find(rows: list[WicRow], **wanted: object) -> WicRow:
    (row,) = [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]
    return row


def test_the_layer_is_chosen_on_train_and_the_accuracy_is_that_of_the_other_part() -> None:
    scored, train, test = planted({(0, "none"): 0, (1, "none"): 2, (2, "none"): 1, (0, "clip"): 4, (1, "clip"): 0})
    rows = wic_by_layer(scored, train, test, seed=0)
    found = wic_chosen(scored, rows, train, test, "dev", seed=0)
    plain, clipped = (wic_find(found, protocol="held_out", transform=name) for name in ("none", "clip"))
    assert (plain["layer"], clipped["layer"]) == (1, 0)
    for row, one in ((plain, scored[1]), (clipped, scored[3])):
        right = (one.reported > row["threshold"]) == test
        assert row["accuracy"] == right.mean()
        assert row["accuracy_low"] < row["accuracy"] < row["accuracy_high"]
        assert row["reported_on"] == "dev"
    test_of_both = mcnemar(
        *((s.reported > r["threshold"]) == test for r, s in ((plain, scored[1]), (clipped, scored[3])))
    )
    assert (clipped["n_gained"], clipped["n_lost"]) == (test_of_both.gained, test_of_both.lost)
    assert clipped["p_value"] == test_of_both.p_value < 1e-6
    assert clipped["gain"] == pytest.approx(clipped["accuracy"] - plain["accuracy"])
    assert 0 < clipped["gain_low"] < clipped["gain"] < clipped["gain_high"]
    assert "gain" not in plain


def test_the_published_protocol_reports_on_the_pairs_it_chose_on() -> None:
    scored, train, test = planted({(0, "none"): 1, (1, "none"): 1.2})
    rows = wic_by_layer(scored, train, test, seed=0)
    row = wic_find(wic_chosen(scored, rows, train, test, "dev", seed=0), protocol="published")
    grid = [(np.mean((one.train > t) == train), -one.layer, -t) for one in scored for t in np.arange(1, 10) / 10]
    assert (row["accuracy"], -row["layer"]) == pytest.approx(max(grid)[:2])
    assert row["reported_on"] == "train"


@pytest.mark.slow
def test_scores_that_say_nothing_find_nothing_but_look_as_if_by_the_published_protocol() -> None:
    beyond, gains = 0, []
    for seed in range(20):
        scored, train, test = planted({(layer, "none"): 0 for layer in range(6)}, n=100, seed=seed)
        found = wic_chosen(scored, wic_by_layer(scored, train, test, seed), train, test, "dev", seed)
        held_out = wic_find(found, protocol="held_out")
        beyond += not held_out["accuracy_low"] <= 0.5 <= held_out["accuracy_high"]
        gains.append((wic_find(found, protocol="published")["accuracy"], held_out["accuracy"]))
    assert beyond <= 3  # one of twenty is expected
    published, held = np.mean(gains, axis=0)
    assert abs(held - 0.5) < 0.04  # three standard errors of 20 x 100 pairs
    assert published > 0.54


def test_p_values_are_corrected_for_the_number_of_spaces() -> None:
    strength = {(0, "none"): 1.0, (0, "clip"): 1.0, (0, "whiten"): 1.6}
    scored, train, test = planted(strength)
    rows = wic_by_layer(scored, train, test, seed=0)
    alone = wic_chosen([scored[0], scored[2]], [rows[0], rows[2]], train, test, "dev", seed=0)
    both = wic_chosen(scored, rows, train, test, "dev", seed=0)
    p_alone, p_both = (wic_find(of, protocol="held_out", transform="whiten")["p_value"] for of in (alone, both))
    assert p_both == pytest.approx(2 * p_alone)


def test_always_yes_is_the_share_of_yes() -> None:
    scored, train, test = planted({(0, "none"): 1}, n=301)
    rows = wic_by_layer(scored, train, test, seed=0)
    assert (
        wic_find(wic_chosen(scored, rows, train, test, "dev", seed=0), protocol="constant_true")["accuracy"]
        == 151 / 301
    )
    assert rows[0]["constant_true_accuracy"] == 151 / 301
