"""Every claim that is measured is confirmed by a run of which it is true, and not by one of which it is false."""

from __future__ import annotations

import math

import pytest

from planted_claims import paper, runs_of
from probing.claims.claim import Claim, Reading
from probing.claims.evaluation import Model, rows_of
from probing.claims.verdict import Measured, judge

MEASURED = [(claim, model) for claim in paper().claims if claim.reading for model in claim.models]
# No decoder has runs of its own here: what is measured of them is what is measured of others.
PLANTED = [pair for pair in MEASURED if pair[1] not in ("gpt2", "pythia")]


def name(value: object) -> str:
    return str(value.id) if isinstance(value, Claim) else str(value)


def verdict(claim: Claim, model: str, true: bool) -> str:
    compared = [Model("bert", runs_of("bert", True))] if model == "roberta" else []
    rows = rows_of([claim], [Model(model, runs_of(model, true)), *compared], paper())
    return next(str(row["verdict"]) for row in rows if row["model"] == model)


@pytest.mark.parametrize(("claim", "model"), PLANTED, ids=name)
def test_a_claim_is_confirmed_where_it_is_true_and_not_where_it_is_false(claim: Claim, model: str) -> None:
    assert verdict(claim, model, true=True) == "confirmed"
    assert verdict(claim, model, true=False) == "not confirmed"


def test_decoders_are_anisotropic_if_every_layer_is() -> None:
    (claim,) = (claim for claim in paper().claims if claim.id == 58)
    for true, expected in ((True, "confirmed"), (False, "not confirmed")):
        (row,) = rows_of([claim], [Model("gpt2", runs_of("bert", true))], paper())
        assert row["verdict"] == expected


def readings() -> list[tuple[int, Reading]]:
    own = [(claim.id, claim.reading) for claim in paper().claims if claim.reading]
    other = [(claim.id, claim.analogue) for claim in paper().claims if claim.analogue]
    return own + [pair for pair in other if pair not in own]


@pytest.mark.parametrize("reading", [one for _, one in readings()], ids=[str(number) for number, _ in readings()])
def test_every_criterion_has_all_four_outcomes(reading: Reading) -> None:
    criterion, control = reading.criterion, reading.control
    finite = [end for end in (criterion.low, criterion.high) if math.isfinite(end)]
    inside = sum(finite) / len(finite) if len(finite) == 2 else finite[0] + (1 if math.isfinite(criterion.low) else -1)
    outside = criterion.low - 1 if math.isfinite(criterion.low) else criterion.high + 1
    passed = None if control is None else max(control.low, -9.0) / 2 + min(control.high, 9.0) / 2

    def found(low: float, high: float, beside: float | None) -> str:
        return judge(Measured((low + high) / 2, low, high, beside), criterion, control)

    assert found(inside, inside, passed) == "confirmed"
    assert found(outside, outside, passed) == "not confirmed"
    assert found(min(outside, inside), max(outside, inside), passed) == "unclear"
    assert judge(None, criterion, control) == "not testable here"
    if control is not None:
        failed = control.low - 1 if math.isfinite(control.low) else control.high + 1
        assert found(inside, inside, failed) == "unclear"
        assert found(inside, inside, None) == "unclear"
        assert found(outside, outside, failed) == "not confirmed"


def test_the_paper_has_58_claims_and_each_says_what_is_measured_or_what_is_lacking() -> None:
    claims = paper().claims
    assert [claim.id for claim in claims] == list(range(1, 59))
    assert all(claim.reading or claim.lacking for claim in claims)
    assert all(claim.analogue or claim.lacking for claim in claims)
    assert len(MEASURED) > 40
