"""Sentences about what a model loses without a head or a layer."""

from __future__ import annotations

from typing import Any

import pytest

from probing.studies.disable.tables import conclusions


@pytest.mark.parametrize(
    ("effect", "verb"), [(-0.02, "loses most by layer 1, "), (0.02, "loses nothing, and gains least by layer 1, ")]
)
def test_a_gain_is_not_called_a_loss(effect: float, verb: str) -> None:
    rows: list[dict[str, Any]] = [
        {"unit": unit, "kind": "zero", "readout": readout, "layer": 6, "intact": 0.4, "value": 0.4 + of, "effect": of,
         "low": of - 0.01, "high": of + 0.01, "percentile": None, "p_value": 0.001, "n": 100}
        for readout in ("position", "position_retrained") for unit, of in (("1", effect), ("2", effect + 0.01))
    ]  # fmt: skip
    first, again, *_ = conclusions({"disabled": rows})
    assert f"the probe of layer 6 {verb}" in first
    assert f"it {verb.replace(' by ', ' without ').removesuffix(', ')}: {100 * effect:+.1f} points" in again


@pytest.mark.parametrize(
    ("effect", "told"),
    [(0.25, "rises most by layer 1, from 2.000 to 2.250 (+0.250 nats; +0.150 to +0.350); 0 of 2 layers lower it"),
     (-0.25, "rises nowhere, and falls least by layer 2, from 2.000 to 1.875 (-0.125 nats; ")],
)  # fmt: skip
def test_a_loss_that_rises_is_a_change_for_the_worse(effect: float, told: str) -> None:
    rows: list[dict[str, Any]] = [
        {"unit": unit, "kind": "zero", "readout": "mlm", "layer": 6, "intact": 2.0, "value": 2 + of, "effect": of,
         "low": of - 0.1, "high": of + 0.1, "percentile": None, "p_value": 0.001, "n": 100}
        for unit, of in (("1", effect), ("2", effect / 2))
    ]  # fmt: skip
    better = [{"units": "layers", **row, "n": 50} for row in rows[:1]]
    first, second, *_ = conclusions({"disabled": rows, "better_without": better})
    assert f"with zeros: the loss of masked words {told}" in first
    better_told = "none" if effect > 0 else "1 (zero: -0.250 nats"
    assert f"chosen on one half of the sentences (mlm) and measured on the other: {better_told}" in second
