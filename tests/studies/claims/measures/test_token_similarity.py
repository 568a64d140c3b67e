"""Similarity of tokens and its bound, against values planted in the tables of `geometry`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import linregress, rankdata, spearmanr

from planted_claims import with_interval
from probing.results.rows import Table
from probing.studies.claims.measures import layers as measures
from probing.studies.claims.measures.registry import NotMeasurable, Subject
from written import results_of

pytestmark = pytest.mark.numeric


def subject(**tables: list[dict[str, Any]]) -> Subject:
    empty = {name: Table() for name in ("geometry", "outliers", "dimensions", "parameters", "explained")}
    made = {**empty, **{name: Table(rows) for name, rows in tables.items()}}
    return Subject("any", {"geometry": results_of("geometry", Path("geometry"), {}, {}, **made)})


def similarity(transform: str, **of_layers: float) -> list[dict[str, Any]]:
    return [
        {"layer": int(layer[1:]), "transform": transform, "measure": "token_similarity", **with_interval(value)}
        for layer, value in of_layers.items()
    ]


def test_the_last_layer_has_its_similarity_and_the_growth_as_control() -> None:
    one = subject(geometry=similarity("none", L0=0.1, L1=0.5, L3=0.95, L2=0.3))
    found = measures.last_token_similarity(one)
    assert (found.value, found.low, found.high) == pytest.approx((0.95, 0.948, 0.952))
    assert found.control == pytest.approx(spearmanr(range(4), [0.1, 0.5, 0.3, 0.95]).statistic)


def test_growth_is_also_that_of_clipped_states_where_there_are_any() -> None:
    rows = [*similarity("none", L0=0.1, L1=0.2, L2=0.5, L3=0.6), *similarity("clip", L1=0.05, L2=0.01)]
    found = measures.growth_of_token_similarity(subject(geometry=rows))
    assert found.value == pytest.approx(1)
    assert found.control == pytest.approx(spearmanr(range(4), [0.1, 0.05, 0.01, 0.6]).statistic)
    falls = measures.growth_of_token_similarity(subject(geometry=similarity("none", L0=0.5, L1=0.3, L2=0.1)))
    assert (falls.value, falls.control) == pytest.approx((-1, -1))
    with pytest.raises(NotMeasurable, match="three layers"):
        measures.growth_of_token_similarity(subject(geometry=similarity("none", L0=0.5, L1=0.3)))


def test_the_share_within_a_bound_is_the_least_over_blocks_and_its_control_how_near_sentences_come() -> None:
    shares = [
        {"layer": layer, "measure": f"share_within_{bound}", **with_interval(share)}
        for bound, values in (("bound", (1.0, 0.9, 1.0)), ("bound_published", (0.5, 0.5, 0.5)))
        for layer, share in enumerate(values, start=1)
    ]
    of_sentences = [
        {"layer": 1, "distance_before": 2.0, "distance_after": 3.0, "bound": 6.0},
        {"layer": 2, "distance_before": 2.0, "distance_after": 3.0, "bound": 5.0},
        {"layer": 2, "distance_before": 0.0, "distance_after": 0.0, "bound": 5.0},  # a single token
    ]
    found = measures.least_share_within_bound(subject(smoothing=shares, smoothing_sentences=of_sentences), "bound")
    assert (found.value, found.low, found.high) == pytest.approx((0.9, 0.898, 0.902))
    assert found.control == pytest.approx(3 / 2 / 5)
    with pytest.raises(NotMeasurable, match="post-LN"):
        measures.least_share_within_bound(subject(), "bound")


def test_the_reach_of_attention_is_the_largest_of_all_blocks_and_sentences() -> None:
    rows = [{"layer": i % 3, "attention_reach": reach} for i, reach in enumerate([0.3, 1.00000004, 0.8, math.nan])]
    assert measures.largest_reach_of_attention(subject(smoothing_sentences=rows)).value == 1
    rows[0]["attention_reach"] = 1.01
    assert measures.largest_reach_of_attention(subject(smoothing_sentences=rows)).value == 1.01
    with pytest.raises(NotMeasurable, match="post-LN"):
        measures.largest_reach_of_attention(subject())
    with pytest.raises(NotMeasurable, match="later version"):
        measures.largest_reach_of_attention(subject(smoothing_sentences=[*rows, {"layer": 1}]))


def sentences(n: int, noise: float, by_length: float) -> list[dict[str, Any]]:
    """Return terms of sentences: in a sentence of a given length, a larger product leaves less of the distance.

    Args:
        n: Number of sentences.
        noise: Standard deviation of what is left, beside both.
        by_length: How much more is left in shorter sentences, which also have larger products.
    """
    rng = np.random.default_rng(0)
    rows = []
    for i in range(n):
        length, own = int(rng.integers(5, 40)), rng.normal()
        left = -own - by_length * length / 10 + noise * rng.normal()
        terms = {"sigma_1": math.exp((own - length / 10) / 10), "sigma_2": 1.0}
        distances = {"distance_before": 2.0, "distance_after": 2 * math.exp(left / 10)}
        rows.append({"sentence": i, "layer": 3, "n_tokens": length, **terms, **distances})
        rows.append({"sentence": i, "layer": 2, "n_tokens": length, "sigma_1": float(i), "sigma_2": 1.0,
                     "distance_before": 1.0, "distance_after": float(i + 1)})  # fmt: skip
    return rows


def test_norms_and_smoothing_is_the_correlation_in_the_last_block() -> None:
    rows = [row for row in sentences(300, 0.5, 0.0) if row["layer"] == 3]
    found = measures.norms_and_smoothing(subject(smoothing_sentences=sentences(300, 0.5, 0.0)))
    product, left, length = (
        [row[name] for row in rows] for name in ("sigma_1", "distance_after", "n_tokens")
    )  # sigma_2 and the distance before are the same for all
    assert found.value == pytest.approx(spearmanr(product, left).statistic)
    assert found.high < 0
    ranks = [rankdata(one) for one in (product, left, length)]
    residuals = [one - linregress(ranks[2], one).slope * ranks[2] for one in ranks[:2]]
    assert found.control == pytest.approx(np.corrcoef(*residuals)[0, 1])


def test_what_length_does_to_both_is_no_control_of_it() -> None:
    """Longer sentences have smaller products and less is left of them: more smoothing, with smaller products."""
    found = measures.norms_and_smoothing(subject(smoothing_sentences=sentences(300, 0.1, 3.0)))
    assert found.low > 0
    assert found.control is not None
    assert found.control < -0.5


def test_the_interval_covers_the_correlation_of_many_sentences_and_null_ones_cover_0() -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(200):
        rows = [
            {"layer": 1, "n_tokens": 9, "sigma_1": a, "sigma_2": 1.0, "distance_before": 1.0, "distance_after": b}
            for a, b in rng.uniform(0.1, 1, (40, 2))
        ]
        found = measures.norms_and_smoothing(subject(smoothing_sentences=rows))
        assert found.control == pytest.approx(found.value)  # all sentences are equally long
        covered += found.low <= 0 <= found.high
    assert covered >= 180  # 95% of 200, less three standard errors


def test_few_sentences_tell_nothing() -> None:
    with pytest.raises(NotMeasurable, match="at least 20 sentences"):
        measures.norms_and_smoothing(subject(smoothing_sentences=sentences(19, 0.5, 0.0)))
    with pytest.raises(NotMeasurable, match="post-LN"):
        measures.norms_and_smoothing(subject())
