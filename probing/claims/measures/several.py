"""What is said of several claims together."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from probing.claims.measures.registry import NotMeasurable, Subject, measure
from probing.claims.verdict import Measured


@measure()
def claims_that_hold(
    subject: Subject, claims: list[int], instead: Mapping[str, list[int]] = MappingProxyType({})
) -> Measured:
    """Return the share of some other claims whose criterion this model meets.

    Args:
        subject: The model.
        claims: Their numbers.
        instead: The numbers for models for which other claims count, by model.
    """
    found = {number: subject.holds(number) for number in instead.get(subject.model, claims)}
    if missing := [str(number) for number, holds in found.items() if holds is None]:
        raise NotMeasurable(f"of claim {', '.join(missing)} nothing could be measured")
    return Measured.exact(sum(map(bool, found.values())) / len(found))
