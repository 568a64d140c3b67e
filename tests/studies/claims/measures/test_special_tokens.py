"""Attention to special tokens by layer, against values planted in the tables of a survey."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planted_claims import with_interval
from probing.results.rows import Table
from probing.studies.claims.measures import heads
from probing.studies.claims.measures import heads as measures
from probing.studies.claims.measures.registry import NotMeasurable, Subject
from written import results_of


def layers(measure: str, to: str, values: list[float]) -> list[dict[str, Any]]:
    return [{"layer": layer, "measure": measure, "to": to, **with_interval(one)} for layer, one in enumerate(values, 1)]


def subject(*rows: dict[str, Any]) -> Subject:
    return Subject(
        "any", {"attention": results_of("attention", Path("attention"), {}, {}, attention_layers=Table(list(rows)))}
    )


SEP = layers("mass", "[SEP]", [0.1, 0.2, 0.6, 0.55, 0.3, 0.2])
BY_NORM = layers("norm_mass", "[SEP]", [0.3, 0.2, 0.1, 0.1, 0.1, 0.1])


def test_the_layer_of_the_range_with_least_attention_counts() -> None:
    found = measures.attention_to_last_token(subject(*SEP), 0.5, 0.7)
    assert (found.value, found.low, found.high, found.control) == pytest.approx((0.55, 0.548, 0.552, 0.6))
    assert measures.attention_to_last_token(subject(*SEP), 0.5, 0.84).value == 0.3
    with pytest.raises(NotMeasurable, match="more layers"):
        measures.attention_to_last_token(subject(*SEP[:1]), 0.5, 0.7)


def test_the_rise_is_that_of_mean_layers_with_that_by_norm_as_control() -> None:
    found = measures.rise_at_last_token(subject(*SEP, *BY_NORM), 0.4)
    assert found.value == pytest.approx((0.6 + 0.55 + 0.3 + 0.2) / 4 - 0.15)
    assert (found.low, found.high) == pytest.approx((found.value - 0.004, found.value + 0.004))
    assert found.control == pytest.approx(0.1 - 0.25)
    with pytest.raises(NotMeasurable, match="more layers"):
        measures.rise_at_last_token(subject(*SEP[:1], *BY_NORM[:1]), 0.4)


def test_the_layer_in_which_norms_take_away_least_counts() -> None:
    rows = [
        *layers("mass", "special tokens", [0.4, 0.5, 0.2]), *layers("norm_mass", "special tokens", [0.1, 0.25, 0.06]),
        *layers("lift", "special tokens", [4.0, 5.0, 1.5]),
    ]  # fmt: skip
    found = measures.norm_over_weight(subject(*rows))
    assert (found.value, found.low, found.high) == pytest.approx((0.5, 0.248 / 0.502, 0.252 / 0.498))
    assert found.control == 1.5
    with pytest.raises(NotMeasurable, match="special tokens"):
        measures.norm_over_weight(subject(*rows[:3]))


def test_punctuation_comes_after_the_last_special_token_by_mean_layers() -> None:
    punctuation = layers("mass", "punctuation", [0.0, 0.0, 0.0, 0.0, 0.4, 0.4])
    own = subject(*layers("mass", "[SEP]", [0.0, 0.0, 0.5, 0.5, 0.0, 0.0]), *punctuation)
    found = heads.layers_from_last_to_punctuation(own)
    assert found.value == pytest.approx(5.5 - 3.5)
    assert found.low < found.value < found.high


def test_a_tokenizer_without_special_tokens_is_named() -> None:
    for measure, args in ((measures.attention_to_last_token, (0.5, 0.7)), (measures.rise_at_last_token, (0.4,))):
        with pytest.raises(NotMeasurable, match=r"\[SEP\] or </s>"):
            measure(subject(), *args)
