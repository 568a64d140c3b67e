"""What every paper's claims are tested by: each is confirmed by runs of which it is true, and not by others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from probing.studies.claims.claim import Claim, Paper
from probing.studies.claims.planning import Model, rows_of


def measured(paper: Paper) -> list[tuple[Claim, str]]:
    """Return each claim that has a measure, with each model of the paper that it is about."""
    return [(claim, model) for claim in paper.claims if claim.reading for model in claim.models]


def name(value: object) -> str:
    """Return the name of a parameter of a test."""
    return str(value.id) if isinstance(value, Claim) else str(value)


def verdicts(paper: Paper, claim: Claim, model: str, runs_of: Callable[[bool], Mapping[str, Any]]) -> list[str]:
    """Return the verdicts on a claim by runs of which it is true, and by runs of which it is false."""
    rows = [rows_of([claim], [Model(model, runs_of(true))], paper) for true in (True, False)]
    return [row["verdict"] for (row,) in rows]
