"""The measures by name, and their subject: a model with its finished runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from probing.results import Table, ends
from probing.studies.claims.claim import ClaimEstimate
from probing.studies.cloze import EVERY, INTACT
from probing.studies.hierarchy import ITSELF, LINEAR, of_model

# Whether an outlier is the smallest neuron of most tokens or the largest: papers say which.
Role = Literal["minimum", "maximum"]
ROLES: tuple[Role, ...] = ("minimum", "maximum")
# The direction in which an outlier of each role deviates.
SIGNS: Mapping[Role, int] = {"minimum": -1, "maximum": 1}

_Function = TypeVar("_Function", bound=Callable[..., ClaimEstimate])
_Rows = TypeVar("_Rows", bound=Sized)


class NotMeasurable(Exception):
    """Exception for a measure that a model's runs do not allow; the message is a clause that gives the reason."""


@dataclass(frozen=True)
class ModelRuns:
    """A model and its finished runs, by the names that measures request; `others` are the runs of other models.

    `published` has its outliers by role, empty for models that the paper is not about. `holds` returns whether this
    model meets another claim's criterion, None if unknown.
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
        """Return the outlier of this role: as published, or else as measured.

        The measured outlier is the neuron whose mean is more than 5 sd below (`minimum`) or above (`maximum`) the other
        neurons' means in the largest number of layers above the embeddings; on a tie, the neuron that is farther on
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
        """Return the outliers of these roles; if `roles` is None, all published ones, or else all measured ones.

        Raises:
            NotMeasurable: If the model has none.
        """
        if roles is not None:
            return {role: self.neuron(role) for role in roles}
        outliers: dict[Role, int] = {}
        for role in ROLES:
            with suppress(NotMeasurable):
                outliers[role] = self.neuron(role)
        return outliers or {ROLES[0]: self.neuron(ROLES[0])}


@dataclass(frozen=True)
class ClaimMeasure:
    """A measure, with its name in files of claims and the names of the runs that it reads.

    `function` takes the runs of a model and the arguments of a claim, and raises `NotMeasurable` where the runs have no
    data for it.
    """

    name: str
    function: Callable[..., ClaimEstimate]
    runs: tuple[str, ...]

    def problem_with(self, arguments: Any) -> str | None:
        """Return the problem of a claim's arguments, as the end of a sentence; None if they are valid."""
        if not isinstance(arguments, Mapping):
            return "takes a mapping of arguments as `with`"
        try:
            inspect.signature(self.function).bind(None, **arguments)
        except TypeError as error:
            return f"does not take these arguments ({error})"
        return None


def upper(rows: Table, from_depth: float) -> Table:
    """Return the rows of the layers from a depth on, a share of the number of blocks."""
    depth = max(rows.column("layer"), default=0)
    return rows.where(lambda row: row["layer"] >= from_depth * depth)


def from_row(
    row: Mapping[str, Any], value: str = "value", interval: str = "", control: float | None = None,
    neurons: tuple[int, ...] = (),
) -> ClaimEstimate:  # fmt: skip
    """Return a value of a table with its interval; `interval` is as for `probing.tables.ends`.

    Raises:
        NotMeasurable: If the row has no interval, as where there are too few sentences.
    """
    bounds = ends(row, interval)
    if bounds is None:
        raise NotMeasurable("the run has no interval, for which it would need more text")
    return ClaimEstimate(row[value], min(bounds[0], row[value]), max(bounds[1], row[value]), control, neurons)


def required(rows: _Rows, lacking: str) -> _Rows:
    """Return what a measure reads; `NotMeasurable`, by what is lacking, if there is none."""
    if not rows:
        raise NotMeasurable(lacking)
    return rows


def least(estimates: Iterable[ClaimEstimate]) -> ClaimEstimate:
    """Return the estimate of the least value."""
    measured = required([*estimates], "nothing was measured in these layers")
    return min(measured, key=lambda estimate: estimate.value)


def largest(estimates: Iterable[ClaimEstimate]) -> ClaimEstimate:
    """Return the estimate of the largest value."""
    return max(estimates, key=lambda estimate: estimate.value)


def by_ends(
    function: Callable[[list[float]], float], estimates: Sequence[ClaimEstimate], control: float | None = None
) -> ClaimEstimate:
    """Return a monotone function of several values, such as their mean, with that of the ends of their intervals."""
    value, low, high = (
        float(function([getattr(estimate, end) for estimate in estimates])) for end in ("value", "low", "high")
    )
    return ClaimEstimate(value, low, high, control)


MEASURES: dict[str, ClaimMeasure] = {}


def measure(*runs: str) -> Callable[[_Function], _Function]:
    """Register a function as the measure of its name, which reads these runs."""

    def register(function: _Function) -> _Function:
        name = function.__name__
        assert name not in MEASURES, name
        MEASURES[name] = ClaimMeasure(name, function, runs)
        return function

    return register


@measure()
def claims_that_hold(
    model_runs: ModelRuns, claims: list[int], instead: Mapping[str, list[int]] = MappingProxyType({})
) -> ClaimEstimate:
    """Return the share of other claims whose criterion this model meets; `instead` has other claims for some models."""
    verdicts = {number: model_runs.holds(number) for number in instead.get(model_runs.model, claims)}
    if missing := [str(number) for number, holds in verdicts.items() if holds is None]:
        raise NotMeasurable(f"of claim {', '.join(missing)} nothing could be measured")
    return ClaimEstimate.exact(sum(map(bool, verdicts.values())) / len(verdicts))


# --------------------------------------------------------------------------------------------------------------------
# What a model expects at a mask, from runs of `cloze`: pairs of words, and the loss in changed text.
# --------------------------------------------------------------------------------------------------------------------


@measure("minimal_pairs")
def share_of_pairs(model_runs: ModelRuns, group: str, beside: str | None = None) -> ClaimEstimate:
    """Return the share of a group's pairs whose right word is more probable; the control is the share in `beside`."""
    rows = {row["group"]: row for row in model_runs.run("minimal_pairs").groups}
    if missing := [name for name in (group, beside) if name is not None and name not in rows]:
        raise NotMeasurable(f"pairs of the group `{missing[0]}` in the file that `--cloze` names")
    return from_row(rows[group], "share", control=None if beside is None else rows[beside]["share"])


@measure("facts")
def gain_by_subjects_of_facts(model_runs: ModelRuns) -> ClaimEstimate:
    """Return the gain in precision at 1 over the same texts without the subjects of the facts.

    The control is the gain over the most frequent object of each relation.
    """
    rows = model_runs.run("facts").fact_relations.where(lambda row: "above_without_subject" in row, relation=EVERY)
    (row,) = required(rows, "facts whose texts have the subject as it is written")
    return from_row(row, "above_without_subject", "above_without_subject", row["above_most_frequent"])


@measure("changed_text")
def loss_in_changed_text(model_runs: ModelRuns, condition: str, against: str = INTACT) -> ClaimEstimate:
    """Return the rise in nats of the loss of masked words in changed text, such as `words_shuffled`.

    It is the difference from the loss in the text `against`: the intact text, or another change. If that is a change,
    the control is the difference from the intact text.
    """
    changes: Table = model_runs.run("changed_text").changes
    rows = {row["against"]: row for row in changes.where(condition=condition) if row.get("against")}
    if against not in rows:
        raise NotMeasurable("a treebank as `--corpus`, with sentences that have both a name and a noun to replace")
    control = None if against == INTACT else rows[INTACT]["difference"]
    return from_row(rows[against], "difference", "difference", control)


_UNTRAINED = "untrained"


@measure("hierarchy")
def linear_answers_in_first_layer(model_runs: ModelRuns, task: str) -> ClaimEstimate:
    """Return the share of sentences in which the probe of layer 1 gives the wrong answer that linear order implies.

    The control is the probe's accuracy on test sentences of the kind that it was trained on. A task is, for example,
    `main_auxiliary`.
    """
    (first, *_), linear = _above_embeddings(model_runs, task, ITSELF), LINEAR[task]
    return from_row(first, linear, linear, first["test"])


@measure("hierarchy")
def preference_for_hierarchy(model_runs: ModelRuns, task: str, from_depth: float) -> ClaimEstimate:
    """Return the difference in frequency of right and linear-order answers: the least over the upper layers.

    The control is the largest such difference of a randomly initialised model in these layers. `from_depth` is the
    least depth of an upper layer, as a share of the number of blocks.
    """
    trained, untrained = (
        upper(_above_embeddings(model_runs, task, condition), from_depth) for condition in (ITSELF, _UNTRAINED)
    )
    row = min(trained, key=lambda row: row["preference"])
    return from_row(row, "preference", "preference", max(untrained.column("preference")))


def _above_embeddings(model_runs: ModelRuns, task: str, condition: str) -> Table:
    rows = of_model(model_runs.run("hierarchy").hierarchy, task, condition).where(lambda row: row["layer"] > 0)
    lacking = f"a run of `hierarchy` with {task} and its control {_UNTRAINED}"
    return Table(sorted(required(rows, lacking), key=lambda row: row["layer"]))
