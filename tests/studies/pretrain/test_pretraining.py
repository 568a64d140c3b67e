"""The verdict of `pretrain`, with all of its outcomes, and its sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from probing.studies.pretrain.results import _LOOKS
from probing.studies.pretrain.tables import PRETRAINING_ARMS as ARMS
from probing.studies.pretrain.tables import conclusions, growth_line, judge, last_rows, tables

LOSS = {"learned": 3.2, "none": 4.6, "constant": 4.6}


def rows_of(
    sd: Mapping[tuple[str, int], float] = {}, loss: Mapping[tuple[str, int], float] = {}, seeds: int = 3,
    arms: tuple[str, ...] = ("learned", "none"), step: int = 100, layer: int = 1,
) -> list[dict[str, Any]]:  # fmt: skip
    """Return rows of two layers, in which the farthest mean and the loss are as given for some arms and seeds."""
    return [
        {
            "arm": arm, "seed": seed, "step": step, "loss": loss.get((arm, seed), LOSS[arm]), "unigram_loss": 5.0,
            "layer": at, "max_mean_sd": sd.get((arm, seed), 2.0) if at == layer else 2.0, "position_accuracy": 0.5,
            "token_accuracy": 0.1, "equivariance": 0.0, "argmax_share": 0.0,
        }
        for arm in arms for seed in range(seeds) for at in (0, 1)
    ]  # fmt: skip


IN_LEARNED = {("learned", 0): 7.0, ("learned", 1): 6.0, ("learned", 2): 9.0}


@pytest.mark.parametrize(
    ("rows", "verdict", "reason"),
    [
        (rows_of(IN_LEARNED), "confirmed", "every seed"),
        (rows_of(IN_LEARNED, arms=("learned", "none", "constant")), "confirmed", "every seed"),
        (rows_of({**IN_LEARNED, ("none", 1): 5.1}), "refuted", "none has an outlier with seed 1"),
        (rows_of({("none", 0): 6.0, ("none", 2): 6.0}), "refuted", "seeds 0, 2"),
        (rows_of({("constant", 0): 6.0}, arms=("learned", "none", "constant")), "refuted", "constant"),
        (rows_of({("learned", 1): 6.0}), "unclear", "seed 1 alone"),
        (rows_of(IN_LEARNED, seeds=2), "unclear", "3 seeds are needed"),
        (rows_of(), "not testable", "no outlier either"),
        (rows_of(IN_LEARNED, layer=0), "not testable", "no outlier either"),  # the embeddings do not count
        (rows_of({("learned", 0): 5.0}), "not testable", "no outlier either"),  # it must be beyond 5
        (rows_of(IN_LEARNED, {("learned", 1): 4.2}), "not testable", "with seed 1, learned is better than none by 0.4"),
        (rows_of(IN_LEARNED, {("learned", 1): 4.05, ("none", 1): 5.0}), "not testable", "the frequencies of tokens"),
        (rows_of(IN_LEARNED, {("learned", 2): float("nan")}), "not testable", "with seed 2"),
        (rows_of({("none", 0): 6.0}, {("learned", 0): 4.5}), "not testable", "by 0.10 nats"),
        (rows_of(IN_LEARNED, arms=("learned",)), "not testable", "are needed"),
        (rows_of(arms=("none",)), "not testable", "are needed"),
        (rows_of(IN_LEARNED) + rows_of({("none", 0): 9.0}, step=50), "confirmed", "every seed"),  # the last step counts
    ],
)  # fmt: skip
def test_the_verdict_is_that_of_the_rule(rows: list[dict[str, Any]], verdict: str, reason: str) -> None:
    for order in (rows, rows[::-1]):
        found = judge(order)
        assert found.verdict == verdict
        assert reason in found.reason


def test_margins_are_reached_where_they_are_equal() -> None:
    exactly = {("learned", seed): 4.0 for seed in range(3)} | {("none", seed): 4.5 for seed in range(3)}
    assert judge(rows_of(IN_LEARNED, exactly)).verdict == "confirmed"


def test_the_last_checkpoint_is_that_of_each_arm_and_seed() -> None:
    rows = [*rows_of(step=10), *rows_of(step=20, arms=("none",))]
    assert {(row["arm"], row["step"]) for row in last_rows(rows)} == {("learned", 10), ("none", 20)}


def test_sentences_state_losses_outliers_and_the_verdict() -> None:
    from probing.runtime.terminal import render

    made = {"arms": rows_of(IN_LEARNED)}
    learned, none, verdict = conclusions(made)
    assert "outliers with seeds 0, 1, 2 (layers 1)" in learned
    assert "held-out loss 3.20 nats, frequencies of tokens 5.00" in learned
    assert "no outlier above the embeddings (the farthest mean is at 2.0 sd" in none
    assert verdict.endswith("confirmed: learned has an outlier with every seed, and none with no seed.")
    assert "7.33 (6.00 to 9.00)" in render(*tables(made))


def of_arms(arms: Sequence[str]) -> list[dict[str, Any]]:
    """Return rows of some arms, of which the one of next tokens has another loss of frequencies."""
    rows = [row | {"arm": arm} for arm in arms for row in rows_of(arms=("none",), seeds=1, step=64)]
    return [row | ({"unigram_loss": 4.5} if row["arm"] == "causal_lm" else {}) for row in rows]


@pytest.mark.parametrize("n_arms", [6, 12])
def test_up_to_six_arms_share_a_panel_and_of_more_each_has_one(n_arms: int) -> None:
    from matplotlib.figure import Figure

    from probing.studies.pretrain.results import loss_by_step, outliers_by_layer, position_by_layer

    arms = ARMS[-n_arms:]
    for draw in (loss_by_step, outliers_by_layer, position_by_layer):
        figure = Figure(layout="constrained")
        draw(figure, of_arms(arms))
        panels = [axes for axes in figure.axes if axes.get_visible()]
        if n_arms == 6:
            (axes,) = panels
            looks = [(line.get_color(), line.get_linestyle(), line.get_marker()) for line in axes.lines]
            assert len({*looks[:6]}) == 6
            (legend,) = figure.legends
            assert [text.get_text() for text in legend.get_texts()][:6] == list(arms)
        else:
            assert [axes.get_title() for axes in panels] == list(arms)
            assert not figure.legends
            assert len({axes.get_ylim() for axes in panels}) == 1
    assert len({str(look) for look in _LOOKS.values()}) == len(ARMS)


def test_the_panel_of_next_tokens_has_their_frequencies_and_no_losses_of_masked_ones() -> None:
    from matplotlib.figure import Figure

    from probing.studies.pretrain.results import loss_by_step

    figure = Figure()
    loss_by_step(figure, of_arms(ARMS))
    drawn = {axes.get_title(): axes.lines for axes in figure.axes}
    assert [np.asarray(line.get_ydata()).tolist() for line in drawn["causal_lm"]] == [[4.6], [4.5, 4.5]]
    assert len(drawn["learned"]) == 11 + 1
    assert np.asarray(drawn["learned"][-1].get_ydata()).tolist() == [5.0, 5.0]


GROWTH = {
    "first_step": 8, "slope": 0.5, "slope_low": 0.25, "slope_high": 1.0, "steps": 1600.0, "steps_low": 400.0,
    "steps_high": 25600.0,
}  # fmt: skip


def test_growth_is_said_with_its_interval_where_there_is_no_outlier() -> None:
    (*_, line) = conclusions({"arms": rows_of()}, GROWTH)
    assert "grows by 0.50 sd each time the steps double (95% interval over seeds: 0.25 to 1.00)" in line
    assert "after 1,600 steps (interval: 400 to 25,600)" in line
    assert "interval: 400 to no end" in growth_line({**GROWTH, "steps_high": None})
    assert "never" in growth_line({**GROWTH, "slope": -0.1})
    assert "too slowly" in growth_line({**GROWTH, "steps": None})
    assert len(conclusions({"arms": rows_of(IN_LEARNED)}, GROWTH)) == 3
