"""The criteria of all papers, each with all outcomes that a claim may have."""

from __future__ import annotations

import math

import pytest

from probing.studies.claims.claim import Reading, papers, read_paper
from probing.studies.claims.measures import MEASURES
from probing.studies.claims.verdict import Measured, judge


def readings() -> list[tuple[str, Reading]]:
    """Return how each claim is measured on the paper's own models, and on others where that is another way."""
    claims = [(name, claim) for name in papers() for claim in read_paper(name, MEASURES).claims]
    own = [(f"{name} {claim.id}", claim.reading) for name, claim in claims if claim.reading]
    other = [(f"{name} {claim.id}", one.reading) for name, claim in claims for one in claim.analogues]
    return own + [pair for pair in other if pair not in own]


@pytest.mark.parametrize("reading", [one for _, one in readings()], ids=[name for name, _ in readings()])
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
