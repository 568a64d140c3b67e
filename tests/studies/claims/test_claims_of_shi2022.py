"""Every claim that is measured is confirmed by runs of which it is true, and not by runs of which it is false."""

from __future__ import annotations

import pytest

from planted_claims import smoothing_runs_of
from probing.studies.claims.claim import Claim, read_paper
from probing.studies.claims.measures import MEASURES
from probing.studies.claims.planning import Model, rows_of

PAPER = read_paper("shi2022", MEASURES)


@pytest.mark.parametrize("claim", [claim for claim in PAPER.claims if claim.reading], ids=lambda claim: str(claim.id))
def test_a_claim_is_confirmed_where_it_is_true_and_not_where_it_is_false(claim: Claim) -> None:
    for true, verdict in ((True, "confirmed"), (False, "not confirmed")):
        (row,) = rows_of([claim], [Model("own", smoothing_runs_of(true))], PAPER)
        assert row["verdict"] == verdict


def test_another_model_has_analogues_also_of_claims_that_need_pretraining() -> None:
    for true, met in ((True, "yes"), (False, "no")):
        rows = {row["id"]: row for row in rows_of(PAPER.claims, [Model("other", smoothing_runs_of(true))], PAPER)}
        assert {number: row["met"] for number, row in rows.items() if "met" in row} == dict.fromkeys(
            [1, 2, 3, 5, 6, 7, 8, 10], met
        )
        assert all(rows[number]["verdict"] == "not testable here" for number in (4, 9))


def test_a_frozen_model_gives_no_verdict_on_pretraining() -> None:
    rows = {row["id"]: row for row in rows_of(PAPER.claims, [Model("own", smoothing_runs_of(True))], PAPER)}
    assert {number for number, row in rows.items() if row["verdict"] == "not testable here"} == {2, 4, 8, 9, 10}
    assert "pretrained with fused layers" in rows[8]["lacking"]


def test_the_paper_has_10_claims() -> None:
    assert [claim.id for claim in PAPER.claims] == list(range(1, 11))
