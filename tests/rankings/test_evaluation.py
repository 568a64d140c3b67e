"""What is called better than chance: neurons that are, and none where labels say nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probing.data.examples import Sides
from probing.probes.solvers import Penalty
from probing.rankings.evaluation import evaluate
from probing.rankings.methods import METHODS, read_layer
from probing.statistics.intervals import LEVEL, accuracy_interval
from synthetic import LIGHTNING_WARNINGS, make_store, make_tokens, sides

pytestmark = [pytest.mark.numeric, *(pytest.mark.filterwarnings(warning) for warning in LIGHTNING_WARNINGS)]

N_NEURONS, INFORMATIVE = 40, (3, 17)
JUDGED = ("weight", "probeless_standardised", "anova")


def judged(labelled: Sides, k: int) -> list[dict[str, Any]]:
    """Judge rankings of a layer's neurons with ten random draws beside them."""
    (fit,) = labelled.fit(l2=1e-2)  # type: ignore[attr-defined]
    data = read_layer(0, fit.weight, Penalty(0.0, 1e-2), "sd", labelled, seed=0)
    rows = evaluate({name: METHODS[name](data) for name in JUDGED}, data, labelled, [k], draws=10)
    return [row for row in rows if row["ranking"] != "random"]


@pytest.fixture
def planted(tmp_path: Path) -> Sides:
    """Tokens whose position two of 40 neurons know."""
    tokens = make_tokens(np.random.default_rng(0).integers(7, 11, 400).tolist())
    states = np.random.default_rng(1).standard_normal((tokens.n_tokens, N_NEURONS))
    states[:, INFORMATIVE[0]] += 3 * tokens.positions
    states[:, INFORMATIVE[1]] += 3 * (tokens.positions - 4) ** 2
    return sides(make_store(tmp_path / "store", [states], tokens, shard_tokens=500))


def test_planted_neurons_are_above_chance_and_the_last_of_their_ranking_are_not(planted: Sides) -> None:
    rows = judged(planted, 2)
    assert {(row["from"], row["above_chance"]) for row in rows} == {("top", "yes"), ("bottom", "no")}
    for row in rows:
        if row["from"] == "top":
            assert row["accuracy_low"] > row["majority_accuracy"]


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_above_chance_where_labels_say_nothing(planted: Sides, seed: int) -> None:
    generator = np.random.default_rng(seed)

    def relabelled(examples: Any) -> Any:
        drawn = generator.integers(len(planted.classes), size=len(examples.labels))
        return replace(examples, labels=np.where(examples.labels >= 0, drawn, -1).astype(np.int32))

    random = replace(planted, **{side: relabelled(getattr(planted, side)) for side in ("train", "validation", "test")})
    assert {row["above_chance"] for row in judged(random, 2)} == {"no"}


def test_all_choices_of_a_layer_share_one_chance_of_five_percent(
    planted: Sides, monkeypatch: pytest.MonkeyPatch
) -> None:
    levels: list[float] = []

    def recorded(correct: Any, n_tokens: Any, level: float = LEVEL) -> tuple[float, float]:
        levels.append(level)
        return accuracy_interval(correct, n_tokens, level)

    monkeypatch.setattr("probing.rankings.evaluation.accuracy_interval", recorded)
    rows = judged(planted, 2)
    assert len(rows) == 12
    # One-sided, and 5% divided by the number of choices.
    assert set(levels) == {LEVEL, 1 - 2 * 0.05 / len(rows)}
