"""What `geometry --norms` says: counts and terms in sentences and tables, with random neurons and without."""

from __future__ import annotations

from typing import Any

import pytest
from matplotlib.figure import Figure

from probing.studies.geometry.inside.smoothing_bound import (
    changes_conclusions,
    changes_tables,
    draw_changes,
    draw_terms,
    norms_table,
    terms_conclusion,
)

pytestmark = pytest.mark.numeric


def term(neuron: int, number: int, z: float, largest: str, kind: str = "outlier") -> dict[str, Any]:
    parts = {f"by_{name}": 3.0 if name == largest else 0.25 for name in ("input", "gain", "bias")}
    about = {"layer": 2, "norm": number, "module": "n", "neuron": neuron, "kind": kind}
    return {**about, **parts, "by_others_bias": 0.5, "mean": 4.0, "deviations": z, "largest": largest}


def changes(n_draws: int) -> list[dict[str, Any]]:
    """Two outliers, of which the second norm makes one, and a loss that rises by .2 where both are ordinary."""
    rows: list[dict[str, Any]] = []
    for neuron, after in (
        (3, {"first": 6.0, "second": 1.0, "both": 1.5}),
        (8, dict.fromkeys(("first", "second"), 7.0)),
    ):
        about = {"measure": "deviations", "layer": 1, "neuron": neuron, "n_tokens": 9}
        rows.append({**about, "where": "", "kind": "intact", "value": 8.0, "outlier": "yes"})
        for where in ("first", "second", "both"):
            value = after.get(where, 7.0)
            p = {"percentile": 100.0, "p_value": 0.25} if n_draws else {}
            left = "yes" if value > 5 else "no"
            rows.append({**about, "where": where, "kind": "outliers", "value": value, "outlier": left, **p})
            rows += [
                {**about, "where": where, "kind": "random", "draw": i + 1, "value": 8.0, "outlier": "yes"}
                for i in range(n_draws)
            ]
    about = {"measure": "mlm_loss", "n_tokens": 9}
    rows.append({**about, "where": "", "kind": "intact", "value": 1.5})
    for where, effect in (("first", 0.0), ("second", 0.1), ("both", 0.2)):
        p = {"percentile": 50.0, "p_value": 0.5} if n_draws else {}
        ends = {"effect_low": effect - 0.05, "effect_high": effect + 0.05}
        rows.append({**about, "where": where, "kind": "outliers", "value": 1.5 + effect, "effect": effect, **ends, **p})
        rows += [{**about, "where": where, "kind": "random", "draw": i + 1, "effect": 0.1 * i} for i in range(n_draws)]
    return rows


def test_terms_are_counted_and_the_farthest_outlier_is_split() -> None:
    rows = [
        term(3, 1, -6.0, "gain"),
        term(3, 2, -9.0, "bias"),
        term(8, 2, 4.9, "input"),
        term(1, 2, 2.0, "bias", "random"),
    ]
    said = terms_conclusion(rows)
    assert "more than 5 sd from the other neurons 2 times" in said
    assert "what enters the norm in 0, its own gain in 1 and its own bias in 1" in said
    assert "The farthest is neuron 3 behind norm 2 of block 2 (-9.0 sd): its mean +4.00 is +0.25 by the input" in said
    assert "+3.00 by its bias" in said
    assert "Random neurons are as far 0 times" in said
    assert norms_table(rows).row_count == 2
    assert terms_conclusion([rows[2]]).startswith("No outlier is more than 5 sd")
    draw_terms(Figure(), rows, "m")


@pytest.mark.parametrize("n_draws", [0, 3])
def test_what_is_left_is_counted_beside_random_neurons(n_draws: int) -> None:
    rows = changes(n_draws)
    left, loss = changes_conclusions(rows)
    beside = " (with random neurons instead 2.0)" if n_draws else ""
    assert "2 outliers are more than 5 sd" in left
    assert f"in the first norm 2{beside}, in the second norm 1{beside} and in both norms 1{beside}" in left
    assert "Loss on masked words in nats (intact: 1.500)" in loss
    assert "in both norms by +0.200 (+0.150 to +0.250" in loss
    assert ("worse than 50% of random draws" in loss) == bool(n_draws)
    assert [table.row_count for table in changes_tables(rows)] == [2, 3]
    draw_changes(figure := Figure(), rows, "m")
    assert len(figure.axes) == 2
