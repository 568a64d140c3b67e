"""The measures by name, and the object that they measure: a model with its finished runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from probing.results.schema import ends
from probing.studies.claims.verdict import Measured

# Whether an outlier is the smallest neuron of most tokens or the largest: papers say which.
Role = Literal["minimum", "maximum"]
ROLES: tuple[Role, ...] = ("minimum", "maximum")
# The direction in which an outlier of each role deviates.
SIGNS: Mapping[Role, int] = {"minimum": -1, "maximum": 1}

_Function = TypeVar("_Function", bound=Callable[..., Measured])


class NotMeasurable(Exception):
    """A measure cannot be computed from a model's runs; the message is a clause that says what is missing or wrong."""


@dataclass(frozen=True)
class Subject:
    """A model and its finished runs.

    Args:
        model: Its name.
        runs: Its runs, by the names that measures ask for.
        published: Its outliers as published, by role; empty for models that the paper is not about.
        holds: Returns whether another claim's criterion is met by this model; None where that cannot be said.
        others: The runs of other models, by model.
    """

    model: str
    runs: Mapping[str, Any]
    published: Mapping[str, int] = field(default_factory=dict)
    holds: Callable[[int], bool | None] = lambda number: None
    others: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def run(self, name: str) -> Any:
        """Return a run."""
        return self.runs[name]

    def neuron(self, role: Role) -> int:
        """Return the outlier of this role: as published, or else the model's own.

        The model's own outlier is the neuron whose mean is more than 5 sd below (`minimum`) or above (`maximum`) the
        other neurons' means in the largest number of layers above the embeddings; on a tie, the one that is farther on
        average.

        Raises:
            NotMeasurable: If the model has none.
        """
        if self.published:
            if role not in self.published:
                raise NotMeasurable(f"the paper names no outlier of {self.model} that is a {role}")
            return self.published[role]
        geometry = self.run("geometry")
        tokens, sign = geometry.config["special_tokens"], SIGNS[role]
        beyond: dict[int, list[float]] = {}
        for row in geometry.outliers:
            is_named = row["definition"] == "mean_profile" and row["special_tokens"] == tokens and row["layer"] != 0
            if is_named and sign * row["value"] > 0:
                beyond.setdefault(row["neuron"], []).append(abs(row["value"]))
        if not beyond:
            side = "below" if role == "minimum" else "above"
            raise NotMeasurable(f"no neuron's mean is beyond 5 sd {side} the others' in any layer above the embeddings")
        return max(sorted(beyond), key=lambda neuron: (len(beyond[neuron]), sum(beyond[neuron])))

    def outliers(self, roles: list[Role] | None = None) -> dict[Role, int]:
        """Return the outliers of these roles; if `roles` is None, all published ones, or else all of the model's own.

        Raises:
            NotMeasurable: If the model has none.
        """
        if roles is not None:
            return {role: self.neuron(role) for role in roles}
        found: dict[Role, int] = {}
        for role in ROLES:
            with suppress(NotMeasurable):
                found[role] = self.neuron(role)
        return found or {ROLES[0]: self.neuron(ROLES[0])}


@dataclass(frozen=True)
class Measure:
    """A measure.

    Args:
        name: Its name in files of claims.
        function: Takes a subject and the arguments that a claim gives; raises `NotMeasurable` where the runs have
            nothing to measure.
        runs: Names of the runs that it reads.
    """

    name: str
    function: Callable[..., Measured]
    runs: tuple[str, ...]

    def problem_with(self, arguments: Any) -> str | None:
        """Return what is wrong with the arguments of a claim, as the end of a sentence; None if nothing is."""
        if not isinstance(arguments, Mapping):
            return "takes a mapping of arguments as `with`"
        try:
            inspect.signature(self.function).bind(None, **arguments)
        except TypeError as error:
            return f"does not take these arguments ({error})"
        return None


def from_row(
    row: Mapping[str, Any], value: str = "value", interval: str = "", control: float | None = None,
    neurons: tuple[int, ...] = (),
) -> Measured:  # fmt: skip
    """Return a value of a table with its interval.

    Args:
        row: The row.
        value: Column of the value.
        interval: What the columns of the interval begin with, as for `probing.tables.columns.ends`.
        control: The value of the control.
        neurons: The neurons that it is about.

    Raises:
        NotMeasurable: If the row has no interval, as where there are too few sentences.
    """
    found = ends(row, interval)
    if found is None:
        raise NotMeasurable("the run has no interval, for which it would need more text")
    return Measured(row[value], min(found[0], row[value]), max(found[1], row[value]), control, neurons)


def difference(a: Measured, b: Measured) -> Measured:
    """Return a - b; their covariance is not known, so that its interval is the widest that both intervals allow."""
    return Measured(a.value - b.value, a.low - b.high, a.high - b.low)


def magnitude(one: Measured) -> Measured:
    """Return the magnitude of a value; its interval begins at 0 where that of the value has 0 in it."""
    nearest = 0.0 if one.low <= 0 <= one.high else min(abs(one.low), abs(one.high))
    return Measured(abs(one.value), nearest, max(abs(one.low), abs(one.high)), one.control, one.neurons)


MEASURES: dict[str, Measure] = {}


def measure(*runs: str) -> Callable[[_Function], _Function]:
    """Register a function as the measure of its name.

    Args:
        runs: Names of the runs that it reads.
    """

    def register(function: _Function) -> _Function:
        name = function.__name__
        assert name not in MEASURES, name
        MEASURES[name] = Measure(name, function, runs)
        return function

    return register


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
