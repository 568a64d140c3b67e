"""Sentences about what a model loses without a head or a layer."""

from __future__ import annotations

from typing import Any

import pytest

from probing.tables.disabling import conclusions


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
