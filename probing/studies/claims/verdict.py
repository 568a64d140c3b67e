"""The verdict on a claim: a pure function of the value, its interval, the criterion and the control."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Literal

Verdict = Literal["confirmed", "not confirmed", "unclear", "not testable here"]
VERDICTS: tuple[Verdict, ...] = ("confirmed", "not confirmed", "unclear", "not testable here")

_NUMBER = r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?"
_FORMS = re.compile(rf"(?P<sign><=|>=|<|>|=) (?P<end>{_NUMBER})|(?P<low>{_NUMBER}) to (?P<high>{_NUMBER})")


@dataclass(frozen=True)
class NumberRange:
    """A range of numbers, infinite where it has no end; `strict` excludes the ends."""

    low: float
    high: float
    strict: bool = False

    @classmethod
    def parse(cls, text: str) -> NumberRange:
        """Parse a range such as `> 0.5`, `>= 0.5`, `< 0.5`, `<= 0.5`, `= 2` or `0.3 to 0.5`.

        Raises:
            ValueError: If it is none of these forms, or its ends are the wrong way round.
        """
        match = _FORMS.fullmatch(text)
        if not match:
            raise ValueError(
                f"`{text}` is no range: expected one such as > 0.5, >= 0.5, < 0.5, <= 0.5, = 2, 0.3 to 0.5"
            )
        if match["low"]:
            low, high = float(match["low"]), float(match["high"])
            if low > high:
                raise ValueError(f"`{text}` is no range: its lower end comes first")
            return cls(low, high)
        end, sign = float(match["end"]), match["sign"]
        return cls(
            -math.inf if sign.startswith("<") else end, math.inf if sign.startswith(">") else end, sign in ("<", ">")
        )

    def holds(self, low: float, high: float) -> bool:
        """Check that an interval is within the range."""
        return self.low < low and high < self.high if self.strict else self.low <= low and high <= self.high

    def excludes(self, low: float, high: float) -> bool:
        """Check that an interval has no point in common with the range."""
        return high <= self.low or self.high <= low if self.strict else high < self.low or self.high < low

    def __str__(self) -> str:
        """Return the text that `parse` reads."""
        if self.low == self.high:
            return f"= {self.low:g}"
        if math.isinf(self.high):
            return f">{'' if self.strict else '='} {self.low:g}"
        if math.isinf(self.low):
            return f"<{'' if self.strict else '='} {self.high:g}"
        return f"{self.low:g} to {self.high:g}"


@dataclass(frozen=True)
class ClaimEstimate:
    """A value that a measure returns from finished runs, with its 95% interval, and the neurons that it is about.

    The interval is the value itself where it is exact, such as a count of parameters. `control` is None without a
    control.
    """

    value: float
    low: float
    high: float
    control: float | None = None
    neurons: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not all(map(math.isfinite, (self.value, self.low, self.high))) or not self.low <= self.high:
            raise ValueError(f"no interval of finite numbers: {self.low} to {self.high} around {self.value}")

    def __sub__(self, other: ClaimEstimate) -> ClaimEstimate:
        """Return the difference with the widest interval that both intervals allow; their covariance is not known."""
        return ClaimEstimate(self.value - other.value, self.low - other.high, self.high - other.low)

    def __neg__(self) -> ClaimEstimate:
        return ClaimEstimate(-self.value, -self.high, -self.low)

    def __abs__(self) -> ClaimEstimate:
        """Return the magnitude; its interval begins at 0 where the interval of the value includes 0."""
        nearest = 0.0 if self.low <= 0 <= self.high else min(abs(self.low), abs(self.high))
        return ClaimEstimate(abs(self.value), nearest, max(abs(self.low), abs(self.high)), self.control, self.neurons)

    def beside(self, control: float | None) -> ClaimEstimate:
        """Return the same value with a control."""
        return replace(self, control=control)

    @classmethod
    def exact(cls, value: float, control: float | None = None, neurons: tuple[int, ...] = ()) -> ClaimEstimate:
        """Return a value without an interval."""
        return cls(value, value, value, control, neurons)


def judge(estimate: ClaimEstimate | None, criterion: NumberRange, control: NumberRange | None = None) -> Verdict:
    """Return the verdict on a claim: whether the value and the control are in their ranges.

    It is `not confirmed` if the whole interval is outside the criterion; `confirmed` if the whole interval is within it
    and the control is within its range; `unclear` if the interval has points on both sides, or if the control alone
    fails; `not testable here` without a value.
    """
    if estimate is None:
        return "not testable here"
    if criterion.excludes(estimate.low, estimate.high):
        return "not confirmed"
    control_value = estimate.control
    passed = control is None or (control_value is not None and control.holds(control_value, control_value))
    return "confirmed" if passed and criterion.holds(estimate.low, estimate.high) else "unclear"
