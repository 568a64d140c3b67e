"""Layer and threshold chosen on one part and reported on another: planted scores, and scores that say nothing."""

from __future__ import annotations

import numpy as np
import pytest

from probing.downstream.wic import Labels, Row, Scored, by_layer, chosen, mcnemar


def planted(strength: dict[tuple[int, str], float], n: int = 400, seed: int = 0) -> tuple[list[Scored], Labels, Labels]:
    """Make scores of each layer and space, higher where the label is yes by so many sd, noise of all the same pairs."""
    generator = np.random.default_rng(seed)
    train, test = (generator.permutation(np.arange(n) % 2 == 0) for _ in range(2))
    scored = []
    for (layer, name), by in strength.items():
        of_train, of_test = (generator.normal(size=n) + by * labels for labels in (train, test))
        scored.append(Scored(layer, name, of_train, of_test, clipped=[]))
    return scored, train, test


def find(rows: list[Row], **wanted: object) -> Row:
    (row,) = [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]
    return row


def test_the_layer_is_chosen_on_train_and_the_accuracy_is_that_of_the_other_part() -> None:
    scored, train, test = planted({(0, "none"): 0, (1, "none"): 2, (2, "none"): 1, (0, "clip"): 4, (1, "clip"): 0})
    rows = by_layer(scored, train, test, seed=0)
    found = chosen(scored, rows, train, test, "dev", seed=0)
    plain, clipped = (find(found, protocol="held_out", transform=name) for name in ("none", "clip"))
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
    rows = by_layer(scored, train, test, seed=0)
    row = find(chosen(scored, rows, train, test, "dev", seed=0), protocol="published")
    grid = [(np.mean((one.train > t) == train), -one.layer, -t) for one in scored for t in np.arange(1, 10) / 10]
    assert (row["accuracy"], -row["layer"]) == pytest.approx(max(grid)[:2])
    assert row["reported_on"] == "train"


def test_scores_that_say_nothing_find_nothing_but_look_as_if_by_the_published_protocol() -> None:
    beyond, gains = 0, []
    for seed in range(20):
        scored, train, test = planted({(layer, "none"): 0 for layer in range(6)}, n=100, seed=seed)
        found = chosen(scored, by_layer(scored, train, test, seed), train, test, "dev", seed)
        held_out = find(found, protocol="held_out")
        beyond += not held_out["accuracy_low"] <= 0.5 <= held_out["accuracy_high"]
        gains.append((find(found, protocol="published")["accuracy"], held_out["accuracy"]))
    assert beyond <= 3  # one of twenty is expected
    published, held = np.mean(gains, axis=0)
    assert abs(held - 0.5) < 0.04  # three standard errors of 20 x 100 pairs
    assert published > 0.54


def test_p_values_are_corrected_for_the_number_of_spaces() -> None:
    strength = {(0, "none"): 1.0, (0, "clip"): 1.0, (0, "whiten"): 1.6}
    scored, train, test = planted(strength)
    rows = by_layer(scored, train, test, seed=0)
    alone = chosen([scored[0], scored[2]], [rows[0], rows[2]], train, test, "dev", seed=0)
    both = chosen(scored, rows, train, test, "dev", seed=0)
    p_alone, p_both = (find(of, protocol="held_out", transform="whiten")["p_value"] for of in (alone, both))
    assert p_both == pytest.approx(2 * p_alone)


def test_always_yes_is_the_share_of_yes() -> None:
    scored, train, test = planted({(0, "none"): 1}, n=301)
    rows = by_layer(scored, train, test, seed=0)
    assert find(chosen(scored, rows, train, test, "dev", seed=0), protocol="constant_true")["accuracy"] == 151 / 301
    assert rows[0]["constant_true_accuracy"] == 151 / 301
