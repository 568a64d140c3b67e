"""Every claim that is measured is confirmed by a survey of which it is true, and not by one of which it is false."""

from __future__ import annotations

import pytest

from planted_claims import attention_runs_of, measured, name, verdicts
from probing.studies.claims.claim import Claim, read_paper
from probing.studies.claims.measures import MEASURES
from probing.studies.claims.planning import Model, rows_of

PAPER = read_paper("kovaleva2019", MEASURES)


@pytest.mark.parametrize(("claim", "model"), measured(PAPER), ids=name)
def test_a_claim_is_confirmed_where_it_is_true_and_not_where_it_is_false(claim: Claim, model: str) -> None:
    assert verdicts(PAPER, claim, model, attention_runs_of) == ["confirmed", "not confirmed"]


def test_another_model_has_analogues_of_its_own_heads() -> None:
    rows = {}
    for true, met in ((True, "yes"), (False, "no")):
        rows = {row["id"]: row for row in rows_of(PAPER.claims, [Model("other", attention_runs_of(true))], PAPER)}
        assert {row["verdict"] for row in rows.values()} == {"analogue"}
        assert {number: row["met"] for number, row in rows.items()} == dict.fromkeys(range(1, 11), met)
        assert rows[4]["measure"] == "lead_of_change_by_tuning"
    named = frozenset({"tuned model"})
    (row,) = (
        row
        for row in rows_of(PAPER.claims, [Model("other", attention_runs_of(True), kinds=named)], PAPER)
        if row["id"] == 4
    )
    assert (row["measure"], row["met"]) == ("lead_of_change_in_last_layers", "yes")


def test_claims_on_glue_are_not_testable_on_a_model_of_the_authors() -> None:
    rows = {row["id"]: row for row in rows_of(PAPER.claims, [Model("own", attention_runs_of(True))], PAPER)}
    assert all("GLUE" in rows[number]["lacking"] or "RTE" in rows[number]["lacking"] for number in (5, 9, 10))


def test_the_paper_has_10_claims() -> None:
    assert [claim.id for claim in PAPER.claims] == list(range(1, 11))
    assert PAPER.models == ["own", "bert-uncased"]
