"""Rows of the table of claims: each claim measured on each model, with its verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from probing.studies.claims.claim import Claim, Paper, Reading
from probing.studies.claims.measures.registry import MEASURES, NotMeasurable, Subject
from probing.studies.claims.model_kinds import KINDS_OF_MODELS
from probing.studies.claims.planning import concerns, reading_of, runs_of
from probing.studies.claims.verdict import Measured, Range, Verdict, judge

ANALOGUE = "analogue"
# Whether the criterion is met, by verdict. For an analogue this is the only result: it is no verdict on the paper.
_MET: Mapping[Verdict, str] = {"confirmed": "yes", "not confirmed": "no", "unclear": "unclear"}


@dataclass(frozen=True)
class Model:
    """A model with what could be run of it.

    Args:
        name: Its name, as typed.
        runs: Its finished runs, by the names by which measures ask for them.
        commands: The command line of each run.
        lacking: Why a run is missing, by its name; the empty name stands for all runs of the model.
        kinds: The kinds of models that it is of, as far as claims ask for them.
    """

    name: str
    runs: Mapping[str, Any] = field(default_factory=dict)
    commands: Mapping[str, str] = field(default_factory=dict)
    lacking: Mapping[str, str] = field(default_factory=dict)
    kinds: frozenset[str] = frozenset()


def rows_of(claims: Sequence[Claim], models: Sequence[Model], paper: Paper) -> list[dict[str, Any]]:
    """Return a row for each claim and each model that it is measured on.

    If the claim is about the model, the row has a verdict; if the paper is not about the model, the row says
    `analogue`.

    Args:
        claims: The claims.
        models: The models.
        paper: Their paper.
    """
    runs = {model.name: model.runs for model in models}
    judged = [_Judged(model, paper, runs) for model in models]
    return [one.row(claim) for claim in claims for one in judged if concerns(claim, one.model.name, paper)]


class _Judged:
    """Measures claims on a model, each once.

    Args:
        model: The model.
        paper: The paper.
        others: The runs of all models.
    """

    def __init__(self, model: Model, paper: Paper, others: Mapping[str, Mapping[str, Any]]) -> None:
        self.model, self.paper = model, paper
        self.is_own = model.name in paper.models
        self._found: dict[int, tuple[Measured | None, str]] = {}
        self._claims = {claim.id: claim for claim in paper.claims}
        published = paper.outliers.get(model.name, {})
        self._subject = Subject(model.name, model.runs, published, self._holds, others)

    def row(self, claim: Claim) -> dict[str, Any]:
        """Return the row of a claim; columns without a value are left out."""
        reading = self._reading(claim)
        measured, lacking = self._measured(claim)
        about = {
            "id": claim.id, "claim": claim.says, "where": claim.where, "published": claim.published,
            "model": self.model.name,
        }  # fmt: skip
        if measured is None or reading is None:
            return {**about, "verdict": "not testable here", "command": self._command(claim), "lacking": lacking}
        verdict = judge(measured, reading.criterion, reading.control)
        row: dict[str, Any] = {
            **about, "measured": measured.value, "low": measured.low, "high": measured.high,
            "verdict": verdict if self.is_own else ANALOGUE, "command": self._command(claim), "met": _MET[verdict],
            "measure": reading.measure, "criterion": str(reading.criterion),
        }  # fmt: skip
        published = claim.values.get(self.model.name, next(iter(claim.values.values()), None))
        row |= {"published_value": published} if published is not None else {}
        row |= {"control": measured.control} if measured.control is not None else {}
        row |= {"control_criterion": str(reading.control)} if reading.control else {}
        return row | ({"neurons": " ".join(map(str, measured.neurons))} if measured.neurons else {})

    def _reading(self, claim: Claim) -> Reading | None:
        return reading_of(claim, self.model.name, self.paper, self.model.kinds)

    def _command(self, claim: Claim) -> str:
        lines = [self.model.commands.get(name) for name in self._runs(claim)]
        return " && ".join(line for line in lines if line)

    def _runs(self, claim: Claim) -> list[str]:
        return runs_of([claim], self.model.name, self.paper, self.model.kinds)

    def _holds(self, number: int) -> bool | None:
        claim = self._claims[number]
        measured, _ = self._measured(claim)
        reading = self._reading(claim)
        return None if measured is None or reading is None else _is_met(measured, reading.criterion, reading.control)

    def _measured(self, claim: Claim) -> tuple[Measured | None, str]:
        """Return what was measured, or why nothing was."""
        if claim.id not in self._found:
            self._found[claim.id] = self._measure(claim)
        return self._found[claim.id]

    def _measure(self, claim: Claim) -> tuple[Measured | None, str]:
        reading, lacking = self._reading(claim), self.model.lacking
        if reading is None:
            return None, self._unread(claim)
        if "" in lacking:
            return None, lacking[""]
        if missing := [name for name in self._runs(claim) if name in lacking]:
            return None, lacking[missing[0]]
        try:
            return MEASURES[reading.measure].function(self._subject, **reading.arguments), ""
        except NotMeasurable as error:
            return None, str(error)

    def _unread(self, claim: Claim) -> str:
        """Return why nothing is said of how a claim is measured on the model."""
        if not self.is_own and claim.kinds:
            kinds = " or ".join(KINDS_OF_MODELS[kind].words for kind in claim.kinds)
            return f"{kinds}; {self.model.name} is none"
        return claim.lacking if self.is_own or claim.reading is None else f"no analogue: {claim.lacking}"


def _is_met(measured: Measured, criterion: Range, control: Range | None) -> bool:
    return judge(measured, criterion, control) == "confirmed"
