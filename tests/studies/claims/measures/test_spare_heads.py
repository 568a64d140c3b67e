"""Heads that a model does without, against effects planted in the tables of `disable`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from probing.results.rows import Table
from probing.studies.claims.measures import heads as measures
from probing.studies.claims.measures.registry import NotMeasurable, Subject
from written import results_of

HALF = 0.004


def row(unit: str, gain: float, readout: str, layer: int = 2) -> dict[str, Any]:
    effect = gain if readout == "position" else -gain
    return {"unit": unit, "readout": readout, "layer": layer, "effect": effect, "low": effect - HALF,
            "high": effect + HALF}  # fmt: skip


# Gains without each head: nothing, at most a little lost, perhaps more than a little, and much.
GAINS = {"1-1": 0.02, "1-2": -0.005, "2-1": -0.008, "2-2": -0.012, "2-3": -0.3, "1": -0.5, "2": 0.0}


def subject(readout: str, best: list[dict[str, Any]] | None = None) -> Subject:
    rows = [row(unit, gain, readout) for unit, gain in GAINS.items()]
    rows += [row(unit, -1.0, readout, layer=1) for unit in GAINS]  # what lower layers lose does not count
    rows += [row(unit, -1.0, "position_retrained") for unit in GAINS]
    made = results_of("disable", Path("disabled"), {}, {}, Table(rows), Table(best or []))
    return Subject("any", {"disabled": made, "disabled_words": made})


@pytest.mark.parametrize(
    ("readout", "measure"),
    [("position", measures.spare_heads_of_positions), ("mlm", measures.spare_heads_of_words)],
)
def test_heads_count_whose_loss_is_little_and_the_interval_has_those_that_may(readout: str, measure: Any) -> None:
    found = measure(subject(readout), 0.01)
    assert (found.value, found.low, found.high) == pytest.approx((3 / 5, 2 / 5, 4 / 5))
    assert found.control == 0.5  # one of two layers


@pytest.mark.parametrize(
    ("readout", "measure"), [("position", measures.gain_for_positions), ("mlm", measures.gain_for_words)]
)
def test_the_gain_is_that_of_the_better_of_head_and_layer_in_the_last_layer(readout: str, measure: Any) -> None:
    best = [
        {**row("1-1", 0.02, readout), "units": "heads", "p_value": 0.2},
        {**row("2", 0.05, readout), "units": "layers", "p_value": 0.01},
        {**row("1", 0.9, readout, layer=1), "units": "layers", "p_value": 0.001},
    ]
    found = measure(subject(readout, best))
    assert (found.value, found.low, found.high, found.control) == pytest.approx((0.05, 0.046, 0.054, 0.01))


def test_heads_and_layers_are_both_needed() -> None:
    alone = results_of("disable", Path("disabled"), {}, {}, Table([row("1-1", 0.1, "position")]), Table())
    with pytest.raises(NotMeasurable, match="with heads and with layers"):
        measures.spare_heads_of_positions(Subject("any", {"disabled": alone}), 0.01)
    with pytest.raises(NotMeasurable, match="more sentences"):
        measures.gain_for_positions(Subject("any", {"disabled": alone}))
